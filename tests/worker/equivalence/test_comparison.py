from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from perfsuite.worker.equivalence.comparison import (
    Discrepancy,
    Errors,
    judge,
    judge_alignment,
    judge_losses,
    measure_buffer_errors,
    measure_errors,
    relative_error,
    step_length,
    total_norm,
)
from perfsuite.worker.equivalence.limits import BITWISE, Limit

LIMIT = Limit(value=0.01, formula="1 u", worst_parameter=0.1)
NAN, INF = math.nan, math.inf


def evidence(error: float, limit: float) -> Discrepancy:
    return Discrepancy(what="gradient", step=1, error=error, limit=limit, formula="1 u")


@pytest.mark.parametrize(
    ("error", "limit", "is_within", "severity"),
    [
        (0.0, 0.0, True, 0.0),
        (1e-30, 0.0, False, INF),
        (0.5, 1.0, True, 0.5),
        (1.0, 1.0, True, 1.0),
        (2.0, 0.5, False, 4.0),
        (NAN, 1.0, False, INF),
        (NAN, 0.0, False, INF),
        (INF, 1.0, False, INF),
        (INF, INF, False, INF),  # plain training overflows as well, which excuses nothing
    ],
)
def test_an_error_is_measured_in_units_of_its_limit(
    error: float, limit: float, is_within: bool, severity: float
) -> None:
    found = evidence(error, limit)

    assert found.is_within == is_within
    assert found.severity == severity


def test_relative_errors_are_those_of_the_hand() -> None:
    tested = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([[10.0]])}
    expected = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}

    errors = measure_errors(tested, expected)

    assert errors.total == pytest.approx(math.sqrt(16 + 36) / 5)
    assert errors.by_name == {"a": pytest.approx(4 / 3), "b": 1.5}
    assert errors.size == 5.0


def test_a_tensor_that_is_lost_counts_as_zeros() -> None:
    expected = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}

    errors = measure_errors({"a": torch.tensor([3.0])}, expected)

    assert errors == Errors(total=0.8, by_name={"a": 0.0, "b": 1.0}, size=5.0)
    assert errors == measure_errors({**expected, "b": torch.zeros(1)}, expected)


def test_a_tensor_that_should_not_be_there_counts_in_the_total() -> None:
    expected = {"a": torch.tensor([4.0])}

    errors = measure_errors({**expected, "b": torch.tensor([3.0])}, expected)

    assert errors == Errors(total=0.75, by_name={"a": 0.0}, size=4.0)


def test_zeros_in_place_of_nothing_are_no_error() -> None:
    errors = measure_errors({"a": torch.zeros(3)}, {})

    assert errors == Errors(total=0.0, by_name={}, size=0.0)


def test_anything_in_place_of_zeros_is_infinitely_wrong() -> None:
    errors = measure_errors({"a": torch.ones(3)}, {"a": torch.zeros(3)})

    assert errors == Errors(total=INF, by_name={}, size=0.0)


def test_nothing_equals_nothing() -> None:
    assert measure_errors({}, {}) == Errors(total=0.0, by_name={}, size=0.0)
    assert total_norm({}) == 0.0


@pytest.mark.parametrize(("share", "has_own_error"), [(2e-6, True), (5e-7, False)])
def test_a_tiny_parameter_has_no_error_of_its_own(share: float, has_own_error: bool) -> None:
    expected = {"weight": torch.tensor([1.0]), "bias": torch.tensor([share])}
    tested = {"weight": torch.tensor([1.0]), "bias": torch.tensor([3 * share])}

    errors = measure_errors(tested, expected)

    assert ("bias" in errors.by_name) == has_own_error
    assert errors.too_small == (() if has_own_error else ("bias",))
    assert errors.total == pytest.approx(2 * share, rel=1e-6)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_what_a_buffer_holds_on_both_sides_is_no_error(bad: float) -> None:
    mask, moved = (torch.tensor([[0.0, bad], [value, 0.0]]) for value in (2.0, 3.0))

    same = measure_buffer_errors({"mask": mask}, {"mask": mask.double()})
    other = measure_buffer_errors({"mask": moved}, {"mask": mask.double()})

    assert same == Errors(total=0.0, by_name={}, size=0.0)
    assert other == Errors(total=0.5, by_name={"mask": 0.5}, size=2.0)


def test_a_large_buffer_that_both_sides_hold_hides_no_error_of_another() -> None:
    mask, mean = torch.tensor([-1e9, math.nan]), torch.tensor([2.0])

    errors = measure_buffer_errors({"mask": mask, "mean": mean + 1}, {"mask": mask, "mean": mean})

    assert (errors.total, errors.by_name) == (0.5, {"mean": 0.5})


@pytest.mark.parametrize("other", [NAN, INF, 0.0])
def test_what_a_buffer_holds_on_one_side_alone_is_infinitely_wrong(other: float) -> None:
    mask, changed = torch.tensor([1.0, -INF]), torch.tensor([1.0, other])

    assert measure_buffer_errors({"mask": changed}, {"mask": mask}).total == INF


def test_the_imaginary_part_counts() -> None:
    expected = {"a": torch.tensor([3.0 + 4.0j])}
    tested = {"a": torch.tensor([3.0 - 4.0j])}

    assert measure_errors(tested, expected).total == 8.0 / 5.0
    (along,) = judge_alignment(tested, expected, 1, LIMIT)
    assert along.error == pytest.approx(32 / 25)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("side", ["tested", "expected", "both"])
def test_what_is_not_finite_is_infinitely_wrong(bad: float, side: str) -> None:
    good = torch.tensor([1.0, 2.0])
    broken = torch.tensor([1.0, bad])
    tested = broken if side in ("tested", "both") else good
    expected = broken if side in ("expected", "both") else good

    assert relative_error(tested, expected) == INF
    assert measure_errors({"a": tested}, {"a": expected}).total == INF
    found = judge("gradient", {"a": tested}, {"a": expected}, 1, LIMIT)
    assert not all(one.is_within for one in found)


def test_a_difference_below_float32_is_not_lost() -> None:
    tested = torch.tensor([1.0 + 2.0**-40], dtype=torch.float64)

    assert relative_error(tested, torch.tensor([1.0])) == 2.0**-40


def test_the_norm_of_large_float32_gradients_does_not_overflow() -> None:
    huge = torch.full((4,), 3e38)

    assert relative_error(huge / 2, huge) == pytest.approx(0.5, rel=1e-6)


def test_the_total_is_judged_and_the_first_parameter_over_its_limit() -> None:
    expected = {"a": torch.tensor([8.0]), "b": torch.tensor([4.0]), "c": torch.tensor([1.0])}
    tested = {"a": torch.tensor([8.0]), "b": torch.tensor([7.0]), "c": torch.tensor([5.0])}

    total, named = judge("gradient", tested, expected, 3, LIMIT)

    assert total == Discrepancy(what="gradient", step=3, error=5 / 9, limit=0.01, formula="1 u")
    assert named == Discrepancy(
        what="gradient",
        step=3,
        error=0.75,
        limit=0.1,
        formula="of one parameter, from 1 u",
        name="b",
    )


def test_the_worst_parameter_is_named_where_all_are_within() -> None:
    expected = {"a": torch.tensor([64.0]), "b": torch.tensor([1.0]), "c": torch.tensor([1.0])}
    tested = expected | {"b": torch.tensor([1.0 + 2.0**-4]), "c": torch.tensor([1.0 + 2.0**-5])}

    total, named = judge("gradient", tested, expected, 1, LIMIT)

    assert total.is_within
    assert named.is_within
    assert (named.name, named.error) == ("b", 2.0**-4)


def test_a_parameter_may_have_a_limit_of_its_own() -> None:
    expected = {"a": torch.tensor([1.0]), "b": torch.tensor([1.0])}
    tested = {"a": torch.tensor([1.0 + 2.0**-4]), "b": torch.tensor([1.5])}
    limits = {"a": 0.04, "b": 1.0}

    found = judge("gradient", tested, expected, 1, LIMIT, parameter_limit=limits.__getitem__)

    _, named = found

    assert (named.name, named.limit, named.is_within) == ("a", 0.04, False)


def test_only_the_total_is_judged_where_no_tensor_has_an_error() -> None:
    assert judge("buffer", {}, {}, 2, BITWISE) == [
        Discrepancy(what="buffer", step=2, error=0.0, limit=0.0, formula="bit for bit")
    ]


def test_one_flipped_bit_fails_where_equal_bits_are_due() -> None:
    expected = {"a": torch.tensor([1.0, 2.0])}
    tested = {"a": torch.tensor([1.0, 2.0 + 2.0**-22])}

    total, named = judge("gradient", tested, expected, 1, BITWISE)
    assert not total.is_within
    assert (named.name, named.is_within, named.formula) == ("a", False, "bit for bit")


@pytest.mark.parametrize(
    ("tested", "expected", "error"),
    [(2.2, 2.0, 0.1), (0.0, 0.0, 0.0), (1e-9, 0.0, INF), (NAN, 2.0, INF), (2.0, INF, INF)],
)
def test_losses_are_compared_relatively(tested: float, expected: float, error: float) -> None:
    (alone,) = judge_losses([tested], [expected], 2, LIMIT)
    _, of_rank_1 = judge_losses([2.0, tested], [2.0, expected], 2, LIMIT)

    assert alone == Discrepancy(
        what="loss", step=2, error=pytest.approx(error), limit=0.01, formula="1 u"
    )
    assert of_rank_1 == alone._replace(rank=1)


def test_along_the_gradient_the_limit_falls_with_the_root_of_its_elements() -> None:
    expected = {"a": torch.ones(3600), "b": torch.zeros(100)}
    tested = {"a": torch.full((3600,), 1.25), "b": torch.zeros(100)}

    (found,) = judge_alignment(tested, expected, 2, LIMIT)

    assert found == Discrepancy(
        what="gradient",
        step=2,
        error=pytest.approx(0.25),
        limit=pytest.approx(0.01 * 6 / 60),
        formula="along the gradient of 3600 elements, from 1 u",
    )


def test_few_elements_do_not_raise_the_limit() -> None:
    (found,) = judge_alignment({"a": torch.tensor([2.0])}, {"a": torch.tensor([2.0])}, 1, LIMIT)

    assert (found.error, found.limit) == (0.0, 0.01)


def test_a_large_element_counts_for_all_the_small_ones() -> None:
    gradient = torch.full((1000,), 1e-6)
    gradient[0] = 1.0

    (found,) = judge_alignment({"a": gradient}, {"a": gradient}, 1, LIMIT)

    assert found.formula == "along the gradient of 1 elements, from 1 u"


def test_equal_bits_and_a_gradient_of_zero_have_no_direction() -> None:
    ones, zeros = {"a": torch.ones(2)}, {"a": torch.zeros(2)}

    assert judge_alignment(ones, ones, 1, BITWISE) == []
    assert judge_alignment(ones, zeros, 1, LIMIT) == []
    assert judge_alignment({}, {}, 1, LIMIT) == []


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_direction_that_is_not_finite_is_flagged(bad: float) -> None:
    expected = {"a": torch.ones(2)}

    (found,) = judge_alignment({"a": torch.tensor([1.0, bad])}, expected, 1, LIMIT)

    assert not found.is_within


@pytest.mark.parametrize("size", [1e-90, 1e90])
def test_a_direction_needs_no_squares_that_float64_has_not(size: float) -> None:
    expected = {"a": torch.full((4,), size, dtype=torch.float64)}
    tested = {"a": expected["a"] * 1.5}

    (found,) = judge_alignment(tested, expected, 1, LIMIT)

    assert found.error == pytest.approx(0.5)
    assert found.formula == "along the gradient of 4 elements, from 1 u"


def test_a_wrong_scale_is_seen_where_bfloat16s_rounding_would_hide_it() -> None:
    generator = torch.Generator().manual_seed(2)
    expected = {"a": torch.randn(10_000, generator=generator)}
    limit = Limit(value=4 * 2.0**-7, formula="4 u", worst_parameter=1.0)
    rounded = {"a": expected["a"].bfloat16().float()}
    scaled = {"a": expected["a"] * (1 + 1 / 64)}

    assert all(one.is_within for one in judge_alignment(rounded, expected, 1, limit))
    assert measure_errors(scaled, expected).total < limit.value
    assert not any(one.is_within for one in judge_alignment(scaled, expected, 1, limit))


# Gradients as float32 has them: nothing, or of either sign and any size between 2**-100 and 2**100.
sizes = st.floats(2.0**-100, 2.0**100, width=32)
elements = st.just(0.0) | sizes | sizes.map(lambda size: -size)
tensors = st.lists(elements, min_size=1, max_size=6).map(torch.tensor)
gradients = st.dictionaries(st.sampled_from("abcd"), tensors, min_size=1).filter(
    lambda named: any(bool(tensor.any()) for tensor in named.values())
)


def everything_about(tested: dict[str, Tensor], expected: dict[str, Tensor]) -> list[Discrepancy]:
    return [
        *judge("gradient", tested, expected, 1, LIMIT),
        *judge("gradient", tested, expected, 1, BITWISE),
        *judge_alignment(tested, expected, 1, LIMIT),
    ]


@settings(derandomize=True, max_examples=100, deadline=None)
@given(gradients)
def test_equal_tensors_are_never_flagged(expected: dict[str, Tensor]) -> None:
    tested = {name: tensor.clone() for name, tensor in expected.items()}

    assert all(one.is_within for one in everything_about(tested, expected))


@settings(derandomize=True, max_examples=100, deadline=None)
@given(gradients, st.floats(0.02, 4).flatmap(lambda by: st.sampled_from([1 + by, 1 / (1 + by)])))
def test_an_error_of_scale_over_the_limit_is_always_seen(
    expected: dict[str, Tensor], scale: float
) -> None:
    tested = {name: tensor.double() * scale for name, tensor in expected.items()}

    total, *_ = judge("gradient", tested, expected, 1, LIMIT)

    assert total.error == pytest.approx(abs(scale - 1), rel=1e-9)
    assert not total.is_within


@settings(derandomize=True, max_examples=100, deadline=None)
@given(gradients, st.data())
def test_a_lost_gradient_is_always_seen(expected: dict[str, Tensor], data: st.DataObject) -> None:
    judged = measure_errors(expected, expected).by_name
    lost = data.draw(st.sampled_from(sorted(judged)))
    tested = {name: tensor for name, tensor in expected.items() if name != lost}

    total, named = judge("gradient", tested, expected, 1, LIMIT)

    assert (named.name, named.error, named.is_within) == (lost, 1.0, False)
    assert total.error > 0


@settings(derandomize=True, max_examples=100, deadline=None)
@given(gradients, st.floats(2.0**-20, 2.0**20))
def test_a_common_factor_changes_no_relative_error(
    expected: dict[str, Tensor], factor: float
) -> None:
    tested = {name: tensor.double() * 1.5 for name, tensor in expected.items()}

    one = measure_errors(tested, expected)
    other = measure_errors(
        {name: tensor * factor for name, tensor in tested.items()},
        {name: tensor.double() * factor for name, tensor in expected.items()},
    )

    assert other.total == pytest.approx(one.total, rel=1e-9)
    assert other.by_name == pytest.approx(one.by_name, rel=1e-9)


@pytest.mark.parametrize(("moved", "length"), [(1.5, 3.0), (0.0, 1.0)])
def test_a_step_is_as_long_as_it_moves_weights_and_one_where_it_moves_none(
    moved: float, length: float
) -> None:
    before = {"weight": torch.ones(4)}

    assert step_length({"weight": before["weight"] + moved}, before) == length
