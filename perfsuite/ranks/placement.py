"""Where a rank computes. Runs in a rank, with torch."""

from __future__ import annotations

import torch

from perfsuite.ranks.wire import RankStart


def own_device(start: RankStart) -> torch.device:
    """The device of this rank, which the worker has made the current one."""
    if start.device == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
