"""A rank of a user's command: measured from its first optimizer step until it has taken enough.

Runs in the user's own process, where the hook in `perfsuite.ranks.command.hooked` loads it by name.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable
from multiprocessing import util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from perfsuite.ranks import messages
from perfsuite.ranks.messages import Joined
from perfsuite.ranks.progress import Board
from perfsuite.records import stages
from perfsuite.records.stages import StopLoop
from perfsuite.worker.jobs import loader_workers
from perfsuite.worker.jobs.cell import Measurement
from perfsuite.worker.jobs.user_code import UserLoop
from perfsuite.worker.main import failed
from perfsuite.worker.measure.environment import describe_environment
from perfsuite.worker.store import meet_ranks
from perfsuite.worker.training.optimizers import device_of

# Before any other finalizer of the process: workers and process groups still live.
_FIRST = 1000


class StopCommand(StopLoop, SystemExit):
    """Ends the rank: where nothing catches it, with exit code 0 and without a word."""


def join(path: str, loss: Any, optimizer: Any) -> CommandRank:
    """Return this process as a rank, when all others have come; `loss` is its first step's.

    That step was the optimizer's, if it is not None. Which rank this is, torchrun's variables say,
    else its process group; else it is the only one.
    """
    device = device_of(optimizer)
    group = dist.is_available() and dist.is_initialized()
    rank = int(os.environ.get("RANK", dist.get_rank() if group else 0))
    world_size = int(os.environ.get("WORLD_SIZE", dist.get_world_size() if group else 1))
    joined = Joined(process=os.getpid(), rank=rank, world_size=world_size, device=device.type)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.connect(path)
    pipe: Connection[Any, Any] = Connection(channel.detach())
    try:
        pipe.send(joined)
        command = CommandRank(pipe.recv(), pipe, device)
    except (EOFError, OSError):  # the controller has ended this command
        raise StopCommand from None
    if loss is not None:
        command.log_loss(loss)
    return command


class CommandRank:
    """This process: the loop that runs in it, as a listener, and the measurement of that."""

    def __init__(
        self, start: messages.RankStart, pipe: Connection[Any, Any], device: torch.device
    ) -> None:
        job = start.request.job
        assert isinstance(job, messages.RunCell)
        assert job.user_code is not None
        self._pipe = pipe
        environment = describe_environment(device.type)
        world_size = start.request.world_size
        self._board = board = Board(Path(start.folder) / "progress", world_size).writer(start.rank)
        largest = None if world_size == 1 else meet_ranks(start)
        loader_workers.other_ranks.update(start.processes)
        is_gated = start.request.policy.turns is not None
        # Nothing need call this loop: it has begun.
        self._loop = UserLoop(job.user_code, lambda: None, largest, digests_weights=is_gated)
        self._measurement = Measurement(self._loop, job.plan, environment, device, board, start)
        self._loop.begin(self._measurement.asked(), board.begin_step)
        self.stage, self.log_loss = self._loop.stage, self._loop.log_loss
        stages.listen(self)
        os.register_at_fork(after_in_child=stages.listen)
        util.Finalize(None, self._end_by_itself, exitpriority=_FIRST)

    def after_optimizer(self, optimizer: Any) -> None:
        """Hear that an optimizer has stepped."""
        self._tell(self._loop.after_optimizer, optimizer)

    def step_done(self) -> None:
        """Hear that a step ends here."""
        self._tell(self._loop.step_done)

    def _tell(self, hear: Callable[..., None], *what: Any) -> None:
        try:
            hear(*what)
        except StopLoop:
            self._reply("finish")
            raise StopCommand from None

    def _end_by_itself(self) -> None:
        """Reply as the process ends, unless an exception ends it, which has been printed."""
        if sys.exc_info()[0] is None and not hasattr(sys, "last_value"):
            self._reply("exit")

    def _reply(self, phase: str) -> None:
        """Reply where none was sent; a rank in phase "exit" must end with exit code 0."""
        if self._pipe.closed:
            return
        self._board.enter_phase(phase)
        stages.listen(None)
        reply: messages.Reply
        try:
            self._loop.finish()
            reply = self._measurement.result()
        except Exception as error:  # noqa: BLE001  # the controller raises it
            reply = failed(error)
        with contextlib.suppress(OSError):  # the controller has ended this command
            self._pipe.send(reply)
        self._pipe.close()
