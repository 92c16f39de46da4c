"""The ranks of a user's loop, which meet in a process group that the loop cannot see."""

import datetime
import os
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist

from perfsuite.ranks.messages import RankStart
from perfsuite.worker.store import PrefixStore, TCPStore, group_store, prefer_loopback

_LOCAL_HOST = "127.0.0.1"
# The key of its store's port.
_PORT = "port of the loop"


# Returns the largest of each value over all ranks, which all call it; no operator of it is in the
# loop's own process group.
Largest = Callable[[Sequence[float]], list[float]]


def _largest(group: dist.ProcessGroupGloo, values: Sequence[float]) -> list[float]:
    largest = torch.tensor(values, dtype=torch.float64)
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    group.allreduce([largest], options).wait()  # type: ignore[attr-defined]  # untyped
    return largest.tolist()


def meet_ranks(start: RankStart) -> Largest:
    """Meet the other ranks of a command, and change nothing that its code can see."""
    rank, world_size = start.rank, start.request.world_size
    timeout = datetime.timedelta(seconds=start.request.policy.collective_timeout_s)
    store = PrefixStore("perfsuite", group_store(start))
    before = dict(os.environ)
    prefer_loopback(start)
    try:
        return partial(_largest, dist.ProcessGroupGloo(store, rank, world_size, timeout))
    finally:
        for name in os.environ.keys() - before:
            del os.environ[name]


def join_ranks(start: RankStart) -> Largest:
    """Set torchrun's variables in this rank, and meet the others."""
    rank, world_size = start.rank, start.request.world_size
    rendezvous = start.assignment.rendezvous
    prefer_loopback(start)
    host = _LOCAL_HOST if rendezvous is None else rendezvous.host
    meeting = group_store(start)
    port = int(meeting.get(_PORT)) if rank > 0 else 0
    timeout = datetime.timedelta(seconds=start.request.policy.collective_timeout_s)
    # Kept by rank 0, as torchrun keeps one for the processes that it starts.
    store = TCPStore(host, port, is_master=rank == 0, timeout=timeout, wait_for_workers=False)
    if rank == 0:
        meeting.set(_PORT, str(store.port))
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(start.assignment.place),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(start.assignment.num_neighbours),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_RUN_ID": "perfsuite",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    group = dist.ProcessGroupGloo(PrefixStore("perfsuite", store), rank, world_size, timeout)
    return partial(_largest, group)
