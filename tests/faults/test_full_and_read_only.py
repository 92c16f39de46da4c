"""Real file systems that are full or read-only, each in a mount namespace of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mounts import needs_mounts, run_with_mounts

pytestmark = needs_mounts

# Nothing is measured: what matters is where the results go.
MADE_UP_CELL = """
    from made_up_cells import make_outcome
    from perfsuite import Recipe
    from perfsuite.experiments.rank_session import Session

    Session.measure_cell = lambda *_, **__: make_outcome([0.01, 0.02, 0.03])

    def test_cell(train_benchmark):
        train_benchmark("toy-mlp", Recipe())
"""
SHARED_MEMORY_RUNS_OUT = """
    import os, pathlib
    import pytest
    from perfsuite import Recipe
    from perfsuite.ranks import forkserver

    forkserver._PRELOADED = ("perfsuite.ranks.reaper", "perfsuite.worker.main")

    @pytest.mark.parametrize("state", ["small", "full", "unused"])
    def test_cell(train_benchmark, state):
        if state == "full":
            with pathlib.Path("/dev/shm/filler").open("wb") as file:
                room = os.fstatvfs(file.fileno())
                os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_bsize)
        recipe = Recipe(num_workers=0 if state == "unused" else 1)
        train_benchmark("toy-mlp", recipe, rounds=1, iterations=1)
"""


def run(pytester: pytest.Pytester, test: str, mounts: dict[Path, str], **environment: str) -> Ended:
    """Run a session that sees these file systems, and nothing of them afterwards."""
    pytester.makepyfile(test_inner=test)
    for folder in mounts:
        folder.mkdir(exist_ok=True)
    command = ["-m", "pytest", "-p", "no:cacheprovider", "--perf-device=cpu", "--perf-numerics=off"]
    path = os.pathsep.join(
        [str(Path(__file__).parent.parent / "support"), os.environ.get("PYTHONPATH", "")]
    )
    return Ended(
        run_with_mounts(
            mounts, [sys.executable, *command], pytester.path, PYTHONPATH=path, **environment
        )
    )


class Ended:
    """What a session said and ended in."""

    def __init__(self, process: subprocess.CompletedProcess[str]) -> None:
        self.code = process.returncode
        self.output = process.stdout + process.stderr
        assert "Traceback" not in self.output, self.output
        assert "INTERNALERROR" not in self.output, self.output

    def error_of(self, test: str) -> str:
        """What pytest shows of a failed test."""
        found = re.search(rf"^_+ {re.escape(test)} _+\n(.*?)^[-_=]{{4}}", self.output, re.M | re.S)
        assert found, self.output
        return found[1].strip()

    def refusals(self) -> list[str]:
        """The lines that tell of files which could not be written."""
        return [line for line in self.output.splitlines() if line.startswith("perfsuite: cannot")]


def test_loader_workers_without_shared_memory_are_told_so_and_the_next_cell_runs(
    pytester: pytest.Pytester,
) -> None:
    ended = run(pytester, SHARED_MEMORY_RUNS_OUT, {Path("/dev/shm"): "size=64k"})

    advice = (
        "loader workers pass their batches through /dev/shm, which is full: make room in it, "
        "enlarge it (docker run --shm-size=1g), or use num_workers=0"
    )
    small = re.sub(r"</torch_\w+>", "<FILE>", ended.error_of("test_cell[small]"))
    assert small == (
        "DataLoadError: workload 'toy-mlp': its train dataset raised RuntimeError: unable to "
        "allocate shared memory(shm) for file <FILE>: No space left on device (28) in loader "
        f"worker 0; {advice}"
    )
    assert ended.error_of("test_cell[full]") == (
        "DataLoadError: workload 'toy-mlp': its train dataset cannot be loaded: [Errno 28] No "
        f"space left on device; {advice}"
    )
    assert ended.code == 1
    assert "2 failed, 1 passed" in ended.output


def test_results_on_a_read_only_file_system_are_one_line_and_12(pytester: pytest.Pytester) -> None:
    results = pytester.path / "results"

    ended = run(pytester, MADE_UP_CELL, {results: "ro"})

    assert ended.code == 12
    assert ended.refusals() == [
        f"perfsuite: cannot write {results}/cells.jsonl: Read-only file system"
    ]
    assert "1 passed" in ended.output


def test_results_on_a_full_disk_are_one_line_and_12(pytester: pytest.Pytester) -> None:
    results = pytester.path / "results"

    ended = run(pytester, MADE_UP_CELL, {results: "nr_blocks=1"})

    assert ended.code == 12
    assert ended.refusals() == [
        f"perfsuite: cannot write {results}/run.json: No space left on device"
    ]
    assert "1 passed" in ended.output


def test_a_full_temporary_folder_fails_each_cell_with_what_to_do(
    pytester: pytest.Pytester,
) -> None:
    own = pytester.path / "own"
    test = f"""
        import os, pathlib

        def test_cell(rank_group):
            with pathlib.Path({str(own)!r}, "filler").open("wb") as file:
                room = os.fstatvfs(file.fileno())
                os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_bsize)
            rank_group(1, max, (1, 2))
    """

    ended = run(pytester, test, {own: "size=1m"}, TMPDIR=str(own))

    assert ended.code == 1
    message = re.sub(r"perfsuite(-\w+){3}", "FOLDER", ended.error_of("test_cell"))
    assert message == (
        f"WriteError: cannot write {own}/FOLDER/progress: No space left on device; make room, or "
        "set TMPDIR to a folder that has it"
    )
