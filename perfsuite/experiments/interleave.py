"""Several cells measured in turn, over and over, so that the machine's drift is in all of them.

One launch of each cell is a repetition; repetitions are the replicates, and the order within each
is drawn anew. For many cells that need no verdict of the gate.
"""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from perfsuite.experiments.rank_session import Session
from perfsuite.ranks.messages import ActivityName
from perfsuite.records.cell import Outcome
from perfsuite.records.recipe import Recipe
from perfsuite.stats.intervals import Interval, geometric_interval
from perfsuite.units import format_seconds

Key = TypeVar("Key")

# Launches are what varies, so each has a single round: long enough for what loader workers had
# ready before it to be a small part. It may take twice this: its iterations are a power of two.
ROUND_S = 0.3


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is measured: an activity of a workload, a name or "module:attribute", and its recipe."""

    workload: str
    recipe: Recipe
    activity: ActivityName = "train"


def times_of(outcomes: Sequence[Outcome]) -> tuple[float, ...]:
    """Return seconds of an iteration in each repetition of a cell."""
    return tuple(statistics.median(outcome.step_times_s) for outcome in outcomes)


def paired_ratio(times_s: Sequence[float], others_s: Sequence[float]) -> Interval:
    """Return where the ratio of two cells' times within a repetition lies."""
    return geometric_interval(
        [time_s / other_s for time_s, other_s in zip(times_s, others_s, strict=True)]
    )


def measure_interleaved(
    session: Session,
    cells: Mapping[Key, Cell],
    *,
    num_repetitions: int,
    seed: int,
    say: Callable[[str], None],
) -> dict[Key, list[Outcome]]:
    """Return the outcomes of every cell, one a repetition, in an order drawn with the seed.

    The text of a key names its cell in the lines shown.
    """
    random_numbers = random.Random(seed)
    outcomes: dict[Key, list[Outcome]] = {key: [] for key in cells}
    for repetition in range(1, num_repetitions + 1):
        keys = list(cells)
        random_numbers.shuffle(keys)
        for key in keys:
            cell = cells[key]
            outcome = session.measure_cell(
                cell.workload, cell.recipe, activity=cell.activity, num_rounds=1
            )
            outcomes[key].append(outcome)
            duration = format_seconds(statistics.median(outcome.step_times_s))
            say(f"repetition {repetition} of {num_repetitions}, {key}: {duration} an iteration")
    return outcomes
