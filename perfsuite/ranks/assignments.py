"""Which processor, GPU, backend and rendezvous each rank of a group gets from its controller."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple


class Rendezvous(NamedTuple):
    """The TCP store of torchrun or rank 0 where ranks meet that several controllers start."""

    host: str
    port: int
    prefix: str  # of every key of this group alone
    is_on_one_machine: bool  # with one loopback interface


class Assignment(NamedTuple):
    """What one rank of a group gets."""

    rank: int
    place: int  # among those ranks of the group that may use the same processors
    num_neighbours: int  # how many those are, itself included
    local_rank: int  # among those ranks of the group that are on its machine, as torchrun's
    local_world_size: int  # how many those are
    gpu: int  # among those that its process sees, if any; after the last the first
    backend: str  # "gloo" or "nccl"
    rendezvous: Rendezvous | None = None  # none where one controller starts all: in its folder


def all_assignments(world_size: int, *, device: str, num_gpus: int) -> tuple[Assignment, ...]:
    """Return the assignments of a group that one controller starts as a whole."""
    # NCCL where each rank has a GPU of its own.
    backend = "nccl" if device == "cuda" and world_size <= num_gpus else "gloo"
    one = partial(Assignment, num_neighbours=world_size, local_world_size=world_size)
    ranks = range(world_size)
    return tuple(one(rank=n, place=n, local_rank=n, gpu=n, backend=backend) for n in ranks)


def cores_beside_gpus(
    assignments: Sequence[Assignment], cores: Sequence[int], near: Sequence[Sequence[int]]
) -> dict[int, tuple[int, ...]]:
    """Return the processors of each rank: its share of those beside its GPU, else all `cores`.

    A rank on the far socket launches and copies more slowly, in one launch and not in the next.
    `near` are the processors beside each GPU, all that the machine has.
    """
    beside = {
        one.rank: tuple(core for core in cores if core in near[one.gpu % len(near)])
        for one in assignments
    }
    shares: dict[int, tuple[int, ...]] = {}
    for rank, mine in beside.items():
        sharing = [other for other, its in beside.items() if its == mine]
        shares[rank] = mine[sharing.index(rank) :: len(sharing)] or mine or tuple(cores)
    return shares
