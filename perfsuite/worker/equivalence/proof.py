"""What a check is given, what it gathers, and the one row of the report that follows."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from perfsuite.records.equivalence import Check, EquivalenceRow, NumericsStatus
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload
from perfsuite.worker.equivalence.comparison import Discrepancy, Tensors, judge, measure_errors
from perfsuite.worker.equivalence.diagnosis import explain_ranks, explain_weights
from perfsuite.worker.equivalence.limits import Limit
from perfsuite.worker.equivalence.planted_bugs import Bug, describe_missed
from perfsuite.worker.equivalence.references.single_process import Reference
from perfsuite.worker.equivalence.trace.trace import Step, Trace
from perfsuite.worker.measure.device import is_accelerator

KEPT_WEIGHTS = "the weights stay as they are"
_KEPT_BUFFERS = "the buffers stay as they are"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run to be checked."""

    workload: Workload
    recipe: Recipe
    device: torch.device  # where references are computed, of the same kind as that of the ranks
    seed: int
    num_steps: int
    trace: Trace
    twin: Trace | None  # without checkpointing, where the recipe recomputes
    on_step: Callable[[], None]  # called before the references of each step, to show progress

    @cached_property
    def noise(self) -> float:
        """How far two passes over the same data lie apart, relatively; 0 on a CPU."""
        if not is_accelerator(self.device) or not self.trace.steps:
            return 0.0
        reference, step = self.reference(), self.trace.steps[0]

        def run() -> Tensors:
            reference.load(step.before)
            return reference.run(step.shards[0], scale=step.scale).gradients

        return measure_errors(run(), run()).total

    def reference(self, **changes: Any) -> Reference:
        """Return one process that computes the run's gradients, with changes to its recipe."""
        return Reference(self.workload, self.recipe, device=self.device, seed=self.seed, **changes)

    def mixing_layers(self, model: nn.Module) -> list[str]:
        """Return what communicates in a forward pass: a layer of torch's, and modules of users."""
        layers = (one for one in model.modules() if one.training)
        synchronised = {"SyncBatchNorm" for one in layers if isinstance(one, nn.SyncBatchNorm)}
        return sorted(synchronised | self.trace.communicating)


@dataclass(kw_only=True)
class Proof:
    """What a check has gathered."""

    check: Check
    evidence: list[Discrepancy] = field(default_factory=list)
    planted: dict[str, bool] = field(default_factory=dict)  # whether the check found each bug
    vacuous: list[str] = field(default_factory=list)  # why it would pass whatever the code does
    notes: list[str] = field(default_factory=list)
    # Returns the likeliest cause of a discrepancy.
    find_cause: Callable[[Discrepancy], str | None] = lambda discrepancy: None
    # Called before each bug, which takes seconds where a model is large.
    on_bug: Callable[[], None] = lambda: None

    def plant(self, bugs: Iterable[Bug], judge: Callable[[Tensors], list[Discrepancy]]) -> None:
        """Give the check bugs to find with `judge`, which is the check's own comparison."""
        for bug in bugs:
            self.on_bug()
            self.planted[bug.name] = any(not one.is_within for one in judge(bug.gradients))

    def plant_at_step(self, name: str, found: Sequence[Discrepancy]) -> None:
        """Take in what is found at one step of a bug that is in all of them.

        One of the steps must show it; a step cannot where it changes no bit.
        """
        if any(one.error > 0 for one in found):
            is_flagged = any(not one.is_within for one in found)
            self.planted[name] = self.planted.get(name, False) or is_flagged

    def plant_buffers(self, step: Step, expected: Tensors, limit: Limit) -> None:
        """Give the check a step's buffers before the pass in place of those that it leaves."""
        kept = step._replace(buffers=step.before.buffers)
        self.plant_at_step(_KEPT_BUFFERS, judge_buffers(kept, expected, 1, limit))

    def conclude(self, recipe: Recipe) -> EquivalenceRow:
        """Return what the proof shows: a mismatch before no power before equivalent."""
        planted, notes = dict(self.planted), [*self.notes]
        if planted.get(_KEPT_BUFFERS) is False:  # an average may move by too little to tell
            del planted[_KEPT_BUFFERS]
            notes.append("not proven: buffers that move by less than their limit")
        failures = [one for one in self.evidence if not one.is_within]
        no_power = [*self.vacuous, *describe_missed(planted)]
        if not self.evidence:
            no_power.append("there was nothing to compare")
        status: NumericsStatus = "equivalent"
        shown = max(self.evidence, key=lambda one: one.severity, default=None)
        if failures:
            status, shown = "mismatch", _decisive(failures)
            cause = explain_ranks(failures, recipe.plan) or shown.cause or explain_weights(shown)
            cause = cause or self.find_cause(shown)
            reason = _describe(shown) + (f"; likeliest cause: {cause}" if cause else "")
        elif shown is None or no_power:
            status, reason = "no power", "; ".join(no_power)
        elif shown.limit == 0:
            reason = f"equal {shown.formula}"
        else:
            reason = f"limit {shown.limit:.1e} = {shown.formula}"
        told = {} if shown is None else {"error": shown.error, "limit": shown.limit}
        reason = "; ".join([reason, *notes])
        return EquivalenceRow.of(recipe, self.check, status, reason, planted=planted, **told)


def judge_buffers(step: Step, expected: Tensors, number: int, limit: Limit) -> list[Discrepancy]:
    """Judge a step's buffers; a parameter that one side's passes left alone is as before there."""
    names = step.buffers | expected
    before = {name: one for name, one in step.before.parameters.items() if name in names}
    return judge("buffer", before | step.buffers, before | expected, number, limit)


def _decisive(failures: list[Discrepancy]) -> Discrepancy:
    """The worst of the first step that went wrong, because later ones inherit its error.

    Before it a random draw of that step, which the rest follows from, then the first that names a
    tensor, which says more than a total.
    """
    worst = min(failures, key=lambda one: (one.step, -one.severity))
    of_step = [one for one in failures if one.step == worst.step]
    draw = next((one for one in of_step if one.what == "random draw"), None)
    return draw or next((one for one in of_step if one.name is not None), worst)


def _describe(found: Discrepancy) -> str:
    subject = found.what if found.name is None else f"{found.what} of {found.name!r}"
    where = "" if found.rank is None else f" on rank {found.rank}"
    if math.isnan(found.limit):
        return f"the {subject} at step {found.step}{where} is not finite in plain training either"
    due = "where equal bits are due" if found.limit == 0 else f"over the limit of {found.limit:.1e}"
    error = f"by {found.error:.1e}, {due} ({found.formula})"
    return f"the {subject} differs at step {found.step}{where} {error}"
