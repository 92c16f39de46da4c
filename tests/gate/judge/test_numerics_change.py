"""What changed in the mathematics, told from the first losses of made-up launches."""

from __future__ import annotations

from typing import Any

import pytest

from perfsuite.gate.arms.arm import CellRun
from perfsuite.gate.judge.numerics_change import describe_numerics_change

LOSSES = [0.9, 0.8137, 0.7, 0.6, 0.5]
# 16 times the distance of float32, relatively: the most that rounding explains in one process.
MOST = 16 * 2.0**-23
NOT_JUDGED = ": not judged, as rounding may grow so far"


def run(*losses: float, precision: str = "fp32", **record: Any) -> CellRun:
    recipe = {"precision": precision, "grad_accumulation_steps": record.pop("steps", 1)}
    return CellRun(
        outcome="passed",
        reason=None,
        rounds_s=(0.001,),
        record={"losses": list(losses), "recipe": recipe, "world_size": 1, "other": 1} | record,
    )


def told(*pairs: tuple[CellRun, CellRun]) -> str | None:
    return describe_numerics_change([base for base, _ in pairs], [head for _, head in pairs])


def changed_at(step: int, loss: float) -> CellRun:
    return run(*LOSSES[: step - 1], loss, *LOSSES[step:])


def test_without_a_pair_nothing_is_told() -> None:
    assert told() is None
    assert describe_numerics_change([run(*LOSSES)], []) is None


def test_equal_losses_are_the_same_bits_whatever_other_launches_drew() -> None:
    assert told((run(*LOSSES), run(*LOSSES))) == "same bits"
    assert told((run(0.5), run(0.5)), (run(0.6), run(0.6))) == "same bits"
    assert told((run(float("nan")), run(float("nan")))) == "same bits"


def test_a_later_loss_tells_what_the_first_ones_hide() -> None:
    first = [*enumerate(LOSSES, 1), (16, 0.4)]
    before = run(*LOSSES, losses_by_step=[*first, (32, 0.3), (40, 0.2)])
    longer = run(*LOSSES, losses_by_step=[*first, (32, 0.3), (64, 0.1), (70, 0.1)])
    after = run(*LOSSES, losses_by_step=[*first, (32, 0.31), (40, 0.21)])

    assert told((before, before)) == "same bits"
    assert told((before, longer)) == "same bits"  # as far as both went
    assert told(*[(before, after)] * 2) == "changed: loss at step 32 0.3 -> 0.31"
    assert told((before, after), (after, after)) == (
        "cannot be told: launches of the base differ among themselves, at step 32 by a loss of 0.3 "
        "and 0.31; seed what it draws, and clear what it saves"
    )


def test_losses_that_are_not_told_in_each_step_are_compared_by_step() -> None:
    seldom = run(0.9, 0.8, losses_by_step=[(10, 0.9), (20, 0.8)])
    often = run(1.0, 0.9, 0.8, losses_by_step=[(5, 1.0), (10, 0.9), (20, 0.8)])
    elsewhere = run(1.0, 0.9, losses_by_step=[(5, 1.0), (15, 0.9)])

    assert told((seldom, often)) == "same bits"
    assert told((seldom, run(0.9, 0.8))) == "cannot be told: no step has told a loss of both"
    assert told((seldom, elsewhere)) == "cannot be told: no step has told a loss of both"


def test_the_last_weights_tell_what_the_first_ones_hide() -> None:
    one, other = weights([2.0, 4.0], [2.0, 4.0]), weights([2.0, 4.0], [2.0, 6.0])
    base, head = (run(weights=kept, weights_steps=[1, 72]) for kept in (one, other))
    frozen = run(weights=weights([2.0, 4.0], [2.0]), weights_steps=[1, 72])

    assert str(told(*[(base, base)] * 2)).startswith("same bits, but a step moves")
    assert told(*[(base, head)] * 2) == "changed: size of parameter 2 at step 72 4 -> 6"
    moving = weighed(*DIGESTS[:2])
    assert told((moving, moving)) == "same bits"
    assert told(*[(base, frozen)] * 2) == "changed: size of parameter 2 at step 72 4 -> 0"


def weights(*steps: list[float]) -> list[list[list[float]]]:
    """Return digests of parameters of as many elements as each number says, step by step."""
    return [[[int(size), size, size] for size in step] for step in steps]


def test_parameters_in_the_hands_of_other_optimizers_are_no_change() -> None:
    # After the first step only the first of three optimizers has stepped.
    three = weights([6.0], [6.0, 4.0, 2.0])
    one = weights([2.0, 4.0, 6.0], [2.0, 4.0, 6.0])
    wider = weights([2.0, 4.0, 8.0], [2.0, 4.0, 8.0])

    def judged(after: Any, *losses: float) -> str | None:
        base, head = run(*losses, weights=three), run(*losses, weights=after)
        return told((base, head), (base, head))

    regrouped = "optimizers hold the parameters in another order, or step at other times"
    assert judged(one, *LOSSES) == f"same bits, but {regrouped}"
    rounded = run(LOSSES[0] * (1 + MOST / 4), *LOSSES[1:], weights=one)
    assert told((run(*LOSSES, weights=three), rounded)) == f"rounding, but {regrouped}"
    assert judged(one) == (
        "cannot be told: optimizers hold the parameters in another order, or step at other times, "
        "and no loss of the base and head is known"
    )
    assert str(judged(wider, *LOSSES)).startswith("changed: size of parameter")


def test_what_rounding_explains_is_rounding() -> None:
    base = run(*LOSSES)
    near = changed_at(2, 0.8137 * (1 + 0.99 * MOST))

    assert told((base, base), (base, near)) == "rounding"
    assert told((base, near), (near, base)) == "rounding"


@pytest.mark.parametrize(
    ("record", "times"),
    [
        ({"precision": "fp64"}, 2.0**-29),
        ({"precision": "amp-bf16"}, 2.0**16),
        ({"world_size": 4}, 2.0),
        ({"steps": 9}, 3.0),
    ],
)
def test_rounding_grows_with_the_arithmetic_the_ranks_and_the_accumulation(
    record: dict[str, Any], times: float
) -> None:
    base = run(1.0, **record)
    most = min(MOST * times, 0.9)
    heads = [run(1.0 + factor * most, **record) for factor in (0.99, 1.2)]

    assert told((base, heads[0]), (base, heads[0])) == "rounding"
    if most < 0.1:
        changed = told((base, heads[1]), (base, heads[1]))
        assert changed is not None
        assert changed.startswith("changed: loss at step 1 1 -> 1.0")


def test_a_change_beyond_rounding_is_told_with_its_first_step_and_both_losses() -> None:
    base, head = run(*LOSSES), changed_at(2, 0.7885)

    assert told((base, head), (base, head)) == "changed: loss at step 2 0.8137 -> 0.7885"
    late = changed_at(5, 0.4)
    assert told((base, late), (base, late)) == "changed: loss at step 5 0.5 -> 0.4"
    broken = changed_at(1, float("nan"))
    assert told((base, broken), (base, broken)) == "changed: loss at step 1 0.9 -> nan"


def test_so_many_digits_are_told_that_the_losses_differ() -> None:
    base, head = run(0.5), run(0.500004)

    assert told((base, head), (base, head)) == "changed: loss at step 1 0.5 -> 0.500004"


def test_rounding_that_training_has_multiplied_is_no_change_of_the_mathematics() -> None:
    base = run(*LOSSES)
    rounded = run(0.9 * (1 + MOST / 2), *LOSSES[1:3], 0.6001, 0.51)
    at_once = run(0.9 * (1 + MOST / 2), *LOSSES[1:2], 0.7001, 0.6, 0.5)

    assert told((base, rounded), (base, rounded)) == (
        f"rounding at first, and later loss at step 5 0.5 -> 0.51{NOT_JUDGED}"
    )
    assert told((base, at_once), (base, at_once)) == "changed: loss at step 3 0.7 -> 0.7001"


def test_where_the_base_does_not_repeat_itself_nothing_can_be_told() -> None:
    assert told((run(0.9), run(0.8)), (run(0.7), run(0.6))) == (
        "cannot be told: launches of the base differ among themselves, at step 1 by a loss of 0.9 "
        "and 0.7; seed what it draws, and clear what it saves"
    )
    assert told((run(0.9), run(0.8))) == (
        "cannot be told: one launch of the base does not show that the next computes the same"
    )


def test_without_losses_nothing_can_be_told() -> None:
    plain = CellRun(outcome="passed", reason=None, rounds_s=(0.001,), record=None)

    assert told((plain, plain)) == "cannot be told: no loss of the base and head is known"
    assert told((run(0.5), run())) == "cannot be told: no loss of head is known"


def test_a_record_of_another_form_tells_nothing() -> None:
    other = run(0.5, precision="fp3")

    assert told((run(0.5), other)) == "cannot be told: a record has another form: 'fp3'"


# Of three steps: a parameter of two elements and one of a single element.
DIGESTS = [[[2, 3.0, 5.0], [1, 2.0, 4.0]], [[2, 2.0, 2.5], [1, 1.5, 2.25]], [[2, 1.0, 1.5]]]


def weighed(*steps: Any, losses: tuple[float, ...] = ()) -> CellRun:
    return run(*losses, weights=[*steps], recipe=None)


def moved(step: int, place: int, **changes: float) -> CellRun:
    """Weights of which one parameter's digest is others."""
    steps = [[[*digest] for digest in of_step] for of_step in DIGESTS]
    for name, factor in changes.items():
        steps[step - 1][place - 1][{"total": 1, "squares": 2}[name]] *= factor
    return weighed(*steps)


def test_weights_tell_what_changed_where_no_loss_is_known() -> None:
    base = weighed(*DIGESTS)
    # |a - b| <= L |a|: sums differ by at most L sqrt(n squares), squares by at most 2 L squares.
    sums = moved(2, 1, total=1 + 0.99 * MOST * (2 * 2.5) ** 0.5 / 2.0)
    squares = moved(1, 2, squares=1 + 0.99 * 2 * MOST)

    assert told((base, base)) == "same bits"
    assert told((base, sums), (base, squares)) == "rounding"
    for head, text in (
        (moved(1, 2, squares=1.25), "sum of squares of parameter 2 at step 1 4 -> 5"),
        (moved(2, 1, total=1.5), "sum of parameter 1 at step 2 2 -> 3"),
        (weighed(DIGESTS[0][:1]), "size of parameter 2 at step 1 1 -> 0"),
    ):
        assert told((base, head), (base, head)) == f"changed: {text}"


def test_weights_that_hardly_move_show_no_more_than_that() -> None:
    def train(size: int, *, is_nudged: bool = False, last: float = 5.0) -> CellRun:
        """Steps of one parameter that move it less than rounding does, and of another."""
        first = [5.0 * (1 + (step + is_nudged) * MOST / 8) for step in range(3)]
        steps = [[[size, 3.0, one], [2, 1.0 + n, 4.0]] for n, one in enumerate(first)]
        return run(
            weights=[*steps, [[size, 3.0, last], [2, 9.0, 4.0]]], weights_steps=[1, 2, 3, 72]
        )

    base, unmoved = train(30), "rounding, but a step moves nearly all weights by too little to tell"
    assert told((base, train(30))) == "same bits"  # each bit of a step's movement would show
    still = run(*LOSSES, weights=weights(*[[30.0, 2.0]] * 3))
    assert told((still, still)) == (
        "same bits, but a step moves nearly all weights by too little to tell"
    )
    assert told((base, train(30, is_nudged=True))) == unmoved
    assert told((base, train(30, is_nudged=True, last=6.0))) == (
        f"{unmoved}, and later sum of squares of parameter 1 at step 72 5 -> 6"
    )
    assert told((train(18), train(18, is_nudged=True))) == "rounding"  # a tenth of them moves


def test_elements_that_rounding_has_moved_are_rounding_as_far_as_that_goes() -> None:
    """m in all: sums differ by at most 2 m beyond the limit, squares by at most 4 m |a|."""
    base = weighed([[2, 3.0, 4.0]])
    for place, most in ((1, 2 * 0.01), (2, 4 * 0.01 * 2.0)):
        for factor, expected in ((0.9, "rounding"), (1.2, "changed: sum")):
            digest = [2, 3.0, 4.0, 0.01]
            digest[place] += factor * most
            head = weighed([digest])

            assert str(told((base, head), (base, head))).startswith(expected)
    # The base's perfsuite may not know it.
    assert told((base, weighed([[2, 3.0, 4.0, 0.01]]))) == "same bits"


def test_a_parameter_that_has_a_gradient_in_fewer_steps_is_less_trained() -> None:
    trained, held = (weighed([[2, 3.0, 5.0, 0.0, 1], [1, 2.0, 4.0, 0.0, n]]) for n in (1, 0))
    older = weighed([[2, 3.0, 5.0], [1, 2.0, 4.0]])

    less = "changed: number of gradients of parameter 2 at step 1 1 -> 0"
    assert told(*[(trained, held)] * 2) == less
    # More are no less training; the base's perfsuite may not know them.
    assert told((held, trained)) == told((older, trained)) == "same bits"


def test_a_mean_moves_as_far_as_rounding_may_move_the_bias_before_it() -> None:
    """m of a bias, or for each of the buffer's elements as much as for one of any weight's."""
    first = [[8, 3.0, 5.0, 0.001], [4, 2.0, 4.0, 0.2]]
    least = min(0.2 + 0.001, 0.2 / 4 * 6)
    for size, most in ((6, 2 * least), (2, 2 * 0.2 / 4 * 2)):
        for factor, expected in ((0.9, "rounding"), (1.1, "changed: sum of buffer 1 at step 3")):
            base, head = (
                run(weights=[first], buffers=[[3, [[size, total, 900.0]]]], recipe=None)
                for total in (1.0, 1.0 + factor * most)
            )
            text = str(told((base, head), (base, head)))
            assert text.startswith(expected), (size, factor, text)


def test_a_size_is_a_whole_number() -> None:
    base, head = (weighed([[size, 3.0, 5.0]]) for size in (4096, 12288))

    assert told(*[(base, head)] * 2) == "changed: size of parameter 1 at step 1 4,096 -> 12,288"


def test_the_first_step_at_which_a_change_shows_is_told_of_losses_and_weights() -> None:
    base = weighed(*DIGESTS, losses=(0.9, 0.8))
    later = weighed(DIGESTS[0], *DIGESTS[:2], losses=(0.9, 0.7))
    sooner = weighed(*DIGESTS[1:], losses=(0.9, 0.7))

    # The loss of a step is computed before its weights change.
    assert told((base, later), (base, later)) == "changed: loss at step 2 0.8 -> 0.7"
    assert told((base, sooner), (base, sooner)) == (
        "changed: sum of squares of parameter 1 at step 1 5 -> 2.5"
    )
    assert told((base, run(0.9, 0.8)), (base, run(0.9, 0.8))) == "same bits"
    assert told((base, sooner), (sooner, base)) == (
        "cannot be told: launches of the base differ among themselves, at step 1 by a sum of "
        "squares of parameter 1 of 5 and 2.5; seed what it draws, and clear what it saves"
    )


def test_what_rounding_may_have_grown_to_is_told_beside_it() -> None:
    rounded = LOSSES[1] * (1 + MOST / 4)
    base = run(*LOSSES, losses_by_step=[*enumerate(LOSSES, 1), (32, 0.31), (64, 0.2), (128, 0.1)])
    steps = [*enumerate([LOSSES[0], rounded, *LOSSES[2:]], 1)]
    near = run(*LOSSES, losses_by_step=[*steps, (32, 0.312), (64, 0.2001), (128, 0.1)])
    far = run(*LOSSES, losses_by_step=[*steps, (32, 0.312), (64, 0.23), (128, 0.2)])
    digests = weights([2.0, 4.0], [2.0, 8.0]), weights([2.0, 4.0], [2.0, 8.0])
    for step, by in ((0, MOST / 4), (1, 0.1)):
        digests[1][step][1][2] *= 1 + by
    whole, trained = (run(weights=kept, weights_steps=[1, 72]) for kept in digests)

    assert told((base, near)) == "rounding"
    assert (
        told((base, far)) == f"rounding at first, and later loss at step 64 0.2 -> 0.23{NOT_JUDGED}"
    )
    assert told((whole, trained)) == (
        "rounding at first, and later sum of squares of parameter 2 at step 72 8 -> 8.8"
        f"{NOT_JUDGED}"
    )


def test_more_buffers_that_move_are_no_change_and_fewer_or_others_are() -> None:
    kept = weights([2.0, 4.0]), weights([2.0]), weights([2.0, 6.0])
    both, one, other = (run(*LOSSES, buffers=[[3, *buffers]]) for buffers in kept)

    assert told(*[(one, both)] * 2) == "same bits"
    assert told(*[(both, one)] * 2) == "changed: number of moved buffers at step 3 2 -> 1"
    assert told(*[(both, run(*LOSSES, buffers=[[3, []]]))] * 2) == (
        "changed: number of moved buffers at step 3 2 -> 0"
    )
    assert told((both, run(*LOSSES))) == "same bits"  # the base's perfsuite knows none
    assert told(*[(both, other)] * 2) == "changed: size of buffer 2 at step 3 4 -> 6"
    late = tuple(run(*LOSSES, buffers=[[3, *kept[0]], [72, *one]]) for one in kept[::2])
    assert told(late, late) == "changed: size of buffer 2 at step 72 4 -> 6"
    # Beside the parameters after the same step.
    beside = [
        run(weights=weights([2.0]), weights_steps=[3], buffers=[[3, *one]]) for one in kept[::2]
    ]
    assert told(tuple(beside), tuple(beside)) == "changed: size of buffer 2 at step 3 4 -> 6"
    silent = [run(buffers=[[3, *one]]) for one in kept[::2]]
    assert told(tuple(silent)) == "cannot be told: no loss of the base and head is known"
