"""From a request to the two arms of a gate session: their trees, their paths, their cells."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfsuite.errors import SettingError
from perfsuite.gate.arms.arm import Arm, Launch, PairPlan, Suite
from perfsuite.gate.arms.launch import launch_pair
from perfsuite.gate.git.command import file_at
from perfsuite.gate.git.find_base import find_base
from perfsuite.gate.git.overlay import lay_configuration
from perfsuite.gate.git.repository import Base, NoBase
from perfsuite.gate.git.worktree import (
    base_tree,
    check_base_dir,
    directory_tree,
    ignore_trees_in,
    import_roots,
)
from perfsuite.gate.judge.counts import parse_slacks
from perfsuite.gate.judge.trial import Budget, CellPolicy
from perfsuite.stats.sequential import Prior
from perfsuite.system.untrusted import read_untrusted, why_unreadable
from perfsuite.units import format_ratio, parse_ratio, parse_seconds

_TRAIN_FLOOR_S = 50e-6
# Of what is kept beside the baselines: exceptions, and a calibration.
_MAX_FILE_BYTES = 16 * 2**20
# Rounds of 5 ms and more, for 0.3 s a launch where the gate cannot choose how many (decision 0010):
# many short launches say more than few long ones, because what differs is the launch (Kalibera and
# Jones 2013). A test's own marker counts first.
_SHORT_LAUNCHES = (
    "--benchmark-min-time=0.005",
    "--benchmark-max-time=0.3",
    "--benchmark-min-rounds=8",
)


@dataclass(frozen=True, kw_only=True)
class GateRequest:
    """What to gate, and how.

    Attributes:
        folder: Where pytest would be called.
        paths: Benchmark files and folders, as pytest takes them.
        cells: Those of head's that are judged; None is all.
        num_cells: That share the error rate, in whichever session; None is those that are judged.
        pytest_arguments: Further ones, such as ("-k", "lenet").
        inifile: Head's configuration; None is the one that pytest finds by itself.
        root: pytest's rootdir; None as above.
        base: A revision; None finds the merge base.
        target: The branch that a continuous integration says the change goes to.
        base_dir: A folder instead of a revision.
        found: The base, where it is known already.
        base_python: The base arm's interpreter; None is this one.
        tolerance: The slowdown that is accepted unless a marker says otherwise.
        limit: The slowdown that must not pass.
        fixed: Of these two, those that hold for both sides, whatever their configuration says.
        floor_s: None is 50 us for cells of perfsuite, 0 for any others.
        priors: What this machine's history says of the noise of a pair, by cell.
        fingerprint: Of this machine, whose calibration at the base gives them where it is given.
        outputs: Files that the session itself writes: they do not make a tree dirty.
        head_environment: Variables of head's launches alone: what a calibration plants.
        explains: Whether what moved in a cell is looked for.
        heeds_exceptions: Whether what head lists as accepted may let a cell through.
    """

    folder: Path
    paths: tuple[str, ...]
    cells: frozenset[str] | None = None
    num_cells: int | None = None
    pytest_arguments: tuple[str, ...] = ()
    inifile: Path | None = None
    root: Path | None = None
    base: str | None = None
    target: str | None = None
    base_dir: Path | None = None
    found: Base | NoBase | None = None
    base_python: str | None = None
    base_environment: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 0.02
    limit: float = 0.05
    fixed: frozenset[str] = frozenset({"tolerance", "limit"})
    floor_s: float | None = None
    budget: Budget
    seed: int
    priors: Mapping[str, Prior] = field(default_factory=dict)
    fingerprint: str | None = None
    outputs: tuple[Path, ...] = ()
    head_environment: Mapping[str, str] = field(default_factory=dict)
    explains: bool = True
    heeds_exceptions: bool = True


def base_of(request: GateRequest, folders: Sequence[Path]) -> Base | NoBase | None:
    """Return the commit to compare with, None for a folder.

    `folders` are searched for modules that git does not know, beside the request's own. Raises a
    SettingError where the base is not known.
    """
    if request.base_dir is not None:
        check_base_dir(request.base_dir)
        return None
    return request.found or find_base(
        request.folder,
        request.base,
        target=request.target,
        outputs=request.outputs,
        folders=folders,
    )


def collect(arm: Arm) -> Launch:
    """Return a launch that has collected an arm's cells, and run none."""
    plan = PairPlan(number=0, first=arm.name, hash_seed=0, core=0, timeout_s=120.0)
    return launch_pair([arm], plan, [])[arm.name]


def head_arm(request: GateRequest, suite: Suite | None) -> Arm:
    """Return head's arm; as the user would call pytest as long as its root is not known."""
    root, inifile, rootdir = request.folder, request.inifile, request.root
    paths: Sequence[str] = request.paths
    if suite is not None:
        root, inifile, rootdir = suite.root, suite.inifile, suite.root
        paths = relative_paths(request, suite)
    configuration = [] if inifile is None else ["-c", str(inifile)]
    configuration += [] if rootdir is None else [f"--rootdir={rootdir}"]
    configuration += [*ignore_trees_in(root), *_SHORT_LAUNCHES]
    return Arm(
        name="head",
        tree=root,
        import_roots=import_roots(root, []) if suite is None else _import_roots(root, suite),
        pytest_arguments=(*configuration, *request.pytest_arguments, *paths),
        environment=dict(request.head_environment),
    )


@dataclass(frozen=True, kw_only=True)
class BaseSide:
    """The base of a gate session as a counterpart of head's suite; `base` is None for a folder."""

    request: GateRequest
    suite: Suite
    base: Base | None

    def tree(self, *, is_overlaid: bool) -> AbstractContextManager[Path]:
        """Return the counterpart of head's root, with head's benchmarks over it or its own.

        It is made when it is entered: a SettingError where a path is not there, a WriteError where
        the tree cannot be made.
        """
        request, suite = self.request, self.suite
        overlay: list[Path] = []
        if is_overlaid:  # by files and folders, without what names a test in one
            overlay = [request.folder / path.partition("::")[0] for path in request.paths]
            overlay = overlay or [request.folder]
        if self.base is not None:
            return base_tree(suite.root, self.base, overlay, python_files=suite.python_files)
        assert request.base_dir is not None
        return directory_tree(
            suite.root, request.base_dir, overlay, python_files=suite.python_files
        )

    def read(self, path: Path) -> bytes:
        """Return a file of the base by its path from the root, empty where there is none.

        Raises a PerfsuiteError where it cannot be read.
        """
        if self.base is not None:
            return file_at(self.suite.root, self.base.revision, path) or b""
        assert self.request.base_dir is not None
        file = self.request.base_dir / path
        try:
            return read_untrusted(file, max_bytes=_MAX_FILE_BYTES)
        except FileNotFoundError:
            return b""
        except (OSError, ValueError) as error:
            raise SettingError(f"{file} cannot be read: {why_unreadable(error)}") from error

    def collect(self, tree: Path) -> Launch:
        """Return a launch that has collected the base's own cells, from those paths it has."""
        if self.request.paths and not self._own_paths(tree):
            nothing = Suite(cells={}, root=tree, inifile=None, pythonpath=(), python_files=())
            return Launch(arm=self.own_arm(tree), suite=nothing)
        return collect(self.own_arm(tree))

    def own_arm(self, tree: Path) -> Arm:
        """Return the base's arm by itself: its own configuration, and those paths that it has."""
        # With TMPDIR in head's tree, the folders above are head's.
        configuration = [f"--confcutdir={tree}"]
        if self.request.inifile is not None:
            counterpart = tree / os.path.relpath(self.request.inifile, self.suite.root)
            configuration += ["-c", str(counterpart)] if counterpart.exists() else []
        return self._arm(tree, configuration, self._own_paths(tree))

    def arm(self, tree: Path) -> Arm:
        """Return the base's arm, with head's configuration laid over its tree."""
        inifile = lay_configuration(tree, self.suite.root, self.suite.inifile)
        return self._arm(tree, ["-c", str(inifile)], relative_paths(self.request, self.suite))

    def _arm(self, tree: Path, configuration: Sequence[str], paths: Sequence[str]) -> Arm:
        configuration = [f"--rootdir={tree}", *configuration, *_SHORT_LAUNCHES]
        return Arm(
            name="base",
            tree=tree,
            import_roots=_import_roots(tree, self.suite),
            pytest_arguments=(*configuration, *self.request.pytest_arguments, *paths),
            python=self.request.base_python or sys.executable,
            environment=dict(self.request.base_environment),
        )

    def _own_paths(self, tree: Path) -> list[str]:
        paths = relative_paths(self.request, self.suite)
        files = dict.fromkeys(path.partition("::")[0] for path in paths)
        return [file for file in files if (tree / file).exists()]


def _import_roots(tree: Path, suite: Suite) -> tuple[Path, ...]:
    return import_roots(tree, [os.path.relpath(path, suite.root) for path in suite.pythonpath])


def relative_paths(request: GateRequest, suite: Suite) -> list[str]:
    """Return the paths from pytest's root, where the launches run."""
    found = []
    for path in request.paths:
        file, separator, names = path.partition("::")
        found.append(os.path.relpath(request.folder / file, suite.root) + separator + names)
    return found


def request_of_base(request: GateRequest, own: Suite) -> GateRequest:
    """Return the request as the base's own configuration would make it."""

    def of_base(name: str, ours: float, default: float) -> float:
        if name in request.fixed:
            return ours
        try:
            return parse_ratio(own.settings[f"perf_{name}"])
        except (KeyError, ValueError):  # a wrong value is for the change to mend
            return default

    return dataclasses.replace(
        request,
        tolerance=of_base("tolerance", request.tolerance, GateRequest.tolerance),
        limit=of_base("limit", request.limit, GateRequest.limit),
    )


def policy_of(request: GateRequest, suite: Suite, name: str) -> CellPolicy:
    """Return how a cell is judged: by its markers, else by the request.

    Raises a SettingError where a marker has a value that is not allowed.
    """
    markers = suite.cells[name]
    floor_s = request.floor_s
    if floor_s is None:
        floor_s = _TRAIN_FLOOR_S if markers.get("is_train") else 0.0

    def parsed(marker: str, parse: Callable[[Any], float], default: float) -> float:
        return parse(markers[marker]) if marker in markers else default

    try:
        policy = CellPolicy(
            tolerance=parsed("tolerance", parse_ratio, request.tolerance),
            limit=parsed("limit", parse_ratio, request.limit),
            floor_s=parsed("floor", parse_seconds, floor_s),
            slacks=(parse_slacks(dict(markers.get("counts", {})), "perf marker"),),
        )
    except (TypeError, ValueError) as error:
        raise SettingError(f"{name}: the perf marker has {dict(markers)!r}: {error}") from error
    if policy.tolerance >= 1:
        raise SettingError(
            f"{name}: the tolerance is {format_ratio(policy.tolerance)}; use less than 100 %"
        )
    if not policy.tolerance <= policy.limit:
        raise SettingError(
            f"{name}: the limit is {format_ratio(policy.limit)}, below the tolerance of "
            f"{format_ratio(policy.tolerance)}; give its perf marker a larger limit"
        )
    return policy
