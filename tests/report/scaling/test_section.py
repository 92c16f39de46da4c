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
from scaled_runs import LINK, all_reduces, reduced, trained

from perfsuite.errors import WriteError
from perfsuite.records.recipe import Recipe
from perfsuite.report.charts.sections import Section
from perfsuite.report.formats.folder import write_folder
from perfsuite.report.formats.html import html_page, svg_file
from perfsuite.report.formats.markdown import to_markdown
from perfsuite.report.rows import Row
from perfsuite.report.scaling.section import (
    draw_scaling,
    scaling_grids,
    scaling_json,
    scaling_notes,
)
from perfsuite.report.scaling.series import describe_scaling
from perfsuite.report.terminal.tables import text_table
from perfsuite.system.untrusted import MOST, printable

MEASURED = "Weak and strong scaling, measured"
HELD_OUT = "The model against measurements that it was not fitted to"
ESTIMATES = "Estimates by the model, not measured"


def on_two_cores(**fields: Any) -> list[Row]:
    """Weak scaling up to more ranks than cores, and reductions of as many."""
    return [
        *all_reduces(2, num_cores=2),
        *(reduced(4, size, 2 * LINK.time_s(4, size), num_cores=2) for size in (2**12, 2**26)),
        trained("single", (0.1, 0.1), num_cores=2, **fields),
        trained("ddp:2", (0.125, 0.125), num_cores=2, backward_s=0.08, **fields),
        trained("ddp:4", (0.25, 0.25), num_cores=2, forward_s=0.06, backward_s=0.15, **fields),
    ]


def section_of(*rows: Row) -> Section:
    (section,) = draw_scaling(describe_scaling(rows))
    return section


def rows_of(title: str, *rows: Row) -> list[tuple[str, ...]]:
    (grid,) = [grid for grid in scaling_grids(describe_scaling(rows)) if grid.title == title]
    assert {len(row) for row in grid.rows} == {len(grid.columns)}
    return list(grid.rows)


def notes_of(*rows: Row) -> list[str]:
    return list(scaling_notes(describe_scaling(rows)))


# --- tables ---


def test_each_cell_is_shown_with_its_interval_and_what_that_covers() -> None:
    shared = ("weak", "lenet, fp32", "8 a device")
    assert rows_of(MEASURED, *on_two_cores()) == [
        (*shared, "single", "100 ms", "80", "base", *("-",) * 4, ""),
        (
            *(*shared, "ddp:2", "125 ms", "128"),
            *("80.0 %", "80.0 % and 80.0 %", "2 and 2 rounds"),
            *("16.0 %", "97.1 % to 100.0 %", ""),
        ),
        (
            *(*shared, "ddp:4", "250 ms", "128"),
            *("40.0 %", "40.0 % and 40.0 %", "2 and 2 rounds"),
            *("12.0 %", "93.0 % to 100.0 %", "4 on 2"),
        ),
    ]


def test_a_single_round_has_no_interval() -> None:
    (_, row) = rows_of(MEASURED, trained("single", (0.1,)), trained("ddp:2", (0.2,)))

    assert row[6:9] == ("50.0 %", "-", "1 and 1 rounds")


def test_an_interval_of_launches_against_rounds_says_both() -> None:
    twice = [trained("single", (0.1, 0.1), name=name) for name in ("first", "second")]

    (_, row) = rows_of(MEASURED, *twice, trained("ddp:2", (0.2, 0.2, 0.2)))

    assert row[8] == "3 rounds and 2 launches"


def test_the_model_is_held_against_what_it_was_not_fitted_to() -> None:
    assert rows_of(HELD_OUT, *on_two_cores()) == [
        ("cpu", "4.00 KiB", "1", "0.0 %", "+0.0 %", ""),
        ("cpu", "1.00 MiB", "1", "0.0 %", "+0.0 %", ""),
        ("cpu", "64.0 MiB", "1", "0.0 %", "+0.0 %", ""),
        ("cpu", "4 ranks on 2 cores, in no fit", "2", "100.0 %", "-50.0 %", ""),
    ]


def test_where_the_rest_gives_no_model_the_reason_is_shown_instead_of_a_number() -> None:
    found = rows_of(HELD_OUT, reduced(2, 2**10), reduced(2, 2**20), trained("single"))

    reason = "all_reduce was measured at 1 message size; parameters need 2 or more"
    assert found == [
        ("cpu", "1.00 KiB", "-", "-", "-", reason),
        ("cpu", "1.00 MiB", "-", "-", "-", reason),
    ]


def test_estimates_are_a_table_of_their_own() -> None:
    found = rows_of(ESTIMATES, *on_two_cores())

    # 14 ms of latency and 1.75 ms of bytes, which 60 ms of backward can hide.
    assert found[0][3:] == ("8 devices", "15.7 ms", "100 ms to 116 ms", "86.4 % to 100.0 %")
    assert [row[3] for row in found] == ["8 devices", "64 devices", "1024 devices"] * 2
    # 14 ms of latency, and 7 / 4 of 64 MiB at 1 ns a byte.
    assert found[3] == (*("-", "all_reduce on cpu", "64.0 MiB", "8 devices", "131 ms", "-", "-"),)


def test_very_many_rows_are_in_the_file_beside() -> None:
    rows = [
        trained(parallel, workload=f"w{number}", name=f"{number}-{parallel}")
        for number in range(101)
        for parallel in ("single", "ddp:2")
    ]

    scaling = describe_scaling(rows)

    (grid,) = scaling_grids(scaling)
    assert grid.title == f"{MEASURED}, without 2 rows that scaling.json has"
    assert len(grid.rows) == 200
    kept = json.loads(scaling_json(scaling))["series"]
    assert sum(len(series["measured"]) for series in kept) == 202


def test_a_table_can_be_printed() -> None:
    grid = scaling_grids(describe_scaling(on_two_cores()))[0]

    assert grid.title == MEASURED
    assert text_table(grid.columns, grid.rows).splitlines()[3].split() == [
        *("weak", "lenet,", "fp32", "8", "a", "device", "ddp:2", "125", "ms", "128", "80.0", "%"),
        *("80.0", "%", "and", "80.0", "%", "2", "and", "2", "rounds", "16.0", "%"),
        *("97.1", "%", "to", "100.0", "%"),
    ]


# --- notes ---


def test_shared_cores_are_reported() -> None:
    assert (
        "4 processes on 2 cores, loader workers included: they take turns, so that their "
        "efficiency measures the sharing of cores and not of links."
    ) in notes_of(*on_two_cores())


def test_unknown_cores_are_reported() -> None:
    rows = [trained("single", num_cores=None), trained("ddp:2", num_cores=None)]

    assert ("How many cores the machine has is not known, so ranks may share them.") in notes_of(
        *rows
    )


def test_the_model_is_reported_with_its_source_and_its_measurements() -> None:
    (note,) = [note for note in notes_of(*on_two_cores()) if note.startswith("Cost model")]

    assert note == (
        "Cost model for cpu: t(p, n) = 2 (p - 1) alpha + 2 (p - 1) / p n beta (a ring, Thakur, "
        "Rabenseifner and Gropp 2005; beta includes the additions) with alpha 1.00 ms a step, "
        "beta 1.00 s a GB (1 GB/s), from 3 launches of all_reduce over 2 ranks, 4.00 KiB to "
        "64.0 MiB. Of measurements left out in turn, half were predicted within 0.0 %, the worst "
        "with +0.0 %. Measurements of one number of ranks do not show how the cost grows with "
        "ranks."
    )


def test_without_a_model_the_reason_is_reported_and_nothing_is_estimated() -> None:
    rows = [reduced(2, 2**20), trained("single"), trained("ddp:2")]

    assert notes_of(*rows)[-1] == (
        "No cost model for cpu: all_reduce was measured at 1 message size; parameters need 2 or "
        "more."
    )
    assert [grid.title for grid in section_of(*rows).grids] == [MEASURED]


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


def test_efficiency_is_drawn_with_what_the_model_says_and_estimates_are_called_so() -> None:
    (chart,) = [one for one in section_of(*on_two_cores()).charts if "estimated" in one.label]

    assert chart.label.startswith(
        "Scaling, weak: lenet, fp32, 8 a device. ddp: 100.0 % at devices 1, "
        "80.0 % at devices 2, 40.0 % at devices 4; ddp, estimated without overlap: "
        "97.1 % at devices 2, "
    )
    # Powers of 2, since the estimates reach 1024.
    axis = [text.content for text in chart.texts if text.content.isdigit()]
    assert axis == ["1", "4", "16", "64", "256", "1024"]


def test_without_a_model_and_a_series_there_is_no_section() -> None:
    assert draw_scaling(describe_scaling([cell("a"), cell("b", num_workers=2)])) == ()


# --- files ---


def test_the_json_holds_everything_in_base_units() -> None:
    document = json.loads(scaling_json(describe_scaling(on_two_cores())))

    assert document["schema"] == 1
    (links,) = document["links"]
    assert links["model"] == {
        "latency_s": pytest.approx(0.001),
        "per_byte_s": pytest.approx(1e-9),
    }
    assert links["reason"] is None
    assert [one["world_size"] for one in links["all_reduces_sharing_cores"]] == [4, 4]
    (series,) = document["series"]
    base, two, four = series["measured"]
    assert base["efficiency_ratio"] is None
    assert (two["efficiency_ratio"], two["shares_cores"]) == (pytest.approx(0.8), False)
    assert four["shares_cores"] is True
    assert four["by_the_model"]["num_devices"] == 4
    assert [one["num_devices"] for one in series["estimates"]] == [8, 64, 1024]


def test_the_json_of_a_model_that_there_is_not_has_the_reason() -> None:
    (links,) = json.loads(scaling_json(describe_scaling([reduced(2, 2**20)])))["links"]

    assert links["model"] is None
    assert links["reason"] == (
        "all_reduce was measured at 1 message size; parameters need 2 or more"
    )


def test_the_json_has_the_same_keys_of_every_cell_and_the_numbers_that_the_table_shows() -> None:
    scaling = describe_scaling(on_two_cores())

    (series,) = json.loads(scaling_json(scaling))["series"]

    assert list(series) == ["scaling", "cell", "mode", "batch", "measured", "estimates"]
    for one in series["measured"]:
        assert list(one) == [
            *("parallel", "num_devices", "step_time_s", "samples_per_s", "efficiency_ratio"),
            *("interval_ratio", "interval_over", "exposed_ratio", "num_processes"),
            *("num_cores", "shares_cores", "by_the_model"),
        ]
    four = series["measured"][2]
    assert (four["num_devices"], four["num_processes"], four["num_cores"]) == (4, 4, 2)
    assert four["interval_ratio"] == pytest.approx([0.4, 0.4])
    assert four["interval_over"] == "2 and 2 rounds"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_text_everywhere(name: str) -> None:
    report = report_on(*on_two_cores(workload=name))

    shown = printable(name)
    assert json.loads(scaling_json(report.scaling))["series"][0]["cell"] == f"{shown}, fp32"
    assert html_page(report).count("<script>") == 1
    for text in (svg_file(chart) for section in report.sections for chart in section.charts):
        ElementTree.fromstring(text.encode())


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_ends_no_cell_of_the_markdown(name: str) -> None:
    text = to_markdown(report_on(*on_two_cores(workload=name)))

    _, _, table = text.partition(f"<details><summary>{MEASURED}</summary>")
    rows = table.partition("</details>")[0].split("\n")[2:-2]
    assert len(rows) == 5
    assert {row.replace("\\|", "").count("|") for row in rows} == {13}


def test_the_folder_has_the_files_and_loses_those_of_an_earlier_report(tmp_path: Path) -> None:
    write_folder(report_on(*on_two_cores()), tmp_path)
    assert (tmp_path / "scaling.json").exists()

    write_folder(report_on(cell("a")), tmp_path)

    assert not list(tmp_path.glob("scaling.*"))


def test_the_page_has_the_tables_beside_the_one_that_is_sorted() -> None:
    text = html_page(report_on(*on_two_cores()))

    assert text.count('<table class="grid">') == 3
    assert text.count("<thead>") == 1
    assert f"<h3>{ESTIMATES}</h3>" in text


@given(
    batch_size=st.integers(1, 2**53) | st.floats(0, float(MOST)),
    times_s=st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=4),
    stages=st.tuples(st.floats(0, float(MOST)), st.floats(0, float(MOST))),
    collectives=st.integers(0, MOST),
    num_bytes=st.integers(0, MOST),
    num_cores=st.none() | st.integers(min_value=1),
    num_workers=st.integers(min_value=0, max_value=10**4000),
    parallel=st.sampled_from(["ddp:1", "ddp:999999999", "hsdp:999999999x999999999", "tp:3"]),
)
@settings(deadline=None)
def test_no_number_in_a_file_breaks_the_report(
    batch_size: float,
    times_s: list[float],
    stages: tuple[float, float],
    collectives: int,
    num_bytes: int,
    num_cores: int | None,
    num_workers: int,
    parallel: str,
) -> None:
    made = record(
        samples_per_s=batch_size / median(times_s),
        stages_s=dict(zip(("forward", "backward"), stages, strict=True)),
        counts={"collectives": collectives, "collective_bytes": num_bytes},
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
        *all_reduces(2),
        reduced(4, num_bytes, times_s[0]),
        odd,
        trained("single", num_workers=num_workers, num_cores=num_cores),
        trained("ddp:2", num_workers=num_workers, num_cores=num_cores, num_bytes=num_bytes),
    ]

    scaling = describe_scaling(rows)

    (section,) = draw_scaling(scaling)
    assert section.grids
    assert not {"nan", "inf"} & set(re.split(r"[^a-z]+", str(section).lower()))
    assert json.loads(scaling_json(scaling))["series"][0]["measured"]


def test_a_folder_in_the_place_of_an_old_file_of_a_report_is_named(tmp_path):
    (tmp_path / "scaling.json").mkdir()

    with pytest.raises(WriteError) as failure:
        write_folder(report_on(cell("a")), tmp_path)

    assert str(failure.value) == f"cannot remove {tmp_path / 'scaling.json'}: Is a directory"
