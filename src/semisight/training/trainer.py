"""Section 4, learning: stochastic ascent of the bound by Adam, until a validation set says that it is enough.

    every step:   see step.py; now and then log and save
    every epoch:  validate, keep the best, stop when the best is `patience` epochs old, save

A run can be killed at any moment and resumed: on one process the result equals that of an uninterrupted run to the
last bit. Several processes share each batch, and the result equals that of one process up to the order of sums; their
number may change when a run is resumed.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from torch import Tensor, nn

from semisight.data.batches import Shuffled
from semisight.errors import UserError
from semisight.files import bundle, finish_bundle, locked, write_atomic, write_json
from semisight.objectives.step import Images, Objective, Plan
from semisight.training.allocator import keep_memory
from semisight.training.checkpoint import Checkpoint, read_checkpoint, read_meta, write_checkpoint
from semisight.training.config import TrainConfig
from semisight.training.devices import choose_precision, launch, lost_process_told, use_threads
from semisight.training.ema import EMA
from semisight.training.folder import FILES, NEWEST, RunFolder, check_folder, check_same, describe, differences
from semisight.training.interrupts import Interrupted, SignalFlag, caught_signals
from semisight.training.logs import RunLog
from semisight.training.optimiser import build_optimiser
from semisight.training.progress import ProgressBar
from semisight.training.state import LiveState, TrainerState, in_place
from semisight.training.step import Stepper
from semisight.training.validation import ValidationStopped, validate
from semisight.untrusted import inside

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")
Which = Literal["newest", "best"]


@dataclass(frozen=True)
class Fitted:
    """How a run ended; the weights to use lie in `checkpoint` (load_parts), without a folder in `weights` by part."""

    reason: str
    step: int
    epoch: float
    seconds: float
    best: float | None
    best_step: int
    bad_steps: int
    validation: Mapping[str, float]
    checkpoint: Path
    weights: Mapping[str, Mapping[str, Tensor]] = dataclasses.field(default_factory=dict)


class Trainer:
    """Trains an objective on images and writes the run to a folder.

    objective   an nn.Module; afterwards it holds the weights of the last step, on the device of the training
    train       the images; `valid` those that decide which weights are best and when to stop
    run         the folder of the run; None keeps the weights in memory (`Fitted.weights`) and writes nothing
    plan        which images make up the batch of all processes together; shuffled epochs if not given
    validate    gives the validation terms instead of the objective's own terms on `valid`
    on_epoch    called after each epoch's validation and before its checkpoint, on every process: what it changes in
                the objective's buffers is resumed
    about       JSON that describes the model; kept in every checkpoint, and a resumed run must give the same
    files       further files of a new run, by name: written together with its first checkpoint, all or none
    """

    def __init__(
        self,
        objective: Objective,
        train: Images,
        run: str | Path | None,
        *,
        config: TrainConfig | None = None,
        valid: Images | None = None,
        plan: Plan | None = None,
        validate: Callable[[nn.Module], Mapping[str, float]] | None = None,
        on_epoch: Callable[[TrainerState], None] | None = None,
        about: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        if len(train) == 0:
            raise UserError("the training set is empty: there is nothing to learn from.")
        self.objective, self.train, self.valid = objective, train, valid
        self.run = None if run is None else RunFolder(Path(run))
        self.config = config if config is not None else TrainConfig()
        self.plan, self.validate, self.on_epoch = plan, validate, on_epoch
        self.files = dict(files or {})
        self.opened = False  # whether the folder was found fit for this training
        self.about = json.loads(json.dumps(about or {}))  # tuples become lists here, as they will in the header

    @property
    def folder(self) -> RunFolder:
        """Where the run is written."""
        if self.run is None:
            raise ValueError("this training has no folder: its weights are in memory")
        return self.run

    def fit(self, *, resume: bool = False, overwrite: bool = False, lock: bool = True) -> Fitted:
        """Trains to the end; `resume` goes on from the newest checkpoint, `overwrite` throws away what is there.

        Raises Interrupted after SIGINT or SIGTERM, once a checkpoint is saved. `lock` keeps other processes from
        writing to the folder; whoever holds its lock already leaves it out.
        """
        if self.config.keep_memory:
            keep_memory()
        fabric = launch(self.config)
        with lost_process_told(fabric.world_size):
            return self._fit(_Training(self, fabric), resume, overwrite, lock)

    def _fit(self, training: "_Training", resume: bool, overwrite: bool, lock: bool) -> Fitted:
        try:
            with training.lock(lock), caught_signals(notice=training.rank == 0) as signals:
                training.open(resume, overwrite)
                self.opened = True
                return training.loop(signals)
        finally:
            training.close()


class _Training:
    """One call of `fit`."""

    def __init__(self, trainer: Trainer, fabric: "Fabric") -> None:
        assert isinstance(trainer.objective, nn.Module)
        self.trainer, self.fabric, self.run = trainer, fabric, trainer.run
        self.rank, self.processes = fabric.global_rank, fabric.world_size
        # what really runs is what is saved and compared
        precision = choose_precision(fabric.device, trainer.config.precision)
        self.config = dataclasses.replace(trainer.config, precision=precision, processes=self.processes)
        self.threads = use_threads(self.config.threads)
        self._check_others()
        self.plan = trainer.plan or Shuffled(len(trainer.train), self.config.batch_size)
        self.stepper = Stepper(trainer.objective, trainer.train, self.plan, self.config, fabric)
        every = dict(trainer.objective.named_parameters())
        trained = {name: parameter for name, parameter in every.items() if parameter.requires_grad}
        frozen = every.keys() - trained.keys()
        multipliers = {name: by for name, by in trainer.objective.rate_multipliers().items() if name not in frozen}
        decay = self.config.average_decay
        self.live = LiveState(
            trainer.objective,
            trained,
            build_optimiser(trained, multipliers, self.config),
            None if decay is None else EMA(trained, decay),
        )
        trainer.objective.teacher = self.live.average
        self.max_seconds = math.inf if self.config.max_minutes is None else self.config.max_minutes * 60
        self.validation: dict[str, float] = {}
        self.kept: dict[str, Checkpoint] = {}  # without a folder
        self.log: RunLog | None = None
        self.bar: ProgressBar | None = None

    # ---- the run folder ----

    def open(self, resume: bool, overwrite: bool) -> None:
        """Checks the folder, goes back to the checkpoint if resuming, opens the logs, makes sure that saving works."""
        trainer, run = self.trainer, self.run
        device = str(self.fabric.device)
        self.meta = describe(self.config, trainer.about, trainer.train, trainer.valid, self.threads, device)
        resumed = False
        if run is not None:
            self._on_first_process(lambda: self._check(run, resume, overwrite))
            resumed = self._from_first_process(resume and run.newest.exists())
            if resumed:  # from the first process, whose folder the others need not see
                found = read_checkpoint(run.newest) if self.rank == 0 else None
                self.live.load(cast(Checkpoint, self._from_first_process(found)), run.newest)
        counters = self.live.counters
        self.started = time.monotonic() - counters.seconds
        self.saved_at, self.saved_step = time.monotonic(), counters.step
        self.late = counters.seconds >= self.max_seconds
        if self.rank == 0:
            total, shown = self.stepper.total_steps, self.config.progress
            self.bar = ProgressBar(shown, total, self.max_seconds, start_step=counters.step)
        if run is not None:
            self._on_first_process(lambda: self._open_files(run, resumed))

    @contextmanager
    def lock(self, wanted: bool) -> Iterator[None]:
        """On the first process, which is the one that writes; if another has it, all stop with its message."""
        with ExitStack() as stack:
            run = self.run
            if wanted and run is not None:
                self._on_first_process(lambda: stack.enter_context(locked(run.path, "training")))
            yield

    def _check(self, run: RunFolder, resume: bool, overwrite: bool) -> None:
        inside(run.path, "checkpoints", "tensorboard")
        finish_bundle(run.path)
        check_folder(run, resume=resume, overwrite=overwrite)
        if resume and run.newest.exists():
            check_same(run, self.meta)

    def _open_files(self, run: RunFolder, resumed: bool) -> None:
        if resumed:
            changed = differences(read_meta(run.newest)["versions"], self.meta["versions"])
            if changed:
                self.tell(f"resuming on another footing, so the last bits may differ: {'; '.join(changed)}")
            write_json(run.config, self.meta)
        else:  # together: a kill leaves the run that was there before, or this one; and a full disk is found now
            self._count()
            with bundle(run.path, remove=FILES) as new:
                write_json(new / run.config.name, self.meta)
                for name, content in self.trainer.files.items():
                    write_atomic(new / name, content)
                write_checkpoint(new / NEWEST, self.live.checkpoint(self.meta))
        tensorboard = run.tensorboard if self.config.tensorboard else None
        self.log = RunLog(run.log, tensorboard, keep_up_to=self.step if resumed else -1, tell=self.tell)

    def _on_first_process(self, action: Callable[[], object]) -> None:
        """Only the first process touches the folder; if that fails, all stop with its message."""
        message = ""
        if self.rank == 0:
            try:
                action()
            except UserError as error:
                message = str(error)
        message = self._from_first_process(message)
        if message:
            raise UserError(message)

    def _check_others(self) -> None:
        """Before sums of different models are added: each process has read the images and decided on its own."""
        mine = {"about": self.trainer.about, **self.config.must_match_on_resume(), "images": len(self.trainer.train)}
        wrong = differences(self._from_first_process(mine), mine)
        if wrong:
            raise UserError(
                f"process {self.rank} would learn something else than the first ({'; '.join(wrong)[:300]}): "
                "give all the same images, and say --size and --encoder where they are chosen by the time there is."
            )

    def _from_first_process(self, value: T) -> T:
        return value if self.processes == 1 else self.fabric.broadcast(value)

    def tell(self, message: str) -> None:
        if self.bar is not None:
            self.bar.tell(message)

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
        if self.bar is not None:
            self.bar.close()

    # ---- the loop ----

    @property
    def step(self) -> int:
        return self.live.counters.step

    @property
    def epoch(self) -> float:
        return self.step / self.plan.steps_per_epoch

    def _seconds(self) -> float:
        return time.monotonic() - self.started

    def _count(self, **changes: Any) -> None:
        self.live.counters = dataclasses.replace(self.live.counters, seconds=self._seconds(), **changes)

    def loop(self, signals: SignalFlag) -> Fitted:
        self.live.module.train()
        try:
            while True:
                # at the top, so that a run that was stopped in a validation begins by repeating it
                if self.step % self.plan.steps_per_epoch == 0 and self.live.counters.ended_step < self.step:
                    self._end_epoch(signals)
                reason = self._reason_to_stop()
                if reason:
                    break
                gone = self._seconds() / self.max_seconds if self.rank == 0 else 0.0  # one clock counts
                agreed = self.stepper.take(self.live, signal_number=signals.number, late=gone >= 1, time_gone=gone)
                self.late = agreed.late
                self._report_step()
                if agreed.signal_number:
                    self._leave(agreed.signal_number)
                if self._save_is_due():
                    self._try_to_save("newest")
            if self.live.counters.validated_step < self.step:  # a limit in the middle of an epoch
                self._validate(signals)
        except ValidationStopped:
            self._leave(signals.number)
        self._count()
        if self.rank == 0:
            self._save("newest")
        return self._fitted(reason)

    def _reason_to_stop(self) -> str:
        config, counters, per_epoch = self.config, self.live.counters, self.plan.steps_per_epoch
        if config.patience is not None and counters.best is not None:
            waited = (counters.ended_step - counters.best_step) / per_epoch
            if waited >= config.patience:
                return f"no better {config.metric} for {config.patience} epochs"
        if config.max_epochs is not None and self.step >= config.max_epochs * per_epoch:
            return f"{config.max_epochs} epochs are done"
        if config.max_steps is not None and self.step >= config.max_steps:
            return f"{config.max_steps} steps are done"
        return f"{config.max_minutes:g} minutes are over" if self.late else ""

    def _report_step(self) -> None:
        means = None
        if self.step % self.config.log_every == 0:
            means = self.live.meter.means()
            self._count()
            rate, bad_steps = self.stepper.rate(self.step - 1), self.live.counters.bad_steps
            self._write_row("train", {**means, "rate": rate, "bad_steps": bad_steps})
        if self.bar is not None:
            self.bar.step(self.step, self.epoch, self._seconds(), terms=means)

    def _write_row(self, split: str, terms: Mapping[str, float]) -> None:
        if self.log is not None:
            row = {"step": self.step, "epoch": round(self.epoch, 3), "split": split}
            self.log.write({**row, "seconds": round(self.live.counters.seconds, 3), **terms})

    # ---- the end of an epoch ----

    def _end_epoch(self, signals: SignalFlag) -> None:
        epoch = self.step // self.plan.steps_per_epoch
        if epoch % self.config.validate_every == 0:
            self._validate(signals)
        if self.trainer.on_epoch is not None:
            rate = self.stepper.rate(self.step)
            self.trainer.on_epoch(TrainerState(self.live.counters, self.epoch, rate, self.validation))
            self.live.module.train()
        self._count(ended_step=self.step)
        self._try_to_save("newest")

    def _validate(self, signals: SignalFlag) -> None:
        """Terms over the validation set with the averaged weights, if there are any; keeps the best weights."""
        trainer, config, average = self.trainer, self.config, self.live.average
        if trainer.validate is None and trainer.valid is None:
            return
        with in_place(average):
            if trainer.validate is not None:
                self.live.module.eval()  # on the first process, for which the others wait below
                terms = dict(trainer.validate(self.live.module)) if self.rank == 0 else {}
                self.live.module.train()
            else:
                assert trainer.valid is not None
                terms = validate(
                    trainer.objective,
                    trainer.valid,
                    batch_size=config.validation_batch_size,
                    seed=config.seed,
                    rank=self.rank,
                    processes=self.processes,
                    autocast=self.fabric.autocast,
                    stop=lambda: self.processes == 1 and signals.number > 0,
                )
        terms = self._from_first_process(terms)
        if config.metric not in terms:
            raise UserError(f"metric {config.metric!r} is not among the validation terms {', '.join(terms)}.")
        self.validation = terms
        self._count(validated_step=self.step)
        better = self._keep_if_best(terms[config.metric])
        self._write_row("valid", terms)
        if self.bar is not None:
            self.bar.validated(self.step, self.epoch, terms, " (best)" if better else "")

    def _keep_if_best(self, value: float) -> bool:
        """Before newest.safetensors, so that newest never claims a best that is not there."""
        former = self.live.counters
        sign = 1 if self.config.metric_rises else -1
        if not math.isfinite(value) or (former.best is not None and sign * value <= sign * former.best):
            return False
        self._count(best=value, best_step=self.step)
        saved = self._from_first_process(self._try_to_save("best"))
        if not saved:  # "best" is what is kept
            self.live.counters = former
        return saved

    # ---- saving and leaving ----

    def _save_is_due(self) -> bool:
        config = self.config
        if self.rank != 0 or self.step % self.plan.steps_per_epoch == 0:  # the end of the epoch saves anyway
            return False
        by_steps = config.checkpoint_steps is not None and self.step % config.checkpoint_steps == 0
        minutes = (time.monotonic() - self.saved_at) / 60
        return by_steps or (config.checkpoint_minutes is not None and minutes >= config.checkpoint_minutes)

    def _save(self, which: Which) -> None:
        self._count()
        if self.run is not None:
            path = self.run.newest if which == "newest" else self.run.best
            write_checkpoint(path, self.live.checkpoint(self.meta))
        elif which == "best":
            self.kept[which] = self.live.checkpoint(self.meta)
        if which == "newest":
            self.saved_at, self.saved_step = time.monotonic(), self.step

    def _try_to_save(self, which: Which) -> bool:
        """A failure costs the checkpoint, not the training: the old file is whole, and the next time may succeed."""
        if self.rank != 0:
            return True
        try:
            self._save(which)
        except UserError as error:
            self.saved_at = time.monotonic()  # not again at every step
            self.tell(f"{error} Training goes on; resuming would go back to step {self.saved_step}.")
            return False
        return True

    def _leave(self, signal_number: int) -> None:
        if self.rank == 0:
            try:
                self._save("newest")
            except UserError as error:
                raise UserError(f"{error} Resuming will go back to step {self.saved_step}.") from error
        if self.run is None:
            raise Interrupted(f"stopped after step {self.step}.", signal_number)
        raise Interrupted(
            f"stopped after step {self.step}, saved in {self.run.newest}. "
            "To go on, give the same command with --resume (in Python: train(..., resume=True)).",
            signal_number,
        )

    def _fitted(self, reason: str) -> Fitted:
        counters, run = self.live.counters, self.run
        best = counters.best is not None
        weights: Mapping[str, Mapping[str, Tensor]] = {}
        if run is None:
            kept = self.kept["best"] if best else self.live.checkpoint(self.meta)
            weights = {part: kept.part(part) for part in self.trainer.objective.parts()}
        return Fitted(
            reason=reason,
            step=counters.step,
            epoch=self.epoch,
            seconds=counters.seconds,
            best=counters.best,
            best_step=counters.best_step,
            bad_steps=counters.bad_steps,
            validation=self.validation,
            checkpoint=Path() if run is None else run.best if best else run.newest,
            weights=weights,
        )
