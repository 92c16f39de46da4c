"""What a judgement will cost: an estimate before the first pair, and a better one after it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final

from perfsuite.gate.judge.trial import Budget
from perfsuite.stats.spending import FIRST_LOOK
from perfsuite.units import counted

# For a session in which nothing became slower; a slowdown takes more.
_USUAL_PAIRS: Final = 3
# How far a forecast from stored durations may be off before the first pair.
_DOUBT: Final = 2.0
# Longer times are shown in minutes.
_MOST_SECONDS: Final = 90


def forecast_pair_s(
    names: Collection[str], durations_s: Mapping[str, float | None], launch_s: float
) -> float | None:
    """Return how long a pair will take, None where it is not known how long a cell takes.

    Both arms need the machine for `launch_s`, and for as long as each test took when it was stored.

    >>> forecast_pair_s(["a", "b"], {"a": 1.0, "b": 2.0}, 1.5)
    9.0
    """
    known = [durations_s.get(name) for name in names]
    if None in known:
        return None
    return 2 * (launch_s + math.fsum(one for one in known if one is not None))


def describe_cost(num_cells: int, pair_s: float | None, budget: Budget) -> str:
    """Return what people read before the first pair.

    >>> describe_cost(8, 60.0, Budget(max_pairs=16, max_s=1800.0))
    '8 cells, about 3 min, at most 30 min'
    >>> describe_cost(8, None, Budget(max_pairs=16, max_s=1800.0))
    '8 cells, at most 30 min; the first pair will tell how long'
    """
    cells = counted(num_cells, "cell")
    most = f"at most {_time(budget.max_s)}"
    if pair_s is None:
        return f"{cells}, {most}; the first pair will tell how long"
    return f"{cells}, about {_time(min(_USUAL_PAIRS * pair_s, budget.max_s))}, {most}"


def why_too_much(
    num_cells: int, pair_s: float, budget: Budget, *, is_forecast: bool = False
) -> str | None:
    """Return why no pairs can decide in the budget, and what could; None where they can.

    >>> why_too_much(100, 1200.0, Budget(max_pairs=16, max_s=1800.0)) is None
    False
    """
    needed_s = FIRST_LOOK * pair_s / (_DOUBT if is_forecast else 1.0)
    if needed_s <= budget.max_s:
        return None
    shards = math.ceil(FIRST_LOOK * pair_s / budget.max_s)
    shared = f", or share the cells among {shards} runners with --perf-shard=1/{shards} and so on"
    return (
        f"{FIRST_LOOK} pairs are the fewest that decide, one takes about {_time(pair_s)}, "
        f"and the budget is {_time(budget.max_s)}; allow more with --perf-max-minutes"
        + (shared if 1 < shards <= num_cells else "")
    )


def describe_rest(pair_s: float, budget: Budget) -> str:
    """Return what people read after the first pair, which took so long.

    >>> describe_rest(40.0, Budget(max_pairs=16, max_s=1800.0))
    'a pair takes 40 s: about 80 s more where nothing became slower'
    """
    rest_s = min((_USUAL_PAIRS - 1) * pair_s, max(0.0, budget.max_s - pair_s))
    return f"a pair takes {_time(pair_s)}: about {_time(rest_s)} more where nothing became slower"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _MOST_SECONDS else f"{seconds / 60:.3g} min"
