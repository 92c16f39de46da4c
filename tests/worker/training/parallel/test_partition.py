from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from perfsuite import RecipeError, WorkloadError
from perfsuite.worker.training.parallel.partition import ModelStage, bind_inputs, partition_model


class Chain(nn.Module):
    """Three blocks with a pooling, a weight of the root and an optional mask between them."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.offset = nn.Parameter(torch.ones(4))
        self.head = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        weight = None if mask is None else mask.float().unsqueeze(-1)
        x = x + self.offset
        first = x
        for block in self.blocks:
            x = self.relu(block(x))
            if weight is not None:
                x = x * weight
        return {"scores": self.head(x + first)}


class Branching(Chain):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        for block in self.blocks:
            x = block(x)
            if x.sum() > 0:
                x = -x
        return x


class Overwriting(Chain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        mask.clamp_(0, 1)
        for block in self.blocks:
            x = block(x) * mask
        return x


class Reversed(Chain):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        for block in reversed(self.blocks):
            x = block(x)
        return x


class Tied(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[2].weight = self.blocks[0].weight


INPUTS = {"x": torch.randn(5, 4), "mask": torch.tensor([1, 0, 1, 1, 1])}


def run(stages: list[ModelStage], inputs: dict[str, Tensor]) -> Any:
    values: Any = ()
    for stage in stages:
        values = stage.module(*values, *(inputs[name] for name in stage.input_names))
    return values


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_stages_one_after_another_compute_what_the_model_computes(num_stages: int) -> None:
    model = Chain()

    stages = partition_model(model, list(model.blocks), num_stages, {"x", "mask"})

    assert len(stages) == num_stages
    assert torch.equal(run(stages, INPUTS)["scores"], model(**INPUTS)["scores"])


def test_stages_share_the_modules_and_the_names_of_the_model() -> None:
    model = Chain()

    stages = partition_model(model, list(model.blocks), 2, {"x", "mask"})

    parameters = [dict(stage.module.named_parameters()) for stage in stages]
    assert parameters[0].keys().isdisjoint(parameters[1])
    whole = dict(model.named_parameters())
    assert (parameters[0] | parameters[1]).keys() == whole.keys()
    assert all(part[name] is whole[name] for part in parameters for name in part)
    assert stages[1].module.get_submodule("blocks.2") is model.blocks[2]


def test_values_made_of_inputs_alone_are_computed_anew_instead_of_sent() -> None:
    model = Chain()

    stages = partition_model(model, list(model.blocks), 3, {"x", "mask"})

    # The first sum goes from stage to stage beside the activations, the mask does not.
    assert [len(stage.module(*INPUTS.values())) for stage in stages[:1]] == [2]
    assert [stage.input_names for stage in stages] == [("x", "mask"), ("mask",), ("mask",)]


def test_inputs_that_are_not_given_keep_their_defaults() -> None:
    model = Chain()

    stages = partition_model(model, list(model.blocks), 2, {"x"})

    assert [stage.input_names for stage in stages] == [("x",), ()]
    assert torch.equal(run(stages, INPUTS)["scores"], model(INPUTS["x"])["scores"])


def test_train_and_eval_mode_stay_switches_of_the_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    stages = partition_model(model, [model[0], model[2]], 2, {"input"})
    inputs = {"input": torch.ones(64, 4)}

    trained = run(stages, inputs)
    model.eval()

    assert not torch.equal(trained, run(stages, inputs))
    assert torch.equal(run(stages, inputs), model(inputs["input"]))


def test_later_stages_take_more_blocks_only_by_one() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(7)))

    stages = partition_model(model, list(model), 3, {"input"})

    assert [len(list(stage.module.children())) for stage in stages] == [2, 2, 3]


@pytest.mark.parametrize(
    ("model", "given", "reason"),
    [
        (
            Branching(),
            {"x"},
            "the model's forward has code between its blocks that cannot be recorded (TraceError: "
            "symbolically traced variables cannot be used as inputs to control flow); "
            "move that code into a submodule",
        ),
        (
            Overwriting(),
            {"x", "mask"},
            "the model's forward changes an input in place by 'clamp_' between its blocks; "
            "use 'clamp'",
        ),
        (
            Reversed(),
            {"x"},
            "the model's forward calls its blocks as blocks.2, blocks.1, blocks.0, and blocks "
            "names blocks.0, blocks.1, blocks.2; name each once, in the order of the calls",
        ),
        (
            Tied(),
            {"x"},
            "two stages share the weight 'blocks.0.weight' (as 'blocks.2.weight'), and no one "
            "would add up its gradients; do not tie it, or name blocks that keep its uses together",
        ),
    ],
    ids=["branches on a value", "overwrites an input", "other order", "shared weight"],
)
def test_a_model_that_cannot_be_cut_is_refused(model: Chain, given: set[str], reason: str) -> None:
    with pytest.raises(RecipeError, match=f"^{re.escape(reason)}$"):
        partition_model(model, list(model.blocks), 3, given)


def test_fewer_blocks_than_stages_are_refused() -> None:
    model = Chain()

    expected = "there are 3 blocks for 4 stages; use fewer stages, or name smaller blocks"
    with pytest.raises(RecipeError, match=f"^{re.escape(expected)}$"):
        partition_model(model, list(model.blocks), 4, {"x"})


def test_blocks_of_another_model_are_refused() -> None:
    expected = "blocks names a module that is not part of the model; name its own"
    with pytest.raises(WorkloadError, match=f"^{re.escape(expected)}$"):
        partition_model(Chain(), list(Chain().blocks), 2, {"x"})


@pytest.mark.parametrize(
    ("inputs", "names"),
    [
        (INPUTS["x"], ["x"]),
        ([INPUTS["x"], INPUTS["mask"]], ["x", "mask"]),
        (INPUTS, ["x", "mask"]),
    ],
    ids=["tensor", "list", "dict"],
)
def test_inputs_are_bound_as_the_model_would_be_called(inputs: Any, names: list[str]) -> None:
    signature = inspect.signature(Chain().forward)

    assert list(bind_inputs(signature, inputs)) == names


def test_functions_and_methods_between_blocks_are_recorded() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 2, 3), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            pooled = functional.max_pool2d(self.a(x).relu(), 2)
            return self.b(pooled.view(x.shape[0], -1))

    model = Pooled()
    stages = partition_model(model, [model.a, model.b], 2, {"x"})
    inputs = {"x": torch.randn(3, 1, 6, 6)}

    assert torch.equal(run(stages, inputs), model(inputs["x"]))


class Counting(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        self.calls = self.calls + 1
        for block in self.blocks:
            x = block(x)
        return x


def test_a_buffer_that_the_forward_assigns_is_refused() -> None:
    model = Counting()

    with pytest.raises(RecipeError) as raised:
        partition_model(model, list(model.blocks), 2, {"x"})

    assert str(raised.value) == (
        "the model's forward assigns the buffer 'calls' between its blocks; change it in place, or "
        "move that code into a submodule"
    )


class Scaled(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        for block in self.blocks:
            x = block(x) * self.factor if block is self.blocks[2] else block(x)
        return x


def test_a_buffer_that_the_forward_reads_is_read_at_every_call() -> None:
    model = Scaled()
    last = partition_model(model, list(model.blocks), 2, {"x"})[-1]
    x = torch.randn(2, 4)
    before = last.module(x)

    model.factor.fill_(3.0)

    assert torch.equal(last.module(x), before * 3.0)
