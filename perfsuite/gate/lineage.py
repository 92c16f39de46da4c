"""Commits in the order in which they were made: when, what they are called, how many lie between.

Must not know what was measured at a commit.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from perfsuite.gate.git import output
from perfsuite.untrusted import printable


def read_lineage(root: Path, revision: str) -> dict[str, datetime]:
    """Return when each commit up to a revision was made, parents before their children.

    Raises:
        PerfsuiteError: Git cannot tell; quotes it.
    """
    listed = output(
        root, "log", "--topo-order", "--reverse", "--no-show-signature", "--format=%H %ct", revision
    )
    commits = (line.split() for line in listed.decode().splitlines())
    return {name: datetime.fromtimestamp(int(seconds), UTC) for name, seconds in commits}


def count_commits(root: Path, old: str, new: str) -> int:
    """Return how many commits `new` has that `old` has not.

    Raises:
        PerfsuiteError: Git cannot tell; quotes it.
    """
    return int(output(root, "rev-list", "--count", f"{old}..{new}"))


def subject_of(root: Path, commit: str) -> str:
    """Return the first line of a commit's message, without what would move a terminal's cursor.

    Raises:
        PerfsuiteError: Git cannot tell; quotes it.
    """
    said = output(root, "log", "-1", "--no-show-signature", "--format=%s", commit)
    text = os.fsdecode(said).removesuffix("\n")
    return printable(text)
