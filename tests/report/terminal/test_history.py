"""The course of times on a terminal."""

from __future__ import annotations

from perfsuite.report.terminal.history import draw_course, draw_line


def test_a_step_is_two_levels_and_a_mark_below() -> None:
    times_s = [1e-3, 1.1e-3, 1e-3, 1.8e-3, 1.7e-3, 1.8e-3]
    levels_s = [1e-3] * 3 + [1.8e-3] * 3

    lines = draw_course(times_s, levels_s, [3], ("2026-01-01", "2026-02-01"))

    assert lines == [
        "1.80 ms    •─•",
        "            •",
        "",
        "",
        "",
        "",
        "         •",
        "1.00 ms •─•",
        "        ┴┴┴▲┴┴",
        "        2026-01-01 2026-02-01",
    ]


def test_times_that_are_all_equal_are_one_line() -> None:
    lines = draw_course([2.0] * 3, [2.0] * 3, [], ("today", "today"))

    assert lines[-3:] == ["2.00 s •••", "       ┴┴┴", "       today"]


def test_a_long_history_is_as_wide_as_a_terminal() -> None:
    times_s = [1.0 + place / 1000 for place in range(1000)]

    lines = draw_course(times_s, times_s, [999], ("2026-01-01", "2026-12-31"))

    assert max(map(len, lines)) == 71
    assert lines[-2].endswith("┴▲")
    assert lines[-1].split() == ["2026-01-01", "2026-12-31"]


def test_one_line_shows_the_middle_of_what_falls_together() -> None:
    assert draw_line([1.0] * 30 + [9.0] + [1.0] * 29) == "▁" * 20
    assert draw_line([1.0] * 40 + [3.0] * 40) == "▁" * 10 + "█" * 10
    assert draw_line([1.0]) == "▁"
