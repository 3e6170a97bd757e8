"""The help of every command: an example, options from the declarations, and defaults that are the library's."""

import inspect
import typing
from pathlib import Path
from typing import Any

import pytest
import typer

from semisight.cli import main as cli
from semisight.cli.options import shown_default, with_settings
from semisight.errors import UserError
from semisight.inference.captions import Search
from semisight.model.architecture import PRESETS
from semisight.runs.captions import MANY_CAPTIONS
from semisight.runs.settings import KINDS, options, resolve
from semisight.runs.time_plan import MINUTES
from semisight.setting import fields, words_of
from tests.cli.commands import ok, settled

FUNCTIONS = {function.__name__: function for functions in cli.COMMANDS.values() for function in functions}
OWN = {"data", "out", "resume", "overwrite", "report", "config", "paper"}  # of train, and no settings
DECLARED = dict(options())


def params(name: str) -> dict[str, Any]:
    """The options and arguments of a command, by the name of its parameter."""
    command = typer.main.get_command(cli.app).commands[name]  # type: ignore[attr-defined]
    context = command.make_context(name, ["--help"], resilient_parsing=True)
    return {parameter.name: parameter for parameter in command.get_params(context)}


def test_the_list_of_commands() -> None:
    text = ok("--help")
    for name in (*FUNCTIONS, "train", "predict", "caption", "evaluate", "reproduce"):
        assert name in text


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_shows_an_example_that_names_known_options(name: str) -> None:
    text = ok(name, "--help")
    assert "Example" in text
    examples = [line.split() for line in text.splitlines() if line.strip().startswith(f"semisight {name}")]
    assert examples
    known = {flag for parameter in params(name).values() for flag in (*parameter.opts, *parameter.secondary_opts)}
    for words in examples:
        assert {word for word in words if word.startswith("--")} <= known


def test_trains_options_come_in_panels() -> None:
    text = ok("train", "--help")
    for panel in ("Run folder", *{words_of(info)["panel"] for info in DECLARED.values()}):
        assert f"\u2500 {panel} \u2500" in text


# --- one declaration per setting


def test_every_option_of_train_comes_from_a_declaration() -> None:
    found, signature = params("train"), inspect.signature(with_settings(FUNCTIONS["train"])).parameters
    assert set(found) - {"help", "_click_default_help"} == OWN | set(DECLARED)  # of either name, by version of click
    for name, info in DECLARED.items():
        option, words = found[name], words_of(info)
        assert option.help == info.description
        assert option.default is None  # not given: the setting may come from elsewhere
        flag = words["flag"] or f"--{name.replace('_', '-')}"
        assert "/".join([*option.opts, *option.secondary_opts]) == flag
        assert option.show_default == (shown_default(info) or False)
        kinds = [kind for kind in typing.get_args(info.annotation) if kind is not type(None)]
        is_literal = typing.get_origin(info.annotation) is typing.Literal
        wanted = info.annotation if is_literal or not kinds else kinds[0] if len(kinds) == 1 else str
        assert typing.get_args(signature[name].annotation)[0] == wanted | None


def test_options_that_commands_share_with_train_say_the_same() -> None:
    shared = 0
    for name, function in FUNCTIONS.items():
        plain = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if typing.get_origin(parameter.annotation) is not typing.Annotated
            and parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        found = params(name)
        for one in plain:
            shared += 1
            assert found[one].help == DECLARED[one].description
    assert shared > 20


def test_a_parameter_that_is_neither_a_setting_nor_annotated_is_a_bug() -> None:
    def command(colour: str | None = None) -> None: ...

    with pytest.raises(KeyError, match="colour"):
        with_settings(command)


def test_values_arrive_as_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Switches give True, inverse ones False, numbers and words their type; what is not given is left to others."""
    seen: dict[str, Any] = {}

    def train_run(settings: object, path: Path, **more: object) -> None:
        seen["settings"] = settings
        raise UserError("enough")

    monkeypatch.setattr("semisight.runs.train.train_run", train_run)
    given = ["--no-labels", "--no-consistency", "--epochs", "7", "--learning-rate", "0.5", "--precision", "64",
             "--hidden-size", "9", "--tag-xi", "3.5", "--minutes", "2"]  # fmt: skip
    with pytest.raises(SystemExit):
        cli.main(["train", "builtin:digits", "--out", str(tmp_path / "run"), *given])
    settings = seen["settings"]
    assert settings.chosen == {"source", "use_labels", "consistency", "max_epochs", "learning_rate", "precision",
                               "hidden_size", "embedding_size", "tag_xi", "max_minutes"}  # fmt: skip
    flat = settings.flat()
    assert (flat["use_labels"], flat["consistency"], flat["max_epochs"]) == (False, False, 7)
    assert (flat["learning_rate"], flat["precision"], flat["embedding_size"]) == (0.5, "64", 9)
    assert (flat["tag_xi"], flat["max_minutes"]) == ("3.5", 2.0)


# --- defaults


def shown(name: str) -> str:
    return shown_default(DECLARED[name])


def test_defaults_in_the_help_are_the_librarys() -> None:
    """Where no words stand in for it, a default is shown as it is; where they do, they begin with it."""
    for name, info in DECLARED.items():
        if words_of(info)["shown"] is None and not isinstance(info.default, bool):
            assert shown(name) == ("" if info.default is None else str(info.default))
    alone = resolve({"source": "x"}).flat()
    for name in ("max_epochs", "batch_size", "schedule", "nonlinearity", "hidden_size", "min_count"):
        assert shown(name).split(";")[0] == str(alone[name])
    assert float(shown("learning_rate").split(";")[0]) == alone["learning_rate"]
    assert shown("max_minutes").startswith(f"{MINUTES:g} on a CPU") and alone["max_minutes"] is None
    assert (shown("average_decay").split(";")[0], alone["average_decay"]) == ("off", None)
    assert shown("consistency") == "consistency" and alone["consistency"]


def test_defaults_with_targets_in_the_help_are_those_of_the_settings() -> None:
    few, many, words = settled(100, 50_000), settled(50_000, 0), settled(100, 900, captions=1)
    for settings in (few, many, words):
        for name in ("nonlinearity", "learning_rate", "schedule", "average_decay"):
            assert shown(name).partition("; with targets: ")[2] == str(settings.flat()[name])
    assert shown("batch_size") == f"64; with labels: {few.train.batch_size}, or {many.train.batch_size} if many"
    assert shown("max_epochs").endswith(f"{many.train.max_epochs} or more")
    assert shown("head") == few.labels.head
    assert (shown("xi"), few.labels.xi) == ("10 C times the paper's", "100x")


def test_defaults_of_captions_in_the_help_are_those_of_the_settings() -> None:
    few, many = (settled(MANY_CAPTIONS - 1 + more, 0, captions=1).captions for more in (0, 1))
    fewer = f"with fewer than {MANY_CAPTIONS:,} captions"
    assert shown("hidden_size") == f"{many.hidden_size}; {fewer} {few.hidden_size}"
    assert shown("min_count") == f"{many.min_count}; {fewer} {few.min_count}"
    assert (shown("cell"), shown("caption_xi")) == (many.cell, many.caption_xi)
    defaults = inspect.signature(FUNCTIONS["caption"]).parameters
    assert Search() == Search(*(defaults[name].default for name in ("codes", "beam", "max_words", "n_best", "seed")))


def test_the_help_names_every_preset() -> None:
    assert all(name in str(DECLARED["preset"].description) for name in PRESETS)


# --- where settings come from


def test_later_places_win(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"epochs": 5, "batch-size": 8, "preset": "mnist"}')
    former = {"source": "a", "max_epochs": 3, "learning_rate": 0.5, "layers": [{"maps": 2, "kernel": 3}]}
    settings = resolve({"epochs": None, "batch_size": 4}, file, former)
    assert (settings.train.max_epochs, settings.train.batch_size, settings.train.learning_rate) == (5, 4, 0.5)
    assert (settings.model.preset, settings.model.layers) == ("mnist", None)
    assert (settings.data.source, settings.data.size, settings.data.channels) == ("a", 28, 1)


def test_no_name_is_declared_twice() -> None:
    every = [name for kind in KINDS for name in fields(kind)]
    assert len(every) == len(set(every))


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
