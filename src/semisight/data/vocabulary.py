"""Section 3.2: captions as sequences of symbols, y_1 .. y_T, the last one the end-of-sentence symbol.

Symbol 0 ends a sentence, symbol 1 stands for every word seen fewer than `min_count` times, the others are words, the
most frequent first. Padding is -1, outside the vocabulary: all of the model's probability is on symbols that can occur.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from semisight.data.tokenizer import readable, tokenize
from semisight.errors import UserError
from semisight.files import write_atomic
from semisight.untrusted import read_text

END, UNKNOWN, PADDING = 0, 1, -1
MAX_WORDS = 100  # longer captions are learned up to here; the longest of Flickr8k has 36 words
SPECIAL = ("<end>", "<unknown>")
FORMAT = "semisight vocabulary 1"
_MOST_BYTES = 1 << 26  # of a file; a million words have a tenth of it


@dataclass(frozen=True)
class Vocabulary:
    """words[i] is the text of symbol i; the first two are the end and the unknown word.

    Args:
        words: the text of every symbol.
        min_count: how often a word had to occur.

    Example:
        >>> import semisight as ss
        >>> words = ss.Vocabulary.from_captions(["a red ball", "a ball"], min_count=2)
        >>> words.words[2:]
        ('a', 'ball')
    """

    words: tuple[str, ...]
    min_count: int = 1
    _index: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.words[:2] != SPECIAL:
            raise ValueError(f"a vocabulary starts with {SPECIAL}, not {self.words[:2]}")
        # Only real words can be looked up: a caption that holds the text "<end>" does not end there.
        object.__setattr__(self, "_index", {word: i for i, word in enumerate(self.words) if i >= len(SPECIAL)})
        if len(self._index) != len(self.words) - len(SPECIAL):
            raise ValueError("a word occurs twice in the vocabulary")

    @classmethod
    def from_captions(cls, captions: Iterable[str], min_count: int = 5) -> "Vocabulary":
        """The words that occur at least `min_count` times; ties in frequency are broken by the alphabet."""
        if min_count < 1:
            raise UserError(f"the minimum count of a word must be 1 or more, not {min_count}")
        counts = Counter(word for caption in captions for word in tokenize(caption))
        if not counts:
            raise UserError("there are no words in the captions: a vocabulary needs at least one caption with words")
        kept = sorted((word for word, n in counts.items() if n >= min_count), key=lambda word: (-counts[word], word))
        if not kept:
            most = max(counts.values())
            raise UserError(
                f"no word occurs {min_count} times in the captions (the most frequent one {most} times): "
                f"choose a minimum count of at most {most}"
            )
        return cls((*SPECIAL, *kept), min_count)

    def __len__(self) -> int:
        return len(self.words)

    def symbols(self, caption: str, max_words: int = MAX_WORDS) -> list[int]:
        """The symbols of one caption and the end; none without words. One that is cut did not end: it has no end."""
        words = tokenize(caption)
        if not words:
            return []
        cut = [self._index.get(word, UNKNOWN) for word in words[:max_words]]
        return cut if len(words) > max_words else [*cut, END]

    def encode(self, captions: Sequence[str | None], max_words: int = MAX_WORDS) -> Tensor:
        """int64 [B, T], padded with -1; None, or a caption without words, is a row of padding."""
        rows = [[] if caption is None else self.symbols(caption, max_words) for caption in captions]
        encoded = torch.full((len(rows), max(map(len, rows), default=0)), PADDING, dtype=torch.int64)
        for i, row in enumerate(rows):
            encoded[i, : len(row)] = torch.tensor(row, dtype=torch.int64)
        return encoded

    def tokens(self, symbols: Tensor | Sequence[int]) -> tuple[str, ...]:
        """The words up to the end or the padding: what the metrics compare."""
        found = []
        for i in symbols.tolist() if isinstance(symbols, Tensor) else symbols:
            if i in (END, PADDING):
                break
            found.append(self.words[i])
        return tuple(found)

    def text(self, symbols: Tensor | Sequence[int]) -> str:
        """The same, as people write it."""
        return readable(self.tokens(symbols))

    def to_json(self) -> str:
        content = {"format": FORMAT, "min_count": self.min_count, "words": self.words[len(SPECIAL) :]}
        return json.dumps(content, ensure_ascii=False, indent=0)

    @classmethod
    def from_json(cls, text: str, source: str = "the vocabulary") -> "Vocabulary":
        try:
            content = json.loads(text)
            if content["format"] != FORMAT:
                raise UserError(f"{source} has the format {content['format']!r}; this version reads {FORMAT!r}")
            words = [*SPECIAL, *content["words"]]
            if not all(isinstance(word, str) for word in words):
                raise ValueError("a word is not text")
            return cls(tuple(words), int(content["min_count"]))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{source} is not a vocabulary written by semisight: {error}") from error

    def save(self, path: str | Path) -> None:
        write_atomic(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> "Vocabulary":
        """A stranger may have made the file: what is too large for any language is not read."""
        try:
            text = read_text(path, _MOST_BYTES)
        except UserError as error:
            raise UserError(f"could not read the vocabulary {path}: {error}") from error
        return cls.from_json(text, str(path))
