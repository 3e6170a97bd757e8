"""Captions: batched decoding against one image and one code at a time, and the memory that training takes.

Decoding is compared with two slow ways, both timed on a few images and scaled to as many as the fast way gets:

    called for each     the same search, called for one image and one code of it at a time (a caption for every code)
    one at a time       the same mixture over codes, and so the same captions, the states of one code of one image
                        advanced at a time, those of its beams together

The network is the paper's, untrained, but with one unit that counts words: sentences end where captions do.

Memory is that of `semisight train --captions` in a process of its own, everything included. The photographs are those
of Flickr8k where SEMISIGHT_DATA/flickr8k holds Images/ and dataset_flickr8k.json, else generated ones of their size.
"""

import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.figures import Figure, Goal
from benchmarks.memory import MB, peak_bytes
from benchmarks.timing import Rounds
from semisight.cli.main import main
from semisight.experiments.table3 import LAYERS
from semisight.inference.beam_search import MAX_WORDS, beam_search
from semisight.model.architecture import Layer
from semisight.model.heads.captions import END, CaptionHead


@dataclass(frozen=True)
class Decoding:
    """What is decoded: Flickr8k's number of words, the paper's network, codes of the model at 64 pixels."""

    images: int = 1000
    n_codes: int = 20
    beam: int = 5
    vocab_size: int = 2600
    code_size: int = 2048
    hidden_size: int = 512


SMALL_DECODING = Decoding(8, 3, 2, vocab_size=30, code_size=6, hidden_size=8)
KEPT, STEEPNESS, LENGTH = 0.85, 60.0, 10


@torch.no_grad()
def untrained(of: Decoding) -> CaptionHead:
    """Weights large enough that words differ in probability; unit 0 rises from word to word and brings on the end."""
    generator, hidden = torch.Generator().manual_seed(0), of.hidden_size
    head = CaptionHead(of.code_size, of.vocab_size, hidden_size=hidden, embedding_size=hidden, generator=generator)
    head.words.weight.normal_(0, 4 * hidden**-0.5, generator=generator)
    head.embedding.weight.normal_(0, 1, generator=generator)
    head.code.weight.normal_(0, of.code_size**-0.5, generator=generator)
    w_ih, w_hh, bias, _ = head.recurrent.all_weights[0]
    w_ih.normal_(0, hidden**-0.5, generator=generator)
    keep, new = hidden, 2 * hidden  # unit 0 of these gates: h <- KEPT h + (1 - KEPT)
    for weight in (w_ih, w_hh):
        weight[[0, keep, new]] = 0.0
    bias[keep], bias[new] = math.log(KEPT / (1 - KEPT)), 10.0
    head.code.weight[0] = 0.0
    head.words.weight[END] = 0.0
    head.words.weight[END, 0] = STEEPNESS
    head.words.bias[END] = -STEEPNESS * (1 - KEPT**LENGTH) + math.log(of.vocab_size)
    return head.eval()


@torch.no_grad()
def one_at_a_time(head: CaptionHead, codes: Tensor, beam: int) -> tuple[list[list[int]], list[float]]:
    """The best sentence of every image of codes [N_s, B, J], and its log-probability."""
    found = [_search(head, codes[:, image], beam) for image in range(codes.shape[1])]
    return [sentence for sentence, _ in found], [value for _, value in found]


def _search(head: CaptionHead, codes: Tensor, beam: int) -> tuple[list[int], float]:
    n_codes, inputs = len(codes), head.inputs()
    states = [head.start(code[None]) for code in codes]  # of the beams that grow, one for each code
    weights = [torch.zeros(1) for _ in codes]
    growing: list[list[int]] = [[]]
    ended: list[tuple[list[int], float]] = []
    for t in range(MAX_WORDS + 1):
        log_p = [head.log_words(state) for state in states]
        joint = torch.stack([w[:, None] + p for w, p in zip(weights, log_p, strict=True)])  # [N_s, P, V]
        total = joint.logsumexp(0) - math.log(n_codes)
        if t == MAX_WORDS:
            ended += [([*prefix, END], float(total[p, END])) for p, prefix in enumerate(growing)]
            break
        values, best = total.flatten().topk(min(beam, total.numel()))
        candidates = [
            ([*growing[place // head.vocab_size], place % head.vocab_size], value, place)
            for value, place in zip(values.tolist(), best.tolist(), strict=True)
        ]
        kept = sorted([*candidates, *((s, v, -1) for s, v in ended)], key=lambda c: -c[1])[:beam]
        ended = [(s, v) for s, v, _ in kept if s[-1] == END]
        on = [(s, place) for s, _, place in kept if s[-1] != END]
        if not on:
            break
        growing = [s for s, _ in on]
        place = torch.tensor([place for _, place in on])
        parent, word = place // head.vocab_size, place % head.vocab_size
        weights = [joint[i, parent, word] for i in range(n_codes)]
        states = [head.advance(inputs[word], state.at(parent)) for state in states]
    return max(ended, key=lambda found: found[1])


def measure_decoding(of: Decoding, rounds: int) -> Iterator[Figure]:
    """Every round takes its share of the images at once, and then one of them in each of the slow ways."""
    head, generator = untrained(of), torch.Generator().manual_seed(1)
    codes = torch.randn(of.n_codes, of.images, of.code_size, generator=generator)
    beam_search(head, codes[:, :2], beam=of.beam)  # what is loaded on first use is loaded here
    one_thread = torch.get_num_threads() == 1
    clock = time.process_time if one_thread else time.perf_counter
    seconds: dict[str, list[float]] = {"batched": [], "called for each": [], "one at a time": []}  # for an image
    n_words = 0
    for part in codes.chunk(rounds, 1):
        start = clock()
        found = beam_search(head, part, beam=of.beam)
        seconds["batched"].append((clock() - start) / part.shape[1])
        n_words += int((found.symbols > END).sum())
        start = clock()
        for i in range(of.n_codes):
            beam_search(head, part[i : i + 1, :1], beam=of.beam)
        seconds["called for each"].append(clock() - start)
        start = clock()
        one_at_a_time(head, part[:, :1], of.beam)
        seconds["one at a time"].append(clock() - start)
    measured = Rounds(
        {name: tuple(times) for name, times in seconds.items()}, "processor time" if one_thread else "wall"
    )
    for slow, title, goal in (
        ("called for each", "the search called for one image and one code at a time", Goal(">=", 10)),
        ("one at a time", "a loop over images and codes that finds the same", None),
    ):
        details = {
            "codes": of.n_codes,
            "beam": of.beam,
            "words": n_words / of.images,
            "vocabulary": of.vocab_size,
            "seconds": {name: measured.median(name) * of.images for name in ("batched", slow)},
            "slow_way_scaled_from_images": measured.count,
            "middle_half": measured.range_of_ratio(slow, "batched"),
            "rounds": measured.count,
            "clock": measured.clock,
        }
        title = f"captions of {of.images:,} images, batched against {title}"
        yield Figure(title, measured.ratio(slow, "batched"), "times faster", goal, details)


# ---- memory ----


@dataclass(frozen=True)
class Training:
    """A training with captions: photographs scaled to `size`, so many steps; generated ones if there are no others."""

    size: int = 128
    batch: int = 64
    steps: int = 3
    generated: int = 400
    photograph: tuple[int, int] = (500, 375)
    layers: tuple[Layer, ...] = LAYERS[128]


SMALL_TRAINING = Training(16, 4, 1, 12, (40, 30), (Layer(4, 5, 4, "same"), Layer(4, 3)))


def measure_training(of: Training) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        flickr = Path(os.environ.get("SEMISIGHT_DATA", "")) / "flickr8k"
        real = bool(os.environ.get("SEMISIGHT_DATA")) and (flickr / "dataset_flickr8k.json").exists() and of.size > 32
        images, captions = (
            (flickr / "Images", flickr / "dataset_flickr8k.json") if real else _generated(of, Path(scratch))
        )
        settings = Path(scratch) / "settings.json"
        layers = [dataclasses.asdict(layer) for layer in of.layers]
        settings.write_text(json.dumps({"layers": layers, "max_steps": of.steps, "tensorboard": False}))
        arguments = [
            *("train", str(images), "--captions", str(captions), "--out", f"{scratch}/run", "--size", str(of.size)),
            *("--config", str(settings), "--batch-size", str(of.batch), "--threads", "1", "--no-report"),
        ]
        peak = _peak_of_command(arguments, {} if real else {"XDG_CACHE_HOME": scratch})
    yield Figure(
        f"peak memory of training with captions at {of.size} pixels",
        peak / MB,
        "MB",
        Goal("<=", 3000),
        {"batch": of.batch, "steps": of.steps, "images": "Flickr8k" if real else f"{of.generated} generated"},
    )


def _generated(of: Training, folder: Path) -> tuple[Path, Path]:
    """Photographs of chance, with captions."""
    random = np.random.default_rng(0)
    (folder / "Images").mkdir()
    lines = []
    for i in range(of.generated):
        coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        coarse.resize(of.photograph).save(folder / "Images" / f"{i}.jpg")
        words = " ".join(f"word{w}" for w in random.integers(0, 50, 10))
        lines += [f"{i}.jpg#{k}\ta picture of {words}\n" for k in range(5)]
    (folder / "captions.txt").write_text("".join(lines))
    return folder / "Images", folder / "captions.txt"


def _peak_of_command(arguments: list[str], environment: dict[str, str]) -> int:
    command = [sys.executable, "-m", "benchmarks.captions", *arguments]
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"semisight {' '.join(arguments)} failed:\n{done.stderr}")
    return int(done.stdout.split()[-1])


if __name__ == "__main__":  # a command of semisight, then the most memory that it took, in bytes
    try:
        main(sys.argv[1:])
    except SystemExit as stop:
        if stop.code:
            raise
    print(peak_bytes())
