"""What a library user writes: parts composed in Python, and the example of every public name."""

import doctest
import inspect
from pathlib import Path

import pytest
import torch
from torch import nn

import semisight as ss

PUBLIC = sorted(set(ss.__all__) - {"__version__"})
# Protocols, results and errors: nobody constructs them from a docstring; the how-tos use them in full.
WITHOUT_EXAMPLE = {"Posterior", "Side", "Target", "UserError"}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    public = getattr(ss, name)
    text = inspect.getdoc(public) or ""
    assert text
    found = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert bool(found.examples) == (name not in WITHOUT_EXAMPLE)
    told: list[str] = []
    failed = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(found, out=told.append).failed
    assert not failed, "".join(told)


@pytest.mark.parametrize("own", [False, True], ids=["suited", "own encoder"])
def test_images_labels_and_captions_from_parts(own: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    images = ss.load("builtin:scenes?n=40", size=16)
    model = ss.ImageModel.suited_to(images)
    if own:
        size = 2 * model.code_size
        network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, size))
        model = ss.ImageModel(
            encoder=ss.NetworkEncoder(network, model.architecture.code_shape),
            decoder=ss.Decoder(model.architecture, torch.Generator().manual_seed(0)),
        )
        model.start_from(images.batch(torch.arange(40)))
    y = torch.where(torch.arange(40) < 20, torch.arange(40) % 3, -1)  # -1 where unknown
    labels = ss.Labels(ss.BayesianSVM(model.code_size, 3), y)
    vocabulary = ss.Vocabulary.from_captions((text for texts in images.captions for text in texts), min_count=1)
    head = ss.CaptionHead(model.code_size, len(vocabulary), hidden_size=16, embedding_size=16)
    words = ss.Captions(head, [texts if i < 30 else () for i, texts in enumerate(images.captions)], vocabulary)
    objective = ss.Joint(model, [labels, words], gradient=ss.Local())
    run = ss.train(objective, images, out=tmp_path / "run", steps=3, batch_size=16, minutes=20)
    assert run.predict(images).probabilities.shape == (40, 3)
    assert len(run.caption(images)) == len(run.encode(images)) == 40
