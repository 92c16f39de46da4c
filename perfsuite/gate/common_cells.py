"""Which cells a gate session judges, and what it says of those that one side lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from perfsuite.gate.baselines.accepted import Accepted
from perfsuite.records.verdict import CellVerdict, VerdictWord

HOW_TO_ACCEPT: Final = "if that is meant, say so with 'perfsuite baseline accept'"


def is_named(name: str, paths: Sequence[str]) -> bool:
    """Return whether pytest's paths, from its root, name a test: no path names them all.

    >>> is_named("benchmarks/test_a.py::test_b", ["benchmarks/test_a.py::test_c", "benchmarks"])
    True
    >>> is_named("test_a.py::test_b[1]", ["test_a.py::test_b"])
    True
    >>> is_named("test_a.py::test_bc", ["test_a.py::test_b"])
    False
    """
    return not paths or any(_covers(path, name) for path in paths)


def _covers(path: str, name: str) -> bool:
    if "::" in path:
        return name == path or name.startswith((f"{path}::", f"{path}["))
    return Path(name.partition("::")[0]).is_relative_to(path)


def find_common(
    ours: Collection[str], theirs: Collection[str], accepted: Accepted
) -> tuple[list[str], list[CellVerdict]]:
    """Return the cells to judge, by head's names, and the verdicts of the others.

    `ours` are head's cells, whether or not they will run; `theirs` are those of the base's own
    benchmark files. A cell that a reviewed exception renames is judged under its new name: both
    arms run head's benchmark files, so both have it. One that an exception removes has no verdict.
    """
    common = [name for name in ours if (accepted.renamed_from(name) or name) in theirs]
    verdicts = not_compared("NEW", sorted({*ours} - {*common}), "the base has no such cell")
    for name in sorted({*theirs} - {*ours}):
        if not accepted.is_removed(name) and accepted.renamed_to(name) not in ours:
            verdicts += not_compared("VANISHED", [name], _why(name, accepted))
    return common, verdicts


def not_compared(word: VerdictWord, names: Iterable[str], reason: str) -> list[CellVerdict]:
    """Return the same verdict for cells that are not compared."""
    return [CellVerdict(name=name, word=word, by="collection", reason=reason) for name in names]


def _why(name: str, accepted: Accepted) -> str:
    reason = "head has no such cell"
    if target := accepted.renamed_to(name):
        return f"{reason}, and none called {target!r}, which its accepted new name is"
    for entry in accepted.expired:
        if entry.cell == name:
            return f"{reason}, and what was accepted of it expired on {entry.expires}"
    return f"{reason}; {HOW_TO_ACCEPT}"
