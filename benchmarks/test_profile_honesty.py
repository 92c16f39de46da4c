"""Does a profile say what happened? A second planted in one stage must be found there, all of it.

The delay is one long sleep: what the scheduler adds to it is added once, and who has slept comes
first on a machine where others want to run too.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from perfsuite import Recipe, Workload
from perfsuite.experiments.profile import combine_profiles
from perfsuite.ranks.group import run_group
from perfsuite.ranks.messages import GroupPolicy, GroupRequest, RunProfile
from perfsuite.ranks.pickling import pack, packed_by_value
from perfsuite.records.profile import Profile

PLANTED_S = 1.0
ALLOWED_RATIO = 0.03
ALLOWED_REST_RATIO = 0.01

pytestmark = pytest.mark.perf(matrix="full")


class Delay:
    """Takes `PLANTED_S` on each rank, the first time that it is met in its stage."""

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def meet(self, stage: str) -> None:
        """Sleep if this is the stage, once."""
        if stage == self._stage:
            self._stage = "over"
            time.sleep(PLANTED_S)


class Points:
    """Equal samples; the delay is met where they are loaded for a stage."""

    def __init__(self, stage: str, delay: Delay) -> None:
        self._stage = stage
        self._delay = delay

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch

        self._delay.meet(self._stage)
        return torch.ones(8), index % 2


def planted(slow: str) -> Workload:
    """Return a tiny workload that takes `PLANTED_S` longer in one stage."""
    delay = Delay(slow)

    def build_model() -> Any:
        from torch import nn

        class Model(nn.Linear):
            def forward(self, inputs: Any) -> Any:
                if self.training:
                    delay.meet("forward")
                return super().forward(inputs)

        return Model(8, 2)

    def build_dataset(split: str) -> Any:
        return Points("load" if split == "train" else "evaluation", delay)

    def loss(outputs: Any, targets: Any) -> Any:
        from torch.nn.functional import cross_entropy

        if outputs.requires_grad:
            delay.meet("loss_backward")
        return cross_entropy(outputs, targets)

    def build_optimizer(parameters: Any) -> Any:
        from torch.optim import SGD

        class DelayedSGD(SGD):
            def step(self, closure: Any = None) -> Any:
                delay.meet("other")
                return super().step(closure)

        return DelayedSGD(parameters, lr=1e-3)

    return Workload(
        name=f"planted-{slow}",
        build_model=build_model,
        build_dataset=build_dataset,
        loss=loss,
        build_optimizer=build_optimizer,
        micro_batch_size=4,
    )


def profile(slow: str, parallel: str) -> Profile:
    """Profile one epoch; the session holds the machine already, where it times cells."""
    recipe = Recipe(parallel=parallel)
    with packed_by_value([sys.modules[__name__]]):
        workload = pack(planted(slow))
    job = RunProfile(workload=workload, recipe=recipe, num_epochs=1)
    plan = recipe.plan
    ranks: Any = run_group(
        GroupRequest(
            job=job,
            world_size=plan.world_size,
            policy=GroupPolicy(),
            needs_group=plan.needs_group,
        )
    )
    return combine_profiles(job, slow, "cpu", ranks).profile


@pytest.mark.parametrize("parallel", ["single", "ddp:2"])
@pytest.mark.parametrize("slow", ["load", "forward", "loss_backward", "evaluation", "other"])
def test_a_planted_delay_is_found_in_its_stage_of_a_profile(slow: str, parallel: str) -> None:
    without, with_delay = profile("nothing", parallel), profile(slow, parallel)

    found_s = getattr(with_delay.stages_s, slow) - getattr(without.stages_s, slow)
    assert found_s == pytest.approx(PLANTED_S, rel=ALLOWED_RATIO)
    total_s = sum(seconds for _, seconds in with_delay.stages_s.as_rows())
    assert total_s == pytest.approx(with_delay.wall_s, rel=ALLOWED_REST_RATIO)
