"""Search by words over the API, and a run on features behind the server."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semisight.runs.run import load_run
from semisight.server.retraining import train_command
from tests.backbones.networks import write_network
from tests.cli.photos import write_photos
from tests.server.conftest import client_of, learn, wait_until_read


def test_images_are_found_by_words(scenes_run: Path) -> None:
    with client_of(scenes_run) as client:
        wait_until_read(client)
        found = client.get("/api/search", params={"words": "a red circle", "n": 5}).json()
        assert len(found["images"]) == 5 and found["unknown"] == []
        values = [one["log_prob"] for one in found["images"]]
        assert values == sorted(values, reverse=True)
        assert client.get("/api/images", params={"file": found["images"][0]["file"]}).status_code == 200
        assert client.get("/api/search", params={"words": "a purple zebra"}).json()["unknown"] == ["zebra"]
        nothing = client.get("/api/search", params={"words": "zebra"})
        assert nothing.status_code == 404 and "none of the words" in nothing.json()["detail"]


def test_a_run_without_captions_says_so(digits_run: Path) -> None:
    with client_of(digits_run) as client:
        refused = client.get("/api/search", params={"words": "seven"})
        assert refused.status_code == 404 and "learned no captions" in refused.json()["detail"]


@pytest.fixture(scope="module")
def features_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    write_photos(folder / "photos", 24)
    rows = [
        f"{'holiday' if i % 2 else 'home'}/{i:04d}.jpg,{('a ball', 'stripes', 'a corner')[i % 3]}" for i in range(24)
    ]
    (folder / "captions.csv").write_text("\n".join(["file,caption", *rows]) + "\n")
    learn(folder / "run", source=str(folder / "photos"), captions=str(folder / "captions.csv"), steps=4, hidden_size=8,
          backbone=str(write_network(folder / "tiny.onnx")), batch_size=8)  # fmt: skip
    return folder / "run"


def test_it_is_trained_again_on_features(features_run: Path) -> None:
    run = load_run(features_run)
    words = train_command(run, "photos", None, Path("captions.csv"), Path("out"), 1.0)
    assert words[words.index("--backbone") + 1] == run.backbone and not {"--size", "--channels", "--grid"} & set(words)


def test_a_run_on_features_answers_for_pictures(features_run: Path) -> None:
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(stream, "PNG")
    with client_of(features_run) as client:
        wait_until_read(client)
        answer = client.post("/api/predict?captions=2", content=stream.getvalue(),
                             headers={"content-type": "application/octet-stream"})  # fmt: skip
        assert answer.status_code == 200, answer.text
        (said,) = answer.json()["images"]
        assert (
            said["captions"]
            and said["reconstruction"].startswith("data:image/png")
            and said["seen"].startswith("data:image/png")
        )
        assert len(said["nearest"]) == 5
        found = client.get("/api/search", params={"words": "stripes", "n": 3}).json()["images"]
        shown = client.get("/api/images", params={"file": found[0]["file"]})
        assert shown.status_code == 200 and shown.content.startswith(b"\xff\xd8")
