"""The benchmarks of captions run, and both sides of the comparison find the same captions."""

import json

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.captions import LENGTH, SMALL_DECODING, Decoding, one_at_a_time, untrained
from semisight.inference.beam_search import beam_search


def test_smoke_says_how_much_faster_and_how_much_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.__main__.keep_memory", lambda: True)  # it would hold for all tests of this process
    monkeypatch.setenv("SEMISIGHT_KERNELS", "off")  # the command has a cache of its own: it would compile them there
    main(["--smoke", "--only", "decode,captions"])
    called, loop, memory = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (called["goal"], loop["goal"], memory["goal"]) == (">= 10", None, "<= 3000")
    assert called["codes"] == 3 and called["slow_way_scaled_from_images"] == 3
    assert called["value"] > 1
    assert 100 < memory["value"] < 3000 and memory["images"] == "12 generated"


@pytest.mark.parametrize("of", [SMALL_DECODING, Decoding(6, 4, 5, vocab_size=50, code_size=8, hidden_size=16)])
def test_both_ways_find_the_same_captions(of: Decoding) -> None:
    head = untrained(of).double()
    generator = torch.Generator().manual_seed(3)
    codes = torch.randn(of.n_codes, of.images, of.code_size, generator=generator, dtype=torch.float64)
    found = beam_search(head, codes, beam=of.beam)
    sentences, values = one_at_a_time(head, codes, of.beam)
    assert [[s for s in row if s >= 0] for row in found.symbols[:, 0].tolist()] == sentences
    torch.testing.assert_close(found.log_prob[:, 0], torch.tensor(values, dtype=torch.float64))
    assert all(0.5 * LENGTH < len(sentence) < 2 * LENGTH for sentence in sentences)
