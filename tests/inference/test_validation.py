"""What held-out labels and captions say of a model, against the definitions."""

import math

import pytest
import torch

from semisight.data import load
from semisight.data.builtin.scenes import read_scenes
from semisight.data.tokenizer import tokenize
from semisight.data.vocabulary import Vocabulary
from semisight.inference.captions import CaptionReader, Search, caption_perplexity, write_captions
from semisight.inference.validation import caption_terms, decision_values, label_error, label_terms
from semisight.metrics.captions import cider
from semisight.model.heads.captions import CaptionHead
from semisight.model.heads.labels import Softmax
from semisight.model.image_model import ImageModel
from semisight.objectives.captions import EncodedCaptions


def test_error_and_nll_of_the_labels_that_are_known() -> None:
    images = load("builtin:digits").subset(torch.arange(60))
    model = ImageModel.suited_to(images)
    head = Softmax(model.code_size, 10, generator=torch.Generator().manual_seed(0))
    values = decision_values(model, head, images)
    with torch.no_grad():
        code = model.code_moments(images.batch(torch.arange(60)))[0]
        assert torch.allclose(values, head.decision(code), atol=1e-5)
    labels = values.argmax(1).clone()
    labels[:5] = (labels[:5] + 1) % 10  # five are wrong
    labels[40:] = -1  # and these count for nothing
    found = label_terms(model, head, images, labels)
    assert found["error"] == label_error(model, head, images, labels) == pytest.approx(100 * 5 / 40)
    logits = values[:40].double()  # at the best of many temperatures
    every = [
        -(logits * 10**scale).log_softmax(1).gather(1, labels[:40, None]).mean().item()
        for scale in torch.linspace(-2, 5, 700)
    ]
    assert min(every) - 1e-4 < found["nll"] < 1.01 * min(every)  # it is fitted with one image's worth of doubt
    assert label_terms(model, head, images, torch.full((60,), -1)) == {}


def test_perplexity_and_cider_of_the_first_images_that_have_a_caption() -> None:
    scenes = read_scenes(12, 16, seed=0)
    assert scenes.captions is not None
    texts = [() if i in (0, 3) else captions for i, captions in enumerate(scenes.captions)]
    texts[1] = ("...",)  # not a word
    vocabulary = Vocabulary.from_captions((text for of_image in texts for text in of_image), 1)
    model = ImageModel.suited_to(scenes)
    head = CaptionHead(model.code_size, len(vocabulary), hidden_size=6, embedding_size=6, start="wide")
    found = caption_terms(model, head, vocabulary, scenes, texts, most_images=4, cider_images=3, n_codes=3, seed=5)

    chosen = torch.tensor([2, 4, 5, 6])
    encoded = EncodedCaptions.encode(texts, vocabulary)
    assert found["perplexity"] == caption_perplexity(model, head, scenes, encoded, index=chosen, n_codes=3, seed=5)
    every = caption_terms(model, head, vocabulary, scenes, texts, most_images=None, n_codes=3, seed=5)
    assert every.keys() == {"perplexity"} and every["perplexity"] != found["perplexity"]
    search = Search(n_codes=3, beam=3, seed=5)
    written = write_captions(model, CaptionReader(head, vocabulary), scenes, search, index=chosen[:3])
    references = [[tokenize(text) for text in texts[i]] for i in chosen[:3].tolist()]
    assert found["CIDEr"] == cider([best.words for best, *_ in written], references).value
    assert all(math.isfinite(value) for value in found.values())
    assert caption_terms(model, head, vocabulary, scenes, [()] * 12) == {}
