"""The judge: pairs of launches until every cell is decided, or the budget is spent.

Which tests are cells, which trees the arms are and what a verdict means for the exit code is
decided elsewhere; the rule itself is in `rule`. Everything that a verdict rests on is kept: seeds,
order, and the raw value of each launch.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from perfsuite.gate.arms.arm import Arm, Launch, PairPlan
from perfsuite.gate.arms.launch import launch_pair
from perfsuite.gate.arms.num_rounds import plan_num_rounds
from perfsuite.gate.judge.comparability import describe_changes
from perfsuite.gate.judge.counts import compare_run_counts
from perfsuite.gate.judge.imports import find_wrong_import
from perfsuite.gate.judge.pair_evidence import is_put_off, take_in
from perfsuite.gate.judge.trial import Budget, CellPolicy, Judgement, Trial
from perfsuite.stats.sequential import FIRST_LOOK, Prior, Rule, decide
from perfsuite.system.fitness import read_sensors, why_unfit
from perfsuite.units import format_change, format_ratio

# Pairs that do not count, before the machine as a whole does not.
_MAX_UNFIT = 3
# A launch starts two interpreters at most; a hash seed is what PYTHONHASHSEED takes.
_MAX_HASH_SEED = 2**32 - 1
# Undecided cells whose running interval is shown after a pair, the widest first.
_MOST_SHOWN = 5
# What times can say of a cell that was measured on both sides.
_WORDS_OF_PAIRS = {"PASS", "FAIL", "IMPROVED", "INCONCLUSIVE"}
_NUM_ARMS = 2
_ONE_BY_ONE = "memory has no room for both arms: they ran one after the other, not round by round"


def judge(
    base: Arm,
    head: Arm,
    demands: Mapping[str, CellPolicy],
    *,
    num_cells: int | None = None,
    budget: Budget,
    seed: int,
    priors: Mapping[str, Prior],
    say: Callable[[str], None],
) -> Judgement:
    """Run pairs until every cell has its verdict.

    Args:
        base: The arm that head is compared with.
        head: The arm under test.
        demands: The cells, which both arms have, and what is asked of each.
        num_cells: That share the error rate, in whichever session; None is these.
        budget: When to give up.
        seed: Of everything that is random.
        priors: What this machine's history says of the noise of a pair, by cell.
        say: Shows a line.
    """
    trials = [Trial(name=name, demands=asked) for name, asked in demands.items()]
    random_numbers = random.Random(seed)
    began_s = time.monotonic()
    longest_s = 0.0
    num_pairs = num_unfit = num_broken = 0
    unfit = invalid = None
    while open_trials := [trial for trial in trials if trial.word is None]:
        spent_s = time.monotonic() - began_s
        most = budget.max_pairs + num_unfit + num_broken
        if num_pairs == most or spent_s + longest_s > budget.max_s:
            break
        num_pairs += 1
        plan = _plan(num_pairs, random_numbers, budget, open_trials)
        names = [trial.name for trial in open_trials]
        random_numbers.shuffle(names)
        launches, unfit = _watched_pair((base, head), plan, names)
        pair_s = time.monotonic() - began_s - spent_s
        longest_s = max(longest_s, pair_s)
        invalid = find_wrong_import(launches["base"], launches["head"])
        if invalid is not None:
            break
        if unfit is not None:
            num_unfit += 1
            say(f"pair {num_pairs} does not count: {unfit}")
            if num_unfit == _MAX_UNFIT:
                break
            continue
        told = [trial for trial in open_trials if not is_put_off(trial, launches, names)]
        num_broken += len(told) < len(open_trials)
        for trial in told:
            take_in(trial, launches, plan.first, _launch_s(launches["head"], pair_s))
            _decide(trial, num_cells or len(trials), budget.max_pairs, priors.get(trial.name))
        for line in _progress(num_pairs, open_trials, trials, time.monotonic() - began_s):
            say(line)
    _end(trials, invalid, unfit)
    return Judgement(
        trials=tuple(trials),
        seed=seed,
        num_pairs=num_pairs,
        wall_s=time.monotonic() - began_s,
        invalid=invalid,
    )


def _watched_pair(
    arms: Sequence[Arm], plan: PairPlan, names: Sequence[str]
) -> tuple[dict[str, Launch], str | None]:
    """One pair, and why the machine was not fit for it."""
    before = read_sensors()
    launches = launch_pair(arms, plan, names)
    return launches, why_unfit(before, read_sensors(), len(os.sched_getaffinity(0)))


def _end(trials: Sequence[Trial], invalid: str | None, unfit: str | None) -> None:
    """Give those a word that have none: nothing counts where the wrong code was measured."""
    for trial in trials:
        if invalid is not None:
            trial.word, trial.reason = "INVALID", invalid
        elif trial.word is None and unfit is not None:
            trial.word, trial.reason = "INVALID", f"the machine was not fit: {unfit}"
        elif trial.word is None:
            trial.word, trial.reason = "INCONCLUSIVE", "the time was up"
        if trial.is_one_by_one and trial.raw:
            trial.add_reason(_ONE_BY_ONE)
        _judge_counts(trial)


def _judge_counts(trial: Trial) -> None:
    """Fail a cell of which head counts more than the base, whatever its times say."""
    slacks = trial.demands.slacks
    if slacks is None or trial.word not in _WORDS_OF_PAIRS or len(trial.last) < _NUM_ARMS:
        return
    compared = compare_run_counts(
        trial.last["base"],
        trial.last["head"],
        slacks=slacks,
        accepted_ratio=trial.demands.accepted_increase,
    )
    if compared.increases and trial.word != "FAIL":
        trial.word, trial.by, trial.reason = "FAIL", "counts", None
    for one in (*compared.increases, *compared.unavailable):
        trial.add_reason(str(one))
    if (changes := describe_changes(trial.last["base"], trial.last["head"])) is not None:
        trial.add_reason(changes)


def _plan(
    number: int, random_numbers: random.Random, budget: Budget, trials: Sequence[Trial]
) -> PairPlan:
    return PairPlan(
        number=number,
        first=random_numbers.choice(("base", "head")),
        hash_seed=random_numbers.randint(0, _MAX_HASH_SEED),
        core=max(os.sched_getaffinity(0)),
        timeout_s=budget.timeout_s,
        num_rounds={
            trial.name: plan_num_rounds(
                trial.costs, tolerance=trial.demands.tolerance, limit=trial.demands.limit
            )
            for trial in trials
            if trial.costs
        },
        one_by_one=frozenset(trial.name for trial in trials if trial.is_one_by_one),
    )


def _launch_s(launch: Launch, pair_s: float) -> float:
    """What a pair cost beside its rounds, for each of its cells."""
    alternated_s = sum(run.alternated_s for run in launch.cells.values())
    return max(0.0, pair_s - alternated_s) / max(1, len(launch.cells))


def _decide(trial: Trial, num_cells: int, max_pairs: int, prior: Prior | None) -> None:
    if trial.word is not None or not trial.raw:
        return
    asked = trial.demands
    rule = Rule(
        tolerance=asked.tolerance,
        limit=asked.limit,
        num_cells=num_cells,
        max_pairs=max_pairs,
        prior=prior,
    )
    accepted = asked.accepted_slowdown
    trial.asked = {**dataclasses.asdict(rule), "accepted_slowdown": accepted}
    decision = decide([value - math.log(accepted) for value in trial.log_ratios], rule)
    low, high = decision.interval
    trial.decision = dataclasses.replace(
        decision, ratio=decision.ratio * accepted, interval=(low * accepted, high * accepted)
    )
    trial.word = decision.word
    if accepted != 1.0 and decision.word is not None:
        trial.reason = f"a slowdown by {format_ratio(accepted - 1)} is accepted"
        # Faster than what is accepted is not yet faster than the base.
        if trial.word == "IMPROVED" and decide(trial.log_ratios, rule).word != "IMPROVED":
            trial.word = "PASS"
    slower_s = statistics.median([head_s - base_s * accepted for base_s, head_s in trial.raw])
    if trial.word == "FAIL" and slower_s < asked.floor_s:
        trial.word = "PASS"
        trial.reason = (
            f"slower by {slower_s * 1e6:.3g} us an iteration, below the floor of "
            f"{asked.floor_s * 1e6:.3g} us"
        )


def _progress(
    number: int, judged: Sequence[Trial], trials: Sequence[Trial], spent_s: float
) -> Iterator[str]:
    """How many cells are decided, and the running intervals: those decided now, the widest else."""
    undecided = [trial for trial in trials if trial.word is None]
    num_decided = len(trials) - len(undecided)
    yield f"pair {number}: {num_decided} of {len(trials)} cells decided ({spent_s:.0f} s)"
    if number < FIRST_LOOK:  # there is no interval yet
        return
    shown = [trial for trial in judged if trial.word is not None]
    shown += sorted(undecided, key=_width, reverse=True)[:_MOST_SHOWN]
    for trial in shown:
        between = ""
        if trial.decision is not None:
            low, high = trial.decision.interval
            change = format_change(trial.decision.ratio)
            between = f", {change}, between {format_change(low)} and {format_change(high)}"
        yield f"  {trial.name}: {trial.word or 'open'}{between}"


def _width(trial: Trial) -> float:
    """The width of the running interval, as a logarithm."""
    if trial.decision is None:
        return 0.0
    low, high = trial.decision.interval
    return math.log(high / low) if low > 0 and math.isfinite(high) else math.inf
