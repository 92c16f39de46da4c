"""Commands that start torchrun's agents, for scripts that measure under them."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def torchrun_command(
    prefixes: Sequence[Sequence[str]], *, num_ranks: int, host: str
) -> list[list[str]]:
    """Return the command of each agent, which what its ranks run is to follow.

    Args:
        prefixes: Of each agent what comes before, such as `ip netns exec NAME`.
        num_ranks: Of an agent.
        host: Where the first agent can be reached.
    """
    port = _free_port()
    return [
        [
            *prefix,
            sys.executable,
            "-m",
            "torch.distributed.run",
            f"--nnodes={len(prefixes)}",
            f"--nproc-per-node={num_ranks}",
            f"--node-rank={node_rank}",
            f"--master-addr={host}",
            f"--master-port={port}",
        ]
        for node_rank, prefix in enumerate(prefixes)
    ]


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("", 0))
        port: int = taken.getsockname()[1]
        return port
