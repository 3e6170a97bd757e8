"""The help of every command: an example, the same words, and defaults that are the library's."""

import inspect
import typing
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer

from semisight.cli import main as cli
from semisight.cli import options
from semisight.errors import UserError
from semisight.model.architecture import Nonlinearity, preset_names
from semisight.model.encoders.paper import POOLINGS
from semisight.objectives.gradients import ESTIMATORS
from semisight.runs.caption_training import Cell
from semisight.runs.captioner import Search
from semisight.runs.label_training import HeadName
from semisight.runs.settings import MANY_CAPTIONS, DataSettings, ModelSettings, resolve
from semisight.training.config import Precision, Schedule, TrainConfig
from tests.cli.commands import ok

COMMANDS = (
    "demo",
    "inspect",
    "embed",
    "export",
    "train",
    "suggest",
    "predict",
    "evaluate",
    "reconstruct",
    "generate",
    "report",
    "serve",
    "reproduce",
)


def test_the_list_of_commands() -> None:
    text = ok("--help")
    for command in COMMANDS:
        assert command in text


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_that_names_known_options(command: str) -> None:
    text = ok(command, "--help")
    assert "Example:" in text
    examples = [line.split() for line in text.splitlines() if line.strip().startswith(f"semisight {command}")]
    assert examples
    known = set(inspect.signature(getattr(cli, command)).parameters)
    for words in examples:
        for word in words:
            if word.startswith("--"):
                assert word.removeprefix("--").replace("-", "_") in known


def test_trains_options_come_in_panels() -> None:
    text = ok("train", "--help")
    for panel in ("Run folder", "Images", "Labels", "Captions", "Model", "Learning", "Machine"):
        assert f"─ {panel} ─" in text


def shown_default(name: str) -> str:
    hints = get_type_hints(cli.train, include_extras=True)
    infos = (extra for extra in get_args(hints[name])[1:] if isinstance(extra, typer.models.ParameterInfo))
    return str(next(infos).show_default)


def choices(alias: Any) -> set[str]:
    literal = get_args(get_args(alias)[0])[0]
    return set(get_args(literal))


def test_defaults_in_the_help_are_the_librarys() -> None:
    train, model, data = TrainConfig(), ModelSettings(), DataSettings("x")
    alone = {
        name: shown_default(name).partition("; with labels: ")[0]
        for name in get_type_hints(cli.train)
        if name != "return"
    }
    assert alone["epochs"] == str(train.max_epochs)
    for name in ("batch_size", "schedule", "seed", "device", "precision"):
        assert alone[name] == str(getattr(train, name))
    assert float(alone["learning_rate"]) == train.learning_rate
    assert (alone["minutes"], train.max_minutes) == ("no limit", None)
    assert (alone["average"], train.average_decay) == ("off", None)
    for name in ("pooling", "nonlinearity", "gradient"):
        assert alone[name] == getattr(model, name)
    assert float(alone["valid_fraction"]) == data.valid_fraction


def test_defaults_with_labels_in_the_help_are_those_of_the_settings() -> None:
    names = ("nonlinearity", "learning_rate", "schedule", "average", "batch_size", "epochs")
    shown = {name: shown_default(name).partition("; with labels: ")[2] for name in names}
    few, many = (resolve({"source": "x"}).for_labels(*n) for n in ((100, 50_000), (50_000, 0)))
    assert shown["nonlinearity"] == few.model.nonlinearity == many.model.nonlinearity
    assert float(shown["learning_rate"]) == few.train.learning_rate
    assert shown["schedule"] == few.train.schedule
    assert float(shown["average"]) == few.train.average_decay
    assert shown["batch_size"] == f"{few.train.batch_size}, or {many.train.batch_size} if many"
    assert shown["epochs"] == f"{many.train.max_epochs} or more"
    assert (shown_default("head"), shown_default("xi"), shown_default("pull")) == (
        few.labels.head,
        few.labels.xi,
        "pull",
    )
    assert few.labels.pull


def test_defaults_of_captions_in_the_help_are_those_of_the_settings() -> None:
    given = resolve({"source": "x", "captions": "c"})
    few, many = (
        given.for_captions(100, 0, MANY_CAPTIONS - 1).captions,
        given.for_captions(100, 0, MANY_CAPTIONS).captions,
    )
    fewer = f"with fewer than {MANY_CAPTIONS:,} captions"
    assert shown_default("hidden_size") == f"{many.hidden_size}; {fewer} {few.hidden_size}"
    assert shown_default("min_count") == f"{many.min_count}; {fewer} {few.min_count}"
    assert shown_default("cell") == many.cell
    assert choices(options.Cell) == set(get_args(Cell))
    assert Search() == Search(*(inspect.signature(cli.caption).parameters[name].default for name in SEARCH))


SEARCH = ("codes", "beam", "max_words", "seed")


def test_choices_in_the_help_are_the_librarys() -> None:
    assert choices(options.Pooling) == set(POOLINGS)
    assert choices(options.Gradient) == set(ESTIMATORS)
    assert choices(options.Nonlinearity) == set(get_args(Nonlinearity))
    assert choices(options.Schedule) == set(get_args(Schedule))
    assert choices(options.Precision) == set(get_args(Precision))
    assert choices(options.Head) == set(get_args(HeadName))
    text = typing.get_args(options.Preset)[1].help
    assert all(name in text for name in preset_names())


def test_later_places_win(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"epochs": 5, "batch-size": 8, "preset": "mnist"}')
    former = {"source": "a", "max_epochs": 3, "learning_rate": 0.5, "layers": [{"maps": 2, "kernel": 3}]}
    settings = resolve({"epochs": None, "batch_size": 4}, file, former)
    assert (settings.train.max_epochs, settings.train.batch_size, settings.train.learning_rate) == (5, 4, 0.5)
    assert (settings.model.preset, settings.model.layers) == ("mnist", None)
    assert (settings.data.source, settings.data.size, settings.data.channels) == ("a", 28, 1)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("preset: mnist\nlayers: [{maps: 2, kernel: 3}]", "not both"),
        ("layers: 3", "must be a list"),
        ("layers: [3]", "a layer is written"),
        ("layers: [{maps: 3}]", "no kernel"),
        ("size: big", "size must be"),
        ("pooling: mean", "pooling must be one of"),
        ("colour: red", "there is no setting 'colour'"),
        ("[1, 2]", "name: value"),
    ],
)
def test_a_wrong_file_of_settings_is_refused(text: str, fragment: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=fragment):
        resolve({"source": "builtin:digits"}, file)
