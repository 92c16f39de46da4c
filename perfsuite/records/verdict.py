"""What a gate says of a cell, and what that ends a session in.

Must not know how a verdict is reached, nor how it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from perfsuite.errors import ExitCode
from perfsuite.system.untrusted import Amount, Count, Label

VerdictWord = Literal[
    "PASS",
    "FAIL",
    "IMPROVED",
    "INCONCLUSIVE",
    "NEW",
    "NO-BASELINE",
    "INVALID",
    "VANISHED",
    "ERROR",
    "SKIPPED",
]

# From the gravest on: a failing test says more than a slow cell, and that more than a missing one.
_EXIT_CODES = (
    (ExitCode.FAILED, {"ERROR"}),
    (ExitCode.REGRESSION, {"FAIL"}),
    (ExitCode.REFUSED, {"NO-BASELINE", "VANISHED", "INVALID"}),
    (ExitCode.INCONCLUSIVE, {"INCONCLUSIVE"}),
)
# Where there is nothing else, nothing was compared.
_SAYS_NOTHING = {"NEW", "SKIPPED"}


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What changed from base to head, per iteration.

    Attributes:
        moved_stage: The stage that changed most; None where none is known.
        stages: Seconds of each stage, [base, head].
        counts: Counts that differ, [base, head].
        operators: The functions, or of stored runs the operators, that changed most: "name", and
            [base, head] of "calls" and of "self_s", the seconds in it alone; None where a run kept
            nothing of it, because it was not among its costliest.
    """

    moved_stage: str | None
    stages: dict[str, tuple[float, float]]
    counts: dict[str, tuple[int, int]]
    operators: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class CellVerdict:
    """The verdict of one cell.

    Attributes:
        name: The test's node id.
        word: PASS, FAIL, IMPROVED, INCONCLUSIVE, NEW, NO-BASELINE, INVALID or VANISHED; or ERROR
            where the test itself failed, and SKIPPED.
        by: What decided: "pairs", "collection", ...
        ratio: head / base; None where nothing was compared.
        interval: Its bounds.
        num_pairs: Pairs that it rests on.
        detectable: The smallest slowdown that would have been seen, 0.034 = 3.4 %.
        tolerance: The slowdown that was accepted of this very cell, a reviewed exception included;
            None where its time was not to be judged.
        limit: The slowdown that must not pass, likewise.
        reason: Why, where numbers do not say it.
        explanation: What moved; None where nothing did.
        raw: Seconds an iteration of both launches of each pair, base first.
        firsts: The arm that ran first in each pair.
        asked: The arguments of the rule, with which `raw` gives the verdict again.
    """

    name: str
    word: str
    by: str
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    num_pairs: int = 0
    detectable: float | None = None
    tolerance: float | None = None
    limit: float | None = None
    reason: str | None = None
    explanation: Explanation | None = None
    raw: tuple[tuple[float, float], ...] = ()
    firsts: tuple[str, ...] = ()
    asked: dict[str, Any] = field(default_factory=dict)

    def as_record(self) -> Verdict:
        """The verdict as a cell's record keeps it; what is infinite is not known."""
        is_known = self.interval is not None and math.isfinite(self.interval[1])
        return Verdict(
            word=self.word,
            by=self.by,
            ratio=self.ratio,
            interval=self.interval if is_known else None,
            pairs=self.num_pairs,
            detectable=self.detectable if is_known else None,
            tolerance=self.tolerance,
            limit=self.limit,
        )


def exit_code(words: Iterable[str]) -> ExitCode:
    """Return what verdicts end in, the gravest first.

    >>> exit_code(["PASS", "NEW"]).name, exit_code(["PASS", "FAIL", "INVALID"]).name
    ('OK', 'REGRESSION')
    >>> exit_code(["NEW"]).name
    'NOTHING_COMPARED'
    """
    found = set(words)
    if found <= _SAYS_NOTHING:
        return ExitCode.NOTHING_COMPARED
    return next((code for code, group in _EXIT_CODES if found & group), ExitCode.OK)


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the gate decided of the cell.

    Attributes:
        tolerance: The slowdown that was accepted of this very cell, 0.02 = 2 %: its marker's if it
            has one, a reviewed exception included. None where its time was not to be judged, and
            in every record from before it was kept.
        limit: The slowdown that must not pass, likewise.
    """

    word: Label
    by: Label
    ratio: Amount | None
    interval: tuple[Amount, Amount] | None
    pairs: Count | None
    detectable: Amount | None
    tolerance: Amount | None = None
    limit: Amount | None = None
