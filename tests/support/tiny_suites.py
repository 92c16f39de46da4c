"""Pairs of launches of suites of a few lines, each arm in a tree of its own."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from perfsuite.gate.arms.arm import Arm, Launch, PairPlan
from perfsuite.gate.arms.launch import run_pair

# No plugin that these suites have no use for: a launch begins in a third of the time.
FEW_PLUGINS = (
    *("-p", "no:perfsuite", "-p", "no:hypothesispytest"),
    *("-p", "no:anyio", "-p", "no:platformdirs"),
)
ARGUMENTS = (
    *FEW_PLUGINS,
    *("--benchmark-min-time=0.0001", "--benchmark-max-time=0.001", "--benchmark-min-rounds=3"),
)


def make_arms(folder: Path, suite: str, *arguments: str, ini: str = "[pytest]\n") -> list[Arm]:
    """Both arms, each with a tree of its own that holds the suite."""
    arms = []
    for name in ("base", "head"):
        tree = folder / name
        tree.mkdir()
        (tree / "test_cells.py").write_text(suite)
        (tree / "pytest.ini").write_text(ini)
        arms.append(
            Arm(
                name=name,
                tree=tree,
                import_roots=(tree / "first", tree),
                pytest_arguments=(*ARGUMENTS, *arguments),
                environment={"OWN": name, "PYTHONPATH": "own"} if name == "base" else {},
            )
        )
    return arms


def pair(
    arms: Sequence[Arm], names: Sequence[str] | None = None, **changes: Any
) -> dict[str, Launch]:
    """One pair over the named cells, over all where none is named."""
    plan = {
        "names": names,
        "number": 1,
        "first": "head",
        "hash_seed": 7,
        "core": 0,
        "timeout_s": 60.0,
    }
    with tempfile.TemporaryDirectory() as scratch:
        return run_pair(arms, PairPlan(**(plan | changes)), scratch=Path(scratch))


def outcomes(launch: Launch) -> dict[str, str]:
    return {name.partition("::")[2]: run.outcome for name, run in launch.cells.items()}


def has_ended(process_id: int) -> bool:
    """Whether a process that was sent SIGKILL ends, which takes the kernel a moment."""
    deadline_s = time.monotonic() + 10
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(process_id)
        while process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.01)
    return True
