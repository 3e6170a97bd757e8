"""Parameters of commands: settings become options from their declarations, so that one word means one thing everywhere.

A parameter of a command that has no typer annotation of its own is the setting of that name (runs/settings.py): type,
help and bounds come from its declaration. `**settings` stands for all settings that have a place in the help.

An option that was not given is None: the setting may still come from a file, or from the run that is resumed. Its
default, which is the library's, is said in the help.

Declarations are read, and parameters made, once a command is used: `semisight --help` must not wait for them.
"""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from semisight.cli.places import with_places

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

# ---- what commands that use a run share ----

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A folder that [bold]semisight train --out[/] made.", show_default=False)
]
ImagesArgument = Annotated[
    str, typer.Argument(metavar="IMAGES", help="Anything that train takes as DATA.", show_default=False)
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.", show_default=False)]
WhichCheckpoint = Annotated[
    Literal["auto", "best", "newest"],
    typer.Option("--checkpoint", help="auto: the best, or the newest if there is no best."),
]
TextFile = Annotated[Path | None, typer.Option("--out", help="A file to write to.", show_default="the screen")]
Format = Annotated[Literal["table", "csv", "json"], typer.Option(help="For people, or for programs.")]


class Command(TyperCommand):
    """A command whose parameters are made when it is asked for them; until then only its name and help are known."""

    def __init__(self, function: Callable[..., None], **about: Any) -> None:
        super().__init__(**about)
        self.function: Callable[..., None] | None = function

    def _make(self) -> None:
        if self.function is not None:
            app = typer.Typer(add_completion=False)
            app.command()(with_settings(self.function))
            made = typer.main.get_command(app)
            self.params, self.callback, self.function = made.params, made.callback, None

    def get_params(self, ctx: Any) -> list[Any]:
        self._make()
        return super().get_params(ctx)


def register(app: typer.Typer, function: Callable[..., None], panel: str) -> None:
    """Adds a command of the function's name."""

    @functools.wraps(function)
    def bare() -> None:
        """Stands in until the command is used."""

    bare.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
    kind: Any = functools.partial(Command, function)
    app.command(cls=kind, rich_help_panel=panel)(bare)


# ---- options from declarations ----


def with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """The function with typer's annotations at the parameters that are settings."""
    found: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            taken = {other.name for other in found}
            found += [_parameter(name, info, None) for name, info in _declared() if name not in taken]
        elif typing.get_origin(parameter.annotation) is Annotated:
            found.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        else:
            found.append(_parameter(parameter.name, dict(_declared())[parameter.name], parameter))

    made: Any = with_places(function)
    made.__name__, made.__doc__, made.__signature__ = function.__name__, function.__doc__, inspect.Signature(found)
    made.__annotations__ = {parameter.name: parameter.annotation for parameter in found}
    result: Callable[..., None] = made
    return result


def _declared() -> Iterator[tuple[str, "FieldInfo"]]:
    from semisight.runs.settings import options

    yield from options()


def _parameter(name: str, info: "FieldInfo", own: inspect.Parameter | None) -> inspect.Parameter:
    """The option of a setting; `own` is the parameter of a command that has a default for it, or checks it at once."""
    from semisight.setting import words_of

    words = words_of(info)
    default = None if own is None else own.default
    kind, flag = _type(info.annotation), words["flag"] or f"--{name.replace('_', '-')}"
    low = next((bound.ge for bound in info.metadata if hasattr(bound, "ge")), None)
    option = typer.Option(
        flag,
        help=info.description,
        rich_help_panel=words["panel"] if own is None else None,
        show_default=shown_default(info) or False if default is None else True,
        metavar=words["metavar"],
        callback=_inverted if words["inverse"] else None,
        min=low if own is not None and kind in (int, float) else None,
    )
    annotation: Any = Annotated[kind if default is not None else kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def shown_default(info: "FieldInfo") -> str:
    """The library's default, in words; "" for a switch that is off."""
    from semisight.setting import words_of

    words, default = words_of(info), info.default
    if words["shown"] is not None:
        return str(words["shown"])
    if words["flag"] and "/" in words["flag"]:
        on, off = words["flag"].split("/")
        return str(on if default else off).strip("-")
    return "" if default is None or isinstance(default, bool) else str(default)


def _type(annotation: Any) -> Any:
    """What typer makes a value of: a type without None; text where several are possible."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        return kinds[0] if len(kinds) == 1 else str
    return annotation


def _inverted(value: bool | None) -> bool | None:
    """A switch that stands for False."""
    return False if value else None
