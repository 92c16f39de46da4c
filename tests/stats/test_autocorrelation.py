"""How far values hang together, and series that do so as much."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from perfsuite.stats.autocorrelation import find_correlation, shuffle


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
