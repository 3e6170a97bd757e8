"""What Gibbs sampling and Monte Carlo EM share: images with the state of their chains, which can be saved and resumed.

A chain works on the decoder and the label head that it is given: they always hold its current parameters.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.model.decoder import Decoder
from semisight.model.heads.labels import BayesianSVM, draw_lambda, one_versus_all
from semisight.sampling import saving
from semisight.sampling.codes import CodePrior, label_prior, standard_prior
from semisight.sampling.latents import Latents, checked_images, first_latents
from semisight.sampling.parameter_samples import ParameterSamples, Snapshot, snapshot, stacked


class Chain(ABC):
    """`number` counts passes over the images, `seconds` what they took, before a resumption too."""

    kind: ClassVar[str]  # stands in its files
    config: Any  # of the kind

    def __init__(
        self,
        decoder: Decoder,
        images: Tensor,
        config: Any,
        labels: Tensor | None = None,
        head: BayesianSVM | None = None,
        latents: Latents | None = None,
    ) -> None:
        """Images float [N, C, H, W], labels int64 [N] with -1 for none; without `latents` they start from the prior."""
        check_labels(labels, head, len(images))
        self.decoder, self.head = decoder, head
        self.x = checked_images(images, decoder.architecture, decoder.log_alpha0)
        self.labels = None if labels is None else labels.to(self.x.device)
        self.config = config
        self.generator = torch.Generator().manual_seed(config.seed)
        self.latents = first_latents(decoder, len(images), self.generator, latents)
        self.number, self.seconds = 0, 0.0
        self.kept: list[Snapshot] = []
        self._digest = saving.data_digest(images, labels)
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """What this kind holds besides."""

    @torch.no_grad()
    def draw_lambda(self, index: slice | Tensor, codes: Tensor) -> Tensor | None:
        """lambda, [B, C], of the images at `index` with these codes; none where there are no labels."""
        if self.head is None or self.labels is None:
            return None
        y = one_versus_all(self.labels[index], self.head.n_classes).to(codes.dtype)
        return draw_lambda(y, self.head.scores(codes), self.head.gamma_of(y), self.generator)

    def code_prior(self, index: slice | Tensor, n_images: int, lam: Tensor | None) -> CodePrior:
        """What is known of the codes at `index` but for their images: N(0, I), and the labels given lambda."""
        if self.head is None or self.labels is None or lam is None:
            return standard_prior(self.decoder, n_images)
        return label_prior(self.decoder, self.head, self.labels[index], lam)

    def keep(self) -> None:
        """The parameters as they are now, for `samples`."""
        self.kept.append(snapshot(self.decoder, self.head))

    def samples(self) -> ParameterSamples:
        """The parameters kept so far."""
        if not self.kept:
            raise UserError(f"no samples of the parameters are kept yet, after {self.number} passes over the images")
        return stacked(self.kept)

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """The settings that must be the same for a saved chain to be this one."""

    def _write(self, path: str | Path, tensors: dict[str, Tensor]) -> None:
        """Everything that all chains hold, and what this kind holds besides, in one file."""
        tensors = {"s": self.latents.s, "generator": self.generator.get_state(), **tensors}
        tensors |= {f"places:{l}": p for l, p in enumerate(self.latents.places)}
        tensors |= saving.module_tensors("decoder", self.decoder)
        if self.head is not None:
            tensors |= saving.module_tensors("head", self.head)
        for number, (decoder, head) in enumerate(self.kept):
            tensors |= {f"kept-decoder-{number}:{name}": t for name, t in decoder.items()}
            tensors |= {f"kept-head-{number}:{name}": t for name, t in (head or {}).items()}
        counted = {"number": self.number, "seconds": self.seconds, "kept": len(self.kept)}
        saving.write_chain(path, self.kind, tensors, {**self._identity(), **counted})

    def _read(self, path: str | Path) -> dict[str, Tensor]:
        """Goes back to what `_write` wrote for the same data and settings; the rest is left to the kind."""
        tensors, meta = saving.read_chain(path, self.kind)
        saving.check_same(path, meta, self._identity())
        saving.load_module(path, tensors, "decoder", self.decoder)
        if self.head is not None:
            saving.load_module(path, tensors, "head", self.head)
        self.latents.s.copy_(tensors["s"])
        for l, p in enumerate(self.latents.places):
            p.copy_(tensors[f"places:{l}"])
        self.generator = saving.generator_from(tensors["generator"])
        self.number, self.seconds = int(meta["number"]), float(meta.get("seconds", 0.0))
        self.kept = []
        for number in range(int(meta["kept"])):
            kept = saving.take(tensors, f"kept-head-{number}")
            self.kept.append((saving.take(tensors, f"kept-decoder-{number}"), kept or None))
        return tensors

    def _identity(self) -> dict[str, Any]:
        head = self.head
        labels: dict[str, Any] | None = None
        if head is not None:
            labels = {"n_classes": head.n_classes, "gamma": head.gamma.tolist(), "precision": head.precision}
            labels |= {"others": head.others} if head.others != 1 else {}  # chains saved before know no others
        values = {"data": self._digest, "architecture": self.decoder.architecture.to_dict(), "labels": labels}
        return saving.as_json({**values, "config": self._settings()})  # through JSON's eyes: tuples are lists there


def check_counts(burn_in: int, n_samples: int) -> None:
    if n_samples < 1:
        raise UserError(f"a sampler needs at least 1 sample to average over, not {n_samples}")
    if burn_in < 0:
        raise UserError(f"burn-in is a number of sweeps, 0 or more, not {burn_in}")


def check_labels(labels: Tensor | None, head: BayesianSVM | None, n_images: int) -> None:
    if (labels is None) != (head is None):
        missing = "a label head (BayesianSVM)" if head is None else "labels"
        raise UserError(f"labels and a label head belong together: {missing} is missing")
    if labels is None or head is None:
        return
    if labels.shape != (n_images,):
        raise UserError(
            f"{n_images} images, but labels of shape {tuple(labels.shape)}; give one per image, -1 for none"
        )
    if len(labels) and (int(labels.min()) < -1 or int(labels.max()) >= head.n_classes):
        raise UserError(f"labels must lie between -1 (none) and {head.n_classes - 1}, the head's last class")
