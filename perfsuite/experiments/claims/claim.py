"""What a claim is, what an experiment is handed, and what it comes to."""

from __future__ import annotations

import dataclasses
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from perfsuite.experiments.interleave import Cell, measure_interleaved, times_of
from perfsuite.experiments.rank_session import Session
from perfsuite.records.cell import Outcome
from perfsuite.records.recipe import Recipe
from perfsuite.stats import intervals

Status = Literal["holds", "does not hold", "cannot be tested here"]
_NUM_REPETITIONS = 5
# What a reason ends in where the noise may leave both possible.
NOISE: dict[Status, str] = {"cannot be tested here": "; the noise is too large to say"}
Key = TypeVar("Key")


@dataclass(frozen=True, kw_only=True)
class ClaimFinding:
    """What an experiment came to on this machine.

    Attributes:
        figures: Everything that was measured and decides, as JSON has it.
        reason: What was found, in words, to be read beside the quoted figures.
        is_broken: Whether the experiment itself failed.
    """

    status: Status
    figures: dict[str, Any]
    reason: str
    is_broken: bool = False

    def on(self, workload: str) -> ClaimFinding:
        """Return the finding with the workload that it rests on."""
        return dataclasses.replace(
            self,
            figures={"workload": workload, **self.figures},
            reason=f"on {workload} {self.reason}",
        )


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What experiments measure with."""

    session: Session
    seed: int
    say: Callable[[str], None]

    def count(self, workload: str, recipe: Recipe) -> Outcome:
        """Return one untimed iteration of a cell: its counts and its memory."""
        return self.session.measure_cell(workload, recipe, is_timed=False)

    def measure(self, cells: Mapping[Key, Cell]) -> dict[Key, list[Outcome]]:
        """Return outcomes of cells under equal conditions: in turn, over and over."""
        return measure_interleaved(
            self.session, cells, num_repetitions=_NUM_REPETITIONS, seed=self.seed, say=self.say
        )

    def measure_times_s(self, cells: Mapping[Key, Cell]) -> dict[Key, tuple[float, ...]]:
        """Return seconds of an iteration of each cell in each repetition, as `measure` does."""
        return {key: times_of(outcomes) for key, outcomes in self.measure(cells).items()}

    def on_ranks(self, num_ranks: int, name: str, *args: Any) -> list[Any]:
        """Return what "package.module:name", which may need torch, returns on each rank."""
        return self.session.run_function(num_ranks, call_by_name, (name, *args))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of reference.md, with the figures that are quoted for it and their documents."""

    id: str
    text: str
    quoted: str
    source: str
    experiment: Callable[[Bench], ClaimFinding]


def claim(
    name: str, *, quoted: str, source: str
) -> Callable[[Callable[[Bench], ClaimFinding]], Claim]:
    """Return a decorator that makes a claim of its experiment; the docstring says what is claimed.

    `name` is the claim's in reference.md.
    """

    def make(experiment: Callable[[Bench], ClaimFinding]) -> Claim:
        text = (experiment.__doc__ or "").removesuffix(".")
        return Claim(id=name, text=text, quoted=quoted, source=source, experiment=experiment)

    return make


def call_by_name(name: str, *args: Any) -> Any:
    """Return what the function "package.module:name" returns of the arguments.

    >>> call_by_name("math:gcd", 12, 18)
    6
    """
    return pkgutil.resolve_name(name)(*args)


def weigh(holds: bool | Status, reason: str, **figures: Any) -> ClaimFinding:
    """Return a finding: its status, or the fact that decides it, and its figures by name."""
    status: Status = holds if isinstance(holds, str) else ("does not hold", "holds")[holds]
    return ClaimFinding(status=status, figures=figures, reason=reason)


def weigh_interval(interval: intervals.Interval, *, low: float, high: float = math.inf) -> Status:
    """Return whether a value that lies in an interval lies between two borders.

    Noise is neither: where the interval reaches over a border, the claim was not tested.
    """
    if low < interval.low and interval.high < high:
        return "holds"
    if interval.high < low or high < interval.low:
        return "does not hold"
    return "cannot be tested here"


def as_figure(interval: intervals.Interval) -> dict[str, float]:
    """Return an interval as JSON has it."""
    return {"value": interval.centre, "low": interval.low, "high": interval.high}
