"""Scaling as people and programs read it: tables, notes, charts and JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_runs import HOSTILE, cell, record, report_on
from scaled_runs import trained

from perfsuite.records.recipe import Recipe
from perfsuite.report.charts.sections import Section
from perfsuite.report.formats.folder import write_folder
from perfsuite.report.formats.html import html_page, svg_files
from perfsuite.report.formats.markdown import to_markdown
from perfsuite.report.rows import Row
from perfsuite.report.scaling.charts import draw_scaling
from perfsuite.report.scaling.series import find_series
from perfsuite.report.scaling.tables import scaling_grid, scaling_json, scaling_notes
from perfsuite.report.terminal.tables import grid_table
from perfsuite.system.untrusted import MOST, printable

MEASURED = "Weak and strong scaling, measured"


def on_two_cores(**fields: Any) -> list[Row]:
    """Weak scaling up to more ranks than cores."""
    return [
        trained("single", (0.1, 0.1), num_cores=2, **fields),
        trained("ddp:2", (0.125, 0.125), num_cores=2, backward_s=0.08, **fields),
        trained("ddp:4", (0.25, 0.25), num_cores=2, forward_s=0.06, backward_s=0.15, **fields),
    ]


def section_of(*rows: Row) -> Section:
    (section,) = draw_scaling(find_series(rows))
    return section


def rows_of(*rows: Row) -> list[tuple[str, ...]]:
    grid = scaling_grid(find_series(rows))
    assert grid.title == MEASURED
    assert {len(row) for row in grid.rows} == {len(grid.columns)}
    return list(grid.rows)


def notes_of(*rows: Row) -> list[str]:
    return list(scaling_notes(find_series(rows)))


# --- tables ---


def test_each_cell_is_shown_with_its_interval_and_what_that_covers() -> None:
    shared = ("weak", "lenet, fp32", "8 a device")
    assert rows_of(*on_two_cores()) == [
        (*shared, "single", "100 ms", "80", "base", *("-",) * 3, ""),
        (
            *(*shared, "ddp:2", "125 ms", "128"),
            *("80.0 %", "80.0 % and 80.0 %", "2 and 2 rounds"),
            *("16.0 %", ""),
        ),
        (
            *(*shared, "ddp:4", "250 ms", "128"),
            *("40.0 %", "40.0 % and 40.0 %", "2 and 2 rounds"),
            *("12.0 %", "4 on 2"),
        ),
    ]


def test_a_single_round_has_no_interval() -> None:
    (_, row) = rows_of(trained("single", (0.1,)), trained("ddp:2", (0.2,)))

    assert row[6:9] == ("50.0 %", "-", "1 and 1 rounds")


def test_an_interval_of_launches_against_rounds_says_both() -> None:
    twice = [trained("single", (0.1, 0.1), name=name) for name in ("first", "second")]

    (_, row) = rows_of(*twice, trained("ddp:2", (0.2, 0.2, 0.2)))

    assert row[8] == "3 rounds and 2 launches"


def test_very_many_rows_are_in_the_file_beside() -> None:
    rows = [
        trained(parallel, workload=f"w{number}", name=f"{number}-{parallel}")
        for number in range(101)
        for parallel in ("single", "ddp:2")
    ]

    scaling = find_series(rows)

    grid = scaling_grid(scaling)
    assert grid.title == f"{MEASURED}, without 2 rows that scaling.json has"
    assert len(grid.rows) == 200
    kept = json.loads(scaling_json(scaling))["series"]
    assert sum(len(series["measured"]) for series in kept) == 202


def test_a_table_can_be_printed() -> None:
    text = grid_table(scaling_grid(find_series(on_two_cores())))

    assert text.splitlines()[0] == MEASURED
    assert text.splitlines()[4].split() == [
        *("weak", "lenet,", "fp32", "8", "a", "device", "ddp:2", "125", "ms", "128", "80.0", "%"),
        *("80.0", "%", "and", "80.0", "%", "2", "and", "2", "rounds", "16.0", "%"),
    ]


# --- notes ---


def test_shared_cores_are_reported_also_of_the_base() -> None:
    notes = [note for note in notes_of(*on_two_cores(num_workers=2)) if "take turns" in note]

    assert [note.partition(",")[0] for note in notes] == [
        "3 processes on 2 cores",
        "6 processes on 2 cores",
        "12 processes on 2 cores",
    ]
    assert notes_of(*on_two_cores())[-1] == (
        "4 processes on 2 cores, loader workers included: they take turns, so that their "
        "efficiency measures the sharing of cores and not of links."
    )


def test_unknown_cores_are_reported() -> None:
    rows = [trained("single", num_cores=None), trained("ddp:2", num_cores=None)]

    assert ("How many cores the machine has is not known, so ranks may share them.") in notes_of(
        *rows
    )


def test_an_interval_over_rounds_says_what_it_does_not_cover() -> None:
    rounds = notes_of(trained("single"), trained("ddp:2"))
    launches = notes_of(
        *(trained(mode, name=f"{mode}{n}") for mode in ("single", "ddp:2") for n in (1, 2))
    )

    assert any(note.startswith("An interval over rounds covers how") for note in rounds)
    assert not any(note.startswith("An interval over launches") for note in rounds)
    assert any(note.startswith("An interval over launches is Welch's") for note in launches)
    assert not any(note.startswith("An interval over rounds") for note in launches)


# --- charts ---


def test_throughput_has_a_line_for_each_mode_and_the_ideal() -> None:
    section = section_of(
        trained("single", (0.1, 0.1)),
        trained("ddp:2", (0.125, 0.125)),
        trained("ddp:4", (0.2, 0.2)),
        trained("fsdp:2", (0.16, 0.16)),
    )

    assert section.charts[0].label == (
        "Scaling, weak: lenet, fp32, 8 a device. ddp: 80 at devices 1, 128 at devices 2, "
        "160 at devices 4; fsdp: 80 at devices 1, 100 at devices 2; "
        "ideal, in proportion to 1: 80 at devices 1, 320 at devices 4"
    )


def test_efficiency_is_drawn_over_the_devices_that_were_measured() -> None:
    _, chart = section_of(*on_two_cores()).charts

    assert chart.label == (
        "Scaling, weak: lenet, fp32, 8 a device. ddp: 100.0 % at devices 1, "
        "80.0 % at devices 2, 40.0 % at devices 4"
    )
    assert [text.content for text in chart.texts if text.content.isdigit()] == [
        "0",
        "1",
        "2",
        "3",
        "4",
    ]


def test_without_a_series_there_is_no_section() -> None:
    reductions = [
        cell(parallel, workload="all_reduce", samples_per_s=None, parallel=parallel)
        for parallel in ("ddp:2", "ddp:4")
    ]

    assert draw_scaling(find_series([cell("a"), cell("b", num_workers=2), *reductions])) == ()


# --- files ---


def test_the_json_has_the_same_keys_of_every_cell_and_the_numbers_that_the_table_shows() -> None:
    document = json.loads(scaling_json(find_series(on_two_cores())))

    assert list(document) == ["schema", "series"]
    assert document["schema"] == 1
    (series,) = document["series"]
    assert list(series) == ["scaling", "cell", "mode", "batch", "measured"]
    for one in series["measured"]:
        assert list(one) == [
            *("parallel", "num_devices", "step_time_s", "samples_per_s", "efficiency_ratio"),
            *("interval_ratio", "interval_over", "exposed_ratio", "num_processes"),
            *("num_cores", "shares_cores"),
        ]
    base, two, four = series["measured"]
    assert base["efficiency_ratio"] is None
    assert (two["efficiency_ratio"], two["shares_cores"]) == (pytest.approx(0.8), False)
    assert four["shares_cores"] is True
    assert (four["num_devices"], four["num_processes"], four["num_cores"]) == (4, 4, 2)
    assert four["interval_ratio"] == pytest.approx([0.4, 0.4])
    assert four["interval_over"] == "2 and 2 rounds"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_text_everywhere(name: str) -> None:
    report = report_on(*on_two_cores(workload=name))

    shown = printable(name)
    assert json.loads(scaling_json(report.scaling))["series"][0]["cell"] == f"{shown}, fp32"
    assert html_page(report).count("<script>") == 1
    for text in svg_files(report):
        ElementTree.fromstring(text.encode())


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_ends_no_cell_of_the_markdown(name: str) -> None:
    text = to_markdown(report_on(*on_two_cores(workload=name)))

    _, _, table = text.partition(f"<details><summary>{MEASURED}</summary>")
    rows = table.partition("</details>")[0].split("\n")[2:-2]
    assert len(rows) == 5
    assert {row.replace("\\|", "").count("|") for row in rows} == {12}


def test_the_folder_has_the_files_and_loses_those_of_an_earlier_report(tmp_path: Path) -> None:
    write_folder(report_on(*on_two_cores()), tmp_path)
    assert (tmp_path / "scaling.json").exists()

    write_folder(report_on(cell("a")), tmp_path)

    assert not list(tmp_path.glob("scaling.*"))


def test_the_page_has_the_table_beside_the_one_that_is_sorted() -> None:
    text = html_page(report_on(*on_two_cores()))

    assert text.count('<table class="grid">') == 1
    assert text.count("<thead>") == 1
    assert f"<h3>{MEASURED}</h3>" in text


@given(
    batch_size=st.integers(1, 2**53) | st.floats(0, float(MOST)),
    times_s=st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=4),
    stages=st.tuples(st.floats(0, float(MOST)), st.floats(0, float(MOST))),
    num_cores=st.none() | st.integers(min_value=1),
    num_workers=st.integers(min_value=0, max_value=10**4000),
    parallel=st.sampled_from(["ddp:1", "ddp:999999999", "hsdp:999999999x999999999", "tp:3"]),
)
@settings(deadline=None)
def test_no_number_in_a_file_breaks_the_report(
    batch_size: float,
    times_s: list[float],
    stages: tuple[float, float],
    num_cores: int | None,
    num_workers: int,
    parallel: str,
) -> None:
    made = record(
        samples_per_s=batch_size / median(times_s),
        stages_s=dict(zip(("forward", "backward"), stages, strict=True)),
        parallel=parallel,
        num_workers=num_workers,
    )
    odd = Row(
        name="odd",
        step_time_s=median(times_s),
        rounds_s=tuple(times_s),
        record=made,
        recipe=Recipe(**made.recipe),
        num_cores=num_cores,
    )
    rows = [
        odd,
        trained("single", num_workers=num_workers, num_cores=num_cores),
        trained("ddp:2", num_workers=num_workers, num_cores=num_cores),
    ]

    scaling = find_series(rows)

    (section,) = draw_scaling(scaling)
    assert section.grids
    assert not {"nan", "inf"} & set(re.split(r"[^a-z]+", str(section).lower()))
    assert json.loads(scaling_json(scaling))["series"][0]["measured"]
