"""Tested claims as people read them. Must not know what tested them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from perfsuite.report.terminal.tables import render


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
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("", "status", "figures here", "quoted", "source"):
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(row.id, row.status, row.here, row.quoted, row.source)
    return render(table)


def claim_lines(row: ClaimRow) -> str:
    """Return a claim, its status and the reason for it."""
    return f"{row.id} {row.status}: {row.text}\n    {row.reason}"
