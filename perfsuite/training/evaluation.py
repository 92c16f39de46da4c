"""How right a classifier is, class by class, on one rank's share of a split.

Must not know how a parallel mode computes, nor who takes the time. Shapes: B samples of a batch,
C classes, and any further dimensions ... that outputs and targets share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from perfsuite.training.batches import call_model
from perfsuite.training.loaders import EpochBatches
from perfsuite.training.step import compute_loss, eval_mode, prepare_batch
from perfsuite.training.trainer import Trainer


class Tally:
    """Counts right answers by class; it waits for the device only where its counts are taken."""

    def __init__(self) -> None:
        self._counts: Tensor | None = None
        self.why_none: str | None = None

    def add(self, outputs: Any, target: Any) -> None:
        """Count a batch.

        Args:
            outputs: Scores (B, C, ...).
            target: Classes (B, ...); a negative one, as losses ignore it, is not counted.
        """
        if not _are_scores_of_classes(outputs, target):
            self.why_none = (
                "accuracy needs scores (B, C, ...) from the model and whole numbers (B, ...) as "
                f"targets; here are {_form(outputs)} and {_form(target)}"
            )
            return
        num_classes = outputs.shape[1]
        counted = (target >= 0) & (target < num_classes)
        is_right = counted & (outputs.argmax(dim=1) == target)
        counts = torch.stack(
            [
                torch.bincount(target[chosen], minlength=num_classes)
                for chosen in (is_right, counted)
            ]
        )
        self._counts = counts if self._counts is None else self._counts + counts

    def take(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return how many of each class were right, and how many there were; None without any."""
        if self._counts is None or self.why_none is not None:
            return None
        right, there = self._counts.tolist()
        return tuple(right), tuple(there)


def evaluate_split(
    trainer: Trainer, batches: EpochBatches, tally: Tally | None, before_batch: Callable[[], None]
) -> None:
    """Run one epoch of a split through the model and its loss, in eval mode, without gradients.

    Args:
        trainer: What is evaluated.
        batches: Of the split; a sample that is there only to fill the shard is not counted.
        tally: Given the outputs; None where accuracy is not the workload's metric.
        before_batch: Called before each batch is loaded.
    """
    with eval_mode(trainer.model), torch.no_grad():
        for number in range(batches.steps_per_epoch):
            before_batch()
            inputs, target = prepare_batch(trainer, next(batches))
            outputs = call_model(trainer.model, inputs)
            compute_loss(trainer, outputs, target)
            if tally is None:
                continue
            is_last = number == batches.steps_per_epoch - 1
            if is_last and batches.repeats_last and isinstance(outputs, Tensor):
                outputs, target = outputs[:-1], target[:-1]
            tally.add(outputs, target)


def _are_scores_of_classes(outputs: Any, target: Any) -> bool:
    return (
        isinstance(outputs, Tensor)
        and isinstance(target, Tensor)
        and not target.is_floating_point()
        and outputs.dim() == target.dim() + 1
        and outputs.shape[:1] + outputs.shape[2:] == target.shape
    )


def _form(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return f"a {type(value).__name__}"
