"""Exact gates: increases fail, decreases ask, and what is not there is not zero."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.errors import SettingError
from perfsuite.gate.judge.counts import (
    EXACT,
    CountChange,
    CountComparison,
    Slack,
    compare_counts,
    parse_slacks,
)
from perfsuite.records.cell import Counts, Memory
from perfsuite.records.run_file import StoredCell

MIB = 2**20
COUNTS = {
    "flops": 1_200_000_000,
    "ops": 177,
    "collectives": 2,
    "collective_bytes": 246_824,
    "saved_activation_bytes": 691_132,
    "kernel_launches": None,
}


def cell(
    *,
    peak_bytes: int | None = 2_648_080,
    metric: Any = "live_storage_peak",
    fingerprint: str | None = "aaaaaaaaaaaa",
    **counts: int | None,
) -> StoredCell:
    memory = None
    if peak_bytes is not None:
        memory = Memory(metric=metric, peak_bytes=peak_bytes, per_rank=(peak_bytes,))
    return StoredCell(
        median_s=0.1,
        fingerprint=fingerprint,
        counts=Counts(**{**COUNTS, **counts}),
        memory=memory,
    )


def lines(comparison: CountComparison) -> tuple[list[str], list[str], tuple[str, ...]]:
    """The increases, the decreases and what is not available, as text."""
    return (
        [str(change) for change in comparison.increases],
        [str(change) for change in comparison.decreases],
        comparison.unavailable,
    )


def test_equal_counts_are_no_change() -> None:
    assert compare_counts(cell(), cell()) == CountComparison(changes=(), unavailable=())


@pytest.mark.parametrize(
    ("name", "count", "line"),
    [
        ("flops", 1_450_000_000, "flops 1.20 G -> 1.45 G (+20.8 %), allowed 0 %"),
        ("flops", 1_200_000_001, "flops 1,200,000,000 -> 1,200,000,001 (+1), allowed 0 %"),
        ("ops", 178, "ops 177 -> 178 (+0.6 %), allowed 0 %"),
        ("collectives", 3, "collectives 2 -> 3 (+50.0 %), allowed 0 %"),
        (
            "collective_bytes",
            493_648,
            "collective_bytes 241 KiB -> 482 KiB (+100.0 %), allowed 0 %",
        ),
        (
            "saved_activation_bytes",
            695_229,
            "saved_activation_bytes 675 KiB -> 679 KiB (+0.6 %), allowed 4.00 KiB",
        ),
        ("peak_bytes", 5 * MIB, "memory 2.53 MiB -> 5.00 MiB (+98.0 %), allowed 4.00 KiB"),
    ],
)
def test_an_increase_beyond_the_slack_fails_in_one_line(name: str, count: int, line: str) -> None:
    comparison = compare_counts(cell(), cell(**{name: count}))

    assert lines(comparison) == ([line], [], ())


def test_a_decrease_asks_and_never_fails() -> None:
    comparison = compare_counts(cell(), cell(ops=150))

    assert lines(comparison) == ([], ["ops 177 -> 150 (-15.3 %)"], ())


def test_a_first_collective_is_an_increase_without_a_percentage() -> None:
    comparison = compare_counts(cell(collectives=0), cell(collectives=3))

    assert lines(comparison) == (["collectives 0 -> 3 (+3), allowed 0 %"], [], ())


def test_a_page_of_live_storage_is_within_the_slack() -> None:
    before = cell(peak_bytes=2_648_080)

    assert compare_counts(before, cell(peak_bytes=2_648_080 + 4096)).increases == ()
    assert len(compare_counts(before, cell(peak_bytes=2_648_080 + 4097)).increases) == 1


@pytest.mark.parametrize(
    ("base_bytes", "slack_bytes"), [(100 * MIB, 16 * MIB), (4000 * MIB, 40 * MIB)]
)
def test_an_allocators_peak_may_move_by_a_percent_or_sixteen_mib(
    base_bytes: int, slack_bytes: int
) -> None:
    def peak(num_bytes: int) -> StoredCell:
        return cell(
            metric="max_memory_allocated",
            peak_bytes=num_bytes,
            saved_activation_bytes=num_bytes,
        )

    within = compare_counts(peak(base_bytes), peak(base_bytes + slack_bytes))
    beyond = compare_counts(peak(base_bytes), peak(base_bytes + slack_bytes + 1))

    assert [change.name for change in within.changes] == ["saved_activation_bytes", "memory"]
    assert within.increases == ()
    assert [change.name for change in beyond.increases] == ["saved_activation_bytes", "memory"]


def test_what_is_asked_of_an_allocator_may_move_by_a_page_however_much_it_is() -> None:
    def asked(num_bytes: int) -> StoredCell:
        return cell(metric="requested_peak", peak_bytes=num_bytes, saved_activation_bytes=num_bytes)

    base = asked(60_000 * MIB)

    assert compare_counts(base, asked(60_000 * MIB + 4096)).increases == ()
    grown = compare_counts(base, asked(60_000 * MIB + 4097))
    assert [change.name for change in grown.increases] == ["saved_activation_bytes", "memory"]


def test_what_one_side_lacks_is_explained_and_not_taken_for_zero() -> None:
    comparison = compare_counts(cell(flops=None), cell(kernel_launches=5, peak_bytes=None))

    assert comparison.changes == ()
    assert comparison.unavailable == (
        "flops is not available of the base, so it is not compared",
        "kernel_launches is not available of the base, so it is not compared",
        "memory is not available of head, so it is not compared",
    )


def test_a_cell_without_counts_is_explained_too() -> None:
    plain = StoredCell(median_s=0.1)

    assert compare_counts(plain, plain) == CountComparison(changes=(), unavailable=())
    assert len(compare_counts(cell(), plain).unavailable) == 6


def test_memory_of_another_kind_is_not_compared() -> None:
    # Blocks are larger than what was asked for.
    of_blocks = {"metric": "max_memory_allocated", "peak_bytes": 10_000_000_000}
    comparison = compare_counts(cell(), cell(**of_blocks, saved_activation_bytes=10_000_000_000))

    kinds = "live_storage_peak of the base, max_memory_allocated of head"
    assert lines(comparison) == (
        [],
        [],
        (
            f"saved_activation_bytes is not compared: {kinds}",
            f"memory is not compared: {kinds}",
        ),
    )


def test_a_cell_of_another_environment_is_not_compared() -> None:
    comparison = compare_counts(cell(), cell(fingerprint="bbbbbbbbbbbb", ops=999))

    assert lines(comparison) == (
        [],
        [],
        (
            "counts and memory are not compared: the base ran in another environment: "
            "aaaaaaaaaaaa -> bbbbbbbbbbbb",
        ),
    )


def test_the_marker_widens_narrows_and_switches_off() -> None:
    slacks = parse_slacks({"flops": "2%", "memory": "exact", "ops": "off"})

    comparison = compare_counts(
        cell(), cell(flops=1_224_000_000, ops=999, peak_bytes=2_648_081), slacks=(slacks,)
    )

    assert [change.name for change in comparison.changes] == ["flops", "memory"]
    assert lines(comparison)[0] == ["memory 2,648,080 B -> 2,648,081 B (+1), allowed 0 %"]


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (
            {"flop": "exact"},
            "counts names 'flop' (perf marker); use flops, ops, collectives, "
            "collective_bytes, saved_activation_bytes, kernel_launches, collected_objects, "
            "allocator_retries, host_syncs, device_copies, device_copy_bytes, graph_breaks, "
            "recompiles, kept_bytes, memory",
        ),
        (
            {"flops": "some"},
            "counts has flops = 'some' (perf marker); use 'exact', 'off', or a ratio such as '2%'",
        ),
        (
            {"flops": None},
            "counts has flops = None (perf marker); use 'exact', 'off', or a ratio such as '2%'",
        ),
    ],
)
def test_a_wrong_slack_says_what_is_allowed(counts: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError) as refused:
        parse_slacks(counts)

    assert str(refused.value) == message


def test_an_accepted_increase_passes_up_to_its_ratio() -> None:
    before, ratio = cell(), {"flops": 1.1, "collectives": math.inf}

    def compare(**counts: int) -> CountComparison:
        return compare_counts(
            before, cell(**counts), accepted_ratio=lambda name: ratio.get(name, 1.0)
        )

    assert compare(flops=1_320_000_000, collectives=99).increases == ()
    assert len(compare(ops=178).increases) == 1
    assert [str(change) for change in compare(flops=1_320_000_001).increases] == [
        "flops 1.20 G -> 1.32 G (+10.0 %), allowed 0 %, accepted 10.0 %"
    ]


@pytest.mark.parametrize(
    ("base", "head", "is_told"),
    [((100, 90), (103, 90), True), ((100, 90), (103, 93), False), ((103, 90), (100, 90), False)],
)
def test_more_flops_of_the_same_model_are_told_to_be_recomputed(
    base: tuple[int, int], head: tuple[int, int], is_told: bool
) -> None:
    before, after = (cell(flops=flops, model_flops=model) for flops, model in (base, head))

    (change,) = compare_counts(before, after).changes

    told = "; model_flops is as before: the backward pass computes more anew"
    assert str(change).endswith(told) == is_told


def test_without_the_models_flops_nothing_is_told_of_recomputation() -> None:
    (change,) = compare_counts(cell(flops=100), cell(flops=103)).changes

    assert str(change) == "flops 100 -> 103 (+3.0 %), allowed 0 %"


def test_any_increase_from_zero_can_be_accepted() -> None:
    change = CountChange(name="collectives", base=0, head=3, slack=EXACT)

    assert change.kind == "increase"
    assert change._replace(accepted_ratio=math.inf).kind == "accepted"


@given(
    base=st.integers(0, 10**15),
    head=st.integers(0, 10**15),
    ratio=st.floats(0, 1),
    num_bytes=st.integers(0, 10**9),
)
def test_a_change_is_an_increase_or_a_decrease_or_within_its_slack(
    base: int, head: int, ratio: float, num_bytes: int
) -> None:
    slack = Slack(ratio=ratio, num_bytes=num_bytes)
    change = CountChange(name="memory", base=base, head=head, slack=slack)

    is_within = abs(head - base) <= max(ratio * base, num_bytes)

    assert (change.kind is None) == is_within
    assert change.kind != ("increase" if head < base else "decrease")
