"""Figure 2: captions of images from a set that has none, as a page of pictures.

    semisight train FLICKR8K/Images --captions FLICKR8K/dataset_flickr8k.json --backbone efficientnet-lite2 --out RUN
    semisight reproduce figure2 --run RUN --data IMAGES              results/figure2.png

RUN is a run that learned captions, IMAGES a folder of pictures. Twelve of them are shown, drawn by the seed 0 and not
chosen by anybody, each with the best caption that a beam of five finds. Which captions are good is for the
reader to see: nothing is measured here.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from semisight.data.builtin.scenes import read_scenes
from semisight.data.formats.pictures import read_upright
from semisight.data.image_set import ImageSet
from semisight.data.sources import Kind, kind_of
from semisight.data.vocabulary import Vocabulary
from semisight.errors import UserError
from semisight.experiments.figures import pyplot
from semisight.experiments.table import Request
from semisight.experiments.table3 import captions_of
from semisight.inference.captions import Search
from semisight.model.heads.captions import CaptionHead
from semisight.model.image_model import ImageModel
from semisight.objectives.captions import Captions
from semisight.objectives.joint import Joint
from semisight.runs.run import Run, load_run
from semisight.runs.run_images import load_for
from semisight.runs.train import train

FIGURE = "figure2"
N_SHOWN, COLUMNS, SIDE, WIDE = 12, 4, 240, 34  # pictures, those beside one another, pixels, letters of a line


def draw(request: Request) -> Path:
    """The picture, beside the results file."""
    plots = pyplot()  # before the work
    run, images, pictures = _smoke() if request.smoke else _asked(request)
    found = run.caption(images, Search(n_codes=2) if request.smoke else Search())
    # a model that has hardly learned may end no sentence, and then has no caption at all
    captions = [given[0].text if given and given[0].words else "(no words)" for given in found]
    rows = -(-len(captions) // COLUMNS)
    figure, panels = plots.subplots(rows, COLUMNS, figsize=(2.6 * COLUMNS, 2.9 * rows), squeeze=False)
    for panel in panels.flat:
        panel.axis("off")
    for panel, picture, text in zip(panels.flat, pictures, captions, strict=False):
        panel.imshow(picture, cmap="gray")
        panel.set_title("\n".join(textwrap.wrap(text, WIDE)), fontsize=7, y=-0.02, va="top")
    out = request.file(FIGURE).with_name(f"{FIGURE}.png")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(out, dpi=110, metadata={"Software": None})
    plots.close(figure)
    return out


Picture = npt.NDArray[np.generic]


def _asked(request: Request) -> tuple[Run, ImageSet, Sequence[Picture]]:
    if request.run is None:
        raise UserError(
            "say which run writes the captions: --run RUN, trained with semisight train ... --captions FILE."
        )
    run = load_run(request.run)
    _ = run.captions  # an error that says how to learn them
    source = str(request.source())
    if kind_of(source) is not Kind.PICTURES or not Path(source).is_dir():
        raise UserError(f"figure 2 shows pictures of a folder: --data FOLDER, not {source}.")
    images = load_for(run, source, N_SHOWN)
    return run, images, [np.asarray(read_upright(Path(source) / name, SIDE)) for name in images.names]


def _smoke() -> tuple[Run, ImageSet, Sequence[Picture]]:
    """Two steps on a few scenes, and other scenes without their captions."""
    scenes = read_scenes(20, 16, 0)
    words = Vocabulary.from_captions((text for texts in captions_of(scenes) for text in texts), 1)
    model = ImageModel.suited_to(scenes)
    target = Captions(
        CaptionHead(model.code_size, len(words), hidden_size=8, embedding_size=8), scenes.captions or (), words
    )
    run = train(Joint(model, [target]), scenes, steps=2, batch_size=10, threads=1)
    others = read_scenes(N_SHOWN, 16, 1).without_column("captions")
    shown = others.batch(torch.arange(N_SHOWN)).permute(0, 2, 3, 1).numpy()
    return run, others, list(shown)
