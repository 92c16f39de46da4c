"""A group of ranks on this machine: started fresh, watched, ended. Runs in the controller."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Self, cast

import psutil

from perfsuite import errors
from perfsuite.errors import PerfsuiteError, RankFailureError
from perfsuite.ranks import bootstrap, failures
from perfsuite.ranks.assignments import Assignment, all_assignments, cores_beside_gpus
from perfsuite.ranks.failures import Died
from perfsuite.ranks.forkserver import start_process, start_server
from perfsuite.ranks.messages import Failed, GroupRequest, RankStart, Reply
from perfsuite.ranks.progress import FIRST_STEP, Board, Position
from perfsuite.records.recipe import Recipe
from perfsuite.system.background import processes_with, signal_all
from perfsuite.system.gpus import visible_gpus
from perfsuite.system.signals import uninterrupted
from perfsuite.units import listed

# How often the board is read while no rank sends anything.
POLL_S = 0.2
# Ranks that lost a peer fail within 32 ms of it (measured, 4 gloo ranks on 2 cores); waiting longer
# than that before a rank is named lets the true first failure arrive.
CASCADE_S = 0.5
# For what ends when its ranks have, such as a launcher, which may look ten times a second.
GRACE_S = 5.0
# init reaps orphans, which may take time; in some containers it never does.
REAPED_S = 1.0


def run_group(request: GroupRequest) -> list[Reply]:
    """Run a job on fresh ranks and return their replies in rank order.

    Whatever happens, no process, temporary file or shared memory of the group stays. Raises an
    error of ours that a rank raised, else a RankFailureError that names the first one that failed.
    """
    with RankGroup(request) as group:
        while (replies := group.poll(POLL_S)) is None:
            pass
        return replies


class RankGroup:
    """The running ranks of one job; a context manager that leaves nothing behind."""

    def __init__(self, request: GroupRequest, only: Assignment | None = None) -> None:
        """Start the ranks, or `only` one of them, if the group spans controllers."""
        device, num_gpus = request.policy.device, request.policy.num_gpus
        whole = all_assignments(request.world_size, device=device, num_gpus=num_gpus)
        assignments = whole if only is None else (only,)
        self._ranks: tuple[int, ...] = tuple(one.rank for one in assignments)
        with uninterrupted():
            start_server()
        self._launch(request, partial(self._start_all, assignments, request))

    def _launch(self, request: GroupRequest, start: Callable[[], None]) -> None:
        self._world_size, self._policy = request.world_size, request.policy
        recipe: Recipe | None = getattr(request.job, "recipe", None)
        self._compiles = recipe is not None and recipe.compile
        self._running: dict[int, psutil.Process] = {}
        self._processes: dict[int, ForkServerProcess] = {}
        self._pipes: dict[int, Connection] = {}
        self._replies: dict[int, Reply | Died] = {}
        # What `end` has to do, from the last to the first.
        self._cleanup = contextlib.ExitStack()
        try:
            with uninterrupted():
                self._folder = bootstrap.make_group_folder()
                self._cleanup.callback(bootstrap.remove_group_folder, self._folder)
                start()
        except BaseException:
            self.end()
            raise

    def _open_board(self) -> None:
        self._board = Board(self._folder / "progress", self._world_size)
        self._cleanup.callback(self._board.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _start_all(self, assignments: Sequence[Assignment], request: GroupRequest) -> None:
        self._open_board()
        self._cleanup.callback(self._end_processes)
        policy = self._policy
        cores = tuple(sorted(os.sched_getaffinity(0)))
        # A processor for each rank that is timed, where there are enough of them.
        pins = not policy.proof and policy.device == "cpu"
        near = [gpu.cores for gpu in visible_gpus()] if policy.device != "cpu" else []
        beside = cores_beside_gpus(assignments, cores, near) if near else {}
        for one in assignments:
            start = RankStart(
                request=request,
                assignment=one,
                folder=str(self._folder),
                core=cores[one.place] if pins and one.num_neighbours <= len(cores) else None,
                cores=beside.get(one.rank, cores),
            )
            try:
                process, pipe = start_process(bootstrap.enter_rank, start)
            except (EOFError, ConnectionError, FileNotFoundError) as error:
                found = "has ended, killed by a user, or by the kernel because memory ran out"
                why = f"{found}; the next cell starts another"
                if isinstance(error, FileNotFoundError):
                    why = "has lost its socket, as if TMPDIR was cleared; start the session again"
                raise RankFailureError(
                    f"rank {one.rank} of {self._world_size} could not be started: the server that "
                    f"ranks are forked from {why}",
                    rank=one.rank,
                ) from error
            self._processes[one.rank], self._pipes[one.rank] = process, pipe
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
                self._running[one.rank] = psutil.Process(process.pid)

    def sources(self) -> Mapping[Connection | int, int]:
        """Return the pipes and process sentinels that become ready when a rank ends, by rank."""
        ends = {one: (self._pipes[one], self._processes[one].sentinel) for one in self._waiting()}
        return {end: rank for rank, both in ends.items() for end in both}

    def poll(self, timeout_s: float) -> list[Reply] | None:
        """Return all replies in rank order, None if some are still to come; see `run_group`."""
        if any(isinstance(reply, Failed | Died) for reply in self._receive(timeout_s)):
            end_s = time.monotonic() + CASCADE_S
            while self._waiting() and (left_s := end_s - time.monotonic()) > 0:
                self._receive(left_s)
        elif waiting := self._waiting():
            if self._board.stuck_for_s(waiting) > self._patience_s(waiting):
                raise self._stuck(waiting)
            return None
        self._raise_first_failure()
        if self._policy.shows_output:
            self._show_logs()
        return [cast(Reply, self._replies[rank]) for rank in self._ranks]

    def _patience_s(self, waiting: Sequence[int]) -> float:
        phases = [self.position(rank).phase for rank in waiting]
        return failures.patience_s(self._policy.timeout_s, compiles=self._compiles, phases=phases)

    def _waiting(self) -> list[int]:
        return [rank for rank in self._ranks if rank not in self._replies]

    def _receive(self, timeout_s: float) -> list[Reply | Died]:
        sources = self.sources()
        ready = wait(list(sources), timeout_s)
        ranks = dict.fromkeys(sources[cast("Connection | int", source)] for source in ready)
        received = {rank: self._reply_of(rank) for rank in ranks}
        self._replies.update(received)
        return list(received.values())

    def _reply_of(self, rank: int) -> Reply | Died:
        # Where it died without a reply, its exit code follows.
        with contextlib.suppress(EOFError, ConnectionResetError):
            if self._pipes[rank].poll():
                return cast(Reply, self._pipes[rank].recv())
        process = self._processes[rank]
        process.join(GRACE_S)
        lines = self._log_lines(rank)
        last_words = "\n".join(lines[-failures.NUM_LOG_LINES :])
        if process.exitcode == -signal.SIGABRT:
            last_words = "\n".join(lines)[-failures.NUM_WATCHDOG_BYTES :]
        peer = failures.blamed_peer(last_words)
        return Died(exit_code=process.exitcode, peer=peer, at_s=time.monotonic())

    def _raise_first_failure(self) -> None:
        replies = self._replies.items()
        failed = {rank: reply for rank, reply in replies if isinstance(reply, Failed | Died)}
        if not failed:
            return
        world_size = self._world_size
        rank, failure = failures.first_failure(failed)
        running, has_come = self._waiting(), failures.came_too_late(failed)
        if failure.peer and (late := running or has_come):
            raise failures.late_rank_error(
                late,
                has_come=not running,
                waiting_rank=rank,
                positions={one: self.position(one) for one in self._ranks},
                world_size=world_size,
                timeout_s=self._policy.collective_timeout_s,
                stack_of=self._where_it_was,
            )
        if isinstance(failure, Failed) and failure.is_ours:
            kind: type[PerfsuiteError] = getattr(errors, failure.error)
            # An impossible recipe or workload is the same on every rank; a batch or a loss is not.
            is_one_ranks = kind in (errors.NonFiniteError, errors.DataLoadError) and world_size > 1
            where = f" (rank {rank} of {world_size})" if is_one_ranks else ""
            raise kind(failure.message + where)
        raise failures.rank_error(
            rank,
            failure,
            position=self.position(rank),
            world_size=world_size,
            log=self._log_lines(rank),
            all_waited=world_size > 1 and {one.peer for one in failed.values()} == {"late"},
        )

    def _stuck(self, waiting: Sequence[int]) -> RankFailureError:
        stacks = {one: self.where_it_hangs(one) for one in waiting}
        rank = failures.latest({one: self.position(one) for one in waiting}, stacks)
        num_workers = len(_descendants(self._running[rank]))
        workers = f" ({num_workers} loader workers alive)" if num_workers else ""
        timeout_s = self._patience_s(waiting)
        times = "" if timeout_s == self._policy.timeout_s else "ten times "
        waited = f"{timeout_s:g} s ({times}--perf-timeout)"
        what = f"made no progress for {waited}, in {self.position(rank)}{workers}"
        if self.position(rank).phase == FIRST_STEP:
            what += "; a step ends where a torch optimizer steps or perfsuite.step_done() is called"
        alike = [one for one in waiting if self.position(one) == self.position(rank)]
        if len(alike) > 1 and not any(stacks.values()):  # as of a command's, which write none
            what += f"; {listed([f'rank {one}' for one in alike])} are there, and any may be late"
        return failures.hanging_error(rank, what, world_size=self._world_size, lines=stacks[rank])

    def position(self, rank: int) -> Position:
        """Return where a rank is."""
        return self._board.read(rank)

    def _where_it_was(self, rank: int) -> tuple[str, ...]:
        reply = self._replies.get(rank)
        return reply.lines if isinstance(reply, Failed) else self.where_it_hangs(rank)

    def where_it_hangs(self, rank: int) -> tuple[str, ...]:
        """Have a living rank write its stack to its log, and return that."""
        log = bootstrap.log_path(self._folder, rank)
        pid = self._processes[rank].pid
        if pid is None or not self._processes[rank].is_alive() or not log.exists():
            return ()
        if stopped := bootstrap.why_stopped(pid):
            return stopped
        num_lines_before, size_before = len(self._log_lines(rank)), log.stat().st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
        failures.wait_for_stack(log, size_before)
        return failures.current_stack(self._log_lines(rank)[num_lines_before:])

    def _log_lines(self, rank: int) -> tuple[str, ...]:
        path = bootstrap.log_path(self._folder, rank)
        return tuple(path.read_text(errors="replace").splitlines()) if path.exists() else ()

    def _show_logs(self) -> None:
        for rank in self._ranks:
            for line in self._log_lines(rank):
                print(f"[rank {rank}] {line}")

    def end(self) -> None:
        """End every process of the group and remove what it left; Ctrl-C waits for that."""
        with uninterrupted():
            self._cleanup.close()

    def _end_processes(self) -> None:
        # The ranks as well: if the server was killed, a rank only looks as if it had ended.
        left = [one for rank in self._running.values() for one in (rank, *_descendants(rank))]
        for pipe in self._pipes.values():
            pipe.close()  # a rank that has replied waits for this, and leaves
        have_replied = all(self.position(rank).phase == "finish" for rank in self._ranks)
        deadline_s = time.monotonic() + (GRACE_S if have_replied else 0.0)
        for process in self._processes.values():
            process.join(max(0.0, deadline_s - time.monotonic()))
            if process.exitcode is None:
                process.kill()
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        # A rank that was killed is no parent any more.
        signal_all(processes_with(f"TMPDIR={self._folder}"), signal.SIGKILL)
        psutil.wait_procs(left, timeout=REAPED_S)
        for process in self._processes.values():
            process.join()


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []
