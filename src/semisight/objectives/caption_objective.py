"""Sections 3.2 and 4, (11), (12): the bound with captions, and with labels on the same code.

joint       bound + mean over its drawn captions of xi log p(Y | s), xi = N_X / (T rho), for a captioned image,
            and the bound alone for the others
two-step    the image model stays as it is; its codes s ~ q(s | X) are given to the caption head, which learns by
            1/T log p(Y | s). There is no bound to balance against, so N_X is left out

T counts the symbols of that very caption, the end among them: every caption weighs as much as N_X pixels, however long
it is. Of an image with several captions `per_image` are drawn anew at every step (by default one; None takes them all).
Their mean is an unbiased estimate of the mean over all its captions: an image counts once however many it has.

A label term (12), (29) can be added: captions and labels are then learned on one and the same draw of the code.

Beyond the paper (`CaptionPull`, caption_pull.py), captions and labels are learned on the codes of moved images, a few
images of each batch enter the bound, and images without a caption pull:

    N_X [ mean over captioned images of 1/T log p(Y | s) + mean over the others of 1/T log p(sure words | s) ] + bound
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.model.heads.captions import CaptionHead, words_per_caption
from semisight.model.heads.labels import LabelHead
from semisight.model.image_model import ImageModel
from semisight.objectives.bound import image_bound
from semisight.objectives.caption_pull import CaptionPull, sure_words
from semisight.objectives.encoded_captions import EncodedCaptions
from semisight.objectives.image_objective import ImageObjective
from semisight.objectives.label_objective import Xi
from semisight.objectives.step import Batch, Images, Rows, Step
from semisight.training.ema import AveragedWeights, in_place_of_weights

MOST_KEPT = 1 << 30  # bytes of posteriors that are worked out once instead of at every step


@dataclass(frozen=True)
class CaptionXi:
    """The weight of a caption of T symbols: `value`, or `value / T` where per_word; reached over `warmup` steps."""

    value: float
    per_word: bool = True
    warmup: int = 0

    def at(self, step: int, n_symbols: Tensor) -> Tensor:
        weight = Xi(self.value, self.warmup).at(step)
        return weight / n_symbols if self.per_word else torch.full_like(n_symbols, weight, dtype=torch.float32)


class LabelTerm(nn.Module):
    """xi log p(label | s), and the prior on beta; `n_labelled` is the number of labelled training images."""

    def __init__(self, head: nn.Module, xi: Xi, n_labelled: int) -> None:
        super().__init__()
        self.head, self.xi, self.n_labelled = head, xi, n_labelled

    def forward(self, labels: Tensor, code: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """The side term [B], the prior's share per image, and the mean log p(label | s) for the logs."""
        head, weight = self.label_head, self.xi.at(step)
        log_p = head.log_prob(labels, code)
        known = labels >= 0
        prior = weight * float(known.float().mean()) * head.log_prior(max(1, self.n_labelled))
        return weight * log_p, prior, log_p.detach().sum() / known.sum().clamp_min(1)

    @property
    def label_head(self) -> LabelHead:
        return cast(LabelHead, self.head)


@dataclass(frozen=True, eq=False)
class Posteriors:
    """q(s | X) of every training image: mean and logarithm of the spread, [N, J] each."""

    mean: Tensor
    log_spread: Tensor

    def draw(self, index: Tensor, generator: torch.Generator, rows: Rows, like: Tensor) -> Tensor:
        eps = torch.randn(rows.total, self.mean.shape[1], generator=generator)[rows.start : rows.stop]
        return (self.mean[index] + self.log_spread[index].exp() * eps).to(like)


@torch.no_grad()
def posteriors_of(model: ImageModel, images: Images, batch_size: int = 200) -> Posteriors | None:
    """For two-step learning. None where they do not stay the same (sampled pooling), or would take too much memory."""
    if model.pooling == "sampled" or 8 * len(images) * model.architecture.code_size > MOST_KEPT:
        return None
    generator, device = torch.Generator().manual_seed(0), model.decoder.log_alpha0.device
    parts = [
        model.encode(images.batch(index).to(device), generator) for index in torch.arange(len(images)).split(batch_size)
    ]
    return Posteriors(torch.cat([p.mean.cpu() for p in parts]), torch.cat([p.log_spread.cpu() for p in parts]))


class CaptionObjective(nn.Module):
    """(11) with captions. `captions` are those of the training set, in the order of its images.

    They are looked up by the batch's index, so in eval mode, where images of another set come, the bound is without
    them: `caption_training.caption_validator` is what validates captions.

    two_step    freezes the image model; `posteriors`, of that model and the training images, spare encoding them again
    labels      adds labels on the same code
    pull        how images without a caption pull; None is the paper's objective
    code_rate   multiplies the learning rate of the map C from the code to the first state
    """

    step: Tensor

    def __init__(
        self,
        images: ImageObjective,
        head: CaptionHead,
        captions: EncodedCaptions,
        xi: CaptionXi,
        *,
        per_image: int | None = 1,
        labels: LabelTerm | None = None,
        two_step: bool = False,
        posteriors: Posteriors | None = None,
        pull: CaptionPull | None = None,
        code_rate: float = 1.0,
    ) -> None:
        super().__init__()
        if captions.vocab_size != head.vocab_size:
            raise UserError(
                f"the captions were encoded with a vocabulary of {captions.vocab_size} symbols, but the caption model "
                f"has {head.vocab_size}: use the vocabulary that belongs to the model."
            )
        if posteriors is not None and not two_step:
            raise ValueError("posteriors stay the same only while the image model does: they are for two-step learning")
        self.images, self.head, self.labels = images, head, labels
        # Plain attributes, not buffers: they belong to the data, and would make every checkpoint as large as these.
        self.train_captions, self.posteriors = captions, posteriors
        self.xi, self.per_image, self.two_step, self.pull = xi, per_image, two_step, pull
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.code_rate = code_rate
        self.averages: AveragedWeights | None = None  # from the trainer
        if two_step:
            images.requires_grad_(False)

    def forward(self, batch: Batch, generator: torch.Generator, rows: Rows) -> Step:
        if self.two_step and self.training:
            return self._on_codes(batch, generator, rows)
        if self.pull is not None and self.training:
            return self._pulled(batch, generator, rows, self.pull)
        x, posterior, decoded = self.images.infer(batch.images, generator, rows)
        bound = image_bound(x, posterior, decoded, self.images.model.decoder)
        side, prior, terms = self._side(batch, posterior.code, generator, rows)
        bound = bound.with_side(side)
        loss = -(bound.value + self.images.surrogate(x, posterior, decoded, bound)).mean() - prior
        return Step(loss, self.images.terms(bound) | terms)

    def _pulled(self, batch: Batch, generator: torch.Generator, rows: Rows, pull: CaptionPull) -> Step:
        def moved(strength: float) -> Tensor:
            return pull.moves.of_rows(batch.images, generator, strength, rows.total, rows.start)

        code = self.images.encode(moved(pull.far), generator, rows).code
        side, prior, terms = self._side(batch, code, generator, rows)
        loss = -side.mean() - prior
        others = ~self.train_captions.present[batch.index.cpu()].to(code.device)
        if pull.confident > 0 and pull.per_other > 0:
            captions, sure = self._sure_words(moved(pull.little)[others], generator, pull.threshold)
            gain, terms["sure"], terms["confident"] = self._confident(captions, sure, code[others])
            loss = loss - pull.confident * pull.per_other * gain / len(code)
        if pull.bound_images != 0:
            bound_loss, bound_terms = self.images.bound_of_last(pull.bound_images, batch.images, generator, rows)
            loss, terms = loss + bound_loss, bound_terms | terms
        return Step(loss, terms)

    @torch.no_grad()
    def _sure_words(self, images: Tensor, generator: torch.Generator, threshold: float) -> tuple[Tensor, Tensor]:
        """Captions of the images' mean codes, and which words are sure; by the averaged weights, if there are any."""
        with in_place_of_weights(self.averages):
            return sure_words(self.head, self.images.model.mean_code(images, generator), threshold)

    def _confident(self, captions: Tensor, sure: Tensor, code: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sum of xi log p of the sure words; their share, and mean log p."""
        n_symbols = words_per_caption(captions)
        log_p = (sure * self.head.log_symbols(captions, code)).sum(1)
        gain = (self.xi.at(int(self.step), n_symbols.clamp_min(1)).to(code) * log_p).sum()
        return gain, sure.sum() / n_symbols.sum().clamp_min(1), log_p.detach().sum() / sure.sum().clamp_min(1)

    def _on_codes(self, batch: Batch, generator: torch.Generator, rows: Rows) -> Step:
        """The second of two steps."""
        side, prior, terms = self._side(batch, self._frozen_code(batch, generator, rows), generator, rows)
        return Step(-side.mean() - prior, {"side": side.detach().mean()} | terms)

    @torch.no_grad()
    def _frozen_code(self, batch: Batch, generator: torch.Generator, rows: Rows) -> Tensor:
        if self.posteriors is not None:
            return self.posteriors.draw(batch.index.cpu(), generator, rows, batch.images)
        return self.images.encode(batch.images, generator, rows).code

    def _side(
        self, batch: Batch, code: Tensor, generator: torch.Generator, rows: Rows
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """xi E log p(Y | s) of captions and labels, [B]; log-priors per image; terms for the logs."""
        side, prior = code.new_zeros(len(code)), code.new_zeros(())
        terms: dict[str, Tensor] = {}
        if self.training:
            side, terms["caption"] = self._caption_side(batch.index.cpu(), code, generator, rows)
        if self.labels is not None:
            labels = batch.labels if batch.labels is not None else torch.full((len(code),), -1, device=code.device)
            label_side, prior, terms["label"] = self.labels(labels, code, int(self.step))
            side = side + label_side
        return side, prior, terms

    def _caption_side(
        self, index: Tensor, code: Tensor, generator: torch.Generator, rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """The captions' part [B], and their mean log p per symbol: minus the logarithm of their perplexity."""
        captions, owners = self.train_captions.draw(index, self.per_image, generator, rows)
        captions, owners = captions.to(code.device), owners.to(code.device)
        n_symbols = words_per_caption(captions)
        drawn_of_image = torch.bincount(owners, minlength=len(code))[owners]
        weight = self.xi.at(int(self.step), n_symbols).to(code) / drawn_of_image
        log_p = self.head.log_prob(captions, code[owners])
        side = code.new_zeros(len(code)).index_add(0, owners, (weight * log_p).to(code))
        return side, log_p.detach().sum() / n_symbols.sum().clamp_min(1)

    def after_step(self, global_step: int) -> None:
        if not self.two_step:
            self.images.after_step(global_step)
        self.step.fill_(global_step)

    def rate_multipliers(self) -> Mapping[str, float]:
        """A code has far more entries than the state it sets: at one rate C s would soon be at the ends of tanh."""
        code = {"head.code.weight": self.code_rate, "head.code.bias": self.code_rate} if self.code_rate != 1 else {}
        return code | {f"images.{name}": rate for name, rate in self.images.rate_multipliers().items()}
