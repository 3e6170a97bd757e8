"""Where the processes of a torchrun job find each other, also after a restart.

torchrun keeps one store for all attempts of a job (torch 2.13, use_agent_store), and init_process_group looks for
addresses in it under the same names every time: processes that were started again find those of dead ones. Neither
torchrun's count of restarts nor its number of the round is both known here and the same on all machines. So the first
process gives every attempt a name of its own, and the others ask for it:

    process r      here/r = own            own: drawn by this process, never used before
    process 0      attempt/own = name      for whatever stands in here/r, again until everyone has answered
    process r      met/name/r

What an earlier attempt left behind is answered too, and nobody reads the answer.
"""

import os
import time
import uuid
from datetime import timedelta

import torch
from torch.distributed import DistStoreError, PrefixStore, Store

_LIMIT = 600.0  # seconds for all processes to arrive: machines do not read their images equally fast
_PAUSE = 0.02


def join(device: torch.device) -> None:
    """Joins the processes that torchrun started, if it did and keeps their store; else leaves it to Fabric."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or torch.distributed.is_initialized():
        return
    store, rank, processes = next(torch.distributed.rendezvous("env://"))
    if processes > 1:
        name = name_of_attempt(PrefixStore("semisight", store), rank, processes)
        backend = torch.distributed.get_default_backend_for_device(device)
        torch.distributed.init_process_group(backend, store=PrefixStore(name, store), rank=rank, world_size=processes)


def name_of_attempt(store: Store, rank: int, processes: int, limit: float = _LIMIT) -> str:
    """The same on all processes of this attempt, and on none of another."""
    own = uuid.uuid4().hex
    if rank > 0:
        store.set(f"here/{rank}", own)
        store.wait([f"attempt/{own}"], timedelta(seconds=limit))
        name = str(store.get(f"attempt/{own}"), "ascii")
        store.set(f"met/{name}/{rank}", "")
        return name
    missing, deadline = set(range(1, processes)), time.monotonic() + limit
    while missing:
        for other in missing:
            if store.check([f"here/{other}"]):
                store.set(f"attempt/{str(store.get(f'here/{other}'), 'ascii')}", own)
        missing = {other for other in missing if not store.check([f"met/{own}/{other}"])}
        if time.monotonic() > deadline:
            raise DistStoreError(f"process {min(missing)} of {processes} did not arrive within {limit:.0f} s")
        time.sleep(_PAUSE)
    return own
