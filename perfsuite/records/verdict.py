"""What a gate says of a cell, and how severe that is: the exit code of a session."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from perfsuite.errors import ExitCode
from perfsuite.stats.sequential import Word
from perfsuite.system.untrusted import MOST, Amount, Count, Label, Sentence

_Code = TypeVar("_Code", bound=int)
VerdictWord = Literal[Word, "NEW", "NO-BASELINE", "INVALID", "VANISHED", "ERROR", "SKIPPED"]

# The most severe first: a failing test says more than a slow cell, that more than a missing one.
SEVERITY: Mapping[VerdictWord, ExitCode] = {
    "ERROR": ExitCode.FAILED,
    "FAIL": ExitCode.REGRESSION,
    "INVALID": ExitCode.REFUSED,
    "VANISHED": ExitCode.REFUSED,
    "NO-BASELINE": ExitCode.REFUSED,
    "INCONCLUSIVE": ExitCode.INCONCLUSIVE,
    "NEW": ExitCode.NOTHING_COMPARED,
    "IMPROVED": ExitCode.OK,
    "PASS": ExitCode.OK,
    "SKIPPED": ExitCode.NOTHING_COMPARED,
}
_PYTEST_INTERNAL_ERROR, _PYTEST_NO_TESTS = 3, 5
# No usage error, interruption or failed test is hidden by a verdict.
_CODES_FROM_MOST_SEVERE = (
    _PYTEST_INTERNAL_ERROR,
    ExitCode.PYTEST_USAGE,
    ExitCode.USAGE,
    *(code for code in dict.fromkeys(SEVERITY.values()) if code != ExitCode.OK),
    _PYTEST_NO_TESTS,
    ExitCode.OK,
)


def exit_code(words: Iterable[VerdictWord]) -> ExitCode:
    """Return the exit code of the most severe verdict; what was not compared adds nothing."""
    codes = {SEVERITY[word] for word in words} - {ExitCode.NOTHING_COMPARED}
    return most_severe(codes) if codes else ExitCode.NOTHING_COMPARED


def most_severe(codes: Iterable[_Code]) -> _Code:
    """Return the exit code that represents all; an unknown one is more severe than any other."""
    order = _CODES_FROM_MOST_SEVERE
    return min(codes, key=lambda code: order.index(code) if code in order else -1)


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the gate decided of a cell, as its record keeps it.

    Attributes:
        by: What decided: "identical", "counts", "numerics", "screen", "pairs", "collection", "test"
        ratio: head / base, with its bounds, the interval; None where nothing was compared.
        mean_ratio: The same of all rounds together, stalls included; None without a pair.
        detectable: The smallest slowdown that would have been seen, 0.034 = 3.4 %.
        tolerance: The slowdown that was accepted of this very cell, 0.02 = 2 %: its marker's if it
            has one, a reviewed exception included. None where its time was not to be judged.
        limit: The slowdown that must not pass, likewise.
        numerics_change: "same bits…", "rounding…", "changed: …" or "cannot be told: …", of head's
            losses against the base's; None without a pair.
        policy: Why it changes no exit code; None where it may.
    """

    word: VerdictWord
    by: Label
    ratio: Amount | None = None
    interval: tuple[Amount, Amount] | None = None
    num_pairs: Count | None = msgspec.field(default=None, name="pairs")
    detectable: Amount | None = None
    tolerance: Amount | None = None
    limit: Amount | None = None
    mean_ratio: Amount | None = None
    numerics_change: Sentence | None = None
    policy: Literal["quarantined", "advisory"] | None = None

    @property
    def shown(self) -> str:
        """The word, and why it changes no exit code."""
        return self.word if self.policy is None else f"{self.word} {self.policy}"


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What changed from base to head, per iteration, in pairs [base, head].

    Attributes:
        moved_stage: The stage that changed most; None where none is known.
        operators: The functions, or the operators of stored runs, that changed most: "name",
            "calls" and "self_s", the seconds in it alone; None where a run did not keep it.
    """

    moved_stage: str | None
    stages: dict[str, tuple[float, float]]
    counts: dict[str, tuple[int, int]]
    operators: tuple[dict[str, Any], ...]


class CellVerdict(Verdict, frozen=True, kw_only=True):
    """The verdict of one cell with all that it rests on; encoded, a cell of `gate --json`.

    Attributes:
        reason: Why, where numbers do not say it.
        compared_with: What decided, and against what; None where nothing was compared.
        raw: Seconds an iteration of both launches of each pair, base first.
        firsts: The arm that ran first in each pair.
        mean_ratios: head / base of all rounds of each pair together, stalls included.
        errors: Standard error of each log ratio in `raw`, by the rounds of its pair, or None.
        rule: The arguments of the rule: with them, the pairs give the verdict again.
        accepted: The reviewed exceptions that it rests on, in words.
    """

    name: str = msgspec.field(name="id")
    num_pairs: int = msgspec.field(default=0, name="pairs")
    reason: str | None = None
    compared_with: str | None = None
    explanation: Explanation | None = None
    raw: tuple[tuple[float, float], ...] = ()
    mean_ratios: tuple[float, ...] = ()
    errors: tuple[float | None, ...] = ()
    firsts: tuple[str, ...] = msgspec.field(default=(), name="first")
    rule: dict[str, Any] = msgspec.field(default_factory=dict, name="asked")
    accepted: tuple[str, ...] = ()

    @property
    def is_accepted_slowdown(self) -> bool:
        """Whether only a reviewed exception let a slowdown through."""
        if self.word != "PASS" or self.ratio is None or not self.rule:
            return False
        is_slower: bool = self.ratio > 1 + self.rule["tolerance"]
        return is_slower and self.rule["accepted_slowdown"] > 1

    def as_record(self) -> Verdict:
        """The verdict as a cell's record keeps it; what two noisy pairs cannot bound is unknown."""
        fields = {name: getattr(self, name) for name in Verdict.__struct_fields__}
        if self.interval is None or max(self.interval[1], self.detectable or 0.0) > MOST:
            fields |= {"interval": None, "detectable": None}
        return Verdict(**fields)
