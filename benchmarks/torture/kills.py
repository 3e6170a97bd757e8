"""SIGKILL at a random moment: the old files are there, or the new ones, and what was confirmed."""

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.torture.rows import Row, Torture, learn, write_network, write_pictures
from semisight.errors import UserError


def _dies(work: Callable[[], object], after: float) -> int:
    """Runs `work` in a process that is killed after so many seconds; how it ended."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(after)
    if child.is_alive():
        os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    return child.exitcode or 0


def kills_of_overwriting(torture: Torture) -> Row:
    """A bundle of files that is replaced over and over: all of one version, always."""
    from semisight.files import bundle, finish_bundle, locked

    row, chance = Row("kills while a folder of files is overwritten"), torture.chance("overwrite")
    folder = torture.folder / "bundle"

    def write(version: int) -> None:
        with bundle(folder, remove=["*.bin", "sub/*"]) as new:
            (new / "sub").mkdir()
            for name in ("a.bin", "b.bin", f"sub/{version}"):
                (new / name).write_bytes(f"{version}".encode() * 50_000)

    def overwrite() -> None:
        with locked(folder, "torture", wait=5):
            for version in range(1000):
                write(version)

    write(0)
    for _ in range(torture.times(200)):
        _dies(overwrite, chance.uniform(0.0, 0.08))
        finish_bundle(folder)
        with locked(folder, "torture"):
            pass
        files = [file for file in folder.rglob("*") if file.is_file() and file.name != ".lock"]
        contents = {file.read_bytes() for file in files}
        row.count(len(files) == 3 and len(contents) == 1, f"{[file.name for file in files]}")
    return row


def kills_of_training(torture: Torture) -> Row:
    """Trainings over each other, of two sets in turn: after a kill there is one whole run, with its own data record."""
    from semisight.runs.run import load_run

    row, chance = Row("kills while a run is trained over another"), torture.chance("train")
    run = torture.folder / "trained"
    learn(run, limit=100)
    for number in range(torture.times(60)):
        _dies(lambda limit=100 + 50 * (number % 2): learn(run, limit=limit), chance.uniform(0.1, 1.5))  # type: ignore[misc]
        try:
            loaded = load_run(run)
            fits = loaded.meta["data"]["train"]["number"] == loaded.data().n_train
            row.count(fits, f"{loaded.meta['data']} with {loaded.data().n_train}")
        except UserError as error:
            row.count(False, str(error))
    left = [file.name for file in run.rglob("*.tmp")]
    learn(run, limit=100)
    cleaned = not list(run.rglob("*.tmp"))
    row.count(cleaned, f"left: {left}")
    return row


def kills_of_labels(torture: Torture) -> Row:
    """Labels that were confirmed before a kill are there after it; and another program saves the table meanwhile."""
    from semisight.data.label_csv import Entry
    from semisight.data.label_table import Table

    row, chance = Row("labels confirmed before a kill"), torture.chance("labels")
    path, told = torture.folder / "labels.csv", torture.folder / "confirmed.txt"

    def label(turn: int) -> None:
        table = Table(path)
        with told.open("a") as confirmed:
            for i in range(100_000):
                table.put(f"{turn}/{i}.png", label=f"{i % 7}")
                confirmed.write(f"{turn}/{i}.png,{i % 7}\n")
                confirmed.flush()
                if i % 20 == 19:
                    table.merge(quiet=0.0)

    for turn in range(torture.times(200)):
        told.write_text("")
        _dies(lambda turn=turn: label(turn), chance.uniform(0.0, 0.15))  # type: ignore[misc]
        with Table(path) as table:
            found = table.entries()
            for line in told.read_text().splitlines():
                name, _, value = line.partition(",")
                row.count(found.get(name) == Entry(value), f"{name} in turn {turn}")
            if turn % 10 == 9:
                table.merge(quiet=0.0)
    return row


def kills_of_caches(torture: Torture) -> Row:
    """Images read into a cache by a process that is killed: the next one reads the same."""
    from semisight.data.image_cache import cached_folder

    row, chance = Row("kills while images are read into a cache"), torture.chance("cache")
    pictures, cache = torture.folder / "pictures", torture.folder / "cache"
    pictures.mkdir()
    write_pictures(pictures, 200)

    def read(place: Path = cache) -> Any:
        return cached_folder(pictures, size=16, channels=1, cache=place, workers=0).images

    started = time.monotonic()
    wanted = read(torture.folder / "whole").clone()
    seconds = time.monotonic() - started
    for number in range(torture.times(40)):
        shutil.rmtree(cache, ignore_errors=True)  # else it would be found made, and there were nothing to write
        _dies(read, chance.uniform(0.0, 1.2 * seconds))
        row.count(bool((read() == wanted).all()) and not list(cache.rglob("*.tmp")), f"kill {number}")
    return row


def kills_of_features(torture: Torture) -> Row:
    """Features worked out into the cache by a process that is killed: the next one finds or makes the same."""
    from semisight.backbones import resolve
    from semisight.data.feature_cache import cached_features

    row, chance = Row("kills while features are worked out into a cache"), torture.chance("features")
    pictures, cache = torture.folder / "pictures", torture.folder / "cache"
    pictures.mkdir()
    write_pictures(pictures, 60)
    backbone = resolve(write_network(torture.folder / "network.onnx"))
    wanted = cached_features(pictures, backbone, views=2, cache=torture.folder / "whole", workers=0).values(None, 1)

    def work_out() -> None:
        cached_features(pictures, backbone, views=2, cache=cache, workers=0)

    for number in range(torture.times(40)):
        if number % 5 == 0:
            shutil.rmtree(cache, ignore_errors=True)
        _dies(work_out, chance.uniform(0.0, 0.1))
        found = cached_features(pictures, backbone, views=2, cache=cache, workers=0).values(None, 1)
        row.count(bool((found == wanted).all()), f"kill {number}")
    return row


def kills_of_exports(torture: Torture) -> Row:
    """A model repository that is written over and over, and the whole export now and then: one version, and whole."""
    import onnx

    from semisight.files import clean_leftovers, finish_bundle
    from semisight.inference.export import Exported, export_onnx
    from semisight.inference.triton import FILES, write_repository
    from semisight.runs.run import load_run

    row, chance = Row("kills while a model is exported"), torture.chance("export")
    run, repository, file = torture.folder / "run", torture.folder / "models" / "run", torture.folder / "model.onnx"
    learn(run, limit=100)
    loaded = load_run(run)

    def export(to: Path) -> Exported:
        return export_onnx(loaded.model, list(loaded.readers.values()), to)

    started = time.monotonic()
    write_repository(repository, 1, export)
    seconds = time.monotonic() - started
    content = (repository / "1" / "model.onnx").read_bytes()

    def copy(to: Path) -> Any:
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(content)

    def over_and_over() -> None:
        for version in range(1, 1000):
            write_repository(repository, version, copy)

    for number in range(torture.times(60)):
        if number % 6 < 5:
            _dies(over_and_over, chance.uniform(0.0, 0.3))
            finish_bundle(repository)
            left = {name.relative_to(repository).as_posix() for name in repository.rglob("*") if name.is_file()}
            left = {name for name in left if ".tmp/" not in name and not name.endswith(".tmp")}
            whole = (repository / "1" / "model.onnx").read_bytes() == content
            row.count(whole and left == set(FILES), f"{number}: {left}")
        else:
            file.write_bytes(content)
            _dies(lambda: export(file), chance.uniform(0.0, 1.1 * seconds))
            onnx.checker.check_model(onnx.load(str(file)))
            clean_leftovers(file.parent)
            row.count(not list(file.parent.glob("*.tmp")), f"{number}: a leftover")
    return row


def kills_of_reports(torture: Torture) -> Row:
    """The page of a run is the old one or a whole new one, and the run is as it was."""
    from semisight.report.build import write_report
    from semisight.runs.run import load_run
    from semisight.runs.run_images import reload_sets

    row, chance = Row("kills while a report is written"), torture.chance("report")
    run = torture.folder / "run"
    learn(run, limit=100)
    loaded, page = load_run(run), run / "report.html"
    sets = reload_sets(loaded)
    started = time.monotonic()
    write_report(loaded, sets, page)
    seconds = time.monotonic() - started
    for number in range(torture.times(40)):
        page.write_text(f"<html>{number}</html>")
        # half of the kills around the end, where the page is written
        after = chance.uniform(0.0, 1.0) if number % 2 else chance.uniform(0.9, 1.1)
        _dies(lambda: write_report(loaded, sets, page), after * seconds)
        text = page.read_text()
        old, new = text == f"<html>{number}</html>", len(text) > 1000 and text.rstrip().endswith("</html>")
        row.count((old or new) and load_run(run).step == loaded.step, f"{number}: {len(text)} letters")
    return row
