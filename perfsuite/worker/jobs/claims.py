"""Functions that `perfsuite claims` calls on ranks, by name. Runs in a rank."""

import torch
import torch.distributed as dist

from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import find_workload, load_workload
from perfsuite.worker.training.loaders import EpochBatches, build_dataset

_NUM_ELEMENTS = 1 << 20


def measure_tensors(dtypes: list[str]) -> dict[str, int]:
    """Return the bytes of a storage of 2^20 elements, by the name of its dtype."""
    return {
        name: torch.empty(_NUM_ELEMENTS, dtype=getattr(torch, name)).untyped_storage().nbytes()
        for name in dtypes
    }


def read_shard(workload: str, recipe: Recipe, seed: int) -> tuple[list[list[int]], int]:
    """Return the indices of each batch of this rank's first epoch, and the dataset's size."""
    built = load_workload(find_workload(workload))
    shard = dist.get_rank(), dist.get_world_size()
    with EpochBatches(built, recipe, "train", shard, seed=seed) as batches:
        return batches.indices(0), len(build_dataset(built, "train"))
