"""Charts of families: points, ticks, error bars, and the label for those who cannot see them."""

from __future__ import annotations

import math
import re

from made_up_runs import cell

from perfsuite.report.charts.family_charts import draw_families
from perfsuite.report.charts.sections import Section
from perfsuite.report.rows import Row


def sections(*rows: Row) -> dict[str, Section]:
    return {section.title: section for section in draw_families(rows)}


def test_a_sweep_of_workers_has_error_bars() -> None:
    found = sections(
        cell("0", (0.003, 0.004, 0.005)), cell("2", (0.002, 0.002, 0.002), num_workers=2)
    )

    (chart,) = found["Loader workers"].charts
    assert "4.00 ms at num_workers 0, 2.00 ms at num_workers 2" in chart.label
    error_bars = [
        outline for _, outline in chart.paths if re.fullmatch(r"M[\d.]+ [\d.]+V.+", outline)
    ]
    # 0 to 6 ms are 160 units up from 212, and the spread of 4 ms is 1.4826 ms.
    assert error_bars == ["M64.0 144.9V65.8", "M384.0 158.7V158.7"]


def test_memory_is_drawn_against_the_time_of_recomputation() -> None:
    found = sections(
        cell("a", (0.010,) * 3, peak_bytes=2 * 2**20),
        cell("b", (0.013,) * 3, peak_bytes=2**20, checkpointing="every-block"),
    )

    (chart,) = found["Memory against recomputation"].charts
    assert chart.label == (
        "Memory against recomputation, lenet, single, fp32. none: 2.00 MiB at step 10.0 ms; "
        "every-block: 1.00 MiB at step 13.0 ms"
    )
    axis = [text.content for text in chart.texts if text.content.endswith("B")]
    assert axis == ["0 B", "512 KiB", "1.00 MiB", "1.50 MiB", "2.00 MiB"]


def test_a_loss_that_is_no_number_is_left_out_of_its_line_which_says_so() -> None:
    found = sections(
        cell("a", losses=(3.0, 2.0, 1.0)),
        cell("b", losses=(3.0, math.nan, 2.0), precision="amp-bf16"),
    )

    (chart,) = found["Losses by precision"].charts
    assert chart.label.endswith(
        "fp32: 3 at step 1, 2 at step 2, 1 at step 3; "
        "amp-bf16, without 1 that are not finite or below 0: 3 at step 1, 2 at step 3"
    )


def test_cells_that_differ_in_more_than_one_thing_make_no_chart() -> None:
    assert sections(cell("a"), cell("b", num_workers=2, precision="bf16", workload="x")) == {}


def test_a_bare_collective_is_not_compared_by_its_recipe() -> None:
    assert sections(
        cell("1 KiB", samples_per_s=None, parallel="ddp:2"),
        cell("1 MiB", samples_per_s=None, parallel="ddp:4"),
    ) == {}  # fmt: skip


def test_of_very_many_charts_the_rest_is_counted() -> None:
    rows = [
        cell(f"{number}-{workers}", workload=f"w{number}", num_workers=workers)
        for number in range(30)
        for workers in (0, 2)
    ]

    section = sections(*rows)["Loader workers"]

    assert (len(section.charts), section.num_left_out) == (24, 6)


def test_what_is_counted_has_whole_ticks() -> None:
    found = sections(cell("0"), cell("2", num_workers=2))

    (chart,) = found["Loader workers"].charts
    ticks_of_x = [text.content for text in chart.texts if text.y == 229.0]
    assert ticks_of_x == ["0", "1", "2"]
