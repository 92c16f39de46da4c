"""What other people's dashboards read; what was not measured of a cell has no number.

Sources: Bencher Metric Format, bencher.dev/docs/reference/bencher-metric-format. For
`customSmallerIsBetter` `BenchmarkResult` in benchmark-action/github-action-benchmark,
src/extract.ts. For PyTorch's HUD "Benchmark results format" in pytorch/pytorch, wiki page
PyTorch-OSS-benchmark-infra, and pytorch/test-infra, clickhouse_db_schema/oss_ci_benchmark_v3.
"""

import json
from typing import Final

from perfsuite.report.formats.trackers import config_of
from perfsuite.report.model import Report
from perfsuite.report.rows import numbers_of

# What is better the smaller it is, with its unit.
_COSTS: Final = {
    "step_time_s": "s",
    "peak_bytes": "bytes",
    "saved_activation_bytes": "bytes",
    "flops": "FLOP",
    "collectives": "collectives",
}


def to_bencher(report: Report) -> str:
    """Return a benchmark for each cell; a step's bounds are its spread over rounds."""
    cells = {}
    for row in report.rows:
        measures = {key: {"value": value} for key, value in numbers_of(row).items()}
        if row.step_time_s is not None and row.spread_ratio is not None:
            low, high = (row.step_time_s * (1 + sign * row.spread_ratio) for sign in (-1, 1))
            measures["step_time_s"] |= {"lower_value": low, "upper_value": high}
        cells[row.name] = measures
    return json.dumps(cells, indent=1) + "\n"


def to_action_benchmark(report: Report) -> str:
    """Return an entry for each number of each cell that is better the smaller it is."""
    entries = [
        {"name": f"{row.name} {key}", "unit": _COSTS[key], "value": value}
        for row in report.rows
        for key, value in numbers_of(row).items()
        if key in _COSTS
    ]
    return json.dumps(entries, indent=1) + "\n"


def to_hud(report: Report) -> str:
    """Return a record for each number of each cell; the upload adds repository and commit."""
    records = []
    for row in report.rows:
        about = {key: str(value) for key, value in config_of(row).items()}
        evaluated = "inference" if "evaluation" in row.stages_s else ""
        mode = "training" if "backward" in row.stages_s else evaluated
        precision = about.get("precision", "")
        benchmark = {"name": "perfsuite", "mode": mode, "dtype": precision, "extra_info": about}
        model = {"name": row.name, "type": row.subject or ""}
        for key, value in numbers_of(row).items():
            values = row.rounds_s if key == "step_time_s" and row.rounds_s else (value,)
            metric = {"name": key, "benchmark_values": values}
            records.append({"benchmark": benchmark, "model": model, "metric": metric})
    return json.dumps(records, indent=1) + "\n"
