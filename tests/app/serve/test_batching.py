"""The queue: what waits is answered together, what is too much is refused, what fails hurts nobody else."""

import threading
import time
from collections.abc import Sequence

import pytest

from semisight.app.serve.batching import Batcher, Full


def test_what_waits_is_answered_together_and_in_order() -> None:
    seen: list[int] = []
    go = threading.Event()

    def work(items: Sequence[int]) -> list[int]:
        go.wait(5)
        seen.append(len(items))
        return [10 * item for item in items]

    batcher = Batcher(work, batch=4, waiting=20)
    first = batcher.submit([0])
    time.sleep(0.05)  # taken by the worker, which now waits
    others = [batcher.submit([i])[0] for i in range(1, 11)]
    go.set()
    assert first[0].result(5) == 0
    assert [future.result(5) for future in others] == [10 * i for i in range(1, 11)]
    assert seen == [1, 4, 4, 2]
    assert (batcher.items, batcher.batches) == (11, 4)
    batcher.close()


def test_too_much_is_refused_whole() -> None:
    go = threading.Event()
    batcher = Batcher(lambda items: [go.wait(5) for _ in items], batch=1, waiting=3)
    taken = batcher.submit([1])
    time.sleep(0.05)
    batcher.submit([2, 3])
    with pytest.raises(Full):
        batcher.submit([4, 5])
    assert batcher.waiting == 2
    last = batcher.submit([6])
    go.set()
    assert taken[0].result(5) and last[0].result(5)
    batcher.close()
    with pytest.raises(Full):
        batcher.submit([7])


def test_an_error_belongs_to_those_who_asked() -> None:
    def work(items: Sequence[int]) -> list[int]:
        if 3 in items:
            raise RuntimeError("no threes")
        return [] if 5 in items else list(items)

    batcher = Batcher(work, batch=8, waiting=8)
    with pytest.raises(RuntimeError, match="no threes"):
        batcher.submit([3])[0].result(5)
    with pytest.raises(RuntimeError, match="0 answers to 1"):
        batcher.submit([5])[0].result(5)
    assert batcher.submit([4])[0].result(5) == 4
    batcher.close()


def test_no_work_is_done_for_those_who_left() -> None:
    done: list[int] = []
    go = threading.Event()

    def work(items: Sequence[int]) -> list[int]:
        go.wait(5)
        done.extend(items)
        return list(items)

    batcher = Batcher(work, batch=1, waiting=8)
    first = batcher.submit([1])[0]
    time.sleep(0.05)
    gone, stays = batcher.submit([2])[0], batcher.submit([3])[0]
    assert gone.cancel()
    go.set()
    assert first.result(5) == 1 and stays.result(5) == 3
    batcher.close()
    assert done == [1, 3]


def test_closing_cancels_what_waits() -> None:
    go = threading.Event()
    batcher = Batcher(lambda items: [go.wait(5) for _ in items], batch=1, waiting=8)
    first = batcher.submit([1])[0]
    time.sleep(0.05)
    second = batcher.submit([2])[0]
    threading.Timer(0.1, go.set).start()
    batcher.close()
    assert first.result(5) and second.cancelled()
