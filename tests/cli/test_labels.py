"""`train` with labels, `predict` and `evaluate`: from a folder with a table of labels to labels for new images."""

import csv
import dataclasses
import io
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from semisight.cli.render import columns
from semisight.data import load
from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.files import write_json
from semisight.inference.labels import FittedCalibration, LabelReader, fit_calibration, fit_to_augmentation
from semisight.metrics.calibration import Calibration, expected_calibration_error
from semisight.model.heads.labels import BayesianSVM, Softmax
from semisight.runs.evaluate import evaluate_labels
from semisight.runs.run import DataRecord, load_run
from semisight.runs.run_images import reload_sets, renumbered
from semisight.training.checkpoint import read_checkpoint
from semisight.training.folder import RunFolder
from semisight.training.logs import read_log
from tests.cli.commands import ok, refused, semisight, settled

QUICK = ("--batch-size", "40", "--threads", "1", "--no-report")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """90 digits as pictures, a folder for each digit from 0 to 2."""
    folder = tmp_path_factory.mktemp("photos")
    images = load("builtin:digits")
    assert images.labels is not None
    for c in range(3):
        (folder / str(c)).mkdir()
        for i in (images.labels == c).nonzero().squeeze(1)[:30].tolist():
            Image.fromarray(images.images[i, 0].numpy()).save(folder / str(c) / f"{i:04d}.png")
    return folder


def table(photos: Path, per_class: int, rows: str = "") -> str:
    """A table of labels: `per_class` of each, and further rows."""
    words = ("zero", "one", "two")
    named = [
        f"{path.relative_to(photos).as_posix()},{words[c]}"
        for c in range(3)
        for path in sorted((photos / str(c)).iterdir())[:per_class]
    ]
    return "\n".join(["file,label", *named]) + f"\n{rows}"


@pytest.fixture(scope="module")
def few(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with 5 labels of each class and 75 unlabelled images."""
    folder = tmp_path_factory.mktemp("few")
    (folder / "labels.csv").write_text(table(photos, 5))
    ok("train", photos, "--labels", folder / "labels.csv", "--out", folder / "run", "--epochs", "25",
       "--learning-rate", "0.01", *QUICK)  # fmt: skip
    return folder / "run"


@pytest.fixture(scope="module")
def many(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which every image has a label."""
    run = tmp_path_factory.mktemp("many") / "run"
    ok("train", photos, "--class-per-folder", "--out", run, "--epochs", "14", "--learning-rate", "0.01", *QUICK)
    return run


def test_few_labels_learn_to_tell_digits_apart(few: Path, photos: Path) -> None:
    run = load_run(few)
    assert run.checkpoint.name == "newest.safetensors"  # no label was held out
    classifier = run.labels
    assert classifier.class_names == ("one", "two", "zero")
    assert (classifier.n_learned, classifier.n_held_out, classifier.calibrated) == (15, 0, False)
    assert (
        "not calibrated" in classifier.believable()
        and "67 unlabelled images were weakly augmented" in classifier.believable()
    )
    assert classifier.fitted is not None and classifier.fitted.by == "augmentation"
    images = load(photos, class_per_folder=True).with_labels(
        torch.tensor([{"0": 2, "1": 0, "2": 1}[name[0]] for name in load(photos).names]), classifier.class_names
    )
    assert evaluate_labels(run, images).error < 0.1


def test_held_out_labels_choose_and_calibrate(many: Path) -> None:
    run = load_run(many)
    assert run.checkpoint.name == "best.safetensors"
    classifier = run.labels
    assert (classifier.n_learned, classifier.n_held_out) == (81, 9)
    assert classifier.fitted is not None
    assert (classifier.fitted.n, classifier.fitted.step) == (9, run.step)
    rows = [row for row in read_log(many / "log.csv") if row["split"] == "valid"]
    assert min(row["nll"] for row in rows) == pytest.approx(read_checkpoint(run.checkpoint).meta["counters"]["best"])
    assert all({"error", "bound", "alpha0"} <= row.keys() for row in rows)


def test_defaults_reach_the_run(few: Path) -> None:
    run = load_run(few)
    assert run.architecture.nonlinearity == "norm-relu"
    assert (run.config.schedule, run.config.average_decay, run.config.patience) == ("cosine", 0.99, None)
    assert run.about["targets"]["labels"]["settings"]["head"] == "softmax"
    assert run.about["settings"]["labelled_per_batch"] == 20
    assert isinstance(run.labels.head, Softmax)
    assert DataRecord.read(RunFolder(few)).settings.labels == str(few.parent / "labels.csv")


def test_it_says_which_labels_it_uses(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(table(photos, 3, "nowhere.png,one\n0/0000.png,zero\n"))
    out = ok("train", photos, "--labels", tmp_path / "labels.csv", "--out", tmp_path / "run", "--epochs", "1", *QUICK)
    assert f"labels: 9 images of 3 classes (from {tmp_path / 'labels.csv'})" in out
    assert "too few to hold some out" in out
    assert "1 row names a file that is not among the images: nowhere.png" in out
    assert "1 row repeats another: 0/0000.png" in out
    assert f"Next: semisight predict {tmp_path / 'run'} IMAGES" in out
    out = ok("train", "builtin:digits", "--limit", "60", "--out", tmp_path / "own", "--epochs", "1", *QUICK)
    assert "carried by the set; --no-labels leaves them out" in out
    assert "every image carries something" in out
    out = ok("train", photos, "--out", tmp_path / "none", "--epochs", "1", *QUICK)
    assert "labels: none; learning from the images alone" in out
    assert not load_run(tmp_path / "none").has("labels")


def test_options_reach_the_label_model(photos: Path, tmp_path: Path) -> None:
    more = ["--class-per-folder", "--head", "svm", "--xi", "3.5", "--no-consistency", "--labels-per-class", "4"]
    ok("train", photos, "--out", tmp_path / "run", "--epochs", "1", *QUICK, *more)
    run = load_run(tmp_path / "run")
    assert isinstance(run.labels.head, BayesianSVM) and run.labels.n_learned == 12
    assert (run.about["settings"]["xi"], run.about["settings"]["consistency"]) == ("3.5", False)
    ok("train", photos, "--out", tmp_path / "paper", "--epochs", "1", "--paper", "--class-per-folder", "--no-report")
    paper = load_run(tmp_path / "paper")
    assert (paper.config.learning_rate, paper.architecture.nonlinearity) == (2e-4, "none")
    assert paper.about["settings"]["xi"] == "paper"


@pytest.mark.parametrize(
    ("rows", "fragment"),
    [
        ("file,label\n0/0000.png,zero\n0/0000.png,one\n1/0001.png,one\n", "more than one label: 0/0000.png"),
        ("file,label\n0/0000.png,zero\n0/0010.png,zero\n", "there is nothing to tell apart"),
        ("file,label\na.png,zero\nb.png,one\n", "labels none of the 90 images"),
        ("file,label\n", "no rows"),
        ("name,label\n0/0000.png,zero\n", "no column file"),
    ],
)
def test_tables_that_cannot_be_used(photos: Path, tmp_path: Path, rows: str, fragment: str) -> None:
    (tmp_path / "labels.csv").write_text(rows)
    message = refused("train", photos, "--labels", tmp_path / "labels.csv", "--out", tmp_path / "run", *QUICK)
    assert fragment in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--labels", "none.csv"], "none.csv"),
        (["--class-per-folder", "--labels", "none.csv"], "give one of them"),
        (["--class-per-folder", "--no-labels"], "exclude each other"),
        (["--class-per-folder", "--labels-per-class", "31"], "3 classes have fewer labels: 0 (30), 1 (30), 2 (30)"),
        (["--labels-per-class", "3"], "carries no labels"),
        (["--class-per-folder", "--xi", "much"], "xi must be a number"),
        (["--class-per-folder", "--augment", "far"], "drawings"),
        (["--class-per-folder", "--xi", "-1"], "xi must be a number of at least 0"),
        (["--class-per-folder", "--head", "tree"], "softmax"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(
    photos: Path, tmp_path: Path, arguments: list[str], fragment: str
) -> None:
    assert fragment in refused("train", photos, "--out", tmp_path / "run", *arguments)
    assert not (tmp_path / "run").exists()


def test_a_class_with_one_example_is_learned_and_told(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(table(photos, 1, "0/0010.png,zero\n1/0011.png,one\n"))
    out = ok("train", photos, "--labels", tmp_path / "labels.csv", "--out", tmp_path / "run", "--epochs", "1", *QUICK)
    assert "1 class has a single labelled image: two" in out


def test_resumed_it_equals_an_uninterrupted_run(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(table(photos, 4))
    (tmp_path / "often.yaml").write_text("validate_every: 2\n")
    first = [photos, "--labels", tmp_path / "labels.csv", "--schedule", "constant", *QUICK]
    first += ["--config", tmp_path / "often.yaml"]
    ok("train", *first, "--out", tmp_path / "twice", "--epochs", "3")
    ok("train", "--out", tmp_path / "twice", "--resume", "--epochs", "5", "--no-report")
    ok("train", *first, "--out", tmp_path / "once", "--epochs", "5")
    once, twice = (read_checkpoint(RunFolder(tmp_path / name).newest) for name in ("once", "twice"))
    for part in ("model", "head.labels", "training"):
        assert once.part(part) and once.part(part).keys() == twice.part(part).keys()
        assert all(torch.equal(once.part(part)[name], twice.part(part)[name]) for name in once.part(part))
    (tmp_path / "labels.csv").write_text(table(photos, 5))
    assert "data.train" in refused("train", "--out", tmp_path / "twice", "--resume", "--epochs", "6")


# --- predict


def test_predict_in_three_formats(few: Path, photos: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(photos, tmp_path / "new"))
    (folder / "notes.txt").write_text("not a picture")
    rows = list(csv.DictReader(io.StringIO(ok("predict", few, folder, "--format", "csv", "--top", "2"))))
    assert [row["file"] for row in rows] == list(load(photos).names)
    whole = json.loads(ok("predict", few, folder, "--format", "json"))
    assert whole["classes"] == ["one", "two", "zero"]
    assert not whole["calibrated"]
    assert [entry["file"] for entry in whole["skipped"]] == ["notes.txt"]
    for row, entry in zip(rows, whole["images"], strict=True):
        assert (row["label"], float(row["probability"])) == (entry["label"], entry["probability"])
        assert [part["label"] for part in entry["top"]][:2] == [row["label"], row["label_2"]]
        assert sum(part["probability"] for part in entry["top"]) == pytest.approx(1, abs=1e-4)
        assert entry["spread"] > 0
    result = semisight("predict", few, folder)
    assert "1 file skipped" in result.err
    assert "not calibrated" in result.err
    assert "40 more" in result.out
    words = {"0": "zero", "1": "one", "2": "two"}
    assert sum(row["label"] == words[row["file"][0]] for row in rows) > 80


def test_predict_to_a_file_replaces_nothing_unasked(many: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels.csv"
    assert f"labels of 90 images in {out}" in ok("predict", many, photos, "--format", "csv", "--out", out)
    assert len(out.read_text().splitlines()) == 91
    assert "--overwrite" in refused("predict", many, photos, "--out", out)
    one = ok("predict", many, next((photos / "0").iterdir()), "--format", "json")
    assert len(json.loads(one)["images"]) == 1


def test_labels_are_asked_of_a_run_that_has_none(shared_run: Path, few: Path) -> None:
    assert "neither labels nor tags: semisight embed" in refused("predict", shared_run, "builtin:digits")
    assert "has learned no labels" in refused("evaluate", shared_run, "builtin:digits")
    assert "all labels of" in refused("evaluate", few)


# --- evaluate


def test_evaluate_counts_right_and_wrong(many: Path, photos: Path) -> None:
    found = json.loads(ok("evaluate", many, photos, "--class-per-folder", "--format", "json"))
    guesses = json.loads(ok("predict", many, photos, "--format", "json"))["images"]
    wrong = sum(entry["label"] != entry["file"][0] for entry in guesses)
    assert found["n"] == 90
    assert found["error"] == pytest.approx(wrong / 90)
    confusion = torch.tensor(found["confusion"])
    assert int(confusion.sum()) == 90
    assert int(confusion.diagonal().sum()) == 90 - wrong
    assert found["brier"] == pytest.approx(
        sum(
            sum((part["probability"] - (part["label"] == entry["file"][0])) ** 2 for part in entry["top"])
            for entry in guesses
        )
        / 90,
        abs=1e-4,
    )
    rows = list(csv.DictReader(io.StringIO(ok("evaluate", many, photos, "--class-per-folder", "--format", "csv"))))
    values = {row["metric"]: float(row["value"]) for row in rows if not row["label"]}
    assert values["error"] == pytest.approx(found["error"])
    assert values["calibration_error"] == pytest.approx(found["calibration_error"])
    assert sum(float(row["value"]) for row in rows if row["metric"] == "confusion") == 90
    text = ok("evaluate", many, photos, "--class-per-folder")
    assert f"{found['error']:.2%}" in text
    assert "true \\ called" in text


def test_evaluate_on_what_was_held_out(many: Path, photos: Path, tmp_path: Path) -> None:
    result = semisight("evaluate", many, "--format", "json")
    assert json.loads(result.out)["n"] == 9
    assert "held-out images" in result.err
    assert "learned from some of these" in semisight("evaluate", many, photos, "--class-per-folder").err
    assert "say which images" in refused("evaluate", many, "--labels", "labels.csv")
    (tmp_path / "labels.csv").write_text("file,label\n" + "\n".join(f"{n},{n[0]}" for n in load(photos).names[:7]))
    out = tmp_path / "numbers.json"
    ok("evaluate", many, photos, "--labels", tmp_path / "labels.csv", "--format", "json", "--out", out)
    assert json.loads(out.read_text())["n"] == 7


def test_evaluate_needs_labels_that_the_run_knows(many: Path, few: Path, photos: Path, tmp_path: Path) -> None:
    assert "no image has a label" in refused("evaluate", many, photos)
    assert "labels that the run did not learn: 0, 1, 2" in refused("evaluate", few, photos, "--class-per-folder")
    (tmp_path / "labels.csv").write_text("file,label\n0/0000.png,zer\n")
    message = refused("evaluate", few, photos, "--labels", tmp_path / "labels.csv")
    assert "Did you mean 'zero'?" in message


def test_labels_are_matched_by_name() -> None:
    images = ImageSet.of(torch.zeros(4, 1, 2, 2), tuple("wxyz"), torch.tensor([0, 1, -1, 0]), ("dog", "cat"))
    found = renumbered(images, ("cat", "cow", "dog"))
    assert found.labels is not None
    assert found.labels.tolist() == [2, 0, -1, 2]


# --- probabilities


def test_few_labels_are_as_sure_as_augmented_images_are_steady() -> None:
    """Augmented images that agree as often as a scale says give that scale back; what was fitted survives a file."""
    generator = torch.Generator().manual_seed(0)
    decision = torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    taken_for = (3 * decision).softmax(1).multinomial(1, generator=generator).squeeze(1)
    found = fit_to_augmentation(decision, torch.nn.functional.one_hot(taken_for, 3).double(), 7)
    assert found.calibration.scale.tolist() == pytest.approx([3, 3, 3], rel=0.08)
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    again = FittedCalibration.from_dict(told)
    assert (again.step, again.n, again.by) == (7, 4000, "augmentation") and math.isnan(again.error)
    assert torch.equal(again.calibration.scale, found.calibration.scale)
    assert told["calibration_error"] is None


def test_a_calibration_of_other_weights_is_not_used(many: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(many, tmp_path / "run"))
    fitted = load_run(run).labels.fitted
    assert fitted is not None
    write_json(run / "calibration.json", dataclasses.replace(fitted, step=fitted.step + 1).to_dict())
    classifier = load_run(run).labels
    assert not classifier.calibrated
    assert "not the checkpoint" in classifier.believable()
    (run / "calibration.json").write_text('{"step": 1}')
    assert "damaged" in refused("predict", run, "builtin:digits")


def test_calibration_survives_its_file() -> None:
    calibration = Calibration(torch.tensor([1.5, 2.0]).double(), torch.tensor([0.0, 0.1]).double())
    again = FittedCalibration.from_dict(json.loads(json.dumps(FittedCalibration(calibration, 7, 30, 0.05).to_dict())))
    assert (again.step, again.n, again.error, again.by) == (7, 30, 0.05, "labels")
    assert torch.equal(again.calibration.scale, calibration.scale)


@pytest.mark.parametrize("n", [60, 4000])
def test_the_calibration_error_is_measured_crosswise(n: int) -> None:
    """Decision values that are far too sure; by the same labels the error looks smaller than on fresh ones."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2 * n, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    fitted = fit_calibration(8 * logits[:n], labels[:n], step=1, seed=0)
    fresh = expected_calibration_error(fitted.calibration.probabilities(8 * logits[n:]), labels[n:])
    assert fitted.error == pytest.approx(fresh, abs=3 / n**0.5)
    assert fresh < expected_calibration_error((8 * logits[n:]).softmax(1), labels[n:])


def test_the_svms_own_probabilities() -> None:
    """exp(-2 gamma sum of hinges), normalised, equals the softmax of 4 gamma f inside the margins."""
    head = BayesianSVM(5, 3, gamma=0.7)
    with torch.no_grad():
        s = 0.1 * torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
        wanted, decision = head.log_prob_all(s).softmax(1), head.decision(s)
    assert float(decision.abs().max()) < 1
    own = LabelReader(head, ("a", "b", "c")).calibration
    torch.testing.assert_close(own.probabilities(decision), wanted)
    assert LabelReader(Softmax(5, 3), ("a", "b", "c")).calibration.scale.tolist() == [1, 1, 1]


def test_hidden_labels_measure_a_trial(tmp_path: Path) -> None:
    trial = ["--limit", "200", "--labels-per-class", "3", "--valid-fraction", "0.3", "--epochs", "2", *QUICK]
    ok("train", "builtin:digits", "--out", tmp_path, *trial)
    sets = reload_sets(load_run(tmp_path))
    measured = sets.measured("labels")
    assert measured is not None
    result = semisight("evaluate", tmp_path, "--format", "json")
    assert "hidden from the training" in result.err
    assert json.loads(result.out)["n"] == len(measured)


def test_labels_that_have_moved(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(table(photos, 4))
    run = tmp_path / "run"
    ok("train", photos, "--labels", tmp_path / "labels.csv", "--out", run, "--epochs", "1", *QUICK)
    (tmp_path / "labels.csv").rename(tmp_path / "moved.csv")
    assert "give --labels FILE" in refused("report", run)
    with pytest.raises(UserError, match=r"labels\.csv"):
        reload_sets(load_run(run))
    assert reload_sets(load_run(run), labels=str(tmp_path / "moved.csv")).n_present("labels") == 12


def test_settings_follow_the_number_of_labels() -> None:
    few, many = settled(100, 49_900), settled(4000, 36_000)
    assert (few.consistency.labelled_per_batch, few.train.batch_size) == (32, 288)
    assert (many.consistency.labelled_per_batch, many.train.batch_size) == (256, 512)
    chosen = settled(4000, 36_000, batch_size=100)
    assert (chosen.consistency.labelled_per_batch, chosen.train.batch_size) == (32, 100)
    assert settled(9000, 1000).train.batch_size == 128


def test_labels_that_are_all_unknown_are_a_warning(photos: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.full(90, -1))
    arguments = (photos, "--labels", tmp_path / "labels.npy")
    out = ok("train", *arguments, "--out", tmp_path / "run", "--epochs", "1", *QUICK)
    assert "labels.npy are unknown: nothing is learned from them" in out
    assert "labels: none; learning from the images alone" in out
    found = json.loads(ok("inspect", *arguments, "--format", "json"))
    assert found["classes"] is None and "are unknown" in found["mistakes"][0]["message"]


def test_cells_that_look_like_formulas_are_marked_and_names_do_not_give_orders(many: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    Image.new("L", (8, 8)).save(folder / "=cmd.png")
    Image.new("L", (8, 8)).save(folder / "a\x1b[31mred.png")
    rows = list(csv.DictReader(io.StringIO(ok("predict", many, folder, "--format", "csv"))))
    assert rows[0]["file"] == "'=cmd.png"
    table = ok("predict", many, folder)
    assert "\x1b" not in table and "red.png" in table
    (line,) = columns([["\x1b[2Ja class of a stranger's", "0.5"]], right=(1,))  # a name that a run brings along
    assert "\x1b" not in line and "[2Ja class" in line
