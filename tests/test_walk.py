"""The walk of one image in docs/architecture.md is the one that the three commands take, and it is short."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import semisight
from semisight import SemiSight
from semisight.runs import encoder_choice
from tests.cli.commands import ok
from tests.cli.photos import write_photos

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
PACKAGE = Path(semisight.__file__).parent
MOST = {"training": 12, "prediction": 6, "Python": 10}


def steps(walk: str) -> list[str]:
    (section,) = re.findall(rf"### Through {walk}:.*?\n(?=##)", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return re.findall(r"^\d+\. `([\w/]+\.py:[\w.]+)`", section, re.MULTILINE)


def room(step: str) -> str:
    """The folder below the package, or the file that is a room of its own."""
    return re.split("[/:]", step)[0]


def ours(frame: FrameType | None) -> Iterator[str]:
    """A frame and those that called it, as far as they are the package's."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(str(PACKAGE)):
            yield f"{Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix()}:{frame.f_code.co_qualname}"
        frame = frame.f_back


def calls(what: Callable[[], object], named: list[str]) -> list[list[str]]:
    """Of every call of a named function the stack above it, in order of time."""
    found: list[list[str]] = []
    names = {name.split(":")[1] for name in named}

    def seen(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_qualname in names:
            stack = list(ours(frame))
            if stack and stack[0] in named:
                found.append(stack)

    sys.setprofile(seen)
    try:
        what()
    finally:
        sys.setprofile(None)
    return found


def check(walk: str, what: Callable[[], object]) -> None:
    named = steps(walk)
    assert 4 < len(named) <= MOST[walk]
    rooms, found = {room(step) for step in named}, iter(calls(what, named))
    for step in named:  # a subsequence of the calls
        stack = next((one for one in found if one[0] == step), None)
        assert stack is not None, f"{step} is not called after the steps before it"
        assert {room(one) for one in stack} <= rooms, stack


def test_the_walks_of_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_choice, "installed", lambda: [])  # no pretrained network: from pixels
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    table = write_photos(tmp_path / "photos", n=24, labelled=2)
    run, short = tmp_path / "run", ("--size", "16", "--steps", "2", "--no-report")
    check("training", lambda: ok("train", tmp_path / "photos", "--labels", table, "--out", run, *short))
    check("prediction", lambda: ok("predict", run, tmp_path / "photos"))


def test_the_walk_of_the_estimator() -> None:
    images = np.random.default_rng(0).random((24, 12, 12))
    labels = np.where(np.arange(24) < 12, np.arange(24) % 2, -1)
    check("Python", lambda: SemiSight(max_steps=2).fit(images, labels))
