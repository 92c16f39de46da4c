"""The verb `claims`: what it prints, writes and ends in. Must not know how a claim is tested."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from perfsuite.cli.options import DeviceName, DrawnSeed, open_session
from perfsuite.errors import ExitCode
from perfsuite.experiments.claims import Bench
from perfsuite.experiments.claims.run import Tested, choose_claims, try_claims
from perfsuite.experiments.interleave import ROUND_S
from perfsuite.gate.judge.trial import draw_seed
from perfsuite.records.cell import encode_line
from perfsuite.report.terminal.claims import ClaimRow, claim_lines, claims_table
from perfsuite.system.files import check_writable, write_atomically

RECORDS_FILE = Path("results") / "claims.jsonl"
# Of weights and data; --seed is of the order of launches.
_CELL_SEED = 0


def claims(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="C5", help="Test this claim alone; may be given several times."),
    ] = None,
    device: DeviceName = "auto",
    seed: DrawnSeed = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write statuses and figures.")
    ] = None,
) -> None:
    """Test what people claim of training speed on this machine, at equal conditions.

    Leaves the record of every cell in results/claims.jsonl. Exit code: 0 whatever the statuses,
    1 if an experiment itself broke.
    """
    chosen = choose_claims(only or [])
    check_writable(RECORDS_FILE, json_file)
    # What the experiments say is the findings; ranks that warn of many workers would bury it.
    session = open_session(device, _CELL_SEED, shows_output=False, round_s=ROUND_S)
    drawn = draw_seed() if seed is None else seed
    bench = Bench(session=session, seed=drawn, say=_say)
    try:
        results = try_claims(chosen, bench, show=lambda one: typer.echo(claim_lines(_row(one))))
    finally:
        session.close()
    typer.echo(claims_table([_row(one) for one in results]))
    typer.echo(f"seed {drawn}")
    if bench.lines:
        records = b"".join(encode_line(line) + b"\n" for line in bench.lines)
        write_atomically(RECORDS_FILE, records)
        typer.echo(f"the records of {len(bench.lines)} launches are in {RECORDS_FILE}")
    if json_file is not None:
        write_atomically(json_file, to_document(results))
    if any(one.is_broken for one in results):
        raise typer.Exit(ExitCode.FAILED)


def to_document(results: Sequence[Tested]) -> bytes:
    """Return the results as the verb's JSON."""
    document = {
        "schema": 1,
        "claims": [
            {
                "id": one.claim.id,
                "status": one.finding.status,
                "figures": one.finding.figures,
                "reason": one.finding.reason,
                "text": one.claim.text,
                "quoted": one.claim.quoted,
                "source": one.claim.source,
                "broken": one.is_broken,
            }
            for one in results
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _row(one: Tested) -> ClaimRow:
    return ClaimRow(
        id=one.claim.id,
        status=one.finding.status,
        text=one.claim.text,
        here=one.finding.here,
        quoted=one.claim.quoted,
        source=one.claim.source,
        reason=one.finding.reason,
    )


def _say(text: str) -> None:
    typer.echo(text, err=True)
