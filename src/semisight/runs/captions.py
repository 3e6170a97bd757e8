"""Sections 3.2 and 5.3: captions as a kind of target, from the settings to the reader of a finished run."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from semisight.data.batches import is_dealt
from semisight.data.columns import CAPTIONS, CaptionColumn
from semisight.data.vocabulary import Vocabulary
from semisight.errors import UserError
from semisight.inference.captions import CaptionReader, hashes_of_texts
from semisight.inference.validation import caption_terms
from semisight.model.heads.captions import CaptionHead
from semisight.model.image_model import ImageModel
from semisight.objectives.captions import Captions
from semisight.objectives.targets import Target, Xi
from semisight.random import Stream, reseed
from semisight.runs.images import Sets
from semisight.runs.kinds import Terms
from semisight.runs.settings import Settings, parse_xi
from semisight.setting import as_dict
from semisight.training.folder import RunFolder
from semisight.untrusted import read_bytes

VOCABULARY, SEEN = "vocabulary.json", "captions.safetensors"
MANY_CAPTIONS = 5000  # with fewer, rare words are kept, and a smaller network is enough
FEW_CAPTIONS: dict[str, Any] = {"min_count": 1, "hidden_size": 256, "embedding_size": 256}
LEAST_EPOCHS, STEPS, STEPS_TO_VALIDATION, PATIENCE = 20, 4000, 100, 10
# On features: every caption 14 times (six: CIDEr 0.54 on images that weights are picked by, 14: above 0.58), within a
# range and within the minutes given; 12 validations, stopped after half of them without a better one.
ON_FEATURES: dict[str, Any] = {
    "batch_size": 128,
    "code_at_every_step": True,
    "caption_dropout": 0.5,
    "tied_words": True,
}
PASSES, FEATURE_STEPS, VALIDATIONS = 14, (400, 4000), 12
_CIDER_IMAGES = 300  # held-out images that captions are written for at a validation
_MOST_SEEN = 1 << 30  # bytes of a file of hashes that a stranger may have made


class CaptionKind:
    name = CAPTIONS

    def metric(self, settings: Settings) -> tuple[str, bool]:
        """On features captions are good enough to be compared as captions."""
        return ("CIDEr", True) if settings.data.on_features else ("perplexity", False)

    def defaults(self, settings: Settings, sets: Sets) -> dict[str, Any]:
        carried = _carried(sets)
        n_known, n_others = int(carried.sum()), int((~carried).sum())
        frozen = settings.data.images_from is not None
        found: dict[str, Any] = {
            "nonlinearity": "norm-relu",
            "learning_rate": 1e-3,
            "schedule": "cosine",
            "average_decay": 0.99,
            "start": "wide",
            "caption_xi": "paper" if frozen else "10x",
            "head": "softmax",
        }
        if _column(sets).n_captions < MANY_CAPTIONS:
            found |= FEW_CAPTIONS
        if settings.data.on_features:
            found |= ON_FEATURES
            found |= one_width(settings, found)
            if settings.data.grid and len(sets.train.columns) == 1:
                found |= attending(_column(sets).n_captions / max(1, n_known))
        size = settings.train.batch_size if "batch_size" in settings.chosen else found.get("batch_size", 64)
        size = found["batch_size"] = min(size, n_known + n_others)
        per_batch = found["labelled_per_batch"] = min(settings.consistency.labelled_per_batch, max(1, size - 1))
        beside = 0 if frozen else n_others
        steps = max(1, beside // max(1, min(size - per_batch, beside)) if beside else n_known // size)
        wanted, least, between, patience = STEPS, LEAST_EPOCHS, STEPS_TO_VALIDATION, PATIENCE
        if settings.data.on_features:
            captioned = per_batch if is_dealt(n_known, n_known + n_others, per_batch, size) and not frozen else size
            if found.get("captions_per_step", 1) is None:
                captioned = round(captioned * _column(sets).n_captions / max(1, n_known))
            wanted = min(max(PASSES * _column(sets).n_captions // captioned, FEATURE_STEPS[0]), FEATURE_STEPS[1])
            least, between, patience = 1, wanted // VALIDATIONS, VALIDATIONS // 2
        if not settings.chosen & {"max_epochs", "max_steps"}:
            found["max_epochs"] = max(least, -(-wanted // steps))
        found["validate_every"] = max(1, round(between / steps))
        every = settings.train.validate_every if "validate_every" in settings.chosen else found["validate_every"]
        return found | {"patience": patience * every}  # counted in epochs

    def target(self, settings: Settings, sets: Sets, model: ImageModel, seed: int) -> Captions:
        how, vocabulary = settings.captions, vocabulary_of(settings, sets)
        value, times = parse_xi(how.caption_xi, "caption_xi")
        if settings.data.images_from is not None and (value is not None or times != 1):
            raise UserError("two steps have no bound for captions to be balanced against: leave caption_xi out.")
        return Captions(
            _head(as_dict(how) | {"places": places_of(model, how.attention)}, model.code_size, len(vocabulary), seed),
            _column(sets).texts,
            vocabulary,
            xi=Xi(value, times, how.caption_xi_warmup),
            per_image=how.captions_per_step,
            threshold=how.caption_threshold,
            code_rate=min(1.0, how.hidden_size / model.code_size) if how.start == "wide" else 1.0,
        )

    def about(self, target: Target, held_out: int) -> dict[str, Any]:
        assert isinstance(target, Captions)
        head = target.head
        return {
            **target.encoded.about(),
            "n_learned": int(target.present.sum()),
            "held_out": held_out,
            "vocabulary": checksum(_words(target)),
            "settings": {
                "hidden_size": head.code.out_features,
                "embedding_size": head.embedding.embedding_dim,
                "cell": head.cell,
                "start": "paper",  # of weights that are loaded
                "code_at_every_step": head.code_at_every_step,
                "places": head.places,
                "caption_dropout": head.dropout.p,
                "tied_words": head.tied,
            },
        }

    def terms(self, settings: Settings, sets: Sets, target: Target) -> Terms | None:
        if sets.valid is None or not sets.n_held_out(CAPTIONS):
            return None
        valid, texts, words, seed = sets.valid, _column(sets, "valid").texts, _words(target), settings.train.seed
        n = _CIDER_IMAGES if settings.data.on_features else 0
        return lambda model, head: caption_terms(
            model, cast(CaptionHead, head), words, valid, texts, cider_images=n, seed=seed
        )

    def describe(self, settings: Settings, sets: Sets, target: Target) -> list[str]:
        assert isinstance(target, Captions)
        data, n_held_out = settings.data, sets.n_held_out(CAPTIONS)
        origin = "carried by the set" if data.captions == "builtin" else f"from {data.captions}"
        hidden = "" if data.captioned_images is None else f"; those of all but {data.captioned_images:,} images hidden"
        lines = [
            f"captions: {_column(sets).n_captions:,} of {sets.n_present(CAPTIONS):,} images to learn from "
            f"({origin}{hidden}); a vocabulary of {target.encoded.vocab_size:,} symbols"
        ]
        if n_held_out:
            return [*lines, f"  those of {n_held_out:,} images are held out, to choose the weights"]
        return [*lines, "  none are held out: the last weights are used"]

    def n_weights(self, about: Mapping[str, Any], code_size: int) -> int:
        hidden, embedding = (int(about["settings"][name]) for name in ("hidden_size", "embedding_size"))
        maps = code_size // max(1, int(about["settings"].get("places", 1)))
        return (hidden + embedding) * (int(about["vocab_size"]) + 4 * hidden + maps)

    def head(self, about: Mapping[str, Any], code_size: int) -> nn.Module:
        return _head(about["settings"], code_size, int(about["vocab_size"]), 0)

    def reader(self, folder: RunFolder, about: Mapping[str, Any], head: nn.Module, step: int) -> CaptionReader:
        """The words must be those that the model learned with."""
        vocabulary = Vocabulary.load(folder.file(VOCABULARY))
        if checksum(vocabulary) != about["vocabulary"]:
            raise UserError(
                f"{folder.file(VOCABULARY)} is not the vocabulary that this model learned with: its words would come "
                "out wrong. Put the right file back, or train again."
            )
        return CaptionReader(
            head=cast(CaptionHead, head),
            vocabulary=vocabulary,
            seen=_read_seen(folder.file(SEEN)),
            n_captions=int(about["captions"]),
            n_learned=int(about["n_learned"]),
            n_held_out=int(about["held_out"]),
            settings=about["settings"],
        )

    def reader_of(self, target: Target) -> CaptionReader:
        assert isinstance(target, Captions)
        return CaptionReader(
            target.head,
            _words(target),
            seen=hashes_of_texts(target.texts),
            n_captions=len(target.encoded.starts) - 1,
            n_learned=int(target.present.sum()),
        )

    def calibrate(self, reader: CaptionReader, model: ImageModel, sets: Sets, step: int, seed: int) -> CaptionReader:
        """Probabilities of sentences are the model's own."""
        return reader

    def saved(self, reader: CaptionReader) -> dict[str, bytes]:
        return {VOCABULARY: reader.vocabulary.to_json().encode(), SEEN: save_tensors({"seen": reader.seen})}

    def missing(self, folder: RunFolder) -> str:
        return (
            f"{folder.path} learned no captions: train a run with captions first "
            "(semisight train DATA --captions captions.csv --out RUN)."
        )


def vocabulary_of(settings: Settings, sets: Sets) -> Vocabulary:
    """The words of the captions that are learned from."""
    texts = _column(sets).texts
    return Vocabulary.from_captions((one for of in texts for one in of), settings.captions.min_count)


def _words(target: Target) -> Vocabulary:
    assert isinstance(target, Captions) and target.vocabulary is not None
    return target.vocabulary


def checksum(vocabulary: Vocabulary) -> str:
    return hashlib.sha256(vocabulary.to_json().encode()).hexdigest()[:16]


def _head(settings: Mapping[str, Any], code_size: int, vocab_size: int, seed: int) -> CaptionHead:
    names = ("hidden_size", "embedding_size", "cell", "start")
    tied = bool(settings.get("tied_words", False))
    if tied and settings["hidden_size"] != settings["embedding_size"]:
        raise UserError(
            f"tied_words needs words as long as the hidden state: hidden_size is {settings['hidden_size']}, "
            f"embedding_size {settings['embedding_size']}. Give both the same value, or leave tied_words out."
        )
    generator = reseed(torch.Generator(), seed, Stream.CAPTION_HEAD, 0)
    return CaptionHead(
        code_size,
        vocab_size,
        **{name: settings[name] for name in names},
        code_at_every_step=bool(settings.get("code_at_every_step", False)),  # runs of before 0.4 have none of these
        places=int(settings.get("places", 1)),
        dropout=float(settings.get("caption_dropout", 0.0)),
        tied=tied,
        generator=generator,
    )


def attending(captions_per_image: float) -> dict[str, Any]:
    """With attention over the places of a grid: an image is encoded once for all its captions."""
    size = max(1, round(ON_FEATURES["batch_size"] / max(1.0, captions_per_image)))
    return {"attention": True, "cell": "lstm", "captions_per_step": None, "batch_size": size}


def one_width(settings: Settings, found: Mapping[str, Any]) -> dict[str, Any]:
    """Words are as long as the hidden state, as tied ones must be, unless either length was chosen by hand."""
    how, chosen = settings.captions, settings.chosen
    hidden = how.hidden_size if "hidden_size" in chosen else found.get("hidden_size", how.hidden_size)
    embedding = how.embedding_size if "embedding_size" in chosen else hidden
    return {"embedding_size": embedding, "tied_words": embedding == hidden}


def places_of(model: ImageModel, attention: bool) -> int:
    """That a caption attends to."""
    _, height, width = model.architecture.code_shape
    return height * width if attention else 1


def _column(sets: Sets, which: str = "train") -> CaptionColumn:
    images = sets.train if which == "train" else sets.valid
    assert images is not None
    column = images.columns[CAPTIONS]
    assert isinstance(column, CaptionColumn)
    return column


def _carried(sets: Sets) -> Tensor:
    """bool [N]: images that carry anything."""
    return torch.stack([column.present for column in sets.train.columns.values()]).any(0)


def _read_seen(path: Path) -> Tensor:
    if not path.exists():
        return torch.zeros(0, dtype=torch.int64)
    try:
        return load_tensors(read_bytes(path, _MOST_SEEN))["seen"]
    except (SafetensorError, KeyError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it to go without.") from error
