"""Captions of whole sets: the mixture over codes, what is missing, the best few, and which were seen in training."""

from itertools import pairwise

import pytest
import torch

from semisight.data.tokenizer import tokenize
from semisight.data.vocabulary import UNKNOWN, Vocabulary
from semisight.inference.beam_search import beam_search, mixture_log_prob
from semisight.inference.captions import (
    LENGTH_POWER,
    CaptionReader,
    Search,
    caption_perplexity,
    collapse,
    hashes,
    hashes_of_texts,
    write_captions,
)
from semisight.inference.encode import encode_set
from semisight.model.architecture import Architecture, Layer
from semisight.model.encoders.paper import Pooling
from semisight.model.heads.captions import CaptionHead, words_per_caption
from semisight.model.image_model import ImageModel
from semisight.objectives.captions import EncodedCaptions
from semisight.server.captions import Describer
from tests.training.toy import ToyImages

TINY = Architecture((1, 8, 8), (Layer(4, 3, 2), Layer(5, 2)), nonlinearity="relu")
N = 12
PICTURES = ToyImages(torch.rand(N, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
TEXTS = tuple((("a dog runs", "a brown dog"), ("two birds over the sea",), ())[i % 3] for i in range(N))
VOCABULARY = Vocabulary.from_captions([caption for captions in TEXTS for caption in captions], min_count=1)
ENCODED = EncodedCaptions.encode(TEXTS, VOCABULARY)


def head_of() -> CaptionHead:
    generator = torch.Generator().manual_seed(2)
    return CaptionHead(
        TINY.code_size, len(VOCABULARY), hidden_size=6, embedding_size=5, start="wide", generator=generator
    )


def learn(head: CaptionHead, texts: list[str]) -> None:
    """Each of the texts as often as it stands there, whatever the code."""
    optimiser = torch.optim.Adam(head.parameters(), 0.02)
    symbols, _ = EncodedCaptions.encode([texts], VOCABULARY).of(torch.tensor([0]))
    for step in range(150):
        codes = torch.randn(len(texts), TINY.code_size, generator=torch.Generator().manual_seed(step))
        optimiser.zero_grad()
        (-head.log_prob(symbols, codes).mean()).backward()
        optimiser.step()


@pytest.mark.parametrize("pooling", ["expected", "sampled"])
def test_perplexity_is_that_of_the_mixture_and_skips_what_is_missing(pooling: Pooling) -> None:
    model, head = ImageModel.of(TINY, pooling, seed=1), head_of()
    value = caption_perplexity(model, head, PICTURES, ENCODED, n_codes=3)
    captioned = ENCODED.present.nonzero().squeeze(1)
    only = caption_perplexity(model, head, PICTURES, ENCODED, index=captioned, n_codes=3)
    assert value == pytest.approx(only, rel=0.2)
    ((index, codes, generator),) = encode_set(model, PICTURES, n_draws=3)
    symbols, owners = ENCODED.of(index)
    drawn = codes.draw(3, generator)
    total = mixture_log_prob(head, symbols, drawn, owners).sum() / words_per_caption(symbols).sum()
    assert value == pytest.approx(float((-total).exp().detach()), rel=1e-5)


def test_captions_of_a_set_are_those_of_its_images() -> None:
    model, reader, how = ImageModel.of(TINY, seed=1), CaptionReader(head_of(), VOCABULARY), Search(5, beam=3, n_best=2)
    found = write_captions(model, reader, PICTURES, how)
    assert len(found) == N and all(1 <= len(best) <= 2 for best in found)
    assert write_captions(model, reader, PICTURES, how) == found
    ((_, codes, generator),) = encode_set(model, PICTURES, n_draws=5)
    drawn = codes.draw(5, generator)
    symbols = VOCABULARY.encode([best[0].text for best in found])
    log_p = mixture_log_prob(reader.head, symbols, drawn).tolist()
    assert [best[0].log_prob for best in found] == pytest.approx(log_p, rel=1e-4)
    assert all(best[0].words == tuple(tokenize(best[0].text)) for best in found)


def test_the_likeliest_captions_are_too_short_so_they_are_ranked_by_length_too() -> None:
    model, reader = ImageModel.of(TINY, seed=1), CaptionReader(head_of(), VOCABULARY)
    learn(reader.head, ["a dog"] * 5 + ["two birds over the sea"] * 4)
    found, likeliest = (
        write_captions(model, reader, PICTURES, Search(5, beam=5, n_best=5, **power))
        for power in ({}, {"length_power": 0.0})
    )
    for best in found:
        ranks = [one.log_prob / (len(one.words) + 1) ** LENGTH_POWER for one in best]
        assert ranks == sorted(ranks, reverse=True)
    assert all(a.log_prob >= b.log_prob for best in likeliest for a, b in pairwise(best))
    assert sum(len(best[0].words) for best in found) > sum(len(best[0].words) for best in likeliest)
    # the server's are the same
    ((_, codes, generator),) = encode_set(model, PICTURES, n_draws=5)
    drawn = codes.draw(5, generator)
    asked = beam_search(reader.head, drawn, n_best=1, length_power=LENGTH_POWER, forbidden=(UNKNOWN,)).symbols[:, 0]
    texts = [VOCABULARY.text(row.tolist()) for row in asked]
    assert [best.text for best, *_ in Describer(reader.head, VOCABULARY)(drawn, 1)] == texts
    likeliest_ones = beam_search(reader.head, drawn, n_best=1, forbidden=(UNKNOWN,)).symbols[:, 0]
    assert [VOCABULARY.text(row.tolist()) for row in likeliest_ones] != texts


def test_the_share_of_captions_that_were_seen() -> None:
    seen = hashes_of_texts(TEXTS)
    reader = CaptionReader(head_of(), VOCABULARY, seen)
    assert reader.share_seen([("a", "dog", "runs"), ("a", "dog")]) == 0.5
    assert CaptionReader(head_of(), VOCABULARY).share_seen([("a", "dog")]) is None
    assert len(seen) == 3 and torch.equal(hashes([("a", "dog")]), hashes([("a", "dog")]))


def test_a_collapse_is_named_with_what_to_do() -> None:
    same = [("a", "dog")] * 8 + [("a", "cat"), ("two", "men")]
    said = collapse(same)
    assert said.startswith("Collapsed: 80% of 10 images") and "'a dog'" in said and "--backbone" in said
    assert collapse(same[:9]) == "" and collapse(same[4:] * 2) != "" and collapse([(str(i),) for i in range(20)]) == ""
    assert collapse([("a",)] * 10 + [("b",)] * 10) == ""
