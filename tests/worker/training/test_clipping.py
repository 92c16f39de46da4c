from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from perfsuite import Recipe
from perfsuite.worker.training import step
from perfsuite.worker.training.step import clip_gradients

CPU = torch.device("cpu")


def with_gradient(gradient: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient
    return parameter


def clip(parameters: list[nn.Parameter], max_norm: float, parallel: str) -> float:
    recipe = Recipe(parallel=parallel)
    trainer: Any = SimpleNamespace(
        optimizer=SimpleNamespace(param_groups=[{"params": parameters}]),
        recipe=recipe,
        strategy=SimpleNamespace(splits_parameters=recipe.plan.properties.splits_parameters),
        device=CPU,
    )
    return clip_gradients(trainer, max_norm).item()


def test_plain_gradients_are_clipped_as_torch_does_it() -> None:
    parameters = [with_gradient(torch.randn(3)), with_gradient(torch.randn(2, 2))]
    copies = [with_gradient(p.grad.clone()) for p in parameters if p.grad is not None]

    norm = clip(parameters, 0.5, "single")
    expected = torch.nn.utils.clip_grad_norm_(copies, 0.5)

    assert norm == expected.item()
    for parameter, its_copy in zip(parameters, copies, strict=True):
        assert torch.equal(parameter.grad, its_copy.grad)


def clip_a_part_on_each_rank(max_norm: float) -> tuple[float, list[float]]:
    """Rank 0 holds the gradient [3, 0], rank 1 [0, 4], rank 2 none."""
    rank = dist.get_rank()
    parts = [torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])]
    parameters = [with_gradient(parts[rank])] if rank < 2 else []
    norm = clip(parameters, max_norm, "mp:3")
    return norm, [value for p in parameters for value in p.grad.tolist()]


@pytest.mark.parametrize(
    ("max_norm", "expected"), [(1.0, [[0.6, 0.0], [0.0, 0.8]]), (6.0, [[3.0, 0.0], [0.0, 4.0]])]
)
def test_parts_on_different_ranks_are_clipped_by_the_norm_of_the_whole(
    rank_group: Any, max_norm: float, expected: list[list[float]]
) -> None:
    results = rank_group(3, clip_a_part_on_each_rank, max_norm)

    assert [norm for norm, _ in results] == [5.0, 5.0, 5.0]
    assert results[2][1] == []
    for (_, gradient), its_expected in zip(results[:2], expected, strict=True):
        assert gradient == pytest.approx(its_expected, rel=1e-6)


def clip_shards_beside_a_plain_one() -> tuple[float, list[float], list[float]]:
    """The sharded gradient is [2, 4], split over the ranks; the plain one [4] is on both."""
    mesh = init_device_mesh("cpu", (2,))
    plain = with_gradient(torch.tensor([4.0]))
    sharded = nn.Parameter(distribute_tensor(torch.zeros(2), mesh, [Shard(0)]))
    sharded.grad = distribute_tensor(torch.tensor([2.0, 4.0]), mesh, [Shard(0)])
    norm = clip([plain, sharded], 3.0, "tp:2")
    return norm, plain.grad.tolist(), sharded.grad.to_local().tolist()


def test_a_plain_gradient_beside_shards_counts_once(rank_group: Any) -> None:
    first, second = rank_group(2, clip_shards_beside_a_plain_one)

    assert first[0] == second[0] == pytest.approx(6.0, rel=1e-6)
    assert first[1] == second[1] == pytest.approx([2.0], rel=1e-6)
    assert first[2] == pytest.approx([1.0], rel=1e-6)
    assert second[2] == pytest.approx([2.0], rel=1e-6)


def clip_a_plain_one() -> float:
    return clip([with_gradient(torch.tensor([3.0, 4.0]))], 1.0, "tp:2")


def test_a_plain_gradient_without_shards_beside_it_counts_once_where_all_ranks_have_it(
    rank_group: Any,
) -> None:
    assert rank_group(2, clip_a_plain_one) == [5.0, 5.0]


def clip_large_halves() -> tuple[float, float]:
    """Each rank's norm is 40 000: float16 has it, and not its square."""
    parameter = with_gradient(torch.full((1,), 40_000.0, dtype=torch.float16))
    norm = clip([parameter], 40_000.0 * 2**0.5 / 2, "pp:2")
    return norm, parameter.grad.item()


def test_the_square_of_a_float16_norm_does_not_overflow(rank_group: Any) -> None:
    for norm, gradient in rank_group(2, clip_large_halves):
        assert norm == pytest.approx(40_000.0 * 2**0.5)
        assert gradient == 20_000.0


class _HostCopies(TorchDispatchMode):
    """Counts copies from the CPU, which wait for the device."""

    num_seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu":
            self.num_seen += 1
        return func(*args, **(kwargs or {}))


def test_clipping_shards_waits_for_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeTensorMode(), _HostCopies() as copies:
        norm = torch.ones((), device="cuda")
        total = step.get_total_norm
        monkeypatch.setattr(step, "get_total_norm", lambda all: norm if all else total(all))
        # Stands for a DTensor, whose norm needs a process group.
        monkeypatch.setattr(step, "is_dtensor", lambda one: isinstance(one, nn.Parameter))

        shard: Any = nn.Parameter(torch.ones(2, device="cuda"))
        shard.device_mesh = "mesh"
        found = step._norm_over_ranks([shard], norm.device, are_own=False)

    assert found.device.type == "cuda"
    assert copies.num_seen == 0
