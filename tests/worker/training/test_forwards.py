from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn

from perfsuite import WorkloadError
from perfsuite.worker.training.forwards import wrap_forward


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, *, times: int = 2) -> torch.Tensor:
        return times * self.inner(x)


def plus_one(forward: Any, /, *args: Any, **kwargs: Any) -> Any:
    return forward(*args, **kwargs) + 1


def test_a_wrapped_module_keeps_its_names_and_its_class() -> None:
    module = Doubling()
    names, text = list(module.state_dict()), repr(module)

    wrap_forward(module, plus_one)

    assert list(module.state_dict()) == names
    assert repr(module) == text
    assert isinstance(module, Doubling)
    assert "forward" not in vars(module)


def test_a_wrapper_gets_the_arguments_and_the_modules_own_forward() -> None:
    module, x = Doubling(), torch.ones(2, 3)
    plain = module(x, times=5)

    wrap_forward(module, plus_one)

    assert torch.equal(module(x, times=5), plain + 1)


def test_the_newer_wrapper_is_the_outer_one() -> None:
    module, x = nn.Identity(), torch.ones(1)

    wrap_forward(module, plus_one)
    wrap_forward(module, lambda forward, *args: 10 * forward(*args))

    assert module(x).item() == 20


def test_only_the_one_module_is_wrapped_and_not_its_class() -> None:
    wrapped, other = nn.Identity(), nn.Identity()

    wrap_forward(wrapped, plus_one)

    assert other(torch.zeros(1)).item() == 0


def test_a_copy_computes_with_its_own_parameters() -> None:
    module, x = Doubling(), torch.ones(2, 3)
    wrap_forward(module, plus_one)
    replica = copy.deepcopy(module)

    nn.init.zeros_(replica.inner.weight)
    nn.init.zeros_(replica.inner.bias)

    assert torch.equal(replica(x), torch.ones(2, 3))
    assert not torch.equal(module(x), torch.ones(2, 3))


def test_hooks_run_around_the_wrapped_forward() -> None:
    module, seen = nn.Identity(), []
    module.register_forward_hook(lambda module, args, output: seen.append(output.item()))

    wrap_forward(module, plus_one)
    module(torch.zeros(1))

    assert seen == [1.0]


def test_a_forward_of_the_instance_is_refused() -> None:
    module = Doubling()
    module.forward = lambda x: x  # type: ignore[method-assign]

    message = (
        "a Doubling of the model has a forward set on the instance, which precision and "
        "checkpointing cannot wrap; define forward in the class"
    )
    with pytest.raises(WorkloadError, match=f"^{re.escape(message)}$"):
        wrap_forward(module, plus_one)
