"""How a rank of a command ended, read from its launcher's exit code and its output."""

from __future__ import annotations

import subprocess

import pytest

from perfsuite.ranks.assignments import Assignment
from perfsuite.ranks.command.faults import read_end
from perfsuite.ranks.failures import Died
from perfsuite.ranks.messages import Failed, Joined

RAISED = "Traceback (most recent call last):\n  File x, line 1\nZeroDivisionError: no more data\n"
AT_EXIT = "terminate called without an active exception\n"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (RAISED + AT_EXIT, "raised"),
        (RAISED + "terminate called after throwing 'c10::Error'\n", "aborted"),
        (AT_EXIT, "aborted"),
    ],
)
def test_an_abort_at_exit_is_not_the_cause_where_an_exception_was_raised(
    output: str, expected: str
) -> None:
    launcher = subprocess.Popen(["sh", "-c", "kill -ABRT $$"])
    launcher.wait()
    rank = Joined(
        process=launcher.pid,
        world_size=1,
        assignment=Assignment(rank=0, place=0, num_neighbours=1, gpu=0, backend="gloo"),
        device="cpu",
    )

    end = read_end(rank, launcher, output, at_s=0.0)

    if expected == "raised":
        assert isinstance(end, Failed)
        assert (end.error, end.message) == ("ZeroDivisionError", "no more data")
    else:
        assert isinstance(end, Died)
        assert end.exit_code == -6
