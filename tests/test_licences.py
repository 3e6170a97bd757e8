"""Everything that semisight installs has a licence that we accept."""

import pytest

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
