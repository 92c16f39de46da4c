"""Shards: every cell in exactly one of them, the same on every runner, and none much longer."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.records.shard import Shard, ShardStamp, assign, digest_of, parse_shard

durations = st.dictionaries(st.text(max_size=4), st.none() | st.floats(0, 1e6), max_size=40)


def loads(durations_s: dict[str, float], num_shards: int) -> list[float]:
    """Seconds of each shard."""
    total_s = [0.0] * num_shards
    for name, number in assign(durations_s, num_shards).items():
        total_s[number - 1] += durations_s[name]
    return total_s


def test_the_longest_cells_go_first_to_whom_has_the_least_to_do() -> None:
    # Loads are 7, 6, 5; then 7, 6, 9; 7, 9, 9; 9, 9, 9, where each has two cells.
    durations_s = {str(seconds): float(seconds) for seconds in range(1, 8)}

    assigned = assign(durations_s, 3)

    assert [assigned[seconds] for seconds in "7654321"] == [1, 2, 3, 3, 2, 1, 1]


def test_a_cell_of_unknown_duration_counts_as_the_median_of_the_others() -> None:
    known = {"a": 1.0, "b": 2.0, "c": 9.0}

    assert assign({**known, "new": None}, 3) == assign({**known, "new": 2.0}, 3)


@pytest.mark.parametrize("seconds", [None, 0.0, 3.0])
def test_where_all_cells_count_alike_each_shard_gets_equally_many(seconds: float | None) -> None:
    assigned = assign(dict.fromkeys("abcdefgh", seconds), 4)

    assert sorted(assigned.values()) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_with_more_shards_than_cells_the_last_ones_are_empty() -> None:
    assert assign({"a": 1.0, "b": 2.0}, 99_999) == {"b": 1, "a": 2}
    assert assign({}, 3) == {}


@given(durations, st.integers(1, 9))
def test_every_cell_is_in_one_shard_whatever_the_order_of_collection(
    durations_s: dict[str, float | None], num_shards: int
) -> None:
    assigned = assign(durations_s, num_shards)

    assert assigned.keys() == durations_s.keys()
    assert set(assigned.values()) <= set(range(1, num_shards + 1))
    backwards = dict(reversed(durations_s.items()))
    assert assign(backwards, num_shards) == assigned
    assert digest_of(assign(backwards, num_shards)) == digest_of(assigned)


@given(
    st.dictionaries(st.text(max_size=4), st.floats(0.001, 1e3), min_size=1, max_size=40),
    st.integers(1, 9),
)
def test_no_shard_has_more_than_an_equal_share_and_one_cell(
    durations_s: dict[str, float], num_shards: int
) -> None:
    fair_s = sum(durations_s.values()) / num_shards

    assert max(loads(durations_s, num_shards)) <= fair_s + max(durations_s.values()) + 1e-6


def test_the_digits_of_a_partition_tell_where_a_cell_is() -> None:
    assert digest_of({"a": 1, "b": 2}) != digest_of({"a": 2, "b": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 1, "b": 2})
    assert len(digest_of({"\udc80 of a file's name": 1})) == 12


@pytest.mark.parametrize(("text", "number", "num_shards"), [("1/1", 1, 1), ("12/40", 12, 40)])
def test_a_shard_is_written_as_one_of_several(text: str, number: int, num_shards: int) -> None:
    assert parse_shard(text) == Shard(number=number, num_shards=num_shards)
    assert str(parse_shard(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "1", "0/4", "5/4", "a/b", "-1/4", "1/-4", "1/0", "1.0/4", " 1/4", "1/4\n", "1//4", "1/4/2",
     "+1/4", "1_0/4", "\uff11/\uff14", "01/4", "1/100000", f"1/{'9' * 5000}"],
)  # fmt: skip
def test_what_names_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - its text is the option's to say
        parse_shard(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"number": 5}, "the shard is number 5 of 4"),
        ({"number": 0}, "Expected `int` >= 1 - at `$.number`"),
        ({"num_shards": 1}, "Expected `int` >= 2 - at `$.num_shards`"),
        ({"num_shards": 10**18}, "Expected `int` <= 99999 - at `$.num_shards`"),
        ({"num_cells": -1}, "Expected `int` >= 0 - at `$.num_cells`"),
        ({"weight": 1}, "Object contains unknown field `weight`"),
    ],
)
def test_a_stamp_that_cannot_be_is_refused(changes: dict[str, int], message: str) -> None:
    stamp = ShardStamp(number=2, num_shards=4, num_cells=8, partition="0123456789ab")

    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert({**msgspec.to_builtins(stamp), **changes}, ShardStamp)

    assert str(refused.value) == message
