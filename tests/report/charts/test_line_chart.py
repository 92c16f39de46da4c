"""The axes of a line chart: few round ticks that hold every value."""

from __future__ import annotations

import pytest

from perfsuite.report.charts.line_chart import PlotLine, draw_lines, ticks


@pytest.mark.parametrize("largest", [1e-9, 0.0021, 0.999, 1.0, 4.1, 7.0, 12345.0, 3e15])
def test_ticks_are_few_and_reach_the_largest(largest: float) -> None:
    found = ticks(largest)

    assert found[0] == 0.0
    assert found[-1] >= largest * (1 - 1e-9)
    assert 3 <= len(found) <= 6


def test_a_long_last_tick_ends_within_its_chart() -> None:
    line = PlotLine(name="a", points=((0.1, 1.0),))

    chart = draw_lines([line], "kind", "title", ("step", "y"), str, lambda x: f"{x:.3f} s")

    (last,) = [text for text in chart.texts if text.anchor == "end" and text.x > chart.width / 2]
    assert last.x == chart.width - 2
