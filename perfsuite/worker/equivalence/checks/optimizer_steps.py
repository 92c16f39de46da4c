"""Each step ends in the weights that the optimizer makes of the recorded gradients.

One process steps the workload's own optimizer from the recorded weights with the recorded
gradients, in plain torch: it unscales, clips and keeps master weights itself. Together with
gradients that are right at every step this proves the whole run by induction.
"""

import itertools
import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.optim import Optimizer

from perfsuite.errors import WorkloadError
from perfsuite.units import listed
from perfsuite.worker.equivalence import comparison
from perfsuite.worker.equivalence.comparison import Discrepancy, Tensors, judge_update
from perfsuite.worker.equivalence.diagnosis import FILLED, explain_non_finite, explain_start
from perfsuite.worker.equivalence.limits import BITWISE, Limit, update_limit
from perfsuite.worker.equivalence.proof import KEPT_WEIGHTS, Case, Proof
from perfsuite.worker.equivalence.trace.trace import Step, Weights, read_weights
from perfsuite.worker.measure.device import is_accelerator
from perfsuite.worker.training.mixed_precision import PRECISION_POLICIES

# Muon's iteration is in bfloat16, torch's and others'.
_OF_MUON = Limit(0.1, "a tenth of the step |D|", 0.1)
_ROUNDS = "Muon's iteration in bfloat16 rounds parts otherwise: a step is proven to a tenth alone"


def check_optimizer_steps(case: Case, proof: Proof) -> None:
    """Add the discrepancies of the weights before the first step and after each one to a proof."""
    replay, mistakes = _Replay(case, case.recipe.clip_grad_norm), _mistakes(case)
    start = replay.weights()
    if others := start.parameters.keys() ^ case.trace.start.parameters.keys():
        raise WorkloadError(
            f"workload {case.workload.name!r}: {listed(sorted(map(repr, others)))} is trained in "
            "one process and not on the ranks, or the reverse; does parallelize freeze it?"
        )
    proof.evidence += _judge_start(case, start)
    is_muon = type(replay.optimizer).__name__ == "Muon"
    may_round = is_muon and case.recipe.plan.properties.splits_tensors
    # Weights that do not move are wrong in any case; what else changes no bit cannot be: Adam's
    # step hardly depends on the length of a gradient.
    proof.planted[KEPT_WEIGHTS] = False
    for number, recorded in enumerate(case.trace.steps, start=1):
        case.on_step()
        step = _without_fillings(case, recorded)
        expected, before = replay.take_step(step), step.before.parameters
        limit = _limit(case, step, number, expected, replay.optimizer)
        proof.evidence += _find_non_finite(step, number, replay.optimizer)
        after = step.after.parameters
        found = judge_update("parameter", after, expected, before, number, limit)
        if may_round and not found.is_within:
            found = judge_update("parameter", after, expected, before, number, _OF_MUON)
            if _ROUNDS not in proof.vacuous:
                proof.vacuous.append(_ROUNDS)
        proof.evidence.append(found if step is recorded else found._replace(cause=FILLED))
        if step.after.buffers:
            buffers = _rounded_like(step.after.buffers, replay.weights().buffers)
            _check_buffers(step, buffers, number, limit, proof)
        wrong = {name: mistake.take_step(step) for name, mistake in mistakes.items()}
        for name, tested in {KEPT_WEIGHTS: before, **wrong}.items():
            planted = judge_update("parameter", tested, expected, before, number, limit)
            proof.plant_at_step(name, [planted])


def _without_fillings(case: Case, step: Step) -> Step:
    """The step without zeros in place of no gradient, by which momentum and decay move weights."""
    zeros = {name for name, gradient in step.gradients.items() if not gradient.any()}
    if not zeros:
        return step
    reference = case.reference()
    reference.load(step.before)
    filled = zeros - reference.run([*itertools.chain(*step.shards)]).gradients.keys()
    kept = {name: one for name, one in step.gradients.items() if name not in filled}
    return step._replace(gradients=kept)


def _judge_start(case: Case, start: Weights) -> Iterator[Discrepancy]:
    tested = case.trace.start
    weights = _rounded_like(tested.parameters, start.parameters)
    buffers = _rounded_like(tested.buffers, start.buffers)
    found_all = comparison.judge("parameter", tested.parameters, weights, 0, BITWISE)
    if buffers:
        found_all += comparison.judge("buffer", tested.buffers, buffers, 0, BITWISE)
    for found in found_all:
        name = found.name
        if name in tested.parameters.keys() & weights.keys() and not found.is_within:
            cause = explain_start(tested.parameters[name], weights[name], case.recipe.plan)
            found = found._replace(cause=cause)
        yield found


def _check_buffers(step: Step, expected: Tensors, number: int, limit: Limit, proof: Proof) -> None:
    asked = "does every rank average its weights, and after each step?"
    cause = f"the optimizer's step leaves other buffers than in one process: {asked}"
    found = comparison.judge("buffer", step.after.buffers, expected, number, limit)
    proof.evidence += [one._replace(cause=cause) for one in found]
    kept = {name: one for name, one in step.buffers.items() if name in expected}
    unmoved = comparison.judge("buffer", kept, expected, number, limit)
    proof.plant_at_step("the optimizer leaves the buffers as they are", unmoved)


class _Replay:
    """The optimizer of one process, stepped with given gradients; it keeps its state.

    It clips them to `max_norm` where there is one, before they are unscaled if `clips_scaled`.
    """

    def __init__(self, case: Case, max_norm: float | None, *, clips_scaled: bool = False) -> None:
        recipe = case.recipe
        self._has_master_weights = PRECISION_POLICIES[recipe.precision].master_weights
        self._max_norm, self._clips_scaled = max_norm, clips_scaled
        self._sparse, self._num_steps = case.trace.sparse, 0
        precision = "fp32" if self._has_master_weights else recipe.precision
        self._reference = case.reference(precision=precision)
        self.optimizer = self._reference.trainer.optimizer

    def weights(self) -> Weights:
        return read_weights(self._reference.trainer.module)

    def take_step(self, step: Step) -> Tensors:
        """The parameters after a step from the recorded weights, in the recorded dtypes."""
        trainer = self._reference.trainer
        # Master weights start as the rounded weights; from the first step on they are more precise.
        if not self._has_master_weights or self._num_steps == 0:
            self._reference.load(step.before)
        # From the parameters as the forward passes left them; those do not change master weights.
        own = step.before.parameters if self._has_master_weights else {}
        buffers = {name: one for name, one in step.buffers.items() if name not in own}
        self._reference.load(Weights(parameters={}, buffers=buffers))
        self._num_steps += 1
        for name, parameter in trainer.module.named_parameters():
            gradient = step.gradients.get(name)
            parameter.grad = None
            if gradient is not None:
                # Copied, because unscaling and clipping change it in place.
                gradient = gradient.to(parameter.device, parameter.dtype, copy=True)
                parameter.grad = gradient.to_sparse(1) if name in self._sparse else gradient
        # The norm is of what the optimizer holds, and rounds by its order.
        held = [one for group in self.optimizer.param_groups for one in group["params"]]
        if self._max_norm is not None and self._clips_scaled:
            nn.utils.clip_grad_norm_(held, self._max_norm)
        for parameter in held:
            if parameter.grad is not None:
                parameter.grad.mul_(1 / step.scale)
        if self._max_norm is not None and not self._clips_scaled:
            nn.utils.clip_grad_norm_(held, self._max_norm)
        self.optimizer.step()
        return _rounded_like(step.after.parameters, self.weights().parameters)


def _rounded_like(tested: Tensors, expected: Tensors) -> Tensors:
    """The expected weights in the dtypes of the tested ones, which may round master weights."""
    return {
        name: tensor.to(tested[name].dtype) if name in tested else tensor
        for name, tensor in expected.items()
    }


def _find_non_finite(step: Step, number: int, optimizer: Optimizer) -> list[Discrepancy]:
    """The first weight that a step made infinite, which the right step by its gradient does too."""
    if not all(map(math.isfinite, step.losses)):
        return []  # which says more
    for name, weight in step.after.parameters.items():
        if (cause := explain_non_finite(weight, optimizer, number)) is not None:
            return [Discrepancy("parameter", number, math.inf, 0.0, "finite", name, cause=cause)]
    return []


def _limit(case: Case, step: Step, number: int, expected: Tensors, optimizer: Optimizer) -> Limit:
    """Equal bits, except where the ranks round differently from one process.

    Ranks that split parameters add up norms from their parts: the one for clipping, and those of
    single tensors in LARS and LAMB. And where they step parts of a parameter of 16 bits, a CPU
    rounds the last elements of a part more often, and the optimizer's momentum carries that on.
    """
    recipe, epsilon = case.recipe, comparison.coarsest_epsilon(expected)
    policy, mode = PRECISION_POLICIES[recipe.precision], recipe.plan.properties
    steps_parts = mode.splits_tensors and case.device.type == "cpu"
    is_narrow = epsilon > torch.finfo(torch.float32).eps and not policy.master_weights
    # On a device the norms of views into buckets, which lie elsewhere in memory, round otherwise.
    is_viewed = recipe.gradient_as_bucket_view and is_accelerator(case.device)
    adds_norms = recipe.clip_grad_norm is not None and (mode.splits_parameters or is_viewed)
    # torch's own optimizers, but for Adafactor and Muon, step element by element.
    adds_norms |= mode.splits_tensors and not type(optimizer).__module__.startswith("torch.")
    if steps_parts and is_narrow:
        share, formula = 2 * epsilon * number, f"e 2 u n, n {number}"
    elif adds_norms or case.trace.sparse:
        share, formula = 2 * epsilon * math.sqrt(recipe.plan.world_size), "e 2 u sqrt(ws)"
    else:
        return BITWISE
    length = comparison.step_length(expected, step.before.parameters)
    size = comparison.total_norm(expected) / length
    pieces = max(case.trace.sparse.values(), default=0)
    return update_limit(share, formula, epsilon, size, pieces=pieces)


def _mistakes(case: Case) -> dict[str, _Replay]:
    """Wrong ways to step, by name; none where clipping would change nothing."""
    step, max_norm = case.trace.steps[0], case.recipe.clip_grad_norm
    if max_norm is None or comparison.total_norm(step.gradients) <= max_norm * step.scale:
        return {}
    mistakes = {"the gradients are not clipped": _Replay(case, None)}
    if step.scale != 1.0:
        name = "the gradients are clipped before they are unscaled"
        mistakes[name] = _Replay(case, max_norm, clips_scaled=True)
    return mistakes
