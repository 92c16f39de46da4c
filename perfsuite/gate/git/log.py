"""Commits in the order in which they were made: their times, their subjects, how many between."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from perfsuite.gate.git.command import output
from perfsuite.system.untrusted import printable

# Where no commit has a time.
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def read_log(root: Path, revision: str) -> dict[str, datetime]:
    """Return when each commit up to a revision was made, parents before their children.

    A commit without a time counts as made with the one before it in this order, and at the
    beginning with the one after it.
    """
    options = ("--topo-order", "--reverse", "--no-show-signature", "--format=%H %ct")
    lines = output(root, "log", *options, revision).decode().splitlines()
    commits = [line.partition(" ") for line in lines]
    made_at = {name: _moment_of(seconds) for name, _, seconds in commits}
    latest = next(filter(None, made_at.values()), _EPOCH)
    return {name: (latest := moment or latest) for name, moment in made_at.items()}


def _moment_of(seconds: str) -> datetime | None:
    """Return the time that git read in a commit; None for none, or one that no calendar has."""
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        return None


def count_commits(root: Path, old: str, new: str) -> int:
    """Return how many commits `new` has that `old` has not."""
    return int(output(root, "rev-list", "--count", f"{old}..{new}"))


def subject_of(root: Path, commit: str) -> str:
    """Return the first line of a commit's message, without control characters."""
    subject = output(root, "log", "-1", "--no-show-signature", "--format=%s", commit)
    return printable(os.fsdecode(subject).removesuffix("\n"))
