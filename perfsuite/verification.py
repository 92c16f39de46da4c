"""From what the checks found to the report that users read. Must not know how anything ran."""

from __future__ import annotations

import dataclasses

from perfsuite.cells import Recipe
from perfsuite.equivalence.results import Check, Finding
from perfsuite.ranks.wire import RunChecked
from perfsuite.records import EquivalenceReport, EquivalenceRow

# Those that compute in float32 or finer.
_FULL_PRECISIONS = ("fp64", "fp32", "O0")


def report(workload: str, recipe: Recipe, checked: RunChecked) -> EquivalenceReport:
    """Return the report of a recipe whose run was checked."""
    return EquivalenceReport(
        workload=workload,
        recipe=recipe.as_dict(),
        rows=tuple(_row(recipe, finding) for finding in checked.findings),
        inapplicable=checked.inapplicable,
    )


def not_exercised(workload: str, recipe: Recipe, reason: str) -> EquivalenceReport:
    """Return the report of a recipe that could not be exercised."""
    alone: Check = "T1" if recipe.precision in _FULL_PRECISIONS else "T2"
    check: Check = "T0" if recipe.plan.world_size > 1 else alone
    finding = Finding(check=check, status="not exercised", reason=reason)
    return EquivalenceReport(
        workload=workload,
        recipe=recipe.as_dict(),
        rows=(_row(recipe, finding),),
        inapplicable={},
    )


def _row(recipe: Recipe, finding: Finding) -> EquivalenceRow:
    return EquivalenceRow(
        parallel=recipe.parallel,
        precision=recipe.precision,
        checkpointing=recipe.checkpointing,
        world_size=recipe.plan.world_size,
        check=finding.check,
        status=finding.status,
        error=finding.error,
        limit=finding.limit,
        power=finding.power,
        reason=finding.reason,
    )


def without_loader(recipe: Recipe) -> Recipe:
    """The recipe with its loader's fields at their defaults, which change no number."""
    defaults = Recipe()
    return dataclasses.replace(recipe, **{name: getattr(defaults, name) for name in _OF_LOADER})


_OF_LOADER = (
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
    "non_blocking",
)
