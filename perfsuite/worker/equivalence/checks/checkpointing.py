"""Checkpointing: recomputing in the backward pass changes nothing, random numbers included.

The twin is a run of the same recipe on the same ranks without checkpointing.
"""

from collections.abc import Iterator
from functools import partial

import torch

from perfsuite.records.recipe import Recipe
from perfsuite.worker.equivalence import comparison
from perfsuite.worker.equivalence.comparison import Discrepancy, Tensors
from perfsuite.worker.equivalence.limits import BITWISE, Limit, above_noise, reduction_limit
from perfsuite.worker.equivalence.planted_bugs import Bug, gradient_bugs, wrong_scale
from perfsuite.worker.equivalence.proof import Case, Proof, judge_buffers


def check_checkpointing(case: Case) -> Proof | str:
    """Return what the comparison with the twin shows, or why there is none."""
    if case.twin is None:
        return "the recipe recomputes nothing"
    proof = Proof(check="checkpointing", on_bug=case.on_step)
    limit = _limit(case)
    pairs = zip(case.trace.steps, case.twin.steps, strict=False)
    for number, (step, twin) in enumerate(pairs, start=1):
        if number > 1 and limit.value > 0:
            break  # the runs may drift apart by more than the rounding of one step
        proof.evidence += [
            *comparison.judge_losses(step.losses, twin.losses, number, limit),
            # Before the gradients, which may follow from them.
            *judge_buffers(step, twin.buffers, number, limit),
            *comparison.judge("gradient", step.gradients, twin.gradients, number, limit),
        ]
        if number == 1:
            judge = partial(
                comparison.judge, "gradient", expected=twin.gradients, step=1, limit=limit
            )
            proof.plant(_bugs(twin.gradients, case.recipe, limit), judge)
    proof.find_cause = _explain
    ours, its = case.trace.num_calls, case.twin.num_calls
    if ours is None or its is None:
        hidden = "whether anything was recomputed cannot be seen in a compiled model or threads"
        proof.notes.append(hidden)
    elif ours <= its:  # of each: under FSDP, segments also have other operators of its own
        why = "no operator is called more often than without checkpointing"
        proof.vacuous.append(f"nothing was recomputed: {why}")
    return proof


def _limit(case: Case) -> Limit:
    """Equal bits, unless FSDP shards by segments and so sums over the ranks in another order."""
    limit, recipe = BITWISE, case.recipe
    if recipe.plan.properties.resizes_storages and recipe.num_segments is not None:
        epsilon = comparison.coarsest_epsilon(case.trace.steps[0].gradients)
        limit = reduction_limit(epsilon, recipe, case.device)
    return above_noise(limit, case.noise)


def _bugs(gradients: Tensors, recipe: Recipe, limit: Limit) -> Iterator[Bug]:
    yield from gradient_bugs(gradients)
    yield wrong_scale(gradients, recipe.plan.world_size)
    if limit.value > 0:
        return
    name = next((name for name, gradient in gradients.items() if bool(gradient.any())), None)
    if name is None:
        return
    nudged = gradients[name].flatten().clone()
    nudged[nudged.abs().argmax()] *= 1 + torch.finfo(nudged.dtype).eps
    what = f"one element of the gradient of {name!r} is off by one rounding"
    others = {**gradients, name: nudged.view_as(gradients[name])}
    yield Bug(what, "recomputation rounds differently", others)


def _explain(discrepancy: Discrepancy) -> str:
    if discrepancy.what == "buffer":
        changes = "the forward pass changes a buffer, as BatchNorm changes its statistics"
        return f"side effects: {changes}, and recomputation changes it once more"
    draws = "random numbers: recomputation draws other numbers than the forward pass did"
    own = "does the model draw from a generator of its own?"
    return f"{draws}; is preserve_rng_state off, or {own}"
