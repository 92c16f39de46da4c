"""What a pair of launches says of a cell, or why it says nothing.

Must not know when a cell is decided.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence

from perfsuite.gate.arms.arm import OTHER_ENDED, CellRun, Launch
from perfsuite.gate.arms.num_rounds import PairCost
from perfsuite.gate.judge.comparability import why_incomparable
from perfsuite.gate.judge.trial import Trial
from perfsuite.stats import intervals

# What torch, the C library, Python and the end of a rank or a launch say when memory ran out.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|not enough memory|cannot allocate memory|memory ran out|MemoryError|signal 9",
    re.IGNORECASE,
)


def take_in(trial: Trial, launches: Mapping[str, Launch], first: str, launch_s: float) -> None:
    """Add what a pair says of a cell to what is known of it, or say why that is nothing.

    Args:
        trial: The cell.
        launches: Of both arms, by name.
        first: The arm that ran the first round.
        launch_s: What the pair cost beside the rounds of the cell.
    """
    # The one that failed by itself first: the other was ended because of it.
    for arm in sorted(launches, key=lambda arm: _is_ended_by_other(launches[arm])):
        run = launches[arm].cells.get(trial.name)
        if run is None:
            trial.word, trial.reason = _why_untold(arm, launches[arm])
            return
        trial.last[arm] = run
    base, head = trial.last["base"], trial.last["head"]
    if (untimed := _why_untimed(base, head)) is not None:
        trial.word, trial.reason = untimed
        return
    # Where counts are not compared, what the arms train is meant to differ.
    if trial.demands.slacks is not None and (reason := why_incomparable(base, head)) is not None:
        trial.word, trial.reason = "INVALID", reason
        return
    base_s = statistics.median(base.rounds_s)
    log_ratio, error = locate_log_ratio(base.rounds_s, head.rounds_s)
    trial.raw.append((base_s, base_s * math.exp(log_ratio)))
    trial.firsts.append(first)
    num_rounds = min(len(base.rounds_s), len(head.rounds_s))
    if head.alternated_s > 0 and math.isfinite(error):
        trial.costs.append(
            PairCost(
                log_ratio=log_ratio,
                error=error,
                num_rounds=num_rounds,
                round_s=head.alternated_s / num_rounds,
                launch_s=launch_s,
            )
        )


def _why_untold(arm: str, launch: Launch) -> tuple[str, str]:
    """The verdict of a cell that a launch did not come to, and its reason."""
    is_broken = launch.suite is not None and bool(launch.suite.broken)
    of_broken = {"base": "NO-BASELINE", "head": "ERROR"}
    why = launch.failure or "its session stopped before the cell had ended"
    return of_broken[arm] if is_broken else "INVALID", f"the {arm} launch told nothing: {why}"


def _why_untimed(base: CellRun, head: CellRun) -> tuple[str, str] | None:
    """The verdict of a cell that an arm did not time, and its reason; None where both did."""
    if head.outcome == "skipped" and base.outcome == "passed" and base.rounds_s:
        return "VANISHED", f"head skips what the base measures: {head.reason}"
    for arm, run, word in (("head", head, "ERROR"), ("base", base, "NO-BASELINE")):
        if run.outcome != "passed" or not run.rounds_s:
            reason = f"the {arm} arm {run.outcome}: {run.reason or 'nothing was timed'}"
            return word if run.outcome != "skipped" or arm == "base" else "SKIPPED", reason
    wrong_s = [s for s in (*base.rounds_s, *head.rounds_s) if not 0 < s < math.inf]
    if wrong_s:
        return "INVALID", f"a round took {wrong_s[0]} s; its clock stands still, or is none"
    return None


def is_put_off(trial: Trial, launches: Mapping[str, Launch], names: Sequence[str]) -> bool:
    """Whether the cell had no fair trial in a pair: it shared memory, or a launch had ended before.

    The next pair has it again: alone in memory, and without the cell in which the launch ended.
    """
    if not trial.is_one_by_one and _lacked_memory(trial.name, launches):
        trial.is_one_by_one = True
        return True
    is_told = all(trial.name in launch.cells for launch in launches.values())
    return not is_told and _cell_that_ended(launches, names) not in (None, trial.name)


def _cell_that_ended(launches: Mapping[str, Launch], names: Sequence[str]) -> str | None:
    """The cell in which a launch ended before its last, by itself; None where none did."""
    for launch in launches.values():
        if launch.suite is None or launch.suite.broken or _is_ended_by_other(launch):
            continue
        if untold := [name for name in names if name not in launch.cells]:
            return untold[0]
    return None


def _lacked_memory(name: str, launches: Mapping[str, Launch]) -> bool:
    """Whether an arm failed in the cell for want of memory, which the other had taken perhaps."""
    for launch in launches.values():
        run = launch.cells.get(name)
        why = launch.failure if run is None else run.reason if run.outcome == "failed" else None
        if why is not None and _OUT_OF_MEMORY.search(why):
            return True
    return False


def _is_ended_by_other(launch: Launch) -> bool:
    return launch.failure is not None and launch.failure.startswith(OTHER_ENDED)


def locate_log_ratio(base_s: Sequence[float], head_s: Sequence[float]) -> tuple[float, float]:
    """Return log(head / base) and its standard error: a trimmed mean over rounds beside each other.

    What the machine did meanwhile happened to both rounds of a pair, and is in neither's ratio. On
    two shared cores, over 14 launches of a loop of 240 LeNet steps in turns of one, its
    standard deviation was 0.69 %, that of the median of the same ratios 1.38 %, and that of the
    ratio of the two means 1.04 %.

    Args:
        base_s: Seconds of the base's rounds, in order.
        head_s: The same of head; of an unequal number the first are taken.

    >>> round(math.exp(locate_log_ratio([1.0, 2.0, 4.0], [1.5, 3.0, 6.0])[0]), 9)
    1.5
    """
    return intervals.trimmed_mean(
        [math.log(after / before) for before, after in zip(base_s, head_s, strict=False)]
    )
