"""The section of the page that holds the encoder against the truth: `semisight report RUN --truth`.

What the encoder says of some images beside what sampling says, given the same decoder (sampling/encoder_truth.py).
"""

from dataclasses import dataclass, field

import torch
from markupsafe import Markup
from torch import Tensor

from semisight.model.posterior import batch_first, maps_of_code
from semisight.report import charts, page
from semisight.report.build import SECTIONS, Show
from semisight.report.charts import nats
from semisight.report.material import Material, tile, tile_width
from semisight.report.observe import some
from semisight.report.page import Section
from semisight.runs.images import Progress, Sets
from semisight.runs.run import Run
from semisight.sampling.decoder_matrix import one_hot
from semisight.sampling.encoder_truth import Distance, Truth, TruthConfig, encoder_against_truth

_SHOWN = 12  # images with their two reconstructions


@dataclass(frozen=True)
class TruthSize:
    """How many images are looked at, and how closely."""

    n_images: int = 16
    config: TruthConfig = field(default_factory=TruthConfig)


@dataclass(frozen=True)
class TruthSeen:
    """The images, what was found, and what encoder and sampling make of the first of them; [n, C, H, W] each."""

    images: Tensor
    names: tuple[str, ...]
    truth: Truth
    by_encoder: Tensor
    by_sampling: Tensor | None


@torch.no_grad()
def see_truth(run: Run, sets: Sets, size: TruthSize | None = None, progress: Progress | None = None) -> TruthSeen:
    """Looks at images that training did not see, where there are such."""
    size = size or TruthSize()
    chosen = some(sets.train if sets.valid is None else sets.valid, size.n_images, run.config.seed)
    images = chosen.batch(torch.arange(len(chosen)))
    model, on_device = run.model, images.to(run.device)
    truth = encoder_against_truth(model, on_device, size.config, progress)
    by_encoder = model.reconstruct(on_device, torch.Generator().manual_seed(run.config.seed))
    by_sampling = None
    if truth.code is not None:
        layers = run.architecture.layers
        z = tuple(one_hot(p, layers[l].pool ** 2, truth.code.dtype) for l, p in enumerate(truth.places))
        by_sampling = batch_first(model.decoder(maps_of_code(truth.code, run.architecture), z).mean).cpu()
    return TruthSeen(images, chosen.names, truth, by_encoder.cpu(), by_sampling)


def truth_words(seen: TruthSeen) -> list[str]:
    truth = seen.truth
    bound, evidence, gap = (float(t.mean()) for t in (truth.bound, truth.log_evidence, truth.gap))
    way = "annealed importance sampling" if truth.annealed is not None else "importance weights"
    lines = [
        f"The bound of {len(seen.images):,} images is {nats(bound)} nats on average; their log-probability under the "
        f"model is at least {nats(evidence)} (by {way}). So the encoder gives away at least {nats(gap)} nats an image."
    ]
    if truth.encoder is not None and truth.chains is not None:
        q, chains = truth.encoder, truth.chains
        lines.append(
            f"Its codes are {q.code:.2g} spreads of the true posterior from where they should be (two sampling runs "
            f"differ by {chains.code:.2g}), its own spreads {q.spread:.2g} times the true ones, and it agrees on the "
            f"likeliest place in {q.same_place:.0%} of the blocks (two runs: {chains.same_place:.0%})."
        )
    else:
        lines.append("The model has no places z to sample: its codes are not compared.")
    return lines


def shows_with_truth(seen: TruthSeen) -> tuple[Show, ...]:
    """The sections of the page with this one among them, before the curves and settings of the training."""
    return (*SECTIONS[:-2], lambda m: truth_section(m, seen), *SECTIONS[-2:])


def truth_section(m: Material, seen: TruthSeen) -> Section:
    body = page.paragraphs(truth_words(seen)) + _evidence(seen.truth)
    if seen.truth.encoder is not None and seen.truth.chains is not None:
        body += _distances(seen.truth.encoder, seen.truth.chains)
    return Section(
        "truth",
        "Encoder against truth",
        "What the encoder says at a glance beside what long sampling finds, both given the decoder as it was learned.",
        body + _pictures(m, seen),
    )


def _evidence(truth: Truth) -> Markup:
    order = truth.bound.argsort()
    lines = [
        charts.Line(name, css, [(float(k + 1), float(values[i])) for k, i in enumerate(order)])
        for name, css, values in (("log p(X)", "first", truth.log_evidence), ("bound", "second", truth.bound))
    ]
    rows = [("bound", truth.bound), ("importance-weighted", truth.weighted)]
    rows += [] if truth.annealed is None else [("annealed", truth.annealed)]
    table = page.grid_table(
        ["log p(X), in nats", "mean", "above the bound"],
        [(name, nats(float(v.mean())), nats(float((v - truth.bound).mean()))) for name, v in rows],
    )
    drawing = charts.chart("log p(X) and the bound, image by image", lines, "images, by their bound", "clip-truth")
    return page.figure(
        page.charts(
            ("Nats per image", "", drawing + page.key([("first", "log p(X)"), ("second", "bound")])), ("", "", table)
        ),
        "The bound lies below log p(X) by exactly the distance (KL) of the encoder's answer from the true posterior. "
        "Both estimates of log p(X) err downwards, so that the gap may be larger, never smaller, on average.",
    )


def _distances(encoder: Distance, chains: Distance) -> Markup:
    def row(name: str, show: str, q: float, floor: float) -> tuple[str, str, str]:
        return name, format(q, show), format(floor, show)

    return page.figure(
        page.grid_table(
            ["distance from Gibbs samples", "encoder", "another run"],
            [
                row("means of the code, in spreads", ".3f", encoder.code, chains.code),
                row("ratio of spreads", ".3f", encoder.spread, chains.spread),
                row("total variation of a place", ".3f", encoder.places, chains.places),
                row("same likeliest place", ".1%", encoder.same_place, chains.same_place),
            ],
        ),
        "The last column is a second sampling run that began elsewhere: what it differs by is the noise of sampling, "
        "and chains that have not met yet.",
    )


def _pictures(m: Material, seen: TruthSeen) -> Markup:
    trios = []
    for number in range(min(_SHOWN, len(seen.images))):
        name = seen.names[number]
        tiles = [tile(seen.images[number], f"{name}: image"), tile(seen.by_encoder[number], f"{name}: by the encoder")]
        if seen.by_sampling is not None:
            tiles.append(tile(seen.by_sampling[number], f"{name}: by sampling"))
        trios.append(page.stacked(*tiles))
    last = ", and from the mean code and the likeliest places of the samples" if seen.by_sampling is not None else ""
    return page.figure(
        page.tiles(trios, tile_width(m)),
        f"From top to bottom: the image, the picture drawn from the encoder's code and places{last}.",
    )
