"""Outcomes and sessions that are made up, for what decides over measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfsuite.records.capability import Hardware
from perfsuite.records.cell import CellRecord, Counts, Memory, Outcome, StageTimes
from perfsuite.records.recipe import Recipe

NO_COUNTS = Counts(
    flops=None,
    ops=None,
    collectives=None,
    collective_bytes=None,
    saved_activation_bytes=None,
    kernel_launches=None,
)


def make_record(recipe: Recipe | None = None, **changes: Any) -> CellRecord:
    stages = StageTimes(
        load=0.001, forward=0.002, backward=0.003, optimizer=0.001, evaluation=None, other=0.0
    )
    fields: dict[str, Any] = {
        "workload": "toy-mlp",
        "recipe": (recipe or Recipe()).as_dict(),
        "device": "cpu",
        "world_size": 1,
        "exercised": True,
        "fingerprint": "0" * 12,
        "numerics": None,
        "stages_s": stages,
        "counts": NO_COUNTS,
        "memory": Memory(metric="live_storage_peak", peak_bytes=1024, per_rank=(1024,)),
        "samples_per_s": 1000.0,
        "losses": (2.3,),
        "verdict": None,
    }
    return CellRecord(**(fields | changes))


def make_outcome(
    step_times_s: Sequence[float], *, num_samples: int = 32, **changes: Any
) -> Outcome:
    middle = sorted(step_times_s)[len(step_times_s) // 2]
    record = make_record(samples_per_s=num_samples / middle, **changes)
    return Outcome(step_times_s=tuple(step_times_s), num_iterations=1, record=record, missing={})


class MadeUpSession:
    """Measures nothing: `answer(workload, recipe, activity)` says what each cell takes."""

    def __init__(
        self, answer: Callable[[str, Recipe, str], Outcome], hardware: Hardware | None = None
    ) -> None:
        self.hardware = hardware or Hardware(device="cpu")
        self.measured: list[tuple[str, Recipe, str]] = []
        self.rounds: list[int | None] = []
        self.holds_machine = False
        self._answer = answer

    def measure_cell(
        self,
        workload: str,
        recipe: Recipe,
        *,
        activity: str = "train",
        num_rounds: int | None = None,
        is_timed: bool = True,
    ) -> Outcome:
        self.measured.append((workload, recipe, activity))
        self.rounds.append(num_rounds if is_timed else None)
        return self._answer(workload, recipe, activity)

    def hold_machine(self) -> None:
        self.holds_machine = True

    def close(self) -> None:
        self.holds_machine = False
