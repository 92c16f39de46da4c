"""What changed in the mathematics: losses and weights of head against the base's.

The launches of a pair have one seed and one hash seed: the same training gives the same bits.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import astuple, replace

from perfsuite.gate.arms.arm import CellRun
from perfsuite.records.cell import TensorDigest
from perfsuite.records.recipe import EPSILONS
from perfsuite.system.untrusted import Count

CHANGED = "changed"
UNKNOWN = "cannot be told"
ONE_LAUNCH = "one launch of the base does not show that the next computes the same"
DOUBT = ", but "  # behind "rounding" and "same bits" that a wrong training would have, too
_UNMOVED = "a step moves nearly all weights by too little to tell"
_REGROUPED = "optimizers hold the parameters in another order, or step at other times"
# Of u sqrt(ws A), as for T1: what correct computations of one step may differ by.
_FACTOR = 16
# Optimizer steps multiply a difference in rounding; T0 to T2 are held to as many.
_NUM_STEPS = 3
_VISIBLE = 0.01  # later ones are told from here on
_DIGITS = 4
_NOTHING = TensorDigest(0, 0.0, 0.0)


class _Trained(msgspec.Struct, frozen=True):
    """What is read of a record; the base's perfsuite may keep other things beside it."""

    losses: tuple[float, ...] = ()
    losses_by_step: tuple[tuple[Count, float], ...] | None = None
    weights_steps: tuple[Count, ...] | None = None
    weights: tuple[tuple[TensorDigest, ...], ...] | None = None
    buffers: tuple[tuple[Count, tuple[TensorDigest, ...]], ...] | None = None
    recipe: dict[str, Any] | None = None
    world_size: Count = 1

    def told(self) -> tuple[dict[int, float], dict[tuple[int, str], tuple[TensorDigest, ...]]]:
        """Return losses and digests by step; an older perfsuite told those of the first alone."""
        steps = self.weights_steps or itertools.count(1)
        digests = {(n, "parameter"): one for n, one in zip(steps, self.weights or (), strict=False)}
        # A mean that BatchNorm keeps moves as far as the bias before it does.
        last = (self.weights or [()])[-1]
        most = sum(one.moved_by_rounding for one in last)
        each = max((one.moved_by_rounding / (one.num_elements or 1) for one in last), default=0.0)
        for step, kept in self.buffers or ():
            digests[step, "buffer"] = tuple(
                replace(one, moved_by_rounding=min(most, each * one.num_elements)) for one in kept
            )
        return dict(self.losses_by_step or enumerate(self.losses, 1)), digests

    @property
    def rounding(self) -> float:
        """By how much rounding alone may make losses differ, relatively."""
        recipe = self.recipe or {}
        # Losses of fp8 are those of amp-bf16 around its linear layers; 16 u of 2**-3 tells nothing.
        epsilon = min(EPSILONS[recipe.get("precision", "fp32")], EPSILONS["amp-bf16"])
        num_steps = recipe.get("grad_accumulation_steps", 1)
        return _FACTOR * epsilon * math.sqrt(self.world_size * num_steps)


class _Difference(NamedTuple):
    step: int
    what: str
    before: float
    after: float
    is_rounding: bool

    def __str__(self) -> str:
        before, after = _write(self.before, self.after)
        return f"{self.what} at step {self.step} {before} -> {after}"


def describe_numerics_change(base: Sequence[CellRun], head: Sequence[CellRun]) -> str | None:
    """Return what changed in the mathematics of a cell, from its runs, pair by pair, or None.

    "same bits…", "rounding…", "changed: loss at step 2 0.8137 -> 0.7885" or "cannot be told: …".
    """
    if not base or not head:
        return None
    try:
        theirs, ours = (
            [msgspec.convert(run.record or {}, _Trained) for run in runs] for runs in (base, head)
        )
        limit = max(one.rounding for one in (*theirs, *ours))
    except (msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
        return f"{UNKNOWN}: a record has another form: {error}"
    doubt = _REGROUPED if _are_regrouped(theirs[0], ours[0]) else ""
    if doubt:
        theirs, ours = ([replace(one, weights=None) for one in runs] for runs in (theirs, ours))
    arms = {"the base": theirs, "head": ours}
    silent = [arm for arm, runs in arms.items() if not all(one.losses for one in runs)]
    if silent and not all(one.weights for one in (*theirs, *ours)):
        told = f"no loss of {' and '.join(silent)} is known"
        return f"{UNKNOWN}: {f'{doubt}, and {told}' if doubt else told}"
    pairs = [*zip(theirs, ours, strict=False)]
    if not all(_are_comparable(*pair) for pair in pairs):
        return f"{UNKNOWN}: no step has told a loss of both"
    within = [_compare(before, after, limit) for before, after in pairs]
    if (found := _beyond_rounding(within)) is None:
        return _describe_likeness(pairs, limit if any(within) else 0.0, doubt)
    among = _beyond_rounding([_compare(theirs[0], one, limit) for one in theirs])
    if among is not None:
        numbers = " and ".join(_write(among.before, among.after))
        return (
            f"{UNKNOWN}: launches of the base differ among themselves, at step {among.step} by a "
            f"{among.what} of {numbers}; seed what it draws, and clear what it saves"
        )
    return f"{UNKNOWN}: {ONE_LAUNCH}" if len(theirs) < 2 else f"{CHANGED}: {found}"


def _describe_likeness(pairs: Sequence[tuple[_Trained, _Trained]], limit: float, doubt: str) -> str:
    """Say how alike arms are that differ by no more than the limit: 0 where it is not at all."""
    visible = max(limit, _VISIBLE)
    later = _beyond_rounding(one for pair in pairs for one in _differences(*pair, visible))
    word, end = "rounding" if limit else "same bits", f", and later {later}" if later else ""
    if doubt := doubt or (_UNMOVED if _hardly_moves(pairs[0][0], limit) else ""):
        return f"{word}{DOUBT}{doubt}{end}"
    return f"{word} at first{end}: not judged, as rounding may grow so far" if end else word


def _are_comparable(base: _Trained, head: _Trained) -> bool:
    (old_losses, old_digests), (losses, digests) = base.told(), head.told()
    kinds = {kind for _, kind in old_digests.keys() & digests.keys()}
    return bool(old_losses.keys() & losses.keys()) or "parameter" in kinds


def _are_regrouped(base: _Trained, head: _Trained) -> bool:
    """Whether other optimizers hold the same parameters, so that no place says which is which."""
    before, after = (
        [[one.num_elements for one in step] for step in run.weights or [()]] for run in (base, head)
    )
    return before != after and sorted(before[-1]) == sorted(after[-1]) and len(before) == len(after)


def _beyond_rounding(differences: Iterable[_Difference | None]) -> _Difference | None:
    beyond = (one for one in differences if one is not None and not one.is_rounding)
    return min(beyond, key=lambda one: one.step, default=None)


def _compare(before: _Trained, after: _Trained, limit: float) -> _Difference | None:
    """The first number that is not rounded alike, else the first whose bits differ.

    Steps long after the first difference do not count: training amplifies rounding.
    """
    differing = sorted(_differences(before, after, limit), key=lambda one: one.step)
    held = [one for one in differing if one.step < differing[0].step + _NUM_STEPS]
    return _beyond_rounding(held) or next(iter(held), None)


def _hardly_moves(run: _Trained, limit: float) -> bool:
    """Whether a step moves nine elements of ten by no more than the limit, as wrong ones may."""
    # Equal bits speak for all steps, and what is within rounding for the first ones alone.
    steps = {step: one for (step, kind), one in run.told()[1].items() if kind == "parameter"}
    both = itertools.pairwise(sorted(steps))
    later = [(steps[one], steps[two]) for one, two in both if two == one + 1 or limit == 0.0]
    pairs = [pair for both in later for pair in zip(*both, strict=False)]
    moved = [old for old, new in pairs if not _compare_digests(old, new, limit, 0, "").is_rounding]
    return 10 * sum(it.num_elements for it in moved) < sum(it.num_elements for it, _ in pairs)


def _differences(before: _Trained, after: _Trained, limit: float) -> Iterator[_Difference]:
    (old_losses, old_digests), (new_losses, new_digests) = before.told(), after.told()
    for step in old_losses.keys() & new_losses.keys():
        if repr(old := old_losses[step]) != repr(new := new_losses[step]):
            is_rounding = abs(new - old) <= limit * max(abs(old), abs(new))
            yield _Difference(step, "loss", old, new, is_rounding)
    for step, kind in sorted(old_digests.keys() & new_digests.keys()):
        old_ones, new_ones = old_digests[step, kind], new_digests[step, kind]
        nums = len(old_ones), len(new_ones)
        if kind == "buffer" and nums[0] != nums[1]:
            if nums[0] > nums[1]:  # more are no less training: a constant may become one
                yield _Difference(step, "number of moved buffers", *nums, is_rounding=False)
            continue
        pairs = itertools.zip_longest(old_ones, new_ones, fillvalue=_NOTHING)
        for number, both in enumerate(pairs, 1):
            is_less_trained = both[0].num_gradients > both[1].num_gradients
            if is_less_trained or len({repr(astuple(one)[:3]) for one in both}) > 1:
                yield _compare_digests(*both, limit, step, f"{kind} {number}")


def _compare_digests(
    before: TensorDigest, after: TensorDigest, limit: float, step: int, which: str
) -> _Difference:
    """Say whether two digests may be those of tensors whose distance is within the limit.

    Tensors a and b with |a - b| <= L |a| have sums that differ by at most L |a| sqrt(n), and sums
    of squares that differ by at most 2 L |a|**2, to first order (Cauchy and Schwarz). Elements that
    rounding has moved by m in all, in either, add 2 m to the one, and 4 m |a| to the other.
    """
    squares = max(before.squares, after.squares)
    apart = 2 * max(before.moved_by_rounding, after.moved_by_rounding) if limit else 0.0
    # More are no less training; the base's perfsuite may not know them.
    most_gradients = math.inf if after.num_gradients >= before.num_gradients else 0.0
    most_total = limit * math.sqrt(before.num_elements * squares) + apart
    most_squares = 2 * limit * squares + 2 * apart * math.sqrt(squares)
    # (what of the parameter, before, after, the most that the distance explains)
    found = (
        ("size", before.num_elements, after.num_elements, 0.0),
        ("number of gradients", before.num_gradients, after.num_gradients, most_gradients),
        ("sum of squares", before.squares, after.squares, most_squares),
        ("sum", before.total, after.total, most_total),
    )
    differing = [one for one in found if repr(one[1]) != repr(one[2])]
    beyond = [one for one in differing if not abs(one[2] - one[1]) <= one[3]]
    name, old, new, _ = (beyond or differing or found)[0]
    return _Difference(step, f"{name} of {which}", old, new, not beyond)


def _write(before: float, after: float) -> tuple[str, str]:
    if isinstance(before, int):
        return f"{before:,}", f"{after:,}"
    for digits in range(_DIGITS, 17):
        if (texts := (f"{before:.{digits}g}", f"{after:.{digits}g}"))[0] != texts[1]:
            return texts
    return repr(before), repr(after)
