"""A profile by real ranks: planted sleeps appear in their stage, right answers are all counted."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from perfsuite.experiments.profile import combine_profiles
from perfsuite.ranks.group import run_group
from perfsuite.ranks.messages import GroupPolicy, GroupRequest, RunProfile
from perfsuite.ranks.pickling import pack, packed_by_value
from perfsuite.records.profile import ProfiledRun
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload

NUM_TRAINED, NUM_EVALUATED = 12, 9
PLANTED_S = 0.4

pytestmark = pytest.mark.usefixtures("nothing_left")


def profile(workload: Workload, recipe: Recipe, *, num_epochs: int = 1) -> ProfiledRun:
    """Profile on fresh ranks, without holding the machine."""
    with packed_by_value([sys.modules[__name__]]):
        packed = pack(workload)
    job = RunProfile(workload=packed, recipe=recipe, num_epochs=num_epochs)
    plan = recipe.plan
    ranks: Any = run_group(
        GroupRequest(
            job=job,
            world_size=plan.world_size,
            policy=GroupPolicy(),
            needs_group=plan.needs_group,
        )
    )
    return combine_profiles(job, workload.name, "cpu", ranks)


def tiny(slow: str = "nothing", *, rate: float = 0.1, **fields: Any) -> Workload:
    """Return a workload that sleeps `PLANTED_S` an epoch in one place.

    Of three classes the first is always answered right, the others never.
    """

    def build_model() -> Any:
        from torch import nn

        class Model(nn.Linear):
            def forward(self, inputs: Any) -> Any:
                if slow == "forward" and self.training:
                    sleep(PLANTED_S * len(inputs) / NUM_TRAINED)
                return super().forward(inputs)

        return Model(4, 3)

    def build_dataset(split: str) -> Any:
        if split == "test":
            return None
        return Points(split, slow)

    def loss(outputs: Any, targets: Any) -> Any:
        # It pulls towards the first class, whatever the target.
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets * 0)

    def build_optimizer(parameters: Any) -> Any:
        from torch.optim import SGD

        return SGD(parameters, lr=rate)

    given = {
        "build_model": build_model,
        "build_dataset": build_dataset,
        "loss": loss,
        "micro_batch_size": 2,
    }
    return Workload(name="tiny", build_optimizer=build_optimizer, **(given | fields))


def sleep(seconds: float) -> None:
    import time

    time.sleep(seconds)


class Points:
    """Equal inputs, classes 0, 1, 2, 0, ..."""

    def __init__(self, split: str, slow: str) -> None:
        self._size = NUM_TRAINED if split == "train" else NUM_EVALUATED
        self._sleep_s = PLANTED_S / self._size if slow == split else 0.0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch

        sleep(self._sleep_s)
        return torch.ones(4), index % 3


@pytest.mark.parametrize(
    ("slow", "stage"), [("train", "load"), ("forward", "forward"), ("validation", "evaluation")]
)
def test_a_planted_sleep_is_in_its_stage_and_in_no_other(slow: str, stage: str) -> None:
    stages = profile(tiny(slow), Recipe()).profile.stages_s

    # A sleep may be longer than asked for, and never shorter.
    assert getattr(stages, stage) >= PLANTED_S
    assert all(
        getattr(stages, other) < PLANTED_S
        for other in {"load", "forward", "loss_backward", "evaluation"} - {stage}
    )


@pytest.mark.parametrize("parallel", ["single", "ddp:2", "fsdp:2"])
def test_stages_add_up_to_the_wall_time_and_so_do_epochs(parallel: str) -> None:
    taken = profile(tiny(), Recipe(parallel=parallel), num_epochs=2).profile

    assert sum(seconds for _, seconds in taken.stages_s.as_rows()) == pytest.approx(
        taken.wall_s, abs=1e-5
    )
    assert sum(epoch.duration_s for epoch in taken.epochs) == pytest.approx(taken.wall_s, abs=1e-5)


@pytest.mark.parametrize("parallel", ["single", "ddp:2", "zero1:2"])
def test_each_sample_is_counted_once_however_the_split_is_divided(parallel: str) -> None:
    taken = profile(tiny(rate=10.0), Recipe(parallel=parallel)).profile

    # Nine samples on two shards: one sample is repeated to fill the second.
    assert taken.accuracy == 3 / 9
    assert taken.accuracy_per_class == {"0": 1.0, "1": 0.0, "2": 0.0}
    assert taken.evaluated_split == "validation"


def test_the_same_seed_gives_the_same_losses_whatever_the_sleep() -> None:
    first, second = (profile(tiny(slow), Recipe()).profile for slow in ("nothing", "forward"))

    assert first.losses == second.losses
    assert len(first.losses) == NUM_TRAINED // 2


def test_the_first_step_that_is_not_finite_is_named() -> None:
    def loss(outputs: Any, targets: Any) -> Any:
        # Twice as far from the origin with each step of a rate this large.
        return (outputs**2).mean() * 1e25

    taken = profile(tiny(loss=loss), Recipe(), num_epochs=2).profile

    assert [(one.what, one.epoch) for one in taken.non_finite] == [("loss", 1), ("gradient", 1)]
    assert taken.epochs[0].loss is None
    assert taken.losses[taken.non_finite[0].step - 1] is None
    assert None not in taken.losses[: taken.non_finite[0].step - 1]


def test_the_profiler_gives_operators_a_trace_and_the_communication_of_ddp() -> None:
    run = profile(tiny(), Recipe(parallel="ddp:2"))

    assert "aten::addmm" in {operator.name for operator in run.profile.operators}
    assert b'"stage: backward"' in run.profiler.trace
    assert "aten::addmm" in run.profiler.operator_table
    found = run.profile.communication
    assert found is not None
    assert found.exposed_s + found.overlapped_s == pytest.approx(found.total_s)
    assert [usage.rank for usage in run.profile.usage] == [0, 1]


def test_what_cannot_be_had_says_why() -> None:
    workload = tiny(build_dataset=lambda split: Points(split, "") if split == "train" else None)

    taken = profile(workload, Recipe()).profile

    reason = "workload 'tiny' has neither a validation nor a test dataset"
    assert taken.missing == {
        "stages_s.evaluation": reason,
        "evaluated_split": reason,
        "accuracy": reason,
        "accuracy_per_class": reason,
        "communication": "a single process does not communicate",
    }
    assert (taken.stages_s.evaluation, taken.accuracy, taken.accuracy_per_class) == (None,) * 3
    assert [name for name, _ in taken.stages_s.as_rows()] == [
        "load",
        "forward",
        "loss + backward",
        "other",
    ]


@pytest.mark.parametrize("parallel", ["pp:2", "mp:2"])
def test_a_pipeline_is_evaluated_and_has_no_exposed_communication(parallel: str) -> None:
    def build_model() -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))

    workload = tiny(build_model=build_model, blocks=lambda model: list(model), micro_batch_size=4)

    taken = profile(workload, Recipe(parallel=parallel)).profile

    # Nine samples in batches of four: the last one is alone in its batch.
    assert taken.accuracy == 3 / 9
    assert taken.accuracy_per_class == profile(workload, Recipe()).profile.accuracy_per_class
    assert taken.epochs[0].loss is not None
    assert taken.missing == {
        "communication": (
            f"parallel {parallel!r}: a stage that waits for another's computation cannot be told "
            "from one that communicates"
        )
    }


def test_a_workload_with_another_metric_has_an_evaluation_and_no_accuracy() -> None:
    taken = profile(tiny(metric="none"), Recipe()).profile

    assert taken.stages_s.evaluation is not None
    assert taken.accuracy is None
    assert taken.missing["accuracy"] == "accuracy is not the workload's metric"


@pytest.mark.parametrize("parallel", ["single", "ddp:2"])
def test_a_workloads_own_metric_is_the_mean_over_each_sample_once(parallel: str) -> None:
    def metric(outputs: Any, targets: Any) -> dict[str, Any]:
        assert len(outputs) == len(targets)
        return {"class": targets.float().mean()}

    taken = profile(tiny(metric=metric), Recipe(parallel=parallel)).profile

    # Nine samples of the classes 0, 1, 2, 0, ...: on two shards one is repeated.
    assert taken.metrics["class"] == pytest.approx(1.0)
    assert taken.accuracy is None
    assert taken.missing["accuracy"] == "accuracy is not the workload's metric"


def test_a_collection_that_a_step_asks_for_looks_at_all_that_the_rank_has_loaded() -> None:
    left_out: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        import gc

        if phase == "start" and info["generation"] == 2:
            left_out.append(gc.get_freeze_count())

    def loss(outputs: Any, targets: Any) -> Any:
        import gc

        gc.callbacks.append(look)  # behind perfsuite's own
        gc.collect()
        gc.callbacks.remove(look)
        return outputs.square().mean()

    def metric(outputs: Any, targets: Any) -> dict[str, float]:
        return {"left out": float(sum(left_out)), "collections": float(len(left_out))}

    taken = profile(tiny(loss=loss, metric=metric), Recipe()).profile

    assert taken.metrics["collections"] >= NUM_TRAINED / 2
    assert taken.metrics["left out"] == 0.0
