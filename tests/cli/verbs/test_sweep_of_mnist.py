"""LeNet on MNIST: the verb reads the real files' format, and the quoted table has its own shape."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from idx_files import write_mnist
from mnist_table import QUOTED, differences, line_of

from perfsuite.records.profile import Profile
from perfsuite.system.json_files import read_json_as

CALL = "from perfsuite.cli import main; main()"
NUM_TRAIN, NUM_VALIDATION, NUM_EPOCHS, BATCH_SIZE = 1100, 100, 3, 32


def stripes(num_images: int) -> np.ndarray[Any, Any]:
    """Images of ten classes: a line of ink, lower with each class."""
    images = np.zeros((num_images, 28, 28), dtype=np.uint8)
    for number, image in enumerate(images):
        row = 2 * (number % 10) + 3
        image[row : row + 3, 4:24] = 255
    return images


@pytest.mark.slow
def test_lenet_learns_from_files_of_mnists_format_and_the_profile_is_whole(tmp_path: Path) -> None:
    write_mnist(tmp_path / "disk", stripes(NUM_TRAIN + NUM_VALIDATION), stripes(20))

    ended = subprocess.run(
        [
            *(sys.executable, "-c", CALL, "profile", "lenet-mnist", "--device", "cpu"),
            *("--num-workers", "2", "--epochs", str(NUM_EPOCHS), "--json", "profile.json"),
        ],
        cwd=tmp_path,
        env=os.environ | {"MNIST_ROOT": str(tmp_path / "disk")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    profile = read_json_as(tmp_path / "profile.json", Profile)
    assert (profile.workload, profile.evaluated_split) == ("lenet-mnist", "validation")
    assert len(profile.losses) == NUM_EPOCHS * (NUM_TRAIN // BATCH_SIZE)
    assert profile.accuracy_per_class is not None
    assert set(profile.accuracy_per_class) == {str(digit) for digit in range(10)}
    line = line_of(profile)
    assert line.accuracy == pytest.approx(np.mean(list(profile.accuracy_per_class.values())))
    assert line.accuracy > 0.95
    assert min(line.load_s, line.update_s) > 0
    assert sum(seconds for _, seconds in profile.stages_s.as_rows()) == pytest.approx(line.total_s)
    assert "accuracy on the validation split" in ended.stdout
    assert "Warning" not in ended.stdout + ended.stderr  # as of more workers than a rank has cores
    assert (tmp_path / "results" / "profile.tex").exists()


def test_the_quoted_table_has_its_own_shape() -> None:
    assert differences(QUOTED) == []


def test_each_way_to_have_another_shape_is_named() -> None:
    alone, two, four = QUOTED

    bound_by_compute = dataclasses.replace(alone, load_s=0.001)
    assert differences([bound_by_compute]) == [
        "without workers a step waits 1.00 ms for its batch and computes 1.10 ms: "
        "loading does not bind"
    ]
    no_gain = dataclasses.replace(two, load_s=0.007, total_s=75.0)
    assert differences([alone, no_gain, four]) == [
        "from 0 to 2 workers the wait for a batch does not fall",
        "from 0 to 2 workers the whole training does not become faster",
    ]
    learned_less = dataclasses.replace(four, accuracy=0.95)
    assert differences([alone, two, learned_less]) == ["accuracies are from 95.0 % to 99.1 %"]
