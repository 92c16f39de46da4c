"""Take steps of a user's own, and record their gradients, losses and weights.

Hooks of torch's optimizers see the gradients, so that the step itself stays as it is.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from perfsuite.worker.equivalence.comparison import Tensors
from perfsuite.worker.equivalence.trace import trace

T = TypeVar("T")

# What DistributedDataParallel, torch.compile, FSDP and activation checkpointing put into the names
# of the parameters that they wrap.
_ROOT_WRAPPER = "module"
_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def without_wrappers(tensors: Mapping[str, T]) -> dict[str, T]:
    """Return tensors by the names that they have in the model that was wrapped."""
    found = {}
    for name, tensor in tensors.items():
        parts = (part for part in name.split(".") if part not in _WRAPPERS)
        found[".".join(itertools.dropwhile(_ROOT_WRAPPER.__eq__, parts))] = tensor
    return found if len(found) == len(tensors) else dict(tensors)


# Later updates of a parameter in a step are not seen.
MOST_UPDATES = 16

# Called before an optimizer's update with all its parameters, and with those of the model by name,
# from the second update of a parameter in this step on as in "0.bias (update 2)".
BeforeUpdate = Callable[[Sequence[nn.Parameter], Mapping[str, nn.Parameter]], None]


class OwnSteps:
    """Takes steps of a user's own, which may name their model.

    `unnamed` holds what optimizers ever updated that is not the model's, and `idle` names those of
    its trained `parameters` that none did. In the last step optimizers updated each so often
    (`num_updates`), not counted those that updated it `within` another's step. `looks_again` holds
    the classes that call `super().step()`.
    """

    def __init__(self, model: nn.Module | None, take: Callable[[], float | None]) -> None:
        self.model = nn.Module() if model is None else model
        named = without_wrappers(dict(self.model.named_parameters()))
        self.parameters = {name: one for name, one in named.items() if one.requires_grad}
        self.unnamed: set[nn.Parameter] = set()
        self.idle = set(self.parameters)
        self.num_updates: Counter[str] = Counter()
        self.within: set[str] = set()
        self.looks_again: set[type[Optimizer]] = set()
        self._take = take
        self._names = {id(parameter): name for name, parameter in named.items()}

    def take(self, before_update: BeforeUpdate = lambda *_: None) -> trace.RankStep:
        """Take one step, and return what it did.

        The gradients are those that an optimizer finds before each update: after its own hooks, and
        after what a subclass does to them before `super().step()`. What `before_update` changes is
        not recorded, if it is known which classes look again.
        """
        gradients: Tensors = {}
        stepping: list[Optimizer] = []
        self.num_updates, self.within = Counter(), set()

        def look(optimizer: Optimizer, *_: object) -> None:
            stepped = [one for group in optimizer.param_groups for one in group["params"]]
            known = {self._names[id(one)]: one for one in stepped if id(one) in self._names}
            others = (one for one in stepped if id(one) not in self._names)
            self.unnamed |= {one for one in others if one.grad is not None}
            self.idle -= known.keys()
            is_again, kind = stepping == [optimizer], type(optimizer)
            if is_again and kind not in self.looks_again:
                self.looks_again.add(kind)
                self.num_updates.subtract(known.keys())  # the look before was at this update
            if set(stepping) - {optimizer}:
                self.within.update(known)
            counts = is_again or not (stepping or kind in self.looks_again)
            stepping.append(optimizer)
            if not counts:
                return
            self.num_updates.update(known.keys())
            times = ((self.num_updates[name], name, one) for name, one in known.items())
            new = {
                name if time == 1 else f"{name} (update {time})": one
                for time, name, one in times
                if time <= MOST_UPDATES
            }
            for name, parameter in new.items():
                if parameter.grad is not None:
                    gradients[name] = trace.copy_tensor(parameter.grad)
            before_update(stepped, new)

        def leave(*_: object) -> None:
            stepping.pop()

        def watch(optimizer: Optimizer, *_: object) -> None:
            if optimizer in watched:
                return
            watched.add(optimizer)
            hooks.callback(optimizer.register_step_pre_hook(look).remove)
            hooks.callback(optimizer.register_step_post_hook(leave).remove)
            kinds = (kind for kind in type(optimizer).__mro__[1:] if "step" in vars(kind))
            above = next(kinds)
            step: Any = vars(above)["step"]
            if above is Optimizer or getattr(step, "hooked", False):  # which runs the hooks itself
                return

            def look_and_step(one: Optimizer, *args: Any, **options: Any) -> Any:
                look(one)
                result = step(one, *args, **options)
                leave()
                return result

            look_and_step.hooked = True  # type: ignore[attr-defined]
            hooks.enter_context(patch.object(above, "step", look_and_step))

        watched: set[Optimizer] = set()
        with ExitStack() as hooks:
            hooks.callback(register_optimizer_step_pre_hook(watch).remove)
            loss = self._take()
        return trace.RankStep(loss=loss, gradients=gradients, after=self.weights())

    @torch.no_grad()
    def load(self, weights: trace.Weights) -> None:
        """Give the model these weights, and those buffers that it has."""
        buffers = without_wrappers(dict(self.model.named_buffers()))
        for own, given in ((self.parameters, weights.parameters), (buffers, weights.buffers)):
            for name in own.keys() & given.keys():
                own[name].copy_(given[name])

    def weights(self) -> trace.Weights:
        """Return copies of the model's parameters and buffers."""
        read = vars(trace.read_weights(self.model))
        return trace.Weights(**{name: without_wrappers(part) for name, part in read.items()})


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
    start, recorded = steps.weights(), []
    for _ in range(num_steps):
        on_step()
        recorded.append(steps.take())
    for handle in handles:
        handle.remove()
    return trace.RankTrace(
        shard_index=rank,
        start=start,
        steps=recorded,
        num_accumulated=max(accumulated.values(), default=num_steps) // num_steps or 1,
        not_stepped=frozenset(steps.idle),
    )
