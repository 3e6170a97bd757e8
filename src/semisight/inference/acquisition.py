"""Beyond the paper: which image to label next, and which given labels are doubtful.

    p(c | X)          = E_q(s|X) p(c | s)                            the mean over codes drawn for an image
    doubt(X)          = 1 - (p of the best label - p of the second)  small where every code says the same
    representatives   k-means of the codes without a label, each weighted by its doubt; the nearest to each centre
    next              = argmax over these of doubt(X) x distance(X)  one after the other

Weighted k-means is that of Zhdanov (2019, diverse mini-batch active learning): ten images of one doubtful kind teach
little more than one of them, and an image that is like no other teaches little about others. The distance is the angle
between the code of an image and the nearest code that has a label or was chosen before.

A given label is doubtful where the labels of the nearest other codes and the model's own opinion speak against it, one
as loud as the other. The neighbours know nothing of the image's own label, which a model may have learned by heart;
the model knows more than ten neighbours while it has not. Measured in docs/experiments.md.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from semisight.inference.encode import check_answer, encode_set
from semisight.model.heads.labels import LabelHead
from semisight.model.image_model import ImageModel
from semisight.objectives.label_spreading import nearest
from semisight.objectives.step import Images

N_CODES = 20
_MOST_KNOWN = 2000  # labelled codes that new images are kept away from
_LEAST_CENTRES, _MOST_CLUSTERED = 8, 20_000  # centres; images, the most doubtful, that they are of
_LEAST_TO_PLANT = 20  # labels
_NEIGHBOURS, _WIDTH = 10, 0.1  # of a code whose label is questioned; as in label_spreading.py


@dataclass(frozen=True)
class Seen:
    """What the model makes of images: codes [N, J] (means), and probabilities [N, C] averaged over drawn codes."""

    codes: Tensor
    probabilities: Tensor

    @property
    def doubt(self) -> Tensor:
        """[N] in 0..1."""
        first, second = self.probabilities.topk(2, dim=1).values.unbind(1)
        return 1 - (first - second)


@torch.no_grad()
def see(
    model: ImageModel,
    head: LabelHead,
    images: Images,
    probabilities: Callable[[Tensor], Tensor],
    n_codes: int = N_CODES,
    seed: int = 0,
) -> Seen:
    """`probabilities` brings decision values [B, C] to probabilities, calibrated or not."""
    means, shares = [], []
    for _, codes, generator in encode_set(model, images, n_draws=n_codes, seed=seed):
        drawn = codes.draw(n_codes, generator)
        each = [probabilities(head.decision(code).cpu()) for code in drawn]
        means.append(codes.mean.cpu())
        shares.append(torch.stack(each).mean(0).float())
    found = Seen(torch.cat(means), torch.cat(shares))
    check_answer(found.codes, found.probabilities)
    return found


def choose_next(codes: Tensor, doubt: Tensor, open_: Tensor, n: int, known: Tensor | None = None) -> list[int]:
    """Positions of n images among those that are `open_` (bool [N]), the best first.

    known  bool [N]: which have a label; by default all that are not open
    """
    places = open_.nonzero().squeeze(1)
    if not len(places):
        return []
    directions = _directions(codes)
    mine, worth = directions[places], doubt[places].double() + 1e-6  # where nothing is in doubt distance decides
    labelled = directions[~open_ if known is None else known]
    distance = torch.full((len(places),), 2.0, dtype=torch.float64)
    if len(labelled):
        some = labelled[:: -(-len(labelled) // _MOST_KNOWN)]
        distance = torch.cat([1 - (part @ some.T).amax(1) for part in mine.split(4096)]).double().clamp_min(0)
    # those that stand for no others come after all that do
    order = torch.full((len(places),), 1e-6, dtype=torch.float64)
    order[_representatives(mine, worth, max(n, _LEAST_CENTRES))] = 1.0
    worth = worth * order
    chosen = []
    for _ in range(min(n, len(places))):
        best = int((worth * (distance + 1e-9)).argmax())
        chosen.append(int(places[best]))
        distance = torch.minimum(distance, (1 - mine @ mine[best]).double().clamp_min(0))
        worth[best] = -1.0  # never again, also where all others are at distance 0
    return chosen


def _representatives(directions: Tensor, weight: Tensor, k: int) -> Tensor:
    """Positions of at most k images that stand for the others: the nearest to each centre of weighted k-means."""
    from sklearn.cluster import KMeans

    most = weight.topk(min(_MOST_CLUSTERED, len(weight))).indices.sort().values
    if len(most) <= k:
        return most
    rows, mass = directions[most], weight[most].float()
    with warnings.catch_warnings():  # fewer different images than centres
        warnings.simplefilter("ignore")
        found = KMeans(k, n_init=1, max_iter=20, random_state=0).fit(rows.numpy(), sample_weight=mass.numpy())
    of = torch.from_numpy(found.labels_).long()
    nearest_ones = []
    for centre in of.unique().tolist():
        members = (of == centre).nonzero().squeeze(1)
        middle = (rows[members] * mass[members, None]).mean(0)
        nearest_ones.append(int(members[(rows[members] @ middle).argmax()]))
    return most[nearest_ones]


def doubt_in_labels(seen: Seen, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For every image: how much speaks against its label, [N] in 0..1, and for which label instead, [N].

    Zero, and -1, where the label is unknown (-1).
    """
    against, instead = torch.zeros(len(labels)), torch.full((len(labels),), -1)
    known = (labels >= 0).nonzero().squeeze(1)
    own, share = labels[known], seen.probabilities[known]
    k = min(_NEIGHBOURS, len(known) - 1)
    if k >= 1:
        directions = _directions(seen.codes)[known]
        weights, index = nearest(directions, directions, k + 1)
        itself = index == torch.arange(len(known))[:, None]
        votes = torch.softmax(torch.where(itself, -torch.inf, weights / _WIDTH), 1)
        share = (share + torch.zeros_like(share).scatter_add_(1, own[index], votes)) / 2
    against[known] = 1 - share.gather(1, own[:, None]).squeeze(1)
    instead[known] = share.scatter(1, own[:, None], -1.0).argmax(1)
    return against, instead


@dataclass(frozen=True)
class LabelCheck:
    """How far to believe that labels above the threshold are wrong, were one in ten: of wrong labels that were planted,
    `found` is the share above it, and `precision` the share of planted ones among all above it. `error`: how often the
    nearest other labels alone are wrong about a label."""

    precision: float
    found: float
    error: float


def check_by_planting(seen: Seen, labels: Tensor, threshold: float, draws: int = 5, seed: int = 0) -> LabelCheck | None:
    """Plants wrong labels, one in ten, and looks for them; None where there are fewer than 20 labels, or two classes.

    The model has not learned the planted ones. It is made to believe in each as it believes in the right one, as if it
    had learned them by heart: the neighbours alone speak against them. Labels that are wrong already count as right.
    """
    known = (labels >= 0).nonzero().squeeze(1)
    own, p, n_classes = labels[known], seen.probabilities[known], seen.probabilities.shape[1]
    if len(known) < _LEAST_TO_PLANT or len(own.unique()) < 2:
        return None
    generator, codes = torch.Generator().manual_seed(seed), seen.codes[known]
    n_planted, planted_above, above = max(1, len(known) // 10), 0, 0
    for _ in range(draws):
        at = torch.randperm(len(known), generator=generator)[:n_planted]
        wrong, believed = own.clone(), p.clone()
        wrong[at] = (own[at] + torch.randint(1, n_classes, (n_planted,), generator=generator)) % n_classes
        believed[at, own[at]], believed[at, wrong[at]] = p[at, wrong[at]], p[at, own[at]]
        against, _ = doubt_in_labels(Seen(codes, believed), wrong)
        planted_above += int((against[at] > threshold).sum())
        above += int((against > threshold).sum())
    against, _ = doubt_in_labels(Seen(codes, torch.zeros_like(p)), own)  # half of what the neighbours say
    error = float((2 * (1 - against) < 0.5).double().mean())
    return LabelCheck(planted_above / max(1, above), planted_above / (draws * n_planted), error)


def _directions(codes: Tensor) -> Tensor:
    return F.normalize(codes - codes.mean(0), dim=1)
