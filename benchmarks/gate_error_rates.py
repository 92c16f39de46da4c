"""Error rates and costs of the gate's rule, simulated: every figure that is promised, as Markdown.

python benchmarks/gate_error_rates.py [--rows FILE]

24 cells, tolerance 2 %, limit 5 %, 40,000 cells a figure. Ends in 1 if a figure misses its limit by
more than three Monte Carlo standard deviations. Figures that FILE has of the same rule are not
simulated again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

# One simulation for the tests and for this table.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from screen_simulation import simulate_screen
from simulation import (
    ALPHA_PER_CELL,
    LIMIT,
    NUM_SESSIONS,
    TOLERANCE,
    WORLDS,
    Judged,
    World,
    simulate,
)

from perfsuite.gate.baselines import screen
from perfsuite.stats import evidence, intervals, sequential, spending

SDS = (0.01, 0.02)
NO_HISTORY = World(prior_factor=None)
SLOW_PROCESSES = World(noise="slow processes")
# Of beta, what the screen may pass of cells at their limit before a pair is run.
SCREEN_SHARE = 0.025


@dataclass(frozen=True)
class Value:
    """The mean and the standard deviation over so many simulated cells."""

    mean: float
    sd: float
    num: int


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure, its place in a table, and what it may be at most, or must be at least."""

    table: str
    row: str
    column: str
    measure: Callable[[int], Value]
    most: float = math.inf
    least: float = -math.inf

    @property
    def name(self) -> str:
        """What it is called where it is kept."""
        return f"{self.table}: {self.row}: {self.column}"

    def holds(self, value: Value) -> bool:
        """Whether a value is within the limits and three Monte Carlo standard deviations."""
        return (
            self.least - _slack(self.least, value)
            <= value.mean
            <= self.most + _slack(self.most, value)
        )


def _slack(limit: float, value: Value) -> float:
    is_rate = 0 < limit < 1
    sd = math.sqrt(limit * (1 - limit)) if is_rate else value.sd
    return 3 * sd / math.sqrt(value.num)


def main(
    seed: Annotated[int, typer.Option(min=0, help="Of the noise.")] = 0,
    rows: Annotated[Path | None, typer.Option(help="Where figures are kept, one a line.")] = None,
) -> None:
    """Simulate every figure, print the tables, and name each limit that is missed."""
    kept = _read_rows(rows, seed)
    values: dict[str, Value] = {}
    tables: dict[str, list[Figure]] = {}
    for figure in figures():
        value = kept.get(figure.name) or figure.measure(seed)
        if rows is not None and figure.name not in kept:
            row = {"figure": figure.name, "seed": seed, "rule": _rule_digest()}
            with rows.open("a") as file:
                file.write(json.dumps(row | dataclasses.asdict(value)) + "\n")
        values[figure.name] = value
        tables.setdefault(figure.table, []).append(figure)
    for title, members in tables.items():
        typer.echo(f"\n{title}\n\n" + "\n".join(_table(members, values)))
    missed = [
        f"{figure.name}: {values[figure.name].mean:.4f}, where {_limit_text(figure)} is promised"
        for figure in figures()
        if not figure.holds(values[figure.name])
    ]
    typer.echo("\n" + ("\n".join(missed) or "every limit holds"))
    sys.exit(bool(missed))


def figures() -> Iterator[Figure]:
    """Yield every figure."""
    yield from _false_alarms()
    yield from _costs()
    yield from _slowdowns()
    yield from _slow_launches()
    yield from _passes_at_the_limit()
    yield from _screened()


def _false_alarms() -> Iterator[Figure]:
    columns: tuple[tuple[str, float, float, float], ...] = (
        ("identical", 0.0, 0.0, 0.0002),
        ("+2 %", TOLERANCE, 0.0, ALPHA_PER_CELL),
        ("+2 % and a bias of the session of 0.3 sd", TOLERANCE, 0.3, math.inf),
    )
    others = (
        NO_HISTORY,
        World(noise="head spikes"),
        World(explained=0.5),
        World(noise="AR(0.3)", explained=0.5),
        World(explained=1.0),
        SLOW_PROCESSES,
        World(noise="two states", explained=0.04),
    )
    for world in (*WORLDS, *others):
        for sd in SDS:
            for column, slowdown, bias, most in columns:
                yield Figure(
                    table="False FAIL",
                    row=_describe(world),
                    column=f"sd {100 * sd:.0f} %, {column}",
                    measure=_rate(
                        dataclasses.replace(world, bias=bias), sd, slowdown, _has("FAIL")
                    ),
                    most=most if world in WORLDS else math.inf,
                )
    for sd in SDS:
        yield Figure(
            table="False IMPROVED",
            row="normal",
            column=f"sd {100 * sd:.0f} %, -2 %",
            measure=_rate(World(), sd, -TOLERANCE, _has("IMPROVED")),
            most=ALPHA_PER_CELL,
        )


def _costs() -> Iterator[Figure]:
    for world in (World(), NO_HISTORY):
        for sd, alone in zip((0.005, *SDS), (math.inf, 2.3, 3.6), strict=True):
            for column, has_mean, most in (
                ("by the robust location alone", False, alone),
                ("with the mean", True, alone + 1),
            ):
                yield Figure(
                    table="Pairs of identical code",
                    row=f"sd {100 * sd:.1f} %, {_describe(world)}",
                    column=column,
                    measure=_pairs(dataclasses.replace(world, has_mean=has_mean), sd, 0.0),
                    most=most if world == World() else math.inf,
                )


def _slowdowns() -> Iterator[Figure]:
    rows: tuple[tuple[str, World, float, float, int, float, float], ...] = (
        ("sd 1 %", World(), 0.01, LIMIT, 24, 0.99, 0.035),
        ("sd 2 %", World(), 0.02, LIMIT, 24, 0.92, 0.035),
        ("sd 2 %, rounds explain all", World(explained=1.0), 0.02, LIMIT, 24, -math.inf, math.inf),
        ("sd 2 %, spikes", World(noise="spikes"), 0.02, LIMIT, 24, -math.inf, math.inf),
        ("sd 1 %, slow processes", SLOW_PROCESSES, 0.01, LIMIT, 24, 0.98, 0.035),
        ("sd 2 %, slow processes", SLOW_PROCESSES, 0.02, LIMIT, 24, -math.inf, math.inf),
        ("sd 1 %, no history", NO_HISTORY, 0.01, LIMIT, 24, -math.inf, math.inf),
        ("sd 2 %, no history", NO_HISTORY, 0.02, LIMIT, 24, -math.inf, math.inf),
        ("sd 2 %, +8 %", World(), 0.02, 0.08, 24, -math.inf, math.inf),
        ("500 cells, sd 2 %", World(), 0.02, LIMIT, 500, -math.inf, math.inf),
        ("500 cells, sd 2 %, no history", NO_HISTORY, 0.02, LIMIT, 500, 0.85, math.inf),
        ("2000 cells, sd 2 %, no history", NO_HISTORY, 0.02, LIMIT, 2000, -math.inf, math.inf),
    )
    for row, world, sd, slowdown, num_cells, least, most in rows:
        simulated = functools.partial(_rate, world, sd, slowdown, num_cells=num_cells)
        for column, word, bounds in (
            ("FAIL", "FAIL", {"least": least}),
            ("PASS", "PASS", {"most": most}),
            ("INCONCLUSIVE", "INCONCLUSIVE", {}),
        ):
            yield Figure(
                table="A slowdown of 5 %",
                row=row,
                column=column,
                measure=simulated(_has(word)),
                **bounds,
            )
        yield Figure(
            table="A slowdown of 5 %",
            row=row,
            column="pairs",
            measure=_pairs(world, sd, slowdown, num_cells=num_cells),
        )


def _slow_launches() -> Iterator[Figure]:
    for share, by in ((0.2, 0.5), (0.3, 0.5), (0.2, 0.25)):
        for sd in SDS:
            for history in (World(), NO_HISTORY):
                world = dataclasses.replace(history, slow_launches=share, slower_by=by)
                figure = functools.partial(
                    Figure,
                    table="Head's launches slow now and then",
                    row=f"{100 * share:.0f} % by {100 * by:.0f} %, sd {100 * sd:.0f} %, "
                    f"{_describe(history)}",
                )
                yield figure(
                    column="met none",
                    measure=_rate(world, sd, 0.0, lambda judged: ~judged.met_slow),
                )
                yield figure(
                    column="PASS of those that met one",
                    measure=functools.partial(_pass_after_slow, world, sd),
                    most=0.10 if (share, by) == (0.2, 0.5) else math.inf,
                )


def _passes_at_the_limit() -> Iterator[Figure]:
    for sd in (0.005, 0.01, 0.02, 0.03, 0.05):
        for world in (World(), World(prior_factor=0.5), NO_HISTORY, World(noise="AR(0.3)")):
            for num_reruns, column in enumerate(("one session", "and one re-run")):
                yield Figure(
                    table="PASS at the limit, screen (2.5 %) and judge",
                    row=f"sd {100 * sd:.1f} %, {_describe(world)}",
                    column=column,
                    measure=functools.partial(_pass_at_limit, world, sd, num_reruns),
                    most=0.10,
                )
        yield Figure(
            table="PASS where the mean alone is at the limit",
            row=f"sd {100 * sd:.1f} %",
            column="one session",
            measure=_rate(World(stalls=LIMIT), sd, 0.0, _has("PASS")),
            most=0.075,
        )


def _screened() -> Iterator[Figure]:
    """The screen as it is, alone and before the judge."""
    for sd in (0.01, 0.02, 0.03):
        for sd_of_others in dict.fromkeys((sd, 0.005)):
            for num_stored in (5, 10):
                screen = functools.partial(_screen_rate, num_stored, sd, sd_of_others)
                figure = functools.partial(
                    Figure,
                    table="PASS at the limit, with the screen as it is",
                    row=f"{num_stored} stored sessions, sd {100 * sd:.0f} %, of other cells "
                    f"{100 * sd_of_others:.1f} %",
                )
                yield figure(column="screen", measure=screen)
                yield figure(
                    column="screen and judge, one re-run",
                    measure=functools.partial(_pass_screen_and_judge, screen, sd),
                    most=0.10,
                )


def _has(word: str) -> Callable[[Judged], np.ndarray]:
    return lambda judged: judged.words == word


def _rate(
    world: World,
    sd: float,
    slowdown: float,
    happened: Callable[[Judged], np.ndarray],
    *,
    num_cells: int = 24,
) -> Callable[[int], Value]:
    def measure(seed: int) -> Value:
        return _mean(happened(_simulated(world, sd, slowdown, num_cells, 0, seed)))

    return measure


def _pairs(
    world: World, sd: float, slowdown: float, *, num_cells: int = 24
) -> Callable[[int], Value]:
    def measure(seed: int) -> Value:
        return _mean(_simulated(world, sd, slowdown, num_cells, 0, seed).num_pairs)

    return measure


def _pass_after_slow(world: World, sd: float, seed: int) -> Value:
    judged = _simulated(world, sd, 0.0, 24, 0, seed)
    return _mean(judged.words[judged.met_slow] == "PASS")


def _pass_at_limit(world: World, sd: float, num_reruns: int, seed: int) -> Value:
    judged = _simulated(world, sd, LIMIT, 24, num_reruns, seed)
    by_pairs = _mean(judged.words == "PASS")
    return Value(SCREEN_SHARE + (1 - SCREEN_SHARE) * by_pairs.mean, by_pairs.sd, by_pairs.num)


@functools.lru_cache(maxsize=4)
def _simulated(
    world: World, sd: float, slowdown: float, num_cells: int, num_reruns: int, seed: int
) -> Judged:
    return simulate(
        world,
        pair_sd=sd,
        slowdown=slowdown,
        num_cells=num_cells,
        num_reruns=num_reruns,
        num_sessions=NUM_SESSIONS,
        seed=seed,
    )


@functools.cache
def _screen_rate(num_stored: int, sd: float, sd_of_others: float, seed: int) -> Value:
    passed = simulate_screen(
        num_stored=num_stored,
        sd=sd,
        sd_of_others=sd_of_others,
        num_sessions=NUM_SESSIONS,
        seed=seed,
    )
    return _mean(passed)


def _pass_screen_and_judge(screen: Callable[[int], Value], sd: float, seed: int) -> Value:
    screened = screen(seed)
    judged = _mean(_simulated(World(), sd, LIMIT, 24, 1, seed).words == "PASS")
    return Value(screened.mean + (1 - screened.mean) * judged.mean, judged.sd, judged.num)


def _mean(values: np.ndarray) -> Value:
    return Value(float(np.mean(values)), float(np.std(values)), values.size)


def _describe(world: World) -> str:
    prior = {None: "no history", 1.0: "", 0.5: "s0 half", 2.0: "s0 double"}[world.prior_factor]
    explained = "" if world.explained == World().explained else f"rounds {world.explained:g}"
    return ", ".join(filter(None, (world.noise, prior, explained)))


def _table(members: list[Figure], values: dict[str, Value]) -> Iterator[str]:
    columns = list(dict.fromkeys(figure.column for figure in members))
    yield " | ".join(("| ", *columns)) + " |"
    yield "|---" * (1 + len(columns)) + "|"
    for row in dict.fromkeys(figure.row for figure in members):
        cells = {figure.column: figure for figure in members if figure.row == row}
        texts = (_cell(cells[column], values[cells[column].name]) for column in columns)
        yield " | ".join((f"| {row}", *texts)) + " |"


def _cell(figure: Figure, value: Value) -> str:
    text = f"{value.mean:.2f}" if value.mean > 1 else f"{value.mean:.4f}"
    return text if figure.holds(value) else f"**{text}**"


def _limit_text(figure: Figure) -> str:
    return f"at most {figure.most:.4g}" if figure.most < math.inf else f"at least {figure.least}"


def _read_rows(path: Path | None, seed: int) -> dict[str, Value]:
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        row["figure"]: Value(row["mean"], row["sd"], row["num"])
        for row in rows
        if (row["seed"], row["rule"]) == (seed, _rule_digest())
    }


@functools.cache
def _rule_digest() -> str:
    """Of what computes a figure: rows of another rule, or of another noise, do not count."""
    simulations = (sys.modules[name] for name in ("simulation", "screen_simulation"))
    modules = (evidence, intervals, sequential, spending, screen, *simulations)
    sources = b"".join(Path(str(module.__file__)).read_bytes() for module in modules)
    return hashlib.sha256(sources).hexdigest()[:16]


if __name__ == "__main__":
    typer.run(main)
