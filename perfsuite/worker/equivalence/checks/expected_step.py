"""What one process makes of one step, and how far a path may be off from it by T1 or T2."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from perfsuite.records.recipe import EPSILONS, Recipe
from perfsuite.worker.equivalence import comparison, limits
from perfsuite.worker.equivalence.comparison import Discrepancy, Errors, Tensors
from perfsuite.worker.equivalence.limits import Limit, is_low_precision
from perfsuite.worker.equivalence.planted_bugs import Bug, gradient_bugs, wrong_scale
from perfsuite.worker.equivalence.references.single_process import Pass
from perfsuite.worker.equivalence.trace.trace import RankStep


@dataclass(frozen=True, kw_only=True)
class ExpectedStep:
    """One step in one process: in float64 (truth), and in the precision of the path (plain).

    Both sides' gradients are unscaled.
    """

    recipe: Recipe  # its precision, world size and accumulation are what limits are derived from
    number: int
    truth: Pass | RankStep
    plain: Pass | RankStep

    @cached_property
    def errors(self) -> Errors:
        """Of the plain path."""
        return comparison.measure_errors(self.plain.gradients, self.truth.gradients)

    @property
    def is_too_coarse(self) -> bool:
        """Whether plain float32 is no measure of it here; an infinite error is judged as ever."""
        return not is_low_precision(self.recipe) and self._coarsest < self.errors.total < math.inf

    @property
    def loss_limit(self) -> Limit:
        """For the mean loss, from the error of the plain one."""
        truth, plain = self.truth.loss or 0.0, self.plain.loss or 0.0
        return self.limit_beside(abs(plain - truth) / (abs(truth) or 1.0))

    def limit_beside(self, plain_error: float) -> Limit:
        """The limit of a loss or of buffers.

        Without a `u` to add, the plain error of one number may be small by chance.
        """
        return self._limit(max(plain_error, self.errors.total if self.recipe.has_float8 else 0.0))

    def judge_loss(self, tested: float | None) -> list[Discrepancy]:
        """Return how far a mean loss is off; nothing where one side tells none."""
        if tested is None or self.truth.loss is None or self.plain.loss is None:
            return []
        return comparison.judge_losses([tested], [self.truth.loss], self.number, self.loss_limit)

    def judge_gradients(self, tested: Tensors) -> list[Discrepancy]:
        """Return how far unscaled gradients are off."""
        right, own = self.truth.gradients, self._parameter_limit
        limit = self._limit(self.errors.total)
        return comparison.judge("gradient", tested, right, self.number, limit, parameter_limit=own)

    def bugs(self) -> Iterator[Bug]:
        """The mistakes that any path can make and the check must find."""
        plain, world_size = self.plain.gradients, self.recipe.plan.world_size
        if not is_low_precision(self.recipe):
            yield from gradient_bugs(plain)
            yield wrong_scale(plain, world_size)
            return
        # A lost gradient has an error of 1, which no limit of 1 or more can find.
        limited = [name for name in self.errors.by_name if self._parameter_limit(name) < 1]
        yield from gradient_bugs(plain, limited)
        if self.recipe.has_float8:
            yield wrong_scale(plain, world_size, self.errors.total)

    def _limit(self, plain_error: float) -> Limit:
        if is_low_precision(self.recipe):
            return limits.ratio_limit(plain_error, self._slack)
        return limits.semantic_limit(self.recipe, plain_error, self._coarsest)

    @property
    def _coarsest(self) -> float:
        return limits.COARSEST_FLOAT32 if self.number == 1 else limits.COARSEST_AFTER_FIRST

    @property
    def _slack(self) -> float:
        return 0.0 if self.recipe.has_float8 else EPSILONS[self.recipe.precision]

    def _parameter_limit(self, name: str) -> float:
        own, total = self.errors.by_name.get(name, 0.0), self.errors.total
        if not is_low_precision(self.recipe):
            # What cancels, as before a BatchNorm of few samples, is off by more than all together.
            own = min(limits.ERROR_RATIO * own, limits.COARSEST_AFTER_FIRST)
            return max(own, self._limit(total).worst_parameter)
        # Without a slack, a parameter of few elements needs some: of 120 trainings of a small
        # transformer, its error was at most 1.9 times the larger of both, and 1.2 times their sum.
        error = own + total if self.recipe.has_float8 else max(own, total)
        return limits.ratio_limit(error, limits.WORST_PARAMETER_FACTOR * self._slack).value
