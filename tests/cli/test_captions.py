"""`train` with captions, `caption` and `evaluate`: from a folder with a caption file to captions of new images."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from semisight.data.batches import batches_for
from semisight.data.builtin.scenes import read_scenes
from semisight.data.columns import CaptionColumn
from semisight.data.vocabulary import Vocabulary
from semisight.errors import UserError
from semisight.inference.captions import hashes
from semisight.objectives.captions import EncodedCaptions
from semisight.runs.evaluate import Grade, evaluate_captions, grade
from semisight.runs.images import sets_of
from semisight.runs.run import DataRecord, load_run
from semisight.runs.run_images import captioned_images, reload_sets
from semisight.runs.settings import DataSettings
from semisight.training.checkpoint import read_checkpoint
from semisight.training.folder import RunFolder
from semisight.training.logs import read_log
from tests.cli.commands import ok, refused, semisight, settled

N, SIZE = 30, 12
QUICK = ("--size", str(SIZE), "--batch-size", "16", "--hidden-size", "8", "--threads", "1", "--no-report")
SCENES = read_scenes(N, SIZE, seed=5, n_captions=2)
assert SCENES.captions is not None
TEXTS = {f"part/{i:02d}.png": SCENES.captions[i] for i in range(N)}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes as pictures, and one file that is none."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "part").mkdir()
    for name, pixels in zip(TEXTS, SCENES.images, strict=True):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / name)
    (folder / "part" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing more")
    return folder


def table(names: list[str], rows: str = "") -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "caption"])
    writer.writerows([(name, caption) for name in names for caption in TEXTS[name]])
    return text.getvalue() + rows


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captions of 20 of the 30 pictures."""
    folder = tmp_path_factory.mktemp("captions")
    (folder / "captions.csv").write_text(table(list(TEXTS)[:20], "nowhere.png,a lost caption\npart/00.png,\n"))
    ok("train", photos, "--captions", folder / "captions.csv", "--out", folder / "run", "--epochs", "3", *QUICK)
    return folder / "run"


# --- which captions


def written_as(kind: str) -> str:
    """The same captions in each of the formats."""
    if kind == "csv":
        return table(list(TEXTS))
    if kind == "tokens":
        return "".join(f"{name}#{k}\t{text}\n" for name, texts in TEXTS.items() for k, text in enumerate(texts))
    if kind == "lines":
        return "".join(json.dumps({"file": name, "caption": texts}) + "\n" for name, texts in TEXTS.items())
    if kind == "coco":
        images = [{"id": i, "file_name": name} for i, name in enumerate(TEXTS)]
        notes = [{"image_id": i, "caption": text} for i, texts in enumerate(TEXTS.values()) for text in texts]
        return json.dumps({"images": images, "annotations": notes})
    splits = ("train", "train", "val", "test", "restval")
    entries = [
        {"filename": name, "split": splits[i % 5], "sentences": [{"raw": text} for text in texts]}
        for i, (name, texts) in enumerate(TEXTS.items())
    ]
    return json.dumps({"images": entries})


@pytest.mark.parametrize("kind", ["csv", "tokens", "lines", "coco", "karpathy"])
def test_every_format_gives_the_same_captions(photos: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "captions").write_text(written_as(kind))
    data = DataSettings(str(photos), size=SIZE, captions=str(tmp_path / "captions"), split=None, valid_fraction=0.0)
    sets = sets_of(data, seed=0)
    kept = [i % 5 not in (2, 3) if kind == "karpathy" else True for i in range(N)]
    wanted = {name: texts for (name, texts), keep in zip(TEXTS.items(), kept, strict=True) if keep}
    assert sets.train.captions is not None
    assert dict(zip(sets.train.names, sets.train.captions, strict=True)) == wanted
    assert [entry.name for entry in sets.train.skipped] == ["part/broken.png"]
    number = {name: i for i, name in enumerate(TEXTS)}
    for i, name in enumerate(sets.train.names):
        assert torch.equal(sets.train.images[i], SCENES.images[number[name]])
    if kind == "karpathy":
        assert any("images of other splits" in note and "6 val, 6 test" in note for note in sets.train.notes)
        chosen = sets_of(DataSettings(str(photos), size=SIZE, captions=data.captions, split="val"), 0)
        assert chosen.n_present("captions") == 6
        with pytest.raises(UserError, match=r"no such split.*restval, test, train, val"):
            sets_of(DataSettings(str(photos), captions=data.captions, split="dev"), 0)


def test_images_stream_from_the_cache(photos: Path, tmp_path: Path) -> None:
    """Both parts are mapped from one file: nothing of the pixels is copied."""
    (tmp_path / "captions.csv").write_text(table(list(TEXTS)[:9]))
    sets = sets_of(DataSettings(str(photos), size=SIZE, captions=str(tmp_path / "captions.csv")), 0)
    assert sets.valid is not None and sets.valid.captions is not None
    assert (sets.n_present("captions"), len(sets.valid)) == (9, 2)
    assert sets.n_held_out("captions") == 0  # too few to hold out
    assert sets.train.images.untyped_storage().data_ptr() == sets.valid.images.untyped_storage().data_ptr()
    assert set(sets.train.names).isdisjoint(sets.valid.names)


def test_hidden_captions_are_never_learned_and_measured_on() -> None:
    data = DataSettings("builtin:scenes?n=300&size=8", captions="builtin", use_labels=False, captioned_images=120)
    sets = sets_of(data, seed=0)
    measured = sets.measured("captions")
    assert sets.valid is not None and measured is not None
    assert (sets.n_present("captions"), sets.n_held_out("captions")) == (108, 12)
    assert len(measured) == len(sets.valid) - 12 == 18
    assert all(measured.captions or ())
    every = dict(zip(read_scenes(300, 8, 0).names, read_scenes(300, 8, 0).captions or (), strict=True))
    for images, whole in zip((sets.train, sets.valid), sets.truth["captions"], strict=True):
        assert isinstance(whole, CaptionColumn)
        assert [every[name] for name in images.names] == list(whole.texts)
        assert all(shown in ((), every[name]) for name, shown in zip(images.names, images.captions or (), strict=True))
    alone = sets_of(DataSettings(data.source, captions="builtin", captioned_images=120, only_captioned=True), 0)
    assert len(alone.train) == alone.n_present("captions") == 108
    assert alone.train.labels is not None
    assert load_nothing().train.captions is None


def load_nothing():  # type: ignore[no-untyped-def]
    """Captions that nobody asked for are not learned."""
    return sets_of(DataSettings("builtin:scenes?n=20&size=8"), 0)


def test_few_labels_of_a_class_stay_with_the_images_to_learn_from() -> None:
    data = DataSettings("builtin:scenes?n=200&size=8", captions="builtin", labels_per_class=3, valid_fraction=0.3)
    sets = sets_of(data, seed=0)
    assert (sets.n_present("labels"), sets.n_held_out("labels"), sets.n_held_out("captions")) == (15, 0, 60)
    measured = sets.measured("labels")
    assert measured is not None and len(measured) == 60


def test_defaults_suit_the_number_of_captions() -> None:
    few = settled(100, 900, captions=1)
    assert (few.captions.min_count, few.captions.hidden_size, few.train.batch_size) == (1, 256, 64)
    assert few.model.nonlinearity == "norm-relu" and few.train.schedule == "cosine"
    assert few.consistency.consistency and few.captions.start == "wide" and few.captions.caption_xi == "10x"
    paper = settled(100, 900, captions=1, paper=True)
    assert (
        not paper.consistency.consistency and paper.captions.start == "paper" and paper.captions.caption_xi == "paper"
    )
    second = settled(100, 900, captions=1, images_from="run")
    assert second.captions.caption_xi == "paper" and second.captions.start == "wide"
    many = settled(6000, 0, captions=5, min_count=3)
    assert (many.captions.min_count, many.captions.hidden_size) == (3, 512)
    assert many.train.max_epochs is not None and many.train.max_epochs * (6000 // 64) >= 4000
    assert many.train.patience == 10 * many.train.validate_every == 10
    # an epoch as the plan counts it
    plan = batches_for(torch.arange(1000) < 100, few.train.batch_size, few.consistency.labelled_per_batch)
    assert few.train.validate_every == round(100 / plan.steps_per_epoch)


# --- train


def test_a_run_keeps_its_words(run: Path) -> None:
    vocabulary = Vocabulary.load(run / "vocabulary.json")
    about = json.loads((run / "config.json").read_text())["about"]["targets"]["captions"]
    assert about["vocab_size"] == len(vocabulary)
    assert (about["captions"], about["n_learned"], about["held_out"]) == (40, 20, 0)
    captioner = load_run(run).captions
    assert captioner.vocabulary == vocabulary
    learned = [caption.split() for caption in next(iter(TEXTS.values()))]
    assert captioner.share_seen([*learned, ["a", "new", "caption"]]) == pytest.approx(2 / 3)
    assert DataRecord.read(RunFolder(run)).settings.captions == str(run.parent / "captions.csv")
    assert hashes([["a", "b"], ["ab"], ["a", "b"]])[[0, 2]].unique().numel() == 1
    assert load_run(run).checkpoint.name == "newest.safetensors"  # no caption was held out


def test_it_says_which_captions_it_uses(photos: Path, tmp_path: Path) -> None:
    long = " ".join(["word"] * 10_000)
    odd = [
        "nowhere.png,lost",
        "part/01.png,",
        'part/02.png,"a 🐕 runs 🌈!"',
        f"part/03.png,{long}",
        "part/04.png,собака бежит 犬が走る",
    ]
    (tmp_path / "captions.csv").write_text(table(list(TEXTS)[:20], "\n".join(odd)), encoding="utf-8")
    out = ok("train", photos, "--captions", tmp_path / "captions.csv", "--out", tmp_path / "run", "--epochs", "1",
             *QUICK)  # fmt: skip
    assert "captions: 43 of 20 images to learn from" in out
    assert "none are held out: the last weights are used" in out
    assert "9 images that carry nothing contribute by consistency" in out
    assert "1 caption of 1 image missing from the images of" in out and "'nowhere.png'" in out
    assert "1 caption empty or without a word: left out" in out
    assert "1 caption longer than 100 words (the longest 10000)" in out
    assert "1 file skipped" in out
    assert f"Next: semisight caption {tmp_path / 'run'} IMAGES" in out
    words = Vocabulary.load(tmp_path / "run" / "vocabulary.json").words
    assert {"собака", "犬が走る", "runs"} <= set(words)
    table_of_them = ok("caption", tmp_path / "run", photos, "--limit", "2")
    assert "part/" in table_of_them


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (b"file,caption\nx.png,a dog\n", "none of the 1 images named in"),
        (b"file,caption\npart/00.png,\n", "there is no caption in"),
        (b"file,label\npart/00.png,dog\n", "is no caption file"),
        (b"", "is empty"),
        (b'{"images": [', "Is it cut off?"),
        (b'{"annotations": []}', "not a caption file"),
        (b"\xff\xfe\x00\x01\x80", "is not text in UTF-8"),
    ],
)
def test_files_that_cannot_be_used(photos: Path, tmp_path: Path, content: bytes, fragment: str) -> None:
    (tmp_path / "captions").write_bytes(content)
    message = refused("train", photos, "--captions", tmp_path / "captions", "--out", tmp_path / "run", *QUICK)
    assert fragment in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--captions", "none.csv"], "none.csv"),
        (["--captions", "builtin"], "carries no captions"),
        (["--captioned-images", "3"], "--captioned-images is about captions"),
        (["--two-step", "x"], "there is no run at x"),
        (["--split", "val"], "--split is about captions"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(
    photos: Path, tmp_path: Path, arguments: list[str], fragment: str
) -> None:
    assert fragment in refused("train", photos, "--out", tmp_path / "run", *arguments)
    assert not (tmp_path / "run").exists()


def test_words_that_are_all_rare_are_told(photos: Path, run: Path, tmp_path: Path) -> None:
    more = ("--captions", run.parent / "captions.csv", "--out", tmp_path / "run")
    assert "choose a minimum count" in refused("train", photos, *more, "--min-count", "500", *QUICK)
    assert "only 20 images have a caption" in refused("train", photos, *more, "--captioned-images", "21", *QUICK)
    assert not (tmp_path / "run").exists()


def test_resumed_it_equals_an_uninterrupted_run(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text(table(list(TEXTS)[:20]))
    # with a rate that falls, how long a run lasts is a part of what it is
    first = [photos, "--captions", tmp_path / "captions.csv", "--schedule", "constant", *QUICK]
    ok("train", *first, "--out", tmp_path / "twice", "--epochs", "1")
    ok("train", "--out", tmp_path / "twice", "--resume", "--epochs", "2", "--no-report")
    ok("train", *first, "--out", tmp_path / "once", "--epochs", "2")
    once, twice = (read_checkpoint(RunFolder(tmp_path / name).newest) for name in ("once", "twice"))
    for part in ("model", "head.captions", "training"):
        assert once.part(part) and once.part(part).keys() == twice.part(part).keys()
        assert all(torch.equal(once.part(part)[name], twice.part(part)[name]) for name in once.part(part))
    (tmp_path / "captions.csv").write_text(table(list(TEXTS)[:19], "part/19.png,another one\n"))
    assert "about.targets.captions.hash" in refused("train", "--out", tmp_path / "twice", "--resume", "--epochs", "3")


def test_labels_and_captions_on_one_code(tmp_path: Path) -> None:
    ok("train", "builtin:scenes?n=260&size=12", "--captions", "builtin", "--labels-per-class", "12", "--epochs", "1",
       "--captioned-images", "200", "--out", tmp_path / "both", *QUICK)  # fmt: skip
    both = load_run(tmp_path / "both")
    assert both.captions.n_learned == 180 and both.captions.n_held_out == 20
    assert both.labels.n_learned == 60 and both.about["settings"]["consistency"]
    assert both.checkpoint.name == "best.safetensors"
    rows = [row for row in read_log(tmp_path / "both" / "log.csv") if row["split"] == "valid"]
    assert {"perplexity", "bound"} <= rows[-1].keys()
    assert "circle" in ok("predict", tmp_path / "both", "builtin:scenes?n=3&size=12&seed=9", "--top", "5")
    assert "log p" in ok("caption", tmp_path / "both", "builtin:scenes?n=3&size=12&seed=9")
    labels = json.loads(ok("evaluate", tmp_path / "both", "--format", "json"))
    assert "error" in labels
    source = "builtin:scenes?n=5&size=12&seed=9"
    text = ok("evaluate", tmp_path / "both", source, "--captions", "builtin", "--no-meteor", "--format", "json")
    captions = json.loads(text)
    assert captions["n"] == 5 and "BLEU-4" in captions


def test_two_steps_leave_the_image_model_as_it_is(tmp_path: Path) -> None:
    source = "builtin:scenes?n=40&size=12"
    ok("train", source, "--no-labels", "--out", tmp_path / "images", "--epochs", "1", "--threads", "1", "--no-report")
    more = ("--batch-size", "16", "--hidden-size", "8", "--threads", "1", "--no-report", "--schedule", "constant")
    ok("train", source, "--captions", "builtin", "--no-labels", "--two-step", tmp_path / "images", "--out",
       tmp_path / "captions", "--epochs", "1", *more)  # fmt: skip
    images = load_run(tmp_path / "images").model.state_dict()
    shutil.rmtree(tmp_path / "images" / "checkpoints")  # resuming does not need it any more
    ok("train", "--out", tmp_path / "captions", "--resume", "--epochs", "2", "--no-report")
    after = read_checkpoint(RunFolder(tmp_path / "captions").newest)
    assert load_run(tmp_path / "captions").about["frozen"]
    assert all(torch.equal(images[name], after.part("model")[name]) for name in images)
    assert after.meta["counters"]["step"] == 4


# --- caption


def test_captions_as_table_csv_and_json(run: Path, photos: Path, tmp_path: Path) -> None:
    arguments = ("caption", run, photos, "--limit", "4", "--n-best", "3", "--codes", "4")
    result = semisight(*arguments, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.out)))
    assert [row["rank"] for row in rows] == ["1", "2", "3"] * (len(rows) // 3)
    log_probs = [float(row["log_probability"]) for row in rows]
    assert all(log_probs[i] >= log_probs[i + 1] for i in range(len(rows) - 1) if (i + 1) % 3)
    assert max(log_probs) < 0
    found = json.loads(ok(*arguments, "--format", "json"))
    assert (found["codes"], found["beam"], found["max_words"]) == (4, 5, 30)
    flat = [(image["file"], one["caption"]) for image in found["images"] for one in image["captions"]]
    assert flat == [(row["file"], row["caption"]) for row in rows]
    ok(*arguments, "--out", tmp_path / "captions.txt")
    assert "already exists" in refused(*arguments, "--out", tmp_path / "captions.txt")
    short = json.loads(ok(*arguments, "--max-words", "1", "--format", "json"))
    assert all(len(one["caption"].split()) <= 1 for image in short["images"] for one in image["captions"])


def test_one_corrupt_image_does_not_end_it(run: Path, photos: Path) -> None:
    result = semisight("caption", run, photos, "--codes", "2", "--beam", "1")
    assert result.code == 0
    assert "part/29.png" in result.out
    assert "1 file skipped" in result.err and "broken.png" in result.err


def test_a_run_without_captions_says_how_to_get_them(shared_run: Path, run: Path) -> None:
    assert "learned no captions" in refused("caption", shared_run, "builtin:digits")
    assert "neither labels nor tags: semisight caption" in refused("predict", run, "builtin:scenes?n=2")


def test_another_vocabulary_is_refused(run: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(run, tmp_path / "own"))
    Vocabulary.from_captions(["a dog"], 1).save(own / "vocabulary.json")
    assert "is not the vocabulary that this model learned with" in refused("caption", own, "builtin:scenes?n=2")
    (own / "vocabulary.json").unlink()
    assert "could not read the vocabulary" in refused("caption", own, "builtin:scenes?n=2")
    shutil.copy(run / "vocabulary.json", own)
    (own / "captions.safetensors").write_bytes(b"nothing")
    assert "captions.safetensors is damaged" in refused("caption", own, "builtin:scenes?n=2")
    (own / "captions.safetensors").unlink()
    assert load_run(own).captions.share_seen([["a"]]) is None


# --- evaluate


def test_evaluate_with_a_caption_file(run: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "captions.json").write_text(written_as("karpathy"))
    arguments = ("evaluate", run, photos, "--captions", tmp_path / "captions.json", "--no-meteor")
    result = semisight(*arguments, "--format", "json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert "measured on the split test" in result.err
    assert found["n"] == 6
    metrics = ("BLEU-1", "BLEU-4", "ROUGE-L", "CIDEr", "perplexity", "distinct", "seen in training")
    assert all(name in found for name in metrics)
    assert found["perplexity"] > 1 and 0 < found["distinct"] <= 1
    for image in found["images"]:
        assert tuple(image["own"]) == TEXTS[image["file"]]
    text = ok(*arguments, "--split", "val")
    assert "BLEU-4" in text and "on 6 images" in text
    rows = list(csv.DictReader(io.StringIO(ok(*arguments, "--split", "all", "--limit", "3", "--format", "csv"))))
    assert rows[0] == {"metric": "n", "value": "3"}
    assert "is about labels" in refused(*arguments, "--top", "2")


def test_without_data_it_is_measured_on_what_was_not_learned(tmp_path: Path) -> None:
    ok("train", "builtin:scenes?n=130&size=12", "--captions", "builtin", "--no-labels", "--epochs", "1", "--out",
       tmp_path / "run", *QUICK)  # fmt: skip
    result = semisight("evaluate", tmp_path / "run", "--format", "json", "--no-meteor")
    assert result.code == 0, result.err
    assert json.loads(result.out)["n"] == 13
    assert "named rightly" in result.out
    assert "held-out images, whose captions also chose the weights" in result.err
    loaded = load_run(tmp_path / "run")
    images = reload_sets(loaded).measured("captions")
    assert images is not None
    scored = evaluate_captions(loaded, images, with_meteor=False)
    encoded = EncodedCaptions.encode(images.captions or (), loaded.captions.vocabulary)
    assert len(encoded) == len(scored.captions) == 13
    with pytest.raises(UserError, match="which images the captions belong to"):
        captioned_images(loaded, None, captions="x.csv")


def test_captions_of_scenes_are_graded_part_by_part() -> None:
    own = "a large blue square below a small red circle"
    assert grade("a small red circle above a big blue square", own) == Grade(True, True, True, True, True)
    assert grade("a large blue ring below a small red circle", own) == Grade(True, True, True, False, False)
    assert grade("a large red square left of a small red circle", own) == Grade(True, False, False, True, False)
    assert grade("a large blue square", own) == grade("nonsense", own) == Grade()


def test_what_meteor_needs_is_said(run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semisight.metrics.captions.meteor_needs", lambda: "METEOR was not computed: it needs Java")
    (tmp_path / "captions.csv").write_text(table(list(TEXTS)[20:23]))
    result = semisight("evaluate", run, photos, "--captions", tmp_path / "captions.csv")
    assert result.code == 0
    assert "METEOR was not computed" in result.err and "METEOR" not in result.out
    assert "all captions of" in refused("evaluate", run)
