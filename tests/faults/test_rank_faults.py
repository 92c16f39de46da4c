"""Faults of one rank and of its forkserver: a lost device, no memory, a stop, Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from perfsuite import RankFailureError
from perfsuite.experiments.rank_session import Session
from perfsuite.ranks import group
from perfsuite.ranks.messages import GroupPolicy
from perfsuite.ranks.pickling import packed_by_value

RunRanks = Callable[..., list[Any]]
ILLEGAL = "CUDA error: an illegal memory access was encountered"


@pytest.fixture
def impatient_ranks() -> RunRanks:
    """Ranks with a controller timeout of 2 s."""
    session = Session(GroupPolicy(timeout_s=2), say=print)

    def run(num_ranks: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        with packed_by_value([sys.modules[__name__]]):
            return session.run_function(num_ranks, function, *args)

    return run


def poison_the_context() -> None:
    """Raise an error that every later call on the device raises too, even those that clean up."""
    import torch
    import torch.distributed as dist

    def refuse(*_: object) -> None:
        raise RuntimeError(ILLEGAL)

    if dist.get_rank() == 1:
        torch.cuda.synchronize = torch.cuda.empty_cache = refuse
        try:
            torch.cuda.synchronize()
        finally:
            torch.cuda.empty_cache()
    dist.barrier()


def test_a_sticky_error_of_a_device_is_one_ranks_and_the_next_group_has_a_new_context(
    rank_group: RunRanks,
) -> None:
    with pytest.raises(RankFailureError) as caught:
        rank_group(2, poison_the_context)

    message = str(caught.value)
    assert message.startswith(
        f"rank 1 of 2 raised RuntimeError: {ILLEGAL}, in phase 'call'\n  traceback:\n"
    )
    assert "in poison_the_context" in message
    assert rank_group(2, max, (1, 2)) == [2, 2]


def run_out_of_device_memory() -> None:
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def test_a_rank_whose_device_is_out_of_memory_says_how_much_it_wanted(rank_group: RunRanks) -> None:
    with pytest.raises(RankFailureError) as caught:
        rank_group(1, run_out_of_device_memory)

    assert str(caught.value).startswith(
        "rank 0 of 1 raised OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB., in "
        "phase 'call'\n  traceback:\n"
    )


def stop_oneself() -> None:
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_rank_that_was_stopped_is_ended_and_told_to_be(impatient_ranks: RunRanks) -> None:
    with pytest.raises(RankFailureError) as caught:
        impatient_ranks(1, stop_oneself)

    (line,) = caught.value.log_lines
    pid = int(line.split()[4])
    assert str(caught.value) == (
        "rank 0 of 1 made no progress for 2 s (--perf-timeout), in phase 'call'\n  where it is:\n"
        f"    it is stopped: process {pid} was sent SIGSTOP, as a debugger does"
    )
    assert not psutil.pid_exists(pid)


def kill_the_server(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


@pytest.mark.soak  # a new server loads torch once more
def test_ranks_whose_server_is_killed_are_ended_and_the_next_group_has_a_new_one(
    rank_group: RunRanks, tmp_path: Path
) -> None:
    with pytest.raises(RankFailureError, match=r"^rank 0 of 1 ended with exit code 255"):
        rank_group(1, kill_the_server, str(tmp_path))

    (pid,) = (int(path.name) for path in tmp_path.iterdir())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert rank_group(1, max, (1, 2)) == [2]


def test_a_rank_that_cannot_be_started_is_told_and_nothing_is_left(
    rank_group: RunRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_too_early(*_: object) -> None:
        raise EOFError("unexpected EOF")

    monkeypatch.setattr(group, "start_process", end_too_early)

    with pytest.raises(RankFailureError) as caught:
        rank_group(2, max, (1, 2))

    assert str(caught.value) == (
        "rank 0 of 2 could not be started: the server that ranks are forked from has ended, killed "
        "by a user, or by the kernel because memory ran out; the next cell starts another"
    )


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_while_a_group_is_ended_waits_until_nothing_of_it_is_left(
    rank_group: RunRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    real_wait = psutil.wait_procs
    pids: list[int] = []

    def interrupted_wait(processes: list[psutil.Process], timeout: float) -> Any:
        pids.extend(process.pid for process in processes)
        press_ctrl_c()
        press_ctrl_c()
        return real_wait(processes, timeout)

    monkeypatch.setattr(psutil, "wait_procs", interrupted_wait)
    try:
        with pytest.raises(KeyboardInterrupt):
            rank_group(2, os.getpid)
    finally:
        signal.signal(signal.SIGINT, before)

    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_ctrl_c_while_ranks_are_started_leaves_none(
    rank_group: RunRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    real_start = group.start_process
    pids: list[int | None] = []

    def interrupted_start(*args: Any) -> Any:
        process, pipe = real_start(*args)
        pids.append(process.pid)
        press_ctrl_c()
        return process, pipe

    monkeypatch.setattr(group, "start_process", interrupted_start)
    try:
        with pytest.raises(KeyboardInterrupt):
            rank_group(2, time.sleep, 600)
    finally:
        signal.signal(signal.SIGINT, before)

    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids if pid is not None)


def test_a_group_may_be_run_beside_the_main_thread(rank_group: RunRanks) -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.extend(rank_group(1, max, (1, 2))))

    thread.start()
    thread.join()

    assert results == [2]
