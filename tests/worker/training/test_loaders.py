from __future__ import annotations

import gc
import multiprocessing
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from perfsuite import Recipe, Workload, WorkloadError
from perfsuite.errors import DataLoadError
from perfsuite.records.workload import Split
from perfsuite.worker.training.loaders import EpochBatches

CPU = torch.device("cpu")


class Numbers(Dataset[Any]):
    """Sample i is (i, -i)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return index, -index


@pytest.fixture
def build(make_workload: Callable[..., Workload]) -> Iterator[Callable[..., EpochBatches]]:
    """(dataset, ...) -> its batches of 4, closed at the end of the test."""
    built = []

    def make(
        dataset: Any,
        split: Split = "train",
        *,
        shard_index: int = 0,
        num_shards: int = 1,
        seed: int = 0,
        on_worker_start: Callable[[], None] | None = None,
        drops_last: bool = False,
        **fields: Any,
    ) -> EpochBatches:
        batches = EpochBatches(
            make_workload(build_dataset=lambda split: dataset),
            Recipe(**fields),
            split,
            (shard_index, num_shards),
            seed=seed,
            on_worker_start=on_worker_start,
            drops_last=drops_last,
        )
        built.append(batches)
        return batches

    yield make
    for batches in built:
        batches.close()


def samples(batches: EpochBatches, num_batches: int | None = None) -> list[list[int]]:
    """The inputs of the next batches, by default those of one epoch."""
    count = batches.steps_per_epoch if num_batches is None else num_batches
    return [next(batches)[0].tolist() for _ in range(count)]


def refusal(error: type[Exception], message: str) -> Any:
    return pytest.raises(error, match=f"^{re.escape(message)}$")


LOADERS: list[dict[str, Any]] = [
    {"num_workers": 1},
    {"num_workers": 2, "prefetch_factor": 3},
    {"num_workers": 2, "persistent_workers": True},
]


@pytest.mark.parametrize("fields", LOADERS)
def test_batches_are_the_same_for_any_number_of_workers(build: Any, fields: Any) -> None:
    expected = samples(build(Numbers(22)), 12)

    assert samples(build(Numbers(22), **fields), 12) == expected


def test_each_epoch_is_shuffled_anew_and_repeatably(build: Any) -> None:
    batches = build(Numbers(16))
    first, second = samples(batches), samples(batches)

    assert first != second
    for epoch in (first, second):
        assert sorted(sample for batch in epoch for sample in batch) == list(range(16))
    assert samples(build(Numbers(16)), 8) == first + second
    assert samples(build(Numbers(16), seed=1)) != first


def test_the_epoch_is_that_of_the_last_batch(build: Any) -> None:
    batches = build(Numbers(9))

    epochs = []
    for _ in range(5):
        next(batches)
        epochs.append(batches.epoch)

    assert batches.steps_per_epoch == 2
    assert epochs == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("fields", [{}, *LOADERS])
def test_indices_are_those_that_each_epoch_loads_and_disturb_none(build: Any, fields: Any) -> None:
    undisturbed = samples(build(Numbers(27), shard_index=1, num_shards=2, **fields), 9)
    batches = build(Numbers(27), shard_index=1, num_shards=2, **fields)

    indices = [batches.indices(epoch) for epoch in range(3)]
    loaded = samples(batches, 2)
    batches.indices(2)
    loaded += samples(batches, 7)

    assert loaded == undisturbed == [batch for epoch in indices for batch in epoch]


def test_indices_load_nothing(build: Any) -> None:
    assert build(Raising(10), "test", num_workers=1).indices(0) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    assert multiprocessing.active_children() == []


def test_shards_are_disjoint_and_of_equal_length(build: Any) -> None:
    shards = [samples(build(Numbers(27), shard_index=i, num_shards=3)) for i in range(3)]

    seen = [sample for shard in shards for batch in shard for sample in batch]
    assert [[len(batch) for batch in shard] for shard in shards] == [[4, 4]] * 3
    assert len(seen) == len(set(seen)) == 24


def test_training_leaves_out_the_batch_that_is_not_full(build: Any) -> None:
    assert [len(batch) for batch in samples(build(Numbers(11)))] == [4, 4]


def test_other_splits_keep_their_order_and_their_last_batch(build: Any) -> None:
    batches = build(Numbers(10), "validation")

    assert samples(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert samples(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_shards_of_other_splits_repeat_samples_where_one_would_be_shorter(build: Any) -> None:
    shards = [samples(build(Numbers(5), "test", shard_index=i, num_shards=2)) for i in range(2)]

    assert shards == [[[0, 2, 4]], [[1, 3, 0]]]


@pytest.mark.parametrize(
    ("size", "num_shards", "repeating"),
    [(5, 2, [False, True]), (6, 2, [False, False]), (4, 3, [False, True, True]), (5, 1, [False])],
)
def test_a_shard_knows_whether_its_last_sample_is_anothers_again(
    build: Any, size: int, num_shards: int, repeating: list[bool]
) -> None:
    shards = [
        build(Numbers(size), "test", shard_index=index, num_shards=num_shards)
        for index in range(num_shards)
    ]

    assert [shard.repeats_last for shard in shards] == repeating


def test_training_repeats_nothing(build: Any) -> None:
    assert not build(Numbers(27), shard_index=1, num_shards=2).repeats_last


def test_the_recipes_batch_size_goes_before_the_workloads(build: Any) -> None:
    assert [len(batch) for batch in samples(build(Numbers(12), micro_batch_size=6))] == [6, 6]


def test_inputs_and_target_stay_a_pair(build: Any) -> None:
    inputs, target = next(build(Numbers(8)))

    assert torch.equal(inputs, -target)


class Fetched(Numbers):
    """Fetches whole batches, as datasets on disk do."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [(index + 100, 0) for index in indices]


def test_a_dataset_that_fetches_whole_batches_does_so(build: Any) -> None:
    assert sorted(next(build(Fetched(4)))[0].tolist()) == [100, 101, 102, 103]


class Drawing(Numbers):
    """Augments with all three generators that people use."""

    def __getitem__(self, index: int) -> Any:
        drawn = [torch.rand(1).item(), random.random(), numpy.random.rand()]
        return torch.tensor([index, *drawn], dtype=torch.float64), 0


def test_augmentations_of_workers_repeat_and_differ_between_workers_and_shards(build: Any) -> None:
    def drawn(**known: Any) -> torch.Tensor:
        batches = build(Drawing(32), num_workers=2, **known)
        return torch.cat([next(batches)[0] for _ in range(4)])[:, 1:]

    first = drawn()

    assert torch.equal(drawn(), first)
    assert len(first.unique()) == first.numel()
    assert not torch.isin(drawn(shard_index=1, num_shards=2), first).any()


@pytest.mark.parametrize("fields", [{}, *LOADERS])
def test_loading_draws_nothing_from_the_models_random_numbers(build: Any, fields: Any) -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)

    samples(build(Numbers(8), **fields), 4)

    assert torch.equal(torch.rand(1), expected)


def test_each_worker_calls_on_worker_start_first(build: Any, tmp_path: Path) -> None:
    class Started(Numbers):
        def __getitem__(self, index: int) -> Any:
            return int((tmp_path / str(os.getpid())).exists()), get_worker_info().id

    batches = build(
        Started(16), num_workers=2, on_worker_start=lambda: (tmp_path / str(os.getpid())).touch()
    )

    assert samples(batches, 4) == [[1] * 4] * 4
    assert len(list(tmp_path.iterdir())) == 2
    assert not (tmp_path / str(os.getpid())).exists()


def test_workers_are_forked(build: Any) -> None:
    unpicklable = Numbers(8)
    unpicklable.function = lambda: None  # type: ignore[attr-defined]

    next(build(unpicklable, num_workers=1))

    assert {type(child).__name__ for child in multiprocessing.active_children()} == {"ForkProcess"}


class Raising(Numbers):
    def __getitem__(self, index: int) -> Any:
        raise ValueError(f"sample {index} is torn")


RAISING_LINE = Raising.__getitem__.__code__.co_firstlineno + 1


@pytest.mark.parametrize(("num_workers", "where"), [(0, ""), (1, " in loader worker 0")])
def test_an_exception_of_the_dataset_is_reported_in_one_line(
    build: Any, num_workers: int, where: str
) -> None:
    batches = build(Raising(8), "validation", num_workers=num_workers)

    message = (
        "workload 'small': its validation dataset raised ValueError: sample 0 is torn "
        f"at {__file__}:{RAISING_LINE}{where}"
    )
    with refusal(DataLoadError, message):
        next(batches)
    assert multiprocessing.active_children() == []


class Ragged(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(1 + index), 0


def test_samples_that_do_not_fit_into_one_batch_are_reported(build: Any) -> None:
    message = (
        "workload 'small': its test dataset raised RuntimeError: stack expects each tensor to be "
        "equal size, but got [1] at entry 0 and [2] at entry 1"
    )
    with refusal(DataLoadError, message):
        next(build(Ragged(4), "test"))


class Exiting(Numbers):
    def __getitem__(self, index: int) -> Any:
        if self.size > 100:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (
            8,
            r"DataLoader worker \(pid \d+\) exited unexpectedly with exit code 3\. Details are "
            r"lost due to multiprocessing\. Rerunning with num_workers=0 may give better error "
            r"trace",
        ),
        (200, r"DataLoader worker \(pid \d+\) is killed by signal: Killed"),
    ],
)
def test_a_worker_that_dies_is_reported_and_none_stays(build: Any, size: int, reason: str) -> None:
    batches = build(Exiting(size), num_workers=2)

    message = (
        rf"^workload 'small': its train dataset cannot be loaded: {reason}; a loader worker that "
        r"was killed often ran out of memory: use fewer num_workers or a smaller prefetch_factor$"
    )
    with pytest.raises(DataLoadError, match=message):
        next(batches)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("method", ["_reset", "_try_put_index", "_process_data"])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_may_die_while_its_iterator_is_built_or_read(
    build: Any, die_in: Callable[[str], Callable[[], None]], method: str, persistent: bool
) -> None:
    batches = build(
        Numbers(64), num_workers=2, persistent_workers=persistent, on_worker_start=die_in(method)
    )

    with pytest.raises(DataLoadError, match="exited unexpectedly with exit code 3"):
        next(batches)
    assert multiprocessing.active_children() == []


def test_a_worker_that_dies_as_it_is_ended_is_no_error(
    build: Any, die_in: Callable[[str], Callable[[], None]]
) -> None:
    with build(Numbers(64), num_workers=2, on_worker_start=die_in("_shutdown_workers")) as batches:
        next(batches)

    assert multiprocessing.active_children() == []


def test_an_iterator_that_failed_stays_ended(build: Any) -> None:
    batches = build(Raising(8))
    with pytest.raises(DataLoadError):
        next(batches)

    assert list(batches) == []


@pytest.mark.parametrize("fields", LOADERS)
def test_closing_ends_the_workers(build: Any, fields: Any) -> None:
    with build(Numbers(16), **fields) as batches:
        next(batches)
        assert len(multiprocessing.active_children()) == fields["num_workers"]

    assert multiprocessing.active_children() == []
    batches.close()
    assert list(batches) == []


def test_an_epochs_workers_are_gone_before_the_next_begins(build: Any) -> None:
    gc.collect()
    batches = build(Numbers(8), num_workers=2)

    samples(batches, 3)

    assert len(multiprocessing.active_children()) == 2


class Triple(Numbers):
    def __getitem__(self, index: int) -> Any:
        return index, index, index


class Keyed(Numbers):
    def __getitem__(self, index: int) -> Any:
        return {"x": index}


class Bare(Numbers):
    def __getitem__(self, index: int) -> Any:
        return index


@pytest.mark.parametrize(
    ("dataset", "found"),
    [(Triple(8), "list of 3"), (Keyed(8), "dict of 1"), (Bare(8), "Tensor of 4")],
)
def test_a_batch_that_is_no_pair_is_refused(build: Any, dataset: Any, found: str) -> None:
    message = (
        f"workload 'small': its train dataset gives a batch of the type {found}; "
        "a batch, as each item of a dataset, must be a pair (inputs, target)"
    )
    with refusal(WorkloadError, message):
        next(build(dataset))


def test_a_split_without_a_dataset_is_refused(build: Any) -> None:
    message = (
        "workload 'small' has no validation dataset: build_dataset('validation') returned None; "
        "return a dataset for it, or ask for another split"
    )
    with refusal(WorkloadError, message):
        build(None, "validation")


class Streaming(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(1, 2)])


def test_a_dataset_without_a_length_is_refused(build: Any) -> None:
    message = (
        "workload 'small': its train dataset is a Streaming without a length; "
        "use a map-style dataset with __len__ and __getitem__, or build_loader in place of "
        "build_dataset"
    )
    with refusal(WorkloadError, message):
        build(Streaming())


@pytest.mark.parametrize(
    ("size", "advice"),
    [(7, "use micro_batch_size=3 or less, or more data"), (1, "use more data")],
)
def test_too_few_samples_for_a_batch_on_each_shard_are_refused(
    build: Any, size: int, advice: str
) -> None:
    message = (
        f"workload 'small': its train dataset has {size} samples, too few for one batch of 4 on "
        f"each of 2 shards; {advice}"
    )
    with refusal(WorkloadError, message):
        build(Numbers(size), num_shards=2)


def test_an_empty_split_is_refused(build: Any) -> None:
    message = "workload 'small': its test dataset is empty; it needs at least one sample"
    with refusal(WorkloadError, message):
        build(Numbers(0), "test")


def test_the_last_batch_of_a_split_that_is_not_full_is_left_out_on_request(build: Any) -> None:
    batches = build(Numbers(10), "test", drops_last=True)

    assert samples(batches, 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    assert (batches.steps_per_epoch, batches.step_size) == (2, 4)


def test_a_split_of_less_than_a_batch_has_the_size_that_it_has(build: Any) -> None:
    batches = build(Numbers(5), "test", shard_index=1, num_shards=2, drops_last=True)

    assert samples(batches, 2) == [[1, 3, 0], [1, 3, 0]]
    assert (batches.steps_per_epoch, batches.step_size) == (1, 6)
