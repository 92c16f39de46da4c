"""Low-rank adaptation: fine-tuning that trains a small product beside each frozen weight.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from torch import Tensor, nn


class LoRALinear(nn.Module):
    """A linear layer W0 with a trainable update: W0 x + (alpha / rank) B A x (equation 3).

    Attributes:
        base: W0.
        down: A, (rank, features in), random.
        up: B, (features out, rank), zero, so that at the start the output is the base's.
        scale: alpha / rank.
    """

    def __init__(self, base: nn.Linear, *, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        self.scale = alpha / rank
        # As in the authors' loralib, Linear.reset_parameters.
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (..., features out) for (..., features in)."""
        outputs: Tensor = self.base(inputs) + self.scale * self.up(self.down(inputs))
        return outputs


def add_lora(model: nn.Module, *, names: Collection[str], rank: int, alpha: float) -> None:
    """Freeze all of `model` and put a trainable LoRA beside some of its linear layers, in place.

    `names` are the last parts of those layers' names, such as "query".
    """
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(parent, name, LoRALinear(child, rank=rank, alpha=alpha))
