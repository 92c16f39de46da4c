"""The verb `history`: when cells became slower or faster, and whether they drift."""

import difflib
import os
import shlex
import statistics
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from perfsuite import units
from perfsuite.cli import options
from perfsuite.cli.output import JsonFile, pick, write_json
from perfsuite.cli.site import write_site
from perfsuite.errors import ExitCode, SettingError
from perfsuite.gate.baselines.accepted import read_accepted
from perfsuite.gate.git.find_base import target_branch
from perfsuite.gate.history import CellHistory, DatedChange, DatedDrift, StoredHistory, read_history
from perfsuite.report.formats.folder import PAGE
from perfsuite.report.rows import Column, at
from perfsuite.report.terminal.tables import table_of
from perfsuite.stats.trend import MIN_VALUES
from perfsuite.system.untrusted import printable
from perfsuite.system.urls import locate_folder

# A run on each working day of a year.
_NUM_RUNS = 250
_MOST_REFUSED = 5
_LINE_WIDTH = 20
_BLOCKS = "▁▂▃▄▅▆▇█"


@options.explained(
    cell="The cell's full name.",
    is_all="Every cell, one line each.",
    fingerprint="Runs of this environment; of this machine unless given.",
    num_runs="The newest N, at most.",
    smallest="Changes below it are not shown.",
    html="Write index.html and a page for each cell there.",
    fails_on_change="End in 10 where a cell is slower than it was and no entry accepts that.",
)
def history(
    cell: Annotated[str | None, typer.Argument(metavar="CELL")] = None,
    is_all: Annotated[bool, typer.Option("--all")] = False,
    storage: options.Storage = options.STORAGE,
    accepted_file: options.AcceptedFile = options.ACCEPTED,
    fingerprint: Annotated[str | None, typer.Option(metavar="HEX")] = None,
    num_runs: Annotated[int, typer.Option("--runs", min=1, metavar="N")] = _NUM_RUNS,
    smallest: str = "1%",
    fails_on_change: Annotated[bool, typer.Option("--fail-on-change")] = False,
    html: Annotated[Path | None, typer.Option(metavar="SITE")] = None,
    json_file: JsonFile = None,
) -> None:
    """Date what became slower or faster over the stored runs, and find a drift of many weeks.

    Exit code: 0 whatever is found, 10 with --fail-on-change, 12 no stored run to look at, 2 usage.
    """
    if is_all == (cell is not None):
        raise SettingError("name one cell, or all with --all: perfsuite history CELL")
    if fingerprint is not None and not fingerprint.strip():
        advice = "use one that 'perfsuite baseline list' shows, or leave it out for this machine's"
        raise SettingError(f"--fingerprint is {fingerprint!r}, which no environment has; {advice}")
    least = units.option_ratio("--smallest", smallest)
    stored = read_history(
        Path.cwd(),
        locate_folder(storage, "--storage"),
        options.environment_here() if fingerprint is None else fingerprint,
        read_accepted(accepted_file, date.today()),
        target=target_branch(os.environ),
        num_runs=num_runs,
    )
    refused = [{"path": str(one.path), "reason": one.reason} for one in stored.refused]
    if not stored.runs:
        for unusable in stored.refused[:_MOST_REFUSED]:
            typer.echo(printable(str(unusable)), err=True)
        if (num_more := len(refused) - _MOST_REFUSED) > 0:
            typer.echo(f"and {num_more} more; see 'perfsuite baseline list'", err=True)
        typer.echo("no stored run of this environment can be used", err=True)
        write_json(json_file, cells=[], refused=refused)
        raise typer.Exit(ExitCode.REFUSED)
    if refused:
        left_out = f"{units.counted(len(refused), 'stored run')} left out, as {stored.refused[0]}"
        typer.echo(printable(f"{left_out}; see 'perfsuite baseline list'"), err=True)
    if cell is None:
        found = _show_all(stored, least)
    else:
        found = [_show_one(_known(cell, stored), stored, least)]
    if html is not None:
        write_site(html, stored, [(one, [*_overview(one), *describe(one)]) for one in found])
        typer.echo(f"written to {html / PAGE}")
    cells = [
        {"id": one.timeline.cell, "runs": one.timeline.points}
        | {"is_long_enough": one.trend is not None, **pick(one, "changes drift")}
        for one in found
    ]
    write_json(json_file, cells=cells, refused=refused)
    if fails_on_change and any(one.is_slower for one in found):
        raise typer.Exit(ExitCode.REGRESSION)


def _show_all(stored: StoredHistory, smallest: float) -> list[CellHistory]:
    cells = track(stored.cells(), "cells", console=Console(stderr=True), transient=True)
    found = [stored.follow(cell, smallest=smallest) for cell in cells]
    typer.echo(table_of(_COLUMNS, found))
    num_changed = sum(bool(one.changes or one.drift) for one in found)
    false_alarms = "at most 1 in 100 cells without a change is reported as changed"
    typer.echo(f"{num_changed} of {units.counted(len(found), 'cell')} changed; {false_alarms}")
    return found


def _show_one(cell: str, stored: StoredHistory, smallest: float) -> CellHistory:
    one = stored.follow(cell, smallest=smallest)
    host = stored.follow(None, smallest=smallest)
    lines = [*_overview(one), *describe(one)]
    if host.changes or host.drift is not None:
        # A change of a cell beside one of these is the host's.
        lines += [f"the host itself, by its own probes: {text}" for text in describe(host)]
    for line in [*lines, *_advise(one)]:
        typer.echo(printable(line))
    return one


def _known(cell: str, stored: StoredHistory) -> str:
    cells = stored.cells()
    if cell in cells:
        return cell
    nearest = difflib.get_close_matches(cell, cells, cutoff=0.0)
    advice = f"of their cells these come nearest: {', '.join(map(repr, nearest))}"
    raise SettingError(f"{cell!r} is not a cell of the stored runs; {advice}")


def _overview(one: CellHistory) -> Iterator[str]:
    points = one.timeline.points
    yield f"{one.timeline.cell}: {units.counted(len(points), 'run')}, {points[0]} to {points[-1]}"
    if num_elsewhere := one.timeline.num_elsewhere:
        yield f"further runs, whose ranks found another environment: {num_elsewhere}"
    if one.trend is not None:
        times_s = one.timeline.times_s()
        ends = f"{units.format_seconds(min(times_s))} to {units.format_seconds(max(times_s))}"
        yield f"{_sparkline(times_s)} {ends}"


def _sparkline(times_s: Sequence[float]) -> str:
    num_columns = min(_LINE_WIDTH, len(times_s))
    bounds = [number * len(times_s) // num_columns for number in range(num_columns + 1)]
    heights = [statistics.median(times_s[start:end]) for start, end in pairwise(bounds)]
    low, span = min(heights), max(heights) - min(heights)
    steps = [(height - low) / span if span else 0.0 for height in heights]
    return "".join(_BLOCKS[round(step * (len(_BLOCKS) - 1))] for step in steps)


def describe(one: CellHistory) -> list[str]:
    """Return what became of a cell, a sentence for each change."""
    if one.trend is None:
        return [f"too few to tell: from {MIN_VALUES} runs on a change can be seen"]
    drifts = [] if one.drift is None else [_describe_drift(one.drift)]
    return [*map(_describe_change, one.changes), *drifts] or ["no change and no drift"]


def _describe_change(change: DatedChange) -> str:
    bounds = " to ".join(map(units.format_change, change.interval))
    where = f"between {change.before} and {change.after}"
    if change.num_commits:
        where += f", {units.counted(change.num_commits, 'commit')}"
    elif change.num_commits == 0:
        where += ", so not by a commit"
    accepted = "" if change.accepted is None else f", accepted: {change.accepted}"
    recovered = ", recovered since" * change.is_recovered
    direction = "slower" if change.ratio > 1 else "faster"
    by = units.format_ratio(abs(change.ratio - 1))
    return f"{direction} by {by} ({bounds}) {where}{accepted}{recovered}"


def _describe_drift(drift: DatedDrift) -> str:
    # Of a week a change is small.
    rate, low, high = (f"{100 * (r - 1):+.2f} %" for r in (drift.ratio_per_week, *drift.interval))
    accepted = "" if drift.accepted is None else f", accepted: {drift.accepted}"
    in_all = f"{units.format_change(drift.total_ratio)} since {drift.since}"
    return f"drifts by {rate} a week ({low} to {high}), {in_all}{accepted}"


def _advise(one: CellHistory) -> list[str]:
    """How to find the commit behind the newest slowdown that no entry accepts."""
    for change in reversed(one.changes):
        if change.is_open and (change.num_commits or 0) > 1:
            ends = change.before, change.after
            good, bad = (units.short_commit(point.commit or "") for point in ends)
            cell = shlex.quote(one.timeline.cell)
            return [f"which commit it was: perfsuite bisect --good {good} --bad {bad} {cell}"]
    return []


_COLUMNS: tuple[Column[CellHistory], ...] = (
    Column("", "cell", at("timeline.cell"), is_number=False),
    Column("", "runs", lambda one: len(one.timeline.points)),
    Column("", "times", lambda one: _sparkline(one.timeline.times_s()), is_number=False),
    Column("", "what became of it", lambda one: "; ".join(describe(one)), is_number=False),
)
