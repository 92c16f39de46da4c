"""A group of ranks on this machine: started fresh, watched, blamed, ended.

The controller's end. Ranks are forked from a server that has torch loaded already, so a fresh
group costs a tenth of a second and shares nothing with the one before. Must not know what a job
does, and imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import cast

import psutil

from perfsuite import errors
from perfsuite.errors import (
    DataLoadError,
    NonFiniteError,
    NotExercisedError,
    PerfsuiteError,
    RankFailureError,
)
from perfsuite.ranks import bootstrap
from perfsuite.ranks import failures as failures_module
from perfsuite.ranks.assignments import Assignment, all_assignments
from perfsuite.ranks.forkserver import start_process
from perfsuite.ranks.messages import Failed, Job, RankStart, Reply, Skipped, TurnChannel
from perfsuite.ranks.progress import Board, Position
from perfsuite.system.signals import uninterrupted

# How often the board is looked at while no rank says anything.
LOOK_S = 0.2
# Ranks that lost a peer fail within 32 ms of it (measured, 4 gloo ranks on 2 cores); waiting longer
# than that before blaming lets the true first failure arrive.
CASCADE_S = 0.5
_GRACE_S = 5.0
# Orphans are reaped by init, which may take its time or, in some containers, never do it.
_REAPED_S = 1.0


@dataclass(frozen=True, kw_only=True)
class GroupPolicy:
    """How groups are started and how patient the controller is.

    Attributes:
        device: "cpu" or "cuda".
        num_gpus: GPUs that the ranks see; with fewer than ranks they share them through gloo.
        timeout_s: A group without progress for so long is stuck.
        collective_timeout_s: A collective that waits for so long has lost its peer.
        num_threads: Intra-operator threads of a rank. One: two are bimodal by 22 % on small
            machines, and with a fixed number the losses repeat exactly.
        seed: Seed of each rank before its job.
        import_roots: Folders that come first on the ranks' module path.
        shows_output: Print what the ranks printed when all went well.
        pins_ranks: Give each rank a processor of its own, on a CPU where there are enough.
        entry: The function that a rank runs, "package.module:function": by name, because it imports
            torch.
        turns: Where rounds ask for their turn; None where nobody alternates with them.
    """

    device: str = "cpu"
    num_gpus: int = 0
    timeout_s: float = 120.0
    collective_timeout_s: float = 30.0
    num_threads: int = 1
    seed: int = 0
    import_roots: tuple[str, ...] = ()
    shows_output: bool = True
    pins_ranks: bool = True
    entry: str = "perfsuite.worker.main:serve"
    turns: TurnChannel | None = None


def run_group(
    job: Job, *, world_size: int, policy: GroupPolicy, needs_group: bool = True
) -> list[Reply]:
    """Run `job` on `world_size` fresh ranks and return their replies in rank order.

    Whatever happens, no process, temporary file or shared memory of the group stays.

    Args:
        job: What each rank does.
        world_size: Number of ranks.
        policy: How the ranks are started and watched.
        needs_group: Whether torch.distributed is to be initialised in the ranks.

    Raises:
        RankFailureError: A rank crashed, was killed, hung, or raised; the first one is named.
        NotExercisedError: A rank found that this machine cannot exercise the job.
        PerfsuiteError: A rank raised one of ours, such as a WorkloadError.
    """
    with RankGroup(job, world_size=world_size, policy=policy, needs_group=needs_group) as group:
        return group.collect()


class RankGroup:
    """The running ranks of one job; a context manager that leaves nothing behind."""

    def __init__(
        self,
        job: Job,
        *,
        world_size: int,
        policy: GroupPolicy,
        needs_group: bool,
        part: Assignment | None = None,
    ) -> None:
        """Start the ranks.

        Args:
            job: What each rank does.
            world_size: Number of ranks.
            policy: How they are started and watched.
            needs_group: Whether torch.distributed is to be initialised in the ranks.
            part: The one rank to start here of a group that spans controllers; None starts all.
        """
        parts = (
            (part,)
            if part is not None
            else all_assignments(world_size, device=policy.device, num_gpus=policy.num_gpus)
        )
        self._ranks = tuple(one.rank for one in parts)
        self._world_size = world_size
        self._policy = policy
        self._processes: dict[int, ForkServerProcess] = {}
        self._running: dict[int, psutil.Process] = {}
        self._pipes: dict[int, Connection] = {}
        self._replies: dict[int, Reply | failures_module.Died] = {}
        # What `end` has to do, from the last to the first.
        self._left = contextlib.ExitStack()
        try:
            with uninterrupted():
                self._folder = bootstrap.make_group_folder()
                self._left.callback(bootstrap.remove_group_folder, self._folder)
                self._board = Board(self._folder / "progress", world_size)
                self._left.callback(self._board.close)
                self._left.callback(self._end_processes)
                self._start_all(parts, job, needs_group)
        except BaseException:
            self.end()
            raise
        self._watch = failures_module.ProgressWatch(self._board, world_size)

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _start_all(self, parts: Sequence[Assignment], job: Job, needs_group: bool) -> None:
        policy = self._policy
        cores = tuple(sorted(os.sched_getaffinity(0)))
        pins = policy.pins_ranks and policy.device == "cpu"
        for one in parts:
            start = RankStart(
                entry=policy.entry,
                rank=one.rank,
                world_size=self._world_size,
                folder=str(self._folder),
                device=policy.device,
                gpu=one.gpu,
                backend=one.backend if needs_group else None,
                rendezvous=one.rendezvous,
                collective_timeout_s=policy.collective_timeout_s,
                num_threads=policy.num_threads,
                core=one.core_of(cores) if pins else None,
                cores=cores,
                import_roots=policy.import_roots,
                seed=policy.seed,
                turns=policy.turns,
                job=job,
            )
            try:
                process, pipe = start_process(bootstrap.enter_rank, start)
            except (EOFError, ConnectionError) as error:
                raise failures_module.unstarted_error(
                    one.rank, world_size=self._world_size
                ) from error
            self._processes[one.rank], self._pipes[one.rank] = process, pipe
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
                self._running[one.rank] = psutil.Process(process.pid)

    def collect(self) -> list[Reply]:
        """Wait for every rank's reply.

        Raises:
            PerfsuiteError: As `run_group` says.
        """
        while (replies := self.look(LOOK_S)) is None:
            pass
        return replies

    def sources(self) -> list[Connection | int]:
        """What becomes ready when there is something to see: pipes and process sentinels."""
        return list(self._sources())

    def look(self, timeout_s: float) -> list[Reply] | None:
        """Return every rank's reply in rank order, or None while some are still to come.

        Args:
            timeout_s: How long to wait for something new.

        Raises:
            PerfsuiteError: As `run_group` says.
        """
        newly = self._receive(timeout_s)
        if any(isinstance(reply, Failed | failures_module.Died) for reply in newly.values()):
            self._receive_cascade()
        elif not any(isinstance(reply, Skipped) for reply in newly.values()):
            waiting = self._waiting()
            if waiting and self._watch.stuck_for_s(waiting) > self._policy.timeout_s:
                raise self._stuck(waiting)
            if waiting:
                return None
        self._raise_first_failure()
        if self._policy.shows_output:
            self._show_logs()
        return [cast(Reply, self._replies[rank]) for rank in self._ranks]

    def _waiting(self) -> list[int]:
        return [rank for rank in self._ranks if rank not in self._replies]

    def _sources(self) -> dict[Connection | int, int]:
        """The rank of each pipe and sentinel that is still to be heard."""
        sources: dict[Connection | int, int] = {}
        for rank in self._waiting():
            sources[self._pipes[rank]] = rank
            sources[self._processes[rank].sentinel] = rank
        return sources

    def _receive(self, timeout_s: float) -> dict[int, Reply | failures_module.Died]:
        """Take what arrives within the time; return only what is new."""
        sources = self._sources()
        newly: dict[int, Reply | failures_module.Died] = {}
        for ready in wait(list(sources), timeout_s):
            rank = sources[cast("Connection | int", ready)]
            if rank not in newly:
                newly[rank] = self._reply_of(rank)
        self._replies.update(newly)
        return newly

    def _reply_of(self, rank: int) -> Reply | failures_module.Died:
        """Return the reply of a rank whose pipe or sentinel is ready."""
        try:
            if self._pipes[rank].poll():
                reply: Reply = self._pipes[rank].recv()
                return reply
        except (EOFError, ConnectionResetError):
            pass  # it died without a reply, and says how below
        process = self._processes[rank]
        process.join(_GRACE_S)
        last_words = "\n".join(self._log_lines(rank)[-failures_module.NUM_LOG_LINES :])
        return failures_module.Died(
            exit_code=process.exitcode,
            lost_peer=failures_module.says_lost_peer(last_words),
            at_s=time.monotonic(),
        )

    def _receive_cascade(self) -> None:
        end_s = time.monotonic() + CASCADE_S
        while self._waiting() and (left_s := end_s - time.monotonic()) > 0:
            self._receive(left_s)

    def _raise_first_failure(self) -> None:
        replies = self._replies
        for reply in replies.values():
            if isinstance(reply, Skipped):
                raise NotExercisedError(reply.reason)
        failures = {
            rank: reply
            for rank, reply in replies.items()
            if isinstance(reply, Failed | failures_module.Died)
        }
        if not failures:
            return
        rank, failure = failures_module.first_failure(failures)
        running = self._waiting()
        if failure.lost_peer and running:
            positions = {one: self._board.read(one) for one in self._ranks}
            late_rank = failures_module.furthest_behind({one: positions[one] for one in running})
            raise failures_module.late_rank_error(
                late_rank,
                waiting_rank=rank,
                positions=positions,
                world_size=self._world_size,
                timeout_s=self._policy.collective_timeout_s,
                lines=self.where_it_hangs(late_rank),
            )
        if isinstance(failure, Failed) and failure.is_ours:
            kind: type[PerfsuiteError] = getattr(errors, failure.error)
            # An impossible recipe or workload is the same on every rank; a batch or a loss is not.
            is_one_ranks = kind in (NonFiniteError, DataLoadError) and self._world_size > 1
            where = f" (rank {rank} of {self._world_size})" if is_one_ranks else ""
            raise kind(failure.message + where)
        raise failures_module.rank_error(
            rank,
            failure,
            position=self._board.read(rank),
            world_size=self._world_size,
            log=self._log_lines(rank),
        )

    def _stuck(self, waiting: Sequence[int]) -> RankFailureError:
        rank = failures_module.furthest_behind({one: self._board.read(one) for one in waiting})
        return failures_module.stuck_error(
            rank,
            position=self._board.read(rank),
            world_size=self._world_size,
            timeout_s=self._policy.timeout_s,
            num_loader_workers=len(_descendants(self._running[rank])),
            lines=self.where_it_hangs(rank),
        )

    def position(self, rank: int) -> Position:
        """Return where a rank is."""
        return self._board.read(rank)

    def where_it_hangs(self, rank: int) -> tuple[str, ...]:
        """Have a living rank write its stack to its log, and return that."""
        log = bootstrap.log_path(self._folder, rank)
        pid = self._processes[rank].pid
        if pid is None or not self._processes[rank].is_alive() or not log.exists():
            return ()
        if bootstrap.is_stopped(pid):
            return (f"it is stopped: process {pid} was sent SIGSTOP, as a debugger does",)
        num_lines_before, size_before = len(self._log_lines(rank)), log.stat().st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
        failures_module.wait_for_stack(log, size_before)
        return failures_module.current_stack(self._log_lines(rank)[num_lines_before:])

    def _log_lines(self, rank: int) -> tuple[str, ...]:
        path = bootstrap.log_path(self._folder, rank)
        text = path.read_text(errors="replace") if path.exists() else ""
        return tuple(text.splitlines())

    def _show_logs(self) -> None:
        """Print what the ranks printed, for pytest to capture."""
        for rank in self._ranks:
            for line in self._log_lines(rank):
                print(f"[rank {rank}] {line}")

    def end(self) -> None:
        """End every process of the group and remove what it left; Ctrl-C waits for that."""
        with uninterrupted():
            self._left.close()

    def _end_processes(self) -> None:
        # The ranks as well: one whose server was killed only looks as if it had ended.
        left = [one for rank in self._running.values() for one in (rank, *_descendants(rank))]
        for pipe in self._pipes.values():
            pipe.close()  # a rank that has replied waits for this, and leaves
        deadline_s = time.monotonic() + (_GRACE_S if self._all_replied() else 0.0)
        for process in self._processes.values():
            process.join(max(0.0, deadline_s - time.monotonic()))
            if process.exitcode is None:
                process.kill()
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(left, timeout=_REAPED_S)
        for process in self._processes.values():
            process.join()

    def _all_replied(self) -> bool:
        return bool(self._processes) and all(
            self._board.read(rank).phase == "finish" for rank in self._ranks
        )


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []
