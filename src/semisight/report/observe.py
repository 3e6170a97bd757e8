"""What a model does with images: the numbers of the report, and what its pictures are drawn from.

bound            of the trained model, of the same model before training, and of the mean image alone:
                 log N(X; mean, v) with v the mean squared error of the mean image, the best it can have
explained        1 - sum |X - reconstruction|^2 / sum |X - mean image|^2
used code        numbers of s whose mean differs between images (variance over images above 0.01)
paint of an element   sum of its squared values times the energy of its dictionary element
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from semisight.data.image_set import ImageSet
from semisight.objectives.joint import Joint
from semisight.random import Stream, random_order
from semisight.report.charts import nats
from semisight.runs.images import Sets
from semisight.runs.run import Run, build_model
from semisight.training.validation import validate

_MEASURED = 512  # images that the numbers are taken over
_BATCH = 32
_USED_VARIANCE = 0.01


@dataclass(frozen=True)
class Numbers:
    """What was learned, in numbers; over `n` images that training did not see, unless `seen`."""

    n: int
    seen: bool
    n_pixels: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    mean_image_bound: float
    explained: float
    rmse: float
    used_code: int
    code_size: int

    @property
    def noise(self) -> float:
        """The spread of what the model leaves to chance, in parts of the pixel range."""
        return self.after["alpha0"] ** -0.5


@dataclass(frozen=True)
class Seen:
    """How the model saw some images, per layer; `places` and `decided` for pooled layers, empty for VAE-d.

    places   [P, K_l] share of an element's paint that went to each place of its blocks
    decided  0 where q(z) is uniform, 1 where it is certain; mean over blocks, weighted by their paint
    paint    [K_l] mean paint of every dictionary element
    """

    numbers: Numbers
    places: tuple[Tensor, ...]
    decided: tuple[float, ...]
    paint: tuple[Tensor, ...]


def observe(run: Run, sets: Sets) -> Seen:
    """Looks at validation images, or at training images where there are no others."""
    images = some(sets.train if sets.valid is None else sets.valid, _MEASURED, run.config.seed)
    model, architecture, seed = run.model, run.architecture, run.config.seed
    generator = torch.Generator().manual_seed(seed)
    mean = sets.train.mean_image()
    norms = [d.detach().square().sum((1, 2, 3)) for d in model.decoder.dictionaries]
    paint = [torch.zeros(layer.maps) for layer in architecture.layers]
    places = [torch.zeros(layer.pool**2, layer.maps) for layer in architecture.layers[:-1]]
    certainty = [0.0 for _ in places]
    squares = spread = 0.0
    means = []
    for index in torch.arange(len(images)).split(_BATCH):
        x = images.batch(index)
        with torch.no_grad():
            posterior = model.encode(x.to(run.device), generator)
            decoded = model.decoder(posterior.mu, posterior.z)
        result = decoded.mean.permute(3, 0, 1, 2).cpu()
        squares += float((x - result).square().sum())
        spread += float((x - mean).square().sum())
        means.append(posterior.mean.cpu())
        for layer, values in enumerate((*decoded.values, posterior.mu)):
            energy = values.square() * norms[layer][:, None, None, None]  # [K, h, w, B]
            paint[layer] += energy.sum((1, 2, 3)).cpu()
            if layer < len(posterior.chosen):
                chosen = posterior.chosen[layer]
                places[layer] += (chosen.z * energy).sum((2, 3, 4)).cpu()
                full = math.log(chosen.z.shape[0]) or 1.0
                certainty[layer] += float((energy * (1 + chosen.negative_entropy / full)).sum())
    variance = torch.cat(means).var(0, correction=0)
    mse = spread / (len(images) * architecture.n_pixels)
    numbers = Numbers(
        n=len(images),
        seen=sets.valid is None,
        n_pixels=architecture.n_pixels,
        before=_before(run, sets, images),
        after=validate(run.objective, images, batch_size=_BATCH, seed=seed),
        mean_image_bound=-0.5 * architecture.n_pixels * (math.log(2 * math.pi * max(mse, 1e-12)) + 1),
        explained=1 - squares / max(spread, 1e-12),
        rmse=math.sqrt(squares / (len(images) * architecture.n_pixels)),
        used_code=int((variance > _USED_VARIANCE).sum()),
        code_size=architecture.code_size,
    )
    has_z = model.encoder.has_places
    return Seen(
        numbers,
        tuple(p / p.sum(0).clamp_min(1e-12) for p in places) if has_z else (),
        tuple(c / max(float(p.sum()), 1e-12) for c, p in zip(certainty, places, strict=True)) if has_z else (),
        tuple(p / len(images) for p in paint),
    )


def _before(run: Run, sets: Sets, images: ImageSet) -> dict[str, float]:
    """The terms of the model as it was before the first step."""
    model = build_model(run.about["model"], run.config.seed)
    chosen = random_order(len(sets.train), run.config.seed, Stream.START)[:2000].sort().values
    model.start_from(sets.train.batch(chosen))
    return validate(Joint(model.to(run.device)), images, batch_size=_BATCH, seed=run.config.seed)


def some(images: ImageSet, most: int, seed: int) -> ImageSet:
    """At most so many of the images, drawn by the seed, in their order."""
    if len(images) <= most:
        return images
    return images.subset(random_order(len(images), seed, Stream.SHOWN)[:most].sort().values)


def bits(number: float) -> str:
    return f"{number:,.0f} bit{'' if round(number) == 1 else 's'}"


def plain_words(numbers: Numbers) -> list[str]:
    """What was learned, in sentences for people who have not read the paper."""
    n = numbers
    after, before, chance = (nats(v) for v in (n.after["bound"], n.before["bound"], n.mean_image_bound))
    who = f"{n.n:,} of the images it learned from" if n.seen else f"{n.n:,} images it had not seen"
    has_places = n.after["kl_z"] > 0
    source = f"{n.code_size:,} numbers per image{' and the places it chose' if has_places else ''}"
    redraws = f"redraws {n.explained:.0%} of what sets an image apart from the mean image"
    if n.explained <= 0:
        redraws = "does not redraw images better than the mean image would yet"
    lines = [
        f"From {source}, the model {redraws} (measured on {who}). A typical pixel is off by {n.rmse:.3f} on a scale "
        "from black 0 to white 1.",
        f"The bound, the log-probability per image that it can vouch for (in nats, higher is better), went from "
        f"{before} before training to {after}. "
        f"Knowing only the mean image and how images spread around it would give {chance}.",
    ]
    if n.after["bound"] <= n.mean_image_bound:
        lines.append("That is no better than the mean image yet: train longer, on more images, or at a higher rate.")
    bits_what, bits_where = n.after["kl_s"] / math.log(2), n.after["kl_z"] / math.log(2)
    where = f" and {bits(bits_where)} on where (the places z)" if has_places else ""
    lines.append(
        f"It spends {bits(bits_what)} per image on what is there (the code s){where}, "
        f"and uses {n.used_code:,} of the {n.code_size:,} numbers."
    )
    return lines
