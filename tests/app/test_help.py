"""The help of every command: an example, the same words, and defaults that are the library's."""

import inspect
import typing
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer

from semisight.app import cli, options
from semisight.app.settings import DataSettings, ModelSettings, resolve
from semisight.errors import UserError
from semisight.learning.config import Precision, Schedule, TrainConfig
from semisight.learning.gradients import ESTIMATORS
from semisight.model.architecture import Nonlinearity, preset_names
from semisight.model.image_encoder import POOLINGS
from tests.app.commands import ok

COMMANDS = ("demo", "train", "reconstruct", "generate", "report")


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
    for panel in ("Run folder", "Images", "Model", "Learning", "Machine"):
        assert f"─ {panel} ─" in text


def shown_default(name: str) -> str:
    hints = get_type_hints(cli.train, include_extras=True)
    (info,) = (extra for extra in get_args(hints[name])[1:] if isinstance(extra, typer.models.OptionInfo))
    return str(info.show_default)


def choices(alias: Any) -> set[str]:
    literal = get_args(get_args(alias)[0])[0]
    return set(get_args(literal))


def test_defaults_in_the_help_are_the_librarys() -> None:
    train, model, data = TrainConfig(), ModelSettings(), DataSettings("x")
    assert shown_default("epochs") == str(train.max_epochs)
    for name in ("batch_size", "schedule", "seed", "device", "precision"):
        assert shown_default(name) == str(getattr(train, name))
    assert float(shown_default("learning_rate")) == train.learning_rate
    assert (shown_default("minutes"), train.max_minutes) == ("no limit", None)
    assert (shown_default("average"), train.average_decay) == ("off", None)
    for name in ("pooling", "nonlinearity", "gradient"):
        assert shown_default(name) == getattr(model, name)
    assert float(shown_default("valid_fraction")) == data.valid_fraction


def test_choices_in_the_help_are_the_librarys() -> None:
    assert choices(options.Pooling) == set(POOLINGS)
    assert choices(options.Gradient) == set(ESTIMATORS)
    assert choices(options.Nonlinearity) == set(get_args(Nonlinearity))
    assert choices(options.Schedule) == set(get_args(Schedule))
    assert choices(options.Precision) == set(get_args(Precision))
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
