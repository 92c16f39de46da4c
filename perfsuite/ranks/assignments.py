"""Which processor, GPU, backend and rendezvous each rank of a group gets.

The controller assigns them, and the rank receives its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Where the ranks of a group meet that several controllers start.

    Attributes:
        host: The host of the TCP store that torchrun or rank 0 keeps.
        prefix: Begins every key of this group in the store, and no key of another group.
        is_on_one_machine: Whether all ranks share one loopback interface.
    """

    host: str
    port: int
    prefix: str
    is_on_one_machine: bool


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What one rank of a group gets.

    Attributes:
        place: Its number among those ranks of the group that may use the same processors.
        num_neighbours: How many those are, itself included.
        gpu: Its GPU's number among those that the process sees, if any; after the last the first.
        backend: "gloo" or "nccl", where the group needs torch.distributed.
        rendezvous: None for a group of one controller, which meets in its folder.
    """

    rank: int
    place: int
    num_neighbours: int
    gpu: int
    backend: str
    rendezvous: Rendezvous | None = None

    def core_of(self, cores: Sequence[int]) -> int | None:
        """Return a processor of the rank's own where there are enough of them, else None."""
        return cores[self.place] if self.num_neighbours <= len(cores) else None


def all_assignments(world_size: int, *, device: str, num_gpus: int) -> tuple[Assignment, ...]:
    """Return the assignments of a group that one controller starts as a whole.

    >>> [(one.rank, one.backend) for one in all_assignments(2, device="cuda", num_gpus=2)]
    [(0, 'nccl'), (1, 'nccl')]
    >>> [one.core_of((4, 5)) for one in all_assignments(2, device="cpu", num_gpus=0)]
    [4, 5]
    """
    # NCCL where each rank has a GPU of its own.
    backend = "nccl" if device == "cuda" and world_size <= num_gpus else "gloo"
    return tuple(
        Assignment(rank=rank, place=rank, num_neighbours=world_size, gpu=rank, backend=backend)
        for rank in range(world_size)
    )
