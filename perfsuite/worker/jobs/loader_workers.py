"""A rank's batches and the loader workers that make them. Runs in a rank.

Between rounds workers would fill their queues while the collector runs or the other arm has its
turn: that would hide the time of loading, and take a processor from that arm. So they are stopped.
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator

import torch

from perfsuite.errors import WorkloadError
from perfsuite.ranks.bootstrap import loader_worker_entry
from perfsuite.ranks.messages import RankStart
from perfsuite.records.recipe import Recipe
from perfsuite.records.stages import listen
from perfsuite.records.workload import Split, Workload
from perfsuite.system import background
from perfsuite.worker.measure.clock import largest_over_ranks
from perfsuite.worker.training.loaders import CachedBatches, EpochBatches, OwnBatches
from perfsuite.worker.training.trainer import seed_random_numbers


@contextlib.contextmanager
def open_batches(
    workload: Workload,
    recipe: Recipe,
    shard: tuple[int, int],
    device: torch.device,
    start: RankStart,
    split: Split,
    *,
    drops_last: bool = False,
) -> Iterator[EpochBatches]:
    """Yield this rank's batches of a split; their loader workers end with the context."""
    # The dataset is the same on every rank; what it and the model draw later is not.
    seed_random_numbers(start.seed)
    data = workload, recipe, split, shard
    batches: EpochBatches
    if workload.build_loader is not None:
        let_children_be_loader_workers(start.folder, start.cores)
        batches = OwnBatches(*data, drops_last=drops_last)
        _check_lengths(workload, split, batches, device)
    else:
        enter = loader_worker_entry(start.folder, start.cores)
        batches = EpochBatches(*data, seed=start.seed, on_worker_start=enter, drops_last=drops_last)
    with batches:
        seed_random_numbers(start.seed + shard[0])
        yield batches if recipe.loader == "own" else CachedBatches(batches)


def _check_lengths(
    workload: Workload, split: Split, batches: EpochBatches, device: torch.device
) -> None:
    length = float(batches.steps_per_epoch)
    most, least = largest_over_ranks([length, -length], device)
    if most != -least:
        lengths = f"{most:.0f} {split} batches an epoch, and another {-least:.0f}"
        found = f"workload {workload.name!r}: build_loader gives one rank {lengths}"
        raise WorkloadError(f"{found}; give every rank as many")


@functools.cache
def let_children_be_loader_workers(folder: str, cores: tuple[int, ...]) -> None:
    """Have a process that this one forks end with it, run on any core, and measure nothing."""
    rank_pid = os.getpid()
    worker_cores.update(cores)
    enter_loader_worker = loader_worker_entry(folder, cores)
    this_thread = threading.local()  # as a child has it from the thread that forks
    this_thread.is_main = True

    def enter_child() -> None:
        listen(None)
        if os.getppid() == rank_pid:
            enter_loader_worker(is_of_main=hasattr(this_thread, "is_main"))

    os.register_at_fork(after_in_child=enter_child)


def find() -> set[int]:
    """Return every process that this one has started, and those that these have, but no rank."""
    global _newest, _found
    if background.has_children() and (newest := background.newest_process()) != _newest:
        _newest = newest
        processes = background.list_processes()
        found = {*background.launched_processes(os.getpid(), processes)}
        for rank in found & other_ranks:
            found -= {rank, *background.launched_processes(rank, processes)}
        for pid in found - _found if worker_cores else ():
            with contextlib.suppress(OSError):  # it has ended
                # A spawned one inherits the rank's one core; any other has chosen.
                if os.sched_getaffinity(pid) == os.sched_getaffinity(0):
                    os.sched_setaffinity(pid, worker_cores)
        _found = found
    children = multiprocessing.active_children()
    return (_found | {child.pid for child in children if child.pid is not None}) - other_ranks


def stop() -> None:
    """Stop all that `find` returns."""
    background.signal_all(find(), signal.SIGSTOP)


def resume() -> None:
    """Let them go on."""
    background.signal_all(find(), signal.SIGCONT)


# Processes of a command's ranks, one of which may have started others.
other_ranks: set[int] = set()
# For loader workers of a rank with one core; empty where they inherit what they need.
worker_cores: set[int] = set()
_newest = b""
_found: set[int] = set()
