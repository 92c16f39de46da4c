"""Error rates of `perfsuite history`, simulated: false alarms, power, and Apache Otava's beside.

pip install --no-deps apache-otava     # left out where it is not installed; decision 0011
python benchmarks/history_error_rates.py

Half a year of sessions that vary by 1 %. Exits with 1 if flat histories whose sessions do not hang
together are said to change oftener than promised.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import numpy as np
import typer
from numpy.typing import NDArray

from perfsuite.stats.trend import find_trend

Floats = NDArray[np.float64]
NUM_WEEKS: Final = 26
SESSION_SD: Final = 0.01
PROMISED: Final = 0.01
HAS_OTAVA: Final = importlib.util.find_spec("otava") is not None

# Of unit scale; the first four are what the promise is about.
NOISES: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": lambda generator, n: generator.standard_normal(n),
    "Student's t of 3": lambda generator, n: generator.standard_t(3, n) / math.sqrt(3),
    "exponential": lambda generator, n: generator.exponential(size=n),
    "5 % of 10 sd": lambda generator, n: (
        generator.standard_normal(n) + 10 * (generator.random(n) < 0.05)
    ),
    "AR(0.3)": lambda generator, n: autoregressive(generator, n, 0.3),
    "AR(0.6)": lambda generator, n: autoregressive(generator, n, 0.6),
}
EXCHANGEABLE: Final = 4

CHANGES: dict[str, Callable[[Floats], np.ndarray[Any, np.dtype[Any]]]] = {
    "drift of 0.05 % a week": lambda weeks: math.log(1.0005) * weeks,
    "drift of 0.1 % a week": lambda weeks: math.log(1.001) * weeks,
    "drift of 0.5 % a week": lambda weeks: math.log(1.005) * weeks,
    "step of 1 % in the middle": lambda weeks: math.log(1.01) * (weeks >= NUM_WEEKS / 2),
    "step of 2 % in the middle": lambda weeks: math.log(1.02) * (weeks >= NUM_WEEKS / 2),
    "step of 5 % in the last week": lambda weeks: math.log(1.05) * (weeks >= NUM_WEEKS - 1),
}


def autoregressive(generator: np.random.Generator, num_values: int, correlation: float) -> Floats:
    """Return values that each hang together with the one before."""
    values = generator.standard_normal(num_values)
    for place in range(1, num_values):
        values[place] *= math.sqrt(1 - correlation**2)
        values[place] += correlation * values[place - 1]
    return values


def main(
    num_histories: Annotated[int, typer.Option("--histories", min=1, help="Of a row.")] = 1000,
    num_powered: Annotated[
        int, typer.Option("--powered", min=1, help="With a change, or AR.")
    ] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of the noise.")] = 0,
) -> None:
    """Simulate every row and print the tables."""
    generator = np.random.default_rng(seed)
    typer.echo(
        "| flat, noise | runs a week | step | drift | either | Otava |\n|---|---|---|---|---|---|"
    )
    broken = []
    for place, (noise, draw) in enumerate(NOISES.items()):
        for per_week in (1, 2, 5):
            weeks = np.arange(NUM_WEEKS * per_week) / per_week
            # What hangs together takes long, and is promised nothing.
            num = num_histories if place < EXCHANGEABLE else num_powered
            errors = [SESSION_SD * draw(generator, len(weeks)) for _ in range(num)]
            steps, drifts, either, otava = rates(weeks, errors)
            typer.echo(f"| {noise} | {per_week} | {steps} | {drifts} | {either} | {otava} |")
            allowed = PROMISED + 3 * math.sqrt(PROMISED / num_histories)
            if place < EXCHANGEABLE and float(either.rstrip(" %")) / 100 > allowed:
                broken.append(f"{noise}, {per_week} runs a week: {either}")
    typer.echo(
        "\n| planted | runs a week | step | drift | either | Otava |\n|---|---|---|---|---|---|"
    )
    for name, log_at in CHANGES.items():
        for per_week in (1, 2, 5):
            weeks = np.arange(NUM_WEEKS * per_week) / per_week
            noises = [generator.standard_normal(len(weeks)) for _ in range(num_powered)]
            row = rates(weeks, [log_at(weeks) + SESSION_SD * noise for noise in noises])
            typer.echo(f"| {name} | {per_week} | {' | '.join(row)} |")
    typer.echo("\n" + ("\n".join(broken) or "the promise holds"))
    sys.exit(bool(broken))


def rates(weeks: Floats, histories: Sequence[Floats]) -> tuple[str, str, str, str]:
    """Return how many histories have a step, a drift or either, and how many have one for Otava."""
    courses = [find_trend(list(weeks), list(np.exp(logs)), smallest=0.0) for logs in histories]
    told = [(bool(course.steps), course.drift is not None) for course in courses if course]
    counts = [sum(step for step, _ in told), sum(drift for _, drift in told), sum(map(any, told))]
    steps, drifts, either = (f"{100 * count / len(histories):.1f} %" for count in counts)
    return steps, drifts, either, of_otava(histories)


def of_otava(histories: Sequence[Floats]) -> str:
    """Return how many histories have a change point by Apache Otava's defaults."""
    if not HAS_OTAVA:
        return "-"
    from otava.analysis import compute_change_points

    found = [bool(compute_change_points(list(np.exp(logs)))[0]) for logs in histories]
    return f"{100 * sum(found) / len(found):.1f} %"


if __name__ == "__main__":
    typer.run(main)
