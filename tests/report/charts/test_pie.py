"""The pie chart: every format, with words for who cannot see it, and names that are data."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import msgspec
import pytest
from profile_example import PROFILE, UNEVALUATED

from perfsuite.report.charts.pie import FORMATS, draw_pie

TEXT = (
    "Pie chart of 10.0 s of training: load: 4.00 s, 40.0 %; forward: 1.00 s, 10.0 %; "
    "loss + backward: 2.00 s, 20.0 %; evaluation: 2.50 s, 25.0 %; other: 500 ms, 5.0 %."
)


@pytest.mark.parametrize(
    ("file_format", "begins"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")]
)
def test_each_format_is_drawn_the_same_every_time_and_carries_the_words(
    file_format: str, begins: bytes
) -> None:
    assert file_format in FORMATS

    first, second = (draw_pie(PROFILE, file_format) for _ in range(2))  # type: ignore[arg-type]

    assert first == second
    assert first.startswith(begins)
    assert TEXT.encode() in first


def test_the_legend_of_the_svg_is_text_and_a_hostile_name_is_data() -> None:
    hostile = msgspec.structs.replace(UNEVALUATED, workload="<script>alert(1)</script> $\\frac{$")

    drawn = draw_pie(hostile, "svg").decode()

    assert "<script" not in drawn
    words = {element.text for element in ET.fromstring(drawn).iter() if element.text}
    assert "loss + backward: 2.00 s, 20.0 %" in words
    assert "<script>alert(1)</script> $\\frac{$: 10.0 s" in words
    assert not any(text.startswith("evaluation") for text in words)


def test_a_users_style_does_not_change_the_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    plain = draw_pie(PROFILE, "png")

    with matplotlib.rc_context({"font.size": 30, "figure.facecolor": "black"}):
        styled = draw_pie(PROFILE, "png")

        assert matplotlib.rcParams["font.size"] == 30
    assert styled == plain
