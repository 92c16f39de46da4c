from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

from perfsuite import Recipe, RecipeError, Workload, WorkloadError
from perfsuite.worker.training.checkpointing import _keeps, checkpoint_blocks, checkpoint_units

MODES = ["every-block", "segments:1", "segments:2", "segments:5", "selective"]


class Block(nn.Module):
    """A residual block with dropout before and after its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor, bias: Tensor | None = None, *, rate: float = 0.0) -> Tensor:
        heads = functional.dropout(x, rate).unsqueeze(1)
        attended = functional.scaled_dot_product_attention(heads, heads, heads).squeeze(1)
        hidden = functional.gelu(self.wide(self.norm(attended)))
        change = functional.dropout(self.narrow(hidden), rate)
        return x + change if bias is None else x + change + bias


class Chain(nn.Module):
    def __init__(self, num_blocks: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(num_blocks))
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.head.weight  # shared by the blocks, beside the activations
        for layer in self.layers:
            x = layer(x, bias, rate=0.3)
        return self.head(x)


class Counting(TorchDispatchMode):
    """Counts each operator that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.calls[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture
def checkpointed(make_workload: Callable[..., Workload]) -> Callable[[nn.Module, str], nn.Module]:
    """(model with layers, checkpointing) -> the same model, its layers checkpointed."""

    def apply(model: Any, checkpointing: str) -> nn.Module:
        workload = make_workload(blocks=lambda model: list(model.layers))
        checkpoint_blocks(workload, Recipe(checkpointing=checkpointing), list(model.layers))
        return model

    return apply


def train_once(model: nn.Module, autocast: bool = False) -> tuple[list[Tensor], Counter[str]]:
    """The gradients of input and parameters under a fixed seed, and the operators that ran."""
    torch.manual_seed(1)
    x = torch.randn(2, 4, 8, requires_grad=True)
    with Counting() as counting:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(x).square().mean()
        loss.backward()
    return [x.grad, *(parameter.grad for parameter in model.parameters())], counting.calls


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_bitwise_equal_dropout_included(
    checkpointed: Any, mode: str, autocast: bool
) -> None:
    plain = Chain()
    expected, _ = train_once(plain, autocast)

    gradients, _ = train_once(checkpointed(copy.deepcopy(plain), mode), autocast)

    # 5 blocks of 6 parameters, the head's 2, and the input.
    assert len(gradients) == 33
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    for gradient, reference in zip(gradients, expected, strict=True):
        assert torch.equal(gradient, reference)


@pytest.mark.parametrize("mode", MODES[:4])
def test_every_block_is_really_computed_twice(checkpointed: Any, mode: str) -> None:
    model = Chain()
    _, plain = train_once(model)

    _, calls = train_once(checkpointed(copy.deepcopy(model), mode))

    # torch stops a recomputation once it has all that backward needs, so what only follows the last
    # saved tensor of a unit (the dropout's product and the sums) need not run again.
    assert plain["gelu"] == 5
    assert calls["gelu"] == 10
    assert calls["native_layer_norm"] == 2 * plain["native_layer_norm"]
    assert calls["addmm"] > plain["addmm"] + 5


def test_selective_recomputes_all_but_the_products(checkpointed: Any) -> None:
    model = Chain()
    _, plain = train_once(model)

    _, calls = train_once(checkpointed(copy.deepcopy(model), "selective"))

    attention = "_scaled_dot_product_flash_attention_for_cpu"
    assert calls["gelu"] == 2 * plain["gelu"] == 10
    assert calls["addmm"] == plain["addmm"] == 11
    assert calls["mm"] == plain["mm"]
    assert calls[attention] == plain[attention] == 5


# The fused kernels of CUDA, by what they are called with; none of them runs here.
@pytest.mark.parametrize(
    ("kernel", "leading"),
    [
        ("_scaled_dot_product_flash_attention", ("query", "key", "value")),
        ("_scaled_dot_product_efficient_attention", ("query", "key", "value", None, True)),
        ("_scaled_dot_product_cudnn_attention", ("query", "key", "value", None, True)),
    ],
)
def test_selective_keeps_fused_attention_only_without_dropout(
    kernel: str, leading: tuple[Any, ...]
) -> None:
    operator = getattr(torch.ops.aten, kernel).default
    dropout = operator._schema.arguments[len(leading)]

    assert dropout.name == "dropout_p"
    assert _keeps(None, operator, *leading) is CheckpointPolicy.MUST_SAVE
    assert _keeps(None, operator, *leading, 0.0, True) is CheckpointPolicy.MUST_SAVE
    assert _keeps(None, operator, *leading, 0.1) is CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("mode", MODES[:4])
def test_less_is_saved_for_backward(checkpointed: Any, mode: str) -> None:
    def saved_bytes(model: nn.Module) -> int:
        storages: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(x)
        return sum(storages.values())

    x, plain = torch.randn(32, 16, 8), Chain()
    model = copy.deepcopy(plain)

    assert saved_bytes(checkpointed(model, mode)) < 0.5 * saved_bytes(plain)


@pytest.mark.parametrize("mode", MODES)
def test_the_names_of_the_parameters_stay(checkpointed: Any, mode: str) -> None:
    assert list(checkpointed(Chain(), mode).state_dict()) == list(Chain().state_dict())


@pytest.mark.parametrize("mode", MODES)
def test_a_copied_model_computes_with_its_own_blocks(checkpointed: Any, mode: str) -> None:
    model = checkpointed(Chain(), mode)
    replica = copy.deepcopy(model)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)

    gradients, _ = train_once(replica)

    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("mode", MODES)
def test_evaluation_gives_the_same_outputs(checkpointed: Any, mode: str) -> None:
    x, plain = torch.randn(2, 4, 8), Chain()
    model = checkpointed(copy.deepcopy(plain), mode)

    with torch.no_grad():
        torch.manual_seed(2)
        expected = plain(x)
        torch.manual_seed(2)
        assert torch.equal(model(x), expected)


def test_none_leaves_the_blocks_alone(checkpointed: Any) -> None:
    assert {type(layer) for layer in checkpointed(Chain(), "none").layers} == {Block}


@pytest.mark.parametrize(
    ("checkpointing", "lengths"),
    [
        ("none", [1] * 5),
        ("every-block", [1] * 5),
        ("selective", [1] * 5),
        ("segments:1", [5]),
        ("segments:2", [2, 3]),
        ("segments:3", [1, 2, 2]),
        ("segments:5", [1] * 5),
    ],
)
def test_units_are_runs_of_nearly_equal_length(checkpointing: str, lengths: list[int]) -> None:
    blocks: list[nn.Module] = [nn.Identity() for _ in range(5)]

    units = checkpoint_units(Recipe(checkpointing=checkpointing), blocks)

    assert [len(unit) for unit in units] == lengths
    assert [block for unit in units for block in unit] == blocks


def refusal(error: type[Exception], message: str) -> Any:
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def test_a_workload_without_blocks_is_refused(make_workload: Any) -> None:
    message = (
        "checkpointing 'every-block' needs the blocks of workload 'small', which names none; add "
        "blocks=lambda model: [...] with the modules to recompute to its Workload, or use "
        "checkpointing='none'"
    )
    with refusal(RecipeError, message):
        checkpoint_blocks(make_workload(), Recipe(checkpointing="every-block"), [])


def test_more_segments_than_blocks_are_refused(checkpointed: Any) -> None:
    message = (
        "checkpointing 'segments:6' asks for more segments than the 5 blocks that this rank holds; "
        "use segments:5 or less"
    )
    with refusal(RecipeError, message):
        checkpointed(Chain(), "segments:6")


def test_a_block_named_twice_is_refused() -> None:
    block = nn.Identity()
    message = (
        "blocks names 2 modules, and some of them more than once; "
        "name each module once, in the order of the model's calls"
    )
    with refusal(WorkloadError, message):
        checkpoint_units(Recipe(checkpointing="every-block"), [block, block])


class Unchained(Chain):
    """Computes with the activations between two blocks."""

    between: Callable[[Any], Any]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.between(layer(x))
        return x


@pytest.mark.parametrize(
    ("between", "deed"),
    [
        (functional.relu, "calls 'relu' on"),
        (lambda x: x + torch.ones(8), "calls 'add' on"),
        (lambda x: x.flatten(1), "reads 'flatten' of"),
        (lambda x: x[0], "takes a part of"),
    ],
)
def test_segments_of_blocks_that_are_no_chain_are_refused(
    checkpointed: Any, between: Callable[[Any], Any], deed: str
) -> None:
    model = checkpointed(Unchained(), "segments:2")
    model.between = between
    message = (
        "checkpointing by segments needs blocks that hand one tensor to each other, and the model "
        f"{deed} what a block returned before the next block has it; "
        "use checkpointing='every-block', or name blocks that follow directly on each other"
    )
    with refusal(WorkloadError, message):
        model(torch.ones(2, 4, 8))


def test_segments_of_blocks_called_by_keyword_are_refused(checkpointed: Any) -> None:
    model = checkpointed(Chain(), "segments:2")
    message = (
        "checkpointing by segments needs blocks whose first argument is positional, and a block "
        "was called with x; call it as block(activations, ...), or use checkpointing='every-block'"
    )
    with refusal(WorkloadError, message):
        model.layers[0](x=torch.ones(2, 4, 8))
