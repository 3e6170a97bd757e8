"""Search by words among the images of a run, or others: the index is worked out once and kept in the run's folder."""

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.files import write_atomic
from semisight.inference.encode import Progress
from semisight.inference.search import WordSearch
from semisight.runs.run import Run, check_urls
from semisight.runs.run_images import load_for
from semisight.training.folder import fingerprint
from semisight.untrusted import read_bytes

INDEX = "search.safetensors"
_HEADER = 10_000  # bytes before the numbers of an index, at most


@dataclass(frozen=True)
class Searchable:
    """Images by name, and the search among them."""

    names: tuple[str, ...]
    search: WordSearch


def searchable(run: Run, images: str | None = None, progress: Progress | None = None) -> Searchable:
    """The images that the run learned from, or those of another source; the first time takes a while."""
    reader = run.captions
    if images is None:
        data = run.data().settings
        check_urls(data, run.folder.path, source="--images", names=("source",))
        images = data.source
    found = load_for(run, images, progress=progress)
    path, key = run.folder.file(INDEX), _key(run, found)
    with contextlib.suppress(SafetensorError, KeyError, UserError, OSError, ValueError, TypeError):
        n, sizes = len(found.names), {"codes": run.model.code_size, "hints": reader.head.vocab_size}
        most = _HEADER + sum(4 * n * size for size in sizes.values())  # no larger than ours would be
        kept = load_tensors(read_bytes(path, most))  # what is damaged, or somebody else's, is made anew
        same = all(kept[name].shape == (n, size) for name, size in sizes.items())
        if bytes(kept["key"].tolist()) == key and same:
            return Searchable(found.names, WordSearch(reader.head, reader.vocabulary, kept["codes"], kept["hints"]))
    search = WordSearch.of(run.model, reader.head, reader.vocabulary, found, progress)
    _keep(path, key, search)
    return Searchable(found.names, search)


def _key(run: Run, images: ImageSet) -> bytes:
    """Of the weights and of the images: an index of others is of no use."""
    weights = hashlib.sha256()
    for name, value in run.captions.head.state_dict().items():
        weights.update(name.encode() + value.flatten()[:64].cpu().float().numpy().tobytes())
    said = (weights.hexdigest(), run.step, fingerprint(images), images.names)
    return hashlib.sha256(repr(said).encode()).digest()


def _keep(path: Path, key: bytes, search: WordSearch) -> None:
    tensors = {"key": torch.tensor(list(key), dtype=torch.uint8), "codes": search.codes, "hints": search.hints}
    with contextlib.suppress(OSError, UserError):  # a run on a disk that cannot be written is searched all the same
        write_atomic(path, save_tensors(tensors))
