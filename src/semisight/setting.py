"""One declaration per setting: type, default, bounds and what it means stand together, where the setting is defined.

The command line's options, the config file, the record of a run and the estimator's arguments are all made from it.

    @group
    class DataSettings:
        size: int | None = setting(default=None, help="Scale to SIZE x SIZE pixels.", panel="Images", ge=1)

A group is a frozen dataclass that is checked on construction; what is wrong with a value is a UserError in words.
"""

import dataclasses
import difflib
import functools
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass
from pydantic.fields import FieldInfo

from semisight.errors import UserError

T = TypeVar("T")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "dict": "names with values",
}


def setting(
    *,
    default: Any,
    help: str,
    panel: str | None = None,
    flag: str | None = None,
    shown: str | None = None,
    metavar: str | None = None,
    inverse: bool = False,
    **bounds: Any,
) -> Any:
    """A field of a group.

    help     what it does, for people
    panel    under which heading of `semisight train --help` it stands; None: it is no option of the command line
    flag     the option's name, if it is not the field's with - for _; "--a/--b" for a switch with two names
    shown    the default in words, where it depends on the images
    inverse  the option stands for False
    bounds   ge, gt, le, lt as pydantic knows them
    """
    words: dict[str, Any] = {"panel": panel, "flag": flag, "shown": shown, "metavar": metavar, "inverse": inverse}
    return Field(default=default, description=help, json_schema_extra=words, **bounds)


@dataclass_transform(frozen_default=True, field_specifiers=(setting,))
def group(cls: type[T]) -> type[T]:
    """Makes a class of settings: a frozen dataclass whose values are checked, with errors in words."""
    made: Any = checked_dataclass(
        frozen=True, config=ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)
    )(cls)
    build = made.__init__

    @functools.wraps(build)
    def __init__(self: Any, *args: Any, **values: Any) -> None:
        try:
            build(self, *args, **{name: _plain(made, name, value) for name, value in values.items()})
        except ValidationError as error:
            raise UserError(_words(error)) from None

    made.__init__ = __init__
    result: type[T] = made
    return result


def fields(kind: type) -> Mapping[str, FieldInfo]:
    found: Mapping[str, FieldInfo] = kind.__pydantic_fields__  # type: ignore[attr-defined]
    return found


def words_of(info: FieldInfo) -> dict[str, Any]:
    """What `setting` was told for the command line."""
    found = info.json_schema_extra
    assert isinstance(found, dict)
    return dict(found)


def names(kinds: Iterable[type]) -> list[str]:
    return [name for kind in kinds for name in fields(kind)]


def part(kind: type[T], values: Mapping[str, Any]) -> T:
    """The group's own values among many."""
    return kind(**{name: value for name, value in values.items() if name in fields(kind)})


def as_dict(values: Any) -> dict[str, Any]:
    """As JSON keeps it."""
    return dataclasses.asdict(values)


def unknown_name(name: str, known: Iterable[str], origin: str) -> UserError:
    """The error for a name that there is not, with the nearest that there is."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(known)}."
    return UserError(f"{origin}: there is no setting {name!r}.{hint}")


def _plain(kind: type, name: str, value: Any) -> Any:
    """Files and command lines know fewer types than we: YAML 1.1 reads 2e-4 as text, JSON has lists for tuples."""
    info = fields(kind).get(name)
    if info is None or value is None:
        return value
    wanted = str(info.annotation)
    if isinstance(value, list) and "tuple" in wanted:
        return tuple(value)
    if isinstance(value, int | str) and not isinstance(value, bool):
        if "float" in wanted and "str" not in wanted:
            try:
                return float(value)
            except ValueError:
                return value
        if isinstance(value, int) and "Literal" in wanted and "int" not in wanted:  # YAML says precision: 32
            return str(value)
    return value


def _words(error: ValidationError) -> str:
    """The first thing that is wrong, as a sentence."""
    first = error.errors(include_url=False)[0]
    place, kind, context = ".".join(str(one) for one in first["loc"][:1]), first["type"], first.get("ctx", {})
    if kind == "unexpected_keyword_argument":
        return f"there is no setting {place!r}."
    if kind == "missing":
        return f"{place} must be given."
    if kind == "value_error":
        return str(context["error"])
    limits = {
        "greater_than": "above {gt}",
        "greater_than_equal": "at least {ge}",
        "less_than": "below {lt}",
        "less_than_equal": "at most {le}",
        "literal_error": "one of {expected}",
        "finite_number": "a finite number",
    }
    words = limits.get(kind, "").format(**{name: _number(value) for name, value in context.items()})
    words = words or next((text for start, text in _KINDS.items() if kind.startswith(start)), str(first["msg"]).lower())
    return f"{place} must be {words}, not {first['input']!r}."


def _number(value: Any) -> Any:
    return f"{value:g}" if isinstance(value, float) else value
