"""What of a user's own steps one process can be compared in, and why the rest is not."""

from collections.abc import Mapping

from torch import nn

from perfsuite.errors import WorkloadError
from perfsuite.units import listed
from perfsuite.worker.equivalence import comparison
from perfsuite.worker.equivalence.comparison import Tensors
from perfsuite.worker.equivalence.trace.trace import Trace, Weights


def why_losses_alone(trace: Trace, parameters: Mapping[str, nn.Parameter]) -> str | None:
    """Why only losses are compared, None where gradients and weights are too."""
    ours = trace.start.parameters
    sides = (("build_step", ours, parameters), ("the reference", parameters, ours))
    for side, names, _ in sides:
        if not names:
            return f"{side} returns no Step.model"
    only = [(side, [n for n in names if n not in others]) for side, names, others in sides]
    if which := [f"only {side}'s has {listed(names)}" for side, names in only if names]:
        raise WorkloadError(
            f"Step.model trains {len(ours)} parameters in build_step and {len(parameters)} in the "
            f"reference, which are matched by name: {'; '.join(which)}; build the same model in "
            "both, wrapped or not, its weights tied and frozen alike, or leave Step.model out"
        )
    if (name := first_part(trace, parameters)) is not None:
        shapes = f"{tuple(ours[name].shape)} on the ranks and {tuple(parameters[name].shape)}"
        why = "parts that are no DTensor cannot be put together"
        return f"{name!r} has the shape {shapes} in the reference: {why}"
    if not any(step.gradients for step in trace.steps):
        return "no torch optimizer found a gradient of Step.model"
    return None


def why_start_differs(trace: Trace, begun: Weights) -> dict[str, str]:
    """Why the ranks' initial weights are not proven: the reference has `begun` with others."""
    ours, theirs = trace.start.parameters, begun.parameters
    names = [name for name in ours if name in theirs and ours[name].shape == theirs[name].shape]
    # One side may have rounded what the other has.
    limit = max(comparison.coarsest_epsilon(ours), comparison.coarsest_epsilon(theirs))
    unlike = (comparison.relative_error(ours[name], theirs[name]) > limit for name in names)
    found = [repr(name) for name, differs in zip(names, unlike, strict=True) if differs]
    why = f"{listed(found)} began with other values on the ranks, and the reference took those"
    return {"initial weights": why} if found else {}


def unchanged_buffers(trace: Trace) -> frozenset[str]:
    """Return the buffers that no step of the ranks changes: the reference keeps its own."""
    start, after = trace.start.buffers, [step.after.buffers for step in trace.steps]
    kept = (name for name in start if not any(_differ(start, its, name) for its in after))
    return frozenset(kept)


def _differ(ours: Tensors, theirs: Tensors, name: str) -> bool:
    if name not in theirs:
        return True
    found = comparison.measure_buffer_errors({name: ours[name]}, {name: theirs[name]})
    return found.total != 0


def explain_buffers(trace: Trace, begun: Weights, unchanged: frozenset[str]) -> str | None:
    """Return the cause where an unchanged buffer or parameter is not the reference's."""
    ours, theirs = trace.start.buffers, begun.buffers
    names = sorted(unchanged & theirs.keys())
    if unlike := [repr(name) for name in names if _differ(ours, theirs, name)]:
        found = f"{listed(unlike)} of the ranks and of the reference differ"
        return f"{found}: drawn or loaded otherwise"
    return None


def first_part(trace: Trace, parameters: Mapping[str, nn.Parameter]) -> str | None:
    """Return the first parameter of which the ranks hold a part that is no DTensor."""
    ours = trace.start.parameters
    return next((n for n in ours if n in parameters and ours[n].shape != parameters[n].shape), None)
