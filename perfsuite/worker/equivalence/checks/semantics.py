"""T1 and T2: the path computes what one process would compute from the whole batch.

The truth is one process in float64 with the samples of all ranks in one batch. The limit of T1, for
float32 and finer, is the rounding of a sum; that of T2, for low precisions, is the error of plain
training in the same precision. Only these checks show that a BatchNorm, or a mean of means, makes
a parallel path a different computation.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from perfsuite.records.equivalence import EquivalenceRow
from perfsuite.records.parallel import ParallelPlan
from perfsuite.records.recipe import Recipe
from perfsuite.worker.equivalence import comparison, limits, planted_bugs
from perfsuite.worker.equivalence.diagnosis import explain_gradients, has_batchnorm
from perfsuite.worker.equivalence.limits import Limit, is_low_precision
from perfsuite.worker.equivalence.mesh_diagnosis import axis_bugs, explain_parts
from perfsuite.worker.equivalence.planted_bugs import Bug, scaled
from perfsuite.worker.equivalence.proof import Case, Proof
from perfsuite.worker.equivalence.references.averaging import average
from perfsuite.worker.equivalence.references.single_process import (
    Pass,
    Reference,
    UnjoinableError,
    UnrepeatableError,
    one_batch,
    slice_batch,
)
from perfsuite.worker.equivalence.tensors import Tensors
from perfsuite.worker.equivalence.trace.trace import MicroBatch, Step
from perfsuite.worker.measure.device import is_accelerator
from perfsuite.worker.training.batches import num_samples

# A mean of means is wrong for parts of unequal size: three quarters of the batch and the rest.
_FIRST_PART, _NUM_PARTS = 3, 4

# The epsilon of float16 is 2**13 times that of float32, and so are its errors. A path that silently
# stayed in float32 has the errors of float32, so a ratio of 4 separates the two.
_LOW_PRECISION_RATIO = 4
_NUM_SHOWN = 3


def check_semantics(case: Case) -> Proof | EquivalenceRow | str:
    """Return what T1 or T2 shows, why it cannot be exercised, or why neither applies."""
    recipe = case.recipe
    proof = Proof(check="T2" if is_low_precision(recipe) else "T1")
    losses: list[float] = []
    buffers: list[tuple[Tensors, Tensors, Limit]] = []
    references = _References(case)
    for number, step in enumerate(case.trace.steps, start=1):
        case.on_step()
        try:
            # After the first step T1 needs no more than the truth on a CPU.
            is_measure = is_low_precision(recipe) or is_accelerator(case.device)
            expected = references.compute(step, has_plain=number == 1 or is_measure)
        except UnrepeatableError as error:
            return EquivalenceRow.of(recipe, proof.check, "not exercised", str(error))
        except UnjoinableError as error:
            return str(error)
        if recipe.comm_hook != "none":
            compressed = step.gradients
            step = dataclasses.replace(step, gradients=references.average_uncompressed(step))
            losses.append(comparison.measure_errors(compressed, step.gradients).total)
        if (reason := _why_too_coarse(expected, case)) is not None:
            proof.vacuous.append(reason)
            break
        proof.evidence += _judge_step(step, number, expected, case)
        limit = _buffer_limit(expected, case)
        buffers.append((step.before.buffers, expected.truth.buffers, limit))
        if number == 1:
            bugs = list(_bugs(references, step, expected, case))
            proof.plant(bugs, lambda tested: _judge(tested, expected, 1, case))  # noqa: B023
            proof.find_cause = partial(_find_cause, references, case, expected, bugs)
            proof.vacuous += _why_vacuous(references, step, expected, case)
            proof.notes += _describe_small(expected)
    proof.plant_buffers(buffers)
    if case.workload.parallelize is not None and not recipe.plan.axes:
        proof.notes.append("parallelize is not called: it is for parallel='mesh:AXIS=N' alone")
    proof.notes += references.notes
    if losses:
        proof.notes.append(
            f"before comm_hook {recipe.comm_hook!r} compresses the reduction, which changes the "
            f"gradients by {max(losses):.1e}"
        )
    return proof


@dataclass(frozen=True)
class _Expected:
    """One step in one process: in float64 (truth), and in the precision of the path (plain).

    `batch` holds the samples of all ranks and micro-batches. The plain gradients are unscaled, and
    the plain errors are theirs against the truth.
    """

    batch: MicroBatch
    truth: Pass
    plain: Pass
    plain_gradients: Tensors
    plain_errors: comparison.Errors


class _References:
    """One process in float64 and one in the path's own precision; both see the whole batch."""

    def __init__(self, case: Case) -> None:
        self.notes: list[str] = []
        self._case = case
        self.truth = self.build("fp64")
        self.plain = self.build(case.recipe.precision)

    def build(self, precision: str) -> Reference:
        """Return one process without accumulation."""
        return self._case.reference(precision=precision, grad_accumulation_steps=1)

    def compute(self, step: Step, *, has_plain: bool = True) -> _Expected:
        """Return what both compute, or raise `UnjoinableError` or `UnrepeatableError`.

        Without `has_plain` the truth stands for the path's own precision too.
        """
        batch = one_batch([micro_batch for shard in step.shards for micro_batch in shard])
        is_cut = self._case.recipe.plan.properties.cuts_model
        by_several = is_cut or len(batch.draws or ()) > 1
        if has_plain:
            self.plain.load(step.before)
            plain = self.plain.run([batch], scale=step.scale)
            if batch.draws is not None and plain.wrong_draw is None:
                batch = dataclasses.replace(batch, draws=[plain.draws])
            if (reason := self._why_parts_draw(plain)) is not None:
                raise UnrepeatableError(reason)
            truth = self._find_truth(step, batch)
        else:
            plain = truth = self._find_truth(step, batch)
        plain_gradients = scaled(plain.gradients, 1 / step.scale)
        for one in (plain, truth):
            if (reason := one.why_not_repeated(by_several=by_several)) is not None:
                raise UnrepeatableError(reason)
        plain_errors = comparison.measure_errors(plain_gradients, truth.gradients)
        return _Expected(batch, truth, plain, plain_gradients, plain_errors)

    def _why_parts_draw(self, plain: Pass) -> str | None:
        """Why draws cannot be put together that the ranks of a user's axis made for parts."""
        if not self._case.recipe.plan.model_axes:
            return None
        differing = (one for one in self._case.trace.differences if one.what == "random draw")
        if (one := next(differing, None)) is not None:
            return f"{one.name} draws other numbers on rank {one.rank}, which shares its batch"
        return plain.wrong_draw

    def average_uncompressed(self, step: Step) -> Tensors:
        """The gradients of a step if nothing compressed their reduction, scaled as recorded."""
        self.plain.load(step.before)
        return average([part for shard in _parts(self.plain, step) for part in shard], "none")

    def _find_truth(self, step: Step, batch: MicroBatch) -> Pass:
        self.truth.load(step.before)
        try:
            return self.truth.run([batch])
        except torch.OutOfMemoryError as error:
            raise UnjoinableError(f"no room for the float64 reference ({error})") from error
        except RuntimeError as error:
            # After an error of its own a GPU refuses everything.
            if self.notes or "CUDA error" in str(error):
                raise
            first_line = str(error).strip().partition("\n")[0]
            self.notes.append(f"float32 is the truth, because float64 is refused ({first_line})")
            self.truth = self.build("fp32")
            return self._find_truth(step, batch)


def _judge_step(
    step: Step, number: int, expected: _Expected, case: Case
) -> list[comparison.Discrepancy]:
    truth, plain = expected.truth, expected.plain
    mean_loss = sum(step.losses) / len(step.losses)
    plain_loss = abs(plain.loss - truth.loss) / (abs(truth.loss) or 1.0)
    loss_limit = _limit(case, max(plain_loss, _least(expected, case)))
    buffers = comparison.measure_buffer_errors(step.buffers, truth.buffers)
    return [
        *comparison.judge_draws(plain.wrong_draw or truth.wrong_draw, number),
        *comparison.judge_losses([mean_loss], [truth.loss], number, loss_limit),
        *_judge_equal_losses(step, number, case.recipe.plan, loss_limit),
        *_judge(scaled(step.gradients, 1 / step.scale), expected, number, case),
        *comparison.judge(buffers, "buffer", number, _buffer_limit(expected, case)),
    ]


def _buffer_limit(expected: _Expected, case: Case) -> Limit:
    plain = comparison.measure_buffer_errors(expected.plain.buffers, expected.truth.buffers)
    return _limit(case, max(plain.total, _least(expected, case)))


def _least(expected: _Expected, case: Case) -> float:
    """The least error of plain training to go by for a loss or buffers.

    Without a `u` to add, that of one number may be small by chance.
    """
    return expected.plain_errors.total if case.recipe.has_float8 else 0.0


def _judge_equal_losses(
    step: Step, number: int, plan: ParallelPlan, limit: Limit
) -> list[comparison.Discrepancy]:
    """Compare the loss of each rank of a mesh with that of the first rank of its shard."""
    losses = [loss for loss in step.rank_losses if loss is not None]
    if not plan.axes or len(losses) < plan.size:
        return []
    first = [step.losses[plan.shard_of(rank)] for rank in range(plan.size)]
    return comparison.judge_losses(losses, first, number, limit)


def _judge(
    tested: Tensors, expected: _Expected, number: int, case: Case
) -> list[comparison.Discrepancy]:
    return comparison.judge(
        comparison.measure_errors(tested, expected.truth.gradients),
        "gradient",
        number,
        _limit(case, expected.plain_errors.total),
        parameter_limit=_parameter_limits(case, expected.plain_errors),
    )


def _why_too_coarse(expected: _Expected, case: Case) -> str | None:
    """Why plain training in float32 is no measure of it here; None where it is."""
    error = expected.plain_errors.total
    if is_low_precision(case.recipe) or not is_accelerator(case.device):
        return None
    if error <= limits.COARSEST_FLOAT32:
        return None
    return f"plain float32 is off by {error:.1e} here: TensorFloat-32, or a coarser kernel"


def _limit(case: Case, plain_error: float) -> Limit:
    if not is_low_precision(case.recipe):
        return limits.semantic_limit(case.recipe, plain_error if is_accelerator(case.device) else 0)
    return limits.ratio_limit(plain_error, _slack(case.recipe))


def _slack(recipe: Recipe) -> float:
    """What T2 allows beside the error of plain training."""
    return 0.0 if recipe.has_float8 else limits.path_epsilon(recipe)


def _parameter_limits(case: Case, plain_errors: comparison.Errors) -> Callable[[str], float] | None:
    if not is_low_precision(case.recipe):
        return None
    epsilon = limits.WORST_PARAMETER_FACTOR * _slack(case.recipe)

    def limit_of(name: str) -> float:
        own_error, total = plain_errors.by_name.get(name, 0.0), plain_errors.total
        # Without a slack, a parameter of few elements needs some: of 120 trainings of a small
        # transformer, its error was at most 1.9 times the larger of both, and 1.2 times their sum.
        own_error = own_error + total if case.recipe.has_float8 else max(own_error, total)
        return limits.ratio_limit(own_error, epsilon).value

    return limit_of


def _bugs(references: _References, step: Step, expected: _Expected, case: Case) -> Iterator[Bug]:
    gradients, errors = expected.plain_gradients, expected.plain_errors
    if (plan := case.recipe.plan).axes:
        shards = _parts(references.plain, step)
        shares = [scaled(average(shard, "none"), 1 / step.scale) for shard in shards]
        yield from axis_bugs(plan, shares, gradients)
    size = num_samples(expected.batch.batch)
    limit_of = _parameter_limits(case, errors)
    # A mistake in float64 is the smaller one, and on a CPU several times faster than in float16.
    is_low = limit_of is not None
    reference, right = (
        (references.truth, expected.truth) if is_low else (references.plain, expected.plain)
    )
    if size > 1:
        yield planted_bugs.lost_samples(_mean_of_parts(reference, expected, [size // 2]))
    if right.draws:
        anew = reference.run([expected.batch], draws_anew=True).gradients
        yield from planted_bugs.drawn_anew(anew, right.gradients)
    if limit_of is not None:
        # A lost gradient has an error of 1, which no limit of 1 or more can find.
        limited = [name for name in errors.by_name if limit_of(name) < 1]
        yield from planted_bugs.gradient_bugs(gradients, limited)
        if case.recipe.has_float8:
            yield planted_bugs.wrong_scale(gradients, plan.world_size, errors.total)
        return
    yield from planted_bugs.gradient_bugs(gradients)
    yield planted_bugs.wrong_scale(gradients, case.recipe.plan.world_size)
    if size > 2:
        first = _FIRST_PART * size // _NUM_PARTS
        parts = [first, size - first]
        yield planted_bugs.mean_of_means(_mean_of_parts(references.plain, expected, parts))


def _hypotheses(plain: Reference, step: Step, expected: _Expected) -> Iterator[Bug]:
    """Mistakes with the micro-batches of this step; no mistakes where all of them are equal."""
    yield planted_bugs.summed_loss(scaled(expected.plain_gradients, 1 / sum(map(len, step.shards))))
    parts = [[scaled(part, 1 / step.scale) for part in shard] for shard in _parts(plain, step)]
    yield planted_bugs.mean_of_means(average([part for shard in parts for part in shard], "none"))
    num_steps = len(step.shards[0])
    for which, kept in (("first", slice(1, None)), ("last", slice(None, -1))):
        left = [part for shard in parts for part in shard[kept]]
        if left:
            share = (num_steps - 1) / num_steps
            yield planted_bugs.lost_micro_batch(scaled(average(left, "none"), share), which)


def _parts(plain: Reference, step: Step) -> list[list[Tensors]]:
    """The gradients of each micro-batch by itself, shard by shard, scaled as recorded."""
    return [
        [plain.run([one], scale=step.scale).gradients for one in shard] for shard in step.shards
    ]


def _mean_of_parts(plain: Reference, expected: _Expected, sizes: list[int]) -> Tensors:
    """The gradients of consecutive parts of the batch, averaged as if they were equally large."""
    begin, parts = 0, []
    for size in sizes:
        parts.append(plain.run([slice_batch(expected.batch, begin, begin + size)]).gradients)
        begin += size
    return average(parts, "none")


def _describe_small(expected: _Expected) -> Iterator[str]:
    names = expected.plain_errors.too_small
    if names:
        shown = ", ".join(map(repr, names[:_NUM_SHOWN])) + ", ..." * (len(names) > _NUM_SHOWN)
        share = f"{limits.SMALLEST_SHARE:.0e} of all gradients"
        yield f"not compared by themselves, because they are below {share}: {shown}"


def _why_vacuous(
    references: _References, step: Step, expected: _Expected, case: Case
) -> Iterator[str]:
    truth = expected.truth
    if expected.plain_errors.size == 0:
        yield "all gradients are zero"
    if case.recipe.plan.axes and step.has_equal_shards:
        yield "two shards hold the same data, so that a missing reduction would change nothing"
    if not is_low_precision(case.recipe) or math.isnan(truth.loss):
        return
    finer = "amp-bf16" if case.recipe.has_float8 else "fp32"
    reference = references.build(finer)
    reference.load(step.before)
    finer_error = comparison.measure_errors(
        reference.run([expected.batch]).gradients, truth.gradients
    ).total
    error = comparison.measure_errors(scaled(step.gradients, 1 / step.scale), truth.gradients).total
    if error <= _LOW_PRECISION_RATIO * finer_error:
        yield (
            f"low precision left no trace: the error is {error:.1e}, that of {finer} "
            f"{finer_error:.1e}; does the model use operators that the precision changes?"
        )


def _find_cause(
    references: _References,
    case: Case,
    expected_of_first: _Expected,
    bugs: Sequence[Bug],
    discrepancy: comparison.Discrepancy,
) -> str | None:
    if has_batchnorm(references.truth.trainer.module):
        return (
            "BatchNorm: each rank, micro-batch or chunk is normalised by its own statistics, "
            "which is a different computation; use SyncBatchNorm or GroupNorm"
        )
    if discrepancy.what == "buffer":
        if case.recipe.grad_accumulation_steps > 1:
            return "the forward pass changes a buffer, once for each micro-batch"
        return (
            "the forward pass changes a buffer by the data that it sees, and no process sees "
            "the whole batch"
        )
    step, is_first = case.trace.steps[discrepancy.step - 1], discrepancy.step == 1
    expected = expected_of_first if is_first else references.compute(step)
    references.plain.load(step.before)
    hypotheses = [*_hypotheses(references.plain, step, expected), *(bugs if is_first else ())]
    tested = scaled(step.gradients, 1 / step.scale)
    plan = case.recipe.plan
    if plan.axes and (cause := explain_parts(tested, expected.plain_gradients, plan)):
        return cause
    return explain_gradients(tested, expected.plain_gradients, hypotheses)
