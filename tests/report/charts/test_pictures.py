"""Pictures and charts: where each mark lies, and what is said to those who cannot see it."""

from __future__ import annotations

import math
import re

import pytest
from made_up_runs import cell, verdict

from perfsuite.report.charts.family_charts import draw_families
from perfsuite.report.charts.line_chart import Axis, logarithmic, ticks
from perfsuite.report.charts.sections import Section
from perfsuite.report.charts.sparklines import draw_history, draw_rounds, draw_stages, draw_verdict
from perfsuite.report.rows import HistoryPoint, Row

# --- pictures ---


def test_rounds_lie_between_the_fastest_and_the_slowest() -> None:
    drawn = draw_rounds(Row(name="t", step_time_s=0.002, rounds_s=(0.001, 0.002, 0.005)))

    assert drawn is not None
    assert drawn.label == "3 rounds from 1.00 ms to 5.00 ms, median 2.00 ms"
    assert drawn.paths == (("r", "M1 3v8M30.5 3v8M119 3v8"), ("m", "M30.5 0v14"))


def test_equal_rounds_lie_in_the_middle() -> None:
    drawn = draw_rounds(Row(name="t", step_time_s=1.0, rounds_s=(1.0, 1.0)))

    assert drawn is not None
    assert drawn.paths[1] == ("m", "M60 0v14")


def test_a_single_round_is_no_distribution() -> None:
    assert draw_rounds(Row(name="t", step_time_s=1.0, rounds_s=(1.0,))) is None


def test_stages_share_the_width_and_those_not_run_have_none() -> None:
    drawn = draw_stages(cell("t", stages_s={"load": 0.001, "forward": 0.003}))

    assert drawn is not None
    assert drawn.label == "load 25.0 %, forward 75.0 %"
    assert drawn.paths == (("g-load", "M0 1h30v12h-30z"), ("g-forward", "M30 1h90v12h-90z"))


def test_a_cell_without_stages_has_no_bar() -> None:
    assert draw_stages(Row(name="t", step_time_s=1.0)) is None


def test_an_interval_is_drawn_against_tolerance_and_limit() -> None:
    drawn = draw_verdict(
        verdict("FAIL", ratio=1.06, interval=(1.05, 1.5)), tolerance=0.02, limit=0.05
    )

    # 60 is no change and 120 a slowdown of 10 %, where all that is larger ends.
    assert drawn is not None
    assert drawn.label == "+6.0 %, between +5.0 % and +50.0 %; tolerance +2.0 %, limit +5.0 %"
    assert drawn.paths == (
        ("z", "M60 0v14"),
        ("t", "M72 0v14"),
        ("l", "M90 0v14"),
        ("v-bad", "M90 4h30v6h-30z"),
        ("m", "M96 2v10"),
    )


def test_the_bounds_that_the_verdict_was_reached_by_are_drawn_and_not_the_reports() -> None:
    drawn = draw_verdict(
        verdict("PASS", ratio=1.06, interval=(1.05, 1.08), tolerance=0.1, limit=0.2),
        tolerance=0.02,
        limit=0.05,
    )

    # 120 is now a slowdown of 40 %.
    assert drawn is not None
    assert drawn.label == "+6.0 %, between +5.0 % and +8.0 %; tolerance +10.0 %, limit +20.0 %"
    assert drawn.paths[1:4] == (
        ("t", "M75 0v14"),
        ("l", "M90 0v14"),
        ("v-good", "M67.5 4h4.5v6h-4.5z"),
    )


def test_a_verdict_without_an_interval_has_no_picture() -> None:
    assert draw_verdict(verdict("NEW", interval=None), tolerance=0.02, limit=0.05) is None


def test_a_word_from_a_file_never_becomes_a_style() -> None:
    drawn = draw_verdict(verdict('"><script>'), tolerance=0.02, limit=0.05)

    assert drawn is not None
    assert [style for style, _ in drawn.paths] == ["z", "t", "l", "v-doubt", "m"]


def past(step_time_s: float, *, is_accepted: bool = False) -> HistoryPoint:
    return HistoryPoint(when="day", commit="abc", step_time_s=step_time_s, is_accepted=is_accepted)


def test_a_history_is_drawn_from_0_with_its_accepted_changes() -> None:
    drawn = draw_history([past(1.0), past(2.0, is_accepted=True), past(2.0)])

    assert drawn is not None
    assert dict(drawn.paths)["h"] == "M1 7L60 1L119 1"
    assert dict(drawn.paths)["a"] == "M60 0v14"
    assert drawn.label == (
        "3 runs: day abc 1.00 s, day abc 2.00 s (accepted change), day abc 2.00 s"
    )


def test_one_run_is_no_history() -> None:
    assert draw_history([past(1.0)]) is None


# --- charts ---


def sections(*rows: Row) -> dict[str, Section]:
    return {section.title: section for section in draw_families(rows)}


def test_a_sweep_of_workers_has_whiskers() -> None:
    found = sections(
        cell("0", (0.003, 0.004, 0.005)), cell("2", (0.002, 0.002, 0.002), num_workers=2)
    )

    (chart,) = found["Loader workers"].charts
    assert "4.00 ms at num_workers 0, 2.00 ms at num_workers 2" in chart.label
    whiskers = [
        outline for _, outline in chart.paths if re.fullmatch(r"M[\d.]+ [\d.]+V.+", outline)
    ]
    # 0 to 6 ms are 160 units up from 212, and the spread of 4 ms is 1.4826 ms.
    assert whiskers == ["M64.0 144.9V65.8", "M384.0 158.7V158.7"]


def test_memory_is_drawn_against_the_time_of_recomputation() -> None:
    found = sections(
        cell("a", (0.010,) * 3, peak_bytes=2 * 2**20),
        cell("b", (0.013,) * 3, peak_bytes=2**20, checkpointing="every-block"),
    )

    (chart,) = found["Memory against recomputation"].charts
    assert chart.label == (
        "Memory against recomputation, lenet, single, fp32. none: 2.00 MiB at step 10.0 ms; "
        "every-block: 1.00 MiB at step 13.0 ms"
    )
    axis = [text.content for text in chart.texts if text.content.endswith("B")]
    assert axis == ["0 B", "512 KiB", "1.00 MiB", "1.50 MiB", "2.00 MiB"]


def test_a_loss_that_is_no_number_is_left_out_of_its_line_which_says_so() -> None:
    found = sections(
        cell("a", losses=(3.0, 2.0, 1.0)),
        cell("b", losses=(3.0, math.nan, 2.0), precision="amp-bf16"),
    )

    (chart,) = found["Losses by precision"].charts
    assert chart.label.endswith(
        "fp32: 3 at step 1, 2 at step 2, 1 at step 3; "
        "amp-bf16, without 1 that are not finite or below 0: 3 at step 1, 2 at step 3"
    )


def test_cells_that_differ_in_more_than_one_thing_make_no_chart() -> None:
    assert sections(cell("a"), cell("b", num_workers=2, precision="bf16", workload="x")) == {}


def test_a_bare_collective_is_not_compared_by_its_recipe() -> None:
    assert sections(
        cell("1 KiB", samples_per_s=None, parallel="ddp:2"),
        cell("1 MiB", samples_per_s=None, parallel="ddp:4"),
    ) == {}  # fmt: skip


def test_of_very_many_charts_the_rest_is_counted() -> None:
    rows = [
        cell(f"{number}-{workers}", workload=f"w{number}", num_workers=workers)
        for number in range(30)
        for workers in (0, 2)
    ]

    section = sections(*rows)["Loader workers"]

    assert (len(section.charts), section.num_left_out) == (24, 6)


def test_what_is_counted_has_whole_ticks() -> None:
    found = sections(cell("0"), cell("2", num_workers=2))

    (chart,) = found["Loader workers"].charts
    ticks_of_x = [text.content for text in chart.texts if text.y == 229.0]
    assert ticks_of_x == ["0", "1", "2"]


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
