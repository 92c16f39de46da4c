"""The verb `doctor`: the findings as lines, as JSON, and as an exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from perfsuite.cli.doctor import Status, examine
from perfsuite.errors import ExitCode
from perfsuite.system.files import check_writable, write_atomically

_STYLES: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the findings there.")
    ] = None,
) -> None:
    """Say whether this machine is fit for timing: each line ok, warn or fail, and what to do."""
    check_writable(json_file)
    findings = examine()
    console = Console(soft_wrap=True, highlight=False)
    for finding in findings:
        style = _STYLES[finding.status]
        console.print(f"[{style}]{finding.status:4}[/] {finding.subject}: ", end="")
        console.print(finding.text, markup=False)
        if finding.advice:
            console.print(f"     -> {finding.advice}", markup=False)
    if json_file is not None:
        document = {"schema": 1, "findings": [finding.as_dict() for finding in findings]}
        write_atomically(json_file, json.dumps(document, indent=2).encode())
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(ExitCode.FAILED)
