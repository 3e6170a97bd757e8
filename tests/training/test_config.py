"""Settings: the paper's defaults, errors that name the field, files."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semisight.errors import UserError
from semisight.training.config import FREE_ON_RESUME, TrainConfig, read_settings

NAMES = [field.name for field in dataclasses.fields(TrainConfig)]


def test_the_defaults_are_the_papers() -> None:
    config = TrainConfig()
    assert (config.learning_rate, config.batch_size, config.clip_norm) == (2e-4, 64, 5.0)
    assert config.patience is not None and config.metric == "bound"
    assert config.weight_decay == 0 and config.schedule == "constant" and config.average_decay is None


@pytest.mark.parametrize(
    ("wrong", "meant"), [("learning_rat", "learning_rate"), ("max_epoch", "max_epochs"), ("batchsize", "batch_size")]
)
def test_an_unknown_key_is_an_error_that_names_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(UserError, match=f"no setting '{wrong}'.*'{meant}'"):
        TrainConfig.from_dict({wrong: 1})


@settings(max_examples=20)
@given(st.text(min_size=1, max_size=20).filter(lambda name: name not in NAMES))
def test_any_unknown_key_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="no setting"):
        TrainConfig.from_dict({name: 1})


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"learning_rate": 0}, "learning_rate must be above 0"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"learning_rate": "fast"}, "learning_rate must be a number"),
        ({"batch_size": 1.5}, "batch_size must be a whole number"),
        ({"batch_size": True}, "batch_size must be a whole number"),
        ({"progress": 1}, "progress must be true or false"),
        ({"schedule": "linear"}, "schedule must be one of 'constant', 'cosine' or 'one-cycle'"),
        ({"average_decay": 1.0}, "average_decay"),
        ({"precision": "16"}, "precision must be one of"),
        ({"seed": None}, "seed must be a whole number, not None"),
        ({"schedule": "cosine", "max_epochs": None}, "cosine must know where it ends"),
        ({"max_epochs": None, "patience": None}, "never end"),
        ({"final_rate": 2}, "final_rate"),
        ({"weight_decay": -1}, "weight_decay"),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_field(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        TrainConfig(**chosen)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "learning_rate": st.floats(1e-8, 1.0),
            "batch_size": st.integers(1, 10**6),
            "clip_norm": st.none() | st.floats(1e-3, 1e3),
            "schedule": st.sampled_from(["constant", "cosine"]),
            "average_decay": st.none() | st.floats(0, 0.9999),
            "seed": st.integers(0, 2**40),
        },
    )
)
def test_json_gives_back_the_same_settings(chosen: dict[str, Any]) -> None:
    config = TrainConfig(**chosen)
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def from_file(path: Path) -> TrainConfig:
    return TrainConfig.from_dict(read_settings(path), where=str(path))


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("learning_rate: 2e-3\nprecision: 32\nclip_norm: null\n")
    config = from_file(tmp_path / "a.yaml")
    assert (config.learning_rate, config.precision, config.clip_norm) == (2e-3, "32", None)  # YAML reads "2e-3" as text
    (tmp_path / "b.json").write_text('{"max_steps": 7}')
    assert from_file(tmp_path / "b.json").max_steps == 7
    (tmp_path / "empty.yaml").write_text("")
    assert from_file(tmp_path / "empty.yaml") == TrainConfig()


@pytest.mark.parametrize(("name", "text"), [("a.yaml", "a: [1"), ("a.json", "{,}"), ("list.yaml", "- 1\n- 2\n")])
def test_a_file_that_holds_no_settings_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=name):
        read_settings(tmp_path / name)
    with pytest.raises(UserError, match=r"there is no file .*missing\.yaml"):
        read_settings(tmp_path / "missing.yaml")


def test_an_error_in_a_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("batch_sise: 3\n")
    with pytest.raises(UserError, match=r"mine\.yaml.*batch_sise.*batch_size"):
        from_file(tmp_path / "mine.yaml")


def test_what_may_change_on_resume_are_names_of_fields() -> None:
    assert set(NAMES) >= FREE_ON_RESUME
    assert "max_epochs" not in TrainConfig().must_match_on_resume()
    assert "max_epochs" in TrainConfig(schedule="cosine").must_match_on_resume()  # it says where the cosine ends


@given(st.integers(1, 100), st.none() | st.integers(1, 10**4), st.integers(1, 500))
def test_the_first_limit_counts(epochs: int, steps: int | None, per_epoch: int) -> None:
    total = TrainConfig(max_epochs=epochs, max_steps=steps).total_steps(per_epoch)
    assert total == min(epochs * per_epoch, steps if steps is not None else epochs * per_epoch)
