"""Requests that wait are answered together: a queue with one worker thread that takes all that is there, up to a limit.

A model needs little more time for 32 images than for one. While one batch is worked on the next one gathers, so a
single request is answered at once and many share the cost. Those who have just been answered together often ask again
together, a moment after each other: after a batch of several the worker waits until as many are there again, at most
as long as that batch took. The answers of a batch go to the event loop in one piece: to wake it for each costs more
than the rest of the way.
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_PATIENCE = 0.03  # seconds that gathering takes at most


class Full(Exception):
    """Too much is waiting already; to be asked again a little later."""


class Batcher(Generic[Item, Answer]):
    """`work` gets a batch, in a thread of its own, and gives one answer for each of its items, in their order."""

    def __init__(self, work: Callable[[Sequence[Item]], Sequence[Answer]], *, batch: int, waiting: int) -> None:
        self._work, self._batch, self._most = work, batch, waiting
        self._queue: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._enough = 1  # items for which the worker is woken
        self._last, self._took = 0, 0.0  # items and seconds of the last batch
        self.batches = self.items = 0  # done so far
        self._thread = threading.Thread(target=self._run, name="semisight-model", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def ask(self, items: Sequence[Item]) -> list[Answer]:
        """The answers, in order. All items are taken, or none (Full); who stops waiting takes them back."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Answer]] = [loop.create_future() for _ in items]
        with self._changed:
            if self._closed or len(self._queue) + len(items) > self._most:
                raise Full
            self._queue.extend(zip(items, futures, strict=True))
            if len(self._queue) >= self._enough:
                self._changed.notify()
        return list(await asyncio.gather(*futures))

    def close(self) -> None:
        """Finishes the batch at hand; what still waits is cancelled."""
        with self._changed:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
            self._changed.notify()
        for _, future in left:
            _tell(future, future.cancel)
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._gather()
                if self._closed:
                    return
                taken = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
            # Whoever has gone away or waited too long has cancelled: no work is done for them.
            wanted = [(item, future) for item, future in taken if not future.cancelled()]
            self._last, started = len(wanted), time.monotonic()
            if wanted:
                self._answer(wanted)
            self._took = time.monotonic() - started

    def _gather(self) -> None:
        self._enough = 1
        self._changed.wait_for(lambda: self._queue or self._closed)
        self._enough = max(1, self._last)
        if len(self._queue) < self._enough:
            self._changed.wait_for(lambda: len(self._queue) >= self._enough or self._closed, min(self._took, _PATIENCE))

    def _answer(self, wanted: list[tuple[Item, "asyncio.Future[Answer]"]]) -> None:
        futures = [future for _, future in wanted]
        try:
            answers = self._work([item for item, _ in wanted])
            if len(answers) != len(wanted):
                raise RuntimeError(f"{len(answers)} answers to {len(wanted)} questions")
        except Exception as error:  # the thread must live: the error belongs to those who asked
            problem = error
            _tell(futures[0], lambda: _fail(futures, problem))
            return
        self.batches, self.items = self.batches + 1, self.items + len(wanted)
        _tell(futures[0], lambda: _resolve(futures, answers))


def _tell(future: "asyncio.Future[Answer]", what: Callable[[], object]) -> None:
    """In the thread of the event loop that waits for it; there is one for all, and at the end there may be none."""
    with contextlib.suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(what)


def _resolve(futures: Sequence["asyncio.Future[Answer]"], answers: Sequence[Answer]) -> None:
    for future, answer in zip(futures, answers, strict=True):
        if not future.done():
            future.set_result(answer)


def _fail(futures: Sequence["asyncio.Future[Answer]"], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
