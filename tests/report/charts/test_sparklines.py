"""Sparklines: where each mark lies, and the label for those who cannot see it."""

from __future__ import annotations

from made_up_runs import cell, verdict

from perfsuite.report.charts.sparklines import draw_history, draw_rounds, draw_stages, draw_verdict
from perfsuite.report.rows import HistoryPoint, Row


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


def point(step_time_s: float, *, is_accepted: bool = False) -> HistoryPoint:
    return HistoryPoint(when="day", commit="abc", step_time_s=step_time_s, is_accepted=is_accepted)


def history(*points: HistoryPoint) -> Row:
    return Row(name="t", history=points)


def test_a_history_is_drawn_from_0_with_its_accepted_changes() -> None:
    drawn = draw_history(history(point(1.0), point(2.0, is_accepted=True), point(2.0)))

    assert drawn is not None
    assert dict(drawn.paths)["h"] == "M1 7L60 1L119 1"
    assert dict(drawn.paths)["a"] == "M60 0v14"
    assert drawn.label == (
        "3 runs: day abc 1.00 s, day abc 2.00 s (accepted change), day abc 2.00 s"
    )


def test_one_run_is_no_history() -> None:
    assert draw_history(history(point(1.0))) is None
