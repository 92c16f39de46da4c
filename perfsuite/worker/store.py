"""Torch's TCP store, where processes under torchrun meet. Runs in ranks and messengers."""

from __future__ import annotations

import datetime

import torch.distributed as dist

# Documented, and missing in __all__.
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

__all__ = ["Store", "StoreError", "open_store"]

# The base of all that torch raises about a store.
StoreError = dist.DistError


def open_store(
    host: str, port: int, *, prefix: str, timeout_s: float, is_host: bool = False
) -> Store:
    """Return a new connection to the store, which puts `prefix` before every key.

    It tries to connect, and waits for a key, for `timeout_s` at most. With `is_host` this process
    keeps the store. Raises a StoreError where there is no store, or the port is taken.
    """
    server = TCPStore(
        host,
        port,
        is_master=is_host,
        timeout=datetime.timedelta(seconds=timeout_s),
        wait_for_workers=False,
    )
    return PrefixStore(prefix, server)
