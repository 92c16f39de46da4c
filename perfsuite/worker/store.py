"""Torch's stores, where processes meet. Runs in ranks and messengers."""

import datetime
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

# Documented, and missing in __all__.
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from perfsuite.ranks.messages import RankStart

__all__ = ["Store"]

# The key of its store's port.
_PORT = "port of the loop"
# Torch's own default for NCCL.
_PREPARATION_S = 600.0
# Ranks that wait for the first one may wait long; the controller ends them where it has ended.
FOR_A_TURN = datetime.timedelta(days=1)

# The base of all that torch raises about a store.
StoreError = dist.DistError
# Returns the largest of each value over all ranks, which all call it.
Largest = Callable[[Sequence[float]], list[float]]


def open_store(
    host: str, port: int, prefix: str, timeout_s: float, *, is_host: bool = False
) -> Store:
    """Return a new connection to the store, which puts `prefix` before every key.

    It waits for the store, and for a key, for `timeout_s` at most. With `is_host` this process
    keeps the store. Raises a StoreError where there is none, or the port is taken.
    """
    timeout = datetime.timedelta(seconds=timeout_s)
    server = TCPStore(host, port, is_master=is_host, timeout=timeout, wait_for_workers=False)
    return PrefixStore(prefix, server)


def group_store(start: RankStart) -> Store:
    """Return a store of this group of ranks alone."""
    if (rendezvous := start.assignment.rendezvous) is None:
        store = FileStore(str(Path(start.folder) / "store"), start.request.world_size)
        if start.request.policy.turns is not None:
            store.set_timeout(FOR_A_TURN)
        return store
    timeout_s = patience(start).total_seconds()  # NCCL's ranks find each other by it too
    return open_store(rendezvous.host, rendezvous.port, rendezvous.prefix, timeout_s)


def patience(start: RankStart) -> datetime.timedelta:
    """Return how long collectives may wait until `shorten_patience`."""
    policy = start.request.policy
    timeout_s = policy.collective_timeout_s
    # GPUs take seconds to wake, and their ranks compile for minutes, some longer than others.
    if start.assignment.backend == "nccl":
        timeout_s = max(timeout_s, policy.timeout_s, _PREPARATION_S)
    return datetime.timedelta(seconds=timeout_s)


def shorten_patience(start: RankStart, queued_s: float) -> None:
    """Have a collective that waits for `collective_timeout_s` fail, now that ranks are alike.

    NCCL's watchdog counts from when the host queues it, up to `queued_s` of work ahead.
    """
    if start.assignment.backend != "nccl" or not start.request.needs_group:
        return  # there is none, or a loop's own
    timeout_s = start.request.policy.collective_timeout_s + 2 * queued_s
    # Until torch 2.15 it had no public name.
    set_timeout = getattr(dist, "set_timeout", dist.distributed_c10d._set_pg_timeout)
    set_timeout(datetime.timedelta(seconds=timeout_s))


def prefer_loopback(start: RankStart) -> None:
    """Let gloo use it where the ranks share a machine, whose name may lead nowhere."""
    rendezvous = start.assignment.rendezvous
    shares_machine = rendezvous is None or rendezvous.is_on_one_machine
    if shares_machine and any(name == "lo" for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _meet(start: RankStart, store: Store) -> Largest:
    policy, ranks = start.request.policy, (start.rank, start.request.world_size)
    timeout = datetime.timedelta(seconds=policy.collective_timeout_s)
    timeout = timeout if policy.turns is None else FOR_A_TURN
    # Not the group of the loop, which may do as it likes with its own.
    group = dist.ProcessGroupGloo(PrefixStore("perfsuite", store), *ranks, timeout)
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX

    def largest(values: Sequence[float]) -> list[float]:
        found = torch.tensor(values, dtype=torch.float64)
        group.allreduce([found], options).wait()  # type: ignore[attr-defined]  # untyped
        return found.tolist()

    return largest


def meet_ranks(start: RankStart) -> Largest:
    """Meet the other ranks of a command, and change nothing that its code can see."""
    before = dict(os.environ)
    prefer_loopback(start)
    try:
        return _meet(start, group_store(start))
    finally:
        for name in os.environ.keys() - before:
            del os.environ[name]


def join_ranks(start: RankStart) -> Largest:
    """Set torchrun's variables in this rank, and meet the others."""
    rank, rendezvous = start.rank, start.assignment.rendezvous
    prefer_loopback(start)
    host = "127.0.0.1" if rendezvous is None else rendezvous.host
    meeting = group_store(start)
    port = int(meeting.get(_PORT)) if rank > 0 else 0
    timeout = datetime.timedelta(seconds=start.request.policy.collective_timeout_s)
    # Kept by rank 0, as torchrun keeps one for the processes that it starts.
    store = TCPStore(host, port, is_master=rank == 0, timeout=timeout, wait_for_workers=False)
    if rank == 0:
        meeting.set(_PORT, str(store.port))
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(start.assignment.local_rank),
        "WORLD_SIZE": str(start.request.world_size),
        "LOCAL_WORLD_SIZE": str(start.assignment.local_world_size),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_RUN_ID": "perfsuite",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    return _meet(start, store)
