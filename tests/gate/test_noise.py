"""The noise of a machine: pooled within sessions, kept strictly, and never another machine's."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from perfsuite.errors import WorkloadError
from perfsuite.gate.noise import (
    Calibration,
    CellNoise,
    SessionPairs,
    median,
    pool_noise,
    read_priors,
    write_calibration,
)
from perfsuite.stats.evidence import Prior


def of(*sessions: list[float]) -> list[SessionPairs]:
    return [SessionPairs(log_ratios=session) for session in sessions]


def test_noise_is_pooled_within_sessions_so_that_a_shift_between_them_does_not_count() -> None:
    # Each session's own variance is 0.02**2 / 2; their means lie 1 apart.
    noise = pool_noise(of([0.0, 0.02], [1.0, 1.02], [5.0]))

    # Of the two means, 1 apart, the pairs explain a variance of 0.0002 / 2.
    assert noise == CellNoise(
        sd=pytest.approx(0.02 / math.sqrt(2)),
        num_pairs=4,
        session_sd=pytest.approx(math.sqrt(0.5 - 0.0001)),
        bias=pytest.approx(0.51),
        bias_error=pytest.approx(0.5),
    )


def test_sessions_that_differ_by_less_than_their_pairs_explain_differ_by_nothing() -> None:
    noise = pool_noise(of([0.0, 0.02], [0.001, 0.021]))

    assert noise is not None
    assert (noise.session_sd, noise.bias) == (0.0, pytest.approx(0.0105))
    # Four pairs of a spread of 0.02 / sqrt(2), however near the two means lie by chance.
    assert noise.bias_error == pytest.approx(0.02 / math.sqrt(2) / 2)


def test_one_session_knows_nothing_of_others() -> None:
    assert pool_noise(of([0.0, 0.02])) == CellNoise(
        sd=pytest.approx(0.02 / math.sqrt(2)), num_pairs=2
    )


@pytest.mark.parametrize("sessions", [[], [[]], [[0.1], [0.2]]])
def test_single_pairs_know_no_spread(sessions: list[list[float]]) -> None:
    assert pool_noise(of(*sessions)) is None


def calibration(**cells: CellNoise) -> Calibration:
    return Calibration(fingerprint="here", cells=cells)


def test_a_calibration_becomes_priors_of_at_most_eight_degrees_of_freedom(tmp_path: Path) -> None:
    path = tmp_path / "baselines" / "calibration.json"
    path.parent.mkdir()
    write_calibration(
        path,
        calibration(
            many=CellNoise(sd=0.01, num_pairs=80),
            few=CellNoise(sd=0.02, num_pairs=4),
            two=CellNoise(sd=0.03, num_pairs=2),
            still=CellNoise(sd=0.0, num_pairs=80),
        ),
    )

    assert read_priors(path, "here") == {
        "many": Prior(sd=0.01, degrees_of_freedom=8.0),
        "few": Prior(sd=0.02, degrees_of_freedom=3.0),
        "still": Prior(sd=0.001, degrees_of_freedom=8.0),
    }


def test_another_machines_calibration_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    write_calibration(path, calibration(cell=CellNoise(sd=0.01, num_pairs=80)))

    assert read_priors(path, "elsewhere") == {}


def test_no_calibration_says_nothing(tmp_path: Path) -> None:
    assert read_priors(tmp_path / "calibration.json", "here") == {}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "fingerprint": "here", "cells": 3}']
)
def test_a_file_that_is_no_calibration_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)

    with pytest.raises(WorkloadError) as raised:
        read_priors(path, "here")

    assert str(raised.value).startswith(f"{path} is no calibration (")
    assert str(raised.value).endswith("); make it anew")


def test_the_typical_noise_is_the_median_over_cells() -> None:
    assert median([0.1, None, 0.3, 0.2]) == 0.2
    assert median([None]) is None


def test_what_rounds_explain_is_not_the_launches(tmp_path: Path) -> None:
    pairs = SessionPairs(log_ratios=[-0.05, 0.05], errors=[0.03, 0.05, 0.05])

    noise = pool_noise([pairs])

    assert noise is not None
    assert (noise.sd**2, noise.round_sd) == pytest.approx((0.005, 0.05))
    assert noise.launch_sd == pytest.approx(0.05)


def test_an_order_that_matters_is_found() -> None:
    pairs = SessionPairs(
        log_ratios=[0.01, 0.03, 0.00, -0.02], firsts=["head", "head", "base", "base"]
    )

    noise = pool_noise([pairs])

    assert noise is not None
    # 0.02 - (-0.01), and sqrt(0.0002 / 2 + 0.0002 / 2).
    assert (noise.order_effect, noise.order_error) == pytest.approx((0.03, math.sqrt(0.0002)))


@pytest.mark.parametrize("firsts", [[], ["base"] * 4, ["base", "base", "base", "head"]])
def test_one_order_alone_has_no_effect(firsts: list[str]) -> None:
    noise = pool_noise([SessionPairs(log_ratios=[0.0, 0.1, 0.2, 0.3], firsts=firsts)])

    assert noise is not None
    assert noise.order_effect is None
