"""Several labels per image as a kind of target, from the settings to the reader of a finished run."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from semisight.data.columns import TAGS, TagColumn
from semisight.files import json_bytes
from semisight.inference.encode import encode_set
from semisight.inference.tags import TagCalibration, TagReader, fit_tags
from semisight.metrics.tags import score_tags
from semisight.model.heads.tags import TagHead
from semisight.model.image_model import ImageModel
from semisight.objectives.step import Images
from semisight.objectives.tags import Tags
from semisight.objectives.targets import Target, Xi
from semisight.random import Stream, reseed
from semisight.runs.images import Sets
from semisight.runs.kinds import Terms
from semisight.runs.labels import batch_defaults
from semisight.runs.settings import Settings, parse_xi
from semisight.training.folder import RunFolder
from semisight.untrusted import names_in, read_kept

CALIBRATION = "tag_calibration.json"
XI_PER_TAG = 10.0  # times C times the paper's, as for labels


class TagKind:
    name = TAGS

    def metric(self, settings: Settings) -> tuple[str, bool]:
        return "tag_nll", False

    def defaults(self, settings: Settings, sets: Sets) -> dict[str, Any]:
        n = sets.n_present(TAGS)
        return {
            "nonlinearity": "norm-relu",
            "learning_rate": 1e-3,
            "schedule": "cosine",
            "average_decay": 0.99,
            "patience": None,
            "tag_xi": f"{XI_PER_TAG * len(_column(sets).names):g}x",
            **batch_defaults(settings, n, len(sets.train) - n),
        }

    def target(self, settings: Settings, sets: Sets, model: ImageModel, seed: int) -> Tags:
        column, how = _column(sets), settings.tags
        value, times = parse_xi(how.tag_xi, "tag_xi")
        head = _head(how.tag_head, model.code_size, len(column.names), seed)
        xi = Xi(value, times)
        return Tags(head, column.values, xi=xi, names=column.names, threshold=how.tag_threshold)

    def about(self, target: Target, held_out: int) -> dict[str, Any]:
        assert isinstance(target, Tags)
        return {
            "names": list(target.names),
            "n_learned": int(target.present.sum()),
            "held_out": held_out,
            "hash": hashlib.sha256(target.values.numpy().tobytes()).hexdigest()[:16],
            "settings": {"tag_head": target.head.kind},
        }

    def terms(self, settings: Settings, sets: Sets, target: Target) -> Terms | None:
        if sets.valid is None or not sets.n_held_out(TAGS):
            return None
        column, valid = _column(sets, "valid"), sets.valid
        known = column.present.nonzero().squeeze(1)
        values = column.values[known]

        def measure(model: ImageModel, head: nn.Module) -> Mapping[str, float]:
            assert isinstance(head, TagHead)
            f = decisions(model, head, valid, known)
            p = head.probability(f).clamp(1e-6, 1 - 1e-6)
            log_p = torch.where(values == 1, p.log(), (1 - p).log())[values >= 0]
            scores = score_tags(p, values, column.names)
            return {"mAP": scores.mean_average_precision, "F1": scores.mean_f1, "tag_nll": -float(log_p.mean())}

        return measure

    def describe(self, settings: Settings, sets: Sets, target: Target) -> list[str]:
        column, n_held_out = _column(sets), sets.n_held_out(TAGS)
        n_known = int((column.values >= 0).sum())
        share = n_known / max(1, column.values.numel())
        lines = [f"tags: {len(column.names)} of them; {n_known:,} entries are known ({share:.0%})"]
        last = f"those of {n_held_out:,} images are held out, to choose the weights and to calibrate"
        return [*lines, f"  {last if n_held_out else 'too few to hold some out: the last weights are used'}"]

    def n_weights(self, about: Mapping[str, Any], code_size: int) -> int:
        return code_size * len(names_in(about["names"]))

    def head(self, about: Mapping[str, Any], code_size: int) -> nn.Module:
        return _head(about["settings"]["tag_head"], code_size, len(about["names"]), 0)

    def reader(self, folder: RunFolder, about: Mapping[str, Any], head: nn.Module, step: int) -> TagReader:
        fitted = read_kept(folder.file(CALIBRATION), TagCalibration.from_dict)
        return TagReader(
            head=cast(TagHead, head),
            names=tuple(about["names"]),
            fitted=fitted if fitted is not None and fitted.step == step else None,
            n_learned=int(about["n_learned"]),
            n_held_out=int(about["held_out"]),
            settings=about["settings"],
        )

    def reader_of(self, target: Target) -> TagReader:
        assert isinstance(target, Tags)
        return TagReader(target.head, target.names, n_learned=int(target.present.sum()))

    def calibrate(self, reader: TagReader, model: ImageModel, sets: Sets, step: int, seed: int) -> TagReader:
        if sets.valid is None or not sets.n_held_out(TAGS):
            return reader
        column = _column(sets, "valid")
        known = column.present.nonzero().squeeze(1)
        fitted = fit_tags(decisions(model, reader.head, sets.valid, known), column.values[known], step)
        return dataclasses.replace(reader, fitted=fitted)

    def saved(self, reader: TagReader) -> dict[str, bytes]:
        return {} if reader.fitted is None else {CALIBRATION: json_bytes(reader.fitted.to_dict())}

    def missing(self, folder: RunFolder) -> str:
        return (
            f"{folder.path} has learned no tags: train a run with tags first "
            "(semisight train DATA --tags tags.csv --out RUN)."
        )


def _head(kind: str, code_size: int, n_tags: int, seed: int) -> TagHead:
    generator = reseed(torch.Generator(), seed, Stream.TAG_HEAD, 0)
    return TagHead(code_size, n_tags, "svm" if kind == "svm" else "logistic", generator=generator)


@torch.no_grad()
def decisions(model: ImageModel, head: TagHead, images: Images, index: Tensor | None = None) -> Tensor:
    """[N, C] on the CPU."""
    parts = [head.decision(codes.mean).cpu() for _, codes, _ in encode_set(model, images, index=index)]
    return torch.cat(parts)


def _column(sets: Sets, which: str = "train") -> TagColumn:
    images = sets.train if which == "train" else sets.valid
    assert images is not None
    column = images.columns[TAGS]
    assert isinstance(column, TagColumn)
    return column
