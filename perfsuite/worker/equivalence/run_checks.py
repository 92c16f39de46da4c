"""Every check that applies to a recorded run, each concluded to one finding.

Runs in one process that knows no torch.distributed, so that no reference can share a mistake of
the ranks.
"""

from __future__ import annotations

from perfsuite.records.equivalence import Check, Finding
from perfsuite.records.recipe import Recipe
from perfsuite.worker.equivalence.case import Case
from perfsuite.worker.equivalence.checks.checkpointing import check_recomputation
from perfsuite.worker.equivalence.checks.data import check_data
from perfsuite.worker.equivalence.checks.optimizer_steps import check_updates
from perfsuite.worker.equivalence.checks.reduction import check_reduction
from perfsuite.worker.equivalence.checks.semantics import check_semantics
from perfsuite.worker.equivalence.comparison import Evidence
from perfsuite.worker.equivalence.limits import is_low_precision
from perfsuite.worker.equivalence.proof import Proof
from perfsuite.worker.equivalence.trace.trace import RankDifference


def check_run(case: Case) -> tuple[tuple[Finding, ...], dict[str, str]]:
    """Return a finding of every check that applies, and why the others do not.

    What holds for any run (weights equal on all ranks, steps that follow from the gradients) is
    part of the first check that applies.
    """
    semantics: Check = "T2" if is_low_precision(case.recipe) else "T1"
    if len(case.trace.steps) < case.num_steps:
        return (Finding(check=semantics, status="no power", reason=_too_few_steps(case)),), {}
    checks = {
        "T0": check_reduction,
        semantics: check_semantics,
        "checkpointing": check_recomputation,
    }
    proofs: list[Proof] = []
    inapplicable: dict[str, str] = {}
    for name, check in checks.items():
        result = check(case)
        if isinstance(result, Proof):
            proofs.append(result)
        else:
            inapplicable[name] = result
    if proofs:
        check_updates(case, proofs[0])
        proofs[0].evidence += [
            _unequal(one) for one in case.trace.differences if one.quantity != "buffer"
        ]
    _compare_buffers(case, proofs)
    findings = [proof.conclude() for proof in proofs]
    if not _has_reference(case.recipe, proofs):
        reason = "; ".join(f"{name} does not apply: {why}" for name, why in inapplicable.items())
        findings.append(Finding(check=semantics, status="not exercised", reason=reason))
        inapplicable = {}
    return (*findings, _check_data(case)), inapplicable


def _has_reference(recipe: Recipe, proofs: list[Proof]) -> bool:
    """Whether the gradients were held to one process that shares no code with the recipe.

    Recomputation alone is held to the same parallel mode without it, which for one process is that.
    """
    found = {proof.check for proof in proofs}
    return bool(found - {"checkpointing"}) or (bool(found) and recipe.plan.mode == "single")


def _compare_buffers(case: Case, proofs: list[Proof]) -> None:
    """Add to T1 or T2 that ranks keep other buffers, which T0 is not to see."""
    unequal = [_unequal(one) for one in case.trace.differences if one.quantity == "buffer"]
    if not unequal:
        return
    check: Check = "T2" if is_low_precision(case.recipe) else "T1"
    proof = next((one for one in proofs if one.check == check), None)
    if proof is None:
        proof = Proof(check=check)
        proofs.append(proof)
    proof.evidence += unequal


def _check_data(case: Case) -> Finding:
    return check_data(
        case.workload,
        case.recipe,
        seed=case.seed,
        device=case.device,
        drawn=case.trace.indices,
        seen=case.trace.batches,
    )


def _too_few_steps(case: Case) -> str:
    return (
        f"the scaler skipped {case.trace.num_skipped} steps, because their gradients were not "
        f"finite, and {len(case.trace.steps)} of {case.num_steps} were taken; use a smaller loss, "
        "or a precision with more range"
    )


def _unequal(difference: RankDifference) -> Evidence:
    return Evidence(
        what=difference.quantity,
        step=difference.step,
        error=difference.error,
        limit=0.0,
        formula="on all ranks",
        name=difference.name,
        rank=difference.rank,
    )
