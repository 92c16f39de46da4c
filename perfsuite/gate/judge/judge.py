"""The judge: pairs of launches until every cell is decided, or the budget is spent."""

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from perfsuite.gate.arms.arm import Arm, Launch, PairPlan, Say
from perfsuite.gate.arms.launch import launch_pair
from perfsuite.gate.arms.num_rounds import plan_num_rounds
from perfsuite.gate.judge import numerics_change as numerics
from perfsuite.gate.judge import pair_evidence
from perfsuite.gate.judge.counts import CountComparison, compare_run_counts
from perfsuite.gate.judge.forecast import describe_rest, why_too_much
from perfsuite.gate.judge.kept_pairs import KeptCell, resume
from perfsuite.gate.judge.trial import MAX_UNFIT, Budget, CellPolicy, Judgement, Trial
from perfsuite.gate.provenance.symmetry import find_asymmetry
from perfsuite.stats.evidence import Prior
from perfsuite.stats.sequential import WORDS, Rule
from perfsuite.system import fitness
from perfsuite.system.gpus import nvml
from perfsuite.system.untrusted import printable
from perfsuite.units import counted, format_change

# Undecided cells whose running interval is shown after a pair, the widest first.
_MOST_SHOWN = 5
# Bounds that lie farther apart than by a factor of 100 say nothing yet.
_WIDEST_SHOWN = math.log(100)
_FAR_LESS = 0.75
_PAUSE_S = 10.0  # after a first pair that does not count: a disturbance may outlast three of 2 s
_APART = "both arms want one port, file, device or daemon: launch after launch, not round by round"


def judge(
    base: Arm,
    head: Arm,
    policies: Mapping[str, CellPolicy],
    *,
    num_cells: int | None = None,
    budget: Budget,
    seed: int,
    priors: Mapping[str, Prior],
    kept: Mapping[str, KeptCell] = MappingProxyType({}),
    keep: Callable[[Sequence[Trial]], object] = lambda _: None,
    say: Say,
) -> Judgement:
    """Return the verdict of every cell, of INCONCLUSIVE where the budget is spent.

    `num_cells` cells share the error rate, those of other sessions included; None is these alone.
    `keep` is given the trials after each pair: another session goes on where this one is ended.
    """
    num_cells = num_cells or len(policies)
    trials = []
    for name, policy in policies.items():
        rule = Rule(
            tolerance=policy.tolerance,
            limit=policy.limit,
            num_cells=num_cells,
            max_pairs=budget.max_pairs,
            prior=priors.get(name),
        )
        trials.append(Trial(name=name, policy=policy, rule=rule))
        if (found := kept.get(printable(name))) is not None:
            resume(trials[-1], found)
    session = _Session(arms=(base, head), budget=budget, random_numbers=random.Random(seed))
    while undecided := [trial for trial in trials if _is_open(trial)]:
        if session.spent_s + session.longest_s > budget.max_s:
            break  # no pair takes longer than the longest so far
        unfit = session.run_pair(undecided)
        if session.invalid is not None:
            break
        if unfit is not None:
            session.num_unfit += 1
            if session.num_unfit == MAX_UNFIT:
                session.unfit = f"the machine was not fit: {unfit}"
                break
            pause_s = _PAUSE_S * session.num_unfit
            say(f"pair {session.num_pairs} does not count: {unfit}; the next in {pause_s:g} s")
            time.sleep(pause_s)
            continue
        keep(trials)
        for line in _progress(session, undecided, trials):
            say(line)
        if session.remark is not None:
            say(f"  {session.remark}")
    too_long = why_too_much(len(trials), session.first_s, budget)
    for trial in trials:
        _end(trial, session, too_long or "the time was up")
    return Judgement(trials=tuple(trials), num_pairs=session.num_pairs, wall_s=session.spent_s)


@dataclass(kw_only=True)
class _Session:
    arms: Sequence[Arm]
    budget: Budget
    random_numbers: random.Random
    began_s: float = field(default_factory=lambda: time.monotonic())
    num_pairs: int = 0
    num_unfit: int = 0
    # Why no further pair counts, and why none did.
    unfit: str | None = None
    invalid: str | None = None
    first_s: float = 0.0
    longest_s: float = 0.0
    was_loaded: bool = False  # beside a pair, other processes took much of the processors' time
    remark: str | None = None  # what slowed both arms of the last pair down

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self.began_s

    def run_pair(self, trials: Sequence[Trial]) -> str | None:
        """Run the next pair over the cells, in random order, and decide them if possible.

        Return why it does not count, None where it does.
        """
        self.num_pairs += 1
        began_s = time.monotonic()
        plan = PairPlan(
            number=self.num_pairs,
            first=self.random_numbers.choice(("base", "head")),
            hash_seed=self.random_numbers.randrange(2**32),  # what PYTHONHASHSEED takes
            core=fitness.quietest_core(),
            timeout_s=self.budget.timeout_s,
            num_rounds={
                trial.name: plan_num_rounds(
                    trial.costs, tolerance=trial.policy.tolerance, limit=trial.policy.limit
                )
                for trial in trials
                if trial.costs
            },
            one_by_one=frozenset(trial.name for trial in trials if trial.one_by_one),
            is_apart=any(trial.is_apart for trial in trials),
            unpinned=frozenset(trial.name for trial in trials if trial.is_unpinned),
            uncounted=frozenset(one.name for one in trials if one.num_counted is not None),
        )
        names = [trial.name for trial in trials]
        self.random_numbers.shuffle(names)
        files = [name.partition("::")[0] for name in names]  # together: they share fixtures
        names.sort(key=lambda name: files.index(name.partition("::")[0]))
        with nvml():  # without a client, a driver forgets what it counted
            before = fitness.read_sensors()
            launches = launch_pair(self.arms, plan, names)
            after = fitness.read_sensors()
        num_cores = len(os.sched_getaffinity(0))
        unfit = fitness.why_unfit(before, after, num_cores)
        remark = fitness.describe_load(before, after, num_cores)
        self.was_loaded |= remark is not None
        if pair_evidence.may_use_gpus(launches):
            unfit = unfit or fitness.why_gpus_unfit(before, after)
            remark = remark or fitness.describe_power_limit(before, after)
        self.remark = remark
        wall_s = time.monotonic() - began_s
        self.first_s = self.first_s or wall_s
        self.longest_s = max(self.longest_s, wall_s)
        self.invalid = find_asymmetry(**launches)
        if self.invalid is None and unfit is None:
            cells = launches["head"].cells
            alternated_s = sum(run.alternated_s for run in cells.values())
            other_s = max(0.0, wall_s - alternated_s) / max(1, len(cells))
            for trial in trials:
                if trial.word is not None:
                    _look_again(trial, launches)
                elif not pair_evidence.is_postponed(trial, launches, names, plan):
                    pair_evidence.add_pair(trial, launches, plan.first, other_s)
                    _decide(trial)
        return unfit


def _end(trial: Trial, session: _Session, too_long: str) -> None:
    """Give a cell without a verdict its word; none counts if the wrong code was measured."""
    if session.invalid is not None:
        trial.word, trial.reason = "INVALID", session.invalid
    elif trial.word is None and session.unfit is not None:
        trial.word, trial.reason = "INVALID", session.unfit
    elif trial.word is not None and _is_open(trial) and trial.policy.refuses_numerics_change:
        trial.word, trial.by = "INCONCLUSIVE", "numerics"
    elif trial.word is None:
        trial.word, trial.reason = "INCONCLUSIVE", too_long
        if trial.failure is not None:
            trial.add_reason(f"in the last pair it failed: {trial.failure}")
        trial.tell_stalls()
        _conclude(trial)
    if (trial.word, trial.by) == ("INCONCLUSIVE", "pairs") and session.remark is not None:
        trial.add_reason(f"in the last pair {session.remark}")
    if trial.one_by_one and trial.raw:
        trial.add_reason(f"{trial.one_by_one}: the arms ran one after another, not round by round")
    if trial.sets_collector:
        trial.add_reason("the arms set Python's collector differently, so it ran in timed rounds")
    if trial.is_apart and trial.raw:
        trial.add_reason(_APART)
    has_both = trial.runs.keys() == {"base", "head"}
    if has_both and (threads := pair_evidence.describe_threads(**trial.runs)) is not None:
        if session.was_loaded and trial.word in ("PASS", "IMPROVED"):
            trial.word, threads = "INCONCLUSIVE", f"{threads}: beside other work times say little"
        trial.add_reason(threads)


def _is_open(trial: Trial) -> bool:
    """Whether it has no word, or an earlier session's pairs, which keep no numbers, gave it one."""
    is_unproven = (trial.numerics_change or "").endswith(numerics.ONE_LAUNCH)
    return trial.word is None or (trial.word in ("PASS", "IMPROVED") and is_unproven)


def _look_again(trial: Trial, launches: Mapping[str, Launch]) -> None:
    """Hold a second launch of a decided cell to the first one; its times change nothing."""
    for arm, launch in launches.items():
        if (run := launch.cells.get(trial.name)) is None or run.outcome != "passed":
            trial.numerics_change = f"{numerics.UNKNOWN}: a second launch of it failed"
            if trial.policy.refuses_numerics_change:
                trial.word, trial.by = "INCONCLUSIVE", "numerics"
            return
        trial.runs[arm].append(run)
    _judge_numerics(trial)


def _decide(trial: Trial) -> None:
    has_both = trial.runs.keys() == {"base", "head"}
    is_asked = has_both and trial.policy.slacks and trial.num_counted is None
    # Later launches need count nothing: an increase must stand in all, and these have none.
    if is_asked and not ((compared := _compare_counts(trial)).changes or compared.varies):
        trial.num_counted = len(trial.runs["head"])
    if trial.word is None:
        trial.decide()
    if trial.word is not None:
        _conclude(trial)


def _conclude(trial: Trial) -> None:
    """Judge what launches tell beside their times, when no further pair is run."""
    # Without slacks what the arms train is meant to differ.
    if trial.word in WORDS and trial.runs.keys() == {"base", "head"} and trial.policy.slacks:
        _judge_counts(trial)
        _judge_numerics(trial)
        _judge_size(trial)


def _compare_counts(trial: Trial) -> CountComparison:
    slacks, accepted_ratio = trial.policy.slacks, trial.policy.accepted_increase
    counted = {arm: runs[: trial.num_counted] for arm, runs in trial.runs.items()}
    return compare_run_counts(**counted, slacks=slacks, accepted_ratio=accepted_ratio)


def _judge_counts(trial: Trial) -> None:
    compared = _compare_counts(trial)
    trial.accepted_counts = tuple(one.name for one in compared.changes if one.kind == "accepted")
    trial.failed_counts = tuple(one.name for one in compared.increases)
    if compared.increases and trial.word != "FAIL":
        trial.word, trial.by, trial.reason = "FAIL", "counts", None
    for one in (*compared.increases, *compared.unavailable):
        trial.add_reason(str(one))
    differ = pair_evidence.why_logs_differ(**trial.runs)
    if why := differ or pair_evidence.why_steps_differ(**trial.runs):
        trial.word, trial.by, trial.reason = "INVALID", "counts", why
    beside = pair_evidence.describe_beside(**trial.runs, limit=trial.policy.bounds[1])
    for one in filter(None, (pair_evidence.describe_changes(**trial.last), beside)):
        trial.add_reason(one)


def _judge_numerics(trial: Trial) -> None:
    change = trial.numerics_change = numerics.describe_numerics_change(**trial.runs)
    if change is None or not trial.policy.refuses_numerics_change:
        return
    is_unknown = change.startswith(numerics.UNKNOWN) and not _is_open(trial)
    if change.startswith(numerics.CHANGED) and trial.word != "FAIL":
        trial.word, trial.by = "FAIL", "numerics"
    elif is_unknown and trial.word in ("PASS", "IMPROVED"):
        trial.word, trial.by = "INCONCLUSIVE", "numerics"


def _judge_size(trial: Trial) -> None:
    """Refuse times of a step of the user's own that may train less, which no recipe tells.

    With fewer FLOPs for the same numbers it is a better step, or a compiled one, which hides them.
    Where no FLOPs are known, as of embeddings, far less memory tells of a smaller batch.
    """
    compared, record = _compare_counts(trial), trial.last["head"].record or {}
    counts = record.get("counts")
    has_flops = isinstance(counts, dict) and bool(counts.get("flops"))
    told = [
        str(one)
        for one in compared.decreases
        if one.name == "flops"
        or (one.name == "memory" and not has_flops and one.head < _FAR_LESS * one.base)
    ]
    told += [text for text in compared.unavailable if text.startswith("flops is not available")]
    is_own = record.get("recipe", {}) is None
    change = trial.numerics_change or ""
    is_shown = not change.startswith((numerics.CHANGED, numerics.UNKNOWN))
    shows_nothing = not is_shown or numerics.DOUBT in change
    needs_pairs = trial.word == "INCONCLUSIVE" and len(trial.runs["base"]) < 2
    if trial.word == "FAIL" or needs_pairs or not (is_own and told and shows_nothing):
        return
    trial.word, trial.by = "INVALID", "counts"
    trial.reason = (
        f"{told[0]}, and nothing shows that a step still trains as much ({change}), so that times "
        "do not compare; rename the test if that is intended"
    )


def _progress(session: _Session, judged: Sequence[Trial], trials: Sequence[Trial]) -> Iterator[str]:
    """Yield how many cells are decided, and intervals: of those decided now, and the widest."""
    undecided = [trial for trial in trials if trial.word is None]
    decided = f"{len(trials) - len(undecided)} of {counted(len(trials), 'cell')} decided"
    yield f"pair {session.num_pairs}: {decided} ({session.spent_s:.0f} s)"
    if session.num_pairs < 2:  # one pair does not show its spread
        if undecided:
            has_history = all(trial.rule.prior for trial in undecided)
            pair_s, budget = session.first_s, session.budget
            rest = describe_rest(len(undecided), pair_s, budget, has_history=has_history)
            yield why_too_much(len(trials), pair_s, budget) or rest
        return
    shown = [trial for trial in judged if trial.word is not None]
    shown += sorted(undecided, key=_width, reverse=True)[:_MOST_SHOWN]
    for trial in shown:
        between = ""
        if trial.decision is not None:
            low, high = trial.decision.interval
            between = f", {format_change(trial.decision.ratio)}"
            if _width(trial) < _WIDEST_SHOWN:
                between += f", between {format_change(low)} and {format_change(high)}"
        yield f"  {trial.name}: {trial.found}{between}"


def _width(trial: Trial) -> float:
    if trial.decision is None:
        return 0.0
    low, high = trial.decision.interval
    return math.log(high / low) if low > 0 and math.isfinite(high) else math.inf
