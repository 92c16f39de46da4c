"""T0: the ranks' gradients are the mean of what each rank computed by itself.

The reference computes shard by shard in one process and averages in rank order, in the dtype that
the ranks reduce in. So T0 proves the collective, the buckets, the hooks and the accumulation and
nothing else: a low precision or a BatchNorm is the same on both sides.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from perfsuite.records.equivalence import EquivalenceRow
from perfsuite.records.recipe import Recipe
from perfsuite.units import listed
from perfsuite.worker.equivalence import comparison, diagnosis, limits, planted_bugs
from perfsuite.worker.equivalence.checks.data import have_equal_shards
from perfsuite.worker.equivalence.comparison import Tensors
from perfsuite.worker.equivalence.planted_bugs import Bug
from perfsuite.worker.equivalence.proof import Case, Proof, judge_buffers
from perfsuite.worker.equivalence.references import averaging
from perfsuite.worker.equivalence.references.single_process import Pass, Reference
from perfsuite.worker.equivalence.trace.trace import Step
from perfsuite.worker.training.mixed_precision import PRECISION_POLICIES

# PowerSGD feeds back the errors of its compression. They grow with every step, and rounding with
# them, so only the first steps are compared.
_NUM_POWERSGD_STEPS = 3


def check_reduction(case: Case) -> Proof | EquivalenceRow | str:
    """Return what T0 shows, or why it does not apply."""
    recipe = case.recipe
    if (reason := recipe.plan.properties.why_no_reduction) is not None:
        return reason
    if case.trace.num_calls is None and not recipe.plan.properties.runs_threads:
        return "torch.compile fuses operators, which rounds otherwise"
    reference = case.reference()
    is_divided = recipe.plan.data_parallel_size > 1
    proof = Proof(check="T0", on_bug=case.on_step)
    reduce = _reduction(case, reference)
    steps = case.trace.steps
    if recipe.comm_hook == "powersgd":
        steps = steps[:_NUM_POWERSGD_STEPS]
    for number, step in enumerate(steps, start=1):
        case.on_step()
        passes = _run_shards(reference, step, recipe)
        # The ranks of a pipeline share a batch, and each draws for its stages.
        if not is_divided and (reason := passes[0].why_not_repeated(by_several=True)) is not None:
            return reason
        expected = reduce([one.gradients for one in passes])
        limit = _limit(step.gradients, case)
        # Rank 0 saw the first shard. A buffer that a rank does not have is not compared.
        buffers = passes[0].buffers
        proof.evidence += [
            *comparison.judge_draws(_find_wrong_draw(passes), number),
            *comparison.judge_losses(step.losses, [one.loss for one in passes], number, limit),
            *_judge(step.gradients, expected, number, limit),
            *judge_buffers(step, buffers, number, limit),
        ]
        proof.plant_buffers(step, buffers, limit)
        if number == 1:
            bugs = list(_bugs(reference, step, passes, expected, recipe))
            proof.plant(bugs, lambda tested: _judge(tested, expected, 1, limit))  # noqa: B023
            proof.find_cause = partial(_find_cause, case, expected, bugs)
    if not all(one.is_within for one in proof.evidence):
        passes, again = (_run_shards(reference, case.trace.steps[0], recipe) for _ in range(2))
        is_apart = any(one.what == "gradient" for one in case.trace.differences)
        if not (is_apart or all(map(Pass.is_as, passes, again))):
            return EquivalenceRow.of(recipe, "T0", "not exercised", diagnosis.STATEFUL)
        if is_divided:
            return _find_excuse(case, reference) or proof
    if any(have_equal_shards(step) for step in case.trace.steps):
        why = "two ranks saw the same data, so that a missing reduction would change nothing"
        proof.vacuous.append(why)
    return proof


def _find_excuse(case: Case, reference: Reference) -> EquivalenceRow | str | None:
    """Why a difference may be right: a model or a loss that communicates mixes the shards."""
    if not (names := case.mixing_layers(reference.trainer.module)):
        return None
    where = f"communication in the forward pass ({listed(names)})"
    reason = f"{where} makes a rank's gradient depend on other shards too"
    if limits.is_low_precision(case.recipe):
        reason += f"; T2 does not see what is below the rounding of {case.recipe.precision}"
    elif case.recipe.comm_hook != "none":
        reason += "; T1 does not see what comm_hook reduces"
    else:
        return reason
    return EquivalenceRow.of(case.recipe, "T0", "not exercised", reason)


def _reduction(case: Case, reference: Reference) -> Callable[[Sequence[Tensors]], Tensors]:
    """How the ranks average, for all steps: PowerSGD remembers the steps before."""
    recipe = case.recipe
    if recipe.comm_hook != "powersgd":
        return lambda shares: averaging.average(shares, recipe.comm_hook)
    # The hook counts reductions, also those of skipped steps and one that learns a static graph.
    learns_graph = recipe.static_graph and recipe.grad_accumulation_steps > 1
    num_plain = max(0, averaging.NUM_PLAIN_STEPS - case.trace.num_skipped - learns_graph)
    parameters = dict(reference.trainer.module.named_parameters())
    power = averaging.PowerSGD(parameters, num_plain_steps=num_plain)
    return lambda shares: power.average(shares, case.trace.bucket_layout)


def _find_cause(
    case: Case, expected: Tensors, bugs: Sequence[Bug], discrepancy: comparison.Discrepancy
) -> str | None:
    cause = diagnosis.explain_gradients(case.trace.steps[0].gradients, expected, bugs)
    if cause is None and any(one.what == "gradient" for one in case.trace.differences):
        within = "was a micro-batch that is to be reduced inside no_sync()?"
        return f"the gradients are not synchronised: {within}"
    return cause


def _run_shards(reference: Reference, step: Step, recipe: Recipe) -> list[Pass]:
    return [_run_shard(reference, step, index, recipe) for index in range(len(step.shards))]


def _run_shard(
    reference: Reference, step: Step, index: int, recipe: Recipe, *, draws_anew: bool = False
) -> Pass:
    reference.load(step.before)
    shard, num_chunks = step.shards[index], recipe.plan.num_chunks
    return reference.run(shard, scale=step.scale, num_chunks=num_chunks, draws_anew=draws_anew)


def _find_wrong_draw(passes: Sequence[Pass]) -> str | None:
    for index, one in enumerate(passes):
        if one.wrong_draw is not None:
            return f"shard {index}: {one.wrong_draw}" if len(passes) > 1 else one.wrong_draw
    return None


def _judge(
    tested: Tensors, expected: Tensors, number: int, limit: limits.Limit
) -> list[comparison.Discrepancy]:
    return [
        *comparison.judge("gradient", tested, expected, number, limit),
        *comparison.judge_alignment(tested, expected, number, limit),
    ]


def _bugs(
    reference: Reference, step: Step, passes: Sequence[Pass], expected: Tensors, recipe: Recipe
) -> Iterator[Bug]:
    shares = [one.gradients for one in passes]
    if passes[-1].draws:
        anew = _run_shard(reference, step, -1, recipe, draws_anew=True).gradients
        for bug in planted_bugs.drawn_anew(anew, shares[-1]):
            mean = averaging.average([*shares[:-1], bug.gradients], recipe.comm_hook)
            yield bug._replace(gradients=mean)
    if len(shares) > 1:
        yield from planted_bugs.reduction_bugs(shares, recipe.comm_hook)
    if recipe.grad_accumulation_steps > 1:
        for which, kept in (("first", slice(1, None)), ("last", slice(None, -1))):
            shards = [micro_batches[kept] for micro_batches in step.shards]
            passes = _run_shards(reference, step._replace(shards=shards), recipe)
            lost = averaging.average([one.gradients for one in passes], recipe.comm_hook)
            yield planted_bugs.lost_micro_batch(lost, which)
    yield planted_bugs.wrong_scale(expected, recipe.plan.world_size)
    yield from planted_bugs.gradient_bugs(expected)


def _limit(gradients: Tensors, case: Case) -> limits.Limit:
    dtypes = {gradient.dtype for gradient in gradients.values()}
    if (hook_dtype := averaging.HOOK_DTYPES.get(case.recipe.comm_hook)) is not None:
        dtypes.add(hook_dtype)
    is_ordered = not case.trace.sparse
    low = PRECISION_POLICIES[case.recipe.precision].autocast_dtype
    if case.recipe.plan.properties.cuts_model and low is not None:
        # Autocast casts a leaf once, and other tensors for each use. What a stage is handed is a
        # leaf, so the gradients of its uses are added before they are cast back, not after.
        dtypes.add(low)
        is_ordered = False
    epsilon = max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
    pieces = max(case.trace.sparse.values(), default=1)
    limit = limits.reduction_limit(
        epsilon, case.recipe, case.device, is_ordered=is_ordered, pieces=pieces
    )
    if case.recipe.comm_hook == "powersgd":  # elements of a matrix share its rounded factors
        limit = limit._replace(shared=epsilon)
    return limits.above_noise(limit, case.noise)
