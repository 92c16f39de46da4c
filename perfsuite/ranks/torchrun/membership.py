"""A controller's place among the processes that torchrun started, read from its variables."""

import re
import reprlib
from collections.abc import Mapping
from typing import NamedTuple

from perfsuite.errors import SettingError
from perfsuite.ranks.bootstrap import REQUIRED_VARIABLES, RESTARTS

_MAX_PORT = 65_535
# Ranks are counted by an int in torch (Backend.hpp), and restarts are fewer.
_MAX_INT = 2**31 - 1


class Membership(NamedTuple):
    """One of several pytest processes that are one session."""

    rank: int
    world_size: int
    host: str  # of the TCP store where they meet
    port: int
    hosts_store: bool  # as no agent of torchrun does
    num_restarts: int  # of all of them, by torchrun

    @property
    def is_first(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    @property
    def prefix(self) -> str:
        """Begins all keys of this start in the store, because torchrun's store outlives it."""
        return f"perfsuite/{self.num_restarts}"


def read_membership(environ: Mapping[str, str]) -> Membership | None:
    """Return the place that torchrun's variables give; None where RANK or WORLD_SIZE is not set.

    Raises a SettingError where another required one is not set, or one has a wrong value.
    """
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    if missing := [name for name in REQUIRED_VARIABLES if name not in environ]:
        advice = "start with torchrun, or unset them to run on this machine alone"
        raise SettingError(f"RANK and WORLD_SIZE are set, and {missing[0]} is not; {advice}")
    host = environ["MASTER_ADDR"]
    if not host.strip():
        advice = "use the name or the address of rank 0's host, as torchrun sets it"
        raise SettingError(f"MASTER_ADDR is {host!r} (environment); {advice}")
    world_size = _number(environ, "WORLD_SIZE", smallest=1, largest=_MAX_INT)
    rank = _number(environ, "RANK", smallest=0, largest=world_size - 1)
    return Membership(
        rank=rank,
        world_size=world_size,
        host=host,
        port=_number(environ, "MASTER_PORT", smallest=1, largest=_MAX_PORT),
        hosts_store=rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        num_restarts=_number({RESTARTS: "0", **environ}, RESTARTS, smallest=0, largest=_MAX_INT),
    )


def _number(environ: Mapping[str, str], name: str, *, smallest: int, largest: int) -> int:
    text = environ[name]
    if not re.fullmatch("[0-9]{1,10}", text) or not smallest <= int(text) <= largest:
        advice = f"use a whole number from {smallest} to {largest}, as torchrun sets it"
        raise SettingError(f"{name} is {reprlib.repr(text)} (environment); {advice}")
    return int(text)
