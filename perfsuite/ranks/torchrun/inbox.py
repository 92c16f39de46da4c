"""What passes between a controller and its messenger: one frozen dataclass each, plain values only.

Must not know what the letters say.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfsuite.ranks.torchrun.membership import Membership


@dataclass(frozen=True, kw_only=True)
class MessengerStart:
    """What a messenger is started with.

    Attributes:
        entry: The messenger's function, "package.module:function".
        membership: Whose messenger it is.
        controller: Process id of the one that starts it.
        folder: Temporary folder of its own, for its log.
        arrival_s: How long another messenger may take to come.
        silence_s: How long one that has come may be silent before it counts as lost.
    """

    entry: str
    membership: Membership
    controller: int
    folder: str
    arrival_s: float
    silence_s: float


@dataclass(frozen=True, kw_only=True)
class Letter:
    """What a controller said to all, itself included.

    Attributes:
        content: Pickled.
    """

    content: bytes


@dataclass(frozen=True, kw_only=True)
class Lost:
    """No letter will come any more.

    Attributes:
        reason: Which rank is gone, or that the store is.
    """

    reason: str
