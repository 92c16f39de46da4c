"""Units: what people may write, what they read, and that nothing else is understood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.units import (
    counted,
    format_bytes,
    format_count,
    format_ratio,
    format_seconds,
    listed,
    option_bounds,
    parse_ratio,
    parse_seconds,
    short_commit,
)

anything_measured = st.floats(min_value=0, max_value=1e12, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "ratio"),
    [("2%", 0.02), ("2.5 %", 0.025), ("0.02", 0.02), (" 150% ", 1.5), ("0", 0.0)],
)
def test_a_ratio_is_read_with_or_without_a_percent_sign(text: str, ratio: float) -> None:
    assert parse_ratio(text) == ratio


@pytest.mark.parametrize("text", ["", "-2%", "two", "2 percent", "1e-2", ".5", "nan", "2%%", "5"])
def test_a_text_that_is_no_ratio_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its full text is below)
        parse_ratio(text)

    assert str(refused.value) == f"{text!r} is not a ratio; write '2%' or '0.02'"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("50us", 5e-5),
        ("50µs", 5e-5),
        ("7ns", 7e-9),
        ("1.5 ms", 1.5e-3),
        ("3", 3.0),
        ("3s", 3.0),
        ("2min", 120.0),
    ],
)
def test_a_duration_is_read_in_its_unit(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(("text", "seconds"), [("5", 300.0), ("90s", 90.0), (" 0.5 ", 30.0)])
def test_a_number_without_a_unit_may_be_minutes(text: str, seconds: float) -> None:
    assert parse_seconds(text, unit="min") == seconds


@pytest.mark.parametrize("text", ["", "-1s", "1h", "s", "1 s s", "inf", "1e3", "3 MS"])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its full text is below)
        parse_seconds(text)

    assert str(refused.value) == (
        f"{text!r} is not a duration; write a number and one of ns, us, ms, s, min"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (3.4e-9, "3.40 ns"),
        (1.5e-5, "15.0 us"),
        (0.00213, "2.13 ms"),
        (0.9999, "1.00 s"),
        (0.0009999, "1.00 ms"),
        (0.00996, "9.96 ms"),
        (0.009996, "10.0 ms"),
        (0.09996, "100 ms"),
        (72.8, "72.8 s"),
        (7200.0, "7200 s"),
        (-0.5, "-500 ms"),
    ],
)
def test_a_duration_is_written_with_three_digits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (246_824, "241 KiB"),
        (1023 * 1024, "1023 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (3 * 2**30, "3.00 GiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_bytes_are_written_in_binary_units(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (177, "177"),
        (999.6, "1.00 k"),
        (15_800.2, "15.8 k"),
        (999_999, "1.00 M"),
        (72_445_440, "72.4 M"),
        (2e18, "2000 P"),
    ],
)
def test_a_count_is_written_with_a_decimal_prefix(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.034, "3.4 %"), (0.0, "0.0 %"), (1.5, "150.0 %"), (-0.02, "-2.0 %")]
)
def test_a_ratio_is_written_as_a_percentage(ratio: float, text: str) -> None:
    assert format_ratio(ratio) == text


@given(seconds=st.floats(min_value=1e-9, max_value=1e6))
def test_a_written_duration_reads_back_within_its_digits(seconds: float) -> None:
    # Three digits: half a unit of the last one is at most 0.5 % of a number.
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=5e-3)


@given(smaller=anything_measured, larger=anything_measured)
def test_a_larger_number_is_never_written_in_a_smaller_unit(smaller: float, larger: float) -> None:
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    smaller, larger = sorted((smaller, larger))

    assert units.index(format_bytes(smaller).split()[1]) <= units.index(
        format_bytes(larger).split()[1]
    )


@given(number=st.floats(min_value=0, max_value=1e14))
def test_a_number_below_its_largest_unit_has_at_most_four_digits(number: float) -> None:
    for text in (format_bytes(number), format_count(number)):
        assert len(text.split()[0].replace(".", "")) <= 4, text


@pytest.mark.parametrize(
    ("tolerance", "bounds"), [("3%", (0.03, 0.05)), (None, (0.02, 0.05)), ("5%", (0.05, 0.05))]
)
def test_a_tolerance_that_is_not_given_follows_the_limit(
    tolerance: str | None, bounds: tuple[float, float]
) -> None:
    assert option_bounds(tolerance, "5%") == bounds


def test_a_number_of_things_is_one_or_several() -> None:
    assert [counted(1, "cell"), counted(0, "cell"), counted(2, "process")] == [
        *("1 cell", "0 cells", "2 processes")
    ]


def test_a_long_list_says_how_many_more_there_are() -> None:
    assert listed(["a", "b", "c"]) == "a, b, c"
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


def test_a_commit_is_written_with_seven_digits() -> None:
    assert short_commit("5db0efb7ac6bdcd7cfd9f58b9eebfe8798f3638b") == "5db0efb"
