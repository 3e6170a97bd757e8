"""Which image to label next: one that the model is unsure of, and unlike those that are labelled or chosen already."""

import torch
import torch.nn.functional as F
from torch import Tensor

_KNOWN = 1000  # labelled images that new ones are kept away from


def unsure(probabilities: Tensor) -> Tensor:
    """[N] in 0..1: how near the second most probable label comes to the first."""
    first, second = probabilities.topk(2, dim=1).values.unbind(1)
    return 1 - (first - second)


def choose(codes: Tensor, probabilities: Tensor | None, open_: Tensor, n: int) -> list[int]:
    """Places of n images among those that are `open_` (a mask [N]), the best first.

    One after the other, the image with the largest product of doubt and distance: the angle between its code and that
    of the nearest image which is labelled or chosen before it.
    """
    places = open_.nonzero().squeeze(1)
    if len(places) == 0:
        return []
    directions = F.normalize(codes - codes.mean(0), dim=1)
    mine = directions[places]
    doubt = torch.ones(len(places)) if probabilities is None else unsure(probabilities[places]).float() + 1e-6
    known = directions[~open_]
    distance = torch.full((len(places),), 2.0)
    if len(known):
        step = -(-len(known) // _KNOWN)
        distance = (1 - (mine @ known[::step].T).amax(1)).clamp_min(0)
    chosen = []
    for _ in range(min(n, len(places))):
        best = int((doubt * distance).argmax())
        chosen.append(int(places[best]))
        distance = torch.minimum(distance, (1 - mine @ mine[best]).clamp_min(0))
        doubt[best] = -1.0  # never again, also where all others are at distance 0
    return chosen
