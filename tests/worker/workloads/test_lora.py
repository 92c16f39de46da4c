from __future__ import annotations

import torch
from torch import nn

from perfsuite.worker.workloads.transformer import LoRALinear, add_lora


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(4, 6)
        self.key = nn.Linear(4, 6)


def test_the_output_is_at_first_that_of_the_base() -> None:
    base = nn.Linear(4, 6)
    inputs = torch.randn(3, 4)

    assert torch.equal(LoRALinear(base)(inputs), base(inputs))


def test_the_update_is_the_scaled_product_of_both_matrices() -> None:
    torch.manual_seed(0)
    base = nn.Linear(4, 6).double()
    layer = LoRALinear(base).double()
    nn.init.normal_(layer.up.weight)
    inputs = torch.randn(3, 4, dtype=torch.float64)

    merged = base.weight + 2 * layer.up.weight @ layer.down.weight

    torch.testing.assert_close(layer(inputs), nn.functional.linear(inputs, merged, base.bias))


def test_only_the_updates_of_query_and_value_train() -> None:
    model = nn.Sequential(Attention(), Attention())

    add_lora(model)

    trainable = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    assert trainable == {
        "0.query.down.weight": (8, 4),
        "0.query.up.weight": (6, 8),
        "1.query.down.weight": (8, 4),
        "1.query.up.weight": (6, 8),
    }
