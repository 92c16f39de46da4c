from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from perfsuite import Recipe, RecipeError, Workload
from perfsuite.records.stages import untimed
from perfsuite.worker.training.trainer import build_trainer

CPU = torch.device("cpu")


class Rounding(nn.Linear):
    """Passes integers to the next block."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(1)).long()


class Converting(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.float())


def random_states_after_first_and_second_batch(workload: Workload) -> tuple[Tensor, Tensor]:
    trainer = build_trainer(workload, Recipe(parallel="pp:2"), device=CPU, seed=1)
    tokens = torch.ones(8, 6, dtype=torch.long)
    states = []
    for _ in range(2):
        torch.manual_seed(4)
        trainer.strategy.run_micro_batch(
            trainer,
            {"tokens": tokens, "mask": tokens},
            torch.arange(8) % 4,
            is_last=True,
            stage=untimed,
        )
        states.append(torch.get_rng_state())
    return states[0], states[1]


def train_with_nested_target(workload: Workload) -> float | None:
    trainer = build_trainer(workload, Recipe(parallel="pp:2"), device=CPU, seed=1)
    target = {"classes": (torch.arange(8) % 4,)}
    loss = trainer.strategy.run_micro_batch(
        trainer, torch.ones(8, 1, 4, 4), target, is_last=True, stage=untimed
    )
    return None if loss is None else float(loss)


def run_one_batch(workload: Workload) -> None:
    trainer = build_trainer(workload, Recipe(parallel="pp:2"), device=CPU, seed=1)
    batch = (torch.randn(8, 1, 4, 4), torch.arange(8) % 4)
    trainer.strategy.run_micro_batch(trainer, *batch, is_last=True, stage=untimed)


def test_finding_out_the_shapes_draws_no_random_numbers(rank_group: Any, make_text: Any) -> None:
    for first, second in rank_group(
        2, random_states_after_first_and_second_batch, make_text(dropout=0.2)
    ):
        assert torch.equal(first, second)


def test_nested_targets_are_divided_into_chunks(rank_group: Any, make_image: Any) -> None:
    def loss(outputs: Tensor, target: dict[str, tuple[Tensor]]) -> Tensor:
        return functional.cross_entropy(outputs, target["classes"][0])

    losses = rank_group(2, train_with_nested_target, make_image(loss=loss))

    assert losses[0] is None
    assert losses[1] > 0


def test_only_floating_tensors_go_from_stage_to_stage(rank_group: Any, make_image: Any) -> None:
    workload = make_image(
        build_model=lambda: nn.Sequential(Rounding(16, 8), Converting(8, 4)), blocks=list
    )

    expected = (
        "parallel 'pp:2': stage 0 of workload 'image' would hand a torch.int64 to the next, and "
        "only floating tensors have gradients; compute it from the model's inputs alone, or inside "
        "the block that needs it"
    )
    with pytest.raises(RecipeError, match=f"^{re.escape(expected)}$"):
        rank_group(2, run_one_batch, workload)
