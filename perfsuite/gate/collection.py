"""Which cells both sides have, and the verdicts of those that only one has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from perfsuite.gate.baselines.accepted import Accepted
from perfsuite.records.verdict import CellVerdict

HOW_TO_ACCEPT: Final = "if that is meant, say so with 'perfsuite baseline accept'"


def is_named(name: str, paths: Sequence[str]) -> bool:
    """Return whether pytest's paths, from its root, name a test: no path names them all.

    >>> is_named("benchmarks/test_a.py::test_b", ["benchmarks/test_a.py::test_c", "benchmarks"])
    True
    >>> [is_named(f"test_a.py::{test}", ["test_a.py::test_b"]) for test in ("test_b[1]", "test_bc")]
    [True, False]
    """
    return not paths or any(_covers(path, name) for path in paths)


def _covers(path: str, name: str) -> bool:
    if "::" in path:
        return name == path or name.startswith((f"{path}::", f"{path}["))
    return Path(name.partition("::")[0]).is_relative_to(path)


def find_common(
    ours: Sequence[str], theirs: Collection[str], accepted: Accepted
) -> tuple[list[str], list[CellVerdict]]:
    """Return the cells to judge, by head's names, and the verdicts of the others.

    A cell that a reviewed exception renames is judged under its new name: both arms run head's
    benchmark files, so both have it. One that an exception removes has no verdict.

    Args:
        ours: The cells of head, whether or not they will run.
        theirs: The cells that the base's own benchmark files have.
        accepted: The exceptions that are in force.
    """
    ours_at_all, theirs_at_all = set(ours), set(theirs)
    common = [name for name in ours if (accepted.renamed_from(name) or name) in theirs_at_all]
    known = set(common)
    new = [
        CellVerdict(name=name, word="NEW", by="collection", reason="the base has no such cell")
        for name in ours
        if name not in known
    ]
    vanished = [
        CellVerdict(name=name, word="VANISHED", by="collection", reason=_why(name, accepted))
        for name in sorted(theirs_at_all - ours_at_all)
        if not accepted.is_removed(name) and accepted.renamed_to(name) not in ours_at_all
    ]
    return common, [*new, *vanished]


def _why(name: str, accepted: Accepted) -> str:
    reason = "head has no such cell"
    if target := accepted.renamed_to(name):
        return f"{reason}, and none called {target!r}, which its accepted new name is"
    for entry in accepted.expired:
        if entry.cell == name:
            return f"{reason}, and what was accepted of it expired on {entry.expires}"
    return f"{reason}; {HOW_TO_ACCEPT}"
