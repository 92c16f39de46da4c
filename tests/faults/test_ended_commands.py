"""Sessions that are ended while a command runs in them: nothing of the command lives on."""

from __future__ import annotations

import signal
import sys

import pytest
from ended_sessions import PYTEST, RunningSession

TRAIN = """
    import os
    import pathlib
    import subprocess
    import sys

    import torch

    if os.fork() == 0:  # a daemon
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "600"])
        os._exit(0)
    helper = subprocess.Popen(["sleep", "600"])
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    number = 0
    while True:
        number += 1
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
        if number == 20:
            pathlib.Path("at-work").touch()
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 2), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_session_that_is_ended_leaves_no_process_of_its_command(
    pytester: pytest.Pytester, number: signal.Signals, code: int
) -> None:
    pytester.makepyfile(
        train=TRAIN,
        test_inner=f"""
            def test_long(command_benchmark):
                command_benchmark([{sys.executable!r}, "train.py"], steps=1_000_000)
        """,
    )
    session = RunningSession(pytester.path, PYTEST)
    session.wait_until((pytester.path / "at-work").exists)

    session.process.send_signal(number)

    assert session.wait() == code
    assert "Traceback (most recent call last)" not in session.output
    left = session.leftovers()
    if number == signal.SIGKILL:  # its folder goes when another session begins
        left = [one for one in left if not one.startswith(str(session.temporary))]
    assert left == []
