from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from perfsuite import Recipe, Workload
from perfsuite.records.stages import untimed
from perfsuite.worker.equivalence.comparison import Tensors
from perfsuite.worker.equivalence.trace.draws import restore_random_state
from perfsuite.worker.equivalence.trace.recording import record_run
from perfsuite.worker.equivalence.trace.trace import RankTrace
from perfsuite.worker.training.step import train_step
from perfsuite.worker.training.trainer import Trainer, build_trainer

CPU = torch.device("cpu")
GENERATOR = torch.Generator().manual_seed(8)
GOOD = [(torch.randn(4, 6, generator=GENERATOR), torch.arange(4) % 3) for _ in range(12)]
OVERFLOWING = (torch.full((4, 6), float("inf")), torch.arange(4) % 3)

Batch = tuple[Tensor, Tensor]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def trainer_for(
    recipe: Recipe, build_model: Callable[[], nn.Module] = perceptron, **fields: Any
) -> Trainer:
    workload = Workload(
        name="recorded",
        build_model=build_model,
        build_dataset=lambda split: TensorDataset(torch.zeros(4, 6), torch.zeros(4)),
        loss=functional.cross_entropy,
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        **fields,
    )
    return build_trainer(workload, recipe, device=CPU, seed=5)


def record(trainer: Trainer, batches: list[Batch], **options: Any) -> RankTrace:
    defaults: dict[str, Any] = {
        "num_steps": 3,
        "on_step": lambda: None,
    }
    return record_run(trainer, iter(batches), **{**defaults, **options})


def parameters_of(trainer: Trainer) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in trainer.module.named_parameters()}


def assert_same_bits(tested: Tensors, expected: Tensors) -> None:
    assert tested.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tested[name], tensor), name


def test_recording_changes_nothing_of_the_run() -> None:
    recorded, unwatched = trainer_for(Recipe()), trainer_for(Recipe())
    start = parameters_of(unwatched)
    batches = iter(GOOD)
    losses, weights = [], []
    for _ in range(3):
        losses.append(train_step(unwatched, batches, untimed))
        weights.append(parameters_of(unwatched))

    trace = record(recorded, GOOD)

    assert_same_bits(trace.start.parameters, start)
    assert [step.loss for step in trace.steps] == [float(loss) for loss in losses]
    for step, expected in zip(trace.steps, weights, strict=True):
        assert_same_bits(step.after.parameters, expected)
    assert [step.before for step in trace.steps] == [None] * 3
    assert [step.scale for step in trace.steps] == [1.0] * 3
    assert (trace.shard_index, trace.num_skipped) == (0, 0)
    assert (trace.sparse, trace.bucket_layout) == ({}, [])


def test_what_is_recorded_does_not_change_with_later_steps() -> None:
    trainer = trainer_for(Recipe())
    start = parameters_of(trainer)

    trace = record(trainer, GOOD)

    assert_same_bits(trace.start.parameters, start)
    for one, other in itertools.pairwise(trace.steps):
        assert not torch.equal(one.gradients["0.weight"], other.gradients["0.weight"])
        assert not torch.equal(one.after.parameters["0.weight"], other.after.parameters["0.weight"])


def test_each_step_has_its_micro_batches_in_order() -> None:
    trainer = trainer_for(Recipe(grad_accumulation_steps=2))

    trace = record(trainer, GOOD, num_steps=2)

    seen = [micro_batch.batch for step in trace.steps for micro_batch in step.micro_batches]
    assert [len(step.micro_batches) for step in trace.steps] == [2, 2]
    for found in (seen, trace.batches):
        assert all(
            torch.equal(inputs, expected)
            for (inputs, _), (expected, _) in zip(found, GOOD[:4], strict=True)
        )


def test_the_loss_of_a_step_is_the_mean_of_its_micro_batches() -> None:
    trainer = trainer_for(Recipe(grad_accumulation_steps=2))
    model = trainer_for(Recipe()).module
    losses = [functional.cross_entropy(model(inputs), target) for inputs, target in GOOD[:2]]

    trace = record(trainer, GOOD, num_steps=1)

    assert trace.steps[0].loss == torch.stack(losses).mean().item()


def test_gradients_are_recorded_before_they_are_unscaled_and_clipped() -> None:
    trainer = trainer_for(Recipe(precision="amp-fp16", clip_grad_norm=1e-3))
    model = trainer_for(Recipe()).module
    inputs, target = GOOD[0]
    with torch.autocast("cpu", dtype=torch.float16):
        loss = functional.cross_entropy(model(inputs), target)
    (loss * 2.0**16).backward()

    trace = record(trainer, GOOD, num_steps=1)

    (step,) = trace.steps
    assert step.scale == 2.0**16
    assert_same_bits(
        step.gradients, {name: parameter.grad for name, parameter in model.named_parameters()}
    )


@pytest.mark.parametrize("precision", ["amp-fp16", "O1", "O2"])
def test_a_step_that_the_scaler_skips_is_counted_and_training_recovers(precision: str) -> None:
    trainer = trainer_for(Recipe(precision=precision))

    trace = record(trainer, [OVERFLOWING, *GOOD], num_steps=2)

    assert trace.num_skipped == 1
    assert [step.scale for step in trace.steps] == [2.0**15, 2.0**15]
    first, second = trace.steps
    assert first.before is not None
    assert second.before is None
    assert_same_bits(first.before.parameters, trace.start.parameters)
    assert not torch.equal(first.after.parameters["2.weight"], first.before.parameters["2.weight"])
    assert all(bool(tensor.isfinite().all()) for tensor in first.gradients.values())


def test_what_skipped_steps_saw_is_no_part_of_the_next_but_of_all_that_was_loaded() -> None:
    trainer = trainer_for(Recipe(precision="amp-fp16"))

    trace = record(trainer, [GOOD[0], OVERFLOWING, OVERFLOWING, GOOD[1]], num_steps=2)

    first, second = trace.steps
    assert [len(step.micro_batches) for step in trace.steps] == [1, 1]
    assert torch.equal(second.micro_batches[0].batch[0], GOOD[1][0])
    assert [bool(inputs.isfinite().all()) for inputs, _ in trace.batches] == [
        True,
        False,
        False,
        True,
    ]
    assert (trace.num_skipped, first.scale, second.scale) == (2, 2.0**16, 2.0**14)
    assert second.before is not None
    assert_same_bits(second.before.parameters, first.after.parameters)


def test_buffers_that_a_skipped_step_changed_are_those_the_next_starts_from() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))

    trainer = trainer_for(Recipe(precision="amp-fp16"), build)

    trace = record(trainer, [OVERFLOWING, *GOOD], num_steps=1)

    assert trace.steps[0].before is not None
    assert trace.start.buffers["0.num_batches_tracked"].item() == 0
    assert trace.steps[0].before.buffers["0.num_batches_tracked"].item() == 1
    assert trace.steps[0].after.buffers["0.num_batches_tracked"].item() == 2


def test_recording_ends_when_the_scaler_skips_for_ever() -> None:
    trainer = trainer_for(Recipe(precision="amp-fp16"))

    trace = record(trainer, [OVERFLOWING] * 20)

    assert (trace.steps, trace.num_skipped) == ([], 8)
    assert trainer.scaler.get_scale() == 2.0**8
    assert len(trace.batches) == 8


def test_a_scale_that_grows_is_no_skipped_step() -> None:
    trainer = trainer_for(Recipe(precision="amp-fp16"))
    trainer.scaler.set_growth_interval(1)
    trainer.scaler.update(4.0)

    trace = record(trainer, GOOD)

    assert [step.scale for step in trace.steps] == [4.0, 8.0, 16.0]
    assert trace.num_skipped == 0


def test_without_a_scaler_an_infinite_gradient_is_recorded_as_it_is() -> None:
    trace = record(trainer_for(Recipe()), [OVERFLOWING], num_steps=1)

    assert (len(trace.steps), trace.num_skipped) == (1, 0)
    assert not bool(trace.steps[0].gradients["0.weight"].isfinite().all())


class Zeroing(nn.Linear):
    """Changes its inputs in place."""

    def forward(self, input: Tensor) -> Tensor:
        outputs = super().forward(input.clone())
        input.zero_()
        return outputs


def test_a_batch_is_recorded_as_it_was_before_the_model_changed_it() -> None:
    batches = [(inputs.clone(), target) for inputs, target in GOOD[:3]]

    trace = record(trainer_for(Recipe(), lambda: Zeroing(6, 3)), batches)

    assert all(not inputs.any() for inputs, _ in batches)
    for step, (inputs, _) in zip(trace.steps, GOOD, strict=False):
        assert torch.equal(step.micro_batches[0].batch[0], inputs)


def test_a_forward_pass_can_be_drawn_again() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))

    trace = record(trainer_for(Recipe(), build), GOOD)

    model = trainer_for(Recipe(), build).module
    losses = []
    for step in trace.steps:
        (micro_batch,) = step.micro_batches
        restore_random_state(micro_batch.random_state, CPU)
        inputs, target = micro_batch.batch
        losses.append(functional.cross_entropy(model(inputs), target).item())
        model.load_state_dict(step.after.parameters)
    assert losses == [step.loss for step in trace.steps]


def test_operators_of_the_passes_are_counted_and_no_further_step_is_taken() -> None:
    def count(recipe: Recipe) -> int:
        num_calls = record(trainer_for(recipe, blocks=list), GOOD).num_calls
        return 0 if num_calls is None else num_calls.total()

    trainer = trainer_for(Recipe(grad_accumulation_steps=2))
    left: Iterator[Batch] = iter(GOOD)

    trace = record_run(trainer, left, num_steps=2, on_step=lambda: None)

    assert (len(trace.steps), len(trace.batches), len(list(left))) == (2, 4, len(GOOD) - 4)
    assert 0 < count(Recipe()) < count(Recipe(checkpointing="every-block"))


def test_progress_is_shown_before_each_step_including_skipped_ones() -> None:
    calls = []

    record(
        trainer_for(Recipe(precision="amp-fp16")),
        [OVERFLOWING, *GOOD],
        num_steps=2,
        on_step=lambda: calls.append("step"),
    )

    assert len(calls) == 3


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 6, sparse=True)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding((8 * x.abs()).long() % 20).mean(1))


def test_sparse_gradients_are_recorded_as_dense_ones_and_named() -> None:
    trace = record(trainer_for(Recipe(), Words), GOOD)

    gradients = trace.steps[0].gradients
    inputs, _ = trace.batches[-1]
    times = torch.unique((8 * inputs.abs()).long() % 20, return_counts=True)[1]
    assert trace.sparse == {"embedding.weight": int(times.max())}
    assert gradients.keys() == {"embedding.weight", "head.weight", "head.bias"}
    assert gradients["embedding.weight"].layout is torch.strided
    assert gradients["embedding.weight"].shape == (20, 6)
