"""The two arms of a comparison: what a launch of each is given, and what it sends back."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfsuite.gate.arms.loaded import NOTHING, Loaded


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One side of the comparison, "base" or "head"; its tree is pytest's root.

    `top`, of its checkout as far as that is compared, and `folder`, where launches run, are the
    tree where they are None. Variables are `inherited` from the user's session, those of the
    `environment` are its own. Launches say whether they open what is `watched`, and keep compiled
    code for one another in `caches`. What is `alone` git does not know, and only this tree had it
    when the session began: files and folders, from the top.
    """

    name: str
    tree: Path
    top: Path | None = None
    folder: Path | None = None
    import_roots: tuple[Path, ...]
    pytest_arguments: tuple[str, ...]
    python: str = sys.executable
    python_options: tuple[str, ...] = ()
    inherited: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    environment: Mapping[str, str] = field(default_factory=dict)
    watched: tuple[Path, ...] = ()
    alone: frozenset[Path] = frozenset()
    caches: Path | None = None


# Why a launch was ended that had done nothing wrong itself.
OTHER_ENDED = "the other arm ended early"
# How the reason begins where launches were ended that sent nothing.
NO_PROGRESS = "no progress for"


@dataclass(frozen=True, kw_only=True)
class CellRun:
    """What one launch measured of a cell.

    Attributes:
        outcome: pytest's: "passed", "failed" or "skipped"; `reason` says why it did not pass.
        rounds_s: Seconds of an iteration, round by round; none where nothing was timed.
        record: What perfsuite kept of it, unchecked; None for a suite without perfsuite.
        alternated_s: Seconds from the first to the last turn, those of the other arm included; 0
            where the rounds were not the gate's to choose.
        profile: (function, calls, own seconds) of an iteration, where the plan profiles.
        turns_s: Duration of its turns, where the arm's own clock took them.
        background_s: Processor seconds that its threads used in the other arm's turns.
        hides_waits: Whether what its threads or processes waited for went on in the other's turns.
        outgrew_core: Whether it was pinned to the shared core, and then used more than a thread.
        clocks_mhz: Of each accelerator, the median at the ends of its turns.
    """

    outcome: str
    reason: str | None
    rounds_s: tuple[float, ...]
    record: Any
    alternated_s: float = 0.0
    profile: tuple[tuple[str, float, float], ...] = ()
    turns_s: float = 0.0
    background_s: float = 0.0
    hides_waits: bool = False
    outgrew_core: bool = False
    loaded: Loaded = NOTHING
    clocks_mhz: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What an arm has collected; `inifile`, `pythonpath` and `python_files` are pytest's.

    Attributes:
        cells: What the markers of each cell set, unparsed.
        broken: Why files and folders cannot be collected, by their names from the root.
        hidden: Tests that request the benchmark fixture only while they run.
        shared: What git ignores and both arms may use, as head's configuration says.
        paths: What pytest collects from, from the root; `named` are those that the user named.
        variables: Those of the environment that its code has set, None where it has removed one.
        settings: What its configuration says of how cells are judged, unparsed.
    """

    cells: Mapping[str, Mapping[str, Any]]
    root: Path
    inifile: Path | None
    pythonpath: tuple[Path, ...]
    python_files: tuple[str, ...]
    broken: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    def why_broken(self, cell: str) -> str | None:
        """Why the cell's file cannot be collected, None where that is not so."""
        file = Path(cell.partition("::")[0])
        for name, reason in self.broken.items():
            if file.is_relative_to(name.partition("::")[0]):
                return f"{name}: {reason}" if name else reason
        return None


@dataclass(kw_only=True)
class Launch:
    """One launch, as far as it has come: its suite is None until that is collected.

    Attributes:
        takes_turns: Whether the arm's perfsuite, if it has one, can take turns.
        agreed: By cell, how its rounds were, which the other arm's must be too.
        failure: Why something is missing; None of a whole launch.
        leaves_daemon: Whether it left a process outside its group, which was ended then.
    """

    arm: Arm
    suite: Suite | None = None
    takes_turns: bool = True
    cells: dict[str, CellRun] = field(default_factory=dict)
    agreed: dict[str, dict[str, int]] = field(default_factory=dict)
    loaded: Loaded = NOTHING
    failure: str | None = None
    leaves_daemon: bool = False

    @property
    def why_not_collected(self) -> str | None:
        """Why the arm's tests, or some of them, cannot be collected."""
        if self.suite is None or self.failure is not None or not self.suite.broken:
            return self.failure
        return "; ".join(f"{name}: {why}" for name, why in self.suite.broken.items())


Choose = Callable[[Mapping[str, Suite]], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class PairPlan:
    """How one pair is run: the arm that is `first` runs the first round of each cell.

    Attributes:
        core: The processor that cells of one thread share; those `unpinned` need more.
        timeout_s: Without any message for so long, an arm is stuck.
        profiles: Whether to profile each cell once more after its rounds.
        num_rounds: Of a cell, where its test leaves that to the gate; else as fit a first launch.
        one_by_one: Cells that one arm runs after the other: memory has no room for both, or what
            they wait for would go on in the other arm's turn.
        is_apart: Whether one launch runs after the other: they want one port, file or daemon. The
            second is given what the first `agreed` on.
        files: What is collected, from pytest's root; none for what the user's own call collects.
        uncounted: Cells that no launch need count any more.
        is_enough: Whether what collecting has loaded says all that is asked: then no cell runs.
    """

    number: int
    first: str
    hash_seed: int
    core: int = field(default_factory=lambda: max(os.sched_getaffinity(0)))
    timeout_s: float
    profiles: bool = False
    num_rounds: Mapping[str, int] = field(default_factory=dict)
    one_by_one: frozenset[str] = frozenset()
    is_apart: bool = False
    agreed: Mapping[str, dict[str, int]] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    unpinned: frozenset[str] = frozenset()
    uncounted: frozenset[str] = frozenset()
    is_enough: Callable[[Loaded], bool] = lambda _: False
