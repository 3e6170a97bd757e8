"""Paths that are URLs, `s3://`, `gs://`, `hf://`, `file://`, ..., through fsspec: opened, listed, or copied here once.

Credentials are those that the libraries find by themselves: AWS_ACCESS_KEY_ID or ~/.aws for s3fs, GOOGLE_APPLICATION_
CREDENTIALS for gcsfs, HF_TOKEN for huggingface_hub. What goes wrong is a UserError of one sentence.

    CACHE/remote/HASH/NAME       the copy of a file or folder
    CACHE/remote/HASH.json       what each of its files was when it was copied: one that has changed is copied again
"""

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

from semisight.data.image_cache import default_cache
from semisight.errors import UserError
from semisight.files import locked, write_atomic
from semisight.untrusted import printable

_URL = re.compile(r"[a-z][a-z0-9+.-]*://")
_EXTRA = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub"}
# S3's own defaults keep a program that was given a wrong address busy for minutes.
_OPTIONS: Mapping[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 10, "retries": {"max_attempts": 2, "mode": "standard"}}}
}
_AT_ONCE = 64  # files that are copied at the same time


def is_url(text: str | Path) -> bool:
    """Whether it is a path of fsspec, not of this machine; `s3:/bucket` is what pathlib makes of one."""
    return bool(_URL.match(str(text)))


def as_written(path: str | Path) -> str:
    """The URL that someone gave where a path is expected: pathlib makes `s3:/bucket` of `s3://bucket`."""
    text = str(path)
    if found := re.match(r"([a-z][a-z0-9+.-]+):/+(?=[^/])", text):
        slashes = ":///" if found[1] == "file" else "://"
        return f"{found[1]}{slashes}{text[found.end() :]}"
    return text


def filesystem(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it."""
    protocol = url.split("://")[0]
    try:
        import fsspec

        return fsspec.core.url_to_fs(url, **_OPTIONS.get(protocol, {}))
    except ImportError as error:
        package = _EXTRA.get(protocol, "fsspec")
        raise UserError(
            f"{protocol}:// needs the package {package} ({error}): pip install 'semisight[remote]'."
        ) from error
    except ValueError as error:
        raise UserError(f"{url} cannot be read: {error}.") from error


@contextlib.contextmanager
def told(url: str) -> Iterator[None]:
    """Inside, what a remote file system complains of is one sentence for people."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise UserError(f"{url} {_reason(error)}.") from error


def _reason(error: BaseException) -> str:
    chain: BaseException | None = error
    names: list[str] = []
    words: list[str] = []
    while chain is not None and len(names) < 10:
        names.append(type(chain).__name__)
        words.append(str(chain))
        chain = chain.__cause__ or chain.__context__
    text = " ".join(words)
    if any("Credential" in name for name in names) or "credentials" in text.casefold():
        return "cannot be read without credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in"
    if isinstance(error, FileNotFoundError) or "NoSuchBucket" in text or "404" in text:
        return "does not exist: check the bucket and the path"
    if isinstance(error, PermissionError) or "403" in text or "AccessDenied" in text:
        return "may not be read with these credentials (access denied)"
    if any(word in name for name in names for word in ("Connect", "Timeout", "DNS", "gaierror")):
        return f"cannot be reached ({_line(text)}): check the address and the network"
    return f"cannot be used: {type(error).__name__}: {_line(text)}"


def _line(text: str) -> str:
    return printable(" ".join(text.split())[:200])


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """A file of this machine or of a URL, to read from its start to its end."""
    if not is_url(path):
        with open(path, "rb") as file:
            yield file
        return
    system, inside = filesystem(str(path))
    with told(str(path)):
        file = system.open(inside, "rb")
    with file:
        yield file


def listed(url: str) -> dict[str, Mapping[str, Any]]:
    """Every file below a URL, by its path below it; of a single file, that alone under its name."""
    system, root = filesystem(url)
    with told(url):
        found = {name: about for name, about in system.find(root, detail=True).items() if about["type"] == "file"}
    if not found:
        with told(url):
            system.info(root)  # says what is wrong, if it does not exist
        raise UserError(f"{url} is empty: there is no file below it.")
    root = root.rstrip("/")
    if list(found) == [root]:
        return {PurePosixPath(root).name: found[root]}
    below = {name.removeprefix(root).lstrip("/"): about for name, about in found.items()}
    strange = [name for name in below if ".." in PurePosixPath(name).parts]
    if strange:
        raise UserError(f"{url} holds {printable(strange[0])}, which would lie outside of it.")
    return dict(sorted(below.items()))


def join(url: str, name: str) -> str:
    """The URL of a file that `listed` named."""
    single = url.rstrip("/").endswith("/" + name)
    return url if single else f"{url.rstrip('/')}/{name}"


def local_copy(url: str) -> Path:
    """The file or folder on this machine: itself for file://, else a copy that is kept in the user's cache."""
    if url.startswith("file://"):
        return Path(filesystem(url)[1])
    place, key = default_cache() / "remote", _key(url)
    files = listed(url)
    single = list(files) == [PurePosixPath(url).name]
    folder, index = place / key / PurePosixPath(url).name, place / f"{key}.json"
    with locked(place, "copying", wait=600.0, name=f"{key}.lock"):
        known = _known(index)
        now = {name: _version(about) for name, about in files.items()}
        target = {name: folder if single else folder / name for name in files}
        wanted = [name for name in files if known.get(name) != now[name] or not target[name].is_file()]
        _refuse_full_disk(url, place, sum(int(files[name].get("size") or 0) for name in wanted))
        system, _ = filesystem(url)
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            for name in part:
                target[name].parent.mkdir(parents=True, exist_ok=True)
                target[name].unlink(missing_ok=True)
            with told(url):
                system.get([files[name]["name"] for name in part], [str(target[name]) for name in part])
            known |= {name: now[name] for name in part}
            write_atomic(index, json.dumps(known))
        if not single:  # what is no longer there is not here either
            for file in folder.rglob("*"):
                if file.is_file() and file.relative_to(folder).as_posix() not in files:
                    file.unlink()
    return folder


def recorded_url(url: str, run: str | Path, *, what: str, option: str) -> str:
    """A URL that stands in a run, if it may be asked: a stranger's run decides neither which host hears of this machine
    nor what is sent there with its credentials. One that was copied here before, its user has named; `file://` is a
    path of this machine, unless fsspec would take it for a chain of several.
    """
    is_path = url.startswith("file://") and "::" not in url
    if is_path or (default_cache() / "remote" / f"{_key(url)}.json").is_file():
        return url
    raise UserError(
        f"{run} names {printable(url)[:200]!r} as {what}, which nobody has named on this machine, so it is not asked: "
        f"if you trust it, give {option}."
    )


def _key(url: str) -> str:
    return hashlib.sha256(url.rstrip("/").encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _known(index: Path) -> dict[str, Any]:
    try:
        found = json.loads(index.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def _version(about: Mapping[str, Any]) -> str:
    """Size, and what else the file system says changes with the content."""
    when = next(
        (about[key] for key in ("ETag", "etag", "md5Hash", "blob_id", "mtime", "LastModified") if about.get(key)), ""
    )
    return f"{about.get('size')} {when}"


def _refuse_full_disk(url: str, place: Path, n_bytes: int) -> None:
    place.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(place).free
    if n_bytes > free:
        raise UserError(
            f"the copy of {url} takes {n_bytes:,} bytes, and the disk of {place} has {free:,}: set XDG_CACHE_HOME to a "
            "folder with more room, or predict from shards or Parquet, which are read as they come."
        )
