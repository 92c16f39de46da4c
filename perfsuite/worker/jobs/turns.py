"""A rank's turns: a round waits until the other arm of a comparison is blocked.

The rank's end of the channel that the gate opens; the first rank of a group speaks for all.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from perfsuite.ranks.messages import TurnChannel

# Of rounds in a first launch: starting ranks costs as much.
_FIRST_S = 1.0


class Turns:
    """The turns of one arm."""

    def __init__(self, channel: TurnChannel) -> None:
        """Connect to the gate."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(channel.path)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._tell(kind="hello", arm=channel.arm)

    @contextmanager
    def take(self) -> Iterator[None]:
        """Hold the turn: entered when it is this arm's, and handed on at the end."""
        self._tell(kind="turn")
        self._listen()
        yield
        self._tell(kind="done")

    def agree(self, num_iterations: int, iteration_s: float) -> tuple[int, int]:
        """Return the iterations of a round, and the rounds, that both arms run.

        Args:
            num_iterations: What this arm alone would run.
            iteration_s: Seconds of one.
        """
        self._tell(
            kind="shape", iterations=num_iterations, iteration_s=iteration_s, first_s=_FIRST_S
        )
        answer = json.loads(self._listen())
        return answer["iterations"], answer["rounds"]

    def tell_modules(self, files: Mapping[str, str]) -> None:
        """Say which file each top-level module was imported from."""
        self._tell(kind="modules", modules=dict(files))

    def _listen(self) -> str:
        line = self._lines.readline()
        if not line:
            os._exit(1)  # the gate is gone, and this process is its own
        return line

    def _tell(self, **message: Any) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")
