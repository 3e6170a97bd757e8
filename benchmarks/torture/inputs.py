"""Mutated files before every reader of what a stranger may have written."""

import json
import random
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

from benchmarks.torture.rows import Row, Torture, learn, write_network
from semisight.errors import UserError


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Cut off, bytes changed, pieces doubled, left out or swapped, numbers made huge or negative, brackets piled up."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 20))):
        if not found:
            break
        at, kind = chance.randrange(len(found)), chance.randrange(8)
        piece = found[at : at + chance.randrange(1, 60)]
        if kind == 0:
            del found[at:]
        elif kind == 1:
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            del found[at : at + len(piece)]
        elif kind == 3:
            found[at:at] = piece * chance.randrange(1, 30)
        elif kind == 4:
            found[at : at + 1] = chance.randbytes(chance.randrange(1, 9))
        elif kind == 5:
            digits = [i for i, byte in enumerate(found) if 48 <= byte <= 57]
            if digits:
                i = chance.choice(digits)
                found[i : i + 1] = chance.choice((b"999999999999", b"-1", b"1e308", b"NaN", b"[]", b"null"))
        elif kind == 6:
            found[at:at] = chance.choice((b"[", b"{", b'{"a":', b"- ")) * chance.choice((3, 2000))
        else:
            found[at:at] = chance.choice((b"\x00", b"\xff\xfe", b"\x1b[2J", b"../", b"~/", b"=cmd()", b"\r\n", b'"'))
    return bytes(found)


def readers(torture: Torture) -> Iterator[tuple[str, bytes, Callable[[Path], object]]]:
    """Every reader of a file that a stranger may have written: a name, a good file, and the reader."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as parquet
    from PIL import Image
    from safetensors.numpy import save

    from semisight.data import load
    from semisight.data.caption_files import read_captions
    from semisight.data.features import read_features
    from semisight.data.label_csv import Entry
    from semisight.data.label_table import Table
    from semisight.data.tables import read_labels, read_tags
    from semisight.files import check_seal, seal
    from semisight.runs.settings import read_file
    from semisight.untrusted import read_json

    names = [f"{i}.png" for i in range(20)]
    table = "file,label,caption\n" + "".join(f"{name},{i % 3},a picture of {i}\n" for i, name in enumerate(names))
    sealed = seal(save({"model:a": np.ones(30)}, metadata={"semisight": json.dumps({"format": 1, "about": {}})}))
    run = torture.folder / "learned"
    learn(run)
    made = torture.folder / "made.csv"
    with Table(made) as journal:
        for i, name in enumerate(names):
            journal.put(name, label=f"{i % 3}", caption="a thing")
    lines = journal.journal.read_bytes()
    pictures = {kind: BytesIO() for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000")}
    for kind, stream in pictures.items():
        Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).save(stream, kind)
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for i in range(4):
            member = tarfile.TarInfo(f"{i}.png")
            member.size = len(pictures["PNG"].getvalue())
            tar.addfile(member, BytesIO(pictures["PNG"].getvalue()))
    arrays = BytesIO()
    np.savez(arrays, images=np.zeros((5, 8, 8), np.uint8), labels=np.arange(5))
    pairs = "file,label\n" + "".join(f"{name},{i % 3}\n{name},round\n" for i, name in enumerate(names))
    columns = "file,red,round\n" + "".join(f"{name},{i % 2},{'' if i % 3 else 1}\n" for i, name in enumerate(names))
    features, rows = BytesIO(), BytesIO()
    np.savez(features, features=np.ones((20, 6), np.float32), files=np.array(names))
    np.save(rows, np.ones((20, 6), np.float32))
    network, columned = write_network(torture.folder / "small.onnx"), BytesIO()
    parquet.write_table(pa.table({"file": names, "features": [[1.0] * 6] * 20}), columned)
    settings = {"epochs": 3, "batch_size": 16, "layers": [{"maps": 8, "kernel": 3, "pool": 2}]}

    def with_journal(path: Path) -> object:
        table = path.with_name("journalled.csv")
        table.write_text("file,label\na.png,cat\n")
        path.rename(table.with_name("journalled.csv.journal"))
        with Table(table) as found:
            return found.put("b.png", label="dog") == Entry()

    yield "labels.csv", table.encode(), lambda path: read_labels(path, names)
    yield "captions.csv", table.encode(), read_captions
    yield "tags.csv", pairs.encode(), lambda path: read_tags(path, names)
    yield "tag columns.csv", columns.encode(), lambda path: read_tags(path, names)
    yield "features.npz", features.getvalue(), read_features
    yield "features.npy", rows.getvalue(), read_features
    yield "features.parquet", columned.getvalue(), read_features
    yield "network.yaml", network.with_suffix(".yaml").read_bytes(), _beside(network)
    yield "table.csv", table.encode(), lambda path: Table(path).close()
    yield "journal", lines, with_journal
    yield "data.json", json.dumps({"settings": settings, "n": 5}).encode(), read_json
    yield "settings.json", json.dumps(settings).encode(), read_file
    yield "settings.yaml", b"epochs: 3\nbatch_size: 16\nlayers:\n- {maps: 8, kernel: 3, pool: 2}\n", read_file
    yield "sealed.safetensors", sealed, check_seal
    for file in sorted(file.relative_to(run).as_posix() for file in run.rglob("*.json")):
        yield f"run {Path(file).name}", (run / file).read_bytes(), _in_run(run, file, lambda content: content)
    newest = "checkpoints/newest.safetensors"
    yield "run newest.safetensors", (run / newest).read_bytes(), _in_run(run, newest, lambda content: content)
    header, with_header = _header_of((run / newest).read_bytes())
    yield "run a stranger's header", header, _in_run(run, newest, with_header)
    yield "images.tar", packed.getvalue(), lambda path: load(str(path), size=8)
    yield "images.npz", arrays.getvalue(), lambda path: load(str(path))
    for kind, stream in pictures.items():
        yield f"picture.{kind.lower()}", stream.getvalue(), lambda path: load(str(path), size=8)


def _beside(network: Path) -> Callable[[Path], object]:
    """A network with this preprocessing beside it."""
    from semisight.backbones import resolve

    def read(path: Path) -> object:
        shutil.copy(network, path.with_name("network.onnx"))
        return resolve(path.with_name("network.onnx")).feature_shape

    return read


def _in_run(run: Path, file: str, made: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Opens a run of which one file is another's."""
    from semisight.runs.run import load_run

    good = (run / file).read_bytes()

    def read(path: Path) -> object:
        try:
            (run / file).write_bytes(made(path.read_bytes()))
            loaded = load_run(run, "newest")
            return loaded.data(), loaded.unfinished, loaded.config, loaded.step
        finally:
            (run / file).write_bytes(good)

    return read


def _header_of(checkpoint: bytes) -> tuple[bytes, Callable[[bytes], bytes]]:
    """The JSON in a checkpoint's header, and what puts another one there with a checksum that is right."""
    from semisight.files import seal

    size = int.from_bytes(checkpoint[:8], "little")
    header = json.loads(checkpoint[8 : 8 + size])

    def with_header(text: bytes) -> bytes:
        about = {"semisight": text.decode("utf-8", "replace")}
        whole = json.dumps({**header, "__metadata__": about}).encode()
        return seal(len(whole).to_bytes(8, "little") + whole + checkpoint[8 + size :])

    return header["__metadata__"]["semisight"].encode(), with_header


def mutated_inputs(torture: Torture) -> list[Row]:
    """Read, or refused with a message: no traceback, no gigabytes, no minutes."""
    rows = []
    for name, good, read in readers(torture):
        row, chance = Row(f"mutated inputs: {name}", unit="s"), torture.chance(name)
        folder = torture.folder / f"of {name}"
        folder.mkdir()
        path = folder / name
        path.write_bytes(good)
        read(path)  # the good one is read
        for number in range(torture.times(500)):
            path.write_bytes(mutated(good, chance))
            started = time.perf_counter()
            try:
                read(path)
                row.count(True)
            except UserError as error:
                row.count(all(letter.isprintable() or letter in "\n\t" for letter in _shown(error)), "escape")
            except BaseException as error:  # whatever it is, it is what we look for
                row.count(False, f"{number}: {type(error).__name__}: {error}")
            row.worst = max(row.worst, round(time.perf_counter() - started, 3))
        rows.append(row)
    return rows


def _shown(error: UserError) -> str:
    from semisight.cli.console import _shown

    return _shown(str(error))
