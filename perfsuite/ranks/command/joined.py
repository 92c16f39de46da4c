"""What a process of a command tells the controller before it is given a job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Joined:
    """What a process of a command says first; it is answered with a `RankStart`.

    Attributes:
        process: Its id.
        place: As in an `Assignment`, with `num_neighbours`.
        device: "cpu" or "cuda", where its steps run.
    """

    process: int
    rank: int
    world_size: int
    place: int
    num_neighbours: int
    device: str
