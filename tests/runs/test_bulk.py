"""Answers for piles of images: the same as `predict` gives, one row each, whatever engine, damage or interruption."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from semisight.data.shards import write_shards
from semisight.engines import run_parts
from semisight.errors import UserError
from semisight.runs.bulk import Answered, Asked, What, answer
from semisight.runs.run import load_run
from semisight.runs.run_images import load_for
from semisight.runs.settings import resolve
from semisight.runs.train import train_run
from tests.cli.commands import ok

pytest.importorskip("pyarrow", reason="answers in Parquet need pyarrow")
N = 30
pytestmark = pytest.mark.timeout(240)  # seconds where nothing else runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Labels, tags and captions of 40 scenes, two steps."""
    settings = {
        **{"source": "builtin:scenes?n=40&size=16", "tags": "builtin", "captions": "builtin", "max_steps": 2},
        **{"layers": [{"maps": 6, "kernel": 5, "pool": 4}, {"maps": 8, "kernel": 3}], "hidden_size": 16},
        **{"embedding_size": 16, "batch_size": 16, "progress": False, "tensorboard": False, "valid_fraction": 0.0},
    }
    out = tmp_path_factory.mktemp("bulk") / "run"
    train_run(resolve(settings), out, resume=False, overwrite=False, say=lambda line: None)
    return str(out)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    pixels = np.random.default_rng(0).integers(0, 256, (N, 20, 24, 3), dtype=np.uint8)
    for i in range(N):
        Image.fromarray(pixels[i]).save(folder / f"{i:02d}.png")
    return folder


@pytest.fixture
def damaged(photos: Path, tmp_path: Path) -> Path:
    """Shards of ten, in which one image is corrupt and the last shard ends too early."""
    (tmp_path / "files").mkdir()
    for file in photos.iterdir():
        (tmp_path / "files" / file.name).write_bytes(b"no picture" if file.name == "07.png" else file.read_bytes())
    write_shards(str(tmp_path / "files"), tmp_path / "shards", per_shard=10)
    last = tmp_path / "shards" / "images-000002.tar"
    last.write_bytes(last.read_bytes()[:9000])
    return tmp_path / "shards"


def rows(out: Path) -> list[dict[str, Any]]:
    import pyarrow.dataset

    found: list[dict[str, Any]] = pyarrow.dataset.dataset(out).to_table().to_pylist()
    return found


def ask(run: str, what: What, source: Path, out: Path, per_part: int = 8, **options: Any) -> Answered:
    return answer(Asked(what, run, str(source), str(out)), per_part=per_part, **{"workers": 0, **options})


def test_rows_say_what_the_run_says(run: str, photos: Path, tmp_path: Path) -> None:
    loaded = load_run(run)
    images = load_for(loaded, str(photos))
    assert ask(run, "predict", photos, tmp_path / "p", per_part=1000) == Answered(N, 0, 1, 0)
    found, said, tags = rows(tmp_path / "p"), loaded.predict(images), loaded.tag(images)
    assert [row["file"] for row in found] == list(images.names)
    np.testing.assert_allclose([row["probabilities"] for row in found], said.probabilities, atol=1e-6)
    np.testing.assert_allclose([row["tag_probabilities"] for row in found], tags.probabilities, atol=1e-6)
    assert [row["label"] for row in found] == [said.class_names[c] for c in said.label.tolist()]
    assert [row["spread"] for row in found] == pytest.approx(said.spread.tolist(), abs=1e-6)
    about = json.loads((tmp_path / "p" / "_job.json").read_text())
    assert about["classes"] == list(said.class_names) and about["tag_names"] == list(tags.names)

    ask(run, "embed", photos, tmp_path / "e", per_part=1000)
    np.testing.assert_allclose([row["code"] for row in rows(tmp_path / "e")], loaded.encode(images).mean, atol=1e-6)
    ask(run, "caption", photos, tmp_path / "c", per_part=1000)
    captions = loaded.caption(images)
    got = [row["captions"] for row in rows(tmp_path / "c")]
    assert [[one["caption"] for one in of] for of in got] == [[one.text for one in of] for of in captions]
    assert got[0][0]["log_probability"] == pytest.approx(captions[0][0].log_prob, abs=1e-4)


def test_two_processes_give_what_one_gives_and_damage_is_a_row(run: str, damaged: Path, tmp_path: Path) -> None:
    one = ask(run, "predict", damaged, tmp_path / "one")
    two = ask(run, "predict", damaged, tmp_path / "two", workers=2)
    found = rows(tmp_path / "one")
    assert one == two and found == rows(tmp_path / "two")
    errors = {row["file"]: row["error"] for row in found if row["error"]}
    assert set(errors) == {"images-000000.tar/000000007.png", "images-000002.tar"} and one.unreadable == 2
    assert errors["images-000000.tar/000000007.png"] == "not an image"
    assert errors["images-000002.tar"].startswith("truncated or corrupt")
    assert 20 < one.rows < N + 1 and max(Counter(row["file"] for row in found).values()) == 1


def test_what_is_done_is_not_done_again_and_other_shards_are_refused(
    run: str, photos: Path, damaged: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert ask(run, "predict", photos, out) == Answered(N, 0, 4, 0)
    whole, kept = rows(out), (out / "part-000000.parquet").stat().st_mtime_ns
    for lost in ("part-000001.parquet", "part-000003.parquet"):
        (out / lost).unlink()
    assert ask(run, "predict", photos, out) == Answered(14, 0, 4, 2)
    assert rows(out) == whole and (out / "part-000000.parquet").stat().st_mtime_ns == kept
    with pytest.raises(UserError, match=r"holds answers of other images or shards .*--overwrite"):
        ask(run, "predict", damaged, out)
    with pytest.raises(UserError, match="holds answers of another command"):
        ask(run, "embed", photos, out)
    assert rows(out) == whole  # nothing was lost
    ask(run, "embed", photos, out, overwrite=True)
    assert len(rows(out)) == N and "code" in rows(out)[0]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep me")
    with pytest.raises(UserError, match="is not empty"):
        ask(run, "embed", photos, tmp_path / "full")


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_job_killed_in_the_middle_ends_with_every_row_once(
    engine: str, run: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "ray":
        pytest.importorskip("ray.data", reason="--engine ray needs ray")
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    out = tmp_path / "out"
    program = (
        "import sys; from semisight.runs.bulk import Asked, answer; "
        f"answer(Asked('predict', *sys.argv[1:]), per_part=1, workers=1, engine='{engine}')"
    )
    process = subprocess.Popen([sys.executable, "-c", program, run, str(photos), str(out)], start_new_session=True)
    deadline = time.monotonic() + 200
    while len(list(out.glob("part-*.parquet"))) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = len(list(out.glob("part-*.parquet")))
    assert 3 <= done < N
    finished = ask(run, "predict", photos, out, per_part=1, engine=engine, workers=0 if engine == "local" else 1)
    assert finished.found >= done and finished.rows == N - finished.found
    assert sorted(row["file"] for row in rows(out)) == [f"{i:02d}.png" for i in range(N)]


class Deadly:
    """Dies at the first part that says so, unless someone has died of it before; then always, if it says twice."""

    def __init__(self, job: dict[str, str]) -> None:
        self.mark = Path(job["mark"])

    def __call__(self, part: str) -> dict[str, Any]:
        if part == "always" or (part == "once" and not self.mark.exists()):
            self.mark.touch()
            os._exit(7)
        if part == "mistake":
            raise UserError("this part cannot be done")
        return {"part": part}


def test_a_worker_that_dies_is_replaced_and_a_part_that_kills_is_named(tmp_path: Path) -> None:
    done: list[str] = []

    def run(*parts: str) -> None:
        done.clear()
        worker, job = f"{__name__}:Deadly", {"mark": str(tmp_path / "mark")}
        run_parts("local", worker, job, parts, lambda one: done.append(one["part"]), workers=2)

    run("a", "once", "b", "c")
    assert sorted(done) == ["a", "b", "c", "once"]
    with pytest.raises(UserError, match=r"2 worker processes ended \(the last with code 7\) at the same part, always"):
        run("a", "always")
    with pytest.raises(UserError, match="this part cannot be done"):
        run("mistake")


def test_the_command_writes_parquet_where_out_is_a_folder(run: str, photos: Path, tmp_path: Path) -> None:
    said = ok("predict", run, photos, "--out", tmp_path / "answers.parquet", "--workers", "0")
    assert f"{N} images in" in said and len(rows(tmp_path / "answers.parquet")) == N
    said = ok("caption", run, photos, "--engine", "local", "--workers", "0", "--out", tmp_path / "c", "--n-best", "2")
    assert {len(row["captions"]) for row in rows(tmp_path / "c")} == {2}
    ok("predict", run, photos, "--format", "csv", "--out", tmp_path / "labels.csv")  # as ever
    assert (tmp_path / "labels.csv").read_text().startswith("file,label,probability")


def test_memory_holds_a_batch_not_the_pile(run: str, tmp_path: Path) -> None:
    """Images of a part are dropped as soon as their rows are written."""
    from semisight.runs import bulk

    seen: list[int] = []
    worker = bulk.Answerer({**vars(Asked("embed", run, "", str(tmp_path)))})
    plain = worker._rows
    worker._rows = lambda samples, number: seen.append(len(samples)) or plain(samples, number)  # type: ignore[func-returns-value]
    held = io.BytesIO()
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(held, "PNG")
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(600):
        (folder / f"{i}.png").write_bytes(held.getvalue())
    from semisight.data.samples import parts_of

    [part] = parts_of(str(folder))
    assert worker(part.to_json()) == {"part": 0, "rows": 600, "unreadable": 0}
    assert seen == [250, 250, 100]


def test_ray_gives_what_processes_give(run: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray.data", reason="--engine ray needs ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ask(run, "predict", photos, tmp_path / "local")
    found = ask(run, "predict", photos, tmp_path / "ray", engine="ray", workers=1)
    assert found == Answered(N, 0, 4, 0) and rows(tmp_path / "ray") == rows(tmp_path / "local")


def test_mistakes_with_ray_are_told_at_once(
    run: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray.data", reason="--engine ray needs ray")
    with pytest.raises(UserError, match=r"no Ray cluster answers at 127.0.0.1:9 .*ray start --head"):
        ask(run, "predict", photos, tmp_path / "a", engine="ray", address="127.0.0.1:9")
    with pytest.raises(UserError, match="no Ray cluster answers at nonsense"):
        ask(run, "predict", photos, tmp_path / "a", engine="ray", address="nonsense")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"needs Ray: pip install 'semisight\[ray\]'"):
        ask(run, "predict", photos, tmp_path / "a", engine="ray")


def test_a_run_is_asked_what_it_has_learned(tmp_path: Path, photos: Path) -> None:
    out = tmp_path / "images-alone"
    settings = {"source": "builtin:digits", "use_labels": False, "limit": 40, "max_steps": 1, "progress": False}
    train_run(resolve(settings), out, resume=False, overwrite=False, say=lambda line: None)
    with pytest.raises(UserError, match="neither labels nor tags"):
        ask(str(out), "predict", photos, tmp_path / "p")
    with pytest.raises(UserError, match="caption"):
        ask(str(out), "caption", photos, tmp_path / "p")
    assert ask(str(out), "embed", photos, tmp_path / "e").rows == N  # colour photos, as a model of grey ones takes them
    assert torch.tensor([row["code"] for row in rows(tmp_path / "e")]).isfinite().all()
