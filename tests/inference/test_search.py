"""Search by words: the order is that of the caption model, the first look loses little, unknown words are said."""

import pytest
import torch

from semisight.data.vocabulary import Vocabulary
from semisight.errors import UserError
from semisight.inference.search import WordSearch, recall
from semisight.model.heads.captions import CaptionHead

WORDS = ["a red dog runs", "a blue cat sleeps", "a red cat runs"]


def trained() -> tuple[CaptionHead, Vocabulary, torch.Tensor, list[str]]:
    """A head that says of a code with a 1 at place k sentence k, with some noise."""
    vocabulary = Vocabulary.from_captions(WORDS, 1)
    generator = torch.Generator().manual_seed(0)
    codes = torch.eye(3).repeat(20, 1) + 0.1 * torch.randn(60, 3, generator=generator)
    texts = [WORDS[i % 3] for i in range(60)]
    head = CaptionHead(3, len(vocabulary), hidden_size=16, embedding_size=8, start="wide", generator=generator)
    optimiser = torch.optim.Adam(head.parameters(), 0.02)
    for _ in range(60):
        optimiser.zero_grad()
        (-head.log_prob(vocabulary.encode(texts), codes).mean()).backward()
        optimiser.step()
    return head.eval(), vocabulary, codes, texts


HEAD, VOCABULARY, CODES, TEXTS = trained()
SEARCH = WordSearch.of_codes(HEAD, VOCABULARY, CODES)


def test_the_order_is_that_of_the_probability_of_the_words() -> None:
    query = SEARCH.query("A red dog")
    found = SEARCH(query, n=60)
    prefix = torch.tensor([list(query.symbols)]).expand(60, -1)
    exact = HEAD.log_prob(prefix, CODES)
    assert [one.place for one in found] == exact.argsort(descending=True).tolist()
    torch.testing.assert_close(
        torch.tensor([one.log_prob for one in found]), exact.sort(descending=True).values.detach()
    )


def test_the_first_look_keeps_what_is_best() -> None:
    for text in WORDS:
        query = SEARCH.query(text)
        exact = {one.place for one in SEARCH(query, n=5, shortlist=60)}
        looked = [one.place for one in SEARCH(query, n=5, shortlist=25)]
        assert len(exact & set(looked)) >= 4 and all(TEXTS[place] == text for place in looked)


def test_recall_counts_images_found_among_the_first() -> None:
    few = WordSearch.of_codes(HEAD, VOCABULARY, CODES[:3])
    assert recall(few, TEXTS[:3], at=(1, 2)) == {"R@1": 100.0, "R@2": 100.0}
    wrong = recall(few, [TEXTS[1], TEXTS[0], TEXTS[2]], at=(1, 3))
    assert wrong["R@1"] == pytest.approx(100 / 3) and wrong["R@3"] == 100.0


def test_unknown_words_are_left_out_and_said() -> None:
    query = SEARCH.query("a purple dog")
    assert query.unknown == ("purple",) and len(query.symbols) == 2
    with pytest.raises(UserError, match=r"none of the words.*dog"):
        SEARCH.query("dogz")
