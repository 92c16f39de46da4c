"""The verbs `baseline list`, `accept` and `prune`: what is stored, accepted, and may go."""

import os
from datetime import UTC, date, datetime
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from perfsuite.cli import options
from perfsuite.cli.output import JsonFile, write_json
from perfsuite.errors import SettingError
from perfsuite.gate.baselines.accepted import LOOSENED, Entry, append_entry, in_words
from perfsuite.gate.baselines.accepted import prune as prune_entries
from perfsuite.gate.baselines.screen import MAX_SESSIONS
from perfsuite.gate.baselines.select import sift_runs, trunk_of
from perfsuite.gate.git.find_base import target_branch
from perfsuite.records.run_file import StoredRun, Unusable, read_run
from perfsuite.report.terminal.tables import text_table
from perfsuite.system.files import remove_file
from perfsuite.system.untrusted import printable
from perfsuite.system.urls import AnyPath, locate_folder

_ABOUT = "Upkeep of baselines: which runs are stored, what is accepted, what may be removed."
_EXAMPLE = "Example: perfsuite baseline list"
app = typer.Typer(name="baseline", help=_ABOUT, epilog=_EXAMPLE, no_args_is_help=True)


@app.command("list", epilog="Example: perfsuite baseline list --json runs.json")
def list_runs(storage: options.Storage = options.STORAGE, json_file: JsonFile = None) -> None:
    """Show each stored run, and whether a gate would compare a change of HEAD with it.

    In a git checkout it does so where the run's commit is one that HEAD has of the upstream's
    default branch, not of a branch that was merged into it.
    """
    here, place = options.environment_here(), locate_folder(storage, "--storage")
    sifted = sift_runs(place, True, here, trunk_of(Path.cwd(), target_branch(os.environ)))
    found = [(one.path, _facts(one, here.fingerprint)) for one in sifted]
    long_ago = datetime.min.replace(tzinfo=UTC)  # files that hold no run come first
    runs = sorted(found, key=lambda one: (one[1]["saved_at"] or long_ago, str(one[0])))
    if runs and runs[0][0] == place:
        typer.echo(f"{place}: {runs.pop()[1]['reason']}")
    if runs:
        num_usable = sum(facts["is_usable"] for _, facts in runs)
        typer.echo(_table(place, runs))
        typer.echo(f"{num_usable} of {len(runs)} usable in this environment, {here.fingerprint}")
    write_json(json_file, fingerprint=here.fingerprint, runs=[facts for _, facts in runs])


@app.command(
    epilog="Example: perfsuite baseline accept 'benchmarks/test_step.py::test_step\\[ddp:2]' "
    "--slowdown 1.08 --reason 'checks its input now' --expires 2027-01-31"
)
@options.explained(
    reason="Why, for the review.",
    expires="The last day on which it holds.",
    slowdown="It may take RATIO times its base's time: 1.08.",
    is_removed="It is gone on purpose.",
    is_quarantined="It is measured and changes no exit code, from the next change on.",
    renamed_to="It is called CELL now.",
    increase="A count or memory may grow, to RATIO times its base's.",
    looser="It may be judged by a looser limit, tolerance, floor, policy or gate: limit=8%.",
)
def accept(
    cell: Annotated[str, typer.Argument(help="The cell's full name, as pytest shows it.")],
    reason: str,
    expires: Annotated[datetime, typer.Option(formats=["%Y-%m-%d"], metavar="YYYY-MM-DD")],
    slowdown: Annotated[str | None, typer.Option(metavar="RATIO")] = None,
    is_removed: Annotated[bool, typer.Option("--removed")] = False,
    is_quarantined: Annotated[bool, typer.Option("--quarantined")] = False,
    renamed_to: Annotated[str | None, typer.Option(metavar="CELL")] = None,
    increase: Annotated[list[str] | None, typer.Option(metavar="COUNT[=RATIO]")] = None,
    looser: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE")] = None,
    file: options.AcceptedFile = options.ACCEPTED,
    json_file: JsonFile = None,
) -> None:
    """Write down that a cell, or '*', may be slower, larger, gone, renamed or judged more loosely.

    Commit the line with the change that needs it, and have both reviewed. The merge uses it up;
    a quarantine begins with the merge.
    """
    if (day := expires.date()) < date.today():
        raise SettingError(f"--expires is {day}, which is past; use {date.today()} or a later day")
    if len(increase or ()) > 1:
        raise SettingError("--increase is given several times; call this once for each count")
    kinds: dict[str, dict[str, Any] | None] = {
        "slowdown": None if slowdown is None else {"ratio": _ratio("--slowdown", slowdown)},
        "removed": {} if is_removed else None,
        "quarantined": {} if is_quarantined else None,
        "renamed": None if renamed_to is None else {"to": renamed_to},
        "count": _parse_increase(increase[0]) if increase else None,
        "limit": _parse_looser(looser) if looser else None,
    }
    given = [{**values, "kind": kind} for kind, values in kinds.items() if values is not None]
    if len(given) != 1:
        names = "--slowdown, --removed, --quarantined, --renamed-to, --increase and --looser"
        raise SettingError(f"{len(given)} of {names} are given; use one of them")
    about = {"cell": cell, "reason": reason, "expires": day}
    try:
        entry: Entry = msgspec.convert(given[0] | about, Entry)
    except msgspec.ValidationError as error:
        raise SettingError(str(error)) from error
    append_entry(file, entry)
    typer.echo(f"{file}: {in_words(entry)}")
    typer.echo(f"review and commit it like code: git add {file}")
    write_json(json_file, file=str(file), accepted=entry)


@app.command(epilog="Example: perfsuite baseline prune --keep 20 --yes")
@options.explained(
    keep="Name the runs that are older than the last N sessions of this environment; the screen "
    f"looks at the last {MAX_SESSIONS}.",
    is_sure="Remove those runs.",
)
def prune(
    keep: Annotated[int | None, typer.Option(min=1, metavar="N")] = None,
    is_sure: Annotated[bool, typer.Option("--yes")] = False,
    storage: options.Storage = options.STORAGE,
    file: options.AcceptedFile = options.ACCEPTED,
    json_file: JsonFile = None,
) -> None:
    """Remove exceptions that have expired, and runs that are too old to be looked at."""
    if is_sure and keep is None:
        raise SettingError("--yes removes runs; say with --keep N how many are to stay")
    expired, kept = prune_entries(file, date.today())
    for entry in expired:
        typer.echo(f"{file}: removed, because it has expired: {in_words(entry)}")
    old: list[AnyPath] = []
    if keep is not None:
        here, place = options.environment_here(), locate_folder(storage, "--storage")
        trunk, num_sessions = trunk_of(Path.cwd(), target_branch(os.environ)), Fraction()
        for run in sift_runs(place, True, here, trunk):
            if isinstance(run, StoredRun):
                old += [run.path] if num_sessions >= keep else []
                num_sessions += run.part
        old.reverse()
    for path in old:
        if is_sure:
            remove_file(path)
        typer.echo(printable(f"{path}: {'removed' if is_sure else 'older than what is kept'}"))
    if old and not is_sure:
        typer.echo("none of these was removed; add --yes to remove them")
    if not expired and not old:
        typer.echo("nothing to remove")
    for entry in kept:
        typer.echo(f"{file}: stays: {in_words(entry)}")
    write_json(json_file, expired=expired, old_runs=[str(path) for path in old], is_removed=is_sure)


def _facts(found: StoredRun | Unusable, fingerprint: str) -> dict[str, Any]:
    """Return what is shown of a run, and no more of it: a store holds very many."""
    run, reason = found, None
    if isinstance(found, Unusable):
        run, reason = read_run(found.path), found.reason
    facts: dict[str, Any] = {"path": printable(str(found.path))}
    facts |= {name: getattr(run, name, None) for name in ("saved_at", "commit", "fingerprint")}
    facts["is_this_environment"] = facts["fingerprint"] == fingerprint
    facts["num_cells"] = None if isinstance(run, Unusable) else len(run.cells)
    return facts | {"is_usable": reason is None, "reason": reason}


def _table(storage: AnyPath, runs: list[tuple[AnyPath, dict[str, Any]]]) -> str:
    titles = ("run", "saved (UTC)", "commit", "environment", "cells", "use")
    rows = []
    for path, facts in runs:
        shown = ["-"] * 4
        if facts["saved_at"] is not None:
            shown = [
                f"{facts['saved_at'].astimezone(UTC):%Y-%m-%d %H:%M}",
                (facts["commit"] or "-")[:12],
                (facts["fingerprint"] or "-") + " (here)" * facts["is_this_environment"],
                str(facts["num_cells"]),
            ]
        use = facts["reason"] or "usable"
        rows.append(map(printable, (str(path).removeprefix(f"{storage}/"), *shown, use)))
    return text_table([(title, title == "cells") for title in titles], rows)


def _parse_increase(text: str) -> dict[str, Any]:
    count, separator, ratio = text.partition("=")
    return {"count": count, "ratio": _ratio(f"--increase {count}", ratio) if separator else None}


def _ratio(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        allowed = "use a number above 1, such as 1.08 for 8 % more"
        raise SettingError(f"{option} is {text!r}; {allowed}") from error


def _parse_looser(values: list[str]) -> dict[str, Any]:
    pairs = [value.partition("=") for value in values]
    if not all(name in LOOSENED and separator for name, separator, _ in pairs):
        allowed = f"use NAME=VALUE, such as limit=8%, with one of {', '.join(LOOSENED)}"
        raise SettingError(f"--looser is {' '.join(values)!r}; {allowed}")
    if len(given := {name: text for name, _, text in pairs}) < len(pairs):
        raise SettingError(f"--looser is {' '.join(values)!r}; give each of them once")
    return given
