"""Series of weak and strong scaling: which cells are one, and what each says of the others."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import cell
from msgspec import structs
from scaled_runs import trained

from perfsuite.report.rows import HistoryPoint, Row
from perfsuite.report.scaling.series import ScalingSeries, describe_scaling
from perfsuite.stats.intervals import Interval


def only(*rows: Row) -> ScalingSeries:
    (series,) = describe_scaling(rows).series
    return series


def cells_of(series: ScalingSeries) -> list[str]:
    return [cell.recipe.parallel for cell in series.cells]


# --- which cells are one series ---


def test_equal_batches_of_a_device_scale_weakly() -> None:
    series = only(trained("ddp:4"), trained("ddp:2"), trained("single"))

    assert (series.kind, series.mode, series.name) == ("weak", "ddp", "lenet, fp32")
    assert series.batch_name == "8 a device"
    assert cells_of(series) == ["single", "ddp:2", "ddp:4"]


def test_equal_batches_of_all_devices_scale_strongly() -> None:
    series = only(
        trained("single", batch_per_device=8),
        trained("ddp:2", batch_per_device=4, micro_batch_size=4),
        trained("ddp:4", batch_per_device=2, micro_batch_size=2),
    )

    assert (series.kind, series.batch_name) == ("strong", "8 in all")
    assert cells_of(series) == ["single", "ddp:2", "ddp:4"]


def test_one_process_is_the_base_of_both_kinds() -> None:
    found = describe_scaling(
        [trained("single"), trained("ddp:2"), trained("ddp:2", batch_per_device=4)]
    ).series

    assert [(one.kind, cells_of(one)) for one in found] == [
        ("weak", ["single", "ddp:2"]),
        ("strong", ["single", "ddp:2"]),
    ]


@pytest.mark.parametrize(("num_devices", "shown"), [(2, True), (1, False), (None, True)])
def test_replicas_that_follow_one_another_on_one_device_are_no_scaling(
    num_devices: int | None, shown: bool
) -> None:
    row = trained("dp:2")
    assert row.record is not None
    record = structs.replace(row.record, num_devices=num_devices)

    found = describe_scaling([trained("single"), dataclasses.replace(row, record=record)]).series

    assert bool(found) is shown


def test_a_batch_is_told_by_the_samples_and_not_by_what_the_recipe_names() -> None:
    series = only(trained("single"), trained("ddp:2", micro_batch_size=8))

    assert series.kind == "weak"


def test_modes_that_share_one_batch_scale_strongly() -> None:
    tp = cell("tp", (0.1, 0.1), samples_per_s=80.0, parallel="tp:2")

    series = only(trained("single"), tp)

    assert (series.kind, series.mode, series.batch_name) == ("strong", "tp", "8 in all")


def test_the_wrapper_of_one_rank_is_a_point_of_its_own() -> None:
    series = only(trained("single"), trained("ddp:1", (0.125, 0.125)), trained("ddp:2"))

    assert cells_of(series) == ["single", "ddp:1", "ddp:2"]
    assert series.cells[1].efficiency == Interval(
        centre=pytest.approx(0.8), low=pytest.approx(0.8), high=pytest.approx(0.8)
    )


def test_without_one_process_the_fewest_devices_are_the_base() -> None:
    series = only(trained("ddp:4", (0.2, 0.2)), trained("ddp:2"))

    assert cells_of(series) == ["ddp:2", "ddp:4"]
    assert series.cells[1].efficiency is not None
    assert series.cells[1].efficiency.centre == pytest.approx(0.5)


@pytest.mark.parametrize(
    "other",
    [
        trained("ddp:2", batch_per_device=3),
        trained("ddp:2", precision="bf16"),
        trained("ddp:2", num_workers=2),
        trained("ddp:2", grad_accumulation_steps=2),
        trained("ddp:2", workload="other"),
        trained("ddp:2", fingerprint="another"),
        trained("ddp:1"),
        cell("rate of another step", (0.1, 0.1), samples_per_s=123.4, parallel="ddp:2"),
        cell("no samples", (0.1, 0.1), samples_per_s=None, parallel="ddp:2"),
        Row(name="plain", step_time_s=0.1, rounds_s=(0.1, 0.1)),
    ],
    ids=lambda row: f"{row.name}-{row.recipe and row.recipe.precision}",
)
def test_cells_that_differ_in_more_are_no_series(other: Row) -> None:
    assert describe_scaling([trained("single"), other]).series == ()


@pytest.mark.parametrize("seconds", [0.0, 1e-300, 1e300])
def test_a_time_that_no_clock_told_is_in_no_series(seconds: float) -> None:
    broken = dataclasses.replace(trained("ddp:2"), rounds_s=(seconds, 0.1))

    assert describe_scaling([trained("single"), broken]).series == ()


# --- efficiency ---


def test_weak_efficiency_is_the_ratio_of_the_steps() -> None:
    series = only(trained("single", (0.1, 0.1)), trained("ddp:4", (0.16, 0.16)))

    assert series.cells[1].efficiency is not None
    assert series.cells[1].efficiency.centre == pytest.approx(0.625)


def test_strong_efficiency_is_the_speed_up_over_the_devices() -> None:
    series = only(trained("single", (0.1, 0.1)), trained("ddp:4", (0.04, 0.04), batch_per_device=2))

    assert series.cells[1].efficiency is not None
    assert series.cells[1].efficiency.centre == pytest.approx(2.5 / 4)


def test_one_launch_has_an_interval_over_its_rounds() -> None:
    series = only(trained("single", (0.1, 0.2)), trained("ddp:2", (0.2, 0.2, 0.2)))

    # Logs of base 2 against one another: variance 1/2 of 2 rounds, and 0; t(1) = 12.706.
    interval = series.cells[1].efficiency
    assert interval is not None
    assert math.log2(interval.centre) == pytest.approx(-0.5)
    assert math.log2(interval.high) == pytest.approx(-0.5 + 12.706 * 0.5, abs=1e-3)
    assert [(one.basis, len(one.samples_s)) for one in series.cells] == [
        ("rounds", 2),
        ("rounds", 3),
    ]


def test_several_tests_of_one_recipe_are_launches() -> None:
    rows = [
        trained(parallel, (time_s,) * 10, name=f"{parallel}-{time_s}")
        for parallel, times in (("single", (0.1, 0.2)), ("ddp:2", (0.2, 0.2)))
        for time_s in times
    ]

    series = only(*rows)

    assert [one.samples_s for one in series.cells] == [(0.1, 0.2), (0.2, 0.2)]
    assert {one.basis for one in series.cells} == {"launches"}


def point(
    step_time_s: float, commit: str | None = "abc", *, is_dirty: bool = False
) -> HistoryPoint:
    return HistoryPoint(
        when="day", commit=commit, step_time_s=step_time_s, is_accepted=False, is_dirty=is_dirty
    )


@pytest.mark.parametrize(
    ("history", "samples_s"),
    [
        ((point(0.3), point(0.1)), (0.3, 0.1)),
        ((point(0.3, "other"), point(0.2), point(0.1)), (0.2, 0.1)),
        ((point(0.3, is_dirty=True), point(0.2), point(0.1)), (0.2, 0.1)),
        # One launch, so its three rounds.
        ((point(0.3), point(0.1, is_dirty=True)), (0.1, 0.1, 0.1)),
        ((point(0.3, None), point(0.1, None)), (0.1, 0.1, 0.1)),
        ((point(0.0), point(0.1)), (0.1, 0.1, 0.1)),
    ],
)
def test_runs_of_one_clean_commit_are_launches(
    history: tuple[HistoryPoint, ...], samples_s: tuple[float, ...]
) -> None:
    row = dataclasses.replace(trained("ddp:2", (0.1, 0.1, 0.1)), history=history)

    series = only(trained("single"), row)

    assert series.cells[1].samples_s == samples_s


def test_a_cell_of_one_round_has_an_efficiency_and_no_interval() -> None:
    series = only(trained("single", (0.1,)), trained("ddp:2", (0.2,)))

    interval = series.cells[1].efficiency
    assert interval is not None
    assert interval.centre == pytest.approx(0.5)
    assert (interval.low, interval.high) == (0.0, math.inf)


@given(
    base_s=st.floats(1e-6, 1e3),
    efficiency=st.floats(0.01, 2.0),
    size=st.integers(2, 4096),
)
def test_a_planted_efficiency_is_found_again(base_s: float, efficiency: float, size: int) -> None:
    slower_s = base_s / efficiency

    series = only(trained("single", (base_s,) * 2), trained(f"ddp:{size}", (slower_s,) * 2))

    found = series.cells[1].efficiency
    assert found is not None
    assert found.centre == pytest.approx(efficiency)
    assert found.low <= found.centre <= found.high


# --- what the stages tell ---


def test_what_backward_takes_longer_than_forward_predicts_is_exposed() -> None:
    # Forward and backward are twice as slow on a shared core: 0.12 s of backward are no waiting.
    series = only(
        trained("single", (0.1, 0.1), forward_s=0.03, backward_s=0.06),
        trained("ddp:4", (0.25, 0.25), forward_s=0.06, backward_s=0.17),
    )

    assert series.cells[1].exposed_ratio == pytest.approx(0.05 / 0.25)
    base = series.cells[0]
    assert (base.efficiency, base.exposed_ratio) == (None, None)


@pytest.mark.parametrize("parallel", ["fsdp:2", "tp:2", "pp:2"])
def test_where_forward_communicates_it_tells_nothing(parallel: str) -> None:
    size = 2 if parallel == "fsdp:2" else 1
    other = cell("other", (0.1, 0.1), samples_per_s=80.0 * size, parallel=parallel)

    series = only(trained("single"), other)

    assert series.cells[1].exposed_ratio is None


@pytest.mark.parametrize("seconds", [None, math.nan, math.inf, -1.0])
def test_a_stage_that_is_no_time_tells_nothing(seconds: float | None) -> None:
    row = trained("ddp:2")
    assert row.record is not None
    stages_s = structs.replace(row.record.stages_s, forward=seconds)
    record = structs.replace(row.record, stages_s=stages_s)

    series = only(trained("single"), dataclasses.replace(row, record=record))

    assert series.cells[1].exposed_ratio is None


# --- cores ---


@pytest.mark.parametrize(
    ("parallel", "num_workers", "num_cores", "shares_cores"),
    [
        ("ddp:2", 0, 2, False),
        ("ddp:4", 0, 2, True),
        ("ddp:2", 1, 2, True),
        ("ddp:2", 1, 4, False),
        ("ddp:4", 0, None, False),
    ],
)
def test_more_processes_than_cores_share_them(
    parallel: str, num_workers: int, num_cores: int | None, *, shares_cores: bool
) -> None:
    fields = {"num_workers": num_workers, "num_cores": num_cores}

    series = only(trained("single", **fields), trained(parallel, **fields))

    assert series.cells[1].shares_cores is shares_cores


def test_on_gpus_no_rank_shares_cores() -> None:
    rows = []
    for row in (trained("ddp:2", num_cores=1), trained("ddp:4", num_cores=1)):
        assert row.record is not None
        record = structs.replace(row.record, device="cuda")
        rows.append(dataclasses.replace(row, record=record))

    assert [one.shares_cores for one in only(*rows).cells] == [False, False]
