"""One gate session: from paths and a base to the verdict of every cell.

Finds the base, makes its tree, has both sides collect their cells, has the judge compare what both
have, and says why the others are not compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perfsuite.gate.arms.arm import Arm, Launch, PairPlan, Suite
from perfsuite.gate.arms.launch import launch_pair
from perfsuite.gate.baselines.accepted import Accepted, read_accepted
from perfsuite.gate.collection import HOW_TO_ACCEPT, find_common, is_named
from perfsuite.gate.git.overlay import python_digests
from perfsuite.gate.git.repository import Base, NoBase, describe_head, find_base
from perfsuite.gate.git.worktree import check_base_dir, sweep_stale_trees, what_is_missing
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
    policy_of,
    relative_paths,
)
from perfsuite.records.verdict import CellVerdict, Explanation, VerdictWord
from perfsuite.system.signals import ends_on_signals

# Files that a line names.
_MOST_LISTED = 3
_HAS_THEM = "where a cell needs them, name a checkout that has them with --base-dir"
# Why a test is timed by pytest-benchmark and not compared.
HIDDEN = (
    "it takes 'benchmark' from request.getfixturevalue, which cannot be seen before it runs, so it "
    "is not compared; name the fixture among its arguments"
)
# Reviewed exceptions, from pytest's root.
ACCEPTED_FILE = Path("baselines") / "accepted.toml"
# The machine of a caller that holds it already.
HELD: AbstractContextManager[object] = contextlib.nullcontext()


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """The result of a gate session.

    Attributes:
        cells: All cells of either side.
        refusal: Why nothing was compared at all, None where something was.
        differs: What differs between the arms, for people.
        judgement: None where no pair was run.
    """

    cells: tuple[CellVerdict, ...]
    refusal: str | None
    differs: dict[str, str]
    judgement: Judgement | None
    seed: int


@ends_on_signals()
def run_gate(
    request: GateRequest,
    *,
    say: Callable[[str], None],
    machine: AbstractContextManager[object] = HELD,
) -> GateResult:
    """Return the verdict of every cell.

    The machine is entered before anything is timed, and after the request was found to be one that
    can be answered: it may wait for another session.

    Raises:
        SettingError: The base is not known, or a path is not there.
        WriteError: A tree cannot be made.
    """
    sweep_stale_trees(request.folder)
    differs = {"head": describe_head(request.folder)}
    base = _find_base(request)
    if isinstance(base, NoBase):
        return _result(request, differs, refusal=base.reason)
    differs |= _describe_base(request, base)
    head = collect(head_arm(request, None))
    if head.suite is None or head.failure is not None:
        refusal = f"head's tests cannot be collected: {head.failure}"
        return _result(request, differs, refusal=refusal)
    _announce(request, head.suite, differs["base"], say)
    session = _Session(request=request, suite=head.suite, base=base, differs=differs, say=say)
    with machine:
        return session.compare()


def _find_base(request: GateRequest) -> Base | NoBase | None:
    """The commit to compare with; None where a folder is named instead."""
    if request.base_dir is None:
        return find_base(request.folder, request.base, outputs=request.outputs)
    check_base_dir(request.base_dir)
    return None


def _describe_base(request: GateRequest, base: Base | None) -> dict[str, str]:
    differs = {"base": str(request.base_dir) if base is None else base.described}
    if request.base_python is not None:
        differs["base interpreter"] = request.base_python
    return differs | {f"base {name}": value for name, value in request.base_environment.items()}


def _announce(request: GateRequest, suite: Suite, base: str, say: Callable[[str], None]) -> None:
    budget = request.budget
    if suite.cells:
        say(
            f"comparing {len(suite.cells)} cells with {base}, in at most {budget.max_pairs} pairs "
            f"and {budget.max_s / 60:.3g} min"
        )
    else:
        selection = " ".join((*request.paths, *request.pytest_arguments))
        say(f"nothing to compare: pytest {selection} selects no test with the benchmark fixture")


@dataclass(frozen=True, kw_only=True)
class _Session:
    """Head's suite against a base.

    Attributes:
        base: None where a folder is.
        differs: What differs between the arms; the comparison adds what it finds.
    """

    request: GateRequest
    suite: Suite
    base: Base | None
    differs: dict[str, str]
    say: Callable[[str], None]

    def compare(self) -> GateResult:
        """Judge what both sides have, and say why the rest is not compared."""
        request, suite = self.request, self.suite
        with make_tree(request, suite, self.base, overlay=()) as plain:
            own = collect_base(request, plain, suite)
            digests = python_digests(plain)
        with make_tree(request, suite, self.base, overlay=overlay_of(request)) as tree:
            has_changed_files = self._describe_tree(tree, digests)
            if (refusal := _why_no_cells(own)) is not None:
                cells = _not_compared("NO-BASELINE", suite.cells, refusal)
                return _result(request, self.differs, cells)
            assert own.suite is not None
            policies, cells = self._choose_cells(own.suite)
            judgement = None
            if policies:
                arms = base_arm(request, tree, suite), head_arm(request, suite)
                judgement = judge(
                    *arms,
                    policies,
                    num_cells=request.num_cells,
                    budget=request.budget,
                    seed=request.seed,
                    priors=request.priors,
                    say=self.say,
                )
                if has_changed_files:
                    self._look_for_skipped(judgement)
                for trial in judgement.trials:
                    self._allow_removal(trial)
                explanations = self._explain(arms, judgement)
                cells += [
                    _verdict(trial, explanations.get(trial.name)) for trial in judgement.trials
                ]
            return _result(request, self.differs, cells, judgement)

    @functools.cached_property
    def _accepted(self) -> Accepted:
        if not self.request.heeds_exceptions:
            return Accepted()
        return read_accepted(self.suite.root / ACCEPTED_FILE, datetime.date.today())

    def _describe_tree(self, tree: Path, digests: Mapping[Path, bytes]) -> bool:
        """Say what the base's tree lacks; return whether its own benchmark files differ."""
        if self.base is not None and (missing := what_is_missing(tree)):
            self.differs["base's tree"] = f"{'; '.join(missing)}; {_HAS_THEM}"
            self.say(self.differs["base's tree"])
        files = python_digests(tree)
        changed = sorted(str(path) for path, found in files.items() if digests.get(path) != found)
        if changed:
            self.differs["benchmark files"] = f"head's run on both sides: {_listed(changed)}"
            self.say(f"changed benchmark files; {self.differs['benchmark files']}")
        return bool(changed)

    def _choose_cells(self, own: Suite) -> tuple[dict[str, CellPolicy], list[CellVerdict]]:
        """The cells to judge and how, and the verdicts of the others."""
        request, suite, accepted = self.request, self.suite, self._accepted
        paths = relative_paths(request, suite)
        theirs = [name for name in own.cells if is_named(name, paths)]
        common, cells = find_common(list(suite.cells), theirs, accepted)
        policies = {
            name: dataclasses.replace(
                policy_of(request, suite, name),
                accepted_slowdown=accepted.allowed_slowdown(name),
                accepted_increase=functools.partial(accepted.allowed_increase, name),
            )
            for name in common
            if request.cells is None or name in request.cells
        }
        return policies, [*cells, *_not_compared("INVALID", suite.hidden, HIDDEN)]

    def _look_for_skipped(self, judgement: Judgement) -> None:
        """Find what is skipped since head: with its own benchmark files, the base measures it."""
        skipped = {
            self._accepted.renamed_from(trial.name) or trial.name: trial
            for trial in judgement.trials
            if trial.word == "SKIPPED"
        }
        if not skipped:
            return
        self.say(f"looking whether the base measures what is skipped now: {len(skipped)} cells")
        with make_tree(self.request, self.suite, self.base, overlay=()) as plain:
            own = base_own_arm(self.request, plain, self.suite)
            plan = self._further_pair(judgement)
            launches = launch_pair((own, dataclasses.replace(own, name="head")), plan, [*skipped])
        for name, trial in skipped.items():
            run = launches["base"].cells.get(name)
            if run is not None and run.rounds_s:
                trial.word = "VANISHED"
                trial.reason = f"head skips what the base measures: {trial.last['head'].reason}"

    def _allow_removal(self, trial: Trial) -> None:
        """A cell that head skips may be gone if a reviewed exception removes it."""
        if trial.word == "VANISHED" and self._accepted.is_removed(trial.name):
            trial.word = "SKIPPED"
        elif trial.word == "VANISHED":
            trial.add_reason(HOW_TO_ACCEPT)

    def _explain(self, arms: Sequence[Arm], judgement: Judgement) -> dict[str, Explanation]:
        """What moved in each cell that failed or improved, from one more pair that is profiled."""
        moved = [trial.name for trial in judgement.trials if trial.word in ("FAIL", "IMPROVED")]
        if not moved:
            return {}
        self.say(f"profiling what moved: {len(moved)} cells")
        launches = launch_pair(arms, self._further_pair(judgement, profiles=True), moved)
        base, head = launches["base"].cells, launches["head"].cells
        return {
            name: explain(base[name], head[name]) for name in moved if name in base and name in head
        }

    def _further_pair(self, judgement: Judgement, *, profiles: bool = False) -> PairPlan:
        """A pair that decides nothing by its times."""
        return PairPlan(
            number=judgement.num_pairs + 1,
            first="base",
            hash_seed=self.request.seed % 2**32,
            core=max(os.sched_getaffinity(0)),
            timeout_s=self.request.budget.timeout_s,
            profiles=profiles,
            one_by_one=frozenset(one.name for one in judgement.trials if one.is_one_by_one),
        )


def _why_no_cells(own: Launch) -> str | None:
    if own.failure is not None:
        return f"the base's tests cannot be collected: {own.failure}"
    if not own.takes_turns:
        return "the base's perfsuite is too old to take turns"
    return None


def _not_compared(word: VerdictWord, names: Iterable[str], reason: str | None) -> list[CellVerdict]:
    return [CellVerdict(name=name, word=word, by="collection", reason=reason) for name in names]


def _listed(names: Sequence[str]) -> str:
    """The first few of them.

    >>> _listed(["a", "b"]), _listed(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


def _verdict(trial: Trial, explanation: Explanation | None) -> CellVerdict:
    tolerance, limit = trial.policy.bounds
    verdict = CellVerdict(
        name=trial.name,
        word=trial.word or "INCONCLUSIVE",
        by=trial.by,
        tolerance=tolerance,
        limit=limit,
        reason=trial.reason,
        explanation=explanation,
        raw=tuple(trial.raw),
        firsts=tuple(trial.firsts),
        rule=trial.rule,
    )
    if (decision := trial.decision) is None:
        return verdict
    return msgspec.structs.replace(
        verdict,
        ratio=decision.ratio,
        interval=decision.interval,
        num_pairs=decision.num_pairs,
        detectable=decision.detectable,
    )


def _result(
    request: GateRequest,
    differs: dict[str, str],
    cells: Sequence[CellVerdict] = (),
    judgement: Judgement | None = None,
    refusal: str | None = None,
) -> GateResult:
    return GateResult(
        cells=tuple(sorted(cells, key=lambda cell: cell.name)),
        refusal=refusal,
        differs=differs,
        judgement=judgement,
        seed=request.seed,
    )
