"""Single cases that are easy to follow by hand, of the rule, its looks and the series of a cell."""

from __future__ import annotations

import numpy as np
import pytest

from perfsuite.stats.change_points import best_split, find_change_points
from perfsuite.stats.evidence import Pair, Prior
from perfsuite.stats.sequential import Rule, decide, recommend
from perfsuite.stats.spending import Schedule
from perfsuite.stats.trend import as_ratio, locate_shift, measure_drift


def test_a_rule_decides_by_few_pairs_where_they_agree() -> None:
    rule = Rule(tolerance=0.02, limit=0.05, num_cells=1, prior=Prior(sd=0.004))

    def word(*logs: float, stalls: float = 0.0) -> str | None:
        pairs = [Pair(log_ratio=one, mean_log_ratio=one + stalls) for one in logs]
        return decide(pairs, rule).word

    assert word(0.001, -0.002) == "PASS"
    assert word(0.001, -0.002, stalls=0.4) is None
    assert word(*(0.151, 0.148) * 3) == "FAIL"


def test_many_cells_are_judged_in_two_stages_that_keep_alpha() -> None:
    (only,) = Rule(tolerance=0.02, limit=0.05, num_cells=24).stages
    first, second = Rule(tolerance=0.02, limit=0.05, num_cells=480).stages

    assert only.num_cells == 24
    assert first.alpha / first.num_cells * second.alpha == 0.05 / 480


def test_a_quiet_machine_holds_the_tightest_bounds_and_a_noisy_one_none() -> None:
    assert recommend(Prior(sd=0.004), num_cells=8, max_pairs=16) == (0.005, 0.02)
    assert recommend(Prior(sd=0.5), num_cells=8, max_pairs=16) is None


def test_a_schedule_looks_often_at_first_and_at_the_ends_of_its_parts() -> None:
    assert Schedule(max_pairs=16).looks == (2, 3, 4, 5, 6, 8, 10, 12, 16)
    # A re-run looks half-way through and at its end.
    assert Schedule(max_pairs=9, num_sessions=3).looks == (2, 3, 4, 5, 6, 8, 9, 14, 18, 23, 27)
    assert Schedule(max_pairs=40).looks[-4:] == (16, 20, 30, 40)


def test_shares_grow_with_the_square_of_a_looks_pairs() -> None:
    # 16 of 9 + 16 + 25, one of four looks; of 0.8 both.
    assert Schedule(max_pairs=5).shares(4) == pytest.approx((0.256, 0.2))
    # At 8: 64 of 36 + 64.
    assert Schedule(max_pairs=4, num_sessions=2).shares(7) == pytest.approx((0.1024, 0.08))


def test_a_level_changes_where_the_values_do() -> None:
    steady, doubled = [1.0, 1.1, 0.9, 1.0, 1.1, 0.9], [2.0, 2.1, 1.9, 2.0, 2.1, 1.9]

    assert find_change_points([*steady, *doubled]) == (6,)
    # 3 * 3 / 6 * (2 * 1 - 0 - 0).
    assert best_split(np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])) == (3.0, 3)


def test_a_shift_is_the_median_difference_and_a_drift_the_median_slope() -> None:
    assert locate_shift([1.0, 2.0, 3.0], [11.0, 12.0, 13.0])[0] == 10.0
    assert (as_ratio(0.0), as_ratio(1e9)) == (1.0, as_ratio(50.0))
    drift = measure_drift([0, 1, 2, 3, 4, 5], [5.0, 5.2, 5.4, 9.0, 9.2, 9.4], [0, 3, 6])
    assert drift is not None
    assert drift.slope == pytest.approx(0.2)
