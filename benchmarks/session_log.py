"""What scripts that run whole gate sessions share: a repository, a command, a log to go on from."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

PYTEST: Final = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "benchmarks")
# Whatever Python runs it, a virtual environment without the console script included.
_SCRIPT: Final = "import sys; from perfsuite.cli.app import main; sys.exit(main())"
# What a session says while another one on this machine is timing.
_WAITS: Final = "another timing session"
# "...: 8 cells, about 3 min, at most 30 min" before the first pair, where durations are stored, and
# "a pair takes 40 s: about 80 s more where nothing became slower" after it.
_FORECASTS: Final = {
    "stored": re.compile(r": \d+ cells?, about ([\d.e+]+) (s|min), at most "),
    "pair": re.compile(r"^a pair takes .*: about ([\d.e+]+) (s|min) more "),
}
_UNITS_S: Final = {"s": 1.0, "min": 60.0}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a command came to.

    Attributes:
        took_s: Without the time while another timing session held the machine.
        forecasts: The seconds that a session was said to take from then on, and that it took.
    """

    exit_code: int
    output: str
    took_s: float
    forecasts: dict[str, tuple[float, float]]


def template(out: Path, files: Mapping[str, str]) -> Path:
    """Return the repository that sessions copy: on a branch, with a stored run to forecast from."""
    made = out / "template"
    if not made.exists():
        with tempfile.TemporaryDirectory(prefix="gate-sessions-") as name:
            folder = Path(name)
            git(folder, "init", "--quiet", "--initial-branch=main")
            commit(folder, "the package", files)
            must([*PYTEST, "--benchmark-autosave"], folder)
            commit(folder, "a stored run")
            git(folder, "checkout", "--quiet", "-b", "change")
            shutil.copytree(folder, made)
    return made


def verb_command(*words: str, python: str = sys.executable) -> list[str]:
    """Return the call of `perfsuite` with a verb and its arguments."""
    return [python, "-c", _SCRIPT, *words]


def gate_command(*arguments: str, python: str = sys.executable) -> list[str]:
    """Return the call of `perfsuite gate`."""
    return verb_command("gate", *arguments, python=python)


def run(command: Sequence[str], folder: Path, *, output: Path | None = None) -> Ended:
    """Run a command in a folder, and take the time of what it says; `output` has it line by line.

    A signal that ends this script, as in `ends_on_signals`, is given to the command.
    """
    lines: list[str] = []
    forecasts: dict[str, tuple[float, float]] = {}
    began_s = time.monotonic()
    waits_since_s, waited_s = None, 0.0
    with contextlib.ExitStack() as opened:
        kept = None if output is None else opened.enter_context(output.open("w", buffering=1))
        process = opened.enter_context(
            subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        opened.push(lambda kind, *_: process.terminate() if kind is SystemExit else None)
        assert process.stdout is not None
        for line in process.stdout:
            now_s = time.monotonic()
            waited_s += 0.0 if waits_since_s is None else now_s - waits_since_s
            waits_since_s = now_s if _WAITS in line else None
            lines.append(line)
            if kept is not None:
                kept.write(line)
            for when, pattern in _FORECASTS.items():
                if found := pattern.search(line):
                    forecasts[when] = float(found[1]) * _UNITS_S[found[2]], now_s - waited_s
    ended_s = time.monotonic() - waited_s
    return Ended(
        exit_code=process.returncode,
        output="".join(lines),
        took_s=ended_s - began_s,
        forecasts={when: (said_s, ended_s - at_s) for when, (said_s, at_s) in forecasts.items()},
    )


def must(command: Sequence[str], folder: Path) -> Ended:
    """Run a command that has to succeed; raises SystemExit with its output where it did not."""
    ended = run(command, folder)
    if ended.exit_code != 0:
        sys.exit(f"{' '.join(command)} in {folder} ended in {ended.exit_code}:\n{ended.output}")
    return ended


def git(folder: Path, *arguments: str) -> str:
    """Return what git answers."""
    author = ("-c", "user.name=author", "-c", "user.email=author@example.org")
    return must(["git", *author, *arguments], folder).output.strip()


def commit(folder: Path, message: str, files: Mapping[str, str] | None = None) -> None:
    """Write files, by their path in the repository, and commit everything."""
    for name, text in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)


class SessionLog:
    """A line for each finished session, in a folder where a second start goes on."""

    def __init__(self, out: Path, name: str) -> None:
        self._outputs = out / f"{name}.outputs"
        self._outputs.mkdir(parents=True, exist_ok=True)
        self._path = out / f"{name}.jsonl"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self.sessions: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self._host = describe_host()

    def add(self, name: str, ended: Ended, cells: Mapping[str, Any], **fields: Any) -> str:
        """Write a session down, and return it in a line."""
        output = self._outputs / f"{name}-{time.time_ns()}.txt"
        output.write_text(ended.output)
        session = {
            "exit_code": ended.exit_code,
            "took_s": round(ended.took_s, 1),
            "forecasts": ended.forecasts,
            "cells": cells,
            "has_traceback": "Traceback" in ended.output or "INTERNALERROR" in ended.output,
            "output": output.name,
            **fields,
            "host": self._host,
        }
        self.sessions.append(session)
        with self._path.open("a") as opened:
            opened.write(json.dumps(session) + "\n")
        words = [f"{verdict['word']} ({verdict['pairs']} pairs)" for verdict in cells.values()]
        return f"{name}: exit {ended.exit_code} in {ended.took_s:.0f} s: {', '.join(words)}"


def verdicts(file: Path) -> dict[str, dict[str, Any]]:
    """Return what the JSON of a gate, of the verb or of pytest, says of each cell."""
    document = json.loads(file.read_text()) if file.exists() else {}
    found = {cell["id"]: cell for cell in document.get("cells", ())}
    for cell in document.get("benchmarks", ()):
        if (verdict := cell["extra_info"]["perfsuite"]["verdict"]) is not None:
            found[cell["fullname"]] = verdict
    return found


def describe_host() -> str:
    """Return what a figure depends on: the device, and versions."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    parts = [
        f"{len(os.sched_getaffinity(0))} cores of {model[1] if model else platform.processor()}",
        f"perfsuite {git(Path(__file__).parent, 'rev-parse', '--short', 'HEAD')}",
        f"Python {platform.python_version()}",
        *(f"{name} {version(name)}" for name in ("torch", "pytest", "pytest-benchmark")),
    ]
    return ", ".join(parts)
