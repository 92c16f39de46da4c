"""What a pytest session was asked for. Must not know where a value came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perfsuite.gate.trials import Budget
from perfsuite.ranks.membership import Membership
from perfsuite.settings import Settings
from perfsuite.shards import Shard


@dataclass(frozen=True, kw_only=True)
class GateChoices:
    """How cells are judged.

    Attributes:
        is_on: Whether `--benchmark-compare` is the gate.
        tolerance: The slowdown that is accepted unless a marker says otherwise, 0.02 = 2 %.
        limit: The slowdown that must not pass.
        base: A revision; None finds the merge base.
        base_dir: A folder instead of a revision.
        budget: What it may cost.
        pytest_arguments: What both arms are called with beside paths and selection.
        outputs: Files and folders that the session itself writes.
    """

    is_on: bool
    tolerance: float
    limit: float
    base: str | None
    base_dir: Path | None
    budget: Budget
    pytest_arguments: tuple[str, ...]
    outputs: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Everything the plugin was asked for.

    Attributes:
        settings: What the session runs cells with.
        matrix: The size of the matrix, one of `MATRICES`.
        require_gpus: GPUs without which nothing runs.
        results: Folder of run.json and cells.jsonl.
        checks_numerics: Whether cells are checked before they are timed.
        shard: The part of the cells that is measured.
        durations: What is said to tell how long cells took; None for the stored runs.
        gate: How cells are judged.
        membership: This process's place among those that torchrun started; None where it is alone.
    """

    settings: Settings
    matrix: str
    require_gpus: int
    results: Path
    checks_numerics: bool
    shard: Shard
    durations: str | None
    gate: GateChoices
    membership: Membership | None
