"""Sessions that somebody ends: what they say, keep and leave. Kills are in the kill storm."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from ended_sessions import PERFSUITE, PYTEST, RunningSession, cells_in

PROJECT = """
    import os, pathlib, time
    from perfsuite import Recipe
    from perfsuite.ranks import forkserver

    forkserver._PRELOADED = ("perfsuite.ranks.reaper", "perfsuite.worker.main")

    def test_quick(train_benchmark):
        train_benchmark("toy-mlp", Recipe(), rounds=1, iterations=1)

    def test_long(rank_group):
        rank_group(2, work)

    def work():
        pathlib.Path(f"at-work-{os.getpid()}").touch()
        time.sleep(600)
"""


def start(pytester: pytest.Pytester, *arguments: str) -> RunningSession:
    pytester.makepyfile(test_inner=PROJECT)
    return RunningSession(pytester.path, [*PYTEST, "--perf-numerics=off", *arguments])


def are_at_work(session: RunningSession) -> bool:
    return len(list(session.folder.glob("at-work-*"))) == 2


def expect_what_was_measured(session: RunningSession) -> None:
    (cell,) = cells_in(session.folder)
    (stored,) = json.loads((session.folder / "results" / "run.json").read_text())["benchmarks"]
    assert cell.fullname == stored["fullname"] == "test_inner.py::test_quick"
    assert "1 passed" in session.output


def test_ctrl_c_twice_keeps_what_was_measured_and_leaves_nothing(pytester: pytest.Pytester) -> None:
    # Once more when pytest begins to end.
    pytester.makeconftest("""
        import os, signal

        def pytest_keyboard_interrupt():
            os.kill(os.getpid(), signal.SIGINT)
    """)
    session = start(pytester)
    session.wait_until(lambda: are_at_work(session))

    session.press_ctrl_c()
    session.press_ctrl_c()

    assert session.wait() == 2
    assert "KeyboardInterrupt" in session.output
    assert "Traceback (most recent call last)" not in session.output
    expect_what_was_measured(session)
    assert session.leftovers() == []


def test_a_ci_that_cancels_keeps_what_was_measured_and_leaves_nothing(
    pytester: pytest.Pytester,
) -> None:
    session = start(pytester)
    session.wait_until(lambda: are_at_work(session))

    session.process.terminate()

    assert session.wait() == 143
    assert "Exit: perfsuite: ended by SIGTERM" in session.output
    assert "Traceback (most recent call last)" not in session.output
    expect_what_was_measured(session)
    assert session.leftovers() == []


def test_ctrl_c_while_the_server_loads_torch_shows_no_traceback(pytester: pytest.Pytester) -> None:
    session = start(pytester, "-k", "long")

    def has_server() -> bool:
        return any("multiprocessing.forkserver" in command for command in session.commands())

    session.wait_until(has_server)

    session.press_ctrl_c()

    assert session.wait() == 2
    assert "Traceback (most recent call last)" not in session.output
    assert session.leftovers() == []


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (signal.SIGTERM, 143, "perfsuite: ended by SIGTERM\n"),
        pytest.param(
            signal.SIGINT, 130, "perfsuite: ended by SIGINT\n", marks=pytest.mark.soak
        ),  # it differs from the other in one line of ours
    ],
)
def test_a_verb_that_is_ended_says_so_and_leaves_nothing(
    pytester: pytest.Pytester, number: signal.Signals, code: int, message: str
) -> None:
    pytester.makepyfile(
        slow="""
        import pathlib, time
        import perfsuite
        from perfsuite.worker.workloads.mlp import toy_mlp

        def build_model():
            pathlib.Path("at-work").touch()
            time.sleep(600)

        workload = perfsuite.Workload(
            name="slow",
            build_model=build_model,
            build_dataset=toy_mlp().build_dataset,
            loss=toy_mlp().loss,
            build_optimizer=toy_mlp().build_optimizer,
        )
    """
    )
    session = RunningSession(
        pytester.path, [*PERFSUITE, "verify", "slow:workload", "--parallel", "ddp:2"]
    )
    session.wait_until((pytester.path / "at-work").exists)

    session.process.send_signal(number)

    assert session.wait() == code
    assert session.output == message
    assert session.leftovers() == []


INTERRUPTED = """
import builtins
import signal
import subprocess
import sys

imported = builtins.__import__


def interrupt(name, *more, **named):
    if name == "perfsuite.cli.app":
        signal.raise_signal(signal.SIGINT)
    return imported(name, *more, **named)


builtins.__import__ = interrupt
from perfsuite.cli import main

main()
"""


def test_a_verb_that_is_interrupted_while_it_loads_says_so() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "doctor"], capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stderr) == (130, "perfsuite: ended by SIGINT\n")
