"""Models that a user parallelizes over a DeviceMesh: FSDP with TP, and context parallelism.

`perfsuite verify benchmarks.own_parallelism:fsdp_tp --parallel mesh:fsdp=2,tp=2` proves one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils.data import TensorDataset

from perfsuite import Workload

NUM_TOKENS, WIDTH, NUM_CLASSES = 16, 32, 4


class Block(nn.Module):
    """Attention and a perceptron over (B, T, D), or over this rank's part of T."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.mesh: DeviceMesh | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens of the same shape."""
        normed = self.norms[0](tokens)
        query, key, value = self.query(normed), self.key(normed), self.value(normed)
        if self.mesh is not None:
            key, value = self._gather(key), self._gather(value)
        tokens = tokens + self.out(functional.scaled_dot_product_attention(query, key, value))
        return tokens + self.down(functional.gelu(self.up(self.norms[1](tokens))))

    def _gather(self, part: Tensor) -> Tensor:
        """The whole sequence; in backward, this rank's part of the sum of all ranks' gradients."""
        whole = DTensor.from_local(part, self.mesh, [Shard(1)])
        return whole.full_tensor(grad_placements=[Partial()])


class Classifier(nn.Module):
    """Blocks over a sequence, and a head over the mean of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, NUM_CLASSES)
        self.mesh: DeviceMesh | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (B, C) of whole sequences (B, T, D)."""
        if self.mesh is not None:
            tokens = tokens.chunk(self.mesh.size(), dim=1)[self.mesh.get_local_rank()]
        total = self.blocks(tokens).sum(dim=1)
        if self.mesh is not None:
            total = DTensor.from_local(total, self.mesh, [Partial()]).full_tensor()
        return self.head(total / NUM_TOKENS)


def shard_layers_and_model(model: Classifier, mesh: DeviceMesh) -> Classifier:
    """FSDP over tensor parallelism, each over its own axis."""
    for block in model.blocks:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh["tp"], plan)
        fully_shard(block, mesh=mesh["fsdp"])
    fully_shard(model, mesh=mesh["fsdp"])
    return model


def split_sequence(model: Classifier, mesh: DeviceMesh) -> Classifier:
    """Context parallelism: each rank of "cp" has a part of every sequence."""
    for module in (model, *model.blocks):
        module.mesh = mesh["cp"]

    def mean(gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=mesh.get_group("dp"))
        return gradient / mesh["dp"].size()

    def mean_of_sums(gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=mesh.get_group("cp"))
        return mean(gradient)

    for parameter in model.blocks.parameters():  # of whose gradient each rank has a part
        parameter.register_hook(mean_of_sums)
    for parameter in model.head.parameters():
        parameter.register_hook(mean)
    return model


def make_workload(parallelize: Any, name: str) -> Workload:
    """A classifier of noise; what it learns does not matter here."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(256, NUM_TOKENS, WIDTH, generator=generator)
    samples = TensorDataset(tokens, torch.arange(256) % NUM_CLASSES)
    return Workload(
        name=name,
        build_model=Classifier,
        build_dataset=lambda split: samples if split == "train" else None,
        loss=functional.cross_entropy,
        build_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        blocks=lambda model: list(model.blocks),
        micro_batch_size=8,
        parallelize=parallelize,
    )


def fsdp_tp() -> Workload:
    """FSDP with tensor parallelism."""
    return make_workload(shard_layers_and_model, "fsdp-tp")


def context_parallel() -> Workload:
    """Context parallelism with data parallelism."""
    return make_workload(split_sequence, "context-parallel")
