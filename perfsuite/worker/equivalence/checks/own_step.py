"""One step of a user's own against the same step in one process: T1 or T2."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import torch

from perfsuite.records.recipe import Recipe
from perfsuite.worker.equivalence import limits
from perfsuite.worker.equivalence.comparison import (
    Discrepancy,
    Errors,
    judge,
    judge_losses,
    measure_errors,
    total_norm,
)
from perfsuite.worker.equivalence.limits import Limit, is_low_precision
from perfsuite.worker.equivalence.planted_bugs import gradient_bugs, wrong_scale
from perfsuite.worker.equivalence.proof import Proof
from perfsuite.worker.equivalence.tensors import Tensors, in_double
from perfsuite.worker.equivalence.trace.own_steps import Taken
from perfsuite.worker.equivalence.trace.trace import Step


@dataclass(frozen=True)
class OwnStep:
    """One step of the ranks, and what one process does in its place.

    Attributes:
        recipe: The precision, world size and accumulation from which limits are derived.
        truth: Without low precision; `plain` is in the precision of the ranks.
        updated: The weights that its optimizers make of the ranks' gradients.
    """

    recipe: Recipe
    number: int
    step: Step
    truth: Taken
    plain: Taken
    updated: Tensors

    @cached_property
    def errors(self) -> Errors:
        """Of the plain path."""
        return measure_errors(self.plain.gradients, self.truth.gradients)

    def judge_losses(self, tested: float | None = None) -> list[Discrepancy]:
        """Return how far the mean over the ranks is off, or another loss in its place."""
        losses, truth, plain = self.step.losses, self.truth.loss, self.plain.loss
        if not losses or truth is None or plain is None:
            return []
        mean = sum(losses) / len(losses) if tested is None else tested
        limit = self._limit(abs(plain - truth) / (abs(truth) or 1.0))
        return judge_losses([mean], [truth], self.number, limit)

    @property
    def has_gradients(self) -> bool:
        """Whether optimizers stepped on all sides; a GradScaler may leave a step out."""
        return all((self.step.gradients, self.truth.gradients, self.plain.gradients))

    def judge_tensors(self) -> list[Discrepancy]:
        """Return how far the gradients are off, and the weights that follow from them."""
        return [*self._judge_gradients(self.step.gradients), *self._judge_update(self.step)]

    def plant_into(self, proof: Proof) -> None:
        """Give the check bugs to find."""
        names = [name for name in self.errors.by_name if self._parameter_limit(name) < 1]
        bugs = [*gradient_bugs(self.plain.gradients, names)]
        if not is_low_precision(self.recipe):
            bugs.append(wrong_scale(self.plain.gradients, self.recipe.plan.world_size))
        proof.plant(bugs, self._judge_gradients)
        if self._moved > 0:
            idle = self._judge_update(dataclasses.replace(self.step, after=self.step.before))
            proof.planted["the weights stay as they are"] = not all(one.is_within for one in idle)

    def _limit(self, plain_error: float) -> Limit:
        if not is_low_precision(self.recipe):
            return limits.semantic_limit(self.recipe)
        return limits.ratio_limit(plain_error, limits.path_epsilon(self.recipe))

    def _parameter_limit(self, name: str) -> float:
        error = max(self.errors.by_name.get(name, 0.0), self.errors.total)
        if not is_low_precision(self.recipe):
            return self._limit(error).worst_parameter
        epsilon = limits.WORST_PARAMETER_FACTOR * limits.path_epsilon(self.recipe)
        return limits.ratio_limit(error, epsilon).value

    def _judge_gradients(self, tested: Tensors) -> list[Discrepancy]:
        return judge(
            measure_errors(tested, self.truth.gradients),
            "gradient",
            self.number,
            self._limit(self.errors.total),
            parameter_limit=self._parameter_limit,
        )

    @cached_property
    def _expected(self) -> Tensors:
        """The weights that follow from the ranks' gradients alone, and have the ranks' dtype."""
        after = self.step.after.parameters
        return {
            name: weight
            for name, weight in self.updated.items()
            if self.truth.num_updates.get(name, 0) <= 1 and weight.dtype == after[name].dtype
        }

    @cached_property
    def _moved(self) -> float:
        before = self.step.before.parameters
        steps = {name: in_double(w) - in_double(before[name]) for name, w in self._expected.items()}
        return total_norm(steps)

    def _judge_update(self, step: Step) -> list[Discrepancy]:
        """The error of the weights, in units of the distance that the step moves them."""
        if not self._expected:
            return []
        tested = {name: step.after.parameters[name] for name in self._expected}
        off = measure_errors(tested, self._expected)
        epsilon = max(torch.finfo(weight.dtype).eps for weight in self._expected.values())
        limit = limits.update_limit(epsilon, off.size / (self._moved or 1.0))
        error = off.total * off.size / (self._moved or 1.0) if off.total else 0.0
        worst = max(off.by_name, key=off.by_name.__getitem__, default=None)
        return [Discrepancy("update", self.number, error, limit.value, limit.formula, worst)]
