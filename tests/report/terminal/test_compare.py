"""Two records side by side, and the sentence below them."""

from __future__ import annotations

import math

import msgspec
import pytest
from made_up_cells import NO_COUNTS, make_record

from perfsuite.records.equivalence import Numerics
from perfsuite.report.terminal.compare import comparison_sentence, comparison_table

NAMES = {"a": "fp32", "b": "bf16"}
TIMES_S = {"a": 0.002, "b": 0.001}
SAMPLES = {"a": 32, "b": 64}


def test_what_both_have_stands_beside_its_change() -> None:
    counts = msgspec.structs.replace(NO_COUNTS, saved_activation_bytes=2048)
    halved = msgspec.structs.replace(NO_COUNTS, saved_activation_bytes=1024)
    records = {"a": make_record(counts=counts), "b": make_record(counts=halved)}

    table = " ".join(comparison_table(NAMES, TIMES_S, SAMPLES, records).split())

    assert "time per step 2.00 ms 1.00 ms -50.0 %" in table
    assert "time per sample 62.5 us 15.6 us -75.0 %" in table
    # Stages are of a step, and of the last launch of each.
    load_at, sample_at = table.index("load (last pair)"), table.index("time per sample")
    assert table.index("time per step") < load_at < sample_at
    assert "saved activation bytes 2.00 KiB 1.00 KiB -50.0 %" in table
    assert "peak memory 1.00 KiB 1.00 KiB +0.0 %" in table
    assert "numerics - -" in table


def test_what_neither_has_is_left_out_and_what_one_lacks_is_a_dash() -> None:
    records = {"a": make_record(), "b": make_record(memory=None)}

    table = " ".join(comparison_table(NAMES, TIMES_S, SAMPLES, records).split())

    assert "peak memory 1.00 KiB -" in table
    assert "flops" not in table
    assert "evaluation" not in table


def test_numerics_are_told_with_their_power() -> None:
    numerics = Numerics(status="equivalent", check="T1", error=0.0, limit=1e-7, power="7/7")
    without = Numerics(status="no power", check="T2", error=None, limit=None, power=None)
    records = {"a": make_record(numerics=numerics), "b": make_record(numerics=without)}

    table = comparison_table(NAMES, TIMES_S, SAMPLES, records)

    assert "T1 equivalent, power 7/7" in table
    assert "T2 no power" in table


@pytest.mark.parametrize(
    ("word", "ratio", "interval", "sentence"),
    [
        (
            "slower",
            1.25,
            (1.2, 1.3),
            "b is slower than a: +25.0 % time per sample in pairs, between +20.0 % and +30.0 %",
        ),
        (
            "same",
            0.99,
            (0.97, 1.01),
            "b is the same as a within 3.0 % (-1.0 %, between -3.0 % and +1.0 %)",
        ),
        (
            "undecided",
            1.1,
            (0.9, 1.3),
            "undecided: b takes +10.0 % time per sample in pairs, between -10.0 % and +30.0 %; "
            "raise --max-pairs or --max-minutes",
        ),
        (
            "undecided",
            1.1,
            (0.0, math.inf),
            "undecided: too few pairs to tell a from b; raise --max-pairs or --max-minutes",
        ),
    ],
)
def test_the_sentence_says_what_b_is(
    word: str, ratio: float, interval: tuple[float, float], sentence: str
) -> None:
    assert comparison_sentence(word, ratio, interval) == sentence
