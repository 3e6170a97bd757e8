"""Processes of one attempt agree on a name that no other attempt has, whatever dead ones have left in the store."""

import threading

import pytest
from torch.distributed import DistStoreError, HashStore

from semisight.training.rendezvous import name_of_attempt


def attempt(store: HashStore, processes: int, late: float = 0.0) -> list[str]:
    names = [""] * processes

    def arrive(rank: int) -> None:
        names[rank] = name_of_attempt(store, rank, processes, limit=20)

    threads = [threading.Timer(late if rank else 0.0, arrive, [rank]) for rank in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return names


def test_every_attempt_has_one_name_of_its_own() -> None:
    store, names = HashStore(), []
    with pytest.raises(DistStoreError, match="process 1 of 3 did not arrive"):  # an attempt that ends early
        name_of_attempt(store, 0, 3, limit=0.05)
    for late in (0.0, 0.1, 0.0):  # with what the former attempts have left; the first process before the others, too
        (name,) = set(attempt(store, 3, late))
        names.append(name)
    assert len(set(names)) == 3 and all(names)
