"""`semisight backbones` and `semisight cache`, as the shell would run them."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from semisight.backbones import resolve
from semisight.backbones.efficientnet import Packaged
from semisight.cli.backbones import backbones
from semisight.cli.cache import cache
from semisight.data.feature_cache import cached_features
from semisight.errors import UserError
from tests.backbones.networks import CHANNELS, write_network
from tests.data.writers import random_image, write_image

app = typer.Typer()
app.command()(backbones)
app.command()(cache)


def ok(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "semisight"


def test_backbones_lists_licence_size_and_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(3_000_000))
    monkeypatch.setattr(Packaged, "weights", lambda self: tmp_path / "weights" if "lite0" in self.name else None)
    lines = ok("backbones").splitlines()
    assert lines[0].split()[:3] == ["name", "licence", "weights"]
    listed = {line.split()[0]: line for line in lines[1:]}
    assert listed["efficientnet-lite0"].split()[1:7] == ["Apache-2.0", "3", "MB", "224", "x", "224"]
    assert "missing" in listed["efficientnet-lite2"] and "260 x 260" in listed["efficientnet-lite2"]
    entries = {entry["name"]: entry for entry in json.loads(ok("backbones", "--format", "json"))}
    assert entries["efficientnet-lite0"]["n_bytes"] == 3_000_000 and entries["efficientnet-lite0"]["ms"] is None
    assert entries["efficientnet-lite2"]["install"] == "pip install 'semisight[photos]'"


def test_cache_shows_limits_and_clears(tmp_path: Path, own_cache: Path) -> None:
    for i in range(3):
        write_image(tmp_path / "photos" / f"{i}.png", random_image(i))
    backbone = resolve(write_network(tmp_path / "tiny.onnx"))
    cached_features(tmp_path / "photos", backbone, views=2)
    (own_cache / "backbones").mkdir()
    (own_cache / "backbones" / "net.onnx").write_bytes(bytes(2000))
    (own_cache / "photos-32.npy").write_bytes(bytes(4000))
    n_bytes = 3 * 2 * 2 * CHANNELS
    shown = ok("cache")
    assert str(own_cache) in shown and "at most 10 GB" in shown
    assert "tiny, 3 images, 2 views each, used today" in shown and "2 kB converted" in shown and "4 kB decoded" in shown
    found = json.loads(ok("cache", "show", "--format", "json"))
    assert (found["features"], found["networks"], found["images"], found["limit"]) == (n_bytes, 2000, 4000, 10**10)
    assert found["backbones"][0]["images"] == 3 and found["backbones"][0]["rows"] == 6
    assert "at most 1.5 GB" in ok("cache", "limit", "1.5GB")
    assert "0 bytes of at most 50 bytes" in ok("cache", "limit", "50")  # over it: gone
    ok("cache", "limit", "2 gb")
    cached_features(tmp_path / "photos", backbone)
    assert ok("cache", "clear") == "Cleared: 6.03 kB are free again.\n"
    found = json.loads(ok("cache", "--format", "json"))
    assert found["features"] == found["networks"] == found["images"] == 0 and found["limit"] == 2 * 10**9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("limit",), "semisight cache limit 20GB"),
        (("limit", "much"), "not a size"),
        (("limit", "0"), "above 0"),
        (("clear", "3"), "takes no size"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ok("cache", *arguments)
