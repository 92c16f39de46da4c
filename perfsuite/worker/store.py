"""Torch's stores, where processes meet. Runs in ranks and messengers."""

import datetime
import os
import socket
from pathlib import Path

import torch.distributed as dist

# Documented, and missing in __all__.
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from perfsuite.ranks.messages import RankStart

__all__ = ["PrefixStore", "Store", "TCPStore"]

# Torch's own default for NCCL.
_PREPARATION_S = 600.0

# The base of all that torch raises about a store.
StoreError = dist.DistError


def open_store(
    host: str, port: int, *, prefix: str, timeout_s: float, is_host: bool = False
) -> Store:
    """Return a new connection to the store, which puts `prefix` before every key.

    It tries to connect, and waits for a key, for `timeout_s` at most. With `is_host` this process
    keeps the store. Raises a StoreError where there is no store, or the port is taken.
    """
    timeout = datetime.timedelta(seconds=timeout_s)
    server = TCPStore(host, port, is_master=is_host, timeout=timeout, wait_for_workers=False)
    return PrefixStore(prefix, server)


def group_store(start: RankStart) -> Store:
    """Return a store of this group of ranks alone."""
    rendezvous = start.assignment.rendezvous
    if rendezvous is None:
        return FileStore(str(Path(start.folder) / "store"), start.request.world_size)
    host, port, prefix = rendezvous.host, rendezvous.port, rendezvous.prefix
    timeout_s = start.request.policy.collective_timeout_s
    return open_store(host, port, prefix=prefix, timeout_s=timeout_s)


def patience(start: RankStart) -> datetime.timedelta:
    """Return how long collectives may wait until `shorten_patience`.

    GPUs take seconds to wake, and their ranks compile for minutes, some longer than others.
    """
    policy = start.request.policy
    timeout_s = policy.collective_timeout_s
    if start.assignment.backend == "nccl":
        timeout_s = max(timeout_s, policy.timeout_s, _PREPARATION_S)
    return datetime.timedelta(seconds=timeout_s)


def shorten_patience(start: RankStart) -> None:
    """Have a collective that waits for `collective_timeout_s` fail, now that ranks are alike."""
    if start.assignment.backend != "nccl" or not dist.is_initialized():
        return
    timeout = datetime.timedelta(seconds=start.request.policy.collective_timeout_s)
    # Until torch 2.15 it had no public name.
    getattr(dist, "set_timeout", dist.distributed_c10d._set_pg_timeout)(timeout)


def prefer_loopback(start: RankStart) -> None:
    """Let gloo use it where the ranks share a machine, whose name may lead nowhere."""
    rendezvous = start.assignment.rendezvous
    shares_machine = rendezvous is None or rendezvous.is_on_one_machine
    has_loopback = any(name == "lo" for _, name in socket.if_nameindex())
    if shares_machine and has_loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
