"""A run folder from a stranger in front of every command that takes one: a message or an answer, and nothing outside.

What each variant promises to end in is a UserError (exit code 2); where the folder is still usable, an answer (0).
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from semisight.data import remote
from semisight.errors import UserError
from semisight.files import seal, temporary_name
from semisight.runs.run import load_run
from semisight.runs.searching import searchable
from semisight.server.image_index import read_index
from tests.cli.commands import ok, refused, semisight

NEWEST, BEST = "checkpoints/newest.safetensors", "checkpoints/best.safetensors"


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("hostile") / "run"
    ok("train", "builtin:digits", "--labels-per-class", "2", "--limit", "60", "--epochs", "1", "--batch-size", "16",
       "--no-report", "--out", run)  # fmt: skip
    return run


def header(run: Path, change: Callable[[dict[str, Any]], Any], file: str = NEWEST) -> None:
    """Another header, with a checksum that is right: whoever writes a run can write that too."""
    (run / BEST).unlink(missing_ok=True)
    content = (run / file).read_bytes()
    size = int.from_bytes(content[:8], "little")
    found = json.loads(content[8 : 8 + size])
    about = json.loads(found["__metadata__"]["semisight"])
    changed = change(about)
    text = changed if isinstance(changed, str) else json.dumps(about if changed is None else changed)
    whole = json.dumps({**found, "__metadata__": {"semisight": text}}).encode()
    (run / file).write_bytes(seal(len(whole).to_bytes(8, "little") + whole + content[8 + size :]))


def record(run: Path, **settings: Any) -> None:
    data = json.loads((run / "data.json").read_text())
    data["settings"] |= settings
    del data["checksum"]
    (run / "data.json").write_text(json.dumps(data))


def everywhere(about: Any, name: str, value: Any) -> None:
    """Sets every entry called `name`, however deep."""
    if isinstance(about, dict):
        for key, below in about.items():
            if key == name:
                about[key] = value
            else:
                everywhere(below, name, value)
    elif isinstance(about, list):
        for below in about:
            everywhere(below, name, value)


def pipe(run: Path, file: str) -> None:
    (run / file).unlink(missing_ok=True)
    os.mkfifo(run / file)


def interrupted(run: Path, outside: Path) -> None:
    stage = run / temporary_name("bundle")
    stage.mkdir()
    plan = {"stage": stage.name, "files": [], "remove": ["../outside/precious.csv"]}
    (run / ".bundle.json").write_text(json.dumps(plan))


VARIANTS: dict[str, Callable[[Path, Path], object]] = {
    "huge maps": lambda run, _: header(run, lambda about: everywhere(about, "maps", 10**9)),
    "huge counts": lambda run, _: header(run, lambda about: everywhere(about, "n_train", 10**12)),
    "negative numbers": lambda run, _: header(run, lambda about: everywhere(about, "kernel", -3)),
    "a list": lambda run, _: header(run, lambda about: []),
    "nothing": lambda run, _: header(run, lambda about: {"format": about["format"]}),
    "deep": lambda run, _: header(run, lambda about: "[" * 100_000),
    "no JSON": lambda run, _: header(run, lambda about: "\x1b[2J"),
    "pipes": lambda run, _: [pipe(run, file) for file in ("data.json", "config.json")],
    "a table that is not there": lambda run, _: record(run, labels="~/new.csv", labels_per_class=None),
    "a table that is none": lambda run, out: record(run, labels=str(out / "precious.csv"), labels_per_class=None),
    "images elsewhere": lambda run, out: record(run, source=str(out)),
    "images nowhere": lambda run, _: record(run, source="~/none"),
    "images at a host": lambda run, _: record(run, source="http://127.0.0.1:9/set.npz"),
    "a deep record": lambda run, _: (run / "data.json").write_text("[" * 100_000),
    "an empty record": lambda run, _: (run / "data.json").write_text("{}"),
    "links": lambda run, out: [
        (run / name).unlink(missing_ok=True) or (run / name).symlink_to(out / "precious.csv")
        for name in ("report.html", "model_card.md", "calibration.json")
    ],
    "half of a replacement": interrupted,
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "predict": ("predict", "RUN", "IMAGES"),
    "caption": ("caption", "RUN", "IMAGES"),
    "evaluate": ("evaluate", "RUN"),
    "suggest": ("suggest", "RUN"),
    "embed": ("embed", "RUN", "IMAGES", "--out", "OUT.npz"),
    "reconstruct": ("reconstruct", "RUN", "IMAGES", "--out", "OUT.png"),
    "generate": ("generate", "RUN", "--out", "OUT2.png"),
    "report": ("report", "RUN"),
    "resume": ("train", "--out", "RUN", "--resume", "--no-report"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_command(variant: str, learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside, home, images = tmp_path / "outside", tmp_path / "home", tmp_path / "images"
    for folder in (outside, home, images):
        folder.mkdir()
    (outside / "precious.csv").write_text("what,nobody\nmay,change\n")
    for i in range(3):
        Image.fromarray(np.full((8, 8), 40 * i, np.uint8)).save(images / f"{i}.png")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    codes = {}
    for name, words in COMMANDS.items():
        run = Path(shutil.copytree(learned, tmp_path / f"run-{name}"))
        VARIANTS[variant](run, outside)
        places = {"RUN": run, "IMAGES": images}
        asked = [places.get(word, tmp_path / word if word.startswith("OUT") else word) for word in words]
        result = semisight(*asked)
        codes[name] = result.code
        assert result.code in (0, 2), (name, result)
        assert "Traceback" not in result.err and "\x1b[2J" not in result.out + result.err
    assert {file.name: file.read_text() for file in outside.iterdir()} == {"precious.csv": "what,nobody\nmay,change\n"}
    assert not list(home.iterdir())
    if variant in ("huge maps", "negative numbers", "a list", "nothing", "deep", "no JSON"):
        assert set(codes.values()) == {2}, codes


def test_a_run_is_not_trained_through_a_link(learned: Path, tmp_path: Path) -> None:
    run, outside = Path(shutil.copytree(learned, tmp_path / "run")), tmp_path / "outside"
    shutil.move(run / "checkpoints", outside)
    (run / "checkpoints").symlink_to(outside)
    before = {file: file.read_bytes() for file in outside.iterdir()}
    for words in (("--resume",), ("builtin:digits", "--limit", "40", "--overwrite")):
        result = semisight("train", *words, "--out", run, "--epochs", "2", "--no-report")
        assert result.code == 2 and "link to another place" in result.err, result
    assert {file: file.read_bytes() for file in outside.iterdir()} == before


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """URLs that somebody tried to reach, on a machine whose caches are empty."""
    found: list[str] = []

    def filesystem(url: str) -> tuple[Any, str]:
        found.append(url)
        raise UserError(f"{url} was asked")

    monkeypatch.setattr(remote, "filesystem", filesystem)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return found


@pytest.mark.parametrize(
    "url", ["s3://stranger/set", "http://127.0.0.1:9/set.npz", "file:///set.npz::http://127.0.0.1:9"]
)
def test_no_host_hears_of_a_run_that_names_it(url: str, learned: Path, tmp_path: Path, asked: list[str]) -> None:
    run = Path(shutil.copytree(learned, tmp_path / "run"))
    record(run, source=url)
    resume = ("train", "--out", run, "--resume", "--epochs", "2", "--no-report")
    for words in (("evaluate", run), ("suggest", run), ("report", run), resume):
        said = refused(*words)
        assert "nobody has named on this machine" in said and "give" in said, words
    with pytest.raises(UserError, match=r"nobody has named.*--images"):
        read_index(load_run(run), None, lambda done, of: None)
    assert not asked
    ok("report", run, "--data", "builtin:digits")  # another source is none of them
    assert not asked
    refused("report", run, "--data", "s3://mine/set")  # what the user names is asked
    assert asked == ["s3://mine/set"]


@pytest.mark.parametrize("name", ["labels", "tags", "captions"])
def test_nor_of_one_that_names_it_for_a_table(name: str, learned: Path, tmp_path: Path, asked: list[str]) -> None:
    run = Path(shutil.copytree(learned, tmp_path / "run"))
    record(run, **{name: "s3://stranger/table.csv"}, labels_per_class=None)
    for words in (("evaluate", run), ("suggest", run), ("report", run), ("train", "--out", run, "--resume")):
        assert f"give --{name} FILE" in refused(*words), words
    read_index(load_run(run), None, lambda done, of: None)  # without the table, which serve's own takes the place of
    assert not asked


def test_a_search_asks_no_host_of_a_strangers(learned: Path, tmp_path: Path, asked: list[str]) -> None:
    run = Path(shutil.copytree(learned, tmp_path / "run"))
    record(run, source="s3://stranger/set")
    loaded = load_run(run)
    knows_captions = dataclasses.replace(loaded, readers={**loaded.readers, "captions": loaded.readers["labels"]})
    with pytest.raises(UserError, match=r"nobody has named.*--images"):
        searchable(knows_captions)
    assert not asked


def test_a_url_that_was_copied_here_is_one_that_its_user_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fsspec.filesystem("memory").pipe_file("/mine/a.txt", b"text")
    with pytest.raises(UserError, match="nobody has named"):
        remote.recorded_url("memory://mine/", "RUN", what="its images", option="--data")
    remote.local_copy("memory://mine")
    assert remote.recorded_url("memory://mine/", "RUN", what="its images", option="--data") == "memory://mine/"
