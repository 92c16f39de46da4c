"""A made-up repository with a long history, and the runs that were stored along it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pytest_benchmark.utils import get_machine_id

from perfsuite.system.environment import describe_host

MACHINE = describe_host({}, 2)
HERE = MACHINE.fingerprint
CELL = "benchmarks/test_step.py::test_step[ddp:2]"
FIRST_DAY = datetime(2026, 1, 1, 12, tzinfo=UTC)


def day(number: int) -> datetime:
    return FIRST_DAY + timedelta(days=number)


def make_commits(folder: Path, num_commits: int) -> list[str]:
    """Return the commits of a new repository on `main`, one a day, the oldest first."""
    lines = []
    for number in range(num_commits):
        message = f"change {number}"
        seconds = int(day(number).timestamp())
        lines += [
            "commit refs/heads/main",
            f"committer A <a@example.org> {seconds} +0000",
            f"data {len(message)}",
            message,
            f"M 100644 inline file.txt\ndata {len(str(number))}\n{number}",
        ]
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", folder], check=True)
    subprocess.run(
        ["git", "-C", folder, "fast-import", "--quiet"],
        input="\n".join(lines) + "\n",
        text=True,
        check=True,
    )
    subprocess.run(["git", "-C", folder, "reset", "--quiet", "--hard"], check=True)
    listed = subprocess.run(
        ["git", "-C", folder, "rev-list", "--reverse", "main"],
        check=True,
        capture_output=True,
        text=True,
    )
    return listed.stdout.split()


def store_run(
    storage: Path,
    number: int,
    times_s: Mapping[str, float],
    *,
    commit: str = "",
    saved_at: datetime | None = None,
    accepted: Sequence[str] = (),
    probe_s: Mapping[str, float] | None = None,
    cell_fingerprint: str | None = None,
    fingerprint: str = HERE,
) -> Path:
    """Store a run as pytest-benchmark and perfsuite do, and return where."""
    record = {"schema": 1, "fingerprint": cell_fingerprint}
    extra_info: dict[str, Any] = {} if cell_fingerprint is None else {"perfsuite": record}
    content = {
        "datetime": (saved_at or day(number)).isoformat(),
        "commit_info": {"id": commit, "dirty": False},
        "benchmarks": [
            {"fullname": cell, "stats": {"median": time_s}, "extra_info": extra_info}
            for cell, time_s in times_s.items()
        ],
        "perfsuite": {
            "schema": 1,
            "fingerprint": fingerprint,
            "probe_s": probe_s,
            "num_failed": 0,
            "is_pull_request": False,
            "verdicts": {},
            "accepted": list(accepted),
        },
    }
    path = storage / get_machine_id() / f"{number:04}_run.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path
