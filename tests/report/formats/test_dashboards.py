"""What other people's dashboards are given: their own formats, and no number that is not there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft7Validator
from made_up_runs import HOSTILE, cell, report_on, verdict

from perfsuite.report.formats.trackers import to_action_benchmark, to_bencher, to_hud
from perfsuite.report.rows import Row
from perfsuite.system.untrusted import printable

# bencher.dev/docs/reference/bencher-metric-format
BMF = Draft7Validator(
    {
        "type": "object",
        "patternProperties": {
            ".+": {
                "type": "object",
                "patternProperties": {
                    ".+": {
                        "type": "object",
                        "properties": {
                            "value": {"type": "number"},
                            "lower_value": {"type": "number"},
                            "upper_value": {"type": "number"},
                        },
                        "required": ["value"],
                    }
                },
            }
        },
    }
)
MEASURED = cell(
    "t.py::a",
    (0.25, 0.5, 0.125),
    parallel="ddp:2",
    precision="amp-bf16",
    num_workers=2,
    peak_bytes=2**20,
    counts={"flops": 10},
    given=verdict("PASS", ratio=0.5),
)
PLAIN = Row(name="plain", step_time_s=0.5, rounds_s=(0.5,))
# A verdict without a time, as of a vanished cell.
GONE = Row(name="gone", verdict=verdict("VANISHED", ratio=None, interval=None))


def read_strictly(text: str) -> Any:
    """JSON as everybody reads it: without NaN and infinity."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    assert text.endswith("\n")
    return json.loads(text, parse_constant=refuse)


# --- Bencher ---


def test_a_cell_is_a_benchmark_and_each_of_its_numbers_a_measure() -> None:
    document = read_strictly(to_bencher(report_on(MEASURED, PLAIN, GONE)))

    BMF.validate(document)
    found = document["t.py::a"]
    assert found["peak_bytes"] == {"value": 2**20}
    assert found["flops"] == {"value": 10}
    assert found["samples_per_s"] == {"value": 1000.0}
    assert found["change_ratio"] == {"value": 0.5}
    assert "num_workers" not in found
    assert document["plain"] == {"step_time_s": {"value": 0.5}}
    assert document["gone"] == {}


def test_the_bounds_of_a_step_are_its_spread_over_rounds() -> None:
    step = read_strictly(to_bencher(report_on(MEASURED)))["t.py::a"]["step_time_s"]

    spread_s = 1.4826 * 0.125
    assert step["value"] == 0.25
    assert step["lower_value"] == pytest.approx(0.25 - spread_s)
    assert step["upper_value"] == pytest.approx(0.25 + spread_s)


# --- github-action-benchmark ---


def test_an_entry_is_a_number_that_is_better_the_smaller_it_is() -> None:
    entries = read_strictly(to_action_benchmark(report_on(MEASURED, PLAIN, GONE)))

    assert entries == [
        {"name": "t.py::a step_time_s", "unit": "s", "value": 0.25},
        {"name": "t.py::a peak_bytes", "unit": "bytes", "value": 2**20},
        {"name": "t.py::a flops", "unit": "FLOP", "value": 10},
        {"name": "plain step_time_s", "unit": "s", "value": 0.5},
    ]


# --- PyTorch's HUD ---


def test_a_record_is_one_number_of_a_cell_with_its_recipe_in_strings() -> None:
    records = read_strictly(to_hud(report_on(MEASURED)))

    by_metric = {one["metric"]["name"]: one for one in records}
    step = by_metric["step_time_s"]
    assert step["metric"]["benchmark_values"] == [0.25, 0.5, 0.125]
    assert by_metric["peak_bytes"]["metric"]["benchmark_values"] == [2**20]
    assert step["model"] == {"name": "t.py::a", "type": "lenet"}
    about = step["benchmark"].pop("extra_info")
    assert step["benchmark"] == {"name": "perfsuite", "mode": "training", "dtype": "amp-bf16"}
    assert (about["parallel"], about["num_workers"], about["device"]) == ("ddp:2", "2", "cpu")
    assert all(isinstance(value, str) for value in about.values())
    # The upload of a workflow knows these, and what a record says itself would win.
    assert not {"repo", "head_sha", "workflow_id"} & set(step)


@pytest.mark.parametrize(
    ("stages_s", "mode"),
    [({"load": 0.1, "evaluation": 0.2}, "inference"), ({"load": 0.1}, ""), ({}, "")],
)
def test_a_cell_that_does_not_train_is_no_training(stages_s: dict[str, float], mode: str) -> None:
    records = read_strictly(to_hud(report_on(cell("t", stages_s=stages_s))))

    assert {one["benchmark"]["mode"] for one in records} == {mode}


def test_a_plain_benchmark_has_its_times_and_no_recipe() -> None:
    (only,) = read_strictly(to_hud(report_on(PLAIN, GONE)))

    assert only["metric"] == {"name": "step_time_s", "benchmark_values": [0.5]}
    assert only["model"] == {"name": "plain", "type": ""}
    assert only["benchmark"] == {"name": "perfsuite", "mode": "", "dtype": "", "extra_info": {}}


# --- all of them ---


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("write", [to_bencher, to_action_benchmark, to_hud])
def test_a_hostile_name_is_one_printable_name(write: Any, name: str) -> None:
    text = write(report_on(cell(printable(name), workload=name)))

    assert text.isascii()
    names = {
        to_bencher: lambda document: set(document),
        to_action_benchmark: lambda entries: {
            one["name"].removesuffix(" step_time_s") for one in entries
        },
        to_hud: lambda records: {one["model"]["name"] for one in records},
    }
    assert names[write](read_strictly(text)) == {printable(name)}


@pytest.mark.parametrize("write", [to_bencher, to_action_benchmark, to_hud])
def test_a_number_that_is_not_finite_is_not_there(write: Any) -> None:
    text = write(report_on(cell("t", samples_per_s=float("inf"))))

    assert "samples_per_s" not in text
    read_strictly(text)
