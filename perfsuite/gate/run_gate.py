"""One gate session: from paths and a base to the verdict of every cell, or why it has none."""

import functools
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from perfsuite.errors import ExitCode, SettingError, StorageError, WriteError
from perfsuite.gate import common_cells
from perfsuite.gate.arms.arm import Arm, Launch, PairPlan, Say
from perfsuite.gate.arms.command import options_of_cells
from perfsuite.gate.arms.launch import launch_pair, scratch_folder
from perfsuite.gate.baselines.accepted import EVERY_CELL, Entry, Quarantine, in_words
from perfsuite.gate.baselines.select import read_durations
from perfsuite.gate.git import worktree
from perfsuite.gate.git.changes import digest_tree
from perfsuite.gate.git.find_base import describe_head
from perfsuite.gate.git.overlay import tree_files
from perfsuite.gate.git.repository import Base
from perfsuite.gate.judge.explain import explain
from perfsuite.gate.judge.forecast import describe_cost, forecast_pair_s, why_too_much
from perfsuite.gate.judge.judge import judge
from perfsuite.gate.judge.kept_pairs import KeptPairs
from perfsuite.gate.judge.pair_evidence import why_missing, why_vanished
from perfsuite.gate.judge.trial import CellPolicy, Judgement, Trial
from perfsuite.gate.provenance import head_files
from perfsuite.gate.provenance.dependencies import describe_dependencies
from perfsuite.gate.provenance.identical import Comparison
from perfsuite.gate.provenance.untracked import name_lacking
from perfsuite.gate.request import BaseSide, GateRequest, base_of, collect, head_arm, import_roots
from perfsuite.records.verdict import CellVerdict, Explanation, exit_code
from perfsuite.system.signals import ends_on_signals
from perfsuite.units import counted, listed

_HAS_THEM = "where a cell needs them, fetch them here, or name a checkout with them (--base-dir)"
_ANOTHER_BASE = "if its own commit is broken, name an older one with --base (pytest: --perf-base)"
Machine = AbstractContextManager[object]
# That of a caller that holds it already.
HELD: Machine = nullcontext()


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """The result of a gate session, with all cells of either side, and what differs for people.

    `refusal` says why nothing was compared at all; cells have their names from `root`.
    """

    cells: tuple[CellVerdict, ...] = ()
    refusal: str | None = None
    differs: dict[str, str]
    judgement: Judgement | None = None
    policies: Mapping[str, CellPolicy] = field(default_factory=dict)
    leniency: common_cells.Leniency = field(default_factory=common_cells.Leniency)
    root: Path = Path()
    seed: int

    @property
    def code(self) -> ExitCode:
        """What all verdicts say but those of quarantined cells."""
        if self.refusal is not None:
            return ExitCode.REFUSED
        return exit_code(cell.word for cell in self.cells if cell.policy != "quarantined")


@ends_on_signals()
def run_gate(request: GateRequest, *, say: Say, machine: Machine = HELD) -> GateResult:
    """Return the verdict of every cell.

    The machine is entered once the request can be answered, and before anything is timed. Raises a
    SettingError for a base or a path that is not there, a WriteError where no tree can be made.
    """
    worktree.sweep_stale_trees(request.command.folder)
    if request.kept is None:
        request = replace(request, kept=head_files.kept_files(request.command.folder))
    differs = {"head": describe_head(request.command.folder)}
    with scratch_folder() as caches:
        session = _begin(request, caches, differs, say, machine)
        if isinstance(session, str):
            lenient = common_cells.Leniency.of(request)
            return GateResult(refusal=session, differs=differs, leniency=lenient, seed=request.seed)
        side = session.side
        fixtures = {cell.get("fixture") for cell in side.suite.cells.values()}
        files = tree_files(side.head.top) if "command_benchmark" in fixtures else None
        cells, judgement = session.compare()
        if side.base is not None and side.base.instead is not None:
            identical = {cell.name for cell in cells if cell.by == "identical"}
            by = {"NEW" if cell.word == "NEW" else cell.by for cell in cells}
            if identical and by <= {"identical", "collection"} and request.waiting <= identical:
                session = session.against(side.base.instead)
                cells, judgement = session.compare()
        if files is not None and (new := {*tree_files(side.head.top)}.difference(files)):
            differs["head's tree"] = f"new since, and left there: {listed(sorted(map(str, new)))}"
    return GateResult(
        cells=tuple(sorted(map(session.leniency.mark, cells), key=lambda cell: cell.name)),
        differs=differs,
        judgement=judgement,
        policies=session.policies,
        leniency=session.leniency,
        root=side.suite.root,
        seed=request.seed,
    )


def _begin(
    request: GateRequest, caches: Path, differs: dict[str, str], say: Say, machine: Machine
) -> "_Session | str":
    """Collect head's suite and find its base; return a reason where there is nothing to compare."""
    began_s = time.monotonic()
    head = collect(head_arm(request, None, caches), request.budget.timeout_s)
    collected_s = time.monotonic() - began_s
    if head.refusal is not None:
        raise SettingError(f"pytest refuses the call: {head.refusal}")
    base = base_of(request, [head.suite.root, *head.suite.pythonpath] if head.suite else [])
    if isinstance(base, str):
        return base
    differs["base"] = str(request.base_dir) if base is None else base.described
    if request.base_python is not None:
        differs["base interpreter"] = request.base_python
    differs |= {f"base {name}": value for name, value in request.base_environment.items()}
    if base is not None and base.warning is not None:
        differs["base's age"] = base.warning
    if head.suite is None or head.why_not_collected is not None:
        return f"head's tests cannot be collected: {head.why_not_collected}"
    worktree.check_shared(head.suite.root, head.suite.shared)
    if not head.suite.cells:
        say("nothing to compare: no test with the benchmark fixture is selected")
    side = BaseSide(request=request, suite=head.suite, base=base, caches=caches)
    return _Session(
        side=side,
        differs=differs,
        collected=head,
        collected_s=collected_s,
        leniency=common_cells.read_leniency(side, differs),
        say=say,
        machine=machine,
    )


@dataclass(frozen=True, kw_only=True)
class _Session:
    """Head's suite against a base; `used` are the exceptions behind verdicts."""

    side: BaseSide
    differs: dict[str, str]
    collected: Launch
    collected_s: float
    leniency: common_cells.Leniency
    say: Say
    machine: Machine
    policies: dict[str, CellPolicy] = field(default_factory=dict)
    used: defaultdict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))

    def against(self, base: Base) -> "_Session":
        """Return the session with another base, because a commit would be compared with itself."""
        request = self.side.request
        cells = None if request.cells is None else request.cells | request.waiting
        request = replace(request, cells=cells, waiting=frozenset())
        side = replace(self.side, request=request, base=base)
        self.differs["base"] = base.described
        return replace(self, side=side, leniency=common_cells.read_leniency(side, self.differs))

    def compare(self) -> tuple[list[CellVerdict], Judgement | None]:
        """Judge what both sides have, and say why the rest is not compared."""
        request, suite = self.side.request, self.side.suite
        with self.side.tree() as tree:
            comparison = self.side.compare(tree, self.collected, self.say)
            if comparison is not None and comparison.reaches_no_cell:
                self.leniency.is_advisory = request.is_advisory  # as the base's configuration is
                names = [name for name in suite.cells if request.asks_for(name)]
                hidden = common_cells.not_compared("INVALID", suite.hidden, common_cells.HIDDEN)
                return [*comparison.find_identical(names), *hidden], None
            with self.machine:
                if (refusal := self.side.prepare(tree, self.say, self.differs)) is not None:
                    return common_cells.not_compared("NO-BASELINE", suite.cells, refusal), None
                cells, judgement = self._compare_with(tree, comparison)
            return [self._complete(cell, tree) for cell in cells], judgement

    def _compare_with(
        self, tree: Path, comparison: Comparison | None
    ) -> tuple[list[CellVerdict], Judgement | None]:
        request, suite, head = self.side.request, self.side.suite, self.side.head
        alone = self.side.find_alone(tree)  # before any launch of the base
        own = self.side.collect(tree)
        self.differs.update(describe_dependencies(head.top_of(tree), head.top))
        changed, own_files = self.side.lay_benchmarks(tree)
        self._describe_tree(tree, changed)
        refusal = None if own.takes_turns else "the base's perfsuite is too old to take turns"
        if own.suite is None or own.failure is not None:
            refusal = f"the base's tests cannot be collected; {_ANOTHER_BASE}: {own.failure}"
        if refusal is not None:
            return common_cells.not_compared("NO-BASELINE", suite.cells, refusal), None
        assert own.suite is not None
        theirs = own.suite.variables.items()
        written = [name for name, value in suite.variables.items() if (name, value) not in theirs]
        if written:  # no launch of the base has them from it
            self.differs["environment"] = f"head's code sets {listed(written)}"
        chosen = common_cells.choose_cells(request, suite, own.suite, self.leniency.accepted)
        self.leniency.is_advisory = chosen.is_advisory
        self.used.update(chosen.used)
        self.policies.update(chosen.policies)
        entries = self.leniency.accepted.entries
        brought = {one.cell for one in entries if not isinstance(one, Quarantine)}
        if strangers := brought - {EVERY_CELL, *suite.cells, *own.suite.cells}:
            found = f"no cell of this session is called {listed(sorted(strangers))}"
            self.differs["exceptions"] = found
        if chosen.loosened is not None:
            self.differs["limits"] = chosen.loosened
            self.say(chosen.loosened)
        cells = chosen.others
        if request.cells is None:  # else pytest's own session runs each test
            cells = self.side.run_new(cells, self.say)
        policies = {name: one for name, one in self.policies.items() if request.asks_for(name)}
        if comparison is not None:
            cells += comparison.find_identical(policies)
        for name in policies:
            if (why := head_files.why_mixed(name, suite, tree, changed)) is not None:
                cells += common_cells.not_compared("INVALID", [name], why)
        settled = request.waiting.union(cell.name for cell in cells)
        policies = {name: policy for name, policy in policies.items() if name not in settled}
        if not policies:
            return cells, None
        if (refusal := self._announce_cost(policies)) is not None:
            return [*cells, *common_cells.not_compared("INCONCLUSIVE", policies, refusal)], None
        verdicts, judgement = self._judge(tree, policies, changed, own_files, alone)
        return [*cells, *verdicts], judgement

    def _judge(
        self,
        tree: Path,
        policies: Mapping[str, CellPolicy],
        changed: Collection[Path],
        own_files: Mapping[Path, bytes],
        alone: frozenset[Path],
    ) -> tuple[list[CellVerdict], Judgement]:
        request, suite = self.side.request, self.side.suite
        arms = self.side.arms(tree, alone)
        collected = functools.partial(collect, arms[0], request.budget.timeout_s)
        replaced, changed = head_files.give_back(arms, collected, changed, own_files, policies)
        if replaced and not changed:
            self.differs["benchmark files"] = "each side runs its own Python files"
            self.say(f"benchmark files: {self.differs['benchmark files']}")
        trees = [arm.tree for arm in arms]
        unlike = {one: why for one in replaced if (why := head_files.why_unlike(one, *trees))}
        policies = {name: policy for name, policy in policies.items() if name not in unlike}
        kept, before = self._read_kept(policies), head_files.code_times(self.side.head.top)

        def keep(trials: Sequence[Trial]) -> str | None:
            """Keep what the pairs showed, unless head was edited meanwhile; say which sources."""
            edited = head_files.why_edited(self.side.head.top, before)
            if kept is not None and edited is None and kept.head == self._digest_head():
                with suppress(WriteError):  # it costs a re-run its start, no verdict
                    kept.write(trials)
            return edited

        judgement = judge(
            *arms,
            policies,
            num_cells=request.num_cells,
            budget=request.budget,
            seed=request.seed,
            priors=common_cells.read_noise(self.side, self.differs),
            kept={} if kept is None else kept.cells,
            keep=keep,
            say=self.say,
        )
        if (edited := keep(judgement.trials)) is not None:
            named = [*policies, *unlike]
            return common_cells.not_compared("INVALID", named, edited), judgement
        self._look_for_skipped(judgement)
        for trial in judgement.trials:
            if trial.name in replaced:
                trial.add_reason(replaced[trial.name])
            trial.tell_loaded(suite.root, changed)
            self.used[trial.name] += common_cells.apply_exceptions(trial, self.leniency.accepted)
        explanations = self._explain(arms, judgement)
        base = self.differs["base"]
        verdicts = [one.verdict(explanations.get(one.name), base) for one in judgement.trials]
        for name, why in unlike.items():
            verdicts += common_cells.not_compared("INVALID", [name], why)
        return verdicts, judgement

    def _announce_cost(self, policies: Collection[str]) -> str | None:
        """Say what the pairs will cost; return why they cannot decide, where that is so."""
        request = self.side.request
        durations_s: Mapping[str, float | None] = {}
        with suppress(StorageError):  # the pairs need none of it
            durations_s, _ = read_durations(request.stored, policies, but_of=None)
        pair_s = forecast_pair_s(policies, durations_s, self.collected_s)
        cost = describe_cost(len(policies), pair_s, request.budget)
        self.say(f"comparing with {self.differs['base']}: {cost}")
        if pair_s is None:
            return None
        return why_too_much(len(policies), pair_s, request.budget, is_forecast=True)

    def _complete(self, cell: CellVerdict, tree: Path) -> CellVerdict:
        """Name the exceptions that a verdict rests on, and the file that the base lacks."""
        reasons, suite = [cell.reason], self.side.suite
        if cell.word == "NO-BASELINE" and cell.reason is not None:
            roots = import_roots(suite.root, suite)
            reasons.append(name_lacking(cell.reason, suite.root, tree, roots))
        if cell.word not in ("PASS", "IMPROVED"):
            reasons.append(self.leniency.accepted.why_counted(cell.name))
        reason = "; ".join(filter(None, reasons)) or None
        accepted = tuple(map(in_words, self.used[cell.name]))
        return msgspec.structs.replace(cell, reason=reason, accepted=accepted)

    def _digest_head(self) -> str | None:
        return digest_tree(self.side.suite.root, outputs=self.side.request.outputs)

    def _read_kept(self, names: Collection[str]) -> KeptPairs | None:
        """What earlier sessions found of these two trees; None where nothing names them."""
        request, base, call = self.side.request, self.side.base, self.side.request.command
        if request.pairs_file is None or base is None or (head := self._digest_head()) is None:
            return None
        how = (
            *(request.base_python, request.base_build, sorted(request.base_environment.items())),
            *(call.python_options, options_of_cells(call.arguments, call.environment)),
        )
        kept = KeptPairs(request.pairs_file, f"{base.revision} {how}", head)
        if (told := kept.describe(names)) is not None:
            self.say(told)
        return kept

    def _describe_tree(self, tree: Path, changed: Collection[Path]) -> None:
        if (place := worktree.why_elsewhere(tree, self.side.suite.root)) is not None:
            self.differs["base's file system"] = place
        base_top = self.side.head.top_of(tree)
        if self.side.base is not None and (lacked := worktree.missing_files(base_top)):
            told = f"lacks submodules or git-lfs files, {listed(lacked)}; {_HAS_THEM}"
            self.differs["base's tree"] = told
            self.say(f"the base's tree {told}")
        if changed:
            self.differs["benchmark files"] = f"head's run on both sides: {listed(changed)}"
            self.say(f"changed benchmark files; {self.differs['benchmark files']}")

    def _look_for_skipped(self, judgement: Judgement) -> None:
        """Find what is skipped since head: with its own benchmark files, the base measures it."""
        trials = [trial for trial in judgement.trials if trial.word == "SKIPPED"]
        skipped = {self.leniency.accepted.name_in_base(trial.name): trial for trial in trials}
        if not skipped:
            return
        self.say(f"running in the base what head skips: {counted(len(skipped), 'cell')}")
        with self.side.tree() as plain:
            self.side.prepare(plain, self.say, self.differs)
            own = self.side.own_arm(plain)
            launches = launch_pair([own], self._further_pair(judgement), [*skipped])
        for name, trial in skipped.items():
            run = launches["base"].cells.get(name)
            if run is not None and run.outcome == "passed" and run.rounds_s:
                trial.word = "VANISHED"
                trial.reason = why_vanished(trial.last["head"])
            elif run is None:
                trial.word, trial.reason = why_missing(name, "base", launches["base"])

    def _explain(self, arms: Sequence[Arm], judgement: Judgement) -> dict[str, Explanation]:
        moved = {one.name: one for one in judgement.trials if one.word in ("FAIL", "IMPROVED")}
        if not moved or not self.side.request.explains:
            return {}
        self.say(f"profiling what moved: {counted(len(moved), 'cell')}")
        launches = launch_pair(arms, self._further_pair(judgement, profiles=True), [*moved])
        base, head = launches["base"].cells, launches["head"].cells
        names = moved.keys() & base.keys() & head.keys()
        return {name: explain(moved[name], base[name], head[name]) for name in names}

    def _further_pair(self, judgement: Judgement, *, profiles: bool = False) -> PairPlan:
        plan = self.side.plan(judgement.num_pairs + 1, "base")
        one_by_one = frozenset(one.name for one in judgement.trials if one.one_by_one)
        is_apart = any(one.is_apart for one in judgement.trials)
        return replace(plan, profiles=profiles, one_by_one=one_by_one, is_apart=is_apart)
