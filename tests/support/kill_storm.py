"""A storm of kills: sessions whose controller or rank dies at a random moment, and the next ones.

Every choice comes from one seed. `make soak` has the long one.
"""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil
from ended_sessions import PYTEST, RunningSession, cells_in

Victim = Literal["controller", "rank"]

# Ranks, collectives, loader workers and shared memory, in as little time as can be.
CELLS = """
import pytest
from perfsuite import Recipe
from perfsuite.ranks import forkserver

forkserver._PRELOADED = ("perfsuite.ranks.reaper", "perfsuite.worker.main")

@pytest.mark.parametrize("number", range(2))
def test_sum(all_reduce_benchmark, number):
    all_reduce_benchmark("ddp:2", 4096)

def test_step(train_benchmark):
    train_benchmark("toy-mlp", Recipe(num_workers=1), rounds=2, iterations=2)
"""
NUM_CELLS = 3
# A group lives for some tenths of a second.
_MOST_BETWEEN_LOOKS_S = 0.3
_KILLED = "was killed by SIGKILL (by a user, or by the kernel because memory ran out)"


@dataclass(kw_only=True)
class Figures:
    """What a storm came to.

    Attributes:
        kills: How many died, by what they were.
        num_cells_kept: Cells that had ended before their controller was killed.
        wrong: What should not have been, one line each.
        wall_s: How long it took.
    """

    kills: dict[Victim, int] = field(default_factory=lambda: {"controller": 0, "rank": 0})
    num_cells_kept: int = 0
    wrong: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def num_kills(self) -> int:
        """How many died."""
        return sum(self.kills.values())

    def __str__(self) -> str:
        return (
            f"{self.num_kills} kills ({self.kills['controller']} of a controller, "
            f"{self.kills['rank']} of a rank) in {self.wall_s:.0f} s: {self.num_cells_kept} cells "
            f"of killed sessions kept, {len(self.wrong)} things wrong"
        )


def run_storm(
    folder: Path,
    *,
    num_kills: int,
    seed: int,
    whole_after: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> Figures:
    """Kill so many sessions, run others to their end between, and return what came of it.

    Args:
        folder: An empty one.
        num_kills: How many.
        seed: Of moments and victims.
        whole_after: After so many kills a session runs to its end.
        say: Is told of each kill.
    """
    (folder / "test_inner.py").write_text(CELLS)
    figures = Figures()
    began_s = time.monotonic()
    session_s = _run_whole(folder, figures, "the first session")
    choices = random.Random(seed)
    while figures.num_kills < num_kills:
        moment_s = choices.uniform(0.0, session_s)
        victim = choices.choice(("controller", "rank"))
        session = _start(folder)
        _let_run(session, moment_s)
        killed = _kill(session, victim, choices)
        if killed is not None:  # else the session was faster
            figures.kills[killed] += 1
        name = f"{killed or 'nobody'} killed after {moment_s:.2f} s"
        _look_after(session, killed, figures, name)
        if figures.num_kills % whole_after == 0:
            _run_whole(folder, figures, f"{name}, the next session")
        figures.wall_s = time.monotonic() - began_s
        say(f"{name}; {figures}")
    return figures


def _start(folder: Path) -> RunningSession:
    return RunningSession(folder, [*PYTEST, "--perf-numerics=off", "--perf-rounds=2"])


def _run_whole(folder: Path, figures: Figures, name: str) -> float:
    """Run a session that must be green and leave nothing; return its seconds."""
    began_s = time.monotonic()
    session = _start(folder)
    code = session.wait()
    wall_s = time.monotonic() - began_s
    if code != 0 or len(cells_in(folder)) != NUM_CELLS:
        figures.wrong.append(f"{name} ended in {code}:\n{session.output}")
    figures.wrong += [f"{name} left {one}" for one in session.leftovers()]
    return wall_s


def _let_run(session: RunningSession, moment_s: float) -> None:
    try:
        session.process.wait(moment_s)
    except subprocess.TimeoutExpired:
        return


def _kill(session: RunningSession, victim: Victim, choices: random.Random) -> Victim | None:
    """Kill the controller, or one of its ranks as soon as there is one; None if it was faster."""
    while victim == "rank" and not _ranks_of(session) and session.process.poll() is None:
        time.sleep(choices.uniform(0.0, _MOST_BETWEEN_LOOKS_S))
    ranks = _ranks_of(session)
    if ranks and victim == "rank":
        try:
            choices.choice(ranks).kill()
        except psutil.NoSuchProcess:
            return None
        return "rank"
    if session.process.poll() is not None:
        return None
    session.process.kill()
    return "controller"


def _ranks_of(session: RunningSession) -> list[psutil.Process]:
    """What the server has forked, and their loader workers."""
    try:
        children = psutil.Process(session.process.pid).children()
        return [rank for child in children for rank in child.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _look_after(
    session: RunningSession, killed: Victim | None, figures: Figures, name: str
) -> None:
    code = session.wait()
    figures.wrong += [f"{name} left {one}" for one in session.leftovers()]
    cells = cells_in(session.folder)
    shown = re.findall(r"^(test_inner\S+) MEASURED", session.output, re.MULTILINE)
    # A session that is killed before its first cell has not begun its own file.
    lost = set(shown) - {cell.fullname for cell in cells}
    figures.wrong += [f"{name} lost {one}" for one in lost]
    if killed == "controller":
        figures.num_cells_kept += len(shown)
        return
    failed = [cell for cell in cells if cell.outcome == "failed"]
    if len(cells) != NUM_CELLS or len(failed) > 1 or code != len(failed):
        figures.wrong.append(f"{name} ended in {code}:\n{session.output}")
    figures.wrong += [
        f"{name} says: {cell.reason}" for cell in failed if not _tells_of_kill(cell.reason or "")
    ]


def _tells_of_kill(reason: str) -> bool:
    """Whether a message is that of a killed rank, or of a killed loader worker."""
    return _KILLED in reason or "is killed by signal: Killed" in reason
