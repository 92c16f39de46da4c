"""Scaling as JSON and CSV, every number in base units; an estimate says that it is one.

What is not known is null, or an empty field.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from perfsuite.report.formats.csv_file import guard
from perfsuite.report.scaling.estimates import Estimate, Scaling
from perfsuite.report.scaling.links import Links
from perfsuite.report.scaling.ring import FORMULA, SOURCE, NoModel
from perfsuite.report.scaling.series import Point, Series
from perfsuite.report.scaling.tables import interval_basis
from perfsuite.stats.intervals import Interval

SCHEMA: Final = 1
_COLUMNS: Final = (
    "scaling",
    "cell",
    "mode",
    "batch",
    "is_estimate",
    "parallel",
    "num_devices",
    "step_time_s",
    "step_time_high_s",
    "samples_per_s",
    "efficiency_ratio",
    "efficiency_low_ratio",
    "efficiency_high_ratio",
    "interval_over",
    "exposed_ratio",
    "forward_ratio",
    "all_reduce_s",
    "num_processes",
    "num_cores",
    "shares_cores",
)


def scaling_json(scaling: Scaling) -> str:
    """Return everything: series, the model of each environment, its errors and estimates."""
    document = {
        "schema": SCHEMA,
        "formula": FORMULA,
        "source": SOURCE,
        "links": [_links(links) for links in scaling.links.values()],
        "series": [_series(scaling, series) for series in scaling.series],
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def scaling_csv(scaling: Scaling) -> str:
    """Return a line for each cell of each series, and for each estimate."""
    output = io.StringIO()
    writer = csv.DictWriter(output, _COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for series in scaling.series:
        shared = {
            "scaling": series.kind,
            "cell": series.name,
            "mode": series.mode,
            "batch": float(series.batch),
        }
        for line in _lines(scaling, series):
            writer.writerow({name: guard(value) for name, value in (shared | line).items()})
    return output.getvalue()


def _lines(scaling: Scaling, series: Series) -> Iterator[dict[str, Any]]:
    for point in (series.base, *series.points):
        found = _point(series, point)
        low, high = found.pop("interval_ratio") or (None, None)
        yield found | {
            "is_estimate": False,
            "efficiency_low_ratio": low,
            "efficiency_high_ratio": high,
        }
    for one in scaling.estimates(series):
        yield {
            "is_estimate": True,
            "num_devices": one.num_devices,
            "step_time_s": one.step_time_s[0],
            "step_time_high_s": one.step_time_s[1],
            "efficiency_low_ratio": one.efficiency[0],
            "efficiency_high_ratio": one.efficiency[1],
            "all_reduce_s": one.all_reduce_s,
        }


def _links(links: Links) -> dict[str, Any]:
    fitted = links.fitted
    return {
        "device": links.device,
        "fingerprint": links.fingerprint,
        "num_cores": links.num_cores,
        "model": None if isinstance(fitted, NoModel) else asdict(fitted),
        "reason": fitted.reason if isinstance(fitted, NoModel) else None,
        "all_reduces": [asdict(one) for one in links.reductions],
        "all_reduces_sharing_cores": [asdict(one) for one in links.sharing],
        "held_out": [asdict(one) for one in links.held_out],
    }


def _series(scaling: Scaling, series: Series) -> dict[str, Any]:
    return {
        "scaling": series.kind,
        "cell": series.name,
        "mode": series.mode,
        "batch": float(series.batch),
        "measured": [
            _point(series, point) | {"by_the_model": _expected(scaling.expect(series, point))}
            for point in (series.base, *series.points)
        ],
        "estimates": [asdict(one) for one in scaling.estimates(series)],
    }


def _expected(found: Estimate | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _point(series: Series, point: Point) -> dict[str, Any]:
    interval = point.efficiency
    return {
        "parallel": point.cell.parallel,
        "num_devices": point.cell.num_devices,
        "step_time_s": point.cell.step_time_s,
        "samples_per_s": point.cell.samples_per_s,
        "efficiency_ratio": None if interval is None else interval.centre,
        "interval_ratio": _bounds(interval),
        "interval_over": None if interval is None else _basis(series, point),
        "exposed_ratio": point.exposed_ratio,
        "forward_ratio": point.forward_ratio,
        "num_processes": point.cell.num_processes,
        "num_cores": series.row.num_cores,
        "shares_cores": point.cell.shares_cores,
    }


def _basis(series: Series, point: Point) -> str:
    return interval_basis(point.cell, series.base.cell)


def _bounds(interval: Interval | None) -> tuple[float, float] | None:
    if interval is None or not math.isfinite(interval.high):
        return None
    return interval.low, interval.high
