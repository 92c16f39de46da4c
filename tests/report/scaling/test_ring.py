"""The cost model of a ring: what it finds again, what it cannot know, and what it refuses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.report.scaling.cost_model import (
    AllReduce,
    HeldOut,
    RingModel,
    fit_ring,
    hold_out,
    prediction_ratios,
)

SIZES = (4 * 2**10, 256 * 2**10, 2**20, 16 * 2**20, 64 * 2**20)
latencies = st.floats(min_value=1e-7, max_value=1e-2)
bandwidths = st.floats(min_value=1e-12, max_value=1e-8)
world_sizes = st.sets(st.integers(min_value=2, max_value=2048), min_size=1, max_size=4)


def measured(
    model: RingModel, ranks: set[int] | tuple[int, ...], noise: list[float] | None = None
) -> list[AllReduce]:
    """What a ring of that model would take, times the noise of each measurement in turn."""
    cases = [(world_size, size) for world_size in sorted(ranks) for size in SIZES]
    factors = noise or [1.0] * len(cases)
    return [
        AllReduce(
            world_size=world_size,
            num_bytes=size,
            time_s=model.time_s(world_size, size) * factors[number % len(factors)],
        )
        for number, (world_size, size) in enumerate(cases)
    ]


def reduction(num_bytes: int, time_s: float, world_size: int = 2) -> AllReduce:
    return AllReduce(world_size=world_size, num_bytes=num_bytes, time_s=time_s)


def test_four_ranks_take_six_steps_of_a_quarter_of_the_bytes() -> None:
    model = RingModel(latency_s=0.5, per_byte_s=0.25)

    # 6 x 0.5 s, and 6 x 40 / 4 bytes x 0.25 s.
    assert model.time_s(4, 40) == 3 + 15
    # Two sums of 20 bytes each: the bytes are those of both together.
    assert model.time_s(4, 40, num_collectives=2) == 6 + 15


def test_two_measurements_of_two_ranks_are_two_equations() -> None:
    # 2 alpha + 10 beta = 3 and 2 alpha + 50 beta = 7.
    model = fit_ring([reduction(10, 3.0), reduction(50, 7.0)])

    assert isinstance(model, RingModel)
    assert model.latency_s == pytest.approx(1.0)
    assert model.per_byte_s == pytest.approx(0.1)


@given(latency_s=latencies, per_byte_s=bandwidths, ranks=world_sizes)
def test_planted_parameters_are_found_again(
    latency_s: float, per_byte_s: float, ranks: set[int]
) -> None:
    planted = RingModel(latency_s=latency_s, per_byte_s=per_byte_s)

    found = fit_ring(measured(planted, ranks))

    # 1e-9, since the smaller of both terms may be 1e-6 of a time that is rounded to 1e-16.
    assert isinstance(found, RingModel)
    for world_size in (8, 64, 1024):
        for size in SIZES:
            assert found.time_s(world_size, size) == pytest.approx(
                planted.time_s(world_size, size), rel=1e-9
            )


@given(
    noise=st.lists(st.floats(min_value=0.9, max_value=1 / 0.9), min_size=10, max_size=10),
    ranks=st.sets(st.integers(min_value=2, max_value=64), min_size=2, max_size=2),
)
def test_noise_moves_the_parameters_by_no_more_than_a_few_times_itself(
    noise: list[float], ranks: set[int]
) -> None:
    planted = RingModel(latency_s=1e-3, per_byte_s=1e-9)

    found = fit_ring(measured(planted, ranks, noise))

    assert isinstance(found, RingModel)
    assert 0.7 < found.latency_s / planted.latency_s < 1.4
    assert 0.7 < found.per_byte_s / planted.per_byte_s < 1.4


@given(latency_s=latencies, per_byte_s=bandwidths, factor=st.floats(0.1, 10.0))
def test_times_of_another_unit_have_parameters_of_it(
    latency_s: float, per_byte_s: float, factor: float
) -> None:
    one = RingModel(latency_s=latency_s, per_byte_s=per_byte_s)

    found = fit_ring(measured(one, (2, 4), [factor] * 10))

    assert isinstance(found, RingModel)
    expected = factor * one.time_s(8, SIZES[-1])
    assert found.time_s(8, SIZES[-1]) == pytest.approx(expected, rel=1e-9)


@given(order=st.permutations(range(10)))
def test_the_order_of_measurements_does_not_matter(order: list[int]) -> None:
    given_ones = measured(RingModel(latency_s=1e-3, per_byte_s=1e-9), (2, 4), [1.0, 1.1, 0.9])

    found = fit_ring([given_ones[place] for place in order])

    expected = fit_ring(given_ones)
    assert isinstance(found, RingModel)
    assert isinstance(expected, RingModel)
    assert found.latency_s == pytest.approx(expected.latency_s)
    assert found.per_byte_s == pytest.approx(expected.per_byte_s)


# --- what gives no parameters ---

TOO_FEW = "all_reduce was measured at {} message size{}; parameters need 2 or more"


@pytest.mark.parametrize(
    ("given_ones", "reason"),
    [
        ([], TOO_FEW.format(0, "s")),
        ([reduction(2**20, 0.001)], TOO_FEW.format(1, "")),
        ([reduction(2**20, 0.001), reduction(2**20, 0.002, 4)], TOO_FEW.format(1, "")),
        ([reduction(0, 0.001), reduction(0, 0.001)], TOO_FEW.format(1, "")),
        (
            [reduction(2**20, 0.001), reduction(3 * 2**20, 0.003)],
            "all_reduce was measured from 1.00 MiB to 3.00 MiB; to separate latency from "
            "bandwidth the largest message must be 4 times the smallest",
        ),
        (
            [reduction(2**20, 0.001), reduction(4 * 2**20, 0.005)],
            "the times are in proportion to the bytes, so they show no latency; measure messages "
            "below 1.00 MiB",
        ),
        (
            [reduction(2**10, 0.002), reduction(2**12, 0.001)],
            "the times do not grow with the bytes, so they show no bandwidth; measure messages "
            "above 4.00 KiB",
        ),
    ],
)
def test_measurements_that_do_not_suffice_give_a_reason_and_no_parameters(
    given_ones: list[AllReduce], reason: str
) -> None:
    assert fit_ring(given_ones) == reason


@given(
    st.lists(
        st.builds(
            AllReduce,
            world_size=st.integers(2, 10**18),
            num_bytes=st.integers(0, 2**63 - 1),
            time_s=st.floats(1e-9, 1e6),
        ),
        max_size=6,
    )
)
def test_any_numbers_end_in_positive_parameters_or_a_reason(anything: list[AllReduce]) -> None:
    found = fit_ring(anything)

    if isinstance(found, str):
        assert found
    else:
        assert 0 < found.latency_s < math.inf
        assert 0 < found.per_byte_s < math.inf
        assert all(ratio > 0 for ratio in prediction_ratios(found, anything))


# --- held out ---


@given(latency_s=latencies, per_byte_s=bandwidths)
def test_a_ring_predicts_what_was_left_out_of_it(latency_s: float, per_byte_s: float) -> None:
    exact = measured(RingModel(latency_s=latency_s, per_byte_s=per_byte_s), (2, 4, 8))

    found = list(hold_out(exact))

    assert [(one.axis, one.value) for one in found] == [
        *(("world_size", world_size) for world_size in (2, 4, 8)),
        *(("num_bytes", size) for size in SIZES),
    ]
    assert [len(one.ratios) for one in found] == [5, 5, 5, 3, 3, 3, 3, 3]
    for one in found:
        assert one.ratios == pytest.approx([1.0] * len(one.ratios), rel=1e-6)


def test_what_does_not_follow_the_ring_is_seen_only_when_it_is_left_out() -> None:
    model = RingModel(latency_s=1e-3, per_byte_s=1e-9)
    slower = measured(model, (4,), [2.0])

    found = hold_out([*measured(model, (2,)), *slower])

    by_value = {one.value: one for one in found if one.axis == "world_size"}
    assert by_value[4].ratios == pytest.approx([0.5] * 5)
    assert by_value[2].ratios == pytest.approx([2.0] * 5)


def test_a_value_that_all_share_cannot_be_left_out() -> None:
    found = hold_out(measured(RingModel(latency_s=1e-3, per_byte_s=1e-9), (2,)))

    assert {one.axis for one in found} == {"num_bytes"}


def test_where_the_rest_gives_no_parameters_the_reason_is_kept() -> None:
    found = tuple(hold_out([reduction(2**10, 0.001), reduction(2**20, 0.002)]))

    assert found == tuple(
        HeldOut(axis="num_bytes", value=size, ratios=(), reason=TOO_FEW.format(1, ""))
        for size in (2**10, 2**20)
    )


def test_parameters_are_shown_with_their_units() -> None:
    model = RingModel(latency_s=2.5e-5, per_byte_s=5e-11)

    assert str(model) == "alpha 25.0 us a step, beta 50.0 ms a GB (20 GB/s)"
