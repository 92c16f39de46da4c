"""Advice: what each rule says and on which evidence, and that without evidence it says nothing."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from made_up_runs import STAGES, cell

from perfsuite.report.advice import advise, is_slower
from perfsuite.report.rows import Row

SLOW_LOAD = {"load": 0.007, "forward": 0.0005, "backward": 0.0005, "optimizer": 0.00025}


def said(*rows: Row) -> list[tuple[str, str]]:
    return [(advice.text, advice.evidence) for advice in advise(rows)]


# --- beyond the noise ---


@pytest.mark.parametrize(
    ("slow_s", "fast_s", "slower"),
    [
        ((1.2,) * 4, (1.0,) * 4, True),
        # Two launches differ by 15 %.
        ((1.14,) * 4, (1.0,) * 4, False),
        ((1.0,) * 4, (1.2,) * 4, False),
        # Median 1.3, sd 1.4826 * 0.2, standard error 1.2533 * 0.2965 / 2 = 0.186; three are 0.56.
        ((1.1, 1.1, 1.5, 1.5), (1.0,) * 4, False),
        # One round has no spread.
        ((9.0,), (1.0,) * 4, False),
        ((9.0,) * 4, (0.0,) * 4, False),
    ],
)
def test_slower_is_slower_beyond_launches_and_rounds(
    slow_s: tuple[float, ...], fast_s: tuple[float, ...], slower: bool
) -> None:
    assert is_slower(cell("slow", slow_s), cell("fast", fast_s)) is slower


# --- ranks ---


@pytest.mark.parametrize(
    ("rounds_s", "told"),
    [
        ((0.010,) * 10, True),
        # Rounds differ by more than the ranks: 1.4826 times 3 ms.
        ((0.007, 0.013) * 5, False),
    ],
)
def test_a_rank_that_delays_the_others_is_told_where_rounds_differ_by_less(
    rounds_s: tuple[float, ...], told: bool
) -> None:
    quick = cell("two ranks", rounds_s)
    assert quick.record is not None
    ranks = msgspec.structs.replace(quick.record, rank_stages_s={"load": (0.001, 0.004)})
    row = dataclasses.replace(quick, record=ranks)

    slow = "rank 1 takes 4.00 ms in load, the median rank 1.00 ms"
    assert row.slow_rank == (slow if told else None)
    assert any(slow in text for text, _ in said(row)) == told


# --- loading ---


def test_a_cell_bound_by_loading_is_told_which_number_of_workers_wins() -> None:
    slow = cell("w0", (0.00825,) * 10, stages_s=SLOW_LOAD)
    fast = cell("w2", (0.002,) * 10, num_workers=2)

    assert said(slow, fast) == [
        (
            "lenet, single, fp32 with num_workers=0 is bound by loading: 5.6x the compute; "
            "num_workers=2 wins here",
            "loading is 84.8 % of the step; 8.25 ms a step with 0, 2.00 ms a step with 2",
        )
    ]


@pytest.mark.parametrize(
    "other",
    [
        cell("not measured otherwise", (0.00825,) * 10, stages_s=SLOW_LOAD),
        cell("within the noise", (0.0080,) * 10, num_workers=2),
        cell("another workload", (0.002,) * 10, num_workers=2, workload="resnet"),
        cell("another precision", (0.00825,) * 10, num_workers=2, precision="amp-bf16"),
        cell("another machine", (0.002,) * 10, num_workers=2, fingerprint="ffff"),
    ],
    ids=lambda row: row.name,
)
def test_without_a_faster_measured_equal_there_is_no_advice(other: Row) -> None:
    slow = cell("w0", (0.00825,) * 10, stages_s=SLOW_LOAD)

    assert said(slow, other) == []


def test_loading_of_half_the_step_does_not_bind() -> None:
    half = {"load": 0.002, "forward": 0.002}
    slow = cell("w0", (0.008,) * 10, stages_s=half)

    assert said(slow, cell("w2", (0.002,) * 10, num_workers=2, stages_s=STAGES)) == []


# --- scaling, precision, checkpointing, noise ---


def test_devices_that_make_training_slower_are_named_with_their_efficiency() -> None:
    rows = [
        cell("1", samples_per_s=1000.0),
        cell("2", samples_per_s=800.0, parallel="ddp:2"),
        cell("4", samples_per_s=3000.0, parallel="ddp:4"),
    ]

    assert said(*rows) == [
        (
            "lenet, fp32, ddp over 2 is slower than over 1 here",
            "800 samples/s over 2, 1000 over 1, an efficiency of 40.0 %",
        )
    ]


def test_devices_at_another_number_of_workers_are_not_compared() -> None:
    rows = [
        cell("1", samples_per_s=1000.0),
        cell("2", samples_per_s=500.0, parallel="ddp:2", num_workers=4),
    ]

    assert said(*rows) == []


def test_low_precision_is_told_with_its_memory() -> None:
    rows = [
        cell("a", (0.010,) * 10, peak_bytes=2 * 2**20),
        cell("b", (0.015,) * 10, peak_bytes=2**20, precision="amp-bf16"),
        cell("c", (0.005,) * 10, precision="bf16"),
    ]

    assert said(*rows) == [
        (
            "lenet, single: amp-bf16 is slower than fp32 here, with -50.0 % peak memory (1.00 MiB)",
            "15.0 ms a step with amp-bf16, 10.0 ms a step with fp32 (+50.0 %)",
        ),
        (
            "lenet, single: bf16 is faster than fp32 here",
            "5.00 ms a step with bf16, 10.0 ms a step with fp32 (-50.0 %)",
        ),
    ]


@pytest.mark.parametrize(
    ("peak_bytes", "text"),
    [
        (
            2**20,
            "lenet, single, fp32: checkpointing every-block trades time for memory, with "
            "-50.0 % peak memory (1.00 MiB)",
        ),
        (
            2 * 2**20,
            "lenet, single, fp32: checkpointing every-block saves no memory here, with "
            "+0.0 % peak memory (2.00 MiB)",
        ),
    ],
)
def test_checkpointing_is_weighed_against_its_memory(peak_bytes: int, text: str) -> None:
    rows = [
        cell("a", (0.010,) * 10, peak_bytes=2 * 2**20),
        cell("b", (0.013,) * 10, peak_bytes=peak_bytes, checkpointing="every-block"),
    ]

    assert said(*rows) == [
        (text, "13.0 ms a step with every-block, 10.0 ms a step with none (+30.0 %)")
    ]


def test_checkpointing_without_known_memory_is_not_weighed() -> None:
    rows = [cell("a", (0.010,) * 10), cell("b", (0.013,) * 10, checkpointing="every-block")]

    assert said(*rows) == []


def test_noisy_rounds_are_told_once_for_all_cells() -> None:
    # Medians of 2: deviations of 1 give a robust sd of 1.4826.
    noisy = Row(name="b", step_time_s=2.0, rounds_s=(1.0, 2.0, 3.0, 1.0, 3.0))

    assert said(Row(name="a", step_time_s=1.0, rounds_s=(1.0,) * 5), noisy) == [
        (
            "the rounds of 1 of 2 cells are noisy; perfsuite doctor says what disturbs this "
            "machine",
            "the widest spread is 74.1 %, of b",
        )
    ]
