"""Which ranks that torchrun started share a machine, a processor, a GPU, a timing lock."""

import os
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from perfsuite.records.recipe import Recipe

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


class RankPlace(NamedTuple):
    """Identities of a rank's kernel, network namespace, folder of its lock, processors and GPUs."""

    machine: str
    network: str
    lock: str
    cores: tuple[int, ...]
    gpus: tuple[str, ...]


def read_place(lock_folder: Path, gpus: Sequence[str]) -> RankPlace:
    """Return where this process is; `gpus` are the UUIDs of the GPUs that it sees."""
    machine, cores = _BOOT_ID.read_text().strip(), tuple(sorted(os.sched_getaffinity(0)))
    network, lock = _identity(_NETWORK), _identity(lock_folder)
    return RankPlace(machine=machine, network=network, lock=lock, cores=cores, gpus=tuple(gpus))


def _identity(path: Path) -> str:
    status = path.stat()
    return f"{status.st_dev}:{status.st_ino}"


class Topology(NamedTuple):
    """Where all ranks are, in rank order. A group of N ranks is the first N."""

    everyone: tuple[RankPlace, ...]

    @property
    def num_cores(self) -> int:
        """Processors that the ranks may use on all machines."""
        return len({(one.machine, core) for one in self.everyone for core in one.cores})

    @property
    def num_gpus(self) -> int:
        """GPUs that the ranks see on all machines."""
        return len({gpu for one in self.everyone for gpu in one.gpus})

    def holds_lock(self, rank: int) -> bool:
        """Whether a rank is the one that holds the timing lock for all that share it."""
        places = [(one.machine, one.lock) for one in self.everyone]
        return rank == places.index(places[rank])

    def beside(self, rank: int, world_size: int, *shared: str) -> list[int]:
        """Return the ranks of a group that share these fields of their places with one of them."""
        places = [*map(attrgetter(*shared), self.everyone[:world_size])]
        return [other for other, place in enumerate(places) if place == places[rank]]

    def is_on_one_machine(self, world_size: int) -> bool:
        """Whether a group's ranks share a loopback interface."""
        return len(self.beside(0, world_size, "machine", "network")) == world_size

    def gpu_of(self, rank: int) -> int:
        """Return the number of a rank's GPU among those that it sees, 0 if it sees none."""
        # Ranks that see the same ones take one after the other.
        mine = self.everyone[rank].gpus
        return sum(one.gpus == mine for one in self.everyone[:rank]) % max(1, len(mine))

    def have_own_gpus(self, world_size: int) -> bool:
        """Whether each rank of a group has a GPU of its own."""
        group = enumerate(self.everyone[:world_size])
        return len({one.gpus[self.gpu_of(rank)] for rank, one in group if one.gpus}) == world_size

    def why_not_exercised(self, recipe: Recipe) -> str | None:
        """Return why these ranks cannot run a recipe, None if they can."""
        plan = recipe.plan
        if plan.world_size > len(self.everyone):
            needs = f"{plan.world_size} ranks, and torchrun started {len(self.everyone)}"
        elif plan.properties.runs_threads and plan.size > (num_gpus := len(self.everyone[0].gpus)):
            needs = f"{plan.size} GPUs, and rank 0 sees {num_gpus}"
        elif plan.properties.needs_horovod:
            instead = f"horovod-like:{plan.size} does the same with torch.distributed"
            needs = f"ranks that horovodrun started, and torchrun started these; {instead}"
        else:
            return None
        return f"parallel {recipe.parallel!r} needs {needs}"
