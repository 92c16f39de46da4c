"""Run every check that applies to a recorded run, and conclude each to one row of the report.

Runs in one process. It imports no torch.distributed: no reference may share a mistake of the ranks.
"""

from collections.abc import Callable

from perfsuite.records.equivalence import Check, EquivalenceRow, semantic_check
from perfsuite.worker.equivalence.checks.checkpointing import check_checkpointing
from perfsuite.worker.equivalence.checks.data import check_data
from perfsuite.worker.equivalence.checks.optimizer_steps import check_optimizer_steps
from perfsuite.worker.equivalence.checks.reduction import check_reduction
from perfsuite.worker.equivalence.checks.semantics import check_semantics
from perfsuite.worker.equivalence.proof import Case, Proof


def check_run(case: Case) -> tuple[tuple[EquivalenceRow, ...], dict[str, str]]:
    """Return the row of every check that applies, and by name why the others do not.

    What holds for any run (weights equal on all ranks, steps that follow from the gradients) is
    part of the first check that applies.
    """
    recipe = case.recipe
    semantics = semantic_check(recipe.precision)
    if len(case.trace.steps) < case.num_steps:
        reason = (
            f"the scaler skipped {case.trace.num_skipped} steps, because their gradients were not "
            f"finite, and {len(case.trace.steps)} of {case.num_steps} were taken; use a smaller "
            "loss, or a precision with more range"
        )
        return (EquivalenceRow.of(recipe, semantics, "no power", reason),), {}
    if (difference := _find_other_shape(case)) is not None:
        return (EquivalenceRow.of(recipe, semantics, "mismatch", difference),), {}
    proven, not_exercised, inapplicable = _prove(case, semantics)
    rows = [*proven.values(), *not_exercised]
    # The reference of the checkpointing check is the same parallel mode without checkpointing,
    # which is one process, sharing no code with the recipe, only where the recipe is.
    has_reference = any(one != "checkpointing" or recipe.plan.mode == "single" for one in proven)
    if not not_exercised and not has_reference:
        reason = "; ".join(f"{name} does not apply: {why}" for name, why in inapplicable.items())
        rows.append(EquivalenceRow.of(recipe, semantics, "not exercised", reason))
        inapplicable = {}
    return (*rows, check_data(case)), inapplicable


def _prove(
    case: Case, semantics: Check
) -> tuple[dict[str, EquivalenceRow], list[EquivalenceRow], dict[str, str]]:
    checks: dict[str, Callable[[Case], Proof | EquivalenceRow | str]] = {
        "T0": check_reduction,
        semantics: check_semantics,
        "checkpointing": check_checkpointing,
    }
    # What ranks draw for their parts of a user's layers is theirs. Buffers that differ between
    # ranks are T1's or T2's; T0 allows them.
    apart = {"buffer", "random draw"} if case.recipe.plan.model_axes else {"buffer"}
    differences = case.trace.differences
    unequal = [one for one in differences if one.what == "buffer"]
    proven: dict[str, EquivalenceRow] = {}
    not_exercised: list[EquivalenceRow] = []
    inapplicable: dict[str, str] = {}
    for name, check in checks.items():
        result = check(case)
        if isinstance(result, EquivalenceRow):
            not_exercised.append(result)
        elif isinstance(result, str):
            inapplicable[name] = result
        else:
            if not proven:
                check_optimizer_steps(case, result)
                result.evidence += [one for one in differences if one.what not in apart]
            if name == semantics:
                result.evidence += unequal
            # Before the next one: a proof keeps its references, which fill a device.
            proven[name] = result.conclude(case.recipe)
        del result
    if unequal and semantics not in proven:
        proven[semantics] = Proof(check=semantics, evidence=unequal).conclude(case.recipe)
    return proven, not_exercised, inapplicable


def _find_other_shape(case: Case) -> str | None:
    if not case.recipe.plan.axes:
        return None
    expected = dict(case.reference().trainer.module.named_parameters())
    start = case.trace.start
    for name, tensor in (start.parameters | start.buffers).items():
        if name in expected and tensor.shape != expected[name].shape:
            return (
                f"the parts of parameter {name!r} make a tensor of shape {tuple(tensor.shape)}, "
                f"and build_model gives one of shape {tuple(expected[name].shape)}; likeliest "
                "cause: it was split by other placements than it names, or the parts are no DTensor"
            )
    return None
