"""`semisight cache`: what is kept in the user's folder for caches, and how much may be."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from semisight.cli.console import say

if TYPE_CHECKING:
    from pathlib import Path


def cache(
    action: Annotated[
        Literal["show", "clear", "limit"],
        typer.Argument(help="show it, clear it, or limit the size of the features in it.", show_default=True),
    ] = "show",
    size: Annotated[
        str | None, typer.Argument(metavar="[SIZE]", help="Of limit: for instance 20GB.", show_default=False)
    ] = None,
    format: Annotated[Literal["table", "json"], typer.Option(help="For people, or for programs.")] = "table",
) -> None:
    """Show or clear the features of images, the converted networks and the decoded images that are kept on disk.

    All of it can be made again. Above the limit the features that were not used for the longest time go first.

    Examples:

        semisight cache

        semisight cache limit 20GB
    """
    from semisight.data import feature_cache
    from semisight.errors import UserError

    if action != "limit" and size is not None:
        raise UserError(f"`semisight cache {action}` takes no size; `semisight cache limit {size}` sets the limit")
    if action == "limit":
        if size is None:
            raise UserError("say how much the features may take, for instance: semisight cache limit 20GB")
        feature_cache.set_limit(_bytes(size))
    if action == "clear":
        freed = feature_cache.clear() + sum(_remove(kind) for kind in _FILES)
        say(f"Cleared: {_readable(freed)} are free again.")
        return
    _show(format)


_FILES = {"networks": ("backbones", "*.onnx", "*.json"), "images": ("", "*.npy", "*.json", "*.lock")}


def _show(format: str) -> None:
    import dataclasses
    import json
    import time

    from semisight.data.feature_cache import cache_report

    report = cache_report()
    others = {kind: sum(file.stat().st_size for file in _files(kind)) for kind in _FILES}
    if format == "json":
        entries = [dataclasses.asdict(entry) for entry in report.backbones]
        values = {"folder": str(report.folder.parent), "limit": report.limit, "features": report.n_bytes, **others}
        say(json.dumps({**values, "backbones": entries}, indent=2))
        return
    say(f"{report.folder.parent}")
    say(f"  features   {_readable(report.n_bytes):>9} of at most {_readable(report.limit)}")
    for entry in report.backbones:
        days = (time.time() - entry.used) / 86400
        used = "today" if days < 1 else f"{days:.0f} days ago"
        views = f", {entry.rows / max(1, entry.images):.3g} views each" if entry.rows > entry.images else ""
        say(f"             {_readable(entry.n_bytes):>9} {entry.name}, {entry.images:,} images{views}, used {used}")
    say(f"  networks   {_readable(others['networks']):>9} converted to ONNX")
    say(f"  images     {_readable(others['images']):>9} decoded")


def _files(kind: str) -> "list[Path]":
    from semisight.data.image_cache import default_cache

    below, *patterns = _FILES[kind]
    return [file for pattern in patterns for file in (default_cache() / below).glob(pattern) if file.is_file()]


def _remove(kind: str) -> int:
    freed = 0
    for file in _files(kind):
        freed += file.stat().st_size
        file.unlink(missing_ok=True)
    return freed


def _readable(n_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} GB"


def _bytes(text: str) -> int:
    import re

    from semisight.errors import UserError

    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", text.lower())
    if found is None:
        raise UserError(f"{text!r} is not a size: write for instance 500MB or 20GB")
    return int(float(found[1]) * 1000 ** " kmgt".index(found[2] or " "))
