"""T1 and T2 of a user's own step: the ranks compute what the user's own reference computes.

One process takes what all ranks take together. Before each step it is given the ranks' weights and
what changes of their buffers, and before its optimizer steps their gradients: so a limit covers the
rounding of one step. Without `Step.model` there are losses alone; what they show, references with a
mistake tell.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn

from perfsuite.records.equivalence import EquivalenceRow, semantic_check
from perfsuite.records.recipe import Recipe
from perfsuite.units import counted, listed
from perfsuite.worker.equivalence import comparison, limits
from perfsuite.worker.equivalence.checks import comparable
from perfsuite.worker.equivalence.checks.expected_step import ExpectedStep
from perfsuite.worker.equivalence.comparison import Discrepancy, Tensors
from perfsuite.worker.equivalence.diagnosis import FILLED, explain_batchnorm, explain_gradients
from perfsuite.worker.equivalence.planted_bugs import Bug, gradient_bugs, wrong_scale
from perfsuite.worker.equivalence.proof import KEPT_WEIGHTS, Proof
from perfsuite.worker.equivalence.trace import draws
from perfsuite.worker.equivalence.trace.own_steps import MOST_UPDATES, BeforeUpdate, OwnSteps
from perfsuite.worker.equivalence.trace.trace import RankStep, Step, Trace

_AUTOCAST = {"bf16": torch.bfloat16, "amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}
# Of `ExpectedStep.bugs`.
_MOST_BUGS = 4


class OwnCase(NamedTuple):
    """Recorded steps of a user's own, to be checked within limits that follow from the recipe."""

    recipe: Recipe
    trace: Trace
    build: Callable[[], OwnSteps]  # builds the reference, each time under the same seed
    device: torch.device
    on_step: Callable[[], None]  # shows progress
    unchanged: frozenset[str] = frozenset()  # buffers that the reference keeps as they are there


def check_own_steps(case: OwnCase) -> tuple[EquivalenceRow, dict[str, str]]:
    """Return what the steps show, and why gradients or losses were not compared.

    Raises a WorkloadError where the two models do not have the same parameters.
    """
    recipe, trace = case.recipe, case.trace
    proof = Proof(check=semantic_check(recipe.precision), on_bug=case.on_step)
    unchanged = comparable.unchanged_buffers(trace)
    case = case._replace(build=_rehearse(case), unchanged=unchanged)
    truth, plain = _references(case)
    if (dropout := draws.describe_dropout(truth.own.model)) is not None:
        return EquivalenceRow.of(recipe, proof.check, "not exercised", dropout), {}
    losses_alone = comparable.why_losses_alone(trace, truth.own.parameters)
    truth.follows = plain.follows = losses_alone is None
    begun = truth.own.weights()
    unlike_start = comparable.why_start_differs(trace, begun) if truth.follows else {}
    another_buffer = comparable.explain_buffers(trace, begun, unchanged)
    steps = list(_take_steps(case, truth, plain))
    if comparable.first_part(trace, truth.own.parameters) is None:  # else each holds another
        proof.evidence += [one for one in trace.differences if one.what != "buffer"]
    for one in steps:
        proof.evidence += one.judge_loss(one.step.mean_loss)
        if one.has_gradients:
            proof.evidence += one.judge_gradients(one.step.gradients)
        if one.has_gradients or (truth.follows and one.is_of_one_side):
            proof.evidence += one.judge_weights()
    wrong = [one for one in proof.evidence if not one.is_within]
    # Whatever is drawn, the ranks agree.
    is_excused = truth.has_drawn and wrong and all(one.rank is None for one in wrong)
    if is_excused and _do_draws_matter(case, truth, steps[0]):
        reason = "the step draws random numbers, and ranks and reference draw different ones"
        return EquivalenceRow.of(recipe, proof.check, "not exercised", reason), {}
    missing = {} if losses_alone is None else {"gradients and weights": losses_alone}
    missing |= _why_not_compared(trace, truth, steps)
    proof.notes += [f"{what} were not compared: {why}" for what, why in missing.items()]
    proof.notes += unlike_start.values()
    missing |= unlike_start
    if not proof.evidence:
        return EquivalenceRow.of(recipe, proof.check, "not exercised", "; ".join(proof.notes)), {}
    _plant(proof, case, steps)
    proof.vacuous += _why_vacuous(trace, truth, steps)
    proof.find_cause = partial(_find_cause, trace, steps, truth, another_buffer)
    return proof.conclude(recipe), missing


@dataclass(frozen=True, kw_only=True)
class _OwnStep(ExpectedStep):
    """One step of the ranks, and what one process does in its place."""

    step: Step
    has_gradients: bool  # optimizers stepped on all sides; a GradScaler may leave a step out
    updated: Tensors  # the weights that the optimizers make of the ranks' gradients alone
    num_updates: int  # the most of a parameter

    @property
    def is_of_one_side(self) -> bool:
        """Whether optimizers stepped on the ranks or in the reference alone, with no GradScaler."""
        is_uneven = bool(self.step.gradients) != bool(self.truth.gradients)
        return is_uneven and not limits.is_low_precision(self.recipe)

    def judge_weights(self, tested: Tensors | None = None) -> list[Discrepancy]:
        """Return how far the weights after the step are off, or others in their place."""
        before, after = self.step.before.parameters, self.step.after.parameters
        expected = {name: one.to(after[name].dtype) for name, one in self.updated.items()}
        if not expected:
            return []
        tested = {name: (tested or after)[name] for name in expected}
        epsilon = comparison.coarsest_epsilon(expected)
        factor = limits.SEMANTIC_FACTOR * self.num_updates
        size = comparison.total_norm(expected) / comparison.step_length(expected, before)
        limit = limits.update_limit(factor * epsilon, f"e {factor} u", epsilon, size)
        return [comparison.judge_update("update", tested, expected, before, self.number, limit)]


class _Reference:
    """One process that takes the ranks' steps, and `follows` their weights and gradients or not."""

    def __init__(
        self,
        case: OwnCase,
        arithmetic: Callable[[], AbstractContextManager[Any]] = nullcontext,
        *,
        is_nudged: bool = False,
    ) -> None:
        self.own = case.build()
        self.follows = self.has_drawn = False
        self._case, self.arithmetic = case, arithmetic
        self._is_nudged = is_nudged
        if is_nudged:
            # Once, because `take` does not load them anew.
            limits.nudge(one for one in self.own.model.parameters() if not one.requires_grad)

    def take(self, step: Step, spoil: BeforeUpdate | None = None) -> RankStep:
        """Return what one step does here; `spoil` may change the gradients of one that is free."""
        self._case.on_step()
        if self.follows:
            given = step.before.buffers.items()
            others = {name: one for name, one in given if name not in self._case.unchanged}
            self.own.load(replace(step.before, buffers=others))
            if self._is_nudged:
                limits.nudge(self.own.parameters.values())
            spoil = partial(_take_over, step.gradients)
        elif self._is_nudged:
            spoil = limits.nudge
        device = self._case.device
        state = draws.read_random_state(device)
        with self.arithmetic():
            taken = self.own.take(spoil)
        self.has_drawn |= bool(draws.modules_that_drew(state, draws.read_random_state(device)))
        return taken


def _rehearse(case: OwnCase) -> Callable[[], OwnSteps]:
    """Return `case.build` for steps that know which looks of an optimizer are at its updates."""
    rehearsal, looks = case.build(), []
    for _ in case.trace.steps:
        case.on_step()
        rehearsal.take()
        looks.append(rehearsal.outer)
    looks_again = rehearsal.looks_again

    def build() -> OwnSteps:
        steps = case.build()
        steps.known, steps.looks_again = iter(looks), looks_again
        steps.train(case.trace.late)
        return steps

    return build


def _take_steps(case: OwnCase, truth: _Reference, plain: _Reference) -> Iterator[_OwnStep]:
    for number, step in enumerate(case.trace.steps, start=1):
        true = truth.take(step)
        other, times = plain.take(step), truth.own.num_updates()
        after = true.after.parameters.items()
        yield _OwnStep(
            recipe=case.recipe,
            number=number,
            truth=true,
            plain=other,
            step=step,
            has_gradients=truth.follows and all((step.gradients, true.gradients, other.gradients)),
            updated={name: one for name, one in after if times.get(name, 0) <= MOST_UPDATES},
            num_updates=max(times.values(), default=1),
        )


def _take_over(grads: Tensors, _: object, new: Mapping[str, nn.Parameter]) -> None:
    for name, parameter in new.items():
        given, own = grads.get(name), parameter.grad
        if given is None or own is None:
            continue  # what has no gradient is not stepped, and by one of zeros a weight may move
        # Copied, because an optimizer may change it in place.
        given = given.to(parameter.device, parameter.dtype, copy=True)
        parameter.grad = given.to_sparse(1) if own.is_sparse else given


def _do_draws_matter(case: OwnCase, truth: _Reference, first: _OwnStep) -> bool:
    """Return whether the first step is another one where other numbers are drawn."""
    again = _Reference(case, truth.arithmetic)
    again.follows = truth.follows
    draws.draw_one(case.device)
    taken = again.take(first.step)
    found = comparison.measure_errors(taken.gradients, first.truth.gradients)
    return repr(taken.loss) != repr(first.truth.loss) or 0 < found.total < float("inf")  # or nan


def _references(case: OwnCase) -> tuple[_Reference, _Reference]:
    """Return the truth and the plain path of the same precision, one process each.

    Where both have the same arithmetic, weights off by one rounding show how far rounding goes.
    """
    if not limits.is_low_precision(case.recipe):
        return _Reference(case), _Reference(case, is_nudged=True)
    # Without a cache, which would keep weights beyond the optimizer's step.
    dtype = _AUTOCAST[case.recipe.precision]
    autocast = partial(torch.autocast, case.device.type, dtype, cache_enabled=False)
    return _Reference(case, _nothing_cast), _Reference(case, autocast, is_nudged=True)


@contextmanager
def _nothing_cast() -> Iterator[None]:
    """Ignore whatever autocast is entered inside."""
    with patch.object(torch, "set_autocast_enabled", lambda *_: None), torch._C._DisableAutocast():
        yield


def _why_not_compared(trace: Trace, truth: _Reference, steps: Sequence[_OwnStep]) -> dict[str, str]:
    missing = {}
    if not any(one.judge_loss(one.step.mean_loss) for one in steps):
        missing["losses"] = "build_step or the reference tells none"
    if any(True for _ in truth.own.model.buffers()):
        missing["buffers"] = "a rank may keep its own, as batch normalisation does"
    before, after = trace.start.buffers, trace.steps[-1].after.buffers
    frozen = {*truth.own.names.values()} & after.keys()
    if changed := [repr(one) for one in sorted(frozen) if not torch.equal(before[one], after[one])]:
        missing["frozen parameters"] = f"the step changes {listed(changed)} without an optimizer"
    errors = [one.errors for one in steps if one.has_gradients]
    compared = {name for one in errors for name in one.by_name}
    if small := {name for one in errors for name in one.too_small} - compared:
        names, tiny = listed(sorted(map(repr, small))), limits.SMALLEST_SHARE
        missing["small gradients"] = f"{names}, below {tiny:.0e} of all, were judged in total alone"
    return missing


def _plant(proof: Proof, case: OwnCase, steps: Sequence[_OwnStep]) -> None:
    if (first := next((one for one in steps if one.has_gradients), None)) is not None:
        proof.plant(first.bugs(), first.judge_gradients)
        for one in (one for one in steps if one.has_gradients and one.updated):
            proof.planted.setdefault(KEPT_WEIGHTS, False)
            proof.plant_at_step(KEPT_WEIGHTS, one.judge_weights(one.step.before.parameters))
        return
    proof.planted |= _plant_in_losses(case, steps)
    if not proof.planted:
        proof.vacuous.append("no torch optimizer steps, so that no mistake can be planted")


def _plant_in_losses(case: OwnCase, steps: Sequence[_OwnStep]) -> dict[str, bool]:
    planted: dict[str, bool] = {}
    for index in range(_MOST_BUGS):
        names: list[str] = []

        def spoil(
            stepped: Sequence[nn.Parameter], _: object, index: int = index, names: list[str] = names
        ) -> None:
            found = {str(n): one.grad for n, one in enumerate(stepped) if one.grad is not None}
            gradients = {n: comparison.as_real(one) for n, one in found.items()}
            bugs = [*gradient_bugs(gradients), wrong_scale(gradients, case.recipe.plan.world_size)]
            for bug in bugs[index : index + 1]:
                names.append(bug.name)
                for n, gradient in bug.gradients.items():
                    gradients[n].copy_(gradient)

        reference = _Reference(case)
        found = [one.judge_loss(reference.take(one.step, spoil).loss) for one in steps]
        if names:
            planted[names[0]] = any(not one.is_within for of_step in found for one in of_step)
    return planted


def _why_vacuous(trace: Trace, truth: _Reference, steps: Sequence[_OwnStep]) -> Iterator[str]:
    if often := [repr(n) for n, times in truth.own.num_updates().items() if times > MOST_UPDATES]:
        later = f"over {MOST_UPDATES} times: the later ones are not seen"
        yield f"a step updates {listed(often)} {later}"
    if truth.own.parameters and (others := len(truth.own.unnamed)):
        unseen = "that an optimizer updates and Step.model does not have"
        yield f"{counted(others, 'parameter')} {unseen}: nothing compares what is not in it"
    if _have_same_losses(trace):
        advice = "return each rank's own loss (of ranks that share data, only one's)"
        yield f"all ranks return the same loss, so a missing reduction might not show: {advice}"
    if not truth.follows:
        return
    ours, theirs = trace.start.parameters, truth.own.weights().parameters
    is_coarser = comparison.coarsest_epsilon(ours) > comparison.coarsest_epsilon(theirs)
    if is_coarser and steps[0].recipe.precision != "bf16":
        yield "weights have fewer bits on the ranks than in the reference, and round at each step"
    for one in steps:
        if not one.has_gradients:
            yield (
                f"no optimizer stepped in step {one.number}: is it a part of one that accumulates, "
                "does a GradScaler leave it out, or are gradients made in a closure?"
            )
        elif one.errors.size == 0:
            yield f"all gradients of step {one.number} are zero"
    first = steps[0]
    if limits.is_low_precision(first.recipe) and first.has_gradients:
        error = comparison.measure_errors(first.step.gradients, first.truth.gradients).total
        fp32 = Recipe(parallel=first.recipe.parallel)
        if error <= limits.LOW_PRECISION_RATIO * limits.semantic_limit(fp32).value:
            yield f"low precision left no trace: the error is {error:.1e}, as in float32"


def _have_same_losses(trace: Trace) -> bool:
    return all(len(one.losses) > 1 and len(set(one.losses)) == 1 for one in trace.steps)


def _sums(num_ranks: int, num_accumulated: int, right: Tensors) -> Iterator[Bug]:
    numbers = {"ranks": num_ranks, "micro-batches": num_accumulated}
    for number in {*numbers.values()} - {1}:
        what = " or ".join(f"the {number} {one}" for one, its in numbers.items() if its == number)
        summed = f"gradients are summed over {what} and not divided by their number"
        yield Bug("summed", summed, comparison.scaled(right, number))


def _find_cause(
    trace: Trace,
    steps: Sequence[_OwnStep],
    truth: _Reference,
    another_buffer: str | None,
    found: Discrepancy,
) -> str | None:
    if found.what == "gradient" and found.rank is not None:
        same = (one for one in trace.differences if one.what == "gradient")
        differing = dict.fromkeys(one.name for one in same if one.step == found.step)
        whole = trace.steps[found.step - 1].gradients.keys() <= differing.keys()
        names = "the gradients are" if whole else f"the gradient of {listed([*differing])} is"
        return f"{names} not reduced over the ranks"
    if found.what == "gradient" and (idle := trace.not_stepped - truth.own.idle):
        names = listed([*map(repr, sorted(idle))])
        return f"no optimizer steps {names}: is one not called, or built before the model had them?"
    one = steps[found.step - 1]
    unlike = [*map(repr, sorted(one.step.gradients.keys() ^ one.truth.gradients.keys()))]
    is_left_out = found.what == "update" and one.is_of_one_side
    if is_left_out or any(" (update " in name for name in unlike):
        return f"ranks and reference do not step equally often: one side alone has {listed(unlike)}"
    if found.what == "update" and unlike:
        return f"{FILLED} ({listed(unlike)})"
    if found.what == "update":
        other = "another learning rate or optimizer, or weights that something else changes"
        return f"of the same gradients the reference makes other weights: {other}"
    batchnorm = explain_batchnorm(truth.own.model)
    if found.what == "gradient" and batchnorm is None:
        right = one.plain.gradients
        bugs = [*_sums(one.recipe.plan.world_size, trace.num_accumulated, right)]
        bugs += gradient_bugs(right)
        if (cause := explain_gradients(one.step.gradients, right, bugs)) is not None:
            return cause
    if (model := another_buffer or batchnorm) is not None:
        return model
    # Of an average that is logged they are right; later ones follow from other weights.
    losses = steps[0].judge_loss(steps[0].step.mean_loss)
    if _have_same_losses(trace) and not all(loss.is_within for loss in losses):
        return "the sampler gives all ranks the same data, unless the step reduces the loss itself"
    if found.what != "gradient" and found.step > 1 and not truth.follows:
        return "the loss before it agrees, so that the update in between does not"
    if found.what == "loss":
        return "a loss is not the mean over the samples, or weights or samples are others"
    return None
