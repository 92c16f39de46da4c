"""Where the rule looks and what it spends there, over any number of re-runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.stats.spending import Schedule

schedules = st.builds(
    Schedule,
    max_pairs=st.integers(min_value=3, max_value=80),
    num_sessions=st.integers(min_value=1, max_value=5),
)


@pytest.mark.parametrize(
    ("max_pairs", "expected"),
    [
        (3, (2, 3)),
        (4, (2, 3, 4)),
        (14, (2, 3, 4, 5, 6, 8, 10, 12, 14)),
        (20, (2, 3, 4, 5, 6, 8, 10, 12, 16, 20)),
        (21, (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 21)),
        (40, (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 40)),
    ],
)
def test_the_last_look_is_at_the_most_pairs(max_pairs: int, expected: tuple[int, ...]) -> None:
    assert Schedule(max_pairs=max_pairs).looks == expected


def test_a_re_run_looks_twice() -> None:
    assert Schedule(max_pairs=8, num_sessions=3).looks == (2, 3, 4, 5, 6, 8, 12, 16, 20, 24)


def test_a_schedule_of_one_look_spends_all_of_a_session_there() -> None:
    schedule = Schedule(max_pairs=8, first_look=8)

    assert schedule.looks == (8,)
    assert schedule.shares(1) == schedule.shares(8) == (0.8, 0.8)


def test_pairs_after_the_first_twenty_take_nothing_from_those() -> None:
    short, long = Schedule(max_pairs=20), Schedule(max_pairs=40)

    assert [long.shares(look) for look in short.looks] == [
        short.shares(look) for look in short.looks
    ]


@given(schedules)
def test_all_looks_of_all_sessions_together_spend_no_more_than_there_is(schedule: Schedule) -> None:
    spent = [schedule.shares(look) for look in schedule.looks]
    # What is shown of alpha at two pairs is spent at three.
    alphas = [alpha for (alpha, _), look in zip(spent, schedule.looks, strict=True) if look > 2]

    num_parts = schedule.num_sessions * (2 if schedule.max_pairs > 20 else 1)
    assert sum(alphas) == pytest.approx(1 - 0.2**num_parts)
    assert sum(beta for _, beta in spent) == pytest.approx(1 - 0.2**num_parts)


@given(schedules, st.integers(min_value=1, max_value=5))
def test_a_re_run_changes_nothing_of_what_was_spent_before(schedule: Schedule, more: int) -> None:
    longer = Schedule(
        max_pairs=schedule.max_pairs, num_sessions=schedule.num_sessions + more, first_look=2
    )

    assert longer.looks[: len(schedule.looks)] == schedule.looks
    for num_pairs in range(1, schedule.looks[-1] + 1):
        assert longer.shares(num_pairs) == schedule.shares(num_pairs)


@given(schedules, st.data())
def test_between_looks_the_shares_are_those_of_the_next(
    schedule: Schedule, data: st.DataObject
) -> None:
    look = data.draw(st.sampled_from(schedule.looks))
    before = max((earlier for earlier in schedule.looks if earlier < look), default=0)

    assert schedule.shares(data.draw(st.integers(before + 1, look))) == schedule.shares(look)
