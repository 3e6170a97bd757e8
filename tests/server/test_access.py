"""People with tokens of their own, which can be taken away, and sessions that end."""

import json
import os
import time
from pathlib import Path

import pytest

from semisight.errors import UserError
from semisight.server.access import COOKIE, EVERYBODY, HERE, Access, main, read_people
from semisight.server.running import access_for
from tests.server.conftest import client_of, wait_until_read

TOKEN = "correct-horse-battery"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def cookie(value: str) -> dict[str, str]:
    return {"cookie": f"{COOKIE}={value}"}


def test_who_is_who() -> None:
    assert Access().who({}) == HERE and Access().is_open
    one = Access(TOKEN)
    assert one.who(bearer(TOKEN)) == EVERYBODY and not one.is_open
    for wrong in ("", "x", TOKEN + "x", TOKEN.upper(), "\u00e4" * 100):
        assert one.who(bearer(wrong)) is None


def test_a_session_ends() -> None:
    access = Access(TOKEN, seconds=100)
    value = access.cookie_of(EVERYBODY, now=1000)
    assert access.who(cookie(value), now=1099) == EVERYBODY
    assert access.who(cookie(value), now=1101) is None
    name, end, signature = value.split(".")
    for forged in (f"{name}.{int(end) + 9}.{signature}", f"{name}.{'9' * 50}.{signature}", f"{name}..{signature}", "..",
                   f"{name}.{end}.{'0' * 64}", f"\u00b2.{end}.{signature}", f"{name}.\u00b2.{signature}"):  # fmt: skip
        assert access.who(cookie(forged), now=1050) is None
    assert Access(TOKEN).who(cookie(value), now=1050) == EVERYBODY, "with one token it survives a restart"
    assert Access("another-long-token").who(cookie(value), now=1050) is None


def test_cookies_are_read_in_no_time_and_those_of_other_servers_are_passed_over() -> None:
    access = Access(TOKEN)
    mine = f"{COOKIE}={access.cookie_of(EVERYBODY)}"
    assert access.who({"cookie": f"a=b; {COOKIE}=of.another.port; {mine}; c"}) == EVERYBODY
    assert access.who({"cookie": f"x{mine}"}) is None
    started = time.process_time()
    for hostile in (r"a\0" * 10_000, r"\"" * 16_000, "a=b;" * 8000, f"{COOKIE}=a.9999999999.b;" * 1300):
        assert access.who({"cookie": f'{COOKIE}="{hostile}"'}) is None
    assert time.process_time() - started < 0.3, "nobody has shown a token yet, and everybody waits"


def test_people_come_and_go(tmp_path: Path) -> None:
    file = tmp_path / "tokens.txt"
    ann, ben = main([str(file), "add", "ann"]), main([str(file), "add", "ben"])
    assert len(ann) >= 24 and ann not in file.read_text() and ben not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert main([str(file), "list"]) == "ann\nben"
    access = Access(file=file)
    assert (access.who(bearer(ann)), access.who(bearer(ben)), access.who({})) == ("ann", "ben", None)
    session = access.cookie_of("ann")
    assert access.who(cookie(session)) == "ann"
    assert access.who(cookie(session.replace(session.split(".")[0], "YmVu"))) is None, "ann's session is not ben's"
    assert main([str(file), "revoke", "ann"]) == "ann is out"
    os.utime(file, (time.time() + 5,) * 2)
    access.refresh()
    assert access.who(bearer(ann)) is None and access.who(cookie(session)) is None
    assert access.who(bearer(ben)) == "ben"
    again = main([str(file), "add", "ann"])
    access.refresh()
    assert access.who(bearer(again)) == "ann" and access.who(cookie(session)) is None, "old sessions stay out"
    file.unlink()
    access.refresh()
    assert access.who(bearer(ben)) is None, "without its file nobody is let in"


@pytest.mark.parametrize(
    "words", [["x", "add", "ann"], ["x", "add", "a b"], ["x", "add", "local"], ["x", "revoke", "zoe"], ["x"], []]
)
def test_what_makes_no_sense_is_refused(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "x"
    main([str(file), "add", "ann"])
    with pytest.raises(UserError):
        main([str(file) if word == "x" else word for word in words])
    assert list(read_people(file)) == ["ann"]


def test_a_file_that_others_can_write_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens.txt"
    main([str(file), "add", "ann"])
    good = file.read_text()
    for content in (good + good, "ann", "ann " + "0" * 63, "local " + "0" * 64, "\0"):
        file.write_text(content)
        with pytest.raises(UserError, match="line"):
            access_for("0.0.0.0", None, file)
    file.write_text(good)
    file.chmod(0o666)
    with pytest.raises(UserError, match="chmod 600"):
        access_for("0.0.0.0", None, file)
    with pytest.raises(UserError, match="Make it with"):
        access_for("0.0.0.0", None, tmp_path / "none")


def test_the_journal_says_who(digits_run: Path, tmp_path: Path) -> None:
    file, table = tmp_path / "tokens.txt", tmp_path / "labels.csv"
    tokens = {name: main([str(file), "add", name]) for name in ("ann", "ben")}
    with client_of(digits_run, Access(file=file), labels=table) as client:
        client.headers.update(bearer(tokens["ann"]))
        wait_until_read(client)
        name = client.get("/api/suggestions?n=1").json()["images"][0]["file"]
        assert client.post("/api/labels", json={"file": name, "label": "x"}).status_code == 200
        client.headers.pop("authorization")
        assert client.post("/api/session", json={"token": tokens["ben"]}).status_code == 200
        assert client.post("/api/labels", json={"file": name, "label": "y"}).status_code == 200
        assert client.post("/api/labels/undo", json={"file": name}).json()["label"] == "x"
    lines = [json.loads(line) for line in table.with_name("labels.csv.journal").read_text().splitlines()]
    changes = [(line["who"], line["from"][0], line["to"][0]) for line in lines if "file" in line]
    assert changes == [("ann", "", "x"), ("ben", "x", "y"), ("ben", "y", "x")]


def test_health_needs_no_token_and_figures_do(digits_run: Path, tmp_path: Path) -> None:
    with client_of(digits_run, Access(TOKEN), labels=tmp_path / "labels.csv") as client:
        assert client.get("/healthz").json()["ready"] and client.get("/readyz").status_code == 200
        assert client.get("/metrics").status_code == 401
        client.get("/nothing")
        figures = client.get("/metrics", headers=bearer(TOKEN)).text
        assert 'semisight_requests_total{method="GET",path="/healthz",status="200"} 1.0' in figures
        assert 'semisight_requests_total{method="GET",path="other",status="404"} 1.0' in figures
        assert "semisight_images_waiting 0.0" in figures
        client.app.state.service._closing.set()  # type: ignore[attr-defined]
        assert client.get("/readyz").status_code == 503
