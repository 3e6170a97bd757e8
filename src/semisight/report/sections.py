"""The first sections of the page: what was learned, reconstructions, samples."""

import math

import torch
from markupsafe import Markup

from semisight.report import page
from semisight.report.charts import nats
from semisight.report.material import Material, shown, tile, tile_width
from semisight.report.observe import bits, plain_words, some
from semisight.report.page import Section

_PAIRS, _SAMPLES = 24, 48


def learned(m: Material) -> Section:
    n = m.pixels.numbers
    entries = [
        (f"{n.explained:.1%}", "of what sets an image apart from the mean image is redrawn"),
        (nats(n.after["bound"]), f"nats per image is the bound; it was {nats(n.before['bound'])} before training"),
        (nats(n.mean_image_bound), "nats per image the mean image alone would reach"),
        (f"{n.used_code:,} of {n.code_size:,}", "numbers of the code are in use"),
        (bits(n.after["kl_s"] / math.log(2)), "per image say what is there (the code s)"),
        (bits(n.after["kl_z"] / math.log(2)), "per image say where it is (the places z)"),
    ]
    if not m.run.model.encoder.has_places:
        entries = [entry for entry in entries if "places z" not in entry[1]]
    warning = Markup() if m.same_images else _changed_images()
    title = "What was learned about the images" if m.found else "What was learned"
    return Section("learned", title, "", warning + page.paragraphs(plain_words(n)) + page.cards(entries))


def _changed_images() -> Markup:
    note = (
        "Note: the images are not those of the training any more; some that count as unseen may have been learned from."
    )
    return page.paragraphs([note])


@torch.no_grad()
def reconstructions(m: Material) -> Section:
    images, names = m.examples(_PAIRS)
    results = m.run.model.reconstruct(images.to(m.run.device), m.generator()).cpu()
    pairs = [
        page.stacked(tile(above, f"{name}: image"), tile(below, f"{name}: reconstruction"))
        for above, below, name in zip(images, results, names, strict=True)
    ]
    seen = "from the training set, as none were set aside" if m.sets.valid is None else "that training did not see"
    return Section(
        "reconstructions",
        "Images and reconstructions",
        "Every image is brought down to its code and places, and drawn again from them.",
        page.figure(
            page.tiles(pairs, tile_width(m)),
            f"Above each pair the image, below what the model makes of it; {len(images)} images {seen}. "
            "What is missing below is what the code does not hold.",
        ),
    )


@torch.no_grad()
def samples(m: Material) -> Section:
    drawn = m.run.model.generate(_SAMPLES, m.generator()).cpu()
    return Section(
        "samples",
        "Samples from the prior",
        "Pictures the model makes up: code and places are drawn at random, no image is looked at.",
        page.figure(
            page.tiles([tile(image, f"sample {number + 1}") for number, image in enumerate(drawn)], tile_width(m)),
            "Each picture is the decoder's mean for s drawn from N(0, I) and z drawn uniformly. They show what the "
            "model believes before it sees anything. Places drawn one by one rarely fit together as they do in an "
            "image, which is why samples are vaguer than reconstructions.",
        ),
    )


@torch.no_grad()
def drawn_beside(m: Material) -> Section:
    """Of a model of features: what its pixel decoder draws from codes."""
    decoder = m.decoder
    assert decoder is not None
    images = some(m.sets.train if m.sets.valid is None else m.sets.valid, _PAIRS, m.seed)
    codes = m.run.model.mean_code(images.batch(torch.arange(len(images))).to(m.run.device), m.generator())
    pairs = [
        page.stacked(tile(shown(images, i), f"{name}: image"), tile(result, f"{name}: drawn from its code"))
        for i, (name, result) in enumerate(zip(images.names, decoder(codes).cpu(), strict=True))
    ]
    made_up = decoder.sample(_SAMPLES // 2, m.generator()).cpu()
    body = page.figure(
        page.tiles(pairs, "4.6rem"),
        f"Above each pair the image, below what is drawn from its code. Of pictures that it had not seen it redraws "
        f"{max(0.0, float(decoder.explained)):.0%} of what sets them apart.",
    ) + page.figure(
        page.tiles([tile(one, f"sample {number + 1}") for number, one in enumerate(made_up)], "4.6rem"),
        "Pictures of codes that are drawn at random, spread as those of the images are.",
    )
    return Section(
        "reconstructions",
        "What the codes look like",
        "The model knows images by the features of a pretrained network. A small decoder, learned beside it and "
        "without a say in anything else, draws pictures from the codes: blurred, for they hold what is there more than "
        "what it looks like.",
        body,
        folded=True,
    )
