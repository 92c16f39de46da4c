"""The two arms of a comparison: what a launch of each is given, and what it sends back."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Say = Callable[[str], None]  # shows a line


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One side of the comparison, "base" or "head"."""

    name: str
    tree: Path  # pytest's root
    top: Path | None = None  # of its checkout as far as that is compared; None for the tree
    folder: Path | None = None  # where launches run; None for the tree
    import_roots: tuple[Path, ...]
    pytest_arguments: tuple[str, ...]
    python: str = sys.executable
    python_options: tuple[str, ...] = ()
    # Variables of the user's session, and those that are its own.
    inherited: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    environment: Mapping[str, str] = field(default_factory=dict)
    watched: tuple[Path, ...] = ()  # launches say whether they open it
    # Files and folders, from the top, that git does not know and only this tree had at the start.
    alone: frozenset[Path] = frozenset()
    caches: Path | None = None  # where launches keep compiled code for one another


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What the processes of a launch have loaded and started so far; absolute paths."""

    # Sources, compiled code, what the launch watches, and what it read of its own tree.
    files: frozenset[str] = frozenset()
    old: frozenset[str] = frozenset()  # what it read of its own tree, written before the launch
    made: frozenset[str] = frozenset()  # what it opened to write outside of its own tree
    recent: frozenset[str] = frozenset()  # of processes since the last reading, and ancestors
    programs: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()  # commands that may have run Python but could not log it
    shells: frozenset[str] = frozenset()  # and scripts that may have started such a process


NOTHING = Loaded()
# Why a launch was ended that had done nothing wrong itself.
OTHER_ENDED = "the other arm ended early"
# How the reason begins where launches were ended that sent nothing.
NO_PROGRESS = "no progress for"


@dataclass(frozen=True, kw_only=True)
class CellRun:
    """What one launch measured of a cell."""

    outcome: str  # pytest's: "passed", "failed" or "skipped"
    reason: str | None  # why it did not pass
    rounds_s: tuple[float, ...]  # of an iteration, round by round; none where nothing was timed
    record: Any  # what perfsuite kept of it, unchecked; None for a suite without perfsuite
    # From the first to the last turn, the other arm's included; 0 where a test chose its rounds.
    alternated_s: float = 0.0
    # (function, calls, own seconds) of an iteration, where the plan profiles.
    profile: tuple[tuple[str, float, float], ...] = ()
    turns_s: float = 0.0  # duration of its turns by its own clock, or of the ranks' last one
    num_logged: int | None = None  # step times that a command logged, timed or not
    num_threads: int | None = None  # that its first rank computes with
    others_per_step: float = 0.0  # of a loop: steps of optimizers that end none
    background_s: float = 0.0  # processor seconds of its threads in the other arm's turns
    hides_waits: bool = False  # what its threads or processes waited for went on in those turns
    outgrew_core: bool = False  # it was pinned to the shared core, and then used more than a thread
    loaded: Loaded = NOTHING
    clocks_mhz: tuple[float, ...] = ()  # of each accelerator, as its turns ended


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What an arm has collected; `inifile`, `pythonpath` and `python_files` are pytest's."""

    cells: Mapping[str, Mapping[str, Any]]  # what the markers of each set, unparsed
    root: Path
    inifile: Path | None
    pythonpath: tuple[Path, ...]
    python_files: tuple[str, ...]
    # Why files and folders cannot be collected, by their names from the root.
    broken: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()  # tests that request the benchmark fixture only while they run
    shared: tuple[str, ...] = ()  # what git ignores and both arms may use, by head's configuration
    paths: tuple[str, ...] = ()  # what pytest collects from, from the root
    named: tuple[str, ...] = ()  # those of the paths that the user named
    # Those of the environment that its code has set, None where it has removed one.
    variables: Mapping[str, str | None] = field(default_factory=dict)
    # What its configuration says of how cells are judged, unparsed.
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
    """One launch, as far as it has come: its suite is None until that is collected."""

    arm: Arm
    suite: Suite | None = None
    takes_turns: bool = True  # the arm's perfsuite, if it has one, can
    cells: dict[str, CellRun] = field(default_factory=dict)
    # By cell, how its rounds were, which the other arm's must be too.
    agreed: dict[str, dict[str, int]] = field(default_factory=dict)
    loaded: Loaded = NOTHING
    failure: str | None = None  # why something is missing; None for a whole launch
    refusal: str | None = None  # what pytest says of a call, or a configuration, that is wrong
    leaves_daemon: bool = False  # it left a process outside its group, which was ended then

    @property
    def why_not_collected(self) -> str | None:
        """Why the arm's tests, or some of them, cannot be collected."""
        if self.suite is None or self.failure is not None or not self.suite.broken:
            return self.refusal or self.failure
        return "; ".join(f"{name}: {why}" for name, why in self.suite.broken.items())


@dataclass(frozen=True, kw_only=True)
class PairPlan:
    """How one pair is run: the arm that is `first` runs the first round of each cell."""

    number: int
    first: str
    hash_seed: int
    # The processor that cells of one thread share; those `unpinned` need more.
    core: int = field(default_factory=lambda: max(os.sched_getaffinity(0)))
    timeout_s: float  # without any message for so long, an arm is stuck
    profiles: bool = False  # each cell once more, after its rounds
    # Of a cell, where its test leaves that to the gate; else as fit a first launch.
    num_rounds: Mapping[str, int] = field(default_factory=dict)
    # Cells that one arm runs after the other: memory has no room for both, or what they wait for
    # would go on in the other arm's turn.
    one_by_one: frozenset[str] = frozenset()
    # Launch after launch: they want one port, file or daemon; the second gets what is `agreed`.
    is_apart: bool = False
    agreed: Mapping[str, dict[str, int]] = field(default_factory=dict)
    names: Sequence[str] | None = None  # the cells to run, in order; None for all that both have
    files: tuple[str, ...] = ()  # from pytest's root; none for what the user's own call collects
    unpinned: frozenset[str] = frozenset()
    uncounted: frozenset[str] = frozenset()  # cells that no launch need count any more
    # Whether what living processes have loaded says all that is asked: then no further cell runs.
    is_enough: Callable[[Loaded], bool] = lambda _: False
