"""The verb `doctor`: one look at every subject, as lines, JSON and an exit code."""

import platform
from importlib.metadata import version

import typer

from perfsuite.cli.doctor.findings import Finding, Status
from perfsuite.cli.doctor.gpus import examine_gpus
from perfsuite.cli.doctor.host import examine_host
from perfsuite.cli.doctor.pytorch import examine_torch
from perfsuite.cli.output import JsonFile, write_json
from perfsuite.errors import BusyMachineError, ExitCode, WriteError
from perfsuite.system.timing_lock import TimingLock

_STYLES: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(json_file: JsonFile = None) -> None:
    """Say whether this machine is fit for timing: each line ok, warn or fail, and what to do."""
    findings = examine()
    for finding in findings:
        typer.secho(f"{finding.status:4} ", fg=_STYLES[finding.status], nl=False)
        typer.echo(f"{finding.subject}: {finding.text}")
        if finding.advice:
            typer.echo(f"     -> {finding.advice}")
    write_json(json_file, findings=findings)
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(ExitCode.FAILED)


def examine() -> list[Finding]:
    """Return what is found about this machine; a probe that fails is a finding too."""
    return [
        Finding("perfsuite", "ok", f"{version('perfsuite')} on Python {platform.python_version()}"),
        *examine_host(),
        examine_timing_lock(TimingLock(wait_s=0, say=print)),
        *examine_gpus(),
        *examine_torch(),
    ]


def examine_timing_lock(lock: TimingLock) -> Finding:
    """Return whether another session is timing; holds the lock, which must not wait, briefly."""
    try:
        with lock:
            return Finding("timing session", "ok", "no other")
    except BusyMachineError as error:
        # The rest of the message is for a session that wanted to time.
        holder = str(error).partition(", and ")[0]
        return Finding("timing session", "warn", holder, "wait until it has ended")
    except WriteError as error:
        return Finding("timing session", "fail", str(error), "make the folder writable")
