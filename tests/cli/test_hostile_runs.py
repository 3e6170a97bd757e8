"""A run folder from a stranger in front of every command that takes one: a message or an answer, and nothing outside.

What each variant promises to end in is a UserError (exit code 2); where the folder is still usable, an answer (0).

The two exports take seconds each where a run can be exported: they meet a friend's run and the variants that are
refused on opening (REFUSED), not the others, which change what is recorded of images and tables.
"""

import dataclasses
import inspect
import json
import os
import re
import resource
import shutil
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save

from semisight.cli import main as cli
from semisight.cli.options import with_settings
from semisight.data import remote
from semisight.data.label_table import Table
from semisight.data.tables import read_labels
from semisight.errors import UserError
from semisight.files import BUNDLE, seal, temporary_name
from semisight.runs.captions import SEEN, VOCABULARY
from semisight.runs.run import load_run
from semisight.runs.searching import INDEX, searchable
from semisight.runs.settings import read_file
from semisight.server.image_index import read_index
from semisight.server.retraining import train_command
from semisight.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from semisight.training.folder import FILES
from tests.cli.commands import Result, ok, refused, semisight

NEWEST, BEST = "checkpoints/newest.safetensors", "checkpoints/best.safetensors"


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that every command can use: it learned labels, tags and captions."""
    run = tmp_path_factory.mktemp("hostile") / "run"
    ok("train", "builtin:scenes?n=120&size=16", "--captions", "builtin", "--tags", "builtin", "--epochs", "1",
       "--valid-fraction", "0.4", "--batch-size", "16", "--hidden-size", "8", "--no-report", "--out", run)  # fmt: skip
    return run


def weights(run: Path, value: float, only: str = "") -> None:
    """Every weight to use, or those of one part, is `value`; the checksum is right."""
    (run / BEST).unlink(missing_ok=True)
    found = read_checkpoint(run / NEWEST)
    tensors = {
        part: {
            name: torch.full_like(w, value) if w.is_floating_point() and part.startswith(only) else w
            for name, w in of.items()
        }
        for part, of in found.tensors.items()
    }
    write_checkpoint(run / NEWEST, Checkpoint(tensors, found.meta))


def index(run: Path, width: int, value: float) -> None:
    """Somebody else's index for `search`, with the key that the command looks for."""
    found = searchable(load_run(run))
    kept = load_file(run / INDEX)
    codes = torch.full((len(found.names), width), value)
    (run / INDEX).write_bytes(save({**kept, "codes": codes, "hints": codes.half()}))


def sparse(path: Path, n_bytes: int) -> None:
    """It takes no room in an archive, and as much in memory as it says."""
    with path.open("wb") as file:
        file.truncate(n_bytes)


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


def folder(run: Path, file: str) -> None:
    (run / file).unlink(missing_ok=True)
    (run / file).mkdir()


def interrupted(run: Path, outside: Path) -> None:
    stage = run / temporary_name("bundle")
    stage.mkdir()
    plan = {"stage": stage.name, "files": [], "remove": ["../outside/precious.csv"]}
    (run / ".bundle.json").write_text(json.dumps(plan))


# What a run can be opened without, and what lies beside a table of labels.
NEEDED = ("data.json", "config.json", "calibration.json", "tag_calibration.json", VOCABULARY, SEEN)
OTHERS = [name for name in FILES if "*" not in name and "/" not in name and name not in NEEDED]
OTHERS += ["labels.csv.journal", ".labels.csv.before"]
VARIANTS: dict[str, Callable[[Path, Path], object]] = {
    "huge maps": lambda run, _: header(run, lambda about: everywhere(about, "maps", 10**9)),
    "huge counts": lambda run, _: header(run, lambda about: everywhere(about, "n_train", 10**12)),
    "negative numbers": lambda run, _: header(run, lambda about: everywhere(about, "kernel", -3)),
    "a list": lambda run, _: header(run, lambda about: []),
    "nothing": lambda run, _: header(run, lambda about: {"format": about["format"]}),
    "deep": lambda run, _: header(run, lambda about: "[" * 100_000),
    "no JSON": lambda run, _: header(run, lambda about: "\x1b[2J"),
    "pipes": lambda run, _: [pipe(run, file) for file in ("data.json", "config.json")],
    "pipes in all other places": lambda run, _: [pipe(run, file) for file in OTHERS],
    "huge files in all other places": lambda run, _: [sparse(run / file, 3 << 30) for file in OTHERS],
    "folders in all other places": lambda run, _: [folder(run, file) for file in OTHERS],
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
    "weights of NaN": lambda run, _: weights(run, float("nan")),
    "infinite weights": lambda run, _: weights(run, float("inf"), "model"),
    "weights too large": lambda run, _: weights(run, 1e38),
    "one part of NaN": lambda run, _: weights(run, float("nan"), "model"),
    "an index of other codes": lambda run, _: index(run, 3, 0.0),
    "an index of NaN": lambda run, _: index(run, load_run(run).model.code_size, float("nan")),
    "a huge index": lambda run, _: sparse(run / INDEX, 3 << 30),
    "a huge list of captions": lambda run, _: sparse(run / SEEN, 3 << 30),
    "a huge vocabulary": lambda run, _: sparse(run / VOCABULARY, 3 << 30),
}
UNUSABLE = (
    *("huge maps", "negative numbers", "a list", "nothing", "deep", "no JSON"),
    *("weights of NaN", "infinite weights", "one part of NaN"),
)
# what no command opens, and no export either
REFUSED = (*UNUSABLE, "links", "half of a replacement", "a huge list of captions", "a huge vocabulary")
SCENES = "builtin:scenes?n=20&size=16"
COMMANDS: dict[str, tuple[str, ...]] = {
    "predict": ("predict", "RUN", "IMAGES"),
    "predict a pile": ("predict", "RUN", "IMAGES", "--out", "OUT.parquet", "--workers", "0"),
    "caption": ("caption", "RUN", "IMAGES"),
    "search": ("search", "RUN", "a large red circle"),
    "evaluate": ("evaluate", "RUN"),
    "suggest": ("suggest", "RUN"),
    "embed": ("embed", "RUN", "IMAGES", "--out", "OUT.npz"),
    "reconstruct": ("reconstruct", "RUN", "IMAGES", "--out", "OUT.png"),
    "generate": ("generate", "RUN", "--out", "OUT2.png"),
    "report": ("report", "RUN"),
    "export": ("export", "RUN", "--out", "OUT.onnx"),
    "export for Triton": ("export", "RUN", "--triton", "OUT3", "--name", "model"),
    "serve": ("serve", "RUN", "--port", "0"),
    "resume": ("train", "--out", "RUN", "--resume", "--no-report"),
    "overwrite": ("train", SCENES, "--out", "RUN", "--overwrite", "--epochs", "1", "--no-report"),
    "two steps": (
        *("train", SCENES, "--no-labels", "--captions", "builtin", "--two-step", "RUN", "--epochs", "1"),
        *("--hidden-size", "8", "--no-report", "--out", "OUT4"),
    ),
    "its settings": ("train", SCENES, "--config", "RUN/config.json", "--epochs", "1", "--no-report", "--out", "OUT5"),
    "figure 2": ("reproduce", "figure2", "--run", "RUN", "--data", "IMAGES", "--out", "OUT6.csv"),
    "demo": ("demo", "--out", "RUN"),
}
SLOW = ("export", "export for Triton")  # seconds each
WRITES_ANEW = ("overwrite", "its settings", "demo")  # they do not use what the run has learned

# What commands take that is text or a path, and no run. Whoever adds a parameter decides here, or adds a command above.
NO_RUN = {
    *("data", "images", "labels", "tags", "captions", "split", "backbone", "address", "preset", "device", "xi"),
    *("tag_xi", "caption_xi", "words", "images_at", "triton", "name", "host", "token", "tokens", "trust", "size"),
    *("table", "rows", "n", "splits", "compare"),
}
WRITTEN = {  # whose --out is what they write
    *("inspect", "predict", "caption", "search", "evaluate", "suggest", "embed", "reconstruct", "generate", "report"),
    *("export", "shard", "reproduce"),
}


def takes_run() -> set[tuple[str, str]]:
    """(command, parameter) of all that may be the folder of a run, by the declarations of the commands."""
    found = set()
    for function in (function for functions in cli.COMMANDS.values() for function in functions):
        for parameter in inspect.signature(with_settings(function)).parameters.values():
            kind, about = typing.get_args(parameter.annotation)[:2]
            text = {str, Path} & {kind, *typing.get_args(kind)}
            is_out = parameter.name == "out" and function.__name__ in WRITTEN
            if about.metavar == "RUN" or (text and parameter.name not in NO_RUN and not is_out):
                found.add((function.__name__, parameter.name))
    return found


def test_every_command_that_takes_a_run_is_tried() -> None:
    tried = set()
    for name, *words in COMMANDS.values():
        place = next(i for i, word in enumerate(words) if word.startswith("RUN"))
        option = words[place - 1].removeprefix("--") if place else "run"
        tried.add((name, {"two-step": "images_from"}.get(option, option)))
    assert takes_run() == tried


@pytest.fixture
def not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """`serve` ends by itself, once it has read its images."""

    def run(server: Any, sockets: Any) -> None:
        service = server.config.app.state.service
        service.start()
        service._reader.join(60)
        service.close()
        for one in sockets:
            one.close()

    monkeypatch.setattr("uvicorn.Server.run", run)


def ask_all(
    learned: Path, tmp_path: Path, change: Callable[[Path], object], without: Sequence[str] = ()
) -> Iterator[tuple[str, Result, int]]:
    """What each command says of a copy of the run that was changed, and by how many bytes the process grew."""
    images = tmp_path / "images"
    images.mkdir()
    for i in range(3):
        Image.fromarray(np.full((16, 16, 3), 40 * i, np.uint8)).save(images / f"{i}.png")
    for name, words in COMMANDS.items():
        if name in without:
            continue
        run = Path(shutil.copytree(learned, tmp_path / f"run-{name}"))
        change(run)
        places = {"RUN": run, "RUN/config.json": run / "config.json", "IMAGES": images}
        asked = [places.get(word, tmp_path / word if word.startswith("OUT") else word) for word in words]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = semisight(*asked)
        yield name, result, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        shutil.rmtree(run)


@pytest.mark.usefixtures("not_for_ever")
def test_they_all_answer_of_a_friends_run(learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would be refused for another reason than that it is a stranger's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    results = {name: result for name, result, _ in ask_all(learned, tmp_path, lambda run: None)}
    assert results.pop("demo").code == 2, "no demo replaces a run that is none"
    assert not {name: result.err for name, result in results.items() if result.code}


@pytest.mark.usefixtures("not_for_ever")
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_command(variant: str, learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside, home = tmp_path / "outside", tmp_path / "home"
    for folder in (outside, home):
        folder.mkdir()
    (outside / "precious.csv").write_text("what,nobody\nmay,change\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))  # first loaded, it makes a folder
    codes = {}
    without = () if variant in REFUSED else SLOW
    for name, result, grown in ask_all(learned, tmp_path, lambda run: VARIANTS[variant](run, outside), without):
        codes[name] = result.code
        assert result.code in (0, 2), (name, result)
        assert "Traceback" not in result.err and "\x1b[2J" not in result.out + result.err
        assert not re.search(r"\b(nan|inf)\b", result.out), (name, result.out)
        assert grown < 2 << 30, (name, grown)  # libraries that a command is the first to load count too
    assert {file.name: file.read_text() for file in outside.iterdir()} == {"precious.csv": "what,nobody\nmay,change\n"}
    assert not list(home.iterdir())
    if variant in UNUSABLE:
        assert {code for name, code in codes.items() if name not in WRITES_ANEW} == {2}, codes


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
    ok("report", run, "--data", SCENES)  # another source is none of them
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


def test_a_run_names_no_other_run_at_a_host(learned: Path, tmp_path: Path, asked: list[str]) -> None:
    """The first of two steps: asked for by `--resume`, and by the training that a server starts."""
    run = Path(shutil.copytree(learned, tmp_path / "run"))
    record(run, images_from="s3://stranger/run")
    assert "give --two-step RUN" in refused("train", "--out", run, "--resume", "--epochs", "2", "--no-report")
    with pytest.raises(UserError, match="nobody has named"):
        train_command(load_run(run), SCENES, None, tmp_path / "captions.csv", tmp_path / "new", None)
    assert not asked


def test_the_settings_of_a_run_are_those_of_its_model_alone(learned: Path, tmp_path: Path, asked: list[str]) -> None:
    """`train --config RUN/config.json`, also by a server: no path, network, host or number of processes of theirs."""
    file = tmp_path / "config.json"
    settings = json.loads((learned / "config.json").read_text())
    del settings["checksum"]
    theirs = {"backbone": "/networks/theirs.onnx", "images_from": "s3://stranger/run", "labels": "/etc/passwd"}
    theirs |= {"source": "s3://stranger/set", "engine": "ray", "address": "stranger:6379"}
    settings["about"]["settings"] |= theirs
    settings["config"] |= {**theirs, "processes": 10**6, "threads": 10**6}
    file.write_text(json.dumps(settings))
    read = read_file(file)
    assert not theirs.keys() & read.keys() and read["seed"] == settings["config"]["seed"]
    assert max(read["processes"], read["threads"]) <= (os.cpu_count() or 1)
    words = ("--config", file, "--epochs", "1", "--processes", "1", "--no-report", "--out", tmp_path / "new")
    ok("train", SCENES, *words)
    assert not asked
    settings["about"]["settings"] |= {"hidden_size": 10**9}
    file.write_text(json.dumps(settings))
    assert "hidden" in refused("train", SCENES, "--captions", "builtin", *words[:-1], tmp_path / "newer")


def test_a_flipped_bit_in_the_weights_is_refused(learned: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(learned, tmp_path / "run"))
    for file in (run / NEWEST, run / BEST):
        if file.exists():
            content = bytearray(file.read_bytes())
            content[-5] ^= 1
            file.write_bytes(content)
    for words in (("evaluate", run), ("generate", run, "--out", tmp_path / "x.png")):
        assert "its checksum is wrong" in refused(*words)


def test_a_journal_without_end_beside_a_table(tmp_path: Path) -> None:
    """It comes with a stranger's table, and takes no room in an archive."""
    table = tmp_path / "labels.csv"
    table.write_text("file,label\na.png,x\n")
    sparse(tmp_path / "labels.csv.journal", 3 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match="never merged"):
        read_labels(table, ("a.png",))
    with Table(table) as opened:
        assert opened.get("a.png").label == "x"
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 500 << 20


def test_a_model_larger_than_its_file_is_not_built(learned: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(learned, tmp_path / "run"))
    header(run, lambda about: everywhere(about, "maps", 1000))
    with pytest.raises(UserError, match="larger than its file"):
        load_run(run)


def test_opening_a_run_brings_its_replacement_to_an_end(learned: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(learned, tmp_path / "run"))
    stage = run / temporary_name("bundle")
    stage.mkdir()
    (stage / "model_card.md").write_text("new")
    (run / BUNDLE).write_text(json.dumps({"stage": stage.name, "files": ["model_card.md"], "remove": []}))
    load_run(run)
    assert (run / "model_card.md").read_text() == "new" and not (run / BUNDLE).exists()


@pytest.mark.parametrize("log", ["step,split\nmany,train\n", "step,split\n1,train,\x00\n", "no,log\n1,2\n", "\udcff\n"])
def test_a_log_that_is_none(log: str, learned: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(learned, tmp_path / "run"))
    (run / "log.csv").write_bytes(log.encode("utf-8", "surrogateescape"))
    for words in (("report", run), ("train", "--out", run, "--resume", "--epochs", "2", "--no-report")):
        result = semisight(*words)
        assert result.code in (0, 2) and "Traceback" not in result.err, (words, result)
