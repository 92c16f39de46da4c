from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from perfsuite import Recipe, Workload
from perfsuite.worker.equivalence.comparison import Tensors
from perfsuite.worker.equivalence.references import single_process
from perfsuite.worker.equivalence.references.single_process import (
    Pass,
    Reference,
    one_batch,
    slice_batch,
)
from perfsuite.worker.equivalence.trace.draws import read_random_state
from perfsuite.worker.equivalence.trace.trace import MicroBatch, Weights
from perfsuite.worker.training import mixed_precision
from perfsuite.worker.training.batches import num_samples

CPU = torch.device("cpu")


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def workload(**fields: Any) -> Workload:
    defaults: dict[str, Any] = {
        "name": "referred",
        "build_model": perceptron,
        "build_dataset": lambda split: TensorDataset(torch.zeros(4, 6), torch.zeros(4)),
        "loss": functional.cross_entropy,
        "build_optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    }
    return Workload(**{**defaults, **fields})


def reference(recipe: Recipe | None = None, seed: int = 5, **fields: Any) -> Reference:
    return Reference(workload(**fields), recipe or Recipe(), device=CPU, seed=seed)


def micro_batch(seed: int, num_samples: int = 8) -> MicroBatch:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_samples, 6, generator=generator)
    target = torch.randint(3, (num_samples,), generator=generator)
    torch.manual_seed(100 + seed)
    return MicroBatch(batch=(inputs, target), random_state=read_random_state(CPU))


def weights_of(model: nn.Module) -> Weights:
    return Weights(
        parameters={name: tensor.detach().clone() for name, tensor in model.named_parameters()},
        buffers={name: tensor.clone() for name, tensor in model.named_buffers()},
    )


def test_a_reference_computes_in_its_own_precision_whichever_was_built_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allowed: list[bool] = []
    for module in (single_process, mixed_precision):
        monkeypatch.setattr(
            module, "set_tf32", lambda policy, _: allowed.append(policy.allows_tf32)
        )
    tf32 = reference(Recipe(precision="tf32"))
    reference(Recipe(precision="fp32"))

    tf32.run([micro_batch(1)])

    assert allowed[-1]


def gradients_by_hand(model: nn.Module) -> Tensors:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_same_bits(tested: Tensors, expected: Tensors) -> None:
    assert tested.keys() == expected.keys()
    for name, tensor in expected.items():
        assert tested[name].dtype == tensor.dtype
        assert torch.equal(tested[name], tensor), name


def another_model() -> nn.Module:
    torch.manual_seed(77)
    model = perceptron()
    model(torch.randn(9, 6))  # so that the statistics of its BatchNorm are no longer the first
    return model


def test_a_reference_keeps_of_a_recipe_what_decides_the_mathematics() -> None:
    recipe = Recipe(
        parallel="ddp:3",
        precision="amp-bf16",
        checkpointing="every-block",
        grad_accumulation_steps=4,
        clip_grad_norm=0.5,
        comm_hook="fp16",
        bucket_cap_mb=1.0,
        num_workers=2,
    )

    plain = reference(recipe)
    changes = {"precision": "fp64", "grad_accumulation_steps": 1}
    changed = Reference(workload(), recipe, device=CPU, seed=5, **changes)

    kept = {"precision": "amp-bf16", "grad_accumulation_steps": 4, "clip_grad_norm": 0.5}
    assert plain.trainer.recipe == Recipe(**kept)
    assert changed.trainer.recipe == Recipe(precision="fp64", clip_grad_norm=0.5)


def test_gradients_are_those_of_a_loop_written_by_hand_bit_by_bit() -> None:
    model = another_model()
    tested = reference()
    tested.load(weights_of(model))
    one = micro_batch(1)

    result = tested.run([one])

    inputs, target = one.batch
    loss = functional.cross_entropy(model(inputs), target)
    loss.backward()
    assert result.loss == loss.item()
    assert_same_bits(result.gradients, gradients_by_hand(model))
    assert_same_bits(result.buffers, dict(model.named_buffers()))
    assert (result.draws, result.unknown_draw, result.drew_outside) == ([], None, None)


def test_micro_batches_are_accumulated_as_by_hand_bit_by_bit() -> None:
    model = another_model()
    tested = reference(Recipe(grad_accumulation_steps=3))
    tested.load(weights_of(model))
    parts = [micro_batch(seed) for seed in (1, 2, 3)]

    result = tested.run(parts)

    losses = []
    for part in parts:
        inputs, target = part.batch
        losses.append(functional.cross_entropy(model(inputs), target))
        (losses[-1] / 3).backward()
    assert result.loss == torch.stack(losses).mean().item()
    assert_same_bits(result.gradients, gradients_by_hand(model))


def test_chunks_are_averaged_as_by_hand_bit_by_bit() -> None:
    model = another_model()
    tested = reference()
    tested.load(weights_of(model))
    one = micro_batch(1)

    result = tested.run([one], num_chunks=4)

    losses = []
    for inputs, target in zip(*(tensor.chunk(4) for tensor in one.batch), strict=True):
        losses.append(functional.cross_entropy(model(inputs), target))
        (losses[-1] / 4).backward()
    assert result.loss == torch.stack(losses).mean().item()
    assert_same_bits(result.gradients, gradients_by_hand(model))
    assert_same_bits(result.buffers, dict(model.named_buffers()))


@pytest.mark.parametrize("scale", [1.0, 2.0**10])
def test_gradients_carry_the_scale_of_the_run(scale: float) -> None:
    model = nn.Linear(6, 3)
    tested = reference(Recipe(precision="amp-fp16"), build_model=lambda: nn.Linear(6, 3))
    tested.load(weights_of(model))
    one = micro_batch(1)

    result = tested.run([one], scale=scale)

    inputs, target = one.batch
    with torch.autocast("cpu", dtype=torch.float16):
        loss = functional.cross_entropy(model(inputs), target)
    (loss * scale).backward()
    assert result.loss == loss.item()
    assert_same_bits(result.gradients, gradients_by_hand(model))


def test_a_precision_without_a_scale_ignores_it() -> None:
    tested = reference()
    start = weights_of(tested.trainer.module)

    def run(scale: float) -> Pass:
        tested.load(start)
        return tested.run([micro_batch(1)], scale=scale)

    assert_same_bits(run(8.0).gradients, run(1.0).gradients)


def test_each_run_begins_without_gradients() -> None:
    tested = reference(build_model=lambda: nn.Linear(6, 3))

    first = tested.run([micro_batch(1)])
    second = tested.run([micro_batch(1)])

    assert_same_bits(second.gradients, first.gradients)


def test_loaded_weights_are_rounded_to_the_precision_and_absent_ones_stay() -> None:
    tested = reference(Recipe(precision="bf16"), build_model=lambda: nn.Linear(6, 3))
    bias = tested.trainer.module.bias.detach().clone()
    weight = torch.full((3, 6), 1.0 + 2.0**-10, dtype=torch.float64)

    tested.load(Weights(parameters={"weight": weight, "unknown": weight}, buffers={}))

    assert torch.equal(tested.trainer.module.weight, torch.ones(3, 6, dtype=torch.bfloat16))
    assert torch.equal(tested.trainer.module.bias, bias)


def test_loading_copies_so_that_the_recorded_weights_stay() -> None:
    model = another_model()
    weights, kept = weights_of(model), weights_of(model)
    tested = reference()

    tested.load(weights)
    tested.run([micro_batch(1)])
    tested.trainer.optimizer.step()

    assert_same_bits(weights.parameters, kept.parameters)
    assert_same_bits(weights.buffers, kept.buffers)


def test_the_truth_is_computed_in_float64() -> None:
    model = another_model().double()
    tested = reference(Recipe(precision="fp64"))
    tested.load(weights_of(model))
    one = micro_batch(1)

    result = tested.run([one])

    inputs, target = one.batch
    functional.cross_entropy(model(inputs.double()), target).backward()
    assert_same_bits(result.gradients, gradients_by_hand(model))
    assert result.gradients["0.weight"].dtype == torch.float64


def test_dropout_is_drawn_as_it_was_before_each_forward_pass() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))

    tested = reference(Recipe(grad_accumulation_steps=2), build_model=build)
    parts = [micro_batch(1), micro_batch(2)]

    first = tested.run(parts)
    torch.rand(50)
    second = tested.run(parts)
    other = tested.run(
        [parts[0], MicroBatch(batch=parts[1].batch, random_state=parts[0].random_state)]
    )

    assert first.unknown_draw == (
        "aten.bernoulli_ draws random numbers unseen, in a compiled model or in threads"
    )
    assert_same_bits(second.gradients, first.gradients)
    assert not torch.equal(other.gradients["1.weight"], first.gradients["1.weight"])


class Zeroing(nn.Linear):
    """Changes its inputs in place."""

    def forward(self, input: Tensor) -> Tensor:
        outputs = super().forward(input.clone())
        input.zero_()
        return outputs


def test_a_model_that_changes_its_inputs_leaves_the_recorded_batch_alone() -> None:
    tested = reference(build_model=lambda: Zeroing(6, 3))
    one = micro_batch(1)
    before = one.batch[0].clone()

    first = tested.run([one])
    second = tested.run([one])

    assert torch.equal(one.batch[0], before)
    assert_same_bits(second.gradients, first.gradients)


def test_a_parameter_without_a_gradient_is_absent() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)
            self.frozen = nn.Parameter(torch.ones(()), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x) * self.frozen

    result = reference(build_model=Partly).run([micro_batch(1)])

    assert result.gradients.keys() == {"used.weight", "used.bias"}


class Pair(NamedTuple):
    x: Tensor
    words: list[str]


def batch_of(value: Any) -> MicroBatch:
    return MicroBatch(batch=value, random_state=read_random_state(CPU))


def test_nested_batches_of_all_ranks_make_one() -> None:
    def part(first: float, size: int) -> MicroBatch:
        inputs = {
            "x": torch.full((size, 2), first),
            "pair": Pair(torch.full((size,), first), [f"{first}"] * size),
            "more": [torch.arange(size), (torch.zeros(size, 1),)],
            "scale": 0.5,
            "none": None,
        }
        return batch_of((inputs, torch.full((size,), int(first))))

    inputs, target = one_batch([part(1.0, 1), part(2.0, 2)]).batch

    assert inputs["x"].tolist() == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
    assert isinstance(inputs["pair"], Pair)
    assert inputs["pair"].x.tolist() == [1.0, 2.0, 2.0]
    assert inputs["pair"].words == ["1.0", "2.0", "2.0"]
    assert inputs["more"][0].tolist() == [0, 0, 1]
    assert inputs["more"][1][0].shape == (3, 1)
    assert (inputs["scale"], inputs["none"]) == (0.5, None)
    assert target.tolist() == [1, 2, 2]


def test_one_batch_draws_the_numbers_of_the_first() -> None:
    first, second = micro_batch(1), micro_batch(2)

    assert one_batch([first, second]).random_state is first.random_state


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (
            torch.zeros(4, 5),
            torch.zeros(4, 6),
            "batches of shapes (4, 5), (4, 6) do not make one",
        ),
        (torch.tensor(1.0), torch.tensor(2.0), "batches of shapes (), () do not make one"),
        (
            {"x": torch.zeros(2)},
            {"y": torch.zeros(2)},
            "the batches are built differently, so they do not make one",
        ),
        (
            [torch.zeros(2)],
            [torch.zeros(2), torch.zeros(2)],
            "the batches are built differently, so they do not make one",
        ),
        (
            {"x": None},
            {"x": torch.zeros(2)},
            "the batches are built differently, so they do not make one",
        ),
    ],
)
def test_batches_that_do_not_make_one_are_refused(one: Any, other: Any, message: str) -> None:
    with pytest.raises(ValueError, match="do not make one") as refused:
        one_batch([batch_of(one), batch_of(other)])

    assert str(refused.value) == message


def test_samples_are_counted_and_cut_along_the_first_dimension() -> None:
    one = batch_of(({"ids": torch.arange(6), "x": torch.zeros(6, 2)}, torch.arange(6)))

    part = slice_batch(one, 2, 5)

    assert num_samples(one.batch) == 6
    assert num_samples(part.batch) == 3
    inputs, target = part.batch
    assert inputs["ids"].tolist() == target.tolist() == [2, 3, 4]
    assert part.random_state is one.random_state
