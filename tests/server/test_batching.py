"""The queue: what waits is answered together, what is too much is refused, what fails hurts nobody else."""

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from semisight.server.batching import Batcher, Full


async def taken(batcher: Batcher[int, int]) -> None:
    """Until the worker has nothing left to take."""
    for _ in range(1000):
        await asyncio.sleep(0.01)
        if not batcher.waiting:
            return
    pytest.fail("the worker never took it")


def test_what_waits_is_answered_together_and_in_order() -> None:
    seen: list[int] = []
    go = threading.Event()

    def work(items: Sequence[int]) -> list[int]:
        go.wait(5)
        seen.append(len(items))
        return [10 * item for item in items]

    async def ask() -> None:
        first = asyncio.create_task(batcher.ask([0]))
        await taken(batcher)  # by the worker, which now waits
        others = [asyncio.create_task(batcher.ask([i])) for i in range(1, 11)]
        await asyncio.sleep(0.05)
        go.set()
        assert await first == [0]
        assert await asyncio.gather(*others) == [[10 * i] for i in range(1, 11)]

    batcher = Batcher(work, batch=4, waiting=20)
    asyncio.run(ask())
    assert seen == [1, 4, 4, 2]
    assert (batcher.items, batcher.batches) == (11, 4)
    batcher.close()


def test_those_who_ask_again_after_a_batch_are_waited_for() -> None:
    """Four who each ask again a moment after their answer, one after the other, stay together; one alone never waits
    for others, but for the first time after them."""
    seen: list[int] = []

    def work(items: Sequence[int]) -> list[int]:
        time.sleep(0.03)
        seen.append(len(items))
        return list(items)

    async def one_of_four(number: int) -> None:
        for _ in range(5):
            await batcher.ask([number])
            await asyncio.sleep(0.004 * number)

    async def ask() -> float:
        await asyncio.gather(*(one_of_four(number) for number in range(4)))
        await batcher.ask([9])
        times = []
        for _ in range(4):
            started = time.perf_counter()
            await batcher.ask([9])
            times.append(time.perf_counter() - started)
        return min(times)

    batcher = Batcher(work, batch=8, waiting=8)
    alone = asyncio.run(ask())
    batcher.close()
    assert sum(seen) == 25 and seen[-5:] == [1] * 5
    assert sum(seen[:-5]) / len(seen[:-5]) > 2.5  # without waiting: 1, 3, 1, 3 ...
    assert alone < 0.055  # 0.03 is the work


def test_too_much_is_refused_whole() -> None:
    go = threading.Event()
    batcher = Batcher(lambda items: [int(go.wait(5)) for _ in items], batch=1, waiting=3)

    async def ask() -> None:
        first = asyncio.create_task(batcher.ask([1]))
        await taken(batcher)
        more = asyncio.create_task(batcher.ask([2, 3]))
        await asyncio.sleep(0)
        with pytest.raises(Full):
            await batcher.ask([4, 5])
        assert batcher.waiting == 2
        last = asyncio.create_task(batcher.ask([6]))
        await asyncio.sleep(0)
        go.set()
        assert await asyncio.gather(first, more, last) == [[1], [1, 1], [1]]

    asyncio.run(ask())
    batcher.close()
    with pytest.raises(Full):
        asyncio.run(batcher.ask([7]))


def test_an_error_belongs_to_those_who_asked() -> None:
    def work(items: Sequence[int]) -> list[int]:
        if 3 in items:
            raise RuntimeError("no threes")
        return [] if 5 in items else list(items)

    async def ask() -> None:
        with pytest.raises(RuntimeError, match="no threes"):
            await batcher.ask([3, 3])
        with pytest.raises(RuntimeError, match="0 answers to 1"):
            await batcher.ask([5])
        assert await batcher.ask([4]) == [4]

    batcher = Batcher(work, batch=8, waiting=8)
    asyncio.run(ask())
    batcher.close()


def test_no_work_is_done_for_those_who_left() -> None:
    done: list[int] = []
    go = threading.Event()

    def work(items: Sequence[int]) -> list[int]:
        go.wait(5)
        done.extend(items)
        return list(items)

    async def ask() -> None:
        first = asyncio.create_task(batcher.ask([1]))
        await taken(batcher)
        gone, stays = (asyncio.create_task(batcher.ask([number])) for number in (2, 3))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        go.set()
        assert await first == [1] and await stays == [3]
        assert gone.cancelled()

    batcher = Batcher(work, batch=1, waiting=8)
    asyncio.run(ask())
    batcher.close()
    assert done == [1, 3]


def test_closing_cancels_what_waits() -> None:
    go = threading.Event()
    batcher = Batcher(lambda items: [int(go.wait(5)) for _ in items], batch=1, waiting=8)

    async def ask() -> None:
        first = asyncio.create_task(batcher.ask([1]))
        await taken(batcher)
        second = asyncio.create_task(batcher.ask([2]))
        await asyncio.sleep(0)
        threading.Timer(0.1, go.set).start()
        await asyncio.to_thread(batcher.close)
        assert await first == [1]
        with pytest.raises(asyncio.CancelledError):
            await second

    asyncio.run(ask())
