"""What a stranger wrote is bounded before it is read, and ends in a message, never in a traceback."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semisight.errors import UserError
from semisight.files import write_json
from semisight.untrusted import (
    csv_cell,
    inside,
    parse_json,
    parse_yaml,
    printable,
    read_bytes,
    read_json,
    recorded_file,
)


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(bytes(101))
    (tmp_path / "right").write_bytes(bytes(100))
    for name, reason in (
        ("pipe", "not a regular file"),
        ("large", "101 bytes"),
        ("none", "there is no file"),
        (".", "not a regular file|Is a directory"),
    ):
        with pytest.raises(UserError, match=reason):
            read_bytes(tmp_path / name, 100)
    with pytest.raises(UserError, match="not a regular file"):
        read_bytes("/dev/zero", 100)
    assert read_bytes(tmp_path / "right", 100) == bytes(100)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "5",
        '"x"',
        "{",
        "[" * 100_000,
        '{"a": ' * 500 + "1" + "}" * 500,
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999, "checksum": "x"}',
    ],
)
def test_json_that_cannot_be_used_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(UserError, match="file"):
        read_json(tmp_path / "file")


def test_json_keeps_its_checksum(tmp_path: Path) -> None:
    values = {"n": 1, "name": "é", "list": [1.5, None, {"a": True}]}
    path = tmp_path / "data.json"
    write_json(path, values)
    assert read_json(path) == values
    path.write_text(json.dumps(json.loads(path.read_text())))  # another layout says the same
    assert read_json(path) == values
    path.write_text(path.read_text().replace("1.5", "1.4"))
    with pytest.raises(UserError, match="checksum is wrong"):
        read_json(path)
    path.write_text(json.dumps({"n": 2}))  # changed by hand, the checksum deleted
    assert read_json(path) == {"n": 2}


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{n}: &{n} [{','.join([f'*{m}'] * 10)}]\n" for m, n in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("text", ["[" * 20_000, "a: " + "[" * 50 + "]" * 50, LAUGHS, "- 1", "5: a", "a: !!python/x"])
def test_yaml_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"settings\.yaml"):
        parse_yaml(text, "settings.yaml")


def test_deep_yaml_is_refused_at_once() -> None:
    started = time.process_time()
    for text in ("[" * 500_000, "{a: " * 100_000, "- " * 400_000):
        with pytest.raises(UserError, match="nested too deep"):
            parse_yaml(text, "settings.yaml")
    assert time.process_time() - started < 5


def test_yaml_that_can(tmp_path: Path) -> None:
    assert parse_yaml("", "x") == {}
    assert parse_yaml("a: [1, {b: 2}]", "x") == {"a": [1, {"b": 2}]}


JSON = st.recursive(st.none() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v))


@settings(max_examples=30, deadline=None)
@given(JSON)
def test_any_json_is_values_or_a_message(value: Any) -> None:
    text = json.dumps(value)
    if isinstance(value, dict):
        assert parse_json(text, "x") == value
    else:
        with pytest.raises(UserError):
            parse_json(text, "x")


def test_a_recorded_path_is_used_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "labels.csv").write_text("file,label\n")
    (tmp_path / "run").mkdir()
    assert recorded_file("../labels.csv", tmp_path / "run", what="labels", option="--labels").read_text()
    assert recorded_file(str(tmp_path / "labels.csv"), tmp_path / "run", what="labels", option="--labels").is_file()
    for text in ("~/labels.csv", "$HOME/labels.csv", str(tmp_path / "new.csv"), str(tmp_path), "a\0b", "x" * 5000, ""):
        with pytest.raises(UserError, match="give --labels"):
            recorded_file(text, tmp_path / "run", what="its labels", option="--labels")


def test_a_run_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    inside(tmp_path / "run", "checkpoints")
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="link to another place"):
        inside(tmp_path / "run", "tensorboard", "checkpoints")
    (tmp_path / "linked").symlink_to(tmp_path / "run")  # the run itself may be reached by a link
    inside(tmp_path / "linked", "tensorboard")


@given(st.text())
def test_nothing_reaches_the_terminal_but_what_is_seen(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


def test_names_stay_readable() -> None:
    assert printable("Käse 猫.png") == "Käse 猫.png"
    assert printable("\x1b[2Ja\u202eb\udcff\n") == r"\x1b[2Ja\u202eb\udcff\n"


@pytest.mark.parametrize("text", ["=cmd()", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_formula_passes(text: str) -> None:
    assert csv_cell(text) == "'" + text


@pytest.mark.parametrize("value", ["cat", "-1.5", "+3", "-inf", "", "a=b", 5, None, -2.5])
def test_cells_that_are_none_stay(value: Any) -> None:
    assert csv_cell(value) is value
