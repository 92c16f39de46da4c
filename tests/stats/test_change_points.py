"""Where the level of a series changes: the statistic by hand, the search, and its error rate."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from perfsuite.stats.change_points import (
    LEVEL,
    MIN_SEGMENT,
    best_split,
    find_change_points,
    find_correlation,
    shuffle,
)


def noisy(levels: Sequence[float], num_each: int, seed: int) -> list[float]:
    numbers = random.Random(seed)
    return [level + 0.01 * numbers.gauss(0, 1) for level in levels for _ in range(num_each)]


def measured_by_hand(values: Sequence[float], split: int, end: int) -> float:
    """Q as Matteson and James write it, pair by pair."""
    x, y = values[:split], values[split:end]
    n, m = len(x), len(y)
    between = sum(abs(a - b) for a in x for b in y) / (n * m)
    within_x, within_y = (
        sum(abs(a - b) for a, b in itertools.combinations(part, 2)) / (k * (k - 1) / 2)
        for part, k in ((x, n), (y, m))
    )
    return n * m / (n + m) * (2 * between - within_x - within_y)


@pytest.mark.parametrize(
    ("values", "statistic", "place"),
    [
        # 3 * 3 / 6 * (2 * 1 - 0 - 0)
        ([0, 0, 0, 1, 1, 1], 3.0, 3),
        # 4 * 3 / 7 * (2 * 2 - 0 - 0)
        ([5, 5, 5, 5, 3, 3, 3], 48 / 7, 4),
        # Y ends before the last three: with them Q is 3 * 6 / 9 * (2 * 0.5 - 0 - 0.6) = 0.8.
        ([0, 0, 0, 1, 1, 1, 0, 0, 0], 3.0, 3),
        # X and Y have spreads: 9 / 6 * (2 * 10 - 4 / 3 - 4 / 3)
        ([1, 2, 3, 11, 12, 13], 26.0, 3),
        ([1, 1, 1, 1, 1, 1], 0.0, 3),
    ],
)
def test_the_statistic_is_that_of_the_paper(
    values: list[float], statistic: float, place: int
) -> None:
    found, inside = best_split(np.asarray(values, float))

    assert found == pytest.approx(statistic)
    assert inside == place


@given(st.lists(st.floats(-100, 100), min_size=2 * MIN_SEGMENT, max_size=14))
def test_the_largest_statistic_is_that_of_all_pairs_of_parts(values: list[float]) -> None:
    found, place = best_split(np.asarray(values))

    by_hand = {
        (split, end): measured_by_hand(values, split, end)
        for split in range(MIN_SEGMENT, len(values) - MIN_SEGMENT + 1)
        for end in range(split + MIN_SEGMENT, len(values) + 1)
    }
    assert found == pytest.approx(max(by_hand.values()), abs=1e-6)
    assert found == pytest.approx(
        max(q for (split, _), q in by_hand.items() if split == place), abs=1e-6
    )


@pytest.mark.parametrize("num_values", range(1, 2 * MIN_SEGMENT))
def test_a_segment_that_is_too_short_has_no_split(num_values: int) -> None:
    assert best_split(np.zeros(num_values)) == (-np.inf, None)
    assert find_change_points([0.0] * num_values) == ()


@pytest.mark.parametrize("seed", range(5))
def test_the_search_is_otavas(seed: int) -> None:
    calculator = pytest.importorskip(
        "otava.change_point_divisive.calculator",
        reason="pip install --no-deps apache-otava (decision 0011)",
    )
    values = np.asarray(noisy((0.0, 0.04, 0.01), 8, seed))

    theirs = calculator.PairDistanceCalculator(values).get_candidate_change_point(slice(None))

    assert best_split(values) == (pytest.approx(theirs.qhat), theirs.index)


# The places that Apache Otava 0.8.0 finds in the same series: its search is the same, and its
# test, which is not, finds each of them too. `python benchmarks/history_error_rates.py` asks
# it anew.
@pytest.mark.parametrize(
    ("levels", "num_each", "seed", "places"),
    [
        ((0.0, 0.05), 12, 1, (12,)),
        ((0.0, 0.03, 0.06), 15, 3, (15, 30)),
        ((0.0, -0.03), 25, 6, (25,)),
        ((0.0,), 40, 4, ()),
    ],
)
def test_it_finds_what_otava_finds(
    levels: tuple[float, ...], num_each: int, seed: int, places: tuple[int, ...]
) -> None:
    assert find_change_points(noisy(levels, num_each, seed)) == places


def test_a_level_that_comes_back_is_two_changes() -> None:
    assert find_change_points(noisy((0.0, 0.05, 0.0), 10, 2)) == (10, 20)


def test_two_runs_that_are_off_are_no_change() -> None:
    values = noisy((0.0,), 40, 5)
    values[20:22] = [0.5, 0.5]

    assert find_change_points(values) == ()


def test_a_change_is_dated_with_the_third_run_after_it() -> None:
    before = noisy((0.0,), 40, 6)

    found = [find_change_points([*before, *[0.1] * num_after]) for num_after in (1, 2, 3)]

    assert found == [(), (), (40,)]


def test_the_same_series_has_the_same_changes_each_time() -> None:
    values = noisy((0.0, 0.012), 15, 8)

    assert len({find_change_points(values) for _ in range(5)}) == 1


@pytest.mark.parametrize("noise", ["normal", "student", "skewed", "two modes"])
def test_a_series_without_a_change_has_one_no_oftener_than_promised(noise: str) -> None:
    generator = np.random.default_rng(11)
    num_series, num_runs = 1500, 26
    shape = (num_series, num_runs)
    drawn = {
        "normal": generator.standard_normal(shape),
        "student": generator.standard_t(2, shape),
        "skewed": generator.exponential(size=shape),
        "two modes": generator.standard_normal(shape) + 6 * (generator.random(shape) < 0.3),
    }[noise]

    num_false = sum(bool(find_change_points(series)) for series in drawn)

    # Three Monte Carlo standard deviations above the level.
    assert num_false <= num_series * LEVEL + 3 * (num_series * LEVEL) ** 0.5


def test_a_series_whose_values_hang_together_has_few_false_changes() -> None:
    generator = np.random.default_rng(12)
    num_series, num_runs, correlation = 60, 80, 0.5
    drawn = generator.standard_normal((num_series, num_runs))
    for run in range(1, num_runs):
        drawn[:, run] *= (1 - correlation**2) ** 0.5
        drawn[:, run] += correlation * drawn[:, run - 1]

    num_false = sum(bool(find_change_points(series)) for series in drawn)

    # Taken for independent, a third of them have a change.
    assert num_false <= 0.1 * num_series


def autoregressive(num_values: int, correlation: float, seed: int) -> NDArray[np.float64]:
    values = np.random.default_rng(seed).standard_normal(num_values)
    for place in range(1, num_values):
        values[place] = correlation * values[place - 1] + values[place]
    return values


@pytest.mark.parametrize("correlation", [0.3, 0.6, 0.8])
def test_the_correlation_of_a_long_series_is_found(correlation: float) -> None:
    found = find_correlation([autoregressive(4000, correlation, 1)])

    assert found == pytest.approx(correlation, abs=0.05)


def test_a_change_of_level_between_two_parts_is_no_correlation() -> None:
    values = np.random.default_rng(2).standard_normal(80)
    values[40:] += 20

    assert find_correlation([values[:40], values[40:]]) == 0.0
    assert find_correlation([values]) == 0.9


def test_independent_values_seldom_seem_to_hang_together() -> None:
    found = [find_correlation([autoregressive(60, 0.0, seed)]) for seed in range(500)]

    assert np.mean(np.array(found) > 0) < 0.08


def test_short_parts_hide_no_correlation() -> None:
    parts = np.split(autoregressive(900, 0.5, 3), 45)

    assert find_correlation(parts) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("parts", [[[1.0] * 9], [[1.0], [2.0]], [[1.0, -1.0] * 9]])
def test_values_that_do_not_vary_or_alternate_do_not_hang_together(
    parts: list[list[float]],
) -> None:
    assert find_correlation([np.array(part) for part in parts]) == 0.0


def test_independent_values_are_put_in_another_order() -> None:
    values = np.arange(20.0)

    shuffled = shuffle(values, 0.0, np.random.default_rng(0))

    assert sorted(shuffled) == list(values)
    assert list(shuffled) != list(values)


def test_a_shuffled_series_hangs_together_as_much_and_varies_as_much() -> None:
    values = autoregressive(4000, 0.6, 4)

    shuffled = shuffle(values, 0.6, np.random.default_rng(0))

    assert find_correlation([shuffled]) == pytest.approx(0.6, abs=0.05)
    assert np.std(shuffled) == pytest.approx(np.std(values), rel=0.1)
