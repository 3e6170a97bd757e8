"""Runs commands as the shell would, within this process."""

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

from semisight.cli import main as cli

# 40 digits in batches of 16, two steps an epoch: seconds, not minutes.
TINY = ("builtin:digits", "--no-labels", "--limit", "40", "--batch-size", "16", "--valid-fraction", "0.2")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def semisight(*arguments: str | Path) -> Result:
    out, err = io.StringIO(), io.StringIO()
    code: int | str | None = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
    assert isinstance(code, int)
    return Result(code, out.getvalue(), err.getvalue())


def ok(*arguments: str | Path) -> str:
    """What a command that must succeed says."""
    result = semisight(*arguments)
    assert result.code == 0, result.err
    return result.out


def refused(*arguments: str | Path) -> str:
    """What a command that must be refused as a user's mistake says."""
    result = semisight(*arguments)
    assert result.code == 2, (result.code, result.out, result.err)
    return result.err
