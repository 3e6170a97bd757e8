"""Section 4, (10)-(12), (17): the bound of images and of whatever some of them carry, as the one thing to train.

    loss = -mean over images of [ bound + surrogate + sum over targets of xi log p(target | s) ] - priors

The surrogate has value zero; its gradient is the estimator's (gradients.py). A target that is missing contributes
exactly nothing; without targets this is (10). Two variants:

    frozen        the image model stays as it is, and heads are learned on its codes: the second of two steps
    consistency   targets are learned on augmented images, and images without a target contribute (consistency.py)
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from semisight.data.augment import Augment
from semisight.errors import UserError
from semisight.model.decoder import Decoded, maximising_alpha0
from semisight.model.image_model import ImageModel
from semisight.model.ops.batch_norm import settle
from semisight.model.ops.processes import uncounted
from semisight.model.posterior import CodeAlone, Noise, Posterior, batch_last
from semisight.objectives.bound import Bound, image_bound
from semisight.objectives.consistency import Consistency
from semisight.objectives.contrastive import contrastive
from semisight.objectives.gradients import Gradient, Local
from semisight.objectives.step import Batch, Rows, Step, Teacher, sum_over_processes
from semisight.objectives.targets import Target, as_module

Precision = Literal["learned", "exact"]


@dataclass(frozen=True, eq=False)
class Posteriors:
    """q(s | X) of every training image, kept while the image model stays as it is: means and log spreads, [N, J]."""

    mean: Tensor
    log_spread: Tensor

    def draw(self, index: Tensor, generator: torch.Generator, rows: Rows, like: Tensor) -> Tensor:
        eps = torch.randn(rows.total, self.mean.shape[1], generator=generator)[rows.start : rows.stop]
        return (self.mean[index] + self.log_spread[index].exp() * eps).to(like)


class Joint(nn.Module):
    """(11) for any list of targets.

    In training mode targets are looked up by the batch's index; in eval mode, where images of another set come, it is
    the bound (10) of the images alone.

    Args:
        model: the image model.
        targets: what some training images carry: `Labels`, `Captions`, `Tags`, or classes of your own.
        gradient: the estimator for the places z, `Local()` by default.
        consistency: augmentation, pseudo-labels and the like; None is the paper's setting.
        alpha0: the precision of the pixels is "learned", or set to its "exact" maximiser.
        frozen: leave the image model as it is.
        with_bound: False leaves the bound of the images out and learns from targets alone, to see what it is worth.
        rho: by target, the share of a batch that carries it; by default its share of the training images.

    Example:
        >>> import torch
        >>> import semisight as ss
        >>> images = ss.load("builtin:digits")
        >>> model = ss.ImageModel.suited_to(images)
        >>> labels = ss.Labels(ss.BayesianSVM(model.code_size, 10), images.labels)
        >>> joint = ss.Joint(model, [labels], gradient=ss.Local())
        >>> sorted(joint.parts())
        ['head.labels', 'model']
    """

    step: Tensor

    def __init__(
        self,
        model: ImageModel,
        targets: Sequence[Target] = (),
        *,
        gradient: Gradient | None = None,
        consistency: Consistency | None = None,
        alpha0: Precision = "learned",
        frozen: bool = False,
        with_bound: bool = True,
        rho: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        if alpha0 not in ("learned", "exact"):
            raise UserError(f"alpha0 must be 'learned' or 'exact', not {alpha0!r}")
        names = [target.name for target in targets]
        if len(set(names)) < len(names):
            raise UserError(f"two targets have the same name ({', '.join(names)}): give each a name of its own.")
        self.model, self.alpha0 = model, alpha0
        self.gradient: Gradient = gradient if gradient is not None else Local()
        self.gradient.suit(model)
        self.targets = nn.ModuleList(as_module(target) for target in targets)
        self.consistency, self.frozen, self.with_bound = consistency, frozen, with_bound
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.teacher: Teacher | None = None  # from the trainer
        self.posteriors: Posteriors | None = None  # of a frozen model, if they were worked out
        self._squares: Tensor | None = None
        model.decoder.log_alpha0.requires_grad_(alpha0 == "learned")
        if frozen:
            model.requires_grad_(False)
        for target in self._targets:
            self.balance(target, (rho or {}).get(target.name, float(target.present.float().mean())))

    @property
    def _targets(self) -> list[Target]:
        return [cast(Target, target) for target in self.targets]

    def balance(self, target: Target, rho: float) -> None:
        """xi follows from the share of a batch that carries a target. On frozen codes there is no image to balance
        against: N_X is left out."""
        if self.frozen:
            target.balance(1, 1.0)
        else:
            target.balance(self.model.architecture.n_pixels, rho)

    def parts(self) -> Mapping[str, nn.Module]:
        heads = {f"head.{target.name}": cast(nn.Module, target.head) for target in self._targets}
        return {"model": self.model, **heads}

    # ---- a step ----

    def forward(self, batch: Batch, generator: torch.Generator, rows: Rows) -> Step:
        settle(self.model, keep=False)  # what a step saw that was thrown away
        if not self.training:
            x, posterior, decoded = self.infer(batch.images, generator, rows)
            bound = image_bound(x, posterior, decoded, self.model.decoder)
            return Step(-bound.value.mean(), self._terms(bound))
        if self.consistency is not None and not self.frozen:
            return self._consistent(batch, generator, rows, self.consistency)
        if self.frozen or not self.with_bound:
            side, prior, terms = self._side(batch, self._code(batch, generator, rows), generator, rows)
            return Step(-side.mean() - prior, {"side": side.detach().mean()} | terms)
        x, posterior, decoded = self.infer(batch.images, generator, rows)
        side, prior, terms = self._side(batch, posterior.code, generator, rows)
        bound = image_bound(x, posterior, decoded, self.model.decoder).with_side(side)
        loss = -(bound.value + self._surrogate(x, posterior, decoded, bound)).mean() - prior
        return Step(loss, self._terms(bound) | terms)

    def _side(
        self, batch: Batch, code: Tensor, generator: torch.Generator, rows: Rows
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """xi log p of all targets, [B]; log-priors per image; terms for the logs."""
        side, prior = code.new_zeros(len(code)), code.new_zeros(())
        terms: dict[str, Tensor] = {}
        for target in self._targets:
            found = target.side(target.rows(batch.index, generator, rows), code, int(self.step))
            side, prior = side + found.value, prior + target.log_prior(int(self.step)).to(prior)
            terms[target.name] = found.log_prob
        return side, prior, terms

    def _consistent(self, batch: Batch, generator: torch.Generator, rows: Rows, how: Consistency) -> Step:
        step = int(self.step)

        def augmented(strength: float, augment: Augment = how.augment) -> Tensor:
            return augment.of_rows(batch.images, generator, strength, rows.total, rows.start)

        def weak() -> Tensor:
            return augmented(how.weak) if how.weak_augment is None else augmented(1.0, how.weak_augment)

        views = [self.encode(augmented(how.strong), generator, rows) for _ in range(2 if how.contrastive > 0 else 1)]
        given = [target.rows(batch.index, generator, rows) for target in self._targets]
        others = [target.lacking()[batch.index.cpu()].to(batch.images.device) for target in self._targets]
        asks = how.pseudo_labels > 0 and any(target.rho < 1 for target in self._targets)
        believed = self._beliefs(weak(), others, generator, rows) if asks else [None] * len(others)
        loss, terms = batch.images.new_zeros(()), {}
        for number, (target, of, without, belief) in enumerate(
            zip(self._targets, given, others, believed, strict=True)
        ):
            seen = target.see(views)
            gain, terms[target.name] = target.gain(of, seen, step)
            if belief is not None:
                learned = target.learn(belief, of, without, seen, step)
                gain = gain + how.pseudo_labels * learned.gain
                terms |= {f"{target.name}_{name}": term for name, term in learned.terms.items()}
            if how.contrastive > 0 and number == 0:  # once, in the units of the first target
                terms["contrastive"] = contrastive(views[0].mean, views[1].mean, how.temperature, rows)
                gain = gain + how.contrastive * terms["contrastive"]
            spread = target.spread_gain(batch.index, seen) if how.spreading > 0 else None
            if spread is not None:
                terms[f"{target.name}_spread"] = spread
                gain = gain + how.spreading * spread
            loss = loss - target.scale(step) * gain - target.log_prior(step).to(loss)
        if how.bound_weight is not None:
            loss = loss / self._targets[0].scale(step)
        if how.bound_images != 0 and how.bound_weight != 0:
            bound_loss, bound_terms = self._bound_of_last(how.bound_images, batch.images, generator, rows)
            by = 1.0 if how.bound_weight is None else how.bound_weight / self.model.architecture.n_pixels
            loss, terms = loss + by * bound_loss, bound_terms | terms
        return Step(loss, {name: term.detach() for name, term in terms.items()})

    @torch.no_grad()
    def _beliefs(
        self, weak: Tensor, others: Sequence[Tensor], generator: torch.Generator, rows: Rows
    ) -> list[object | None]:
        """Pseudo-targets of the images that lack each target, by the averaged weights if there are any. The weakly
        augmented image itself is not learned from."""
        any_ = torch.stack(list(others)).any(0)
        if self.teacher is None:
            return self._believed(weak, any_, others, generator, rows)
        with self.teacher.in_place():
            return self._believed(weak, any_, others, generator, rows)

    def _believed(
        self, weak: Tensor, any_: Tensor, others: Sequence[Tensor], generator: torch.Generator, rows: Rows
    ) -> list[object | None]:
        if self.model.encoder.mean_is_exact:
            code = self.model.mean_code(weak[any_], generator)
        else:  # z is drawn for the whole batch, so that several processes draw what one would
            code = self.encode(weak, generator, rows).mean[any_]
        return [
            target.believe(code[without[any_]]) if target.rho < 1 else None
            for target, without in zip(self._targets, others, strict=True)
        ]

    # ---- the image model ----

    def infer(self, images: Tensor, generator: torch.Generator, rows: Rows) -> tuple[Tensor, Posterior, Decoded]:
        """The image batch last, a draw from q(s, z | X), and what the decoder makes of it."""
        x = batch_last(images)
        posterior = self.model.encoder(x, self._noise(images, generator, rows), self.gradient.through_z)
        decoded: Decoded = self.model.decoder(posterior.s, posterior.drawn)
        if self.training and self.alpha0 == "exact":
            squares = (x - decoded.mean.detach()).square().sum()
            self._squares = torch.stack([squares, torch.full_like(squares, x.numel())])
        return x, posterior, decoded

    def encode(self, images: Tensor, generator: torch.Generator, rows: Rows) -> Posterior:
        """A draw from q(s, z | X) alone, for what is learned on the code of images that need not be decoded."""
        encoder, x = self.model.encoder, batch_last(images)
        if isinstance(encoder, CodeAlone):
            return encoder.code(x, self._noise(images, generator, rows, places=False).eps)
        return encoder(x, self._noise(images, generator, rows))

    def _noise(self, images: Tensor, generator: torch.Generator, rows: Rows, places: bool = True) -> Noise:
        noise = self.model.noise(rows.total, generator, slice(rows.start, rows.stop), torch.float32, places)
        return Noise(noise.eps.to(images), tuple(u.to(images) for u in noise.uniform))

    def _code(self, batch: Batch, generator: torch.Generator, rows: Rows) -> Tensor:
        if self.posteriors is not None:
            return self.posteriors.draw(batch.index.cpu(), generator, rows, batch.images)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return self.encode(batch.images, generator, rows).code

    def _bound_of_last(
        self, count: int | None, images: Tensor, generator: torch.Generator, rows: Rows
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the last `count` images of the whole batch (None: all) by (10), and its terms with alpha0.

        Batches are dealt in random order, those without a target last, so these are a fair sample of the latter. A
        process that has none of them takes one with weight 0: every parameter has a gradient in every process.
        """
        count = rows.total if count is None else min(count, rows.total)
        kept = rows.stop - max(rows.start, rows.total - count)
        local = Rows(rows.stop - max(kept, 1), rows.stop, rows.total)
        with uncounted() if kept <= 0 else nullcontext():
            x, posterior, decoded = self.infer(images[local.start - rows.start :], generator, local)
        if kept <= 0 and self._squares is not None:
            self._squares = torch.zeros_like(self._squares)  # what has no weight is not counted either
        bound = image_bound(x, posterior, decoded, self.model.decoder)
        share = max(kept, 0) * rows.total / (count * len(images))  # of this process, on average 1
        loss = -share * (bound.value + self._surrogate(x, posterior, decoded, bound)).mean()
        terms = self._terms(bound)
        return loss, terms | {name: share * terms[name] for name in bound.means()}

    def _surrogate(self, x: Tensor, posterior: Posterior, decoded: Decoded, bound: Bound) -> Tensor:
        if not posterior.chosen:  # without places there is nothing to estimate
            return torch.zeros_like(bound.reconstruction)
        return self.gradient.surrogate(x, posterior, decoded, self.model.decoder, bound)

    def _terms(self, bound: Bound) -> dict[str, Tensor]:
        """For the logs: every term of the bound, and alpha0."""
        return bound.means() | {"alpha0": self.model.decoder.log_alpha0.detach().exp()}

    # ---- between steps ----

    def refresh(self, codes: Tensor, generator: torch.Generator) -> None:
        """Once an epoch, with the mean codes [N, J] of all training images."""
        if self.consistency is not None and self.consistency.spreading > 0:
            for target in self._targets:
                target.refresh(codes, self.consistency.spread, generator)

    @torch.no_grad()
    def after_step(self, global_step: int) -> None:
        if not self.frozen:
            self.gradient.after_step()
        if self._squares is not None:
            # A batch's maximiser is noisy: alpha0 moves a hundredth of the way at each step, after a quick start.
            squares, count = sum_over_processes(self._squares)
            step = max(0.01, 1.0 / (global_step + 1))
            log_alpha0 = self.model.decoder.log_alpha0
            log_alpha0.lerp_(maximising_alpha0(squares, int(count)).log(), step)
            self._squares = None
        for target in self._targets:
            target.after_step()
        settle(self.model)
        self.step.fill_(global_step)

    def rate_multipliers(self) -> Mapping[str, float]:
        """log alpha0 travels several units while weights travel fractions: at one rate it would lag by epochs."""
        heads = {
            f"targets.{number}.head.{name}": rate
            for number, target in enumerate(self._targets)
            for name, rate in target.rate_multipliers().items()
        }
        return {"model.decoder.log_alpha0": 10.0, **heads}
