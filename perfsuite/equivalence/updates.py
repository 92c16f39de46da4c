"""Each step ends in the weights that the optimizer makes of the recorded gradients.

One process steps the workload's own optimizer from the recorded weights by the recorded gradients,
unscaling, clipping and master weights included. Together with gradients that are right at every
step this proves the whole run by induction. Must not know where the gradients came from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch

from perfsuite.equivalence.case import Case
from perfsuite.equivalence.comparison import Evidence, judge, measure_errors, total_norm
from perfsuite.equivalence.limits import BITWISE, Limit
from perfsuite.equivalence.proof import Proof
from perfsuite.equivalence.references import Reference, plain_recipe
from perfsuite.equivalence.results import Planted
from perfsuite.equivalence.snapshots import read_weights
from perfsuite.equivalence.trace import Step, Tensors
from perfsuite.training.step import apply_gradients, clip_gradients, finish_gradients
from perfsuite.training.trainer import Trainer

_SPLITTING_MODES = ("fsdp", "hsdp", "tp", "pp", "mp")


def check_updates(case: Case, proof: Proof) -> None:
    """Add to a proof what the optimizer's steps prove, the weights before the first included."""
    replay = _replay(case)
    start = read_weights(replay.trainer.module).parameters
    proof.evidence += judge(
        measure_errors(case.trace.start.parameters, start), "parameter", 0, BITWISE
    )
    mistakes = [_Mistake(name, apply, _replay(case)) for name, apply in _mistakes(case)]
    for number, step in enumerate(case.trace.steps, start=1):
        case.on_step()
        expected = _take_step(replay, step, case.trace.sparse, apply_gradients)
        limit = _limit(case, step, expected)
        proof.evidence.append(_judge(step.after.parameters, expected, step, number, limit))
        for mistake in mistakes:
            mistaken = _take_step(mistake.replay, step, case.trace.sparse, mistake.apply)
            evidence = _judge(mistaken, expected, step, number, limit)
            mistake.differs |= evidence.error > 0
            mistake.is_flagged |= not evidence.is_within
    # Adam's step hardly depends on the length of a gradient: clipping that changes no bit cannot be
    # wrong. Weights that do not move at all are another matter.
    proof.planted += [
        Planted(bug=mistake.name, is_flagged=mistake.is_flagged)
        for mistake in mistakes
        if mistake.differs or mistake.apply is finish_gradients
    ]


@dataclass
class _Mistake:
    """A wrong way to step, tried beside the right one at every step.

    Attributes:
        name: What is wrong, in words.
        apply: Steps in the wrong way.
        replay: Its own optimizer, which remembers what it did.
        differs: Whether it has changed anything yet.
        is_flagged: Whether a comparison has found it yet.
    """

    name: str
    apply: Callable[[Trainer], None]
    replay: Reference
    differs: bool = False
    is_flagged: bool = False


def _replay(case: Case) -> Reference:
    return Reference(case.workload, plain_recipe(case.recipe), device=case.device, seed=case.seed)


def _take_step(
    replay: Reference, step: Step, sparse: Collection[str], apply: Callable[[Trainer], None]
) -> Tensors:
    """The parameters after `apply` has stepped by the recorded gradients, `sparse` ones as such."""
    trainer = replay.trainer
    replay.load(step.before)
    if trainer.scaler.is_enabled():
        trainer.scaler.update(step.scale)
    for name, parameter in trainer.module.named_parameters():
        gradient = step.gradients.get(name)
        if gradient is None:
            parameter.grad = None
            continue
        # A copy, because unscaling and clipping change it in place.
        gradient = gradient.clone().to(parameter.device)
        parameter.grad = gradient.to_sparse(1) if name in sparse else gradient
    apply(trainer)
    return read_weights(trainer.module).parameters


def _judge(tested: Tensors, expected: Tensors, step: Step, number: int, limit: Limit) -> Evidence:
    """The error in units of what the step moves, all parameters together."""
    off = measure_errors(tested, expected)
    moved = _moved(expected, step)
    error = off.total * off.size / (moved or 1.0) if 0 < off.total < math.inf else off.total
    return Evidence(
        what="parameter",
        step=number,
        error=error,
        limit=limit.value,
        formula=limit.formula,
        name=next((name for name, error in off.by_name.items() if error), None),
    )


def _moved(expected: Tensors, step: Step) -> float:
    before = step.before.parameters
    return total_norm({name: expected[name].double() - before[name].double() for name in expected})


def _limit(case: Case, step: Step, expected: Tensors) -> Limit:
    """Equal bits, but where ranks add up the norm of what they clip, each from its own part.

    Such a norm, and so the whole step D, is off by a share e = 2 u sqrt(ws). Besides, a share of
    e |D| / (u |p|) of the elements p then rounds to the other side, by u |p| each; the root of the
    sum of their squares is at most sqrt(e u |p| |D|), by Cauchy and Schwarz. Sparse gradients may
    hold a row several times, and adding it piece by piece rounds every element of p once more.
    """
    recipe = case.recipe
    adds_norms = recipe.clip_grad_norm is not None and recipe.plan.mode in _SPLITTING_MODES
    if not adds_norms and not case.trace.sparse:
        return BITWISE
    epsilon = max(torch.finfo(parameter.dtype).eps for parameter in expected.values())
    share = 2 * epsilon * math.sqrt(recipe.plan.world_size)
    size = total_norm(expected) / (_moved(expected, step) or 1.0)
    terms = f"e 2 u sqrt(ws), u {epsilon:.1e}, in units of the step |D|"
    if case.trace.sparse:
        value = share + 2 * epsilon * size
        return Limit(value, f"e + 2 u |p| / |D|, {terms}", value)
    value = share + math.sqrt(share * epsilon * size)
    return Limit(value, f"e + sqrt(e u |p| / |D|), {terms}", value)


def _mistakes(case: Case) -> Iterator[tuple[str, Callable[[Trainer], None]]]:
    if not case.trace.steps:
        return
    yield "the weights stay as they are", finish_gradients
    step, max_norm = case.trace.steps[0], case.recipe.clip_grad_norm
    if max_norm is None or total_norm(step.gradients) <= max_norm * step.scale:
        return
    yield "the gradients are not clipped", _without_clipping
    if step.scale != 1.0:
        yield "the gradients are clipped before they are unscaled", _clipped_while_scaled


def _without_clipping(trainer: Trainer) -> None:
    finish_gradients(trainer)
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.update()


def _clipped_while_scaled(trainer: Trainer) -> None:
    finish_gradients(trainer)
    assert trainer.recipe.clip_grad_norm is not None
    clip_gradients(trainer, trainer.recipe.clip_grad_norm)
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.update()
