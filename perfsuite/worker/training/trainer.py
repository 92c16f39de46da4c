"""One rank's share of a training run, and the parallel mode that it trains in."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import Optimizer

from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload
from perfsuite.worker.training.mixed_precision import LossScaler, PrecisionPolicy

if TYPE_CHECKING:  # it needs the step, which needs the trainer
    from perfsuite.worker.training.parallel.strategy import Strategy


@dataclass(kw_only=True)
class Trainer:
    """One rank's share of a training run, wrapped and ready to step.

    Attributes:
        model: What this rank calls, wrapped (DDP, ...); under pp and mp the holder of its stages.
        module: The same before data-parallel wrapping: its parameter names are the user's.
        optimizer: The workload's, wrapped where the mode or the precision wraps it.
        unstepped: Parameters with gradients that the optimizer does not step.
    """

    workload: Workload
    recipe: Recipe
    device: torch.device
    model: nn.Module
    module: nn.Module
    optimizer: Optimizer
    unstepped: list[nn.Parameter]
    scaler: LossScaler
    precision: PrecisionPolicy
    strategy: Strategy


def choose_strategy(workload: Workload, recipe: Recipe, *, device: torch.device) -> Strategy:
    """Return the strategy of the recipe's parallel mode.

    Raises a RecipeError where it cannot train this workload with this recipe, whatever the model.
    """
    name = f"{__package__}.parallel.{recipe.plan.properties.strategy}"
    strategy: Strategy = pkgutil.resolve_name(name)(workload, recipe, device)
    return strategy
