"""Batches of a workload's data; what a user's dataset or loader raises becomes one message."""

import contextlib
import itertools
import traceback
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils import data
from torch.utils.data.dataloader import _BaseDataLoaderIter

from perfsuite.errors import DataLoadError, RecipeError, WorkloadError
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Split, Workload
from perfsuite.units import counted
from perfsuite.worker.training.batches import num_samples

# Frames in torch, torchvision (it has the same prefix) and this folder are not the user's.
_NOT_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
# Torch's words where a batch does not fit.
_SHARED_MEMORY_SIGN = "unable to allocate shared memory"
_NO_ROOM = (
    "loader workers pass their batches through /dev/shm, which is full: make room in it, enlarge "
    "it (docker run --shm-size=1g), or use num_workers=0"
)
_NO_MEMORY = (
    "a loader worker that was killed often ran out of memory: use fewer num_workers or a smaller "
    "prefetch_factor"
)
# More data than a model learns by heart in a cell, less than fills the memory.
_NUM_CACHED = 16
# Fields of a recipe that say nothing to a loader of the user's own.
_LOADING = ("num_workers", "persistent_workers", "pin_memory", "prefetch_factor")
_END = object()


class EpochBatches(Iterator[Any], contextlib.AbstractContextManager["EpochBatches"]):
    """An iterator of batches (inputs, target) without end; as a context manager it closes itself.

    The order of the samples depends on seed and epoch alone, not on the number of workers. Training
    data are shuffled anew in each epoch; samples that would leave a shard shorter than the others,
    or a batch not full, are left out of it. Other splits keep their order, and (without
    `drops_last`) their last, smaller batch; shorter shards repeat samples from the split's start.
    """

    epoch = 0  # of the last batch
    # Whether the last sample of an epoch is another shard's first one, to make them equally long.
    repeats_last = False
    _iterator: Any = None
    _is_closed = False

    def __init__(
        self,
        workload: Workload,
        recipe: Recipe,
        split: Split,
        shard: tuple[int, int],
        *,
        seed: int,
        on_worker_start: Callable[[], None] | None = None,
        drops_last: bool = False,
    ) -> None:
        """Take the shard of this index, of so many; `seed` is the same on every rank."""
        self._origin = f"workload {workload.name!r}: its {split} dataset"
        index, num_shards = shard
        trains = split == "train"
        batch_size = recipe.micro_batch_size or workload.micro_batch_size
        dataset = _checked_dataset(workload, split, batch_size, num_shards, self._origin)
        self._sampler = sampler = data.DistributedSampler[Any](
            dataset, num_shards, rank=index, shuffle=trains, seed=seed, drop_last=trains
        )
        self._loader = data.DataLoader(
            _Fetching(dataset),
            batch_size=batch_size,
            sampler=sampler,
            drop_last=trains or (drops_last and len(sampler) >= batch_size),
            # Its own: it draws nothing of the model's random numbers, no two ranks augment alike.
            generator=torch.Generator().manual_seed(seed + index),
            collate_fn=lambda batch: batch,  # fetched as a whole already
            num_workers=recipe.num_workers,
            persistent_workers=recipe.persistent_workers,
            prefetch_factor=recipe.prefetch_factor,
            pin_memory=recipe.pin_memory,
            # With forkserver, Python's default from 3.14 on, the first batch takes 1.8 s, not 0.2.
            multiprocessing_context="fork" if recipe.num_workers else None,
            worker_init_fn=None if on_worker_start is None else lambda _: on_worker_start(),
        )
        self.steps_per_epoch = len(self._loader)
        # Samples of one batch over all shards.
        self.step_size = min(batch_size, len(sampler)) * num_shards
        self.repeats_last = not trains and (len(sampler) - 1) * num_shards + index >= len(dataset)

    def __next__(self) -> Any:
        if self._is_closed:
            raise StopIteration
        try:
            return self._checked(self._next_of_epochs())
        except BaseException as error:
            for unfinished in _torch_iterators(error):
                _end_workers(unfinished)
            self.close()
            raise

    def indices(self, epoch: int) -> list[list[int]]:
        """Return the dataset's indices of each batch of an epoch, from 0; nothing is loaded."""
        self._sampler.set_epoch(epoch)
        batches = list(cast("Iterable[list[int]]", self._loader.batch_sampler))
        self._sampler.set_epoch(self.epoch)
        return batches

    def close(self) -> None:
        """End the loader workers. A second call does nothing."""
        self._is_closed = True
        iterator, self._iterator = self._iterator, None
        _end_workers(iterator)

    def __exit__(self, *error: object) -> None:
        self.close()

    def _next_of_epochs(self) -> Any:
        try:
            if self._iterator is None:
                self._start_epoch(self.epoch)
            with contextlib.suppress(StopIteration):
                return next(self._iterator)
            self._start_epoch(self.epoch + 1)
            return next(self._iterator)
        except (RuntimeError, OSError) as error:
            # The cause names the signal or the exit code, the outer error only a process id.
            cause = error.__cause__ if isinstance(error.__cause__, RuntimeError) else error
            reason = (str(cause).strip() or type(cause).__name__).splitlines()[0].rstrip(". ")
            advice = _NO_ROOM if "No space left" in reason else _NO_MEMORY
            raise DataLoadError(f"{self._origin} cannot be loaded: {reason}; {advice}") from error

    def _start_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._sampler.set_epoch(epoch)
        self._iterator = iter(self._loader)

    def _checked(self, batch: Any) -> Any:
        if isinstance(batch, _Failure):
            raise DataLoadError(f"{self._origin} {batch}")
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            size = f" of {len(batch)}" if isinstance(batch, Sized) else ""
            raise WorkloadError(
                f"{self._origin} gives a batch of the type {type(batch).__name__}{size}; a batch, "
                "as each item of a dataset, must be a pair (inputs, target)"
            )
        return batch


class OwnBatches(EpochBatches):
    """The batches of the workload's own loader, epoch after epoch.

    An epoch with another number of batches than the loader's length, or a batch of another size, is
    an error: ranks would wait for each other, and rates would be wrong. Only the last batch of
    another split than "train" may be smaller, without `drops_last`.
    """

    def __init__(
        self,
        workload: Workload,
        recipe: Recipe,
        split: Split,
        shard: tuple[int, int],
        *,
        drops_last: bool = False,
    ) -> None:
        for name in (*_LOADING, "micro_batch_size"):
            if value := getattr(recipe, name):
                owner = f"workload {workload.name!r}, which builds its own loader (build_loader)"
                raise RecipeError(f"{name}={value!r} says nothing to {owner}; leave {name} out")
        index, num_shards = shard
        self._own_loader = workload.own_loader(split, index, num_shards)
        self._origin = f"workload {workload.name!r}: build_loader({split!r}, {index}, {num_shards})"
        self._batch_size = workload.micro_batch_size
        self._needs_full = drops_last or split == "train"
        self._num_given = 0
        self.steps_per_epoch = len(self._own_loader)
        self.step_size = self._batch_size * num_shards

    def indices(self, epoch: int) -> list[list[int]]:
        """Return none: such a loader does not say what it will load."""
        return []

    def _next_of_epochs(self) -> Any:
        if self._iterator is None:
            self._start_epoch(self.epoch)
        batch = self._call(next, self._iterator, _END)
        if batch is _END and self._num_given == self.steps_per_epoch:
            self._start_epoch(self.epoch + 1)
            batch = self._call(next, self._iterator, _END)
        if batch is _END or self._num_given == self.steps_per_epoch:
            gave = f"{self._num_given}" if batch is _END else "more"
            raise WorkloadError(
                f"{self._origin} returned what has a length of {self.steps_per_epoch} batches, and "
                f"its epoch {self.epoch + 1} gave {gave}; let the length be right"
            )
        self._num_given += 1
        return batch

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
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
        self._iterator = self._call(iter, self._own_loader)

    def _checked(self, batch: Any) -> Any:
        num_inputs, num_targets = map(num_samples, super()._checked(batch))
        if not num_inputs:
            raise WorkloadError(
                f"{self._origin} gives inputs of the type {type(batch[0]).__name__}, in which no "
                "tensor of samples is found; use a tensor, or tensors in tuples, lists and dicts"
            )
        if num_targets not in (0, num_inputs):
            found = f"{self._origin} gives a batch of {num_inputs} inputs and {num_targets} targets"
            raise WorkloadError(f"{found}; the first dimension of both must be that of the samples")
        if num_inputs > self._batch_size or (self._needs_full and num_inputs < self._batch_size):
            raise WorkloadError(
                f"{self._origin} gives a batch of {counted(num_inputs, 'sample')}, and the "
                f"workload's micro_batch_size is {self._batch_size}; let both be the same, and "
                "leave out a last batch that is smaller (drop_last=True)"
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


def _torch_iterators(error: BaseException | None) -> Iterator[_BaseDataLoaderIter]:
    """Yield the iterators on an error's traceback, which alone knows one half built."""
    # torch's handler of SIGCHLD raises for a dead worker wherever the main thread is just then.
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            owner = frame.f_locals.get("self")
            if isinstance(owner, _BaseDataLoaderIter):
                yield owner
        error = error.__cause__


def _end_workers(iterator: Any) -> None:
    # torch has no public way: the iterator shuts down when it is collected, but a traceback keeps
    # it alive, and one collected inside the fork of a later loader stalls that for 10 s.
    if not isinstance(iterator, _BaseDataLoaderIter):
        return
    # Another worker's death raises in here too, and an iterator half built lacks attributes.
    with contextlib.suppress(RuntimeError, AttributeError):
        iterator._shutdown_workers()  # type: ignore[attr-defined]  # its stub lacks it
    for worker in getattr(iterator, "_workers", ()):
        with contextlib.suppress(RuntimeError):
            worker.kill()
            worker.join()


class _Failure(str):
    """What an error of the dataset says; comes from a worker process instead of a batch."""


class _Fetching(data.Dataset[Any]):
    """Fetches and collates whole batches of a dataset, and gives a `_Failure` where that raises."""

    def __init__(self, dataset: Any) -> None:
        fetch_all = getattr(dataset, "__getitems__", None)
        self._fetch = fetch_all or (lambda indices: [dataset[index] for index in indices])

    def __getitems__(self, indices: list[int]) -> Any:
        try:
            return data.default_collate(self._fetch(indices))
        # The user's dataset may raise anything, and the user is to read all of it.
        except Exception as error:  # noqa: BLE001
            return _Failure(describe_failure(error))


def build_dataset(workload: Workload, split: Split) -> Any:
    """Return a split's dataset; raises a WorkloadError where there is none."""
    if (dataset := workload.build_dataset(split)) is None:
        raise WorkloadError(
            f"workload {workload.name!r} has no {split} dataset: build_dataset({split!r}) returned "
            "None; return a dataset for it, or ask for another split"
        )
    return dataset


def _checked_dataset(
    workload: Workload, split: Split, batch_size: int, num_shards: int, origin: str
) -> Any:
    dataset = build_dataset(workload, split)
    if isinstance(dataset, data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise WorkloadError(
            f"{origin} is a {type(dataset).__name__} without a length; use a map-style dataset "
            "with __len__ and __getitem__, or build_loader in place of build_dataset"
        )
    if len(dataset) == 0:
        raise WorkloadError(f"{origin} is empty; it needs at least one sample")
    fits = len(dataset) // num_shards
    if split == "train" and fits < batch_size:
        advice = f"use micro_batch_size={fits} or less, or more data" if fits else "use more data"
        few = f"too few for one batch of {batch_size} on each of {num_shards} shards"
        raise WorkloadError(f"{origin} has {len(dataset)} samples, {few}; {advice}")
    return dataset


def describe_failure(error: Exception) -> str:
    """Return what a user's dataset or loader raised, with the place in the user's code."""
    places = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_USERS)
    ]
    worker = data.get_worker_info()
    where = [f"at {places[-1]}"] if places else []
    where += [f"in loader worker {worker.id}"] if worker is not None else []
    text = " ".join([f"raised {type(error).__name__}: {error}", *where])
    return f"{text}; {_NO_ROOM}" if _SHARED_MEMORY_SIGN in text else text
