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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from perfsuite.errors import SettingError
from perfsuite.gate.arms.arm import Arm, Launch, PairPlan, Suite
from perfsuite.gate.arms.launch import launch_pair
from perfsuite.gate.baselines.accepted import Accepted, read_accepted
from perfsuite.gate.collection import HOW_TO_ACCEPT, find_common, is_named
from perfsuite.gate.git.overlay import python_digests
from perfsuite.gate.git.repository import Base, NoBase, describe_head, find_base
from perfsuite.gate.git.worktree import check_base_dir, sweep_stale_trees, what_is_missing
from perfsuite.gate.judge.counts import parse_slacks
from perfsuite.gate.judge.explain import explain
from perfsuite.gate.judge.judge import judge
from perfsuite.gate.judge.trial import CellPolicy, Judgement, Trial
from perfsuite.gate.request import (
    GateRequest,
    base_arm,
    base_own_arm,
    collect,
    collect_base,
    head_arm,
    make_tree,
    overlay_of,
    relative_paths,
)
from perfsuite.records.verdict import CellVerdict, Explanation
from perfsuite.system.signals import ends_on_signals
from perfsuite.units import format_ratio, parse_ratio, parse_seconds

_TRAIN_FLOOR_S = 50e-6
# Files that a line names.
_MOST_LISTED = 3
_HAS_THEM = "where a cell needs them, name a checkout that has them with --base-dir"


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


@dataclass(frozen=True, kw_only=True)
class _Sides:
    """What is known of both sides before the first pair.

    Attributes:
        suite: What head collected.
        base: None where a folder is.
        base_own: What the base's own benchmark files collected.
        tree: The base's, with head's benchmark files.
        has_changed_files: Whether those differ from the base's own.
    """

    suite: Suite
    base: Base | None
    base_own: Launch
    tree: Path
    has_changed_files: bool


# Why a test is timed by pytest-benchmark and not compared.
HIDDEN = (
    "it takes 'benchmark' from request.getfixturevalue, which nobody sees before it runs, so it "
    "is not compared; name the fixture among its arguments"
)
# Reviewed exceptions, from pytest's root.
ACCEPTED_FILE = Path("baselines") / "accepted.toml"
# The machine of a caller that holds it already.
HELD: AbstractContextManager[object] = contextlib.nullcontext()


@ends_on_signals()
def run_gate(
    request: GateRequest,
    *,
    say: Callable[[str], None],
    machine: AbstractContextManager[object] = HELD,
) -> GateResult:
    """Return the verdict of every cell.

    Args:
        request: What is to be gated, and how.
        say: Shows a line.
        machine: Entered before anything is timed, and after the request was found to be one that
            can be answered: it may wait for another session.

    Raises:
        SettingError: The base is not known, or a path is not there.
        WriteError: A tree cannot be made.
    """
    sweep_stale_trees(request.folder)
    differs = {"head": describe_head(request.folder)}
    base = _find_base(request)
    if isinstance(base, NoBase):
        return _refused(request, base.reason, differs)
    differs["base"] = str(request.base_dir) if base is None else base.described
    if request.base_python is not None:
        differs["base interpreter"] = request.base_python
    differs |= {f"base {name}": value for name, value in request.base_environment.items()}

    head = collect(head_arm(request, None))
    if head.suite is None or head.failure is not None:
        return _refused(request, f"head's tests cannot be collected: {head.failure}", differs)
    suite = head.suite
    if suite.cells:
        budget = request.budget
        say(
            f"comparing {len(suite.cells)} cells with {differs['base']}, in at most "
            f"{budget.max_pairs} pairs and {budget.max_s / 60:.3g} min"
        )
    else:
        asked = " ".join((*request.paths, *request.pytest_arguments))
        say(f"nothing to compare: pytest {asked} selects no test with the benchmark fixture")
    with machine:
        return _compare(request, suite, base, differs, say)


def _find_base(request: GateRequest) -> Base | NoBase | None:
    """The commit to compare with; None where a folder is named instead."""
    if request.base_dir is None:
        return find_base(request.folder, request.base, outputs=request.outputs)
    check_base_dir(request.base_dir)
    return None


def _compare(
    request: GateRequest,
    suite: Suite,
    base: Base | None,
    differs: dict[str, str],
    say: Callable[[str], None],
) -> GateResult:
    """Make the base's tree, with head's benchmarks in it, and judge what both sides have."""
    with contextlib.ExitStack() as stack:
        with make_tree(request, suite, base, overlay=()) as plain:
            base_own = collect_base(request, plain, suite)
            before = python_digests(plain)
        tree = stack.enter_context(make_tree(request, suite, base, overlay=overlay_of(request)))
        if base is not None and (missing := what_is_missing(tree)):
            differs["base's tree"] = f"{'; '.join(missing)}; {_HAS_THEM}"
            say(differs["base's tree"])
        after = python_digests(tree)
        changed = sorted(str(path) for path, found in after.items() if before.get(path) != found)
        if changed:
            differs["benchmark files"] = f"head's run on both sides: {_listed(changed)}"
            say(f"changed benchmark files, of which {differs['benchmark files']}")
        sides = _Sides(
            suite=suite, base=base, base_own=base_own, tree=tree, has_changed_files=bool(changed)
        )
        return _judge_common(request, sides, differs, say)


def _listed(names: Sequence[str]) -> str:
    """The first few of them.

    >>> _listed(["a", "b"]), _listed(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


def _judge_common(
    request: GateRequest, sides: _Sides, differs: dict[str, str], say: Callable[[str], None]
) -> GateResult:
    """Judge what both sides have, and say of the rest what became of it."""
    suite, base_own = sides.suite, sides.base_own
    if (refusal := _why_no_cells(base_own)) is not None:
        cells = [
            CellVerdict(name=name, word="NO-BASELINE", by="collection", reason=refusal)
            for name in suite.cells
        ]
        return _result(request, cells, None, differs)
    assert base_own.suite is not None
    paths = relative_paths(request, suite)
    theirs = [name for name in base_own.suite.cells if is_named(name, paths)]
    accepted = Accepted()
    if request.heeds_exceptions:
        accepted = read_accepted(suite.root / ACCEPTED_FILE, datetime.date.today())
    common, cells = find_common(list(suite.cells), theirs, accepted)
    demands = {
        name: dataclasses.replace(
            policy_of(request, suite, name),
            accepted_slowdown=accepted.allowed_slowdown(name),
            accepted_increase=functools.partial(accepted.allowed_increase, name),
        )
        for name in common
        if request.cells is None or name in request.cells
    }
    cells += [
        CellVerdict(name=name, word="INVALID", by="collection", reason=HIDDEN)
        for name in suite.hidden
    ]
    judgement = None
    if demands:
        arms = base_arm(request, sides.tree, suite), head_arm(request, suite)
        judgement = judge(
            *arms,
            demands,
            num_cells=request.num_cells,
            budget=request.budget,
            seed=request.seed,
            priors=request.priors,
            say=say,
        )
        if sides.has_changed_files:
            _look_for_skipped(request, sides, judgement, accepted, say)
        for trial in judgement.trials:
            _excuse_removed(trial, accepted)
        explanations = _explain(arms, judgement, request, say)
        cells += [_verdict(trial, explanations.get(trial.name)) for trial in judgement.trials]
    return _result(request, cells, judgement, differs)


def _why_no_cells(base_own: Launch) -> str | None:
    if base_own.failure is not None:
        return f"the base's tests cannot be collected: {base_own.failure}"
    if not base_own.takes_turns:
        return "the base's perfsuite is too old to take turns"
    return None


def _look_for_skipped(
    request: GateRequest,
    sides: _Sides,
    judgement: Judgement,
    accepted: Accepted,
    say: Callable[[str], None],
) -> None:
    """Find what is skipped since head: with its own benchmark files, the base measures it."""
    skipped = {
        accepted.renamed_from(trial.name) or trial.name: trial
        for trial in judgement.trials
        if trial.word == "SKIPPED"
    }
    if not skipped:
        return
    say(f"looking whether the base measures what is skipped now: {len(skipped)} cells")
    with make_tree(request, sides.suite, sides.base, overlay=()) as plain:
        own = base_own_arm(request, plain, sides.suite)
        plan = _further_pair(request, judgement)
        launches = launch_pair((own, dataclasses.replace(own, name="head")), plan, [*skipped])
    for name, trial in skipped.items():
        run = launches["base"].cells.get(name)
        if run is not None and run.rounds_s:
            trial.word = "VANISHED"
            trial.reason = f"head skips what the base measures: {trial.last['head'].reason}"


def _excuse_removed(trial: Trial, accepted: Accepted) -> None:
    """A cell that head skips may be gone if somebody has reviewed that."""
    if trial.word != "VANISHED":
        return
    if accepted.is_removed(trial.name):
        trial.word = "SKIPPED"
    else:
        trial.add_reason(HOW_TO_ACCEPT)


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
    launches = launch_pair(arms, _further_pair(request, judgement, profiles=True), moved)
    return {
        name: explain(launches["base"].cells[name], launches["head"].cells[name])
        for name in moved
        if name in launches["base"].cells and name in launches["head"].cells
    }


def _further_pair(
    request: GateRequest, judgement: Judgement, *, profiles: bool = False
) -> PairPlan:
    """A pair that decides nothing by its times."""
    return PairPlan(
        number=judgement.num_pairs + 1,
        first="base",
        hash_seed=request.seed % 2**32,
        core=max(os.sched_getaffinity(0)),
        timeout_s=request.budget.timeout_s,
        profiles=profiles,
        one_by_one=frozenset(trial.name for trial in judgement.trials if trial.is_one_by_one),
    )


def _verdict(trial: Trial, explanation: Explanation | None) -> CellVerdict:
    decision = trial.decision
    tolerance, limit = trial.policy.bounds
    return CellVerdict(
        name=trial.name,
        word=trial.word or "INCONCLUSIVE",
        by=trial.by,
        ratio=None if decision is None else decision.ratio,
        interval=None if decision is None else decision.interval,
        num_pairs=0 if decision is None else decision.num_pairs,
        detectable=None if decision is None else decision.detectable,
        tolerance=tolerance,
        limit=limit,
        reason=trial.reason,
        explanation=explanation,
        raw=tuple(trial.raw),
        firsts=tuple(trial.firsts),
        rule=trial.rule,
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


def policy_of(request: GateRequest, suite: Suite, name: str) -> CellPolicy:
    """Return what is asked of a cell: by its markers, else by the request."""
    asked = suite.cells[name]
    floor_s = request.floor_s
    if floor_s is None:
        floor_s = _TRAIN_FLOOR_S if asked.get("is_train") else 0.0
    try:
        demands = CellPolicy(
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
