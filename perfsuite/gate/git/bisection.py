"""A search for the first bad commit: `git bisect`, in a worktree of its own.

Its state, the refs `refs/bisect` and the files BISECT_*, belongs to the worktree (git-worktree(1),
"Refs"): a bisection that the user has begun goes on undisturbed. Git checks nothing out; it only
names the next commit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from perfsuite.errors import PerfsuiteError
from perfsuite.gate.git.command import complaint_of, find_commit, output, run_git
from perfsuite.gate.git.repository import Base
from perfsuite.gate.git.worktree import empty_worktree
from perfsuite.units import short_commit

Mark = Literal["good", "bad", "skip"]

# The lines in git's log of a bisection that has ended.
_FIRST_BAD: Final = re.compile(r"^# first bad commit: \[(\w+)\]", re.MULTILINE)
_POSSIBLE: Final = re.compile(r"^# possible first bad commit: \[(\w+)\]", re.MULTILINE)
# The exit code of `git bisect` where only skipped commits are left.
_ONLY_SKIPPED: Final = 2


@dataclass(frozen=True, kw_only=True)
class End:
    """The result: the first bad commit, or those that it may be where too many were skipped."""

    first_bad: str | None
    possible: tuple[str, ...]


class Bisection:
    """One search, as far as it has come."""

    def __init__(self, folder: Path, *, good: str, bad: str) -> None:
        """Begin it in `folder`, an empty worktree, between two commits by their full names."""
        self._folder = folder
        self._bisect("start", "--no-checkout", bad, good, "--")

    def find_end(self) -> End | None:
        """Return its result; None as long as there is a commit to judge."""
        log = output(self._folder, "bisect", "log").decode(errors="replace")
        if found := _FIRST_BAD.search(log):
            return End(first_bad=found[1], possible=())
        if possible := _POSSIBLE.findall(log):
            return End(first_bad=None, possible=tuple(possible))
        return None

    def candidate(self) -> str:
        """Return the commit to judge next, by its full name."""
        found = find_commit(self._folder, "BISECT_HEAD")
        if found is None:
            raise PerfsuiteError(
                "'git bisect' names no next commit; see what 'git bisect log' says"
            )
        return found

    def mark(self, mark: Mark) -> None:
        """Mark the candidate."""
        self._bisect(mark)

    def _bisect(self, *arguments: str) -> None:
        ended = run_git(self._folder, "bisect", *arguments)
        if ended.returncode not in (0, _ONLY_SKIPPED):
            raise PerfsuiteError(f"'git bisect {arguments[0]}' failed: {complaint_of(ended)}")


@contextmanager
def bisection(root: Path, *, good: str, bad: str) -> Iterator[Bisection]:
    """Give a search that leaves nothing in the repository of `root` after the context.

    `good` and `bad` are full names of commits, the first an ancestor of the second. Raises a
    WriteError where its worktree cannot be made.
    """
    with empty_worktree(root, Base(revision=good, described=short_commit(good))) as folder:
        yield Bisection(folder, good=good, bad=bad)


def most_steps(num_commits: int) -> int:
    """Return how many of the commits that may be the first bad one must be judged at most.

    >>> most_steps(1), most_steps(2), most_steps(8), most_steps(9)
    (0, 1, 3, 4)
    """
    return math.ceil(math.log2(num_commits))
