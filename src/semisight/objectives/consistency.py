"""Beyond the paper: augmented images, and what those without a target contribute. Off in the paper's setting.

Images are augmented (data/augment.py), and every target is learned on the strongly augmented views X':

    gain       E_q(s|X') log p(target | s)                   for the images that carry it
    pseudo     the same for pseudo-targets                   what the averaged model believes of the weakly augmented X
    contrast   two views of one image have near codes        contrastive.py
    spread     labels spread over a graph of all codes       label_spreading.py, once an epoch

each with a weight in units of the target's own. `bound_images` of each batch, unaugmented, enter the bound.
"""

from dataclasses import dataclass, field

from semisight.data.augment import Augment
from semisight.errors import UserError
from semisight.objectives.label_spreading import LabelSpreading


@dataclass(frozen=True)
class Consistency:
    """The weights of its parts; 0 turns one off.

    Args:
        pseudo_labels: weight of pseudo-targets, as much as of the given ones at 1.
        contrastive: weight of the contrastive term between two views.
        spreading: weight of spread labels.
        augment: how images are augmented.
        weak: strength of the augmentation under which the averaged model is asked.
        strong: strength of the augmentation that is learned from.
        bound_images: how many images of a batch enter the bound; 0 leaves the image model out, None takes all.
        temperature: of the contrastive term.
        spread: how labels spread.
        weak_augment: another augmentation under which the averaged model is asked, in full strength.
        bound_weight: so many nats of the bound per number of the image beside one nat per label; the loss is then in
            nats per labelled image. None: the bound has weight 1, and the labels have xi.

    Example:
        >>> import semisight as ss
        >>> model = ss.ImageModel.suited_to(ss.load("builtin:digits", limit=20))
        >>> objective = ss.Joint(model, consistency=ss.Consistency(contrastive=0.5, spreading=0))
    """

    pseudo_labels: float = 1.0
    contrastive: float = 1.0
    spreading: float = 1.0
    augment: Augment = field(default_factory=Augment)
    weak: float = 0.4
    strong: float = 1.3
    bound_images: int | None = 64
    temperature: float = 0.2
    spread: LabelSpreading = field(default_factory=LabelSpreading)
    weak_augment: Augment | None = None
    bound_weight: float | None = None

    def __post_init__(self) -> None:
        for name in ("pseudo_labels", "contrastive", "spreading", "weak", "strong", "bound_weight"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"{name} must be a number of at least 0, not {getattr(self, name)!r}.")
        if self.bound_images is not None and self.bound_images < 0:
            raise UserError(f"bound_images must be at least 0, not {self.bound_images!r}.")
