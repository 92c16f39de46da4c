"""Scaling in sentences: what its numbers mean, what they rest on, and what they do not cover.

Must not know any format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfsuite.report.scaling.estimates import Scaling
from perfsuite.report.scaling.links import Links
from perfsuite.report.scaling.ring import FORMULA, SOURCE, NoModel, describe, typical_factor, worst
from perfsuite.report.scaling.series import Point, ScaledCell, Series
from perfsuite.units import format_bytes, format_change, format_ratio


def scaling_notes(scaling: Scaling) -> tuple[str, ...]:
    """Return what the numbers do not say by themselves, a sentence or two each."""
    return (
        *(_series_notes(scaling.series) if scaling.series else ()),
        *(_link_note(links) for links in scaling.links.values()),
        *(_estimate_notes(scaling)),
    )


def _series_notes(series: Sequence[Series]) -> Iterator[str]:
    points = [point for one in series for point in one.points]
    yield (
        "Efficiency is the samples per second of a device over those of one process (of the "
        "fewest devices where that was not measured). Weak scaling keeps the batch of a device, "
        "strong scaling that of all devices together. Forward is the time of the forward pass for "
        "a sample of a device, against the same."
    )
    bases = {cell.basis for one in series for cell in one.cells}
    if "launches" in bases:
        yield (
            "An interval over launches is Welch's at 95 %, on logarithms: it covers how launches "
            "of a cell differ on this machine, and not how machines do."
        )
    if "rounds" in bases:
        yield (
            "An interval over rounds covers how the rounds of one launch differ, and not how two "
            "launches do, which can be several times as much; several tests of one recipe, or "
            "several runs of one commit, are several launches."
        )
    if any(point.exposed_ratio is not None for point in points):
        yield (
            "Exposed is the part of the step that waits for communication or for a slower rank. "
            "Under ddp backward waits and forward does not, so it is what backward takes beyond "
            "its proportion on one process: backward(p) - forward(p) backward(1) / forward(1)."
        )
    yield from _core_notes(series)


def _core_notes(series: Sequence[Series]) -> Iterator[str]:
    """Which cells had more processes than cores, by that rule alone, and what shows it."""
    points = [point for one in series for point in one.points]
    sizes = dict.fromkeys(_shared_cores(point.cell) for point in points if point.cell.shares_cores)
    for size in sizes:
        # Of equal batches: a smaller one has more overhead for a sample.
        ratios = [
            point.forward_ratio
            for one in series
            for point in one.points
            if one.kind == "weak" and _shared_cores(point.cell) == size
            if point.forward_ratio is not None
        ]
        shown = (
            f"; forward, which talks to nobody, takes {_span(ratios)} times as long as on "
            "one process"
            if ratios
            else ""
        )
        yield (
            f"{size}, loader workers included: they take turns, so that their efficiency measures "
            f"the sharing of cores and not of links{shown}."
        )
    if any(_may_share_cores(point) for point in points):
        yield "How many cores the machine has is not known, so ranks may share them."


def _may_share_cores(point: Point) -> bool:
    row = point.cell.rows[0]
    return row.num_cores is None and row.record is not None and row.record.device == "cpu"


def _shared_cores(cell: ScaledCell) -> str:
    return f"{cell.num_processes} processes on {cell.rows[0].num_cores} cores"


def _link_note(links: Links) -> str:
    if isinstance(links.fitted, NoModel):
        return f"No cost model for {links.device}: {links.fitted.reason}."
    sizes = [reduction.num_bytes for reduction in links.reductions]
    ranks = " and ".join(map(str, links.world_sizes))
    note = (
        f"Cost model for {links.device}: {FORMULA} ({SOURCE}; beta holds the adding too) with "
        f"{describe(links.fitted)}, from {len(sizes)} launches of all_reduce over {ranks} ranks, "
        f"{format_bytes(min(sizes))} to {format_bytes(max(sizes))}."
    )
    ratios = [ratio for held_out in links.held_out for ratio in held_out.ratios]
    if ratios:
        typical = format_ratio(typical_factor(ratios) - 1)
        note += (
            f" Of measurements left out in turn, half were predicted within {typical}, the worst "
            f"with {format_change(worst(ratios))}."
        )
    if len(links.world_sizes) == 1:
        note += " From one number of ranks nothing says how it grows with them."
    return note


def _estimate_notes(scaling: Scaling) -> Iterator[str]:
    if any(scaling.estimates(series) for series in scaling.series):
        yield (
            "By the model means a step of one process and the sums over ranks, from nothing of "
            "them hidden to as much as fits behind the backward pass. Over more devices than were "
            "measured that is an estimate: it takes every link to be like those measured, and "
            "nothing else to get slower."
        )


def _span(ratios: Sequence[float]) -> str:
    """The smallest and the largest of at least one factor, once where they are written alike."""
    return " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios))))
