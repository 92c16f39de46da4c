"""How good a model is, on one rank's share of a split: right answers by class, or its own metric.

Shapes: B samples of a batch, C classes, and further dimensions ... that outputs and targets share.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from perfsuite.errors import WorkloadError
from perfsuite.worker.training.batches import map_tensors, num_samples
from perfsuite.worker.training.loaders import EpochBatches
from perfsuite.worker.training.step import compute_loss, eval_mode, prepare_batch
from perfsuite.worker.training.trainer import Trainer


class Tally:
    """Counts right answers by class; only `take` waits for the device."""

    _counts: Tensor | None = None
    why_none: str | None = None

    def add(self, outputs: Any, target: Any) -> None:
        """Count a batch of scores (B, C, ...) and classes (B, ...); negative ones are ignored."""
        if not _are_scores_of_classes(outputs, target):
            self.why_none = (
                "accuracy needs scores (B, C, ...) of 2 classes or more from the model and whole "
                f"numbers (B, ...) as targets; here are {_form(outputs)} and {_form(target)}"
            )
            return
        num_classes = outputs.shape[1]
        if self._counts is None:
            # The last column is of the ignored: to leave them out would wait for the device.
            self._counts = target.new_zeros((2, num_classes + 1), dtype=torch.int64)
        counted = (target >= 0) & (target < num_classes)
        classes = target.where(counted, num_classes).flatten().long()
        is_right = (outputs.argmax(dim=1) == target).flatten()
        self._counts.index_add_(1, classes, torch.stack([is_right, counted.flatten()]).long())

    def take(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return how many of each class were right, and how many there were; None if unknown."""
        if self._counts is None or self.why_none is not None:
            return None
        right, total = self._counts[:, :-1].tolist()
        return tuple(right), tuple(total)


class MetricSums:
    """Sums a workload's own metric over batches, each weighted by its number of samples."""

    def __init__(self, name: str, metric: Callable[[Any, Any], Mapping[str, Any]]) -> None:
        self._name, self._metric = name, metric
        self._sums: dict[str, Any] = {}
        self._num_samples = 0

    def add(self, outputs: Any, target: Any) -> None:
        """Take in one batch."""
        found: object = self._metric(outputs, target)
        size = num_samples((target, outputs))
        if not isinstance(found, Mapping):
            raise self._error(_form(found))
        for name, value in found.items():
            is_tensor = isinstance(value, Tensor)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (value.numel() == 1 if is_tensor else is_number) or not isinstance(name, str):
                raise self._error(f"{name!r}: {_form(value)}")
            # A tensor stays on its device, so that no batch waits for it.
            number = value.detach().double() if is_tensor else value
            self._sums[name] = self._sums.get(name, 0.0) + number * size
        self._num_samples += size

    def _error(self, found: str) -> WorkloadError:
        advice = "return a dict of numbers by name"
        return WorkloadError(f"workload {self._name!r}: its metric returned {found}; {advice}")

    def take(self) -> tuple[dict[str, float], int]:
        """Return the sums by name, and the number of samples."""
        return {name: float(total) for name, total in self._sums.items()}, self._num_samples


def evaluate_split(
    trainer: Trainer,
    batches: EpochBatches,
    score: Tally | MetricSums | None,
    before_batch: Callable[[], None],
) -> None:
    """Run an epoch of a split, in eval mode; `score` gets no sample that only fills a shard."""
    with eval_mode(trainer.model), torch.no_grad():
        for number in range(batches.steps_per_epoch):
            before_batch()
            inputs, target = prepare_batch(trainer, next(batches))
            has_filler = batches.repeats_last and number == batches.steps_per_epoch - 1
            # Alone in its batch it is computed all the same: ranks of a group wait for each other.
            if has_filler and num_samples(target) > 1:
                inputs, target = map_tensors((inputs, target), lambda tensor: tensor[:-1])
                has_filler = False
            if (outputs := trainer.strategy.evaluate(trainer, inputs)) is None:
                continue
            compute_loss(trainer, outputs, target)
            if score is not None and not has_filler:
                score.add(outputs, target)


def _are_scores_of_classes(outputs: Any, target: Any) -> bool:
    if not isinstance(outputs, Tensor) or not isinstance(target, Tensor):
        return False
    if target.is_floating_point() or outputs.dim() != target.dim() + 1:
        return False
    return outputs.shape[:1] + outputs.shape[2:] == target.shape and outputs.shape[1] > 1


def _form(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return f"a {type(value).__name__}"
