"""Several cells measured in turn, over and over, so that the machine's drift is in all of them."""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from perfsuite.experiments.rank_session import Session, call_by_name
from perfsuite.ranks.messages import ActivityName
from perfsuite.records.cell import Outcome
from perfsuite.records.recipe import Recipe
from perfsuite.stats.intervals import Interval, geometric_interval
from perfsuite.units import format_seconds

Key = TypeVar("Key")

# Launches are what varies, so each has a single round: long enough for what loader workers had
# ready before it to be a small part. It may take twice this: its iterations are a power of two.
ROUND_S = 0.3


class Cell(NamedTuple):
    """What is measured: an activity of a workload, a name or "module:attribute", and its recipe."""

    workload: str
    recipe: Recipe
    activity: ActivityName = "train"


def paired_ratio(times_s: Sequence[float], others_s: Sequence[float]) -> Interval:
    """Return where the ratio of two cells' times within a repetition lies."""
    pairs = zip(times_s, others_s, strict=True)
    return geometric_interval([time_s / other_s for time_s, other_s in pairs])


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What experiments measure with; the order of cells is drawn anew for each repetition."""

    session: Session
    seed: int
    say: Callable[[str], None]
    num_repetitions: int = 5

    def count(self, workload: str, recipe: Recipe) -> Outcome:
        """Return one untimed iteration of a cell: its counts and its memory."""
        return self.session.measure_cell(workload, recipe, is_timed=False)

    def measure(self, cells: Mapping[Key, Cell]) -> dict[Key, list[Outcome]]:
        """Return the outcomes of every cell, one a repetition; its key names it in lines shown."""
        random_numbers = random.Random(self.seed)
        outcomes: dict[Key, list[Outcome]] = {key: [] for key in cells}
        for repetition in range(1, self.num_repetitions + 1):
            shuffled = list(cells.items())
            random_numbers.shuffle(shuffled)
            for key, cell in shuffled:
                outcome = self.session.measure_cell(**cell._asdict(), num_rounds=1)
                outcomes[key].append(outcome)
                duration = format_seconds(statistics.median(outcome.step_times_s))
                of_all = f"repetition {repetition} of {self.num_repetitions}"
                shown = " ".join(map(str, key)) if isinstance(key, tuple) else key
                self.say(f"{of_all}, {shown}: {duration} an iteration")
        return outcomes

    def measure_times_s(self, cells: Mapping[Key, Cell]) -> dict[Key, tuple[float, ...]]:
        """Return seconds of an iteration of each cell in each repetition, as `measure` does."""
        return {
            key: tuple(statistics.median(outcome.step_times_s) for outcome in outcomes)
            for key, outcomes in self.measure(cells).items()
        }

    def on_ranks(self, num_ranks: int, name: str, *args: Any) -> list[Any]:
        """Return what "package.module:name", which may need torch, returns on each rank."""
        return self.session.run_function(num_ranks, call_by_name, name, *args)
