"""Runs commands as the shell would, within this process."""

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

import torch

from semisight.cli import main as cli
from semisight.data.columns import CaptionColumn, LabelColumn
from semisight.data.image_set import ImageSet
from semisight.runs.images import Sets
from semisight.runs.recipe import suited
from semisight.runs.settings import Settings, resolve

# 40 digits in batches of 16, two steps an epoch: seconds, not minutes.
TINY = ("builtin:digits", "--no-labels", "--limit", "40", "--batch-size", "16", "--valid-fraction", "0.2")


def settled(n_labelled: int, n_others: int, n_classes: int = 10, captions: int = 0, **given: object) -> Settings:
    """The settings of a training on so many images with a label (or with `captions` captions each) and others."""
    n = n_labelled + n_others
    images = ImageSet(torch.empty(n, 1, 0, 0, dtype=torch.uint8), tuple(map(str, range(n))))
    if captions:
        images = images.with_column(CaptionColumn((("a word",) * captions,) * n_labelled + ((),) * n_others))
    else:
        labels = torch.full((n,), -1)
        labels[:n_labelled] = torch.arange(n_labelled) % n_classes
        images = images.with_column(LabelColumn(labels, tuple(map(str, range(n_classes)))))
    return suited(resolve({"source": "x", **given}), Sets(images, None))


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def semisight(*arguments: str | Path) -> Result:
    out, err = io.StringIO(), io.StringIO()
    code: int | str | None = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
    assert isinstance(code, int)
    return Result(code, out.getvalue(), err.getvalue())


def ok(*arguments: str | Path) -> str:
    """What a command that must succeed says."""
    result = semisight(*arguments)
    assert result.code == 0, result.err
    return result.out


def refused(*arguments: str | Path) -> str:
    """What a command that must be refused as a user's mistake says."""
    result = semisight(*arguments)
    assert result.code == 2, (result.code, result.out, result.err)
    return result.err
