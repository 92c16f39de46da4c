"""From a request to the two arms of a gate session: their trees, their paths, their cells."""

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from perfsuite.errors import SettingError
from perfsuite.gate.arms.arm import Arm, Launch, Loaded, PairPlan, Say, Suite
from perfsuite.gate.arms.build import build_base
from perfsuite.gate.arms.command import Command
from perfsuite.gate.arms.launch import launch_pair
from perfsuite.gate.git import worktree
from perfsuite.gate.git.changes import SITE_FOLDER, compare_trees, tree_files
from perfsuite.gate.git.command import file_at
from perfsuite.gate.git.find_base import find_base
from perfsuite.gate.git.overlay import Head, lay_configuration, source_files
from perfsuite.gate.git.repository import USE_FOLDER, Base, find_top, working_files
from perfsuite.gate.judge.pair_evidence import failures
from perfsuite.gate.judge.trial import LAUNCH_TIMEOUT_S, Budget
from perfsuite.gate.provenance.identical import Comparison
from perfsuite.records.verdict import CellVerdict
from perfsuite.stats.evidence import Prior
from perfsuite.system.untrusted import read_if_there
from perfsuite.system.urls import AnyPath
from perfsuite.units import counted, listed

BOUNDS = ("tolerance", "limit")
PAIRS_FILE = "pairs.json"  # beside the results
# Of what is kept beside the baselines: exceptions, and a calibration.
_MAX_FILE_BYTES = 16 * 2**20
# Rounds of 5 ms and more, for 0.3 s a launch where the gate cannot choose how many (decision 0010):
# many short launches say more than few long ones, because what differs is the launch (Kalibera and
# Jones 2013). A test's own marker counts first.
_SHORT = ("--benchmark-min-time=0.005", "--benchmark-max-time=0.3", "--benchmark-min-rounds=8")


@dataclass(frozen=True, kw_only=True)
class GateRequest:
    """What to gate, and how: all that the user gave, once."""

    command: Command  # the user's own call of pytest, which every launch repeats
    # Those of head's that are judged; None is all. Stored runs may decide those that are `waiting`,
    # which are judged only where no change touches them.
    cells: frozenset[str] | None = None
    waiting: frozenset[str] = frozenset()
    judges_identical: bool = False  # cells that no change touches, too
    num_cells: int | None = None  # that share the error rate; None is those that are judged
    base: str | None = None  # a revision; None finds the merge base with `target`
    target: str | None = None  # the branch that a CI names
    base_dir: Path | None = None  # a folder instead of a revision
    found: Base | str | None = None  # the base, or why there is none, where that is known already
    base_python: str | None = None
    base_build: str | None = None
    base_environment: Mapping[str, str] = field(default_factory=dict)
    tolerance: float | None = None  # 0.4 of the limit
    limit: float = 0.05
    refuses_numerics_change: bool = False
    is_advisory: bool = False
    typed: frozenset[str] = frozenset()  # bounds of the command line, which go before a marker
    # Of bounds, numerics change and policy, what holds for both sides, configured or not.
    fixed: frozenset[str] = frozenset({"tolerance", "limit", "numerics-change", "policy"})
    floor_s: float | None = None  # None is 50 us for cells of perfsuite, 0 for any others
    budget: Budget
    seed: int
    priors: Mapping[str, Prior] = field(default_factory=dict)
    fingerprint: str | None = None  # of this machine, whose calibration gives the priors
    stored: AnyPath | None = None  # where it is written how long cells took
    outputs: tuple[Path, ...] = ()  # files that the session itself writes make no tree dirty
    # Of head's launches alone: what a calibration plants.
    head_environment: Mapping[str, str] = field(default_factory=dict)
    explains: bool = True
    heeds_exceptions: bool = True
    pairs_file: Path | None = None  # where a re-run of the same trees finds what this leaves open
    kept: frozenset[Path] | None = None  # of head, unknown to git; None looks as a session begins

    @property
    def has_own_surroundings(self) -> bool:
        """Whether the base runs with an interpreter, variables or a build of its own."""
        return bool(self.base_python or self.base_environment or self.base_build)

    def asks_for(self, cell: str) -> bool:
        """Whether a verdict of the cell is wanted."""
        return self.cells is None or cell in self.cells | self.waiting


def base_of(request: GateRequest, folders: Sequence[Path]) -> Base | str | None:
    """Return the commit to compare with, None for a folder, or why there is neither.

    `folders`, pytest's root first, are searched for modules that git does not know, beside the
    request's own. Raises a SettingError for a revision or a folder that is none.
    """
    if request.base_dir is not None:
        if not request.base_dir.is_dir():
            raise SettingError(f"the base {str(request.base_dir)!r} is not a folder; name one")
        base, judged = request.base_dir.resolve(), request.command.folder.resolve()
        if judged.is_relative_to(base) and not (judged == base and request.has_own_surroundings):
            wrong = f"the base {str(request.base_dir)!r} is or holds the folder that is judged"
            raise SettingError(f"{wrong}; name another one")
        return None
    if request.found is not None:
        return request.found
    folder = request.command.folder
    if folders and (top := find_top(folders[0])) != find_top(folder):
        there = "" if top is None else f"call it in {folders[0]}, or "
        both = f"pytest's root, {folders[0]}, and {folder}, where it was called"
        return f"{both}, are not in one git checkout: {there}{USE_FOLDER}"
    target, outputs = request.target, request.outputs
    return find_base(folder, request.base, target=target, outputs=outputs, folders=folders)


def collect(arm: Arm, timeout_s: float = LAUNCH_TIMEOUT_S) -> Launch:
    """Return a launch that has collected an arm's cells, and run none."""
    plan = PairPlan(number=0, first=arm.name, hash_seed=0, timeout_s=timeout_s)
    return launch_pair([arm], plan, ())[arm.name]


def head_arm(request: GateRequest, suite: Suite | None, caches: Path | None = None) -> Arm:
    """Return head's arm, which is the user's own call; its root is not known without a suite."""
    command = request.command
    root = command.folder if suite is None else suite.root
    ignored = worktree.ignore_trees_in(find_top(root) or root)
    return Arm(
        name="head",
        tree=root,
        top=_top(request, root),
        folder=command.folder,
        import_roots=import_roots(root, suite),
        pytest_arguments=(*ignored, *_SHORT, *command.arguments),
        python_options=command.python_options,
        inherited=command.environment,
        caches=caches,
        environment=dict(request.head_environment),
    )


@dataclass(frozen=True, kw_only=True)
class BaseSide:
    """The base of a gate session as a counterpart of head's suite; without a commit, a folder."""

    request: GateRequest
    suite: Suite
    base: Base | None
    caches: Path | None = None

    def tree(self) -> AbstractContextManager[Path]:
        """The counterpart of head's root, with the base's own benchmarks, made as it is entered."""
        if self.base is not None:
            return worktree.base_tree(self.suite.root, self.base)
        assert self.request.base_dir is not None
        return worktree.directory_tree(self.head, self.request.base_dir)

    def prepare(self, tree: Path, say: Say, differs: dict[str, str]) -> str | None:
        """Share files with the base and build it; return why it cannot be built."""
        request, suite = self.request, self.suite
        if shared := worktree.share_files(suite.root, tree, suite.shared):
            differs["shared"] = f"{', '.join(shared)} (head's on both sides)"
        if (command := request.base_build) is None:
            return None
        differs["base build"] = command
        say(f"building the base: {command}")
        python, site = request.base_python or sys.executable, tree / SITE_FOLDER
        variables = {**request.command.environment, **request.base_environment}
        return build_base(
            command, tree, site=site, root=suite.root, python=python, environment=variables
        )

    def read(self, path: Path) -> bytes:
        """Return a file of the base by its path from the root, empty where there is none."""
        if self.base is not None:
            return file_at(self.suite.root, self.base.revision, path) or b""
        assert self.request.base_dir is not None
        return read_if_there(self.request.base_dir / path, max_bytes=_MAX_FILE_BYTES)

    def lay_benchmarks(self, tree: Path) -> tuple[list[Path], dict[Path, bytes]]:
        """Lay head's benchmarks over the tree; return what changes by that, and what was there."""
        files = dict.fromkeys(path.partition("::")[0] for path in self.suite.paths)
        return worktree.lay_benchmarks(tree, self.head, [self.suite.root / file for file in files])

    def compare(self, tree: Path, collected: Launch, say: Say) -> Comparison | None:
        """Return how to find the cells that no change touches; None where all are to be judged."""
        request, root, top = self.request, self.suite.root.resolve(), self.head.top
        if request.judges_identical or request.has_own_surroundings:
            return None

        def run(names: Sequence[str], is_enough: Callable[[Loaded], bool]) -> Launch:
            cells = counted(len(names), "cell")
            say(f"running {cells} of head once: what loads no changed module needs no pair")
            return self.run_head(names, is_enough)

        base_top = self.head.top_of(tree)
        if self.base is None:
            files, theirs = [*source_files(top)], [*source_files(base_top)]
        else:
            files, theirs = tree_files(top, root, request.outputs), working_files(base_top)
        changes = compare_trees(top, root, files, base_top, theirs)
        compared = frozenset(files)
        return Comparison(top=top, changes=changes, compared=compared, collected=collected, run=run)

    def plan(self, number: int, first: str) -> PairPlan:
        """Return a pair by which no cell is judged, under the seed of the session."""
        hash_seed, timeout_s = self.request.seed % 2**32, self.request.budget.timeout_s
        return PairPlan(number=number, first=first, hash_seed=hash_seed, timeout_s=timeout_s)

    def run_head(
        self, names: Sequence[str], is_enough: Callable[[Loaded], bool] = lambda _: False
    ) -> Launch:
        """Run cells of head once, without the base and without counting."""
        plan = replace(self.plan(0, "head"), uncounted=frozenset(names), is_enough=is_enough)
        return launch_pair([head_arm(self.request, self.suite, self.caches)], plan, names)["head"]

    def run_new(self, cells: Sequence[CellVerdict], say: Say) -> list[CellVerdict]:
        """Run once what the base lacks, and return the verdicts with those that fail in ERROR."""
        if left := [cell.name for cell in cells if cell.word == "NEW"]:
            say(f"running once what the base lacks: {counted(len(left), 'cell')}")
        why: dict[str, str] = {}
        while left:
            launch = self.run_head(left)
            # One that ends the launch keeps those behind it from running.
            ended = next((n for n, name in enumerate(left, 1) if name not in launch.cells), None)
            why |= {name: listed([*failures(name, {"head": launch})]) for name in left[:ended]}
            left = left[ended:] if ended else []
        judged = list(cells)
        for place, cell in enumerate(cells):
            if failures_of_head := why.get(cell.name):
                reason = f"{cell.reason}; head failed: {failures_of_head}"
                judged[place] = msgspec.structs.replace(cell, word="ERROR", reason=reason)
        return judged

    def find_alone(self, tree: Path) -> frozenset[Path]:
        """Return what earlier runs left in head's checkout that the base's tree lacks."""
        top, base_top = self.head.top, self.head.top_of(tree)
        kept = self.request.kept or ()
        inside = {path.relative_to(top) for path in kept if path.is_relative_to(top)}
        return frozenset(path for path in inside if not (base_top / path).exists())

    def collect(self, tree: Path) -> Launch:
        """Collect the base's own cells; options that its configuration adds go where refused."""
        timeout_s = self.request.budget.timeout_s
        launch = collect(self.own_arm(tree), timeout_s)
        if launch.suite is not None:
            return launch
        without = collect(self.own_arm(tree, "-o", "addopts="), timeout_s)
        return launch if without.suite is None else without

    def own_arm(self, tree: Path, *options: str) -> Arm:
        """The base's arm by itself: its own configuration, and those paths that it has."""
        command = self._command(tree).without_missing_configuration()
        command = command.followed_by(f"--rootdir={tree}", f"--confcutdir={tree}", *options)
        return self._arm(tree, command, {"PERFSUITE_ARM_LACKS": "1"})

    def arms(self, tree: Path, alone: frozenset[Path]) -> tuple[Arm, Arm]:
        """Both arms, with head's configuration; they log what they open that one tree lacks."""
        inifile = lay_configuration(tree, self.head, self.suite.inifile)
        command = self._command(tree).followed_by(f"--rootdir={tree}", "-c", str(inifile))
        base = self._arm(tree, command, {})
        head = head_arm(self.request, self.suite, self.caches)
        tops = self.head.top_of(tree), self.head.top
        lacked = worktree.missing_files(tops[0]) if self.base is not None else []
        return (
            replace(base, watched=(tops[1], *(tops[0] / path for path in lacked))),
            replace(head, alone=alone, watched=(tops[0], *(tops[1] / path for path in lacked))),
        )

    @functools.cached_property
    def head(self) -> Head:
        """Head's tree, as far as the base's is a counterpart of it."""
        root, python_files = self.suite.root, self.suite.python_files
        return Head(top=_top(self.request, root), root=root.resolve(), python_files=python_files)

    def _command(self, tree: Path) -> Command:
        return self.request.command.moved(self.head.top, self.head.top_of(tree))

    def _arm(self, tree: Path, command: Command, variables: Mapping[str, str]) -> Arm:
        # What the base's build has installed.
        site = [tree / SITE_FOLDER] if any((tree / SITE_FOLDER).glob("*")) else []
        python, own = self.request.base_python, {"PERFSUITE_ARM_ROOT": str(self.suite.root)}
        if python is not None:  # for what a cell starts by its name, such as torchrun
            paths = str(Path(python).parent), command.environment.get("PATH", os.defpath)
            variables = {"PATH": os.pathsep.join(paths), **variables}
        return Arm(
            name="base",
            tree=tree,
            top=self.head.top_of(tree),
            folder=command.folder,
            import_roots=(*site, *import_roots(tree, self.suite)),
            pytest_arguments=(*_SHORT, *command.arguments),
            python=python or sys.executable,
            python_options=command.python_options,
            inherited=command.environment,
            environment={**own, **variables, **self.request.base_environment},
            caches=self.caches,
        )


def _top(request: GateRequest, root: Path) -> Path:
    """The folder of head that is compared: its checkout, or the root outside of any."""
    checkout, base_dir, root = find_top(root), request.base_dir, root.resolve()
    if checkout in (None, root) or base_dir is None:
        return checkout or root
    inner, other = root.relative_to(checkout), find_top(base_dir)
    if other is None or other / inner != base_dir.resolve():
        raise SettingError(
            f"pytest's root is {inner} in the checkout {checkout}, and {base_dir} is not {inner} "
            f"in another one, so that the rest would not be compared; name {inner} of another "
            "checkout, as 'git worktree add' makes one, or a revision"
        )
    return checkout


def import_roots(tree: Path, suite: Suite | None) -> tuple[Path, ...]:
    """Return the folders that come first on the path of launches in a tree; no missing ones."""
    paths = [] if suite is None else [os.path.relpath(one, suite.root) for one in suite.pythonpath]
    folders = [tree / path for path in (*paths, "src")]
    return tuple(dict.fromkeys([*(folder for folder in folders if folder.is_dir()), tree]))
