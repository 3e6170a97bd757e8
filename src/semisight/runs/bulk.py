"""Answers for piles of images: `embed`, `predict` and `caption` of a run, a part of the source at a time, to Parquet.

    OUT/_job.json               what was asked, of which run, about which images
    OUT/part-000012.parquet     a row for each image of part 12 of the source: what is said of it, or `error`

A part's file is written whole, by whichever worker has the part; what is not there yet is to be done. So a job that was
interrupted goes on, and whatever becomes of workers and machines, every image has one row in the end. What the rows of
a part say depends on the run and the part alone, not on engine or number of workers. Memory holds a batch of images.

Columns: file, error; embed: code, code_spread; predict: label, probability, spread, probabilities (in the order of
`classes` in _job.json), tags, tag_probabilities (in the order of `tag_names`); caption: captions of {caption,
log_probability}, the best first.
"""

import io
import itertools
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from semisight.data import remote
from semisight.data.formats.pictures import Unreadable, read_pixels, read_upright
from semisight.data.image_set import ImageSet
from semisight.data.samples import FILES_OF_PART, Part, Sample, fingerprint, parts_of, pyarrow_parquet, read_part
from semisight.engines import Engine, run_parts
from semisight.errors import UserError
from semisight.files import atomic_path, write_atomic
from semisight.inference.captions import Search
from semisight.inference.encode import BATCH, Codes, check_answer, encode_set
from semisight.runs.run import Run, Which, load_run
from semisight.runs.run_images import network_of
from semisight.untrusted import parse_json, printable

What = Literal["embed", "predict", "caption"]
JOB, FORMAT = "_job.json", 1
Told = Callable[[int, int], None]  # images done, and parts left to do


@dataclass(frozen=True)
class Asked:
    """A job: what to say of which images by which run."""

    what: What
    run: str
    source: str
    out: str
    checkpoint: Which = "auto"
    device: str = "cpu"
    search: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Answered:
    """How a job ended: rows of this call, how many of them say why an image could not be read; parts found done."""

    rows: int
    unreadable: int
    parts: int
    found: int


def answer(
    asked: Asked,
    *,
    engine: Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    overwrite: bool = False,
    per_part: int = FILES_OF_PART,
    progress: Told | None = None,
) -> Answered:
    """Does the job, or what is left of it."""
    pyarrow_parquet()
    run = load_run(asked.run, asked.checkpoint)
    _check(asked.what, run)
    parts = parts_of(asked.source, per_part)
    out = _Out(asked.out)
    there = out.begin(_record(asked, run, parts), overwrite)
    todo = [part for part in parts if part.number not in there]
    rows = unreadable = finished = 0

    def done(one: Mapping[str, Any]) -> None:
        nonlocal rows, unreadable, finished
        rows, unreadable, finished = rows + int(one["rows"]), unreadable + int(one["unreadable"]), finished + 1
        if progress is not None:
            progress(finished, len(todo))

    worker = f"{__name__}:Answerer"
    run_parts(engine, worker, asdict(asked), [part.to_json() for part in todo], done, workers=workers, address=address)
    return Answered(rows, unreadable, len(parts), len(there))


def _check(what: What, run: Run) -> None:
    network_of(run)  # one that may not be used is refused here and now, not by every worker
    if what == "caption":
        run.reader("captions")
    elif what == "predict" and not (run.has("labels") or run.has("tags")):
        raise UserError(f"{run.folder.path} has learned neither labels nor tags: semisight embed gives its codes.")


def _record(asked: Asked, run: Run, parts: Sequence[Part]) -> dict[str, Any]:
    record: dict[str, Any] = {"format": FORMAT, "what": asked.what, "search": asked.search, "source": asked.source}
    record |= {"images": fingerprint(parts), "parts": len(parts), "run": str(run.folder.path.absolute())}
    record |= {"checkpoint": run.checkpoint.name, "step": run.step, "model": _fingerprint(run)}
    if asked.what == "predict" and run.has("labels"):
        record["classes"] = list(run.labels.class_names)
    if asked.what == "predict" and run.has("tags"):
        record["tag_names"] = list(run.tags.names)
    return record


def _fingerprint(run: Run) -> str:
    import hashlib

    digest = hashlib.sha256()
    for module in (run.model, *(reader.head for reader in run.readers.values())):
        for name, value in sorted(module.state_dict().items()):
            digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


# ---- where the answers go ----


class _Out:
    """A Parquet data set in a folder of this machine or at a URL."""

    def __init__(self, place: str) -> None:
        self.place, self.remote = place, remote.is_url(place) and not place.startswith("file://")
        self.path = Path(remote.filesystem(place)[1] if place.startswith("file://") else place).expanduser()

    def begin(self, record: Mapping[str, Any], overwrite: bool) -> set[int]:
        """The numbers of the parts that are there already; refuses what belongs to another job."""
        names = self._names()
        if JOB in names and not overwrite:
            former = parse_json(self._read(JOB), f"{self.place}/{JOB}")
            self._same(former, record)
            return {int(name[5:-8]) for name in names if name.startswith("part-") and name.endswith(".parquet")}
        if names and not overwrite:
            raise UserError(f"{self.place} is not empty: give another --out, or --overwrite to replace what is there.")
        for name in names:
            if name == JOB or name.startswith("part-"):
                self._remove(name)
        self._write(JOB, json.dumps(record, indent=1).encode())
        return set()

    def _same(self, former: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        words = {
            "what": "another command",
            "search": "other options of the search",
            "images": "other images or shards",
            "parts": "other images or shards",
            "model": "another run or checkpoint",
        }
        for name, what in words.items():
            if former.get(name) != record[name]:
                raise UserError(
                    f"{self.place} holds answers of {what} (its {name} is {str(former.get(name))[:60]}, now "
                    f"{str(record[name])[:60]}): give another --out, or --overwrite to replace them."
                )

    def save(self, number: int, write: Callable[[Path], None]) -> None:
        """The file of a part, whole or not at all."""
        name = f"part-{number:06d}.parquet"
        if not self.remote:
            with atomic_path(self.path / name) as temporary:
                write(temporary)
            return
        with tempfile.TemporaryDirectory(prefix="semisight-") as folder:
            write(Path(folder) / name)
            system, inside = remote.filesystem(self.place)
            with remote.told(self.place):
                system.put_file(str(Path(folder) / name), f"{inside.rstrip('/')}/{name}")

    def _names(self) -> list[str]:
        if not self.remote:
            if self.path.exists() and not self.path.is_dir():
                raise UserError(f"{self.place} is a file: answers in Parquet need a folder.")
            return sorted(file.name for file in self.path.iterdir()) if self.path.exists() else []
        system, inside = remote.filesystem(self.place)
        with remote.told(self.place):
            system.invalidate_cache()
            return (
                sorted(name.rsplit("/", 1)[-1] for name in system.ls(inside, detail=False))
                if system.exists(inside)
                else []
            )

    def _read(self, name: str) -> str:
        with remote.opened(f"{self.place.rstrip('/')}/{name}" if self.remote else self.path / name) as file:
            return file.read().decode("utf-8", "replace")

    def _write(self, name: str, content: bytes) -> None:
        if not self.remote:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path / name, content)
            return
        system, inside = remote.filesystem(self.place)
        with remote.told(self.place):
            system.pipe_file(f"{inside.rstrip('/')}/{name}", content)

    def _remove(self, name: str) -> None:
        if not self.remote:
            (self.path / name).unlink(missing_ok=True)
            return
        system, inside = remote.filesystem(self.place)
        with remote.told(self.place):
            system.rm_file(f"{inside.rstrip('/')}/{name}")


# ---- a worker ----


class Answerer:
    """Loads the run once; a part in, the file of its rows out."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.asked = Asked(**job)
        torch.set_num_threads(1)
        self.run = load_run(self.asked.run, self.asked.checkpoint, self.asked.device)
        self.out = _Out(self.asked.out)
        self.read = _of_backbone(self.run) if self.run.backbone is not None else _of_pixels(self.run)
        self.schema = schema_of(self.asked.what, self.run)

    def __call__(self, part: str) -> Mapping[str, Any]:
        what, counts = Part.from_json(part), {"rows": 0, "unreadable": 0}
        self.out.save(what.number, lambda path: self._write(path, what, counts))
        return {"part": what.number, **counts}

    def _write(self, path: Path, part: Part, counts: dict[str, int]) -> None:
        parquet = pyarrow_parquet()
        import pyarrow as pa

        counts.update(rows=0, unreadable=0)
        samples, first = read_part(part), part.number * (FILES_OF_PART // BATCH)
        with warnings.catch_warnings(), parquet.ParquetWriter(path, self.schema) as writer:
            warnings.simplefilter("ignore")  # of large images, thousands of times; our own limit decides
            for number in itertools.count(first):
                held = list(itertools.islice(samples, BATCH))
                if not held:
                    return
                rows = self._rows(held, number)
                counts["rows"] += len(rows)
                counts["unreadable"] += sum(row["error"] is not None for row in rows)
                writer.write_table(pa.Table.from_pylist(rows, schema=self.schema))

    def _rows(self, samples: Sequence[Sample], number: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [{"file": sample.name, "error": sample.reason or None} for sample in samples]
        good: list[int] = []
        held: list[Any] = []
        for place, sample in enumerate(samples):
            if sample.image is None:
                rows[place]["error"] = sample.reason or "no image"
                continue
            try:
                held.append(self.read.decode(sample.image))
                good.append(place)
            except Unreadable as error:
                rows[place]["error"] = printable(str(error))
        if good:
            images = self.read.images(held, [samples[place].name for place in good])
            search = Search(**self.asked.search) if self.asked.search else Search()
            draws: dict[str, Any] = {}
            if self.asked.what == "caption":
                draws = {"n_draws": search.n_codes, "seed": search.seed}
            for _, codes, generator in encode_set(self.run.model, images, batch_size=BATCH, first=number, **draws):
                for place, said in zip(good, self._said(codes.cpu(), generator, search), strict=True):
                    rows[place] |= said
        return rows

    def _said(self, codes: Codes, generator: torch.Generator, search: Search) -> Iterator[dict[str, Any]]:
        if self.asked.what == "embed":
            check_answer(codes.mean, codes.spread)
            for mean, spread in zip(codes.mean.tolist(), codes.spread.tolist(), strict=True):
                yield {"code": mean, "code_spread": spread}
            return
        if self.asked.what == "caption":
            for of in self.run.captions(codes, generator, search):
                yield {"captions": [{"caption": one.text, "log_probability": one.log_prob} for one in of]}
            return
        said: list[dict[str, Any]] = [{} for _ in range(len(codes))]
        for name in self.run.readers:
            if name == "labels":
                of_labels = self.run.labels(codes, generator)
                values = (of_labels.label, of_labels.probability, of_labels.spread, of_labels.probabilities)
                for row, label, p, spread, every in zip(said, *(value.tolist() for value in values), strict=True):
                    row |= {"label": of_labels.class_names[label], "probability": p, "spread": spread}
                    row["probabilities"] = every
            elif name == "tags":
                of_tags = self.run.tags(codes, generator)
                for i, (row, every) in enumerate(zip(said, of_tags.probabilities.tolist(), strict=True)):
                    row |= {"tags": [tag for tag, _ in of_tags.tags(i)], "tag_probabilities": every}
        yield from said


def schema_of(what: What, run: Run) -> Any:
    """The columns of the answers."""
    import pyarrow as pa

    numbers = pa.list_(pa.float32())
    columns: list[tuple[str, Any]] = [("file", pa.string())]
    if what == "embed":
        columns += [("code", numbers), ("code_spread", numbers)]
    elif what == "caption":
        columns += [("captions", pa.list_(pa.struct([("caption", pa.string()), ("log_probability", pa.float64())])))]
    else:
        if run.has("labels"):
            columns += [("label", pa.string()), ("probability", pa.float32()), ("spread", pa.float32())]
            columns += [("probabilities", numbers)]
        if run.has("tags"):
            columns += [("tags", pa.list_(pa.string())), ("tag_probabilities", numbers)]
    return pa.schema([*columns, ("error", pa.string())])


@dataclass(frozen=True)
class _Reading:
    """How a model takes images: `decode` the bytes of one (or Unreadable), `images` a set of those."""

    decode: Callable[[bytes], Any]
    images: Callable[[list[Any], list[str]], ImageSet]


def _of_pixels(run: Run) -> _Reading:
    channels, height, width = run.architecture.image_shape

    def images(held: list[Any], names: list[str]) -> ImageSet:
        return ImageSet(torch.from_numpy(np.stack(held)), tuple(names))

    return _Reading(lambda content: read_pixels(io.BytesIO(content), height, width, channels), images)


def _of_backbone(run: Run) -> _Reading:
    """The features of the network that the run learned from, rounded as its cache of features keeps them."""
    import hashlib

    network, views = network_of(run), int(run.about["model"]["features"]["views"])
    assert network is not None
    how = network.preprocessing

    def decode(content: bytes) -> Any:
        image = read_upright(io.BytesIO(content), 2 * how.size)
        seed = hashlib.blake2b(content, digest_size=16).hexdigest()
        return [how.picture(image, view, seed) for view in range(views)]

    def images(held: list[Any], names: list[str]) -> ImageSet:
        batch = max(1, (1 << 16) // how.size**2)
        every = []
        for view in range(views):
            stacked = np.stack([pictures[view] for pictures in held])
            parts = [network.features(stacked[i : i + batch]) for i in range(0, len(stacked), batch)]
            every.append(torch.from_numpy(np.concatenate(parts).astype(np.float16).astype(np.float32)))
        return ImageSet(every[0], tuple(names), views=tuple(every[1:]))

    return _Reading(decode, images)
