"""A profile for the tests of its reports."""

from __future__ import annotations

import msgspec

from perfsuite.records.cell import Operator
from perfsuite.records.profile import (
    Communication,
    Epoch,
    NonFinite,
    Profile,
    ProfileStages,
    RankUsage,
)
from perfsuite.records.recipe import Recipe
from perfsuite.system.usage import UsageSample

STAGES = ProfileStages(load=4.0, forward=1.0, loss_backward=2.0, evaluation=2.5, other=0.5)

PROFILE = Profile(
    workload="lenet",
    recipe=Recipe(parallel="ddp:2", num_workers=2).as_dict(),
    device="cpu",
    world_size=2,
    wall_s=10.0,
    stages_s=STAGES,
    evaluated_split="validation",
    accuracy=0.75,
    accuracy_per_class={"0": 0.5, "1": 1.0},
    epochs=(Epoch(loss=0.25, duration_s=10.0, accuracy=0.75, stages_s=STAGES),),
    losses=(0.3, 0.2),
    non_finite=(),
    operators=(Operator(name="aten::mm", calls=6, self_s=0.003),),
    num_profiled_steps=3,
    communication=Communication(total_s=0.3, exposed_s=0.1, overlapped_s=0.2),
    usage=(
        RankUsage(
            rank=0,
            device="cpu",
            samples=(
                UsageSample(at_s=5.0, utilization_ratio=0.5, memory_bytes=2**20),
                UsageSample(at_s=10.0, utilization_ratio=1.0, memory_bytes=2**21),
            ),
        ),
    ),
    missing={},
)

UNEVALUATED = msgspec.structs.replace(
    PROFILE,
    stages_s=msgspec.structs.replace(STAGES, evaluation=None, other=3.0),
    accuracy=None,
    accuracy_per_class=None,
    evaluated_split=None,
    epochs=(Epoch(loss=None, duration_s=10.0, accuracy=None, stages_s=STAGES),),
    non_finite=(NonFinite(what="loss", epoch=1, step=7),),
    operators=(),
    communication=None,
    usage=(),
    missing={"accuracy": "there is no split", "accuracy_per_class": "there is no split"},
)
