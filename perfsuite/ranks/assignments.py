"""A rank's part in its group: its number, its processor, its GPU, and where it meets the others.

Must not know how a rank is started.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfsuite.ranks.messages import Rendezvous


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One rank of a group, as the controller that starts it sees it.

    Attributes:
        rank: Its number in the group.
        place: Its number among those ranks of the group that may use the same processors.
        num_neighbours: How many those are, itself included.
        gpu: Its GPU's number among those that the process sees, if it sees any; numbers beyond the
            last begin again.
        backend: Of torch.distributed, where the group needs it.
        rendezvous: Where the group meets; None for a group of one controller.
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
    """Return the parts of a group that one controller starts as a whole.

    >>> [(part.rank, part.backend) for part in all_assignments(2, device="cuda", num_gpus=2)]
    [(0, 'nccl'), (1, 'nccl')]
    >>> [part.core_of((4, 5)) for part in all_assignments(2, device="cpu", num_gpus=0)]
    [4, 5]
    """
    # NCCL where each rank has a GPU of its own.
    backend = "nccl" if device == "cuda" and world_size <= num_gpus else "gloo"
    return tuple(
        Assignment(rank=rank, place=rank, num_neighbours=world_size, gpu=rank, backend=backend)
        for rank in range(world_size)
    )
