"""What a session is run with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfsuite.ranks.messages import TurnChannel
from perfsuite.system.timing_lock import WAIT_S

Device = Literal["auto", "cpu", "cuda"]
DEVICES: tuple[Device, ...] = ("auto", "cpu", "cuda")
# What torch, numpy and Python's own generator all take.
MAX_SEED = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a session is run with, resolved once at the edge.

    Attributes:
        device: Where cells run; "auto" is CUDA where a GPU is visible.
        num_rounds: Timed rounds of a cell that names no number; None where a gate chooses.
        timeout_s: A cell without progress for so long fails.
        collective_timeout_s: A collective that waits for so long fails.
        wait_s: How long to wait for another timing session.
        import_roots: Folders that are searched first for "module:attribute".
        turns: Where timed rounds ask for their turn; the gate that gives them holds the machine.
        shows_output: Print what ranks printed when all went well.
        round_s: What a round should take at least; None is 50 ms.
    """

    device: Device = "auto"
    num_rounds: int | None = 10
    seed: int = 0
    timeout_s: float = 120.0
    collective_timeout_s: float = 30.0
    wait_s: float = WAIT_S
    import_roots: tuple[Path, ...] = ()
    turns: TurnChannel | None = None
    shows_output: bool = True
    round_s: float | None = None
