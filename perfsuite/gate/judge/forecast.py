"""What a judgement will cost: an estimate before the first pair, and a better one after it."""

import math
from collections.abc import Collection, Mapping

from perfsuite.gate.judge.trial import Budget
from perfsuite.stats.spending import FIRST_FULL_LOOK, FIRST_LOOK
from perfsuite.units import counted

# The slowest of N cells of identical code takes so many pairs beyond the first look, where a pair's
# sd is two thirds of the gap from tolerance to limit (`tests/support/simulation.py`).
_MORE_PAIRS = 3.0
_MORE_PAIRS_PER_DOUBLING = 1.2
# A pair over what its tests took when they were stored, alone, but proven and counted. Median of
# the first five pairs of 30 sessions (`benchmarks/gate_sessions.py twin`), which were 0.93 to 1.61.
_PAIR_OVER_STORED = 1.2
# How far a forecast from stored durations may be off before the first pair.
_DOUBT = 2.0
# Longer times are shown in minutes.
_MOST_SECONDS = 90


def forecast_pair_s(
    names: Collection[str], durations_s: Mapping[str, float | None], launch_s: float
) -> float | None:
    """Return how long a pair will take, None where it is not known how long a cell takes.

    `durations_s` are what each test took when it was stored, and `launch_s` what a launch does.
    """
    known = [time_s for name in names if (time_s := durations_s.get(name)) is not None]
    return None if len(known) < len(names) else _PAIR_OVER_STORED * (launch_s + math.fsum(known))


def expect_pairs(num_cells: int, *, has_history: bool = False) -> float:
    """Return how many pairs the slowest cell will take where nothing became slower."""
    first = FIRST_LOOK if has_history else FIRST_FULL_LOOK
    return first + _MORE_PAIRS + _MORE_PAIRS_PER_DOUBLING * math.log2(num_cells)


def describe_cost(num_cells: int, pair_s: float | None, budget: Budget) -> str:
    """Return what people read before the first pair."""
    cells = counted(num_cells, "cell")
    most = f"at most {_time(budget.max_s)}"
    if pair_s is None:
        return f"{cells}, {most}; the first pair will tell how long"
    return f"{cells}, about {_time(min(expect_pairs(num_cells) * pair_s, budget.max_s))}, {most}"


def why_too_much(
    num_cells: int, pair_s: float, budget: Budget, *, is_forecast: bool = False
) -> str | None:
    """Return why no pairs can decide in the budget, and what could; None where they can."""
    if FIRST_LOOK * pair_s / (_DOUBT if is_forecast else 1.0) <= budget.max_s:
        return None
    shards = math.ceil(FIRST_LOOK * pair_s / budget.max_s) if budget.max_s > 0 else 0
    shared = f", or share the cells among {shards} runners with --perf-shard=1/{shards} and so on"
    return (
        f"{FIRST_LOOK} pairs are the fewest that decide, one takes about {_time(pair_s)}, "
        f"and they may take {_time(budget.max_s)}; allow more with --max-minutes (pytest: "
        "--perf-max-minutes)" + (shared if 1 < shards <= num_cells else "")
    )


def describe_rest(num_cells: int, pair_s: float, budget: Budget, *, has_history: bool) -> str:
    """Return what people read after the first pair, which took so long, of undecided cells."""
    more = expect_pairs(num_cells, has_history=has_history) - 1
    rest = _time(min(more * pair_s, max(0.0, budget.max_s - pair_s)))
    return f"a pair takes {_time(pair_s)}: about {rest} more where nothing became slower"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _MOST_SECONDS else f"{seconds / 60:.3g} min"
