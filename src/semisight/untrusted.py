"""The one place that reads what a stranger may have written: run folders, settings, tables. Bounds first, then meaning.

    read_bytes, read_text     a regular file of bounded size; a pipe or a device is never opened
    read_json, parse_json     values of bounded depth, and their checksum where there is one (files.write_json)
    read_kept                 what a run may go without, or None
    parse_yaml                the same for settings
    names_in                  names of classes or tags
    recorded_file             a path that stands in a run: used as it is written, and only if it leads to a file
    inside                    refuses folders of a run that are links to somewhere else, before they are written to
    printable, csv_cell       text on its way to a terminal, or to a table that a spreadsheet opens

Nothing here runs code, expands `~` or variables, or makes a file. SECURITY.md says what is promised.
"""

import json
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from semisight.errors import UserError
from semisight.files import json_checksum

T = TypeVar("T")

MOST_JSON = 64_000_000  # bytes: a million class names
MOST_SETTINGS = 1_000_000
MOST_DEPTH = 32
MOST_TABLE = 2_000_000_000
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def read_bytes(path: str | Path, most: int) -> bytes:
    """All of a regular file of at most `most` bytes."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for a writer
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{path} is not a regular file.")
            if status.st_size > most:
                raise UserError(f"{path} has {status.st_size:,} bytes; at most {most:,} are read.")
            content = file.read(most + 1)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}.") from None
    except OSError as error:
        raise UserError(f"could not read {path}: {error.strerror or error}.") from error
    if len(content) > most:  # it grew, or its size is not known beforehand
        raise UserError(f"{path} has more than {most:,} bytes.")
    return content


def read_text(path: str | Path, most: int) -> str:
    """As `read_bytes`, for text in UTF-8."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 (byte {error.start}).") from error


def read_json(path: str | Path, most: int = MOST_JSON) -> dict[str, Any]:
    """The values of a JSON file by name, compared with its checksum if it has one (and without it)."""
    values = parse_json(read_text(path, most), str(path))
    found = values.pop("checksum", None)
    if found is not None and found != json_checksum(values):
        raise UserError(
            f"{path} is not as it was written: its checksum is wrong. Use another copy; if you changed it by hand, "
            'delete its line "checksum" too.'
        )
    return values


def read_kept(path: Path, make: Callable[[dict[str, Any]], T]) -> T | None:
    """What `make` finds in a JSON file that a run may go without; None where there is none."""
    if not path.exists():
        return None
    try:
        return make(read_json(path))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); delete it to go without.") from error


def parse_json(text: str, where: str) -> dict[str, Any]:
    """The object that a JSON text holds; no NaN, which is no JSON, and nothing nested beyond reason."""

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is no number")

    def finite(word: str) -> Any:  # 1e999 is infinite
        return value if math.isfinite(value := float(word)) else refuse(word)

    return _mapping(
        lambda: json.loads(text, parse_constant=refuse, parse_float=finite), where, "JSON", (ValueError, RecursionError)
    )


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """The mapping that a YAML text holds; an empty text is an empty mapping."""
    import yaml

    if len(text) > MOST_SETTINGS:
        raise UserError(f"{where} is too long for settings: {len(text):,} letters.")

    def parse() -> Any:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):  # its time grows with the square of the depth: stopped early
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH:
                raise RecursionError
        return {} if (found := yaml.safe_load(text)) is None else found

    return _mapping(parse, where, "YAML", (yaml.YAMLError, ValueError, RecursionError))


def _mapping(
    parse: Callable[[], Any], where: str, kind: str, failures: tuple[type[BaseException], ...]
) -> dict[str, Any]:
    try:
        values = parse()
        _measure(values)
    except failures as error:
        deep = isinstance(error, RecursionError)
        reason = "it is nested too deep" if deep else " ".join(str(error).split())[:300]
        raise UserError(f"{where} is not valid {kind}: {printable(reason)}") from None
    if not isinstance(values, dict):
        raise UserError(f"{where} should hold `name: value`, but holds a {type(values).__name__}.")
    if not all(isinstance(name, str) for name in values):
        raise UserError(f"{where} has names that are no text.")
    return values


def _measure(values: Any, most: int = 10_000_000) -> None:
    """Refuses depth, and YAML's references to references: few letters that stand for billions of values."""
    level, count = [values], 0
    for _ in range(MOST_DEPTH):
        below: list[Any] = []
        for value in level:
            below += value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
            if count + len(below) > most:
                raise ValueError("it holds too many values")
        count += len(below)
        if not below:
            return
        level = below
    raise RecursionError


def names_in(value: Any) -> list[str]:
    """Names of classes or tags as a run lists them: texts, each once."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value) or len({*value}) != len(value):
        raise UserError("it lists names that are no texts, or one of them twice.")
    return value


def recorded_file(text: str, run: str | Path, *, what: str, option: str) -> Path:
    """The file that a path recorded in a run leads to, if there is one.

    The path is taken as it is written, from the run's folder if it is relative: `~` and variables mean nothing. What
    is not there is asked for by an option; a run never decides where something is written.
    """
    path = Path(run) / text
    try:
        is_file = "\0" not in text and len(text) < 4096 and stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        raise UserError(f"{run} names {printable(text)[:200]!r} as {what}, and there is no such file: give {option}.")
    return path


def inside(folder: str | Path, *names: str) -> None:
    """Before a run is written to: none of its folders `names` may be a link that leads out of it."""
    home = Path(folder).resolve()
    for name in names:
        if not (Path(folder) / name).resolve().is_relative_to(home):
            raise UserError(f"{Path(folder) / name} is a link to another place; nothing is written through it.")


def printable(text: str) -> str:
    """Text that a terminal shows and does not obey: control characters and stray bytes as \\x1b, \\udcff.

    So are the marks that turn the direction of writing, which make a name look like another one.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == " " else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "backslashreplace").decode("ascii")


def csv_cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: text that begins like one, and is no number, begins with '.

    For tables that we write to be looked at. Not for tables that are read back by name: there the text must stay.
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return "'" + value
    return value
