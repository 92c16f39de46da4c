"""A worker sweep as a table and as a picture."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

from perfsuite.report.formats.html import svg_file
from perfsuite.report.terminal.sweep import draw_sweep, sweep_table
from perfsuite.stats.intervals import Interval

TRAINING = {
    0: Interval(centre=0.004, low=0.003, high=0.005),
    2: Interval(centre=0.002, low=0.0019, high=0.0021),
    4: Interval(centre=0.006, low=0.005, high=0.007),
}
LOADING = {count: Interval(centre=0.001, low=0.0, high=math.inf) for count in TRAINING}


def test_each_number_has_its_times_and_its_mark() -> None:
    lines = [line.split() for line in sweep_table(TRAINING, LOADING, 2, 4).splitlines()]

    assert lines[2:] == [
        ["0", "4.00", "ms", "3.00", "ms", "and", "5.00", "ms", "1.00", "ms"],
        ["2", "2.00", "ms", "1.90", "ms", "and", "2.10", "ms", "1.00", "ms", "optimum"],
        ["4", "6.00", "ms", "5.00", "ms", "and", "7.00", "ms", "1.00", "ms", "hurts"],
    ]


def test_the_picture_names_curves_optimum_and_what_hurts() -> None:
    picture = svg_file(draw_sweep("mine & <yours>", TRAINING, LOADING, 2, 4))

    texts = "".join(ElementTree.fromstring(picture.encode()).itertext())
    for text in (
        "mine & <yours>",
        "training step, loading included",
        "loading alone",
        "optimum: 2",
        "more hurt, from 4",
    ):
        assert text in texts


def test_equal_sweeps_give_equal_bytes() -> None:
    first, second = (svg_file(draw_sweep("mine", TRAINING, LOADING, 2, None)) for _ in range(2))

    assert first == second
    assert "more hurt" not in first


def test_the_picture_has_every_time_its_interval_and_what_hurts() -> None:
    picture = draw_sweep("mine", TRAINING, LOADING, 2, 4)

    assert picture.label == (
        "Sweep, mine. training step, loading included: 4.00 ms at num_workers 0, 2.00 ms at "
        "num_workers 2, 6.00 ms at num_workers 4; loading alone: 1.00 ms at num_workers 0, "
        "1.00 ms at num_workers 2, 1.00 ms at num_workers 4; optimum: 2: 0 s at num_workers 2, "
        "7.00 ms at num_workers 2; more hurt, from 4: 0 s at num_workers 4"
    )
    bars = [path for _, path in picture.paths if re.fullmatch(r"M[\d.]+ [\d.]+V[\d.]+", path)]
    # 0 to 8 ms are 160 units up from 212: 3 to 5 ms, 1.9 to 2.1 ms, 5 to 7 ms; a single repetition
    # has no interval.
    assert bars == [
        *("M64.0 152.0V112.0", "M224.0 174.0V170.0", "M384.0 112.0V72.0"),
        *("M64.0 192.0V192.0", "M224.0 192.0V192.0", "M384.0 192.0V192.0"),
    ]
