"""Everything that semisight installs has a licence that we accept."""

import pytest

from semisight import licences
from semisight.licences import Package, main, packages


def test_all_that_the_extras_bring_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0, capsys.readouterr().err
    listed = capsys.readouterr().out
    for name in ("torch", "pydantic", "uvicorn", "onnxruntime", "starlette"):  # ours, and what ours bring
        assert f"\n{name} " in f"\n{listed}"


def test_an_extra_brings_more() -> None:
    core, serving = ({one.name for one in packages(extras)} for extras in ((), ("serve",)))
    assert core < serving and "uvicorn" not in core and "uvicorn" in serving
    assert main(["nonsense"]) == 2


@pytest.mark.parametrize(
    ("licence", "accepted"),
    [
        ("MIT", True), ("Apache-2.0 AND MIT", True), ("GPL-3.0-only", False), ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True), ("not said", False), ("", False), ("(MIT OR GPL-2.0-only)", True),
    ],
)  # fmt: skip
def test_what_is_accepted(licence: str, accepted: bool) -> None:
    assert Package("x", "1", licence).is_accepted is accepted


def test_what_is_not_accepted_is_named_and_exceptions_say_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        Package("good", "1", "MIT"),
        Package("pycocoevalcap", "2", "not said"),
        Package("bad", "3", "GPL-3.0-only"),
    ]
    monkeypatch.setattr(licences, "packages", lambda extras: found)
    assert main([]) == 1
    said = capsys.readouterr()
    assert "pycocoevalcap: of the extra `metrics` alone" in said.out and "1 accepted, 1 exceptions, 1 not" in said.out
    assert "not accepted: bad 3 (GPL-3.0-only)" in said.err and "EXCEPTIONS with a reason" in said.err
    monkeypatch.setattr(licences, "packages", lambda extras: found[:2])
    assert main([]) == 0 and not capsys.readouterr().err
