"""Verdicts in words: the one over all cells that every format begins with, and each cell's."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from perfsuite.errors import ExitCode
from perfsuite.records.verdict import SEVERITY, CellVerdict, Explanation, exit_code
from perfsuite.report.rows import Row
from perfsuite.system.untrusted import printable_lines
from perfsuite.units import counted, format_change, format_seconds

_WORDS = {
    ExitCode.OK: "PASS",
    ExitCode.FAILED: "ERROR",
    ExitCode.REGRESSION: "FAIL",
    ExitCode.INCONCLUSIVE: "INCONCLUSIVE",
    ExitCode.REFUSED: "NO VERDICT",
    ExitCode.NOTHING_COMPARED: "NOTHING COMPARED",
}
# Changes that a reader need not be told: none, or no losses, as in every cell of a plain suite.
_UNTOLD = ("same bits", "cannot be told: no loss")
# A slowdown of eleven times and more needs no gate.
_MOST_TOLD = 10.0


class Summary(NamedTuple):
    """The verdict over all cells, None where none was judged, and how many have which."""

    word: str | None
    text: str


def summarize(rows: Sequence[Row], *, num_failed: int = 0, gaps: Sequence[str] = ()) -> Summary:
    """Return the verdict over all cells.

    `num_failed` tests failed by themselves, cells or not, and `gaps` has a line for each missing
    part: with either, the cells alone prove no PASS. Without a judged cell there is no verdict.
    """
    verdicts = [row.verdict for row in by_severity(rows) if row.verdict is not None]
    shown = Counter(verdict.shown for verdict in verdicts)
    text = ", ".join(f"{number} {word}" for word, number in shown.items())
    if num_unjudged := len(rows) - len(verdicts):
        text += f", {num_unjudged} not judged"
    counting = (verdict.word for verdict in verdicts if verdict.policy != "quarantined")
    word = _WORDS[exit_code(counting)] if verdicts else None
    if word is not None and num_failed:
        word = "ERROR"
    elif word == "PASS" and gaps:
        word = "NO VERDICT"
    cells = counted(len(rows), "cell")
    judged = f"{cells}: {text}" if verdicts else f"{cells}, none of them judged"
    failures = [f"{num_failed} of its tests failed"] if num_failed else []
    return Summary(word=word, text="; ".join([judged, *failures, *gaps]))


def by_severity(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the most severe verdicts first, else in the order given."""
    order = [*SEVERITY, None]
    return sorted(rows, key=lambda row: order.index(row.verdict.word if row.verdict else None))


def verdict_sentence(cell: CellVerdict) -> str:
    """Return a verdict in one sentence, for the report of its test."""
    text = cell.shown
    if cell.ratio is not None and cell.num_pairs > 1:
        change = f"{format_change(cell.ratio)} against the base"
        text += f": {change}, between {interval_text(cell)} ({counted(cell.num_pairs, 'pair')})"
    return printable_lines("; ".join(filter(None, [text, reason_text(cell)])))


def exceptions_of(cells: Sequence[CellVerdict]) -> tuple[str, ...]:
    """Return the reviewed exceptions that the verdicts rest on, each once."""
    return tuple(dict.fromkeys(text for cell in cells for text in cell.accepted))


def interval_text(cell: CellVerdict) -> str:
    """Return the bounds of the change, "" where there are none."""
    if cell.interval is None or cell.num_pairs < 2:
        return ""
    return " and ".join(map(format_change, cell.interval))


def reason_text(cell: CellVerdict) -> str:
    """Return what the numbers of a verdict do not say: why, and what moved; "" if nothing."""
    texts = [cell.reason] if cell.reason else []
    change = cell.numerics_change or _UNTOLD[0]
    if not change.startswith(_UNTOLD) and change not in (cell.reason or ""):
        texts.append(f"mathematics: {change}")
    if cell.explanation is not None:
        texts.append(explanation_text(cell.explanation, said=cell.reason or ""))
    is_of_time = cell.word == "INCONCLUSIVE" and cell.by != "numerics"
    if is_of_time and cell.detectable and math.isfinite(cell.detectable):
        change = format_change(1 + cell.detectable)
        text = f"the smallest slowdown that it could have seen is {change}"
        if cell.interval and cell.interval[0] > 1 + cell.detectable:
            text = "so few pairs are no FAIL, wherever their bounds lie"
        is_known = cell.detectable < _MOST_TOLD
        texts.append(text if is_known else "no slowdown could be seen in so few pairs")
    return "; ".join(filter(None, texts))


def explanation_text(explanation: Explanation, *, said: str = "") -> str:
    """Return an explanation in words, what moved most first, without counts that were `said`."""
    texts, stage = [], explanation.moved_stage
    if explanation.operators and stage in (None, "other"):  # code that marks no stage is all in it
        first = explanation.operators[0]
        texts.append(f"moved most: {first['name']} {_moved(*first['self_s'])}, profiled once")
    elif stage is not None:
        texts.append(f"moved most: {stage} {_moved(*explanation.stages[stage])}")
    told = {text.partition(" ")[0] for text in said.split("; ")}
    counts = explanation.counts.items()
    if unsaid := [f"{name} {base} -> {head}" for name, (base, head) in counts if name not in told]:
        texts.append(f"counts: {', '.join(unsaid)}")
    nothing = "" if explanation.counts else "no stage, count or function moved by itself"
    return "; ".join(texts) or nothing


def _moved(base_s: float | None, head_s: float | None) -> str:
    if base_s is None or head_s is None:
        known_s, side = (head_s, "head") if base_s is None else (base_s, "base")
        return f"{format_seconds(known_s or 0.0)} in {side} alone"
    change = f" ({format_change(head_s / base_s)})" if base_s > 0 else ""
    return f"{format_seconds(base_s)} -> {format_seconds(head_s)}{change}"
