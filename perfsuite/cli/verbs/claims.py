"""The verb `claims`: what people claim of training speed, tested on this machine."""

from contextlib import closing
from typing import Annotated, Any

import typer

from perfsuite.cli.options import DeviceName, DrawnSeed, explained, open_session
from perfsuite.cli.output import JsonFile, pick, say, write_json
from perfsuite.errors import ExitCode
from perfsuite.experiments.claims.catalogue import choose_claims, try_claims
from perfsuite.experiments.interleave import ROUND_S, Bench


@explained(only="Test this claim alone; may be given several times.")
def claims(
    only: Annotated[list[str] | None, typer.Option(metavar="C5")] = None,
    device: DeviceName = "auto",
    *,
    seed: DrawnSeed,
    json_file: JsonFile = None,
) -> None:
    """Test what people claim of training speed on this machine, at equal conditions.

    Exit code: 0 whatever the statuses, 1 if an experiment itself broke.
    """
    chosen = choose_claims(only or [])
    results: list[dict[str, Any]] = []
    # Ranks that warn of many workers would bury the findings.
    with closing(open_session(device, shows_output=False, round_s=ROUND_S)) as session:
        for claim, finding in try_claims(chosen, Bench(session=session, seed=seed, say=say)):
            typer.echo(f"{claim.id} {finding.status}: {claim.text}\n    here: {finding.reason}")
            typer.echo(f"    quoted ({claim.source}): {claim.quoted}")
            figures = pick(finding, "status figures reason broken", broken="is_broken")
            results.append(pick(claim, "id text quoted source") | figures)
    typer.echo(f"seed {seed}")
    write_json(json_file, claims=results)
    if any(one["broken"] for one in results):
        raise typer.Exit(ExitCode.FAILED)
