"""Chains of equal blocks on synthetic data: the smallest model that trains, and what depth adds.

"toy-mlp" is a multilayer perceptron. The chains are four lengths of one model, for what grows with
depth and by how much. Shapes: B samples of a batch, D features, C classes.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from perfsuite.records.workload import Split, Workload
from perfsuite.worker.workloads.splits import SYNTHETIC_SEED, SYNTHETIC_SIZES, take_split

WIDTH = 64
NUM_BLOCKS = 4
NUM_CLASSES = 10

# Largest of 0.02, 0.05 and 0.1 at which the loss still falls without setbacks over three epochs.
_LEARNING_RATE = 0.02


def toy_mlp() -> Workload:
    """The workload "toy-mlp": four equal blocks and a linear classifier, about 0.07 M weights."""
    return _teacher_workload("toy-mlp", NUM_BLOCKS, _build_mlp_block, momentum=0.9)


def chain(num_blocks: int) -> Workload:
    """Return a chain (B, D) -> ... -> (B, C) of equal blocks and a linear classifier.

    A block keeps two tensors (B, D) for backward: the input and the output of its activation. It
    ends with its only product, and nothing in the block needs the output of that: a checkpoint
    recomputes all products of its segment but the last.
    """
    return _teacher_workload(f"chain-{num_blocks}", num_blocks, _build_chain_block, momentum=0)


# A claim names them as "perfsuite.worker.workloads.mlp:chain_of_8".
chain_of_4, chain_of_8, chain_of_16, chain_of_32 = (partial(chain, n) for n in (4, 8, 16, 32))


def _build_mlp_block() -> nn.Module:
    widening, narrowing = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
    return nn.Sequential(nn.LayerNorm(WIDTH), widening, nn.GELU(), narrowing)


def _build_chain_block() -> nn.Module:
    return nn.Sequential(nn.GELU(), nn.Linear(WIDTH, WIDTH))


def _build_model(num_blocks: int, build_block: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(*[build_block() for _ in range(num_blocks)], nn.Linear(WIDTH, NUM_CLASSES))


def _teacher_workload(
    name: str, num_blocks: int, build_block: Callable[[], nn.Module], *, momentum: float
) -> Workload:
    return Workload(
        name=name,
        build_model=partial(_build_model, num_blocks, build_block),
        build_dataset=teacher_data,
        loss=F.cross_entropy,
        build_optimizer=partial(SGD, lr=_LEARNING_RATE, momentum=momentum),
        blocks=_all_but_classifier,
    )


def _all_but_classifier(model: nn.Module) -> list[nn.Module]:
    return list(model.children())[:-1]


def teacher_data(split: Split) -> TensorDataset:
    """Return ((D,) normal features, class) pairs; a random linear teacher chose the classes."""
    generator = torch.Generator().manual_seed(SYNTHETIC_SEED)
    num_samples = sum(SYNTHETIC_SIZES.values())
    teacher = torch.randn(WIDTH, NUM_CLASSES, generator=generator)
    features = torch.randn(num_samples, WIDTH, generator=generator)
    return take_split(split, SYNTHETIC_SIZES, features, (features @ teacher).argmax(dim=1))
