"""A process that dies at any step of a write leaves each file old or new, and no harm to the next.

Each test crashes at every single step; `crashing` says how.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crashing import crash_at, crash_beyond, crashes, exit_code_of, steps_of
from made_up_cells import make_outcome

from perfsuite.errors import WriteError
from perfsuite.experiments.rank_session import Session
from perfsuite.gate.baselines.accepted import Removal, append_entry, prune, read_accepted
from perfsuite.gate.baselines.select import save_run
from perfsuite.plugin.session import saving
from perfsuite.records.cell import decode_line
from perfsuite.system.files import append_line, write_atomically
from perfsuite.system.timing_lock import LOCK_DIR, TimingLock

TODAY = datetime.date(2026, 11, 21)
LONG_AGO = datetime.date(2020, 1, 1)
LATER = datetime.date(2027, 1, 31)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- one file ---


def test_a_file_is_old_until_it_is_new_and_the_next_write_leaves_nothing_else(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"old")
    seen, most_names = [], 0

    for _ in crashes(lambda: write_atomically(path, b"new")):
        seen.append(path.read_bytes())
        most_names = max(most_names, len(names_in(tmp_path)))

    assert [seen[0], seen[-1]] == [b"old", b"new"]
    assert sorted(seen, reverse=True) == seen
    assert most_names == 2  # what one crash left, the next write removed
    assert names_in(tmp_path) == ["run.json"]


def test_a_write_that_is_cut_off_in_its_midst_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"old")

    code = exit_code_of(lambda: crash_beyond(1000), lambda: write_atomically(path, b"x" * 5000))

    assert code is None
    assert path.read_bytes() == b"old"
    (unfinished,) = (entry for entry in tmp_path.iterdir() if entry != path)
    assert unfinished.stat().st_size == 1000
    write_atomically(path, b"new")
    assert names_in(tmp_path) == ["run.json"]


@pytest.mark.parametrize(
    ("write", "name_it"),
    [
        (lambda folder: write_atomically(folder / "run.json", b"{}"), "replace"),
        (lambda folder: save_run(folder, "run", b"{}"), "link"),
    ],
)
def test_the_data_are_on_the_disk_before_they_get_their_name_and_the_name_after(
    write: Callable[[Path], None], name_it: str, tmp_path: Path
) -> None:
    steps = [step for step in steps_of(lambda: write(tmp_path)) if step != "unlink"]

    of_data, of_name = (at for at, step in enumerate(steps) if step == "fsync")
    assert steps.index("flush") < of_data < steps.index(name_it) < of_name


def test_what_another_process_is_writing_now_is_not_taken_for_abandoned(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    child = os.fork()
    if child == 0:
        os.fchmod = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)  # in the midst of its write
        write_atomically(path, b"from the child")
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)

    write_atomically(path, b"from the parent")

    assert len(names_in(tmp_path)) == 2
    os.kill(child, signal.SIGCONT)
    assert os.waitpid(child, 0)[1] == 0
    assert path.read_bytes() == b"from the child"


def test_a_file_that_was_taken_for_abandoned_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Path] = []

    def be_slow(_: int, __: int) -> None:
        if not lost:
            lost.extend(tmp_path.iterdir())
            lost[0].unlink()

    monkeypatch.setattr("perfsuite.system.files.fcntl.flock", be_slow)

    write_atomically(tmp_path / "run.json", b"{}")

    assert len(lost) == 1
    assert names_in(tmp_path) == ["run.json"]


# --- lines ---


def test_lines_that_were_written_survive_a_crash_of_the_next(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"

    between: list[bytes] = []

    for number in crashes(lambda: append_line(path, b"killed")):
        between.append(b"between %d" % number)
        append_line(path, between[-1])
        lines = path.read_bytes().splitlines()
        assert [line for line in lines if line != b"killed"] == between

    assert path.read_bytes().endswith(b"\nkilled\n")


def test_a_line_after_half_a_line_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    append_line(path, b"first")
    torn = []

    def run_out_of_room() -> None:
        with contextlib.suppress(WriteError):
            append_line(path, b"y" * 500)

    for _ in crashes(run_out_of_room, lambda: crash_beyond(400)):
        torn.append(path.read_bytes() != b"first\n")
        append_line(path, b"next")
        assert path.read_bytes().splitlines()[0] == b"first"
        assert path.read_bytes().splitlines()[-1] == b"next"
        path.write_bytes(b"first\n")

    assert any(torn)


# --- what is stored of runs, exceptions, and who holds the machine ---


def test_a_crash_while_a_run_is_saved_touches_no_other_and_the_next_is_saved(
    tmp_path: Path,
) -> None:
    save_run(tmp_path, "base", b"{}")

    for number in crashes(lambda: save_run(tmp_path, "killed", b"[]")):
        assert (tmp_path / "0001_base.json").read_bytes() == b"{}"
        assert {path.read_bytes() for path in tmp_path.glob("*_killed.json")} <= {b"[]"}
        assert save_run(tmp_path, f"after{number}", b"null").read_bytes() == b"null"

    assert all(name.endswith(".json") for name in names_in(tmp_path))
    assert not list(tmp_path.glob(".*"))


def test_exceptions_are_all_there_or_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "accepted.toml"
    old = Removal(cell="test_x.py::test_old", reason="gone", expires=LONG_AGO)
    kept = Removal(cell="test_x.py::test_kept", reason="gone", expires=LATER)
    append_entry(path, old)
    before = path.read_bytes()
    num_seen = set()

    for _ in crashes(lambda: append_entry(path, kept)):
        found = read_accepted(path, TODAY)
        assert found.expired == (old,)
        num_seen.add(len(found.entries))
        path.write_bytes(before)
    for _ in crashes(lambda: prune(path, TODAY)):
        assert read_accepted(path, TODAY).entries == (kept,)

    assert num_seen == {0, 1}
    assert read_accepted(path, TODAY).expired == ()
    assert names_in(tmp_path) == ["accepted.toml"]


def test_a_session_that_dies_while_it_takes_the_machine_does_not_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOCK_DIR, str(tmp_path))

    def take() -> None:
        TimingLock(wait_s=0, say=print).acquire()

    for _ in crashes(take):
        with TimingLock(wait_s=0, say=print):
            assert (tmp_path / f"perfsuite-{os.getuid()}.holder").read_text() == str(os.getpid())

    assert len(names_in(tmp_path)) == 3


# --- a whole session ---


class CrashEverywhere:
    """A plugin under which a session is run again and again, and dies one step later each time."""

    def __init__(self, folder: Path) -> None:
        self.num_crashes = 0
        self.ended_in: int | None = None
        self._folder = folder
        self._is_child = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool | None:
        """Run the session in children only."""
        for number in range(1, sys.maxsize):
            child = os.fork()
            if child == 0:
                self._is_child = True
                crash_at(number)
                return None
            _, status = os.waitpid(child, 0)
            check_files(self._folder)
            if os.WIFEXITED(status):
                self.ended_in = os.WEXITSTATUS(status)
                return True
            self.num_crashes = number
        raise AssertionError

    @pytest.hookimpl(tryfirst=True)
    def pytest_benchmark_generate_machine_info(self) -> dict[str, Any]:
        """Save a tenth of a second in each child."""
        return {"node": "here", "cpu": {}}

    @pytest.hookimpl(tryfirst=True)
    def pytest_benchmark_generate_commit_info(self) -> dict[str, Any]:
        """Ask no git."""
        return {"id": "0" * 40, "dirty": False}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep a child from going on in what called pytest."""
        if self._is_child:
            session.config.add_cleanup(lambda: os._exit(int(session.exitstatus)))


def check_files(folder: Path) -> None:
    """Fail unless each file that a reader can meet is whole."""
    for pattern in ("results/run.json", "own.json", "baselines/*/*.json"):
        for path in folder.glob(pattern):
            assert len(json.loads(path.read_text())["benchmarks"]) == 2
    for path in folder.glob("results/cells.jsonl"):
        cells = [decode_line(line).fullname for line in path.read_bytes().splitlines()]
        assert cells == [f"test_inner.py::test_cell[{number}]" for number in (1, 2)][: len(cells)]


@pytest.mark.filterwarnings("ignore:Not saving anything")
def test_a_session_may_die_at_any_step_of_any_of_its_writes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: Any, **__: Any) -> Any:
        return make_outcome([0.01, 0.02, 0.03])

    monkeypatch.setattr(Session, "measure_cell", measure)
    monkeypatch.setattr(saving, "probe_host", lambda: {"interpreter": 0.03})
    pytester.makepyfile(
        test_inner="""
        import pytest
        from perfsuite import Recipe

        @pytest.mark.parametrize("number", [1, 2])
        def test_cell(train_benchmark, number):
            train_benchmark("toy-mlp", Recipe())
        """
    )
    crash = CrashEverywhere(pytester.path)

    pytester.inline_run(
        *("-p", "no:cacheprovider", "--perf-numerics=off"),
        *("--benchmark-save=main", "--benchmark-json=own.json"),
        plugins=[crash],
    )

    assert crash.ended_in == 0
    assert crash.num_crashes > 40  # two lines of cells, run.json, own.json and the stored run
    assert not list(pytester.path.rglob(".*.tmp"))
