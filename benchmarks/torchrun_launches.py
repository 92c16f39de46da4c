"""Cells measured by the one-machine launcher and by torchrun's agents, for scripts that compare."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfsuite.records import CellLine, decode_line

_ROOT = Path(__file__).resolve().parent.parent
_PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--perf-numerics=off")


@dataclass(frozen=True)
class Suite:
    """A folder with one file of cells."""

    folder: Path

    def run_alone(self, *options: str) -> dict[str, CellLine]:
        """Return what the one-machine launcher measured, by node id."""
        return self._run([[*_PYTEST, *options]])

    def run_by_torchrun(
        self, agents: Sequence[Sequence[str]], num_ranks_each: int, *options: str, host: str
    ) -> dict[str, CellLine]:
        """Return what ranks under torchrun's agents measured, by node id.

        Args:
            agents: Of each agent what its command begins with, such as `ip netns exec NAME`.
            num_ranks_each: Ranks of an agent.
            options: Of pytest.
            host: Where the first agent can be reached.
        """
        port = _free_port()
        return self._run(
            [
                [
                    *before,
                    sys.executable,
                    "-m",
                    "torch.distributed.run",
                    f"--nnodes={len(agents)}",
                    f"--nproc-per-node={num_ranks_each}",
                    f"--node-rank={node_rank}",
                    f"--master-addr={host}",
                    f"--master-port={port}",
                    *_PYTEST[1:],
                    *options,
                ]
                for node_rank, before in enumerate(agents)
            ]
        )

    def _run(self, commands: Sequence[Sequence[str]]) -> dict[str, CellLine]:
        processes = [
            subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for command in commands
        ]
        outputs = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            sys.exit("\n".join(outputs))
        data = (self.folder / "results" / "cells.jsonl").read_bytes()
        return {line.fullname: line for line in map(decode_line, data.splitlines())}


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("", 0))
        port: int = taken.getsockname()[1]
        return port
