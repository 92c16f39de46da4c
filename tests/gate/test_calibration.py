"""The noise of a machine: pooled within sessions, kept strictly, and never another machine's."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from perfsuite.errors import WorkloadError
from perfsuite.gate.calibration import (
    Calibration,
    CellNoise,
    pool_noise,
    read_priors,
    typical_sd,
    write_calibration,
)
from perfsuite.gate.rule import Prior


def test_noise_is_pooled_within_sessions_so_that_a_shift_between_them_does_not_count() -> None:
    # Each session's own variance is 0.02**2 / 2; their means lie 1 apart.
    noise = pool_noise([[0.0, 0.02], [1.0, 1.02], [5.0]])

    assert noise == CellNoise(sd=pytest.approx(0.02 / math.sqrt(2)), num_pairs=4)


@pytest.mark.parametrize("sessions", [[], [[]], [[0.1], [0.2]]])
def test_single_pairs_know_no_spread(sessions: list[list[float]]) -> None:
    assert pool_noise(sessions) is None


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
    cells = {
        name: CellNoise(sd=sd, num_pairs=8) for name, sd in zip("abc", (0.1, 0.3, 0.2), strict=True)
    }

    assert typical_sd(cells) == 0.2
    assert typical_sd({}) is None
