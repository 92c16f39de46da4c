"""What a claim is, and what its experiment comes to."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from perfsuite.experiments.interleave import Bench
from perfsuite.stats import intervals

Status = Literal["holds", "does not hold", "cannot be tested here"]
# What a reason ends in where the noise may leave both possible.
NOISE: dict[Status, str] = {"cannot be tested here": "; the noise is too large to say"}


class ClaimFinding(NamedTuple):
    """What an experiment came to on this machine, as figures and in words, or that it failed."""

    status: Status
    figures: dict[str, Any]
    reason: str
    is_broken: bool = False

    def on(self, workload: str) -> "ClaimFinding":
        """Return the finding with the workload that it rests on."""
        figures, reason = {"workload": workload, **self.figures}, f"on {workload} {self.reason}"
        return self._replace(figures=figures, reason=reason)


class Claim(NamedTuple):
    """A claim of reference.md, with the figures that are quoted for it and their documents."""

    id: str
    text: str
    quoted: str
    source: str
    experiment: Callable[[Bench], ClaimFinding]


def claim(
    name: str, *, quoted: str, source: str
) -> Callable[[Callable[[Bench], ClaimFinding]], Claim]:
    """Return a decorator that makes a claim of an experiment, whose docstring says what it is."""

    def make(experiment: Callable[[Bench], ClaimFinding]) -> Claim:
        text = (experiment.__doc__ or "").removesuffix(".")
        return Claim(id=name, text=text, quoted=quoted, source=source, experiment=experiment)

    return make


def weigh(holds: bool | Status, reason: str, **figures: Any) -> ClaimFinding:
    """Return a finding: its status, or the fact that decides it, and its figures by name."""
    status: Status = holds if isinstance(holds, str) else ("does not hold", "holds")[holds]
    return ClaimFinding(status=status, figures=_as_json(figures), reason=reason)


def _as_json(figure: Any) -> Any:
    if isinstance(figure, intervals.Interval):
        return {"value": figure.centre, "low": figure.low, "high": figure.high}
    if isinstance(figure, dict):
        return {name: _as_json(value) for name, value in figure.items()}
    return figure


def weigh_interval(interval: intervals.Interval, *, low: float, high: float = math.inf) -> Status:
    """Return whether a value in an interval lies between two borders; over a border is neither."""
    if low < interval.low and interval.high < high:
        return "holds"
    if interval.high < low or high < interval.low:
        return "does not hold"
    return "cannot be tested here"
