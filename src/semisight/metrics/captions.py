"""Section 5.3: how good captions are. BLEU-1..4, ROUGE-L, CIDEr, METEOR as the public COCO caption evaluation has them.

A candidate is a sequence of words, a reference likewise; an image has one candidate and one or more references. Words
come from `semisight.data.tokenizer.tokenize`, which splits as the public evaluation does. Every metric returns a
`Score`: the value for all images and the values of each (whose mean it need not be).

    BLEU-n    (precision_1 ... precision_n) ** (1/n) * exp(1 - max(1, reference length / candidate length))
    ROUGE-L   F-measure, beta = 1.2, of the longest common subsequence: best precision, best recall over references
    CIDEr     10 * mean over n = 1..4 of the clipped cosine of tf-idf n-gram counts, damped by exp(-d^2 / 72) where d
              is the difference in length; idf from the references being scored, so one image alone scores 0
    METEOR    computed by its authors' Java program, which pycocoevalcap brings along
    perplexity  exp(-sum log p(Y | X) / sum T), T with the end symbol, p the mixture over codes
"""

import contextlib
import functools
import importlib.util
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from semisight.errors import UserError

Words = Sequence[str]
Ngrams = Counter[tuple[str, ...]]
N = 4  # n-grams of 1 to 4 words
BETA = 1.2  # of ROUGE-L
SIGMA = 6.0  # of CIDEr's damping
SMALL, TINY = 1e-9, 1e-15  # the public BLEU's guards, kept so that its values are met to the last digits


@dataclass(frozen=True)
class Score:
    """A metric's value for all images, and for each of them."""

    value: float
    each: tuple[float, ...]


@dataclass(frozen=True)
class CaptionScores:
    """Every metric of one set of captions.

    distinct          how many different captions there are, per caption
    seen_in_training  the share of captions that occur, word for word, in training; None if that was not asked
    meteor            None where it could not be computed; `notes` then says what it needs
    """

    bleu: tuple[Score, Score, Score, Score]
    rouge_l: Score
    cider: Score
    meteor: Score | None
    distinct: float
    seen_in_training: float | None = None
    perplexity: float | None = None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, float]:
        """Name to value, of the metrics there are."""
        values: dict[str, float | None] = {f"BLEU-{n}": score.value for n, score in enumerate(self.bleu, start=1)}
        values["METEOR"] = None if self.meteor is None else self.meteor.value
        values |= {"ROUGE-L": self.rouge_l.value, "CIDEr": self.cider.value, "perplexity": self.perplexity}
        values |= {"distinct": self.distinct, "seen in training": self.seen_in_training}
        return {name: value for name, value in values.items() if value is not None}


def score_captions(
    candidates: Sequence[Words],
    references: Sequence[Sequence[Words]],
    *,
    training: Iterable[Words] | None = None,
    perplexity: float | None = None,
    with_meteor: bool = True,
) -> CaptionScores:
    """All metrics at once; METEOR where Java and pycocoevalcap are there, else a note that says what is missing."""
    missing = meteor_needs() if with_meteor else None
    return CaptionScores(
        bleu=bleu(candidates, references),
        rouge_l=rouge_l(candidates, references),
        cider=cider(candidates, references),
        meteor=meteor(candidates, references) if with_meteor and missing is None else None,
        distinct=share_distinct(candidates),
        seen_in_training=None if training is None else share_seen(candidates, training),
        perplexity=perplexity,
        notes=() if missing is None else (missing,),
    )


def bleu(candidates: Sequence[Words], references: Sequence[Sequence[Words]]) -> tuple[Score, Score, Score, Score]:
    """BLEU-1 to BLEU-4 of the whole set (counts are summed over images), and of each image."""
    _check(candidates, references)
    total_right, total_guessed, total_length, total_reference = [0] * N, [0] * N, 0, 0
    each = []
    for candidate, refs in zip(candidates, references, strict=True):
        allowed: Ngrams = Counter()
        for ref in refs:
            allowed |= ngrams(ref)  # the largest count in any one reference
        right, guessed = [0] * N, [max(0, len(candidate) - n) for n in range(N)]
        for ngram, count in ngrams(candidate).items():
            right[len(ngram) - 1] += min(count, allowed[ngram])
        # The reference closest in length; of two equally close ones the shorter.
        closest = min((abs(len(ref) - len(candidate)), len(ref)) for ref in refs)[1]
        each.append(_bleu(right, guessed, len(candidate), closest))
        total_right = [a + b for a, b in zip(total_right, right, strict=True)]
        total_guessed = [a + b for a, b in zip(total_guessed, guessed, strict=True)]
        total_length, total_reference = total_length + len(candidate), total_reference + closest
    whole = _bleu(total_right, total_guessed, total_length, total_reference)
    b1, b2, b3, b4 = (Score(whole[n], tuple(image[n] for image in each)) for n in range(N))
    return b1, b2, b3, b4


def _bleu(right: list[int], guessed: list[int], length: int, reference: int) -> list[float]:
    ratio = (length + TINY) / (reference + SMALL)
    brevity = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    product, values = 1.0, []
    for n in range(N):
        product *= (right[n] + TINY) / (guessed[n] + SMALL)
        values.append(product ** (1 / (n + 1)) * brevity)
    return values


def rouge_l(candidates: Sequence[Words], references: Sequence[Sequence[Words]]) -> Score:
    """The mean over images."""
    _check(candidates, references)
    each = []
    for candidate, refs in zip(candidates, references, strict=True):
        # The public evaluation reads a sentence without words as one empty word.
        common = [(common_subsequence(candidate or ("",), ref or ("",)), len(ref) or 1) for ref in refs]
        precision = max(length for length, _ in common) / (len(candidate) or 1)
        recall = max(length / n for length, n in common)
        both = precision > 0 and recall > 0
        each.append((1 + BETA**2) * precision * recall / (recall + BETA**2 * precision) if both else 0.0)
    return Score(sum(each) / len(each), tuple(each))


def common_subsequence(a: Words, b: Words) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for x in a:
        diagonal = 0
        for j, y in enumerate(b, start=1):
            above = row[j]
            row[j] = diagonal + 1 if x == y else max(above, row[j - 1])
            diagonal = above
    return row[-1]


def cider(candidates: Sequence[Words], references: Sequence[Sequence[Words]]) -> Score:
    """The mean over images."""
    _check(candidates, references)
    cooked = [[ngrams(ref) for ref in refs] for refs in references]
    n_images_with = Counter(ngram for refs in cooked for ngram in set().union(*refs))
    log_images = math.log(len(references))

    def weigh(counts: Ngrams) -> tuple[list[dict[tuple[str, ...], float]], list[float], int]:
        vectors: list[dict[tuple[str, ...], float]] = [{} for _ in range(N)]
        for ngram, count in counts.items():
            vectors[len(ngram) - 1][ngram] = count * (log_images - math.log(max(1, n_images_with[ngram])))
        norms = [math.sqrt(sum(x * x for x in vector.values())) for vector in vectors]
        # The public evaluation measures length in pairs of words.
        return vectors, norms, sum(count for ngram, count in counts.items() if len(ngram) == 2)

    each = []
    for candidate, refs in zip(candidates, cooked, strict=True):
        vectors, norms, length = weigh(ngrams(candidate))
        total = 0.0
        for ref in refs:
            ref_vectors, ref_norms, ref_length = weigh(ref)
            damping = math.exp(-((length - ref_length) ** 2) / (2 * SIGMA**2))
            for n in range(N):
                right = ref_vectors[n]
                product = sum(min(x, right.get(ngram, 0.0)) * right.get(ngram, 0.0) for ngram, x in vectors[n].items())
                if norms[n] != 0 and ref_norms[n] != 0:
                    product /= norms[n] * ref_norms[n]
                total += product * damping
        each.append(10 * total / (N * len(refs)))
    return Score(sum(each) / len(each), tuple(each))


def ngrams(words: Words) -> Ngrams:
    """How often each run of 1 to 4 words occurs."""
    return Counter(tuple(words[i : i + n]) for n in range(1, N + 1) for i in range(len(words) - n + 1))


def meteor(candidates: Sequence[Words], references: Sequence[Sequence[Words]]) -> Score:
    """METEOR 1.5 by pycocoevalcap; its first call starts a Java program of about 1 GB, which later calls use again."""
    _check(candidates, references)
    missing = meteor_needs()
    if missing is not None:
        raise UserError(missing)
    truth = {i: [_for_meteor(ref) for ref in refs] for i, refs in enumerate(references)}
    guess = {i: [_for_meteor(candidate)] for i, candidate in enumerate(candidates)}
    program = _meteor_program()
    try:
        value, each = program.compute_score(truth, guess)
    except (OSError, ValueError) as error:  # the program died: its pipe is closed, or its answers are empty
        # Its destructor waits for the lock, left locked by the failure, and writes what is left to the broken pipe.
        if program.lock.locked():
            program.lock.release()
        program.meteor_p.kill()
        with contextlib.suppress(OSError):
            program.meteor_p.stdin.close()
        _meteor_program.cache_clear()
        raise UserError(
            f"METEOR's Java program stopped ({error}). It needs about 2 GB of memory; the other metrics do not need it."
        ) from error
    return Score(float(value), tuple(float(x) for x in each))


def meteor_needs() -> str | None:
    """What is missing for METEOR, in words for people; None if nothing is."""
    needs = []
    if importlib.util.find_spec("pycocoevalcap") is None:
        needs.append("pycocoevalcap (pip install 'semisight[metrics]')")
    if shutil.which("java") is None:
        needs.append("Java (a `java` command, version 8 or newer)")
    if not needs:
        return None
    return f"METEOR was not computed: it needs {' and '.join(needs)}. The other metrics do not."


@functools.cache
def _meteor_program() -> Any:
    from pycocoevalcap.meteor.meteor import Meteor

    return Meteor()


def _for_meteor(words: Words) -> str:
    """||| parts the fields of the program's lines; a line break would end one."""
    return " ".join(" ".join(words).replace("|||", "").split())


def share_distinct(candidates: Sequence[Words]) -> float:
    """How many different captions there are, per caption: 1 if no two are alike."""
    return len({tuple(c) for c in candidates}) / len(candidates) if candidates else 0.0


def share_seen(candidates: Sequence[Words], training: Iterable[Words]) -> float:
    """The share of captions that occur, word for word, among the training captions."""
    seen = {tuple(c) for c in training}
    return sum(tuple(c) in seen for c in candidates) / len(candidates) if candidates else 0.0


def perplexity(log_probs: Iterable[float], n_symbols: Iterable[int]) -> float:
    """exp of minus the mean log-probability per symbol, the end included; a missing caption counts for nothing."""
    pairs = [(p, n) for p, n in zip(log_probs, n_symbols, strict=True) if n > 0]
    if not pairs:
        raise UserError("there is no caption to compute a perplexity from")
    exponent = -math.fsum(p for p, _ in pairs) / sum(n for _, n in pairs)
    return math.exp(exponent) if exponent < 700 else math.inf


def _check(candidates: Sequence[Words], references: Sequence[Sequence[Words]]) -> None:
    if len(candidates) != len(references):
        raise ValueError(f"{len(candidates)} candidates for {len(references)} images with references")
    if not candidates:
        raise UserError("there are no captions to score")
    without = [i for i, refs in enumerate(references) if not refs]
    if without:
        raise UserError(f"{len(without)} images have no reference caption (the first is number {without[0]})")
    if any(isinstance(words, str) for words in candidates):
        raise TypeError("captions must be sequences of words: tokenize them first")
