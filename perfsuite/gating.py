"""One gate session: from paths and a base to the verdict of every cell.

Finds the base, makes its tree, asks both sides for their cells, has the judge compare what both
have, and says of the others why not. Must not know how a verdict is shown.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from perfsuite.errors import SettingError
from perfsuite.gate.accepted import read_accepted
from perfsuite.gate.arms import Arm, Launch, PairPlan, Suite
from perfsuite.gate.exact import parse_slacks
from perfsuite.gate.explain import explain
from perfsuite.gate.judge import judge, launch_pair
from perfsuite.gate.overlay import lay_configuration, python_digests
from perfsuite.gate.presence import find_common, is_named
from perfsuite.gate.repository import Base, NoBase, describe_head, find_base
from perfsuite.gate.rule import Prior
from perfsuite.gate.termination import ends_on_signals
from perfsuite.gate.trees import (
    base_tree,
    directory_tree,
    import_roots,
    sweep_stale_trees,
)
from perfsuite.gate.trials import Budget, Demands, Judgement, Trial
from perfsuite.units import format_ratio, parse_ratio, parse_seconds
from perfsuite.verdicts import CellVerdict, Explanation

# Rounds of 5 ms and more, for 0.3 s a launch where the gate cannot choose how many (decision 0010):
# many short launches tell more than few long ones, because what differs is the launch (Kalibera and
# Jones 2013). A test's own marker goes before.
_SHORT_LAUNCHES = (
    "--benchmark-min-time=0.005",
    "--benchmark-max-time=0.3",
    "--benchmark-min-rounds=8",
)
_TRAIN_FLOOR_S = 50e-6
# Files that a line names.
_MOST_LISTED = 3


@dataclass(frozen=True, kw_only=True)
class GateRequest:
    """What is to be gated, and how.

    Attributes:
        folder: Where pytest would be called.
        paths: Benchmark files and folders, as pytest takes them.
        cells: Those of head's that are judged; None is all.
        pytest_arguments: Further ones, such as ("-k", "lenet").
        base: A revision; None finds the merge base.
        base_dir: A folder instead of a revision.
        base_python: The base arm's interpreter; None is this one.
        base_environment: Variables of the base arm alone.
        tolerance: The slowdown that is accepted unless a marker says otherwise.
        limit: The slowdown that must not pass.
        floor_s: None is 50 us for cells of perfsuite, 0 for any others.
        budget: What it may cost.
        seed: Of everything that is random.
        priors: What this machine's history says of the noise of a pair, by cell.
        outputs: Files that the session itself writes: they do not make a tree dirty.
    """

    folder: Path
    paths: tuple[str, ...]
    cells: frozenset[str] | None = None
    pytest_arguments: tuple[str, ...] = ()
    base: str | None = None
    base_dir: Path | None = None
    base_python: str | None = None
    base_environment: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 0.02
    limit: float = 0.05
    floor_s: float | None = None
    budget: Budget
    seed: int
    priors: Mapping[str, Prior] = field(default_factory=dict)
    outputs: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """What a gate session came to.

    Attributes:
        cells: All cells of either side.
        refusal: Why nothing was compared at all, None where something was.
        differs: What differs between the arms, for people.
        judgement: What the pairs came to; None where none was run.
        seed: Of everything that was random.
    """

    cells: tuple[CellVerdict, ...]
    refusal: str | None
    differs: dict[str, str]
    judgement: Judgement | None
    seed: int


# Reviewed exceptions, from pytest's root.
ACCEPTED_FILE = Path("baselines") / "accepted.toml"


def run_gate(request: GateRequest, *, say: Callable[[str], None]) -> GateResult:
    """Return the verdict of every cell.

    Raises:
        SettingError: The base is not known, or a path is not there.
        WriteError: A tree cannot be made.
    """
    with ends_on_signals():
        return _run_gate(request, say)


def _run_gate(request: GateRequest, say: Callable[[str], None]) -> GateResult:
    sweep_stale_trees(request.folder)
    differs = {"head": describe_head(request.folder)}
    base: Base | None = None
    if request.base_dir is None:
        found = find_base(request.folder, request.base, outputs=request.outputs)
        if isinstance(found, NoBase):
            return _refused(request, found.reason, differs)
        base = found
    differs["base"] = str(request.base_dir) if base is None else base.described
    if request.base_python is not None:
        differs["base interpreter"] = request.base_python
    differs |= {f"base {name}": value for name, value in request.base_environment.items()}

    head = collect(head_arm(request, None))
    if head.suite is None or head.failure is not None:
        return _refused(request, f"head's tests cannot be collected: {head.failure}", differs)
    suite = head.suite
    say(f"comparing {len(suite.cells)} cells with {differs['base']}")
    with contextlib.ExitStack() as stack:
        with _tree(request, suite, base, overlay=()) as plain:
            base_own = _collect_base(request, plain, suite)
            before = python_digests(plain)
        tree = stack.enter_context(_tree(request, suite, base, overlay=_overlay(request)))
        after = python_digests(tree)
        if laid := [str(path) for path, found in after.items() if before.get(path) != found]:
            differs["benchmark files"] = f"head's run on both sides: {_listed(sorted(laid))}"
            say(f"changed benchmark files, of which {differs['benchmark files']}")
        return _judge_common(request, suite, base_own, tree, differs, say)


def _listed(names: Sequence[str]) -> str:
    """The first few of them.

    >>> _listed(["a", "b"]), _listed(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


def _judge_common(
    request: GateRequest,
    suite: Suite,
    base_own: Launch,
    tree: Path,
    differs: dict[str, str],
    say: Callable[[str], None],
) -> GateResult:
    """Judge what both sides have, and say of the rest what became of it."""
    if (refusal := _why_no_cells(base_own)) is not None:
        cells = [
            CellVerdict(name=name, word="NO-BASELINE", by="collection", reason=refusal)
            for name in suite.cells
        ]
        return _result(request, cells, None, differs)
    assert base_own.suite is not None
    paths = _relative(request, suite)
    theirs = [name for name in base_own.suite.cells if is_named(name, paths)]
    accepted = read_accepted(suite.root / ACCEPTED_FILE, datetime.date.today())
    common, cells = find_common(list(suite.cells), theirs, accepted)
    demands = {
        name: dataclasses.replace(
            demands_of(request, suite, name),
            accepted_slowdown=accepted.allowed_slowdown(name),
            accepted_increase=functools.partial(accepted.allowed_increase, name),
        )
        for name in common
        if request.cells is None or name in request.cells
    }
    judgement = None
    if demands:
        arms = _base_arm(request, tree, suite), head_arm(request, suite)
        judgement = judge(
            *arms,
            demands,
            budget=request.budget,
            seed=request.seed,
            priors=request.priors,
            say=say,
        )
        explanations = _explain(arms, judgement, request, say)
        cells += [_verdict(trial, explanations.get(trial.name)) for trial in judgement.trials]
    return _result(request, cells, judgement, differs)


def _why_no_cells(base_own: Launch) -> str | None:
    if base_own.failure is not None:
        return f"the base's tests cannot be collected: {base_own.failure}"
    if not base_own.takes_turns:
        return "the base's perfsuite is too old to take turns"
    return None


def _explain(
    arms: Sequence[Arm],
    judgement: Judgement,
    request: GateRequest,
    say: Callable[[str], None],
) -> dict[str, Explanation]:
    """What moved in each cell that failed or improved, from one more pair that is profiled."""
    moved = [trial.name for trial in judgement.trials if trial.word in ("FAIL", "IMPROVED")]
    if not moved:
        return {}
    say(f"profiling what moved: {len(moved)} cells")
    plan = PairPlan(
        number=judgement.num_pairs + 1,
        first="base",
        hash_seed=request.seed % 2**32,
        core=max(os.sched_getaffinity(0)),
        timeout_s=request.budget.timeout_s,
        profiles=True,
    )
    launches = launch_pair(arms, plan, moved)
    return {
        name: explain(launches["base"].cells[name], launches["head"].cells[name])
        for name in moved
        if name in launches["base"].cells and name in launches["head"].cells
    }


def _verdict(trial: Trial, explanation: Explanation | None) -> CellVerdict:
    decision = trial.decision
    return CellVerdict(
        name=trial.name,
        word=trial.word or "INCONCLUSIVE",
        by=trial.by,
        ratio=None if decision is None else decision.ratio,
        interval=None if decision is None else decision.interval,
        num_pairs=0 if decision is None else decision.num_pairs,
        detectable=None if decision is None else decision.detectable,
        reason=trial.reason,
        explanation=explanation,
        raw=tuple(trial.raw),
        firsts=tuple(trial.firsts),
        asked=trial.asked,
    )


def _refused(request: GateRequest, reason: str, differs: dict[str, str]) -> GateResult:
    return GateResult(cells=(), refusal=reason, differs=differs, judgement=None, seed=request.seed)


def _result(
    request: GateRequest,
    cells: Sequence[CellVerdict],
    judgement: Judgement | None,
    differs: dict[str, str],
) -> GateResult:
    return GateResult(
        cells=tuple(sorted(cells, key=lambda cell: cell.name)),
        refusal=None,
        differs=differs,
        judgement=judgement,
        seed=request.seed,
    )


def demands_of(request: GateRequest, suite: Suite, name: str) -> Demands:
    """Return what is asked of a cell: by its markers, else by the request."""
    asked = suite.cells[name]
    floor_s = request.floor_s
    if floor_s is None:
        floor_s = _TRAIN_FLOOR_S if asked.get("is_train") else 0.0
    try:
        demands = Demands(
            tolerance=parse_ratio(asked["tolerance"])
            if "tolerance" in asked
            else request.tolerance,
            limit=parse_ratio(asked["limit"]) if "limit" in asked else request.limit,
            floor_s=parse_seconds(asked["floor"]) if "floor" in asked else floor_s,
            slacks=parse_slacks(dict(asked.get("counts", {})), "perf marker"),
        )
    except (TypeError, ValueError) as error:
        raise SettingError(f"{name}: the perf marker has {dict(asked)!r}: {error}") from error
    if demands.tolerance >= 1:
        raise SettingError(
            f"{name}: the tolerance is {format_ratio(demands.tolerance)}; use less than 100 %"
        )
    if not demands.tolerance <= demands.limit:
        raise SettingError(
            f"{name}: the limit is {format_ratio(demands.limit)}, below the tolerance of "
            f"{format_ratio(demands.tolerance)}; give its perf marker a larger limit"
        )
    return demands


@contextmanager
def _tree(
    request: GateRequest, suite: Suite, base: Base | None, *, overlay: Sequence[Path]
) -> Iterator[Path]:
    """The base's counterpart of head's root."""
    files = suite.python_files
    if base is None:
        assert request.base_dir is not None
        with directory_tree(suite.root, request.base_dir, overlay, python_files=files) as tree:
            yield tree
        return
    with base_tree(suite.root, base, overlay, python_files=files) as tree:
        yield tree


def _overlay(request: GateRequest) -> list[Path]:
    """The benchmark files and folders of head, without what names a test in one."""
    paths = [request.folder / path.partition("::")[0] for path in request.paths]
    return paths or [request.folder]


def collect(arm: Arm) -> Launch:
    """One arm's cells, none of which is run."""
    plan = PairPlan(number=0, first=arm.name, hash_seed=0, core=0, timeout_s=120.0)
    return launch_pair([arm], plan, [])[arm.name]


def _collect_base(request: GateRequest, tree: Path, suite: Suite) -> Launch:
    """The cells that the base has by itself, of the paths that it has."""
    arm = _base_arm(request, tree, suite, own_configuration=True)
    files = dict.fromkeys(path.partition("::")[0] for path in _relative(request, suite))
    paths = [file for file in files if (tree / file).exists()]
    if request.paths and not paths:
        nothing = Suite(cells={}, root=tree, inifile=None, pythonpath=(), python_files=())
        return Launch(arm=arm, suite=nothing)
    return collect(_with_paths(arm, request, paths))


def _base_arm(
    request: GateRequest, tree: Path, suite: Suite, *, own_configuration: bool = False
) -> Arm:
    configuration: tuple[str, ...] = ()
    if not own_configuration:
        inifile = lay_configuration(tree, suite.root, suite.inifile)
        configuration = (f"--rootdir={tree}", "-c", str(inifile))
    pythonpath = [os.path.relpath(path, suite.root) for path in suite.pythonpath]
    arm = Arm(
        name="base",
        tree=tree,
        import_roots=import_roots(tree, pythonpath),
        pytest_arguments=configuration,
        python=request.base_python or sys.executable,
        environment=dict(request.base_environment),
    )
    return arm if own_configuration else _with_paths(arm, request, _relative(request, suite))


def head_arm(request: GateRequest, suite: Suite | None) -> Arm:
    """Head's arm; as the user would call pytest as long as its root is not known."""
    root = request.folder if suite is None else suite.root
    pythonpath = [] if suite is None else [os.path.relpath(p, root) for p in suite.pythonpath]
    arm = Arm(
        name="head",
        tree=root,
        import_roots=import_roots(root, pythonpath),
        pytest_arguments=(),
        python=sys.executable,
    )
    return _with_paths(arm, request, request.paths if suite is None else _relative(request, suite))


def _with_paths(arm: Arm, request: GateRequest, paths: Sequence[str]) -> Arm:
    arguments = (*arm.pytest_arguments, *_SHORT_LAUNCHES, *request.pytest_arguments, *paths)
    return dataclasses.replace(arm, pytest_arguments=arguments)


def _relative(request: GateRequest, suite: Suite) -> list[str]:
    """The paths from pytest's root, where the launches run."""
    found = []
    for path in request.paths:
        file, separator, names = path.partition("::")
        found.append(os.path.relpath(request.folder / file, suite.root) + separator + names)
    return found
