"""How a rank of a command ended, read from its launcher's exit code and its output."""

from __future__ import annotations

import subprocess

import pytest

from perfsuite.ranks.command.faults import last_words, read_end
from perfsuite.ranks.failures import Died
from perfsuite.ranks.messages import Failed, Joined

RAISED = "Traceback (most recent call last):\n  File x, line 1\nZeroDivisionError: no more data\n"
AT_EXIT = "terminate called without an active exception\n"


def end_of(command: str, output: str) -> Died | Failed:
    launcher = subprocess.Popen(["sh", "-c", command])
    launcher.wait()
    rank = Joined(process=launcher.pid, rank=0, world_size=1, device="cpu")
    return read_end(rank, launcher, output, at_s=0.0)


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
    end = end_of("kill -ABRT $$", output)

    if expected == "raised":
        assert isinstance(end, Failed)
        assert (end.error, end.message) == ("ZeroDivisionError", "no more data")
    else:
        assert isinstance(end, Died)
        assert end.exit_code == -6


@pytest.mark.parametrize(("exit_code", "expected"), [(137, -9), (255, 255), (3, 3)])
def test_an_exit_code_that_no_signal_has_is_one_of_the_command(
    exit_code: int, expected: int
) -> None:
    end = end_of(f"exit {exit_code}", "")

    assert isinstance(end, Died)
    assert end.exit_code == expected


def test_the_last_words_before_torchruns_own_are_those_of_a_rank() -> None:
    log = "E1128 11:45:27.734000 2057 torch/distributed/elastic/multiprocessing/api.py:1002] "
    output = (
        "python: can't open file 'nothere.py': [Errno 2] No such file or directory\n"
        f"{log}failed (exitcode: 2) local_rank: 0 (pid: 2066) of binary: python\n"
        "Traceback (most recent call last):\n"
        '  File "torchrun", line 8, in <module>\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "==========\nnothere.py FAILED\n----------\nRoot Cause (first observed failure):\n"
        "==========\n"
    )

    assert last_words(output) == (
        "python: can't open file 'nothere.py': [Errno 2] No such file or directory"
    )
    assert last_words("----\n====\n") == "it printed nothing"


@pytest.mark.parametrize(
    "output",
    [
        "".join(f"[default0]:{line}\n" for line in [*RAISED.splitlines(), "bye"]),
        "".join(f"[default1]:[rank1]: {line}\n" for line in RAISED.splitlines()),
        "[trainer-a0]:  0%|   | 0/9 [00:00<?]\r 11%|   | 1/9 [00:01<00:08]" + RAISED + "bye\n",
    ],
)
def test_the_last_words_are_those_of_a_traceback_whatever_stands_before_its_lines(
    output: str,
) -> None:
    assert last_words(output) == "ZeroDivisionError: no more data"
