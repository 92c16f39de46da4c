"""T1 and T2: the path computes what one process would compute from the whole batch.

The truth is one process in float64 with the samples of all ranks in one batch. The limit of T1, for
float32 and finer, is the rounding of a sum; that of T2, for low precisions, is the error of plain
training. Only these checks show that a BatchNorm, or a mean of means, is another computation.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from perfsuite.records.equivalence import EquivalenceRow, semantic_check
from perfsuite.records.recipe import Recipe
from perfsuite.units import listed
from perfsuite.worker.equivalence import comparison, diagnosis, limits, planted_bugs
from perfsuite.worker.equivalence.checks.data import have_equal_shards
from perfsuite.worker.equivalence.checks.expected_step import ExpectedStep
from perfsuite.worker.equivalence.comparison import Tensors, scaled
from perfsuite.worker.equivalence.planted_bugs import Bug
from perfsuite.worker.equivalence.proof import Case, Proof, judge_buffers
from perfsuite.worker.equivalence.references.averaging import average
from perfsuite.worker.equivalence.references.single_process import (
    IncomparableError,
    Pass,
    Reference,
    one_batch,
    slice_batch,
    why_not_samples,
)
from perfsuite.worker.equivalence.trace.trace import MicroBatch, Step
from perfsuite.worker.measure.device import is_accelerator
from perfsuite.worker.training.batches import num_samples

# Of losses of one batch, where no truth is known: what cancels is off by no more.
_UNLIKE = limits.Limit(limits.COARSEST_AFTER_FIRST, "of losses of one batch", 0.0)
# Of two sums over one batch in float64, or in float32 where a model refuses that.
_SUMS = "2**-13, of the whole batch and the mean of its parts in full precision"
_OF_PARTS = limits.Limit(limits.COARSEST_FLOAT32, _SUMS, limits.COARSEST_AFTER_FIRST)
# What a model raises that does not take a batch of another size, or numbers of another precision.
_REFUSALS = (RuntimeError, ValueError, TypeError, AssertionError, LookupError)


def check_semantics(case: Case) -> Proof | EquivalenceRow:
    """Return what T1 or T2 shows, or why neither can be exercised."""
    recipe = case.recipe
    proof = Proof(check=semantic_check(recipe.precision), on_bug=case.on_step)
    losses: list[float] = []
    references = _References(case)
    for number, step in enumerate(case.trace.steps, start=1):
        case.on_step()
        if recipe.comm_hook != "none":
            uncompressed = average([*itertools.chain(*_parts(references.plain, step))], "none")
            losses.append(comparison.measure_errors(step.gradients, uncompressed).total)
            step = step._replace(gradients=uncompressed)
        try:
            expected, evidence = _judge(references, step, number)
        except IncomparableError as error:
            if any(not one.is_within for one in proof.evidence):
                break  # an earlier step is wrong, whatever this one is
            unlike = _judge_equal_losses(step, recipe, number, _UNLIKE)
            if not all(one.is_within for one in unlike):
                draws = (one for one in case.trace.differences if one.what == "random draw")
                proof.evidence += [*draws, *unlike]
                return proof
            return EquivalenceRow.of(recipe, proof.check, "not exercised", str(error))
        if expected.is_too_coarse:
            references.plain.load(step.before)
            if not expected.plain.is_as(references.plain.run([expected.batch])):
                return EquivalenceRow.of(recipe, proof.check, "not exercised", diagnosis.STATEFUL)
            off = f"plain float32 is off by {expected.errors.total:.1e} here"
            why = "a coarser kernel, or a model that magnifies rounding"
            if is_accelerator(case.device):
                why = f"TensorFloat-32, {why}"
            proof.vacuous.append(f"{off}: {why}")
            break
        proof.evidence += evidence
        if all(one.is_within for one in evidence):
            proof.evidence += _judge_parts(references, step, expected)
        proof.plant_buffers(step, expected.truth.buffers, expected.buffer_limit)
        if number == 1:
            finer, right = references.compute_finer(step, expected)
            bugs = list(_bugs(references, step, expected, finer, right.gradients))
            proof.plant(bugs, expected.judge_gradients)
            proof.find_cause = partial(_find_cause, references, expected, bugs)
            proof.vacuous += _why_vacuous(step, expected, right.gradients)
            if names := expected.errors.too_small:
                small = f"below {limits.SMALLEST_SHARE:.0e} of all gradients"
                named = listed([*map(repr, names)])
                proof.notes.append(f"not compared by themselves, because they are {small}: {named}")
    if not all(one.is_within for one in proof.evidence):
        excuse = _find_excuse(references, expected.plain, is_compressed=bool(losses))
        if excuse is not None:
            return EquivalenceRow.of(recipe, proof.check, "not exercised", excuse)
    if case.workload.parallelize is not None and not recipe.plan.axes:
        proof.notes.append("parallelize is not called: it is for parallel='mesh:AXIS=N' alone")
    proof.notes += references.notes
    if losses:
        reduction = f"the reduction, which changes the gradients by {max(losses):.1e}"
        proof.notes.append(f"before comm_hook {recipe.comm_hook!r} compresses {reduction}")
    return proof


def _find_excuse(references: "_References", plain: Pass, *, is_compressed: bool) -> str | None:
    """Why a difference may be right: the whole batch is not known to be what the parts make."""
    case, trainer = references.case, references.truth.trainer
    own = {*map(id, trainer.module.parameters())}
    updated = (one for group in trainer.optimizer.param_groups for one in group["params"])
    if case.recipe.plan.world_size == 1 and not own.issuperset(map(id, updated)):
        return "its optimizer updates parameters that the model does not have: put them into it"
    if is_compressed and case.trace.communicating:
        return "what communication in the forward pass changes is not known before comm_hook"
    if plain.is_packed:
        return "random numbers are drawn for packed samples, whose order in one batch is unknown"
    return why_not_samples(case.trace.steps[0].shards)


@dataclass(frozen=True, kw_only=True)
class _Expected(ExpectedStep):
    batch: MicroBatch
    truth: Pass
    plain: Pass

    @cached_property
    def buffer_limit(self) -> limits.Limit:
        """From the errors of the plain pass: a mean near 0 is off by more than all together."""
        errors = comparison.measure_buffer_errors(self.plain.buffers, self.truth.buffers)
        limit = self.limit_beside(errors.total)
        own = limits.ERROR_RATIO * max(errors.by_name.values(), default=0.0)
        own = min(own, limits.COARSEST_AFTER_FIRST)
        return limit._replace(worst_parameter=max(limit.worst_parameter, own))


class _References:
    """One process in float64 and one in the path's own precision; both see the whole batch."""

    def __init__(self, case: Case) -> None:
        self.notes: list[str] = []
        self.heads_first = self.has_float32_truth = False
        self.case = case
        self.truth = self.build("fp64")
        self.plain = self.build(case.recipe.precision)

    def build(self, precision: str) -> Reference:
        return self.case.reference(precision=precision, grad_accumulation_steps=1)

    def compute(self, step: Step, number: int, *, with_plain: bool = True) -> _Expected:
        """Return what both compute, or raise an `IncomparableError`.

        Without `with_plain` the truth stands for both, where T1 can do with its smallest limit.
        """
        recipe, device = self.case.recipe, self.case.device
        batch = one_batch([*itertools.chain(*step.shards)], heads_first=self.heads_first)
        by_several = recipe.plan.properties.cuts_model or len(batch.draws or ()) > 1
        plain = None
        if with_plain or limits.is_low_precision(recipe) or is_accelerator(device):
            plain = self._run_plain(step, batch, step.scale)
            # What is no mean over samples, such as a penalty, is larger than in a micro-batch.
            is_finite = all(bool(one.isfinite().all()) for one in plain.gradients.values())
            if not is_finite and step.scale > 1 and recipe.grad_accumulation_steps > 1:
                plain = self._run_plain(step, batch, step.scale / recipe.grad_accumulation_steps)
            if batch.draws is not None and plain.wrong_draw is None:
                batch = batch._replace(draws=[plain.draws])
            if (reason := self._why_parts_draw(plain)) is not None:
                raise IncomparableError(reason)
        truth = self._find_truth(step, batch)
        plain = plain or truth
        for one in (plain, truth):
            if (reason := one.why_not_repeated(by_several=by_several)) is not None:
                raise IncomparableError(reason)
        return _Expected(recipe=recipe, number=number, truth=truth, plain=plain, batch=batch)

    def _run_plain(self, step: Step, batch: MicroBatch, scale: float) -> Pass:
        self.plain.load(step.before)
        if self.has_float32_truth and not limits.is_low_precision(self.case.recipe):
            limits.nudge(self.plain.trainer.module.parameters())
        try:
            plain = self.plain.run([batch], scale=scale)
        except _REFUSALS as error:
            if sum(map(len, step.shards)) == 1:
                raise
            found = f"the model does not take the whole batch: {_first_line(error)}"
            raise IncomparableError(found) from error
        return replace(plain, gradients=scaled(plain.gradients, 1 / scale))

    def compute_finer(self, step: Step, expected: _Expected) -> tuple[Reference, Pass]:
        """Return one process in a precision that is finer than a low one, and what it computes."""
        if not limits.is_low_precision(expected.recipe):
            return self.plain, expected.plain
        reference = self.build(_finer(expected.recipe))
        reference.load(step.before)
        return reference, reference.run([expected.batch])

    def _why_parts_draw(self, plain: Pass) -> str | None:
        """Why draws cannot be put together that the ranks of a user's axis made for parts."""
        if not self.case.recipe.plan.model_axes:
            return None
        differing = (one for one in self.case.trace.differences if one.what == "random draw")
        if (one := next(differing, None)) is not None:
            return f"{one.name} draws other numbers on rank {one.rank}, which shares its batch"
        return plain.wrong_draw

    def _find_truth(self, step: Step, batch: MicroBatch) -> Pass:
        self.truth.load(step.before)
        try:
            return self.truth.run([batch])
        except torch.OutOfMemoryError as error:
            raise IncomparableError(f"no room for the float64 reference ({error})") from error
        except _REFUSALS as error:
            if self.has_float32_truth:
                raise
            reason = _first_line(error)
            self.notes.append(f"float32 is the truth, because float64 is refused ({reason})")
            self.truth, self.has_float32_truth = self.build("fp32"), True
            return self._find_truth(step, batch)


def _first_line(error: Exception) -> str:
    """Of what a model raises; raises what a GPU does, and what has the rank begin again."""
    if any(sign in str(error) for sign in ("CUDA error", "have a deterministic implementation")):
        raise error
    return str(error).strip().partition("\n")[0]


def _judge(
    references: _References, step: Step, number: int
) -> tuple[_Expected, list[comparison.Discrepancy]]:
    """What one process computes, and how far the step is off from it.

    Plain training, and the limits that follow from it, cost a pass of their own: after the first
    step they are asked for where the smallest limit of T1 does not hold. Shapes do not tell whether
    a model has its heads or its samples first: the order is the one that explains the first step.
    """
    expected = references.compute(step, number, with_plain=number == 1)
    evidence = _judge_step(step, expected)
    if number == 1 and expected.plain.has_heads and not all(one.is_within for one in evidence):
        references.heads_first = True
        reordered = references.compute(step, number)
        found = _judge_step(step, reordered)
        if all(one.is_within for one in found):
            return reordered, found
        references.heads_first = False
    is_unmeasured = expected.plain is expected.truth or references.has_float32_truth
    if is_unmeasured and not all(one.is_within for one in evidence):
        expected = references.compute(step, number)
        evidence = _judge_step(step, expected)
    return expected, evidence


def _judge_step(step: Step, expected: _Expected) -> list[comparison.Discrepancy]:
    truth, plain, number = expected.truth, expected.plain, expected.number
    return [
        *comparison.judge_draws(plain.wrong_draw or truth.wrong_draw, number),
        *expected.judge_loss(step.mean_loss),
        *_judge_equal_losses(step, expected.recipe, number, expected.loss_limit),
        *expected.judge_gradients(scaled(step.gradients, 1 / step.scale)),
        *judge_buffers(step, truth.buffers, number, expected.buffer_limit),
    ]


def _judge_parts(
    references: _References, step: Step, expected: _Expected
) -> list[comparison.Discrepancy]:
    """Compare the whole batch with the mean of its parts, whose difference a low precision hides.

    That mean is what the ranks compute, as T0 shows, unless their forward passes communicate.
    """
    is_mixed = references.case.mixing_layers(references.truth.trainer.module)
    is_one = sum(map(len, step.shards)) == 1
    if is_one or is_mixed or not limits.is_low_precision(expected.recipe):
        return []
    mean = average([*itertools.chain(*_parts(references.truth, step))], "none")
    right, number = expected.truth.gradients, expected.number
    found = comparison.judge("gradient", mean, right, number, _OF_PARTS)
    if references.has_float32_truth:  # where a small gradient is off by more
        found = found[:1]
    # Each part may also meet another state of what the forward pass changes.
    cause = None if step.buffers else planted_bugs.mean_of_means(mean).cause
    return [one._replace(cause=cause) for one in found if not one.is_within]


def _judge_equal_losses(
    step: Step, recipe: Recipe, number: int, limit: limits.Limit
) -> list[comparison.Discrepancy]:
    """Compare the loss of each rank of a mesh with that of the first rank of its shard."""
    losses = [loss for loss in step.rank_losses if loss is not None]
    plan = recipe.plan
    if not plan.axes or len(losses) < plan.size:
        return []
    first = [step.losses[plan.shard_of(rank)] for rank in range(plan.size)]
    return comparison.judge_losses(losses, first, number, limit)


def _bugs(
    references: _References, step: Step, expected: _Expected, finer: Reference, right: Tensors
) -> Iterator[Bug]:
    """The mistakes to find, made in a `finer` precision where the own is low: they are smaller."""
    if expected.recipe.plan.axes:
        shards = _parts(references.plain, step)
        shares = [scaled(average(shard, "none"), 1 / step.scale) for shard in shards]
        yield from diagnosis.axis_bugs(expected.recipe.plan, shares, expected.plain.gradients)
    size, is_low = num_samples(expected.batch.batch), limits.is_low_precision(expected.recipe)
    half = None
    try:
        if size > 1:
            half = scaled(finer.run([slice_batch(expected.batch, 0, size // 2)]).gradients, 1)
            yield planted_bugs.lost_samples(half)
    except _REFUSALS as error:
        reason = f"the model takes no half of it ({_first_line(error)})"
        references.notes.append(f"no lost samples of a batch were planted: {reason}")
    if expected.truth.draws:
        anew = finer.run([expected.batch], draws_anew=True).gradients
        yield from planted_bugs.drawn_anew(anew, right)
    yield from expected.bugs()
    if half is not None and size > 3 and not is_low:
        # A mean of means is wrong for parts of unequal size: the first half and two quarters.
        rest = _without(half, right, size // 2 / size)
        yield planted_bugs.mean_of_means(average([half, rest, rest], "none"))


def _hypotheses(plain: Reference, step: Step, expected: _Expected) -> Iterator[Bug]:
    """Mistakes with the micro-batches of this step; no mistakes where all of them are equal."""
    share = 1 / sum(map(len, step.shards))
    yield planted_bugs.summed_loss(scaled(expected.plain.gradients, share))
    parts = [[scaled(part, 1 / step.scale) for part in shard] for shard in _parts(plain, step)]
    yield planted_bugs.mean_of_means(average([*itertools.chain(*parts)], "none"))
    num_steps = len(step.shards[0])
    for which, kept in (("first", slice(1, None)), ("last", slice(None, -1))):
        if left := [part for shard in parts for part in shard[kept]]:
            share = (num_steps - 1) / num_steps
            yield planted_bugs.lost_micro_batch(scaled(average(left, "none"), share), which)


def _parts(plain: Reference, step: Step) -> Iterator[list[Tensors]]:
    """The gradients of each micro-batch by itself, shard by shard, scaled as recorded."""
    for shard in step.shards:
        plain.load(step.before)  # which a forward pass may change
        yield [plain.run([it], scale=step.scale).gradients for it in shard]


def _without(part: Tensors, whole: Tensors, share: float) -> Tensors:
    """The gradients of a batch less its `part`, which is a `share` of it, if samples do not mix."""
    left_out = scaled(part, share)
    return {
        name: (gradient - left_out[name] if name in left_out else gradient) / (1 - share)
        for name, gradient in scaled(whole, 1).items()
    }


def _why_vacuous(step: Step, expected: _Expected, finer: Tensors) -> Iterator[str]:
    recipe = expected.recipe
    if expected.errors.size == 0:
        yield "all gradients are zero"
    if have_equal_shards(step):
        yield "two shards hold the same data, so that a missing reduction would change nothing"
    if not limits.is_low_precision(recipe) or math.isnan(expected.truth.loss):
        return
    finer_error, error = (
        comparison.measure_errors(gradients, expected.truth.gradients).total
        for gradients in (finer, scaled(step.gradients, 1 / step.scale))
    )
    if error <= limits.LOW_PRECISION_RATIO * finer_error:
        errors = f"the error is {error:.1e}, that of {_finer(recipe)} {finer_error:.1e}"
        asked = "does the model use operators that the precision changes?"
        yield f"low precision left no trace: {errors}; {asked}"


def _finer(recipe: Recipe) -> str:
    return "amp-bf16" if recipe.has_float8 else "fp32"


def _find_cause(
    references: _References,
    expected_of_first: _Expected,
    bugs: Sequence[Bug],
    discrepancy: comparison.Discrepancy,
) -> str | None:
    if (batchnorm := diagnosis.explain_batchnorm(references.truth.trainer.module)) is not None:
        return batchnorm
    case, plan = references.case, references.case.recipe.plan
    if discrepancy.what == "buffer":
        if case.recipe.grad_accumulation_steps > 1:
            return "the forward pass changes a buffer, once for each micro-batch"
        data = "the data that it sees, and no process sees the whole batch"
        return f"the forward pass changes a buffer by {data}"
    step, is_first = case.trace.steps[discrepancy.step - 1], discrepancy.step == 1
    expected = expected_of_first if is_first else references.compute(step, discrepancy.step)
    hypotheses = [*_hypotheses(references.plain, step, expected), *(bugs if is_first else ())]
    tested, right = scaled(step.gradients, 1 / step.scale), expected.plain.gradients
    if plan.axes and (cause := diagnosis.explain_parts(tested, right, plan)):
        return cause
    return diagnosis.explain_gradients(tested, right, hypotheses)
