"""Commits in the order in which they were made: when, what they are called, how many lie between.

Must not know what was measured at a commit.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from perfsuite.gate.git.command import output
from perfsuite.system.untrusted import printable

# Where no commit says when it was made.
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def read_lineage(root: Path, revision: str) -> dict[str, datetime]:
    """Return when each commit up to a revision was made, parents before their children.

    A commit may say anything of that. One that names no time counts as made with the one before it
    in this order, the first ones with the one after them.

    Raises:
        PerfsuiteError: Git cannot tell; quotes it.
    """
    listed = output(
        root, "log", "--topo-order", "--reverse", "--no-show-signature", "--format=%H %ct", revision
    )
    commits = [line.partition(" ") for line in listed.decode().splitlines()]
    made_at = {name: _moment_of(seconds) for name, _, seconds in commits}
    latest = next(filter(None, made_at.values()), _EPOCH)
    return {name: (latest := moment or latest) for name, moment in made_at.items()}


def _moment_of(seconds: str) -> datetime | None:
    """The time that git read in a commit; None where it read none, or one that no calendar has."""
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        return None


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
