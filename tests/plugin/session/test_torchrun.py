"""What one rank's end of a phase means for all."""

from __future__ import annotations

import pytest

from perfsuite.plugin.session.torchrun import PhaseEnd, blamed_rank

PASSED = PhaseEnd(outcome="passed", text="", is_consequence=False)
LOST = PhaseEnd(outcome="failed", text="no rank 2", is_consequence=True)
BOOM = PhaseEnd(outcome="failed", text="boom", is_consequence=False)
SKIPS = PhaseEnd(outcome="skipped", text="too old", is_consequence=False)


@pytest.mark.parametrize(
    ("ends", "rank"),
    [
        ([PASSED, SKIPS, LOST, BOOM], 3),
        ([PASSED, LOST, SKIPS], 2),
        ([PASSED, SKIPS], 1),
        ([PASSED, PASSED], None),
        ([SKIPS, SKIPS], None),
    ],
)
def test_the_rank_that_failed_by_itself_is_blamed_else_the_one_that_skips(
    ends: list[PhaseEnd], rank: int | None
) -> None:
    assert blamed_rank(ends) == rank
