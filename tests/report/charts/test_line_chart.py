"""The axes of a line chart: few round ticks that hold every value."""

from __future__ import annotations

import pytest

from perfsuite.report.charts.line_chart import Axis, PlotLine, draw_lines, logarithmic, ticks


@pytest.mark.parametrize("largest", [1e-9, 0.0021, 0.999, 1.0, 4.1, 7.0, 12345.0, 3e15])
def test_ticks_are_few_and_reach_the_largest(largest: float) -> None:
    found = ticks(largest)

    assert found[0] == 0.0
    assert found[-1] >= largest * (1 - 1e-9)
    assert 3 <= len(found) <= 6


@pytest.mark.parametrize("base", [2, 10])
@pytest.mark.parametrize("values", [[1.0], [1e-9, 1e6], [3.0, 700.0], [1.0, 1024.0], [0.5, 0.5]])
def test_powers_are_few_and_hold_every_value(values: list[float], base: int) -> None:
    axis = logarithmic(values, base)

    assert 2 <= len(axis.ticks) <= 8
    assert all(-1e-9 <= axis.position(value) <= 1 + 1e-9 for value in values)


def test_equal_factors_are_equal_lengths_on_a_logarithmic_axis() -> None:
    axis = Axis(ticks=(1.0, 4.0, 16.0), is_logarithmic=True)

    assert [axis.position(value) for value in (1.0, 2.0, 4.0, 8.0, 16.0)] == pytest.approx(
        [0.0, 0.25, 0.5, 0.75, 1.0]
    )


def test_a_long_last_tick_ends_within_its_chart() -> None:
    line = PlotLine(name="a", points=((0.1, 1.0),))

    chart = draw_lines([line], "kind", "title", ("step", "y"), str, lambda x: f"{x:.3f} s")

    (last,) = [text for text in chart.texts if text.anchor == "end" and text.x > chart.width / 2]
    assert last.x == chart.width - 2
