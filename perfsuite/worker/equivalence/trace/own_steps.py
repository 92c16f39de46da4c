"""Take steps of a user's own, and record their gradients, losses and weights.

Hooks of torch's optimizers see the gradients, so that the step itself stays as it is.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from perfsuite.worker.equivalence.comparison import Tensors
from perfsuite.worker.equivalence.trace import trace

T = TypeVar("T")

# What DistributedDataParallel, torch.compile, FSDP and activation checkpointing put into the names
# of the parameters that they wrap.
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def without_wrappers(tensors: Mapping[str, T]) -> dict[str, T]:
    """Return tensors by the names that they have in the model that was wrapped."""
    found = {
        ".".join(part for part in name.split(".") if part not in _WRAPPERS): tensor
        for name, tensor in tensors.items()
    }
    return found if len(found) == len(tensors) else dict(tensors)


# Later updates of a parameter in a step are not seen.
MOST_UPDATES = 16

# Called before an optimizer's update with all its parameters, and with those of the model by name,
# from the second update of a parameter in this step on as in "0.bias (update 2)".
BeforeUpdate = Callable[[Sequence[nn.Parameter], Mapping[str, nn.Parameter]], None]


# A step of an optimizer by its number in the user's step, for one parameter with its name.
Look = int | tuple[str, int]


@dataclass(eq=False)
class _Update:
    """An update of a parameter, as an optimizer's step finds it."""

    kind: type[Optimizer]
    look: int
    is_again: bool  # within `super().step()`
    gradient: Tensor | None
    is_outer: bool = False  # a step within this one makes it


class OwnSteps:
    """Takes steps of a user's own, which may name their model.

    An optimizer may step within another's step, and its base class within its own: the innermost
    one makes the update. `outer` has the other looks of the last step; what changes gradients must
    know these beforehand (`known`). Classes in `looks_again` call `super().step()`, or update
    nothing. `unnamed` are others that optimizers updated, `idle` those `parameters` that none did.
    """

    def __init__(self, model: nn.Module | None, take: Callable[[], float | None]) -> None:
        self.model = nn.Module() if model is None else model
        self._named = without_wrappers(dict(self.model.named_parameters()))
        self.parameters = {name: one for name, one in self._named.items() if one.requires_grad}
        self.unnamed: set[nn.Parameter] = set()
        self.idle = set(self.parameters)
        self.looks_again: set[type[Optimizer]] = set()
        self.known: Iterator[Collection[Look]] = iter(())
        self.outer: Collection[Look] = ()
        self.updates: dict[str, list[_Update]] = {}  # of the last step
        self._take = take
        self.names = {id(parameter): name for name, parameter in self._named.items()}

    def take(self, before_update: BeforeUpdate | None = None) -> trace.RankStep:
        """Take one step, and return what it did.

        The gradients are those that the innermost step of an optimizer finds, after its own hooks;
        what `before_update` changes is not the step's own.
        """
        watch = _Watch(self, before_update, next(self.known, ()))
        with watch.hooks:
            watch.hooks.callback(register_optimizer_step_pre_hook(watch.watch).remove)
            loss = self._take()
        self.updates, self.outer = watch.updates, watch.outer
        gradients = self.gradients(watch.updates)
        return trace.RankStep(loss=loss, gradients=gradients, after=self.weights())

    def gradients(self, updates: Mapping[str, Sequence[_Update]]) -> Tensors:
        """Return the gradients of a step, by what is known of its optimizers by now."""
        labels = (self.labels(name, its) for name, its in updates.items())
        found = ((label, one.gradient) for its in labels for one, label in its.items())
        return {label: gradient for label, gradient in found if gradient is not None}

    def num_updates(self) -> dict[str, int]:
        """Return how often the last step updated each parameter."""
        return {name: len(self.made(its)) for name, its in self.updates.items()}

    def made(self, updates: Sequence[_Update]) -> list[_Update]:
        """Return those that are updates, by what is known of their optimizers by now."""
        return [one for one in updates if one.is_again or one.kind not in self.looks_again]

    def labels(self, name: str, updates: Sequence[_Update]) -> dict[_Update, str]:
        """Return the names of a parameter's updates, as far as they are compared."""
        made = enumerate(self.made(updates)[:MOST_UPDATES], 1)
        return {one: name if time == 1 else f"{name} (update {time})" for time, one in made}

    def train(self, names: Collection[str]) -> None:
        """Know that parameters which do not train at first do later."""
        self.parameters |= {name: self._named[name] for name in self._named.keys() & {*names}}

    @torch.no_grad()
    def load(self, weights: trace.Weights) -> None:
        """Give the model these weights, and those buffers that it has."""
        buffers = without_wrappers(dict(self.model.named_buffers()))
        for own, given in ((self.parameters, weights.parameters), (buffers, weights.buffers)):
            for name in own.keys() & given.keys():
                own[name].copy_(given[name])

    def weights(self) -> trace.Weights:
        """Return copies of the model's parameters and buffers."""
        read = vars(trace.read_weights(self.model)).values()
        found = {name: one for part in read for name, one in without_wrappers(part).items()}
        return group_weights(found, self.parameters)


class _Watch:
    """Looks at the gradients before each step of an optimizer in one step of the user's."""

    def __init__(
        self, steps: OwnSteps, before_update: BeforeUpdate | None, known: Collection[Look]
    ) -> None:
        self.updates: dict[str, list[_Update]] = defaultdict(list)
        self.outer: set[Look] = set()
        self.hooks = ExitStack()  # removes those of `watch`
        self._steps, self._before_update, self._known = steps, before_update, known
        self._stepping: list[tuple[Optimizer, set[nn.Parameter], dict[str, _Update], int]] = []
        self._watched: set[Optimizer] = set()
        self._numbers = itertools.count()

    def watch(self, optimizer: Optimizer, *_: object) -> None:
        """Look before each step of this optimizer, and of its base classes."""
        if optimizer in self._watched:
            return
        self._watched.add(optimizer)
        self.hooks.callback(optimizer.register_step_pre_hook(self._look).remove)
        self.hooks.callback(optimizer.register_step_post_hook(self._leave).remove)
        kinds = type(optimizer).__mro__[1:]
        for kind in kinds[: kinds.index(Optimizer)]:
            step: Any = vars(kind).get("step")
            if step is not None and not getattr(step, "hooked", False):  # else it runs hooks
                self.hooks.enter_context(patch.object(kind, "step", self._looking(step)))

    def _looking(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def look_and_step(one: Optimizer, *args: Any, **options: Any) -> Any:
            self._look(one)
            result = step(one, *args, **options)
            self._leave()
            return result

        look_and_step.hooked = True  # type: ignore[attr-defined]
        return look_and_step

    def _leave(self, *_: object) -> None:
        self._stepping.pop()

    def _look(self, optimizer: Optimizer, *_: object) -> None:
        steps, number, stepping = self._steps, next(self._numbers), self._stepping
        stepped = [one for group in optimizer.param_groups for one in group["params"]]
        others = (one for one in stepped if id(one) not in steps.names)
        steps.unnamed |= {one for one in others if one.grad is not None}
        self.outer |= {one for _, its, _, one in stepping if its & {*stepped}}
        is_again = any(one is optimizer for one, *_ in stepping)
        steps.looks_again |= {type(optimizer)} if is_again else set()
        own: dict[str, _Update] = {}
        new: dict[str, nn.Parameter] = {}
        for parameter in (one for one in stepped if id(one) in steps.names):
            name = steps.names[id(parameter)]
            steps.idle.discard(name)
            gradient = self._copy(name, parameter)
            update = own[name] = _Update(type(optimizer), number, is_again, gradient)
            if self._add(name, update):
                labels = steps.labels(name, self.updates[name])
                if update in labels and (name, number) not in self._known:
                    new[labels[update]] = parameter
        stepping.append((optimizer, {*stepped}, own, number))
        if self._before_update is not None and (new or number not in self._known):
            self._before_update(stepped, new)

    def _copy(self, name: str, parameter: nn.Parameter) -> Tensor | None:
        if parameter.grad is None or len(self._steps.made(self.updates[name])) > MOST_UPDATES:
            return None  # memory is finite
        return trace.copy_tensor(parameter.grad)

    def _add(self, name: str, update: _Update) -> bool:
        """Add an update, in place of one around it; return whether its gradient is the step's."""
        around = next((its[name] for *_, its, _ in self._stepping[::-1] if name in its), None)
        if around is not None and not around.is_outer:
            around.is_outer = True
            self.outer.add((name, around.look))
            if self._before_update is not None and (name, around.look) not in self._known:
                return False
            self.updates[name] = [one for one in self.updates[name] if one is not around]
        self.updates[name].append(update)
        return True


def group_weights(tensors: Tensors, trained: Collection[str]) -> trace.Weights:
    """Return tensors as parameters, of which some are trained, and buffers."""
    parameters = {name: one for name, one in tensors.items() if name in trained}
    rest = {name: one for name, one in tensors.items() if name not in trained}
    return trace.Weights(parameters=parameters, buffers=rest)


def record_steps(
    steps: OwnSteps, *, rank: int, num_steps: int, on_step: Callable[[], None]
) -> trace.RankTrace:
    """Take steps, and return what this rank saw of them; DTensors still hold this rank's part."""
    accumulated: Counter[str] = Counter()
    handles = [
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda _, name=name: accumulated.update([name])
        )
        for name, parameter in steps.parameters.items()
        if parameter.is_leaf
    ]
    start, taken = steps.weights(), []
    for _ in range(num_steps):
        on_step()
        taken.append((steps.take(), steps.updates))
    for handle in handles:
        handle.remove()
    seen = ((name, one) for _, updates in taken for name, its in updates.items() for one in its)
    late = {name for name, one in seen if one.gradient is not None} - steps.parameters.keys()

    def group(weights: trace.Weights) -> trace.Weights:
        return group_weights(weights.parameters | weights.buffers, steps.parameters.keys() | late)

    return trace.RankTrace(
        shard_index=rank,
        start=group(start),
        steps=[
            replace(one, gradients=steps.gradients(its), after=group(one.after))
            for one, its in taken
        ],
        num_accumulated=max(accumulated.values(), default=num_steps) // num_steps or 1,
        not_stepped=frozenset(steps.idle),
        late=frozenset(late),
    )
