"""Chains of equal blocks, four lengths of one model: what grows with depth, and by how much.

Must not know how it is trained. Shapes: B samples of a batch, D features, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.optim import SGD

from perfsuite.registry import Workload
from perfsuite.workloads.mlp import NUM_CLASSES, WIDTH, teacher_data

_LEARNING_RATE = 0.02


def chain(num_blocks: int) -> Workload:
    """Return a chain (B, D) -> ... -> (B, C) of equal blocks and a linear classifier.

    A block keeps two tensors (B, D) for backward: what goes into its activation, and what comes out
    of it. It ends with its only product, whose output nothing in the block needs: a checkpoint
    recomputes all products of its segment but the last.
    """
    return Workload(
        name=f"chain-{num_blocks}",
        build_model=partial(_build_chain, num_blocks),
        build_dataset=teacher_data,
        loss=F.cross_entropy,
        build_optimizer=_build_optimizer,
        blocks=_blocks,
    )


# Named by a claim as "perfsuite.workloads.chains:chain_of_8".
chain_of_4 = partial(chain, 4)
chain_of_8 = partial(chain, 8)
chain_of_16 = partial(chain, 16)
chain_of_32 = partial(chain, 32)


def _build_chain(num_blocks: int) -> nn.Sequential:
    blocks = [nn.Sequential(nn.GELU(), nn.Linear(WIDTH, WIDTH)) for _ in range(num_blocks)]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, NUM_CLASSES))


def _blocks(model: nn.Module) -> list[nn.Module]:
    return list(model.children())[:-1]


def _build_optimizer(parameters: Iterator[nn.Parameter]) -> SGD:
    return SGD(parameters, lr=_LEARNING_RATE)
