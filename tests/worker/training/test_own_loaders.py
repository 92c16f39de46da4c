"""A loader of the user's own: what is taken from it, and what it is refused for."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from perfsuite import Recipe, Workload, WorkloadError
from perfsuite.errors import DataLoadError, RecipeError
from perfsuite.records.workload import Split, no_dataset
from perfsuite.worker.training.loaders import CachedBatches, OwnBatches


class Numbers(Dataset[Any]):
    """Sample i is (i, -i)."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return index, -index


@dataclass
class Words:
    """A batch of a class that torch's collate does not know either."""

    ids: torch.Tensor


class Stream(IterableDataset[Any]):
    """Batches that it makes itself, as a tokenized stream does."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return ((torch.ones(size), torch.zeros(size)) for size in self.sizes)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield torch.ones(4), torch.zeros(4)


@pytest.fixture
def build(make_workload: Callable[..., Workload]) -> Callable[..., OwnBatches]:
    """(loader, or function that builds it) -> its batches, which should be of 4 samples."""

    def make(
        loader: Any, split: Split = "train", *, drops_last: bool = False, **fields: Any
    ) -> OwnBatches:
        build_loader = loader if callable(loader) else lambda *_: loader
        workload = make_workload(build_dataset=no_dataset, build_loader=build_loader)
        return OwnBatches(workload, Recipe(**fields), split, (1, 2), drops_last=drops_last)

    return make


def sharded(split: str, shard_index: int, num_shards: int) -> Any:
    sampler = DistributedSampler(
        Numbers(), num_replicas=num_shards, rank=shard_index, shuffle=split == "train"
    )
    return DataLoader(Numbers(), 4, sampler=sampler, drop_last=True)


def doubled(samples: list[tuple[int, int]]) -> Any:
    inputs, targets = zip(*samples, strict=True)
    return 2 * torch.tensor(inputs), torch.tensor(targets)


def inputs_of(batches: Iterator[Any], count: int) -> list[list[int]]:
    return [next(batches)[0].tolist() for _ in range(count)]


def test_a_sampler_is_told_of_each_epoch_as_in_a_training_loop(build: Any) -> None:
    batches = build(sharded)

    first, second = inputs_of(batches, 2), inputs_of(batches, 2)

    assert (batches.steps_per_epoch, batches.step_size, batches.epoch) == (2, 8, 1)
    assert first != second
    others = DistributedSampler(Numbers(), num_replicas=2, rank=1)
    others.set_epoch(1)
    assert [index for batch in second for index in batch] == list(others)
    assert batches.indices(0) == []


def test_streams_and_collate_functions_are_the_users(build: Any) -> None:
    streamed = build(DataLoader(Stream(4, 4, 4), batch_size=None))
    collated = build(DataLoader(Numbers(), 4, collate_fn=doubled))
    listed = build([(torch.ones(4), torch.zeros(4))] * 2)

    assert inputs_of(streamed, 4) == [[1.0] * 4] * 4
    assert (streamed.steps_per_epoch, streamed.epoch) == (3, 1)
    assert inputs_of(collated, 2) == [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert inputs_of(listed, 3) == [[1.0] * 4] * 3


def test_only_training_needs_a_full_last_batch(build: Any) -> None:
    assert len(inputs_of(build(DataLoader(Stream(4, 4, 1), batch_size=None), "test"), 3)) == 3


def test_where_each_batch_counts_as_full_one_that_is_not_is_refused(build: Any) -> None:
    batches = build(DataLoader(Stream(4, 4, 1), batch_size=None), "test", drops_last=True)

    with pytest.raises(WorkloadError) as refused:
        inputs_of(batches, 3)

    assert str(refused.value) == (
        "workload 'small': build_loader('test', 1, 2) gives a batch of 1 sample, and the "
        "workload's micro_batch_size is 4; let both be the same, and leave out a last batch that "
        "is smaller (drop_last=True)"
    )


ORIGIN = "workload 'small': build_loader('train', 1, 2)"
PAIR = "a batch, as each item of a dataset, must be a pair (inputs, target)"
EXPECTED = "return an iterable of at least one batch, with a __len__ that says when an epoch ends"


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (lambda *_: None, f"returned None; {EXPECTED}"),
        (lambda *_: 5, f"returned a int; {EXPECTED}"),
        (DataLoader(Endless(), batch_size=None), f"returned a DataLoader; {EXPECTED}"),
        (lambda *_: iter([1]), f"returned a list_iterator; {EXPECTED}"),
        ([], f"returned a list; {EXPECTED}"),
        ([5], f"gives a batch of the type int; {PAIR}"),
        ([(1, 2, 3)], f"gives a batch of the type tuple of 3; {PAIR}"),
        (
            [(torch.ones(4), torch.ones(3))],
            "gives a batch of 4 inputs and 3 targets; the first dimension of both must be that of "
            "the samples",
        ),
        (
            [(Words(torch.ones(4)), torch.ones(4))],
            "gives inputs of the type Words, in which no tensor of samples is found; use a tensor, "
            "or tensors in tuples, lists and dicts",
        ),
        (
            DataLoader(Stream(1, 4, 4), batch_size=None),
            "gives a batch of 1 sample, and the workload's micro_batch_size is 4; let both be the "
            "same, and leave out a last batch that is smaller (drop_last=True)",
        ),
        (
            DataLoader(Stream(8, 4, 4), batch_size=None),
            "gives a batch of 8 samples, and the workload's micro_batch_size is 4; let both be the "
            "same, and leave out a last batch that is smaller (drop_last=True)",
        ),
        (
            DataLoader(Stream(4, 4), batch_size=None),
            "returned what has a length of 3 batches, and its epoch 1 gave 2; let the length be "
            "right",
        ),
        (
            DataLoader(Stream(4, 4, 4, 4), batch_size=None),
            "returned what has a length of 3 batches, and its epoch 1 gave more; let the length be "
            "right",
        ),
    ],
)
def test_a_loader_that_cannot_be_trained_from_is_refused(
    build: Any, loader: Any, message: str
) -> None:
    with pytest.raises(WorkloadError, match=f"^{re.escape(f'{ORIGIN} {message}')}$"):
        inputs_of(build(loader), 4)


def test_what_a_loader_raises_is_told_with_its_place(build: Any) -> None:
    def broken(samples: Any) -> Any:
        raise ValueError("no such word")

    with pytest.raises(DataLoadError) as refused:
        next(build(DataLoader(Numbers(), 4, collate_fn=broken)))

    line = broken.__code__.co_firstlineno + 1
    assert str(refused.value) == f"{ORIGIN} raised ValueError: no such word at {__file__}:{line}"


@pytest.mark.parametrize("method", ["_reset", "_try_put_index"])
def test_a_worker_may_die_while_an_epoch_begins(
    build: Any, die_in: Callable[[str], Callable[[], None]], method: str
) -> None:
    die = die_in(method)
    loader = DataLoader(Numbers(), 4, num_workers=2, worker_init_fn=lambda _: die())

    with pytest.raises(DataLoadError, match="exited unexpectedly with exit code 3") as told:
        next(build(loader))
    assert "loaders.py:" not in str(told.value).replace(__file__, "")
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    "fields",
    [
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"pin_memory": True},
        {"micro_batch_size": 8},
    ],
)
def test_what_only_a_loader_of_ours_does_is_refused(build: Any, fields: dict[str, Any]) -> None:
    name, value = next(iter(fields.items()))
    message = (
        f"{name}={value!r} says nothing to workload 'small', which builds its own loader "
        f"(build_loader); leave {name} out"
    )
    with pytest.raises(RecipeError, match=f"^{re.escape(message)}$"):
        build(sharded, **fields)


def test_cached_batches_are_the_first_ones_without_end_and_load_nothing(build: Any) -> None:
    own = build(DataLoader(Numbers(), 4))

    cached = CachedBatches(own)

    first = [list(range(start, start + 4)) for start in (0, 4, 8, 12)]
    assert inputs_of(cached, 6) == first + first[:2]
    assert next(own, None) is None  # closed
    assert (cached.steps_per_epoch, cached.step_size) == (4, 8)
