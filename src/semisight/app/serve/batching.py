"""Requests that wait are answered together: a queue with one worker thread that takes all that is there, up to a limit.

A model needs little more time for 32 images than for one. Nothing waits on purpose: while one batch is worked on the
next one gathers, so a single request is answered at once and many share the cost.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Full(Exception):
    """Too much is waiting already; to be asked again a little later."""


class Batcher(Generic[Item, Answer]):
    """`work` gets a batch and gives one answer for each of its items, in their order."""

    def __init__(self, work: Callable[[Sequence[Item]], Sequence[Answer]], *, batch: int, waiting: int) -> None:
        self._work, self._batch, self._most = work, batch, waiting
        self._queue: deque[tuple[Item, Future[Answer]]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.batches = self.items = 0  # done so far
        self._thread = threading.Thread(target=self._run, name="semisight-model", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def submit(self, items: Sequence[Item]) -> list["Future[Answer]"]:
        """A promise for each item. All are taken, or none (Full)."""
        futures: list[Future[Answer]] = [Future() for _ in items]
        with self._changed:
            if self._closed or len(self._queue) + len(items) > self._most:
                raise Full
            self._queue.extend(zip(items, futures, strict=True))
            self._changed.notify()
        return futures

    def close(self) -> None:
        """Finishes the batch at hand; what still waits is cancelled."""
        with self._changed:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
            self._changed.notify()
        for _, future in left:
            future.cancel()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                taken = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
            # Whoever has gone away or waited too long has cancelled: no work is done for them.
            wanted = [(item, future) for item, future in taken if future.set_running_or_notify_cancel()]
            if wanted:
                self._answer(wanted)

    def _answer(self, wanted: list[tuple[Item, "Future[Answer]"]]) -> None:
        try:
            answers = self._work([item for item, _ in wanted])
            if len(answers) != len(wanted):
                raise RuntimeError(f"{len(answers)} answers to {len(wanted)} questions")
        except Exception as error:  # the thread must live: the error belongs to those who asked
            for _, future in wanted:
                future.set_exception(error)
            return
        self.batches, self.items = self.batches + 1, self.items + len(wanted)
        for (_, future), answer in zip(wanted, answers, strict=True):
            future.set_result(answer)
