"""Section 5.3: training with captions of all, some or few images, put together from its parts.

vocabulary  the words of the training captions                                                 data/vocabulary.py
batches     captioned images beside uncaptioned ones, or captioned ones alone                  data/batches.py
objective   the bound with captions (joint), or the caption head on frozen codes (two-step)    caption_objective.py
every epoch perplexity of validation captions under the mixture over codes, perhaps CIDEr      captioning.py

    plan = caption_plan(captions.present, settings, batch_size)
    objective = build_caption_objective(images, captions, settings, plan, seed)
    Trainer(objective, train, run, plan=plan, validate=caption_validator(...), about={..., **captions.about()})
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from semisight.data.batches import LabelledAndUnlabelled
from semisight.data.tokenizer import tokenize
from semisight.data.vocabulary import Vocabulary
from semisight.errors import UserError
from semisight.inference.captions import best_captions, caption_perplexity
from semisight.inference.labels import in_batches
from semisight.metrics.captions import cider
from semisight.metrics.classification import error_rate
from semisight.model.heads.captions import CaptionHead, Start
from semisight.objectives.caption_objective import CaptionObjective, CaptionXi, LabelTerm, Posteriors
from semisight.objectives.caption_pull import CaptionPull
from semisight.objectives.encoded_captions import EncodedCaptions
from semisight.objectives.image_objective import ImageObjective
from semisight.objectives.label_objective import Xi, paper_xi
from semisight.objectives.step import Images
from semisight.random import Stream, reseed
from semisight.runs.label_training import LabelSettings, build_head

Cell = Literal["gru", "lstm"]


@dataclass(frozen=True)
class CaptionSettings:
    """How captions are learned; the defaults are the paper's.

    xi                 None: N_X / (T rho); a number is the weight of log p(Y | s) itself, 1 giving the exact bound
    xi_scale           multiplies the paper's xi
    captions_per_step  of each image of a batch; None takes all it has
    captioned_per_batch  of a batch that also holds uncaptioned images
    two_step           the image model stays as it is
    start              of the head's weights: as in appendix B, or wide (model/captions.py)
    pull               captions on moved images, and images without a caption pull (caption_pull.py), with
                       confident, threshold and bound_images; not in two steps
    """

    cell: Cell = "gru"
    hidden_size: int = 512
    embedding_size: int = 512
    min_count: int = 5  # words that occur less often in training are one unknown word
    xi: float | None = None
    xi_scale: float = 1.0
    xi_warmup: int = 0
    captions_per_step: int | None = 1
    captioned_per_batch: int = 32
    two_step: bool = False
    start: Start = "paper"
    pull: bool = False
    confident: float = 1.0
    threshold: float = 0.9
    bound_images: int | None = 16

    def __post_init__(self) -> None:
        if self.cell not in ("gru", "lstm"):
            raise UserError(f"cell must be 'gru' or 'lstm', not {self.cell!r}.")
        for name in ("hidden_size", "embedding_size", "min_count", "captions_per_step", "captioned_per_batch"):
            value = getattr(self, name)
            if value is None and name == "captions_per_step":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name} must be a whole number of at least 1, not {value!r}.")
        for name in ("xi", "xi_scale", "xi_warmup", "confident", "threshold"):
            value = getattr(self, name)
            if value is None and name == "xi":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise UserError(f"{name} of captions must be a number of at least 0, not {value!r}.")
        if self.start not in get_args(Start):
            raise UserError(f"start must be 'paper' or 'wide', not {self.start!r}.")
        bound_images = self.bound_images
        if isinstance(bound_images, bool) or not (bound_images is None or isinstance(bound_images, int)):
            raise UserError(f"bound_images must be a whole number, or nothing for all, not {bound_images!r}.")
        if bound_images is not None and bound_images < 0:
            raise UserError(f"bound_images must be at least 0, not {bound_images!r}.")
        for name in ("two_step", "pull"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} must be true or false, not {getattr(self, name)!r}.")
        if self.two_step and (self.xi is not None or self.xi_scale != 1):
            raise UserError("two_step has no bound for xi to balance captions against: leave xi and xi_scale out.")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def caption_plan(
    present: Tensor, settings: CaptionSettings, batch_size: int, labels: Tensor | None = None, uncaptioned: bool = True
) -> LabelledAndUnlabelled:
    """Which images make up a batch; ordinary epochs where every image has a caption.

    present      bool [N]: which training images have a caption
    labels       int64 [N], -1 where unknown: labelled images then come as often as captioned ones
    uncaptioned  False leaves the others out; nor has two-step learning any use for them
    """
    if not bool(present.any()):
        raise UserError("no training image has a caption: check that captions and images belong together.")
    known = present if labels is None else present | (labels >= 0)
    others = ~known if uncaptioned and not settings.two_step else torch.zeros_like(known)
    per_batch = min(settings.captioned_per_batch, max(1, batch_size - 1))
    return LabelledAndUnlabelled(known.nonzero().squeeze(1), others.nonzero().squeeze(1), batch_size, per_batch)


def share_of_batch(has: Tensor, plan: LabelledAndUnlabelled) -> float:
    """rho: how much of a batch has what `has` (bool [N]) says, on average over batches."""
    known, others = plan.labelled_index, plan.unlabelled_index
    if not len(known) or not len(others):
        return float(has[torch.cat([known, others])].double().mean())
    n_known, n_others = plan.labelled_per_batch, plan.unlabelled_per_batch
    total = n_known * has[known].double().mean() + n_others * has[others].double().mean()
    return float(total / (n_known + n_others))


def build_caption_head(settings: CaptionSettings, code_size: int, vocab_size: int, seed: int) -> CaptionHead:
    return CaptionHead(
        code_size,
        vocab_size,
        hidden_size=settings.hidden_size,
        embedding_size=settings.embedding_size,
        cell=settings.cell,
        start=settings.start,
        generator=reseed(torch.Generator(), seed, Stream.CAPTION_HEAD, 0),
    )


def build_caption_objective(
    images: ImageObjective,
    captions: EncodedCaptions,
    settings: CaptionSettings,
    plan: LabelledAndUnlabelled,
    seed: int,
    *,
    labels: LabelTerm | None = None,
    posteriors: Posteriors | None = None,
) -> CaptionObjective:
    """The objective for a training set with these captions, whose batches the plan makes."""
    architecture = images.model.architecture
    head = build_caption_head(settings, architecture.code_size, captions.vocab_size, seed)
    if settings.two_step:
        xi = CaptionXi(1.0, warmup=settings.xi_warmup)
    elif settings.xi is not None:
        xi = CaptionXi(settings.xi * settings.xi_scale, per_word=False, warmup=settings.xi_warmup)
    else:
        per_word = paper_xi(architecture.n_pixels, 1, share_of_batch(captions.present, plan))
        xi = CaptionXi(per_word * settings.xi_scale, warmup=settings.xi_warmup)
    return CaptionObjective(
        images,
        head,
        captions,
        xi,
        per_image=settings.captions_per_step,
        labels=labels,
        two_step=settings.two_step,
        posteriors=posteriors,
        pull=caption_pull(settings, share_of_batch(captions.present, plan)),
        code_rate=min(1.0, settings.hidden_size / architecture.code_size) if settings.start == "wide" else 1.0,
    )


def caption_pull(settings: CaptionSettings, rho: float) -> CaptionPull | None:
    """rho: the share of a batch that has captions; the other images are to weigh as much as these together."""
    if not settings.pull or settings.two_step:
        return None
    per_other = rho / (1 - rho) if rho < 1 else 0.0
    return CaptionPull(settings.confident, settings.threshold, bound_images=settings.bound_images, per_other=per_other)


def build_label_term(
    images: ImageObjective,
    labels: Tensor,
    n_classes: int,
    settings: LabelSettings,
    plan: LabelledAndUnlabelled,
    seed: int,
) -> LabelTerm:
    """Labels beside captions: the paper's label term; the pull of unlabelled images is LabelObjective's alone."""
    architecture = images.model.architecture
    known = labels >= 0
    xi = settings.weight(architecture.n_pixels, n_classes, share_of_batch(known, plan))
    head = build_head(settings, architecture.code_size, n_classes, seed)
    return LabelTerm(head, Xi(xi, settings.xi_warmup), int(known.sum()))


def caption_validator(
    valid: Images,
    captions: Sequence[Sequence[str]],
    vocabulary: Vocabulary,
    *,
    n_codes: int = 5,
    most_images: int | None = 300,
    cider_images: int = 0,
    beam: int = 3,
    seed: int = 0,
) -> Callable[[nn.Module], Mapping[str, float]]:
    """For `Trainer(validate=..., metric="perplexity", metric_rises=False)`.

    perplexity  of the captions of the first `most_images` validation images that have any
    CIDEr       of captions written for the first `cider_images` of them, if above 0
    error       of the labels, in percent, where labels are learned too and `valid` has some
    """
    encoded = EncodedCaptions.encode(captions, vocabulary)
    captioned = encoded.present.nonzero().squeeze(1)[:most_images]
    if not len(captioned):
        raise UserError("no validation image has a caption: set captioned images aside, or train without validation.")
    written_for = captioned[:cider_images]
    references = [[tokenize(caption) for caption in captions[i]] for i in written_for.tolist()]

    def validate(objective: nn.Module) -> Mapping[str, float]:
        assert isinstance(objective, CaptionObjective)
        model, head = objective.images.model, objective.head
        terms = {
            "perplexity": caption_perplexity(model, head, valid, encoded, index=captioned, n_codes=n_codes, seed=seed)
        }
        if references:
            words = best_captions(
                model, head, valid, vocabulary, index=written_for, n_codes=n_codes, beam=beam, seed=seed
            )
            terms["CIDEr"] = cider(words, references).value
        if objective.labels is not None and valid.labels is not None and bool((valid.labels >= 0).any()):
            known, label = valid.labels >= 0, in_batches(model, objective.labels.label_head, valid).label
            terms["error"] = 100 * error_rate(label.cpu()[known], valid.labels[known])
        return terms

    return validate
