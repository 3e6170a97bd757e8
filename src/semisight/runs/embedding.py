"""`semisight embed` without its command line: images in, codes out, as arrays or as a table."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from semisight.data.image_set import ImageSet
from semisight.files import atomic_path
from semisight.model.image_model import ImageModel

_BATCH = 250


@dataclass(frozen=True, eq=False)
class Codes:
    """The mean and the standard deviation of q(s | X), [N, J] each, by the names of the images."""

    names: tuple[str, ...]
    mean: Tensor
    spread: Tensor


@torch.no_grad()
def embed_images(model: ImageModel, images: ImageSet, seed: int = 0) -> Codes:
    means, spreads = [], []
    for number, index in enumerate(torch.arange(len(images)).split(_BATCH)):
        generator = torch.Generator().manual_seed(seed + number)
        posterior = model.encode(images.batch(index).to(model.decoder.log_alpha0.device), generator)
        means.append(posterior.mean.cpu())
        spreads.append(posterior.log_spread.exp().cpu())
    return Codes(images.names, torch.cat(means), torch.cat(spreads))


def write_npz(codes: Codes, out: Path) -> None:
    """Arrays `files`, `codes` and `spread`, without pickle."""
    with atomic_path(out) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, files=np.array(codes.names), codes=codes.mean.numpy(), spread=codes.spread.numpy())


def as_csv(codes: Codes) -> str:
    """file, code_0, code_1, ..., spread_0, ..."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    n = codes.mean.shape[1]
    writer.writerow(["file", *(f"code_{j}" for j in range(n)), *(f"spread_{j}" for j in range(n))])
    for name, mean, spread in zip(codes.names, codes.mean.tolist(), codes.spread.tolist(), strict=True):
        writer.writerow([name, *(f"{value:.6g}" for value in (*mean, *spread))])
    return text.getvalue()
