"""Section 4: the bound (10) of images alone as something to train.

    loss = -mean over images of [ bound + surrogate ]

The surrogate has value zero; its gradient is the estimator's (gradients.py).
"""

from collections.abc import Mapping
from typing import Literal, cast

import torch
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.model.decoder import Decoded, maximising_alpha0
from semisight.model.encoders.paper import Noise, Posterior, draw_noise
from semisight.model.image_model import ImageModel, batch_last
from semisight.objectives.bound import Bound, image_bound
from semisight.objectives.gradients import Estimator, EstimatorName, estimator
from semisight.objectives.step import Batch, Rows, Step, sum_over_processes

Precision = Literal["learned", "exact"]


class ImageObjective(nn.Module):
    """(10) on images alone."""

    def __init__(
        self,
        model: ImageModel,
        gradient: EstimatorName = "local",
        alpha0: Precision = "learned",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if alpha0 not in ("learned", "exact"):
            raise UserError(f"alpha0 must be 'learned' or 'exact', not {alpha0!r}")
        self.model, self.alpha0 = model, alpha0
        self.estimator = estimator(gradient, model.architecture, model.pooling, seed)
        self._squares: Tensor | None = None
        model.decoder.log_alpha0.requires_grad_(alpha0 == "learned")

    def forward(self, batch: Batch, generator: torch.Generator, rows: Rows) -> Step:
        bound, surrogate = self.bound(batch, generator, rows)
        return Step(-(bound.value + surrogate).mean(), self.terms(bound))

    def terms(self, bound: Bound) -> dict[str, Tensor]:
        """For the logs: every term of the bound, and alpha0."""
        return bound.means() | {"alpha0": self.model.decoder.log_alpha0.detach().exp()}

    def bound(self, batch: Batch, generator: torch.Generator, rows: Rows) -> tuple[Bound, Tensor]:
        x, posterior, decoded = self.infer(batch.images, generator, rows)
        bound = image_bound(x, posterior, decoded, self.model.decoder)
        return bound, self.surrogate(x, posterior, decoded, bound)

    def infer(self, images: Tensor, generator: torch.Generator, rows: Rows) -> tuple[Tensor, Posterior, Decoded]:
        """The image batch last, a draw from q(s, z | X), and what the decoder makes of it."""
        gradient = cast(Estimator, self.estimator)
        x = batch_last(images)
        posterior: Posterior = self.model.encoder(x, self.noise(images, generator, rows), gradient.through_z)
        decoded: Decoded = self.model.decoder(posterior.s, posterior.drawn)
        if self.training and self.alpha0 == "exact":
            squares = (x - decoded.mean.detach()).square().sum()
            self._squares = torch.stack([squares, torch.full_like(squares, x.numel())])
        return x, posterior, decoded

    def encode(self, images: Tensor, generator: torch.Generator, rows: Rows) -> Posterior:
        """A draw from q(s, z | X) alone, for what is learned on the code of images that need not be decoded."""
        posterior: Posterior = self.model.encoder(batch_last(images), self.noise(images, generator, rows))
        return posterior

    def bound_of_last(
        self, count: int | None, images: Tensor, generator: torch.Generator, rows: Rows
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the last `count` images of the whole batch (None: all) by (10), and its terms with alpha0.

        Batches are dealt in random order, the unlabelled images last, so these are a fair sample of the latter. A
        process that has none of them takes one with weight 0: every parameter has a gradient in every process.
        """
        count = rows.total if count is None else min(count, rows.total)
        kept = rows.stop - max(rows.start, rows.total - count)
        local = Rows(rows.stop - max(kept, 1), rows.stop, rows.total)
        x, posterior, decoded = self.infer(images[local.start - rows.start :], generator, local)
        bound = image_bound(x, posterior, decoded, self.model.decoder)
        share = max(kept, 0) * rows.total / (count * len(images))  # of this process, on average 1
        loss = -share * (bound.value + self.surrogate(x, posterior, decoded, bound)).mean()
        terms = self.terms(bound)
        return loss, terms | {name: share * terms[name] for name in bound.means()}

    def noise(self, images: Tensor, generator: torch.Generator, rows: Rows) -> Noise:
        part, places = slice(rows.start, rows.stop), self.model.pooling != "max"
        noise = draw_noise(self.model.architecture, rows.total, generator, part, places=places)
        return Noise(noise.eps.to(images), tuple(u.to(images) for u in noise.uniform))

    def surrogate(self, x: Tensor, posterior: Posterior, decoded: Decoded, bound: Bound) -> Tensor:
        if (
            not self.training or not posterior.chosen
        ):  # nothing to estimate: no gradient asked, or VAE-d, which has no z
            return torch.zeros_like(bound.reconstruction)
        return cast(Estimator, self.estimator).surrogate(x, posterior, decoded, self.model.decoder, bound)

    @torch.no_grad()
    def after_step(self, global_step: int) -> None:
        cast(Estimator, self.estimator).after_step()
        if self._squares is not None:
            # A batch's maximiser is noisy: alpha0 moves a hundredth of the way at each step, after a quick start.
            squares, count = sum_over_processes(self._squares)
            step = max(0.01, 1.0 / (global_step + 1))
            log_alpha0 = self.model.decoder.log_alpha0
            log_alpha0.lerp_(maximising_alpha0(squares, int(count)).log(), step)
            self._squares = None

    def rate_multipliers(self) -> Mapping[str, float]:
        """log alpha0 travels several units while weights travel fractions: at one rate it would lag by epochs."""
        return {"model.decoder.log_alpha0": 10.0}
