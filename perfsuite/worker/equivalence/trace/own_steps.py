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
from perfsuite.worker.training.optimizers import is_within_another

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


# Called before an optimizer's update with all its parameters, and by name with those of the model
# that nothing has updated yet in this step.
BeforeUpdate = Callable[[Sequence[nn.Parameter], Mapping[str, nn.Parameter]], None]


class OwnSteps:
    """Takes steps of a user's own, which may name their model.

    `updated_twice` names the trained `parameters` that optimizers updated twice in the last step,
    and `unnamed` holds what they ever updated that is not the model's.
    """

    def __init__(self, model: nn.Module | None, take: Callable[[], float | None]) -> None:
        self.model = nn.Module() if model is None else model
        named = without_wrappers(dict(self.model.named_parameters()))
        self.parameters = {name: one for name, one in named.items() if one.requires_grad}
        self.updated_twice: set[str] = set()
        self.unnamed: set[nn.Parameter] = set()
        self._take = take
        self._names = {id(parameter): name for name, parameter in named.items()}

    def take(self, before_update: BeforeUpdate = lambda *_: None) -> trace.RankStep:
        """Take one step, and return what it did.

        The gradients are those that the first optimizer finds which updates the parameter: after
        its own hooks, and after what a subclass does to them before `super().step()`.
        """
        gradients: Tensors = {}
        updated: set[str] = set()
        self.updated_twice = set()

        def look(optimizer: Optimizer, *_: object, is_within: bool = False) -> None:
            stepped = [one for group in optimizer.param_groups for one in group["params"]]
            known = {self._names[id(one)]: one for one in stepped if id(one) in self._names}
            others = (one for one in stepped if id(one) not in self._names)
            self.unnamed |= {one for one in others if one.grad is not None}
            again = is_within or is_within_another(optimizer)
            new = {name: one for name, one in known.items() if again or name not in updated}
            self.updated_twice |= known.keys() - new.keys()
            updated.update(new)
            for name, parameter in new.items():
                if parameter.grad is not None:
                    gradients[name] = trace.copy_tensor(parameter.grad)
            before_update(stepped, new)

        def watch(optimizer: Optimizer, *_: object) -> None:
            if optimizer in watched:
                return
            watched.add(optimizer)
            hooks.callback(optimizer.register_step_pre_hook(look).remove)
            kinds = (kind for kind in type(optimizer).__mro__[1:] if "step" in vars(kind))
            if (above := next(kinds)) is not Optimizer:  # which all of them have
                step: Any = vars(above)["step"]

                def look_and_step(one: Optimizer, *args: Any, **options: Any) -> Any:
                    if type(one) is not above:  # else its own hooks look
                        look(one, is_within=True)
                    return step(one, *args, **options)

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
    )
