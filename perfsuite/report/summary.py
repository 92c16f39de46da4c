"""What every format says first: the verdict over all cells, in one line. Sees rows only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perfsuite.report.rows import Row
from perfsuite.verdicts import exit_code

_WORDS: Final = {
    0: "PASS",
    1: "ERROR",
    10: "FAIL",
    11: "INCONCLUSIVE",
    12: "NO VERDICT",
    13: "NOTHING COMPARED",
}
# The gravest first: what somebody has to look at.
_ORDER: Final = (
    "ERROR",
    "FAIL",
    "INVALID",
    "VANISHED",
    "NO-BASELINE",
    "INCONCLUSIVE",
    "NEW",
    "IMPROVED",
    "PASS",
    "SKIPPED",
)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The verdict over all cells.

    Attributes:
        word: As of a session; None where no cell was judged.
        text: How many cells have which verdict.
    """

    word: str | None
    text: str


def summarize(rows: Sequence[Row]) -> Summary:
    """Return the verdict over all cells."""
    words = Counter(row.verdict.word for row in rows if row.verdict is not None)
    cells = "1 cell" if len(rows) == 1 else f"{len(rows)} cells"
    if not words:
        return Summary(word=None, text=f"{cells}, none of them judged")
    known = [word for word in _ORDER if word in words]
    ordered = [*known, *sorted(words.keys() - set(_ORDER))]
    text = ", ".join(f"{words[word]} {word}" for word in ordered)
    num_unjudged = len(rows) - words.total()
    if num_unjudged:
        text += f", {num_unjudged} not judged"
    return Summary(word=_WORDS[exit_code(words)], text=f"{cells}: {text}")


def withhold(summary: Summary, *, num_failed: int, gaps: Sequence[str]) -> Summary:
    """Return the verdict on a session whose cells are not all: they alone prove no PASS.

    A session in which nothing was judged still has no verdict.

    Args:
        summary: Of the cells.
        num_failed: Tests that failed by themselves, cells or not.
        gaps: What is missing of the session, one line each.
    """
    word = summary.word
    if word is not None and num_failed:
        word = "ERROR"
    elif word == "PASS" and gaps:
        word = "NO VERDICT"
    failures = [f"{num_failed} of its tests failed"] if num_failed else []
    return Summary(word=word, text="; ".join([summary.text, *failures, *gaps]))


def by_gravity(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with those first that somebody has to look at, else as they were."""

    def place(row: Row) -> int:
        word = None if row.verdict is None else row.verdict.word
        return _ORDER.index(word) if word in _ORDER else len(_ORDER)

    return sorted(rows, key=place)
