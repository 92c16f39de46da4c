"""Random kills of controllers and ranks: no orphan, nothing lost, nothing left, the next run green.

The short storm is part of the suite; `make soak` runs the long one and prints its figures.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kill_storm import run_storm

SEED = 7


def test_three_kills_at_random_moments_do_no_harm(tmp_path: Path) -> None:
    figures = run_storm(tmp_path, num_kills=3, seed=SEED, whole_after=3)

    assert figures.wrong == []


@pytest.mark.soak
def test_a_hundred_kills_at_random_moments_do_no_harm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    num_kills = int(os.environ.get("PERFSUITE_STORM_KILLS", "100"))
    seed = int(os.environ.get("PERFSUITE_STORM_SEED", SEED))

    with capsys.disabled():
        figures = run_storm(tmp_path, num_kills=num_kills, seed=seed, say=print)
        print(figures)

    assert figures.wrong == []
