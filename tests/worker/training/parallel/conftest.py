from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset, default_collate

from perfsuite import Recipe, Workload
from perfsuite.records.stages import untimed
from perfsuite.worker.training.batches import call_model, map_tensors
from perfsuite.worker.training.step import (
    clip_gradients,
    compute_loss,
    finish_gradients,
    prepare_batch,
    scale_loss,
)
from perfsuite.worker.training.trainer import Trainer, build_trainer, seed_random_numbers

CPU = torch.device("cpu")
SEED = 3

Gradients = dict[str, Tensor]


class TextLayer(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        attended, _ = self.attention(x, x, x, key_padding_mask=padding, need_weights=False)
        x = self.norm(x + self.dropout(attended))
        return x + self.dropout(self.mlp(x))


class Text(nn.Module):
    """Optional inputs, a weight of its own, a mask for every layer, and a dict as outputs."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.position = nn.Parameter(torch.randn(1, 6, 8))
        self.layers = nn.ModuleList(TextLayer(dropout) for _ in range(4))
        self.head = nn.Linear(8, 4)

    def forward(
        self, tokens: Tensor, mask: Tensor | None = None, scale: Tensor | None = None
    ) -> dict[str, Tensor]:
        x = self.embedding(tokens) + self.position[:, : tokens.shape[1]]
        padding = None if mask is None else mask == 0
        for layer in self.layers:
            x = layer(x, padding)
        if scale is not None:
            x = x * scale
        return {"logits": self.head(x.mean(1))}


class Sentences(Dataset[Any]):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, 20, (48, 6), generator=generator)
        self.mask = (torch.rand(48, 6, generator=generator) > 0.3).long()
        self.mask[:, 0] = 1
        self.labels = torch.randint(0, 4, (48,), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Any:
        return {"tokens": self.tokens[index], "mask": self.mask[index]}, self.labels[index]


class Image(nn.Module):
    """Convolutions with BatchNorm, then two linear layers as one block; pooled in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self._convolution(1, 4)
        self.second = self._convolution(4, 8)
        self.third = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8))
        self.fourth = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.second(self.first(x)), 2)
        return self.fourth(self.third(torch.flatten(x, 1)))

    def _convolution(self, inputs: int, outputs: int) -> nn.Module:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def images(split: str) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(48, 1, 4, 4, generator=generator), torch.arange(48) % 4)


@pytest.fixture
def make_text() -> Callable[..., Workload]:
    """(dropout=0.0, any field of a Workload) -> a workload of dicts with a chain of layers."""

    def make(dropout: float = 0.0, **fields: Any) -> Workload:
        workload = Workload(
            name="text",
            build_model=lambda: Text(dropout),
            build_dataset=lambda split: Sentences(),
            loss=lambda outputs, target: functional.cross_entropy(outputs["logits"], target),
            build_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
            blocks=lambda model: list(model.layers),
            micro_batch_size=8,
        )
        return dataclasses.replace(workload, **fields)

    return make


@pytest.fixture
def make_image() -> Callable[..., Workload]:
    """(any field of a Workload) -> a workload of small images, its model with BatchNorm."""

    def make(**fields: Any) -> Workload:
        workload = Workload(
            name="image",
            build_model=Image,
            build_dataset=images,
            loss=functional.cross_entropy,
            build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
            blocks=lambda model: [model.first, model.second, model.third, model.fourth],
            micro_batch_size=8,
        )
        return dataclasses.replace(workload, **fields)

    return make


@dataclasses.dataclass
class Run:
    """What one rank, or the reference, computed.

    Attributes:
        gradients: Of each step, by parameter name, before unscaling and clipping.
        losses: Of each step, the mean over micro-batches; None where the rank has none.
        parameters: After the last step, whole.
        buffers: After the last step.
    """

    gradients: list[Gradients]
    losses: list[Tensor | None]
    parameters: Gradients
    buffers: Gradients


def whole(tensor: Tensor) -> Tensor:
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().clone()


def batches_of(workload: Workload, recipe: Recipe, shard: int, num_shards: int) -> list[Any]:
    """Twelve micro-batches of one shard, in order."""
    dataset: Any = workload.build_dataset("train")
    size = recipe.micro_batch_size or workload.micro_batch_size
    starts = range(shard * size, 12 * size * num_shards, num_shards * size)
    return [
        default_collate([dataset[(start + i) % len(dataset)] for i in range(size)])
        for start in starts
    ]


def take_step(trainer: Trainer) -> None:
    if trainer.recipe.clip_grad_norm is not None:
        trainer.scaler.unscale_(trainer.optimizer)
        clip_gradients(trainer, trainer.recipe.clip_grad_norm)
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.update()


def train_rank(workload: Workload, recipe: Recipe, num_steps: int) -> Run:
    torch.set_num_threads(1)
    trainer = build_trainer(workload, recipe, device=CPU, seed=SEED)
    strategy, num_micro_batches = trainer.strategy, recipe.grad_accumulation_steps
    batches = iter(batches_of(workload, recipe, strategy.shard_index, strategy.num_shards))
    gradients, losses = [], []
    for _ in range(num_steps):
        trainer.module.zero_grad()
        step_losses = []
        for index in range(num_micro_batches):
            inputs, target = prepare_batch(trainer, next(batches))
            is_last = index == num_micro_batches - 1
            step_losses.append(
                strategy.run_micro_batch(trainer, inputs, target, is_last=is_last, stage=untimed)
            )
        finish_gradients(trainer)
        gradients.append(
            {
                name: whole(parameter.grad)
                for name, parameter in trainer.module.named_parameters()
                if parameter.grad is not None
            }
        )
        take_step(trainer)
        losses.append(None if step_losses[0] is None else torch.stack(step_losses).mean())
    return Run(
        gradients=gradients,
        losses=losses,
        parameters={name: whole(p) for name, p in trainer.module.named_parameters()},
        buffers={name: whole(b) for name, b in trainer.module.named_buffers()},
    )


def train_alone(
    workload: Workload, recipe: Recipe, num_steps: int = 2, *, num_chunks: int = 1
) -> Run:
    """The reference: one process, shard after shard, gradients averaged in their own dtype.

    Each shard draws its own random numbers, as its rank does. Losses are means over all shards.
    """
    torch.set_num_threads(1)
    num_shards = recipe.plan.data_parallel_size
    single = Recipe(
        precision=recipe.precision,
        grad_accumulation_steps=recipe.grad_accumulation_steps,
        clip_grad_norm=recipe.clip_grad_norm,
    )
    trainer = build_trainer(workload, single, device=CPU, seed=SEED)
    parameters = dict(trainer.module.named_parameters())
    batches = [iter(batches_of(workload, recipe, r, num_shards)) for r in range(num_shards)]
    random_states = []
    for shard in range(num_shards):
        seed_random_numbers(SEED + shard)
        random_states.append(torch.get_rng_state())
    gradients, losses = [], []
    for _ in range(num_steps):
        total: Gradients = {}
        step_losses: list[Tensor] = []
        for shard in range(num_shards):
            torch.set_rng_state(random_states[shard])
            trainer.module.zero_grad()
            for _ in range(recipe.grad_accumulation_steps):
                step_losses += _run_chunks(trainer, next(batches[shard]), num_chunks)
            random_states[shard] = torch.get_rng_state()
            for name, parameter in parameters.items():
                if parameter.grad is not None:
                    share = parameter.grad / num_shards
                    total[name] = total[name] + share if name in total else share
        for name, gradient in total.items():
            parameters[name].grad = gradient.clone()
        finish_gradients(trainer)
        gradients.append(total)
        take_step(trainer)
        losses.append(torch.stack(step_losses).mean())
    return Run(
        gradients=gradients,
        losses=losses,
        parameters={name: whole(p) for name, p in parameters.items()},
        buffers={name: whole(b) for name, b in trainer.module.named_buffers()},
    )


def _run_chunks(trainer: Trainer, batch: Any, num_chunks: int) -> list[Tensor]:
    inputs, target = prepare_batch(trainer, batch)
    losses = []
    for index in range(num_chunks):

        def part(tensor: Tensor, index: int = index) -> Tensor:
            return tensor.chunk(num_chunks)[index]

        outputs = call_model(trainer.model, map_tensors(inputs, part))
        loss = compute_loss(trainer, outputs, map_tensors(target, part))
        (scale_loss(trainer, loss) / num_chunks).backward()
        losses.append(loss.detach())
    return losses


def relative_error(tested: Gradients, expected: Gradients) -> float:
    """The Frobenius norm of the difference of all tensors, over that of the expected ones."""
    assert tested.keys() == expected.keys()
    difference = sum((tested[n].double() - expected[n].double()).square().sum() for n in expected)
    size = sum(expected[n].double().square().sum() for n in expected)
    assert size > 0
    return float((difference / size).sqrt())


@pytest.fixture
def train_on_ranks(rank_group: Callable[..., list[Any]]) -> Callable[..., list[Run]]:
    """(workload, recipe, num_steps=2) -> what each rank of the recipe's group computed."""

    def train(workload: Workload, recipe: Recipe, num_steps: int = 2) -> list[Run]:
        return rank_group(recipe.plan.world_size, train_rank, workload, recipe, num_steps)

    return train


@pytest.fixture
def reference() -> Callable[..., Run]:
    """(workload, recipe, num_steps=2, *, num_chunks=1) -> what one process computes."""
    return train_alone


@pytest.fixture
def worst_error() -> Callable[[list[Gradients], list[Gradients]], float]:
    """(steps, expected steps) -> the greatest relative error of any step's gradients."""

    def worst(tested: list[Gradients], expected: list[Gradients]) -> float:
        return max(relative_error(t, e) for t, e in zip(tested, expected, strict=True))

    return worst
