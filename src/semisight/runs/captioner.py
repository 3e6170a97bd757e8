"""End of section 4 for people: captions of new images, and the files of a run that has learned captions.

RUN/vocabulary.json        the words that it knows
RUN/captions.safetensors   which captions it has learned from, as hashes: enough to say whether one was seen before
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from semisight.data.image_set import ImageSet
from semisight.data.tokenizer import tokenize
from semisight.data.vocabulary import Vocabulary
from semisight.errors import UserError
from semisight.files import write_atomic
from semisight.inference.beam_search import MAX_WORDS
from semisight.inference.captions import BEAM, N_CODES, caption_batches, caption_perplexity
from semisight.model.heads.captions import CaptionHead
from semisight.model.image_model import ImageModel
from semisight.objectives.encoded_captions import EncodedCaptions
from semisight.runs.caption_training import CaptionSettings
from semisight.training.folder import RunFolder

_BATCH = 50  # images captioned at a time, between two moves of the bar


@dataclass(frozen=True)
class Search:
    """How captions are looked for: codes that the mixture is over, width of the beam, length, and the seed."""

    n_codes: int = N_CODES
    beam: int = BEAM
    max_words: int = MAX_WORDS
    seed: int = 0


@dataclass(frozen=True)
class Caption:
    """One caption: its words as metrics compare them, the text as people write it, and log p(Y | X)."""

    words: tuple[str, ...]
    text: str
    log_prob: float


@dataclass(frozen=True)
class Captioner:
    """The caption part of a run. `seen` are the hashes of its training captions, sorted; empty where not known."""

    model: ImageModel
    head: CaptionHead
    vocabulary: Vocabulary
    settings: CaptionSettings
    seen: Tensor
    n_captions: int
    n_captioned: int
    n_held_out: int

    def __call__(
        self,
        images: ImageSet,
        n_best: int = 1,
        search: Search | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[tuple[Caption, ...]]:
        """The best captions of every image, at most n_best of each."""
        how = search or Search()
        found: list[tuple[Caption, ...]] = []
        for sentences in caption_batches(
            self.model,
            self.head,
            images,
            n_codes=how.n_codes,
            beam=max(how.beam, n_best),
            n_best=n_best,
            max_words=how.max_words,
            batch_size=_BATCH,
            seed=how.seed,
        ):
            for symbols, log_probs in zip(sentences.symbols.tolist(), sentences.log_prob.tolist(), strict=True):
                pairs = zip(symbols, log_probs, strict=True)
                found.append(tuple(self._caption(row, log_p) for row, log_p in pairs if log_p > -torch.inf))
            if progress is not None:
                progress(len(found), len(images))
        return found

    def _caption(self, symbols: list[int], log_prob: float) -> Caption:
        return Caption(self.vocabulary.tokens(symbols), self.vocabulary.text(symbols), log_prob)

    def perplexity(self, images: ImageSet, search: Search | None = None) -> float:
        """Of the images' own captions."""
        how = search or Search()
        assert images.captions is not None
        encoded = EncodedCaptions.encode(images.captions, self.vocabulary)
        return caption_perplexity(
            self.model, self.head, images, encoded, n_codes=how.n_codes, batch_size=_BATCH, seed=how.seed
        )

    def share_seen(self, captions: Sequence[Sequence[str]]) -> float | None:
        """The share of captions that occur, word for word, in training; None where that is not known."""
        if not len(self.seen):
            return None
        return float(torch.isin(hashes(captions), self.seen).double().mean())


# ---- the files of a run ----


def vocabulary_file(folder: RunFolder) -> Path:
    return folder.path / "vocabulary.json"


def seen_file(folder: RunFolder) -> Path:
    return folder.path / "captions.safetensors"


def hashes(captions: Sequence[Sequence[str]]) -> Tensor:
    """int64 [N]: one number for each sequence of words."""
    digests = [hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest() for words in captions]
    return torch.tensor([int.from_bytes(digest, "big", signed=True) for digest in digests], dtype=torch.int64)


def write_files(folder: RunFolder, vocabulary: Vocabulary, captions: Sequence[Sequence[str]]) -> None:
    vocabulary.save(vocabulary_file(folder))
    seen = hashes([tokenize(caption) for of_image in captions for caption in of_image]).unique()
    write_atomic(seen_file(folder), save_tensors({"seen": seen}))


def checksum(vocabulary: Vocabulary) -> str:
    return hashlib.sha256(vocabulary.to_json().encode()).hexdigest()[:16]


def captions_of(about: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a checkpoint says of its captions, or None for a run without."""
    found: Mapping[str, Any] | None = about.get("captions")
    return found


def read_captioner(folder: RunFolder, model: ImageModel, head: CaptionHead, about: Mapping[str, Any]) -> Captioner:
    """`about` is the captions' part of what the checkpoint says; its words must be those of the vocabulary file."""
    vocabulary = Vocabulary.load(vocabulary_file(folder))
    if checksum(vocabulary) != about["vocabulary"]:
        raise UserError(
            f"{vocabulary_file(folder)} is not the vocabulary that this model learned with: its words would come out "
            "wrong. Put the right file back, or train again."
        )
    return Captioner(
        model=model,
        head=head,
        vocabulary=vocabulary,
        settings=CaptionSettings(**about["settings"]),
        seen=_read_seen(seen_file(folder)),
        n_captions=int(about["captions"]),
        n_captioned=int(about["n_captioned"]),
        n_held_out=int(about["held_out"]),
    )


def _read_seen(path: Path) -> Tensor:
    try:
        return load_tensors(path.read_bytes())["seen"]
    except FileNotFoundError:
        return torch.zeros(0, dtype=torch.int64)
    except (OSError, SafetensorError, KeyError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it to go without.") from error
