"""T1 and T2: the path computes what one process would from the whole batch, in full precision.

The truth is one process, one batch of all ranks' samples, in float64. T1 holds paths of float32 and
finer to it by the rounding of a sum; T2 holds low precisions to the error that plain training in
the same precision has itself. Only here does it show that a BatchNorm, or a mean of means, makes a
parallel path another computation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from perfsuite.worker.equivalence.case import Case
from perfsuite.worker.equivalence.comparison import (
    Errors,
    Evidence,
    judge,
    judge_loss,
    measure_buffer_errors,
    measure_errors,
)
from perfsuite.worker.equivalence.diagnosis import explain_gradients, has_batchnorm
from perfsuite.worker.equivalence.limits import (
    SMALLEST_SHARE,
    WORST_PARAMETER_FACTOR,
    Limit,
    is_low_precision,
    path_epsilon,
    ratio_limit,
    semantic_limit,
)
from perfsuite.worker.equivalence.planted_bugs import (
    Bug,
    gradient_bugs,
    lost_micro_batch,
    lost_samples,
    mean_of_means,
    scaled,
    summed_loss,
    wrong_scale,
)
from perfsuite.worker.equivalence.proof import Proof
from perfsuite.worker.equivalence.references.averaging import average
from perfsuite.worker.equivalence.references.single_process import (
    Pass,
    Reference,
    num_samples,
    one_batch,
    plain_recipe,
    slice_batch,
)
from perfsuite.worker.equivalence.tensors import Tensors
from perfsuite.worker.equivalence.trace.trace import MicroBatch, Step

# The parts of a batch whose unequal sizes a mean of means would get wrong: three quarters and one.
_FIRST_PART, _NUM_PARTS = 3, 4

# Low precision that really ran leaves errors far above those of float32: 2**13 times its epsilon in
# float16. A path that silently stayed in float32 has the same error as float32, so 4 tells them
# apart.
_TRACE_OF_LOW_PRECISION = 4
_NUM_SHOWN = 3


def check_semantics(case: Case) -> Proof | str:
    """Return what T1 or T2 gathers of a run, or why neither applies."""
    recipe = case.recipe
    proof = Proof(check="T2" if is_low_precision(recipe) else "T1")
    losses: list[float] = []
    references = _References(case)
    for number, step in enumerate(case.trace.steps, start=1):
        case.on_step()
        try:
            answer = references.ask(step)
        except _NoOneBatchError as error:
            return str(error)
        if answer.truth.drew_random_numbers:
            return "the model draws random numbers"
        if recipe.comm_hook != "none":
            compressed = step.gradients
            step = dataclasses.replace(step, gradients=references.average_uncompressed(step))
            losses.append(measure_errors(compressed, step.gradients).total)
        proof.evidence += _judge_step(step, number, answer, case)
        if number == 1:
            bugs = list(_bugs(references, answer, case))
            proof.plant(bugs, lambda bug: _judge(bug, answer, 1, case))  # noqa: B023
            proof.find_cause = _explain(references, case.trace.steps, answer, bugs)
            proof.vacuous += _why_vacuous(references, step, answer, case)
            proof.notes += _describe_small(answer)
    proof.notes += references.notes
    if losses:
        proof.notes.append(
            f"before comm_hook {recipe.comm_hook!r} compresses the reduction, which changes the "
            f"gradients by {max(losses):.1e}"
        )
    return proof


@dataclass(frozen=True)
class _Answer:
    """What the references say of one step.

    Attributes:
        batch: The samples of all ranks and micro-batches.
        truth: One process in float64.
        plain: One process in the precision of the path.
        plain_gradients: Of it, not scaled.
        plain_errors: Their errors against the truth.
    """

    batch: MicroBatch
    truth: Pass
    plain: Pass
    plain_gradients: Tensors
    plain_errors: Errors


class _References:
    """One process in float64 and one in the path's own precision; both see the whole batch."""

    def __init__(self, case: Case) -> None:
        self.notes: list[str] = []
        self._case = case
        self.truth = self.build("fp64")
        self.plain = self.build(case.recipe.precision)

    def build(self, precision: str) -> Reference:
        """Return one process that sees the whole batch at once."""
        case = self._case
        recipe = plain_recipe(case.recipe, precision=precision, grad_accumulation_steps=1)
        return Reference(case.workload, recipe, device=case.device, seed=case.seed)

    def ask(self, step: Step) -> _Answer:
        """Return what the references say of a step.

        Raises:
            _NoOneBatchError: The batches of the ranks cannot be joined.
        """
        try:
            batch = one_batch([micro_batch for shard in step.shards for micro_batch in shard])
        except ValueError as error:
            raise _NoOneBatchError(str(error)) from error
        self.plain.load(step.before)
        plain = self.plain.run([batch], scale=step.scale)
        plain_gradients = scaled(plain.gradients, 1 / step.scale)
        truth = self._find_truth(step, batch)
        return _Answer(
            batch=batch,
            truth=truth,
            plain=plain,
            plain_gradients=plain_gradients,
            plain_errors=measure_errors(plain_gradients, truth.gradients),
        )

    def average_uncompressed(self, step: Step) -> Tensors:
        """The gradients of a step if nothing compressed their reduction, scaled as recorded."""
        self.plain.load(step.before)
        return average([part for shard in _parts(self.plain, step) for part in shard], "none")

    def _find_truth(self, step: Step, batch: MicroBatch) -> Pass:
        self.truth.load(step.before)
        try:
            return self.truth.run([batch])
        except RuntimeError as error:
            if self.notes:
                raise
            first_line = str(error).strip().partition("\n")[0]
            self.notes.append(f"float32 is the truth, because float64 is refused ({first_line})")
            self.truth = self.build("fp32")
            return self._find_truth(step, batch)


class _NoOneBatchError(Exception):
    """The batches of all ranks do not make one."""


def _judge_step(step: Step, number: int, answer: _Answer, case: Case) -> list[Evidence]:
    truth, plain = answer.truth, answer.plain
    mean_loss = sum(step.losses) / len(step.losses)
    plain_loss = abs(plain.loss - truth.loss) / (abs(truth.loss) or 1.0)
    buffers = measure_buffer_errors(step.after.buffers, truth.buffers)
    plain_buffers = measure_buffer_errors(plain.buffers, truth.buffers)
    return [
        judge_loss(mean_loss, truth.loss, number, _limit(case, plain_loss)),
        *_judge(scaled(step.gradients, 1 / step.scale), answer, number, case),
        *judge(buffers, "buffer", number, _limit(case, plain_buffers.total)),
    ]


def _judge(tested: Tensors, answer: _Answer, number: int, case: Case) -> list[Evidence]:
    return judge(
        measure_errors(tested, answer.truth.gradients),
        "gradient",
        number,
        _limit(case, answer.plain_errors.total),
        parameter_limit=lambda name: _parameter_limit(case, answer.plain_errors, name),
    )


def _limit(case: Case, plain_error: float) -> Limit:
    if not is_low_precision(case.recipe):
        return semantic_limit(case.recipe)
    return ratio_limit(plain_error, path_epsilon(case.recipe))


def _parameter_limit(case: Case, plain_errors: Errors, name: str) -> float:
    if not is_low_precision(case.recipe):
        return semantic_limit(case.recipe).worst_parameter
    own_error = max(plain_errors.by_name.get(name, 0.0), plain_errors.total)
    return ratio_limit(own_error, WORST_PARAMETER_FACTOR * path_epsilon(case.recipe)).value


def _bugs(references: _References, answer: _Answer, case: Case) -> Iterator[Bug]:
    gradients, errors = answer.plain_gradients, answer.plain_errors
    size = num_samples(answer.batch)
    if size > 1:
        yield lost_samples(_mean_of_parts(references.plain, answer, [size // 2]))
    if is_low_precision(case.recipe):
        # A parameter whose error in plain training is half of itself cannot be missed by a check
        # of errors; the smallest of the others can.
        seen = [n for n in errors.by_name if _parameter_limit(case, errors, n) < 1]
        yield from gradient_bugs(gradients, seen)
        return
    yield from gradient_bugs(gradients)
    yield wrong_scale(gradients, case.recipe.plan.world_size)
    if size > 2:
        first = _FIRST_PART * size // _NUM_PARTS
        parts = [first, size - first]
        yield mean_of_means(_mean_of_parts(references.plain, answer, parts))


def _hypotheses(plain: Reference, step: Step, answer: _Answer) -> Iterator[Bug]:
    """What may be wrong with the micro-batches of this step, and is right where they are alike."""
    num_parts = sum(map(len, step.shards))
    yield summed_loss(scaled(answer.plain_gradients, 1 / num_parts))
    parts = [[scaled(part, 1 / step.scale) for part in shard] for shard in _parts(plain, step)]
    yield mean_of_means(average([part for shard in parts for part in shard], "none"))
    num_steps = len(step.shards[0])
    for which, kept in (("first", slice(1, None)), ("last", slice(None, -1))):
        left = [part for shard in parts for part in shard[kept]]
        if left:
            share = (num_steps - 1) / num_steps
            yield lost_micro_batch(scaled(average(left, "none"), share), which)


def _parts(plain: Reference, step: Step) -> list[list[Tensors]]:
    """The gradients of each micro-batch by itself, shard by shard, scaled as recorded."""
    return [
        [plain.run([one], scale=step.scale).gradients for one in shard] for shard in step.shards
    ]


def _mean_of_parts(plain: Reference, answer: _Answer, sizes: list[int]) -> Tensors:
    """The gradients of consecutive parts of the batch, averaged as if they were equally large."""
    begin, parts = 0, []
    for size in sizes:
        part = slice_batch(answer.batch, begin, begin + size)
        parts.append(plain.run([part]).gradients)
        begin += size
    return average(parts, "none")


def _describe_small(answer: _Answer) -> Iterator[str]:
    names = answer.plain_errors.too_small
    if names:
        shown = ", ".join(map(repr, names[:_NUM_SHOWN])) + ", ..." * (len(names) > _NUM_SHOWN)
        yield (
            f"not compared by themselves, because they are below {SMALLEST_SHARE:.0e} of all "
            f"gradients: {shown}"
        )


def _why_vacuous(references: _References, step: Step, answer: _Answer, case: Case) -> Iterator[str]:
    if answer.plain_errors.size == 0:
        yield "all gradients are zero"
    if not is_low_precision(case.recipe) or answer.truth.loss != answer.truth.loss:
        return
    exact = references.build("fp32")
    exact.load(step.before)
    fp32 = measure_errors(exact.run([answer.batch]).gradients, answer.truth.gradients).total
    tested = scaled(step.gradients, 1 / step.scale)
    error = measure_errors(tested, answer.truth.gradients).total
    if error <= _TRACE_OF_LOW_PRECISION * fp32:
        yield (
            f"low precision left no trace: the error is {error:.1e}, that of float32 {fp32:.1e}; "
            "does the model use operators that autocast casts?"
        )


def _explain(
    references: _References, steps: Sequence[Step], answer: _Answer, bugs: list[Bug]
) -> Callable[[Evidence], str | None]:
    def explain(evidence: Evidence) -> str | None:
        if has_batchnorm(references.truth.trainer.module):
            return (
                "BatchNorm: each rank, micro-batch or chunk is normalised by its own statistics, "
                "which is a different computation; use SyncBatchNorm or GroupNorm"
            )
        if evidence.what == "buffer":
            return (
                "the forward pass changes a buffer by the data that it sees, and no process sees "
                "the whole batch"
            )
        wrong, its_answer, planted = steps[evidence.step - 1], answer, bugs
        if evidence.step != 1:
            its_answer, planted = references.ask(wrong), []
        references.plain.load(wrong.before)
        hypotheses = [*_hypotheses(references.plain, wrong, its_answer), *planted]
        tested = scaled(wrong.gradients, 1 / wrong.scale)
        return explain_gradients(tested, its_answer.plain_gradients, hypotheses)(evidence)

    return explain
