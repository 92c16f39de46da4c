"""The axes of a line chart: few round ticks that hold every value."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from perfsuite.report.charts.line_chart import PlotLine, draw_lines, powers_of_two, ticks


@pytest.mark.parametrize("largest", [1e-9, 0.0021, 0.999, 1.0, 4.1, 7.0, 12345.0, 3e15])
def test_ticks_are_few_and_reach_the_largest(largest: float) -> None:
    found = ticks(largest)

    assert found[0] == 0.0
    assert found[-1] >= largest * (1 - 1e-9)
    assert 3 <= len(found) <= 6


@pytest.mark.parametrize("values", [[1.0], [1e-9, 1e6], [3.0, 700.0], [1.0, 1024.0], [0.5, 0.5]])
def test_powers_are_few_and_hold_every_value(values: list[float]) -> None:
    found = powers_of_two(values)

    assert 2 <= len(found) <= 8
    assert found[0] * (1 - 1e-9) <= min(values)
    assert max(values) <= found[-1] * (1 + 1e-9)


def test_equal_factors_are_equal_lengths_on_a_logarithmic_axis() -> None:
    line = PlotLine(name="a", points=tuple((x, 1.0) for x in (1.0, 2.0, 4.0, 8.0, 16.0)))

    chart = draw_lines([line], "kind", "title", ("x", "y"), str, is_logarithmic=True)

    (drawn, *_) = [outline for style, outline in chart.paths if style == "s0"]
    places = [float(point.split()[0]) for point in drawn[1:].split("L")]
    assert [end - start for start, end in pairwise(places)] == [80.0] * 4


def test_a_long_last_tick_ends_within_its_chart() -> None:
    line = PlotLine(name="a", points=((0.1, 1.0),))

    chart = draw_lines([line], "kind", "title", ("step", "y"), str, lambda x: f"{x:.3f} s")

    (last,) = [text for text in chart.texts if text.anchor == "end" and text.x > chart.width / 2]
    assert last.x == chart.width - 2


def test_an_interval_far_above_all_points_does_not_flatten_them() -> None:
    line = PlotLine("all", [(0.0, 4.0), (1.0, 8.0)], [(0.3, 240.0), (7.0, 9.0)])

    picture = draw_lines([line], "Sweep", "few repetitions", ("workers", "s"), "{:g}".format)

    assert "20" in [text.content for text in picture.texts]
    assert "240" not in [text.content for text in picture.texts]
    ends = [float(end) for _, path in picture.paths for end in re.findall(r"V([\d.]+)", path)]
    assert min(ends) == 52.0  # at the top of the axes, where the longest is cut off
