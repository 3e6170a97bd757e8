"""The training loop on a toy: it learns, stops when it should, skips what is not finite, keeps the best."""

import dataclasses
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.full_disk import disk_with_room_for
from semisight.data.batches import Shuffled
from semisight.errors import UserError
from semisight.files import locked
from semisight.objectives.step import Batch, own_rows
from semisight.random import Stream, reseed
from semisight.training import trainer as trainer_module
from semisight.training.checkpoint import load_parts, read_checkpoint, read_meta
from semisight.training.folder import RunFolder
from semisight.training.interrupts import Interrupted
from semisight.training.logs import read_log
from semisight.training.state import TrainerState
from semisight.training.trainer import Trainer
from semisight.training.validation import validate
from tests.training.toy import Toy, ToyImages, toy_config, toy_images, train_toy


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def newest(run: Path) -> dict[str, dict[str, Tensor]]:
    return {part: dict(tensors) for part, tensors in read_checkpoint(RunFolder(run).newest).tensors.items()}


def same_checkpoint(a: Path, b: Path) -> bool:
    one, two = newest(a), newest(b)
    return one.keys() == two.keys() and all(same(one[part], two[part]) for part in one)


def without_time(run: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in read_log(run / "log.csv")]


def test_it_learns_and_is_reproducible(tmp_path: Path) -> None:
    first, fitted = train_toy(tmp_path / "a")
    second, _ = train_toy(tmp_path / "b")
    assert same(weights(first), weights(second)) and same_checkpoint(tmp_path / "a", tmp_path / "b")
    assert without_time(tmp_path / "a") == without_time(tmp_path / "b")
    other, _ = train_toy(tmp_path / "c", seed=1)
    assert not same(weights(first), weights(other))
    rows = [row for row in read_log(tmp_path / "a" / "log.csv") if row["split"] == "train"]
    assert rows[-1]["bound"] > rows[0]["bound"] + 0.5
    assert fitted.step == 27 and fitted.epoch == 3 and fitted.reason == "3 epochs are done"
    assert first.seen == list(range(27))
    assert len({(row["step"], row["split"]) for row in rows}) == len(rows) == 13


def test_the_step_is_plain_adam(tmp_path: Path) -> None:
    """The trainer's weights after some steps are those of a loop written by hand."""
    toy, _ = train_toy(tmp_path, max_steps=5, clip_norm=0.5, precision="64")
    by_hand, images, config = Toy().double(), toy_images(), toy_config()
    own = dict(by_hand.named_parameters())
    rates = [{"params": [p], "lr": 1e-2 * (3 if name == "net.bias" else 1)} for name, p in own.items()]
    optimiser = torch.optim.Adam(rates)
    plan = Shuffled(len(images), config.batch_size)
    for step in range(5):
        index = plan.indices(step, 0)
        batch = Batch(images.batch(index).double(), index)
        optimiser.zero_grad()
        rows = own_rows(8, 0, 1)
        by_hand(batch, reseed(torch.Generator(), 0, Stream.TRAINING, step), rows).loss.backward()
        torch.nn.utils.clip_grad_norm_(own.values(), 0.5)
        optimiser.step()
        by_hand.after_step(step)
    for name, value in weights(toy).items():
        torch.testing.assert_close(value, weights(by_hand)[name], rtol=1e-6, atol=1e-8)


def test_early_stopping_keeps_the_best(tmp_path: Path) -> None:
    scores = iter([1.0, 3.0, 2.0, 2.5, 3.0, 9.0])
    kept: list[dict[str, Tensor]] = []

    def score(module: nn.Module) -> dict[str, float]:
        assert not module.training
        assert isinstance(module, Toy)
        kept.append(weights(module.net))
        return {"bound": next(scores)}

    toy = Toy()
    fitted = Trainer(toy, toy_images(), tmp_path, config=toy_config(patience=3, max_epochs=50), validate=score).fit()
    assert fitted.reason == "no better bound for 3 epochs" and fitted.step == 5 * 9  # equal is not better
    assert fitted.best == 3.0 and fitted.best_step == 18
    best = Toy(seed=9)
    load_parts(best.parts(), fitted.checkpoint)
    assert same(weights(best.net), kept[1]) and not same(weights(best.net), weights(toy.net))


def test_a_metric_that_should_fall(tmp_path: Path) -> None:
    scores = iter([0.5, 0.2, float("nan"), 0.3])
    config = toy_config(metric="error", metric_rises=False, max_epochs=4)
    fitted = Trainer(Toy(), toy_images(), tmp_path, config=config, validate=lambda _: {"error": next(scores)}).fit()
    assert (fitted.best, fitted.best_step) == (0.2, 18)


def test_an_unknown_metric_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'accuracy' is not among the validation terms bound, reconstruction, size"):
        train_toy(tmp_path, metric="accuracy")


@pytest.mark.parametrize(
    ("limits", "step", "reason"),
    [
        ({"max_steps": 13}, 13, "13 steps are done"),
        ({"max_epochs": 1}, 9, "1 epochs are done"),
        ({"max_minutes": 1e-9, "max_epochs": None}, 1, "1e-09 minutes are over"),
        ({"max_steps": 0}, 0, "0 steps are done"),
    ],
)
def test_limits(tmp_path: Path, limits: dict[str, Any], step: int, reason: str) -> None:
    _, fitted = train_toy(tmp_path, **limits)
    assert (fitted.step, fitted.reason) == (step, reason)
    if step:
        assert "bound" in fitted.validation and fitted.best is not None  # also in the middle of an epoch


def test_the_time_limit_counts_over_resumptions(tmp_path: Path) -> None:
    _, first = train_toy(tmp_path, max_steps=3)
    _, second = train_toy(tmp_path, resume=True, max_steps=None, max_minutes=first.seconds / 60 / 2)
    assert second.step == 3 and second.seconds >= first.seconds


@pytest.mark.parametrize("average", [None, 0.9])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, average: float | None) -> None:
    settings: dict[str, Any] = {"average_decay": average, "schedule": "cosine", "warmup_steps": 3, "log_every": 5}
    whole, _ = train_toy(tmp_path / "whole", **settings)
    stop_at, toy = 13, Toy()
    toy.after_step = _raising_at(toy, stop_at)  # type: ignore[method-assign]
    with pytest.raises(KeyError):
        train_toy(tmp_path / "parts", toy=toy, **settings)
    assert read_meta(RunFolder(tmp_path / "parts").newest)["counters"]["step"] == 12  # steps 12 and 13 are lost
    resumed, fitted = train_toy(tmp_path / "parts", toy=Toy(seed=7), resume=True, **settings)
    assert same(weights(whole), weights(resumed)) and same_checkpoint(tmp_path / "whole", tmp_path / "parts")
    assert without_time(tmp_path / "whole") == without_time(tmp_path / "parts")
    assert fitted.step == 27


def test_averages_of_what_is_of_no_part_are_resumed(tmp_path: Path) -> None:
    """Such as an estimator's baseline: no prediction needs it, but the averaged model is to go on as it was."""
    whole, _ = train_toy(tmp_path / "whole", average_decay=0.9, max_steps=8)
    train_toy(tmp_path / "parts", average_decay=0.9, max_steps=4)
    resumed, _ = train_toy(tmp_path / "parts", average_decay=0.9, max_steps=8, resume=True)
    assert whole.teacher is not None and resumed.teacher is not None
    with whole.teacher.in_place(), resumed.teacher.in_place():
        assert float(whole.gain.detach()) != 1 and torch.equal(whole.gain, resumed.gain)


def _raising_at(toy: Toy, step: int) -> Any:
    original = toy.after_step

    def after_step(global_step: int) -> None:
        original(global_step)
        if global_step == step:
            raise KeyError("crash")

    return after_step


def test_a_finished_run_is_resumed_without_a_row_standing_twice(tmp_path: Path) -> None:
    train_toy(tmp_path, max_steps=13)
    before = newest(tmp_path), without_time(tmp_path)
    toy, _ = train_toy(tmp_path, resume=True, max_steps=13)
    assert toy.seen == [] and without_time(tmp_path) == before[1]
    assert all(same(newest(tmp_path)[part], before[0][part]) for part in before[0])
    longer, _ = train_toy(tmp_path, resume=True, max_epochs=4)
    assert longer.seen == list(range(13, 36))


def test_a_folder_with_a_run_is_refused(tmp_path: Path) -> None:
    train_toy(tmp_path, max_steps=2)
    with pytest.raises(UserError, match=r"already holds a run: go on with it \(--resume\), replace it \(--overwrite\)"):
        train_toy(tmp_path, max_steps=2)
    (tmp_path / "notes.txt").write_text("mine")
    toy, _ = train_toy(tmp_path, overwrite=True, max_steps=3)
    assert (tmp_path / "notes.txt").read_text() == "mine", "only the files of a run are thrown away"
    assert toy.seen == [0, 1, 2] and [row["step"] for row in read_log(tmp_path / "log.csv")] == [2, 3]
    with pytest.raises(UserError, match=r"no run in .* to resume"):
        train_toy(tmp_path / "nothing", resume=True)
    with pytest.raises(UserError, match="give one of them"):
        train_toy(tmp_path, resume=True, overwrite=True)
    RunFolder(tmp_path).newest.unlink()  # killed before its first checkpoint: resuming begins at the beginning
    RunFolder(tmp_path).best.unlink()
    assert train_toy(tmp_path, resume=True, max_steps=3)[0].seen == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"learning_rate": 0.5}, r"learning_rate: 0\.01 -> 0\.5"), ({"batch_size": 4}, "batch_size: 8 -> 4")],
)
def test_resuming_with_other_settings_names_them(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    train_toy(tmp_path, max_steps=2)
    with pytest.raises(UserError, match=named):
        train_toy(tmp_path, resume=True, max_steps=4, **changes)


def test_resuming_with_other_data_or_another_model_is_refused(tmp_path: Path) -> None:
    config = toy_config(max_steps=2)
    Trainer(Toy(), toy_images(), tmp_path, config=config, about={"layers": (3, 4)}).fit()
    Trainer(Toy(), toy_images(), tmp_path, config=config, about={"layers": [3, 4]}).fit(resume=True)
    with pytest.raises(UserError, match=r"data\.train\.hash"):
        Trainer(Toy(), toy_images(seed=3), tmp_path, config=config, about={"layers": (3, 4)}).fit(resume=True)
    with pytest.raises(UserError, match=r"about\.layers: \[3, 4\] -> \[3, 5\]"):
        Trainer(Toy(), toy_images(), tmp_path, config=config, about={"layers": (3, 5)}).fit(resume=True)


def test_a_step_that_is_not_finite_is_skipped_and_counted(tmp_path: Path) -> None:
    toy, fitted = train_toy(tmp_path, toy=Toy(poison=(3, 4, 10)), max_bad_steps=3)
    assert fitted.bad_steps == 3 and fitted.step == 27
    assert toy.seen == [step for step in range(27) if step not in (3, 4, 10)]
    assert all(bool(torch.isfinite(value).all()) for value in weights(toy).values())
    rows = [row for row in read_log(tmp_path / "log.csv") if row["split"] == "train"]
    assert rows[-1]["bad_steps"] == 3 and all(abs(row["bound"]) < 10 for row in rows if "bound" in row)


def test_many_such_steps_in_a_row_stop_and_name_the_term(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="3 steps in a row, up to step 8, were not finite: the terms bound, size"
    ) as caught:
        train_toy(tmp_path, toy=Toy(poison=(2, 6, 7, 8)), max_bad_steps=3)
    assert "learning_rate" in str(caught.value)
    assert read_meta(RunFolder(tmp_path).newest)["counters"]["step"] == 8


def test_a_gradient_that_is_not_finite_is_named_by_its_parameter(tmp_path: Path) -> None:
    toy = Toy()
    toy.net.bias.register_hook(lambda gradient: gradient / 0.0)
    with pytest.raises(UserError, match=r"the gradient of net\.bias, though every term was finite"):
        train_toy(tmp_path, toy=toy, max_bad_steps=2)


def test_a_full_disk_costs_a_checkpoint_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, _ = train_toy(tmp_path / "whole")
    write, size = trainer_module.write_checkpoint, 200

    def write_on_a_disk_that_is_full_for_a_while(path: Path, checkpoint: Any) -> None:
        if 8 <= checkpoint.meta["counters"]["step"] <= 20:
            with disk_with_room_for(size):
                write(path, checkpoint)
        write(path, checkpoint)

    monkeypatch.setattr(trainer_module, "write_checkpoint", write_on_a_disk_that_is_full_for_a_while)
    toy, fitted = train_toy(tmp_path / "full")
    told = capsys.readouterr().err
    assert "could not write" in told and "resuming would go back to step 4" in told
    assert same(weights(whole), weights(toy)) and fitted.best_step == 27  # the earlier bests could not be kept
    assert read_meta(fitted.checkpoint)["counters"]["best_step"] == 27


def test_a_disk_that_is_full_at_the_end_is_an_error_with_the_old_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = trainer_module.write_checkpoint

    def write_until_step_8(path: Path, checkpoint: Any) -> None:
        with disk_with_room_for(200 if checkpoint.meta["counters"]["step"] > 8 else 10**8):
            write(path, checkpoint)

    monkeypatch.setattr(trainer_module, "write_checkpoint", write_until_step_8)
    with pytest.raises(UserError, match="could not write"):
        train_toy(tmp_path / "run")
    monkeypatch.undo()
    assert read_meta(RunFolder(tmp_path / "run").newest)["counters"]["step"] == 8
    resumed, _ = train_toy(tmp_path / "run", resume=True)
    whole, _ = train_toy(tmp_path / "whole")
    assert same(weights(whole), weights(resumed))


def test_a_disk_that_is_full_at_the_start_is_found_at_once(tmp_path: Path) -> None:
    toy = Toy()
    with disk_with_room_for(100), pytest.raises(UserError, match="could not write"):
        train_toy(tmp_path, toy=toy)
    assert toy.forwards == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_leaves(tmp_path: Path, number: signal.Signals, code: int) -> None:
    whole, _ = train_toy(tmp_path / "whole", checkpoint_steps=None)
    toy = Toy()
    original = toy.after_step

    def interrupt(global_step: int) -> None:
        original(global_step)
        if global_step == 10:
            signal.raise_signal(number)

    toy.after_step = interrupt  # type: ignore[method-assign]
    former = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"saved in .*--resume") as caught:
        train_toy(tmp_path / "parts", toy=toy, checkpoint_steps=None)
    assert caught.value.exit_code == code and signal.getsignal(number) is former
    assert read_meta(RunFolder(tmp_path / "parts").newest)["counters"]["step"] in (11, 12)
    resumed, _ = train_toy(tmp_path / "parts", resume=True, checkpoint_steps=None)
    assert same(weights(whole), weights(resumed)) and without_time(tmp_path / "whole") == without_time(
        tmp_path / "parts"
    )


def test_a_signal_during_validation_repeats_it_on_resume(tmp_path: Path) -> None:
    whole, _ = train_toy(tmp_path / "whole")
    toy, validations = Toy(), 0
    original = toy.forward

    def forward(*arguments: Any) -> Any:
        nonlocal validations
        validations += not toy.training
        if validations == 2 and not toy.training:
            signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    toy.forward = forward  # type: ignore[method-assign,assignment]
    with pytest.raises(Interrupted):
        train_toy(tmp_path / "parts", toy=toy, validation_batch_size=7)
    assert read_meta(RunFolder(tmp_path / "parts").newest)["counters"]["ended_step"] == 0
    resumed, _ = train_toy(tmp_path / "parts", resume=True, validation_batch_size=7)
    assert same(weights(whole), weights(resumed))
    assert [row["step"] for row in read_log(tmp_path / "parts" / "log.csv") if row["split"] == "valid"] == [9, 18, 27]


def test_it_trains_outside_the_main_thread(tmp_path: Path) -> None:
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(train_toy(tmp_path, max_steps=2)))
    thread.start()
    thread.join()
    assert done[0][1].step == 2


def test_the_averaged_weights_are_validated_and_kept(tmp_path: Path) -> None:
    toy, fitted = train_toy(tmp_path, average_decay=0.9, max_epochs=1)
    assert toy.teacher is not None, "the trainer hands its averages to the objective"
    averaged = Toy(seed=4)
    load_parts(averaged.parts(), fitted.checkpoint)
    assert not same(weights(averaged.net), weights(toy.net))
    with torch.no_grad(), toy.teacher.in_place():
        averaged.gain.copy_(toy.gain)  # of no part
    assert validate(averaged, toy_images(20, seed=5)) == fitted.validation
    own = read_checkpoint(fitted.checkpoint).training("weights")
    assert same(own, {name: parameter.detach() for name, parameter in toy.named_parameters()})
    assert train_toy(tmp_path / "none", max_steps=1)[0].teacher is None


def test_validation_is_the_mean_over_images_however_they_are_batched(tmp_path: Path) -> None:
    class Mean(Toy):
        def forward(self, batch: Any, generator: torch.Generator, rows: Any) -> Any:
            step = super().forward(batch, generator, rows)
            return dataclasses.replace(step, terms={"mean": batch.images.mean(), "place": batch.index.float().mean()})

    images = toy_images(20, seed=5)
    for size in (1, 7, 64):
        terms = validate(Mean(), images, batch_size=size)
        assert terms == pytest.approx({"mean": float(images.images.mean()), "place": 9.5}, rel=1e-6)
    assert validate(Toy(), images) == validate(Toy(), images) != validate(Toy(), images, seed=1)
    with pytest.raises(UserError, match="validation set is empty"):
        validate(Toy(), ToyImages(images.images[:0]))


def test_without_validation_there_is_only_the_newest(tmp_path: Path) -> None:
    fitted = Trainer(Toy(), toy_images(), tmp_path, config=toy_config(max_epochs=2)).fit()
    assert fitted.best is None and fitted.checkpoint == RunFolder(tmp_path).newest and fitted.checkpoint.exists()
    with pytest.raises(UserError, match="training set is empty"):
        Trainer(Toy(), ToyImages(torch.zeros(0, 1, 3, 4)), tmp_path)


def test_the_hook_sees_every_epoch_and_what_it_changes_is_kept(tmp_path: Path) -> None:
    toy, seen = Toy(), list[TrainerState]()

    def hook(state: TrainerState) -> None:
        seen.append(state)
        toy.mean_code.fill_(42.0)

    config = toy_config(validate_every=2, max_epochs=2)
    Trainer(toy, toy_images(), tmp_path, config=config, valid=toy_images(20), on_epoch=hook).fit()
    assert [state.epoch for state in seen] == [1, 2] and seen[0].validation == {} and "bound" in seen[1].validation
    assert bool((newest(tmp_path)["training"]["state/mean_code"] == 42).all())


def test_other_plans(tmp_path: Path) -> None:
    class Plan:
        steps_per_epoch = 2

        def indices(self, step: int, seed: int) -> Tensor:
            return torch.tensor([step, step + 1, 70])

    toy = Toy()
    taken: list[list[int]] = []
    original = toy.forward

    def forward(batch: Any, *rest: Any) -> Any:
        taken.append(batch.index.tolist())
        assert torch.equal(batch.images, toy_images().images[batch.index])
        return original(batch, *rest)

    toy.forward = forward  # type: ignore[method-assign,assignment]
    Trainer(toy, toy_images(), tmp_path, config=toy_config(max_epochs=1), plan=Plan()).fit()
    assert taken == [[0, 1, 70], [1, 2, 70]]


def test_a_folder_that_another_training_writes_to_is_left_alone(tmp_path: Path) -> None:
    with locked(tmp_path / "run", "another training"):
        for more in ({}, {"overwrite": True}):
            trainer = Trainer(Toy(), toy_images(), tmp_path / "run", config=toy_config(max_epochs=1))
            with pytest.raises(UserError, match=r"in use by another process \(another training"):
                trainer.fit(**more)
    assert [file.name for file in (tmp_path / "run").iterdir()] == [".lock"]


def test_overwriting_that_fails_in_the_middle_leaves_the_old_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_toy(tmp_path, max_steps=2)
    before = {file.name: file.read_bytes() for file in tmp_path.glob("*.*")}

    def full(*_: object) -> None:
        raise UserError("No space left on device")

    monkeypatch.setattr(trainer_module, "write_checkpoint", full)
    with pytest.raises(UserError, match="No space left"):
        train_toy(tmp_path, overwrite=True, max_steps=3)
    monkeypatch.undo()
    after = {file.name: file.read_bytes() for file in tmp_path.glob("*.*")}
    before.pop(".lock", None), after.pop(".lock", None)
    assert after == before
    assert read_meta(RunFolder(tmp_path).newest)["config"]["max_steps"] == 2


def test_random_numbers_belong_to_seed_stream_and_step() -> None:
    def draw(seed: int, stream: Stream, step: int) -> tuple[float, ...]:
        return tuple(torch.rand(4, generator=reseed(torch.Generator(), seed, stream, step)).tolist())

    streams = (Stream.TRAINING, Stream.VALIDATION)
    places = [(seed, stream, step) for seed in (0, 1) for stream in streams for step in range(50)]
    assert len({draw(*place) for place in places}) == len(places)
    assert draw(3, Stream.TRAINING, 5) == draw(3, Stream.TRAINING, 5)


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_the_rows_of_all_processes_are_the_batch(processes: int) -> None:
    for total in range(processes, 40):
        rows = [own_rows(total, rank, processes) for rank in range(processes)]
        assert [i for each in rows for i in range(each.start, each.stop)] == list(range(total))
        assert max(each.count for each in rows) - min(each.count for each in rows) <= 1
