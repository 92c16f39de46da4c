"""Tested claims as a terminal shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfsuite.report.terminal.tables import text_table

_COLUMNS = ("", "status", "figures here", "quoted", "source")


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """One claim.

    Attributes:
        status: "holds", "does not hold" or "cannot be tested here".
        here: This machine's figures.
        quoted: The figures that it was claimed with.
    """

    id: str
    status: str
    text: str
    here: str
    quoted: str
    source: str
    reason: str


def claims_table(rows: Sequence[ClaimRow]) -> str:
    """Return the table of all claims as text, this machine's figures beside the quoted ones."""
    values = ((row.id, row.status, row.here, row.quoted, row.source) for row in rows)
    return text_table([(title, False) for title in _COLUMNS], values)


def claim_lines(row: ClaimRow) -> str:
    """Return a claim, its status and the reason for it."""
    return f"{row.id} {row.status}: {row.text}\n    {row.reason}"
