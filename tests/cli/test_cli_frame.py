"""The command line's frame: exit codes, and errors in red on stderr that say what the message says, whole."""

from pathlib import Path

import pytest
import typer

from semisight import __version__
from semisight.cli import main as cli
from semisight.errors import UserError
from tests.cli.commands import refused


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    printed = capsys.readouterr()
    return stop.value.code, printed.out, printed.err


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Puts in place of the application one whose command `fail` raises the error given."""

    def install(error: BaseException) -> None:
        app = typer.Typer(pretty_exceptions_enable=False)

        @app.callback()
        def root() -> None: ...

        @app.command()
        def fail() -> None:
            raise error

        monkeypatch.setattr(cli, "app", app)

    return install


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version", capsys=capsys) == (0, f"semisight {__version__}\n", "")


def test_unknown_command_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run("nonsense", capsys=capsys)
    assert code == 2
    assert "nonsense" in err


def test_a_users_mistake_is_printed_whole_and_exits_with_2(failing, capsys: pytest.CaptureFixture[str]) -> None:
    message = "no images in /a/folder[red]/" + "long/" * 60 + ": give [another] one"
    failing(UserError(message))
    code, out, err = run("fail", capsys=capsys)
    assert (code, out, err) == (2, "", f"error: {message}\n")


def test_a_users_mistake_is_red_on_a_terminal(failing, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    failing(UserError("wrong"))
    assert "\x1b[31mwrong" in run("fail", capsys=capsys)[2]


def test_ctrl_c_exits_with_130(failing, capsys: pytest.CaptureFixture[str]) -> None:
    failing(KeyboardInterrupt())
    assert run("fail", capsys=capsys)[0] == 130


def test_a_bug_is_not_hidden(failing) -> None:
    failing(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        cli.main(["fail"])


def test_names_of_files_do_not_command_the_terminal(tmp_path: Path) -> None:
    """A name may hold any bytes: those that clear a screen or change its title are shown, not obeyed."""
    said = refused("evaluate", tmp_path / "a\x1b]0;owned\x07\x1b[2J")
    assert "\x1b]" not in said and "\x07" not in said and r"\x1b]0;owned" in said
