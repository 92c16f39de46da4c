"""What the check of the data judges: the order of the samples, and the first few batches.

One process reads them from the suite's loaders. S batches of an epoch on a shard, B samples each.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Split, Workload
from perfsuite.worker.equivalence.trace.batch_difference import find_differences
from perfsuite.worker.equivalence.trace.random_state import read_random_state
from perfsuite.worker.training.build import seed_random_numbers
from perfsuite.worker.training.loaders import EpochBatches

# Epochs of a few samples may have the same order by chance. So many epochs are compared that all of
# a sampler that shuffles are equal with at most this probability.
_LARGEST_CHANCE = 1e-9
# From its second batch on, a dataset with a state gives other samples when it is loaded again.
_NUM_LOADED_AGAIN = 3


@dataclass(frozen=True, kw_only=True)
class DataEvidence:
    """What the check judges.

    Attributes:
        epochs: For each epoch, from the first, and each shard the dataset's indices (S, B); a
            single epoch where all have the same order.
        drawn: For each shard, the indices of the first epoch (S, B) as its ranks drew them.
        seen: For each shard, the first batches that its ranks saw.
        expected: At least the same batches as one process loads them; None where they are random.
        by_workers: The first batches of shard 0 as loader workers load them; None where there are
            no workers, or nothing to compare with.
    """

    epochs: list[list[Tensor]]
    drawn: list[Tensor]
    num_samples: int
    batch_size: int
    seen: Sequence[Sequence[Any]]
    expected: list[list[Any]] | None
    num_workers: int
    by_workers: list[Any] | None


class DataLoaders:
    """The suite's own loaders, over datasets that are built once and under the run's seed."""

    def __init__(self, workload: Workload, recipe: Recipe, seed: int, device: torch.device) -> None:
        self.num_workers = recipe.num_workers
        self.num_shards = recipe.plan.data_parallel_size
        self.batch_size = recipe.micro_batch_size or workload.micro_batch_size
        self.seed = seed
        self.build_dataset = functools.cache(self._build_seeded)
        self._workload = workload
        self._recipe = dataclasses.replace(recipe, pin_memory=False)
        self._device = device

    def read_epoch(self, split: Split, epoch: int) -> list[list[list[int]]]:
        """Return for each shard the indices in each batch; epochs count from 0."""
        return [self._open(split, shard).indices(epoch) for shard in range(self.num_shards)]

    def load(self, num_batches: int, *, shard_index: int, seed: int) -> tuple[list[Any], bool]:
        """Return a shard's first training batches, and whether the dataset drew random numbers."""
        batches = self._open("train", shard_index)
        epochs = (batches.indices(epoch) for epoch in itertools.count())
        dataset = self.build_dataset("train")
        seed_random_numbers(seed)
        before = read_random_state(self._device)
        loaded = [
            default_collate(_fetch(dataset, indices))
            for indices in itertools.islice(itertools.chain.from_iterable(epochs), num_batches)
        ]
        return loaded, read_random_state(self._device).has_moved_from(before)

    def load_by_workers(self, num_batches: int) -> list[Any]:
        """Return shard 0's first training batches as the recipe's loader workers load them."""
        # A new dataset, because one that has opened a file must not be forked.
        self.build_dataset.cache_clear()
        with self._open("train", 0, num_workers=self.num_workers) as batches:
            return [next(batches) for _ in range(num_batches)]

    def _open(self, split: Split, shard_index: int, *, num_workers: int = 0) -> EpochBatches:
        recipe = self._recipe
        if num_workers == 0:
            recipe = dataclasses.replace(
                recipe, num_workers=0, persistent_workers=False, prefetch_factor=None
            )
        return EpochBatches(
            dataclasses.replace(self._workload, build_dataset=self.build_dataset),
            recipe,
            split,
            (shard_index, self.num_shards),
            seed=self.seed,
        )

    def _build_seeded(self, split: Split) -> Any:
        seed_random_numbers(self.seed)
        return self._workload.build_dataset(split)


def _fetch(dataset: Any, indices: list[int]) -> list[Any]:
    """The samples directly from the dataset, so that no mistake of a loader is on both sides."""
    fetch_all = getattr(dataset, "__getitems__", None)
    if fetch_all is not None:
        return list(fetch_all(indices))
    return [dataset[index] for index in indices]


def gather_evidence(
    loaders: DataLoaders, drawn: Sequence[Sequence[Sequence[int]]], seen: Sequence[Sequence[Any]]
) -> DataEvidence:
    """Return what the ranks drew and saw, and what they should have; see `check_data`."""

    def as_epoch(shards: Sequence[Sequence[Sequence[int]]]) -> list[Tensor]:
        size = loaders.batch_size
        return [torch.tensor(batches, dtype=torch.int64).view(-1, size) for batches in shards]

    epochs = [as_epoch(loaders.read_epoch("train", 0))]
    num_samples = len(loaders.build_dataset("train"))
    num_epochs = num_epochs_to_compare(num_samples, sum(map(torch.numel, epochs[0])))
    epochs += [as_epoch(loaders.read_epoch("train", epoch)) for epoch in range(1, num_epochs)]
    expected = _load_expected(loaders, seen)
    has_workers = expected is not None and loaders.num_workers > 0
    return DataEvidence(
        epochs=epochs,
        drawn=as_epoch(drawn),
        num_samples=num_samples,
        batch_size=loaders.batch_size,
        seen=seen,
        expected=expected,
        num_workers=loaders.num_workers,
        by_workers=loaders.load_by_workers(_NUM_LOADED_AGAIN) if has_workers else None,
    )


def num_epochs_to_compare(num_samples: int, num_loaded: int) -> int:
    """Return how many epochs do not all have the same order by chance; 1 if there is one order.

    `num_loaded` of `num_samples` are loaded in an epoch, over all shards.

    >>> num_epochs_to_compare(1200, 1152), num_epochs_to_compare(2, 2)
    (2, 31)
    >>> num_epochs_to_compare(1, 1)
    1
    """
    # num_samples! / num_left_out! orders, as a logarithm
    num_left_out = max(0, num_samples - num_loaded)
    log_num_orders = math.lgamma(num_samples + 1) - math.lgamma(num_left_out + 1)
    if log_num_orders < math.log(1.5):  # a single order, with rounding
        return 1
    return 1 + math.ceil(-math.log(_LARGEST_CHANCE) / log_num_orders)


def _load_expected(loaders: DataLoaders, seen: Sequence[Sequence[Any]]) -> list[list[Any]] | None:
    """What one process loads for each shard; None where it depends on random numbers."""
    expected = []
    for shard_index, batches in zip(range(loaders.num_shards), seen, strict=True):
        num_batches = max(len(batches), _NUM_LOADED_AGAIN)
        loaded, draws = loaders.load(num_batches, shard_index=shard_index, seed=loaders.seed)
        if draws:
            return None
        expected.append(loaded)
    # A generator that the dataset owns is seen only in samples that are loaded again.
    again, draws = loaders.load(_NUM_LOADED_AGAIN, shard_index=0, seed=loaders.seed + 1)
    return None if draws or find_differences(again, expected[0], loaders.batch_size) else expected
