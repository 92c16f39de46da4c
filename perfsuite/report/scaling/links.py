"""What communication costs in each environment: its all_reduce cells, and the model they give.

Cells whose ranks share cores measure turns on a core as well, so no parameters come from them; what
the model says of them is told apart. Sees rows only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from perfsuite.report.rows import Row
from perfsuite.report.scaling.ring import (
    HeldOut,
    NoModel,
    Reduction,
    RingModel,
    fit_ring,
    hold_out,
    is_usable,
)
from perfsuite.report.scaling.series import have_too_few_cores, launches_of

# What `all_reduce_benchmark` calls its workload.
_ALL_REDUCE: Final = "all_reduce"

# Device and fingerprint.
EnvironmentKey = tuple[str, str | None]


@dataclass(frozen=True, kw_only=True)
class Links:
    """The links of one environment.

    Attributes:
        device: "cpu" or "cuda".
        fingerprint: Of the environment.
        num_cores: Of the machine; None where it is not known.
        fitted: The model, or why there is none.
        reductions: What it rests on, one for each launch.
        sharing: Measurements of more ranks than cores, on which nothing rests.
        held_out: What the rest says of those left out in turn.
    """

    device: str
    fingerprint: str | None
    num_cores: int | None
    fitted: RingModel | NoModel
    reductions: tuple[Reduction, ...]
    sharing: tuple[Reduction, ...]
    held_out: tuple[HeldOut, ...]

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """Of the measurements that the model rests on, in order."""
        return tuple(sorted({reduction.world_size for reduction in self.reductions}))


def environment_of(row: Row) -> EnvironmentKey:
    """Return where a cell of ours ran."""
    assert row.record is not None
    return row.record.device, row.record.fingerprint


def find_links(rows: Sequence[Row]) -> dict[EnvironmentKey, Links]:
    """Return the links of each environment in which a bare all_reduce was measured."""
    found: dict[EnvironmentKey, list[Row]] = {}
    for row in rows:
        if _is_reduction(row):
            found.setdefault(environment_of(row), []).append(row)
    return {key: _links(key, cells) for key, cells in found.items()}


def _is_reduction(row: Row) -> bool:
    """Whether the cell is a single sum over ranks; a user's workload of that name has samples."""
    record = row.record
    return (
        record is not None
        and record.workload == _ALL_REDUCE
        and record.samples_per_s is None
        and record.counts.collectives == 1
        and record.counts.collective_bytes is not None
    )


def _links(key: EnvironmentKey, rows: Sequence[Row]) -> Links:
    device, fingerprint = key
    apart: list[Reduction] = []
    sharing: list[Reduction] = []
    for row in rows:
        assert row.recipe is not None
        side = sharing if have_too_few_cores(row, row.recipe.plan.world_size) else apart
        side += filter(is_usable, _reductions(row))
    fitted = fit_ring(apart)
    if sharing and not apart:
        fitted = NoModel(
            reason=f"every all_reduce has more ranks than the machine's {rows[0].num_cores} "
            "cores, so it measures turns on a core and no link"
        )
    return Links(
        device=device,
        fingerprint=fingerprint,
        num_cores=rows[0].num_cores,
        fitted=fitted,
        reductions=tuple(apart),
        sharing=tuple(sharing),
        held_out=hold_out(apart),
    )


def _reductions(row: Row) -> Iterator[Reduction]:
    """One for each launch of a cell."""
    assert row.record is not None
    assert row.recipe is not None
    num_bytes = row.record.counts.collective_bytes
    assert num_bytes is not None
    for seconds in launches_of(row):
        yield Reduction(world_size=row.recipe.plan.world_size, num_bytes=num_bytes, time_s=seconds)
