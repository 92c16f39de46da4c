"""Batches of a loader of the user's own, and those of any loader as if loading were free."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, Final

from perfsuite.errors import DataLoadError, RecipeError, WorkloadError
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Split, Workload
from perfsuite.worker.training.batches import num_samples
from perfsuite.worker.training.loaders import EpochBatches, describe_failure

# More data than a model learns by heart in a cell, less than fills the memory.
_NUM_CACHED = 16
# Fields of a recipe that say nothing to a loader of the user's own.
_LOADING = ("num_workers", "persistent_workers", "pin_memory", "prefetch_factor")
_END: Final = object()


class OwnBatches(EpochBatches):
    """The batches of the workload's own loader, epoch after epoch.

    An epoch with another number of batches than the loader's length, or a batch of another size, is
    an error: ranks would wait for each other, and rates would be wrong.
    """

    def __init__(
        self, workload: Workload, recipe: Recipe, split: Split, shard: tuple[int, int]
    ) -> None:
        for name in (*_LOADING, "micro_batch_size"):
            if value := getattr(recipe, name):
                raise RecipeError(
                    f"{name}={value!r} says nothing to workload {workload.name!r}, which builds "
                    f"its own loader (build_loader); leave {name} out"
                )
        index, num_shards = shard
        self._own_loader = workload.own_loader(split, index, num_shards)
        self._origin = f"workload {workload.name!r}: build_loader({split!r}, {index}, {num_shards})"
        self._batch_size = workload.micro_batch_size
        self._trains = split == "train"
        self._num_given = 0
        self.steps_per_epoch = len(self._own_loader)
        self.step_size = self._batch_size * num_shards

    def indices(self, epoch: int) -> list[list[int]]:
        """Return none: such a loader does not say what it will load."""
        return []

    def _next_of_epochs(self) -> Any:
        if self._iterator is None:
            self._start_epoch(self.epoch)
        batch = self._next()
        if batch is _END and self._num_given == self.steps_per_epoch:
            self._start_epoch(self.epoch + 1)
            batch = self._next()
        if batch is _END or self._num_given == self.steps_per_epoch:
            gave = f"{self._num_given}" if batch is _END else "more"
            raise WorkloadError(
                f"{self._origin} returned what has a length of {self.steps_per_epoch} batches, and "
                f"its epoch {self.epoch + 1} gave {gave}; let the length be right"
            )
        self._num_given += 1
        return batch

    def _next(self) -> Any:
        with self._failures_told():
            return next(self._iterator, _END)

    @contextlib.contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            yield
        # The user's loader may raise anything, and the user is to read all of it.
        except Exception as error:
            raise DataLoadError(f"{self._origin} {describe_failure(error)}") from error

    def _start_epoch(self, epoch: int) -> None:
        self.epoch, self._num_given = epoch, 0
        # As a training loop would do, for whatever part of the loader draws the order.
        names = ("sampler", "batch_sampler", "dataset")
        parts = (getattr(self._own_loader, name, None) for name in names)
        for part in (self._own_loader, *parts):
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(epoch)
        with self._failures_told():
            self._iterator = iter(self._own_loader)

    def _checked(self, batch: Any) -> Any:
        num_inputs, num_targets = map(num_samples, super()._checked(batch))
        if num_targets not in (0, num_inputs):
            raise WorkloadError(
                f"{self._origin} gives a batch of {num_inputs} inputs and {num_targets} targets; "
                "the first dimension of both must be that of the samples"
            )
        if num_inputs > self._batch_size or (self._trains and num_inputs < self._batch_size):
            raise WorkloadError(
                f"{self._origin} gives a batch of {num_inputs} samples, and the workload's "
                f"micro_batch_size is {self._batch_size}; let both be the same, and leave out a "
                "last batch that is smaller (drop_last=True)"
            )
        return batch


class CachedBatches(EpochBatches):
    """The first batches of an epoch over and over, from memory: what free loading would be."""

    def __init__(self, batches: EpochBatches) -> None:
        self.steps_per_epoch, self.step_size = batches.steps_per_epoch, batches.step_size
        num_batches = min(_NUM_CACHED, batches.steps_per_epoch)
        self._cached = itertools.cycle([next(batches) for _ in range(num_batches)])
        batches.close()

    def __next__(self) -> Any:
        return next(self._cached)
