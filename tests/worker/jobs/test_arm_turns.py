"""The turns of an arm's ranks: without one, what the launch has left apart from it rests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import psutil
import pytest

from perfsuite.ranks.assignments import all_assignments
from perfsuite.ranks.messages import CallFunction, GroupPolicy, GroupRequest, RankStart, TurnChannel
from perfsuite.system import background
from perfsuite.worker.jobs.arm_turns import ArmTurns

# Twice forked, and the leader of a session of its own.
DAEMON = ["sh", "-c", "setsid sleep 600 >&- & echo $!"]


def start_of(path: Path, rank: int) -> RankStart:
    policy = GroupPolicy(turns=TurnChannel(path=str(path), arm="head"))
    request = GroupRequest(job=CallFunction(call=b""), world_size=2, policy=policy)
    return RankStart(
        request=request,
        assignment=all_assignments(2, device="cpu", num_gpus=0)[rank],
        folder=str(path.parent),
        core=None,
        cores=(0,),
    )


def wait_until(pid: int, *, stopped: bool) -> None:
    while (psutil.Process(pid).status() == psutil.STATUS_STOPPED) is not stopped:
        os.sched_yield()


def test_a_daemon_of_the_launch_rests_without_the_turn_by_the_first_ranks_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(background.LOG, str(tmp_path / "log"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "gate"))
    listener.listen()

    def grant() -> None:
        with (connection := listener.accept()[0]).makefile() as lines:
            for line in lines:
                if '"turn"' in line:
                    connection.sendall(b"{}\n")

    threading.Thread(target=grant, daemon=True).start()
    first = ArmTurns(start_of(tmp_path / "gate", 0), lambda: None)
    other = ArmTurns(start_of(tmp_path / "gate", 1), lambda: None)
    daemon, stranger = (
        int(subprocess.run(DAEMON, stdout=subprocess.PIPE, check=True, env=env).stdout)
        for env in (None, {})
    )
    own = subprocess.Popen(["sleep", "600"])
    try:
        with first.take(lambda: None):
            wait_until(daemon, stopped=False)
        wait_until(daemon, stopped=True)
        other.signal_daemons(signal.SIGCONT)
        assert psutil.Process(daemon).status() == psutil.STATUS_STOPPED
        with first.take(lambda: None):
            wait_until(daemon, stopped=False)
        first.signal_daemons(signal.SIGCONT)
        wait_until(daemon, stopped=False)
        left = background.daemons(background.list_processes())
        assert daemon in left
        assert not left.keys() & {own.pid, stranger}
    finally:
        background.signal_all([daemon, stranger, own.pid], signal.SIGKILL)
        own.wait()
