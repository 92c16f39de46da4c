"""What is found of a user's optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.optimizer import register_optimizer_step_post_hook

from perfsuite.worker.training import optimizers
from perfsuite.worker.training.optimizers import is_within_another


class Twice(SGD):
    """Whose step takes that of its base class, and then one more."""

    def step(self, closure: Any = None) -> Any:
        """Step twice."""
        super().step(closure)
        return super().step(closure)


def within(kind: type[SGD]) -> list[bool]:
    """Whether each step that ended in one of the user's was within another."""
    found: list[bool] = []
    hook = register_optimizer_step_post_hook(lambda one, *_: found.append(is_within_another(one)))
    kind([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()
    hook.remove()
    return found


@pytest.mark.parametrize(("kind", "expected"), [(SGD, [False]), (Twice, [True, True, False])])
def test_a_step_within_one_of_the_same_optimizer_is_known(
    kind: type[SGD], expected: list[bool]
) -> None:
    assert within(kind) == expected


def test_a_class_is_looked_at_once_since_each_step_asks() -> None:
    optimizers._has_more_steps.cache_clear()

    for _ in range(3):
        within(SGD)

    assert optimizers._has_more_steps.cache_info().misses == 1
