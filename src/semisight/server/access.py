"""Who somebody is: one token for all, or one for each person in a file, and sessions made from them, which end.

    --token TOKEN      everybody who knows it; named "token" in the journal of labels
    --tokens FILE      a line for each person: NAME SHA256-OF-THEIR-TOKEN

    python -m semisight.server.access tokens.txt add ann       prints ann's token, once
    python -m semisight.server.access tokens.txt revoke ann
    python -m semisight.server.access tokens.txt list

The file holds no token, only what each is checked against. A running server sees changes within seconds: whoever is
revoked is out, with their sessions.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from semisight.errors import UserError
from semisight.files import write_atomic
from semisight.untrusted import read_text

COOKIE = "semisight"
SESSION_SECONDS = 12 * 3600.0
EVERYBODY = "token"  # the name of whoever knows the one token
HERE = "local"  # and of whoever asks a server that needs none
_MOST = 1_000_000  # bytes of a file of tokens
_MOST_COOKIES = 8  # of ours in a request
_LINE = re.compile(r"(?P<name>[\w.@-]{1,64})\s+(?P<digest>[0-9a-f]{64})", re.ASCII)


class Access:
    """Without a token and a file it is for a server that only this machine can reach: everybody is let in."""

    def __init__(self, token: str | None = None, file: Path | None = None, seconds: float = SESSION_SECONDS) -> None:
        self.token, self.file, self.seconds = token, file, seconds
        # With one token sessions survive a restart; nobody who sees a cookie learns the token from it.
        self._secret = secrets.token_bytes(32) if token is None else _digest(f"semisight session {token}")
        self._one = {} if token is None else {EVERYBODY: _digest(token)}
        self._stamp: tuple[int, ...] = ()
        self._people: dict[str, bytes] = dict(self._one)
        self.refresh()

    @property
    def is_open(self) -> bool:
        return self.token is None and self.file is None

    def refresh(self) -> None:
        """Reads the file again if it has changed. A file that is gone or damaged lets nobody in."""
        if self.file is None:
            return
        try:
            found = os.stat(self.file)
            stamp: tuple[int, ...] = (found.st_ino, found.st_size, found.st_mtime_ns)
            if stamp == self._stamp:
                return
            people = read_people(self.file)
        except (OSError, UserError):
            stamp, people = (), {}
        self._people, self._stamp = {**people, **self._one}, stamp

    def person_with(self, token: str) -> str | None:
        """Every name is compared, so that the time tells nothing."""
        given, found = _digest(token), None
        for name, digest in self._people.items():
            if hmac.compare_digest(given, digest):
                found = name
        return found

    def cookie_of(self, name: str, now: float | None = None) -> str:
        """A session of a person: their name, its end, and a signature that nobody else can make."""
        end = int((time.time() if now is None else now) + self.seconds)
        head = f"{base64.urlsafe_b64encode(name.encode()).decode().rstrip('=')}.{end}"
        return f"{head}.{self._signature(name, head)}"

    def _signature(self, name: str, head: str) -> str:
        key = hmac.new(self._secret, self._people.get(name, b""), hashlib.sha256).digest()
        return hmac.new(key, head.encode(), hashlib.sha256).hexdigest()

    def who(self, headers: Mapping[str, str], now: float | None = None) -> str | None:
        """The name of whoever sends these headers; None if they are nobody we know."""
        if self.is_open:
            return HERE
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and (name := self.person_with(given.strip())) is not None:
            return name
        for value in _sessions_in(headers.get("cookie", "")):
            if (name := self._of_session(value, time.time() if now is None else now)) is not None:
                return name
        return None

    def _of_session(self, value: str, now: float) -> str | None:
        head, _, signature = value.rpartition(".")
        packed, _, end = head.partition(".")
        try:
            name = base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)).decode()
        except (binascii.Error, ValueError):
            return None
        if name not in self._people or not end.isascii() or not end.isdecimal() or len(end) > 12 or int(end) < now:
            return None
        right = self._signature(name, head)
        return name if hmac.compare_digest(right.encode(), signature.encode("utf-8", "replace")) else None


def _sessions_in(header: str) -> list[str]:
    """The values of our cookie: servers on other ports of this machine may have set it too.

    Not by http.cookies: its time grows with the square of a value full of backslashes, before a token is shown.
    """
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return [value for name, _, value in pairs if name == COOKIE][:_MOST_COOKIES]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def read_people(file: Path) -> dict[str, bytes]:
    """The people of a file and what their tokens are checked against."""
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o022:
        raise UserError(f"{file} can be written by others (mode {mode:o}): chmod 600 {file}.")
    people: dict[str, bytes] = {}
    for number, line in enumerate(read_text(file, _MOST).splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            found = _LINE.fullmatch(line.strip())
            if found is None or found["name"] in people or found["name"] in (EVERYBODY, HERE):
                raise UserError(f"{file}, line {number}: not a name and what its token is checked against.")
            people[found["name"]] = bytes.fromhex(found["digest"])
    return people


def write_people(file: Path, people: Mapping[str, bytes]) -> None:
    if not file.exists():
        file.touch(0o600)
    write_atomic(file, "".join(f"{name} {digest.hex()}\n" for name, digest in people.items()))


def main(words: list[str]) -> str:
    """What to print."""
    match words:
        case [file, "add", name]:
            path = Path(file)
            people = read_people(path) if path.exists() else {}
            token = secrets.token_urlsafe(24)
            line = f"{name} {_digest(token).hex()}"
            if _LINE.fullmatch(line) is None or name in people or name in (EVERYBODY, HERE):
                raise UserError(f"{name!r} is no name that is free: letters, digits, . @ - and _, at most 64.")
            write_people(path, {**people, name: _digest(token)})
            return token
        case [file, "revoke", name]:
            people = read_people(Path(file))
            if people.pop(name, None) is None:
                raise UserError(f"{file} has nobody called {name!r}.")
            write_people(Path(file), people)
            return f"{name} is out"
        case [file, "list"]:
            return "\n".join(read_people(Path(file)))
    raise UserError("usage: python -m semisight.server.access FILE add NAME | revoke NAME | list")


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except (UserError, OSError) as error:
        sys.exit(f"error: {error}")
