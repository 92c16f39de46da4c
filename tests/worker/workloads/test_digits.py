from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from perfsuite import WorkloadError
from perfsuite.errors import MissingPackageError
from perfsuite.worker.workloads.digits import SPLIT_SIZES, _read_scans, digits


def test_the_parts_together_are_every_scan_of_scikit_learn_once() -> None:
    scans = torch.from_numpy(load_digits().data).float()
    labels = torch.from_numpy(load_digits().target)
    expected = torch.cat([scans, labels[:, None]], dim=1)

    parts = [digits(split, image_size=8).tensors for split in SPLIT_SIZES]

    found = torch.cat(
        [torch.cat([16 * images.flatten(1), classes[:, None]], dim=1) for images, classes in parts]
    )
    assert [len(classes) for _, classes in parts] == [1200, 300, 297]
    assert sorted(found.tolist()) == sorted(expected.tolist())


@pytest.mark.parametrize("split", SPLIT_SIZES)
def test_every_part_has_a_fair_share_of_every_class(split: str) -> None:
    labels = digits(split, image_size=8).tensors[1]  # type: ignore[arg-type]

    shares = labels.bincount(minlength=10) / len(labels)

    assert shares.min() > 0.05
    assert shares.max() < 0.15


def test_the_images_are_enlarged_and_their_channel_is_repeated() -> None:
    images = digits("validation", image_size=32, num_channels=3).tensors[0]
    small = digits("validation", image_size=8).tensors[0]

    assert images.shape == (300, 3, 32, 32)
    assert images.dtype == torch.float32
    assert images.min() == 0
    assert images.max() == 1
    assert torch.equal(images[:, 0], images[:, 2])
    # Enlarging by 4 keeps the mean of every scan's interior ink to a few percent.
    assert torch.allclose(images.mean(dim=(1, 2, 3)), small.mean(dim=(1, 2, 3)), atol=0.02)


def test_a_missing_scikit_learn_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _read_scans.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(MissingPackageError) as raised:
        digits("train", image_size=28)

    assert str(raised.value) == (
        "scikit-learn is not installed: pip install 'perfsuite[workloads]' "
        f"torch=={version('torch')}"
    )


def test_a_scikit_learn_without_its_file_is_an_error_that_names_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = ModuleSpec("sklearn", None, origin=str(tmp_path / "__init__.py"))
    _read_scans.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)

    with pytest.raises(WorkloadError) as raised:
        digits("train", image_size=28)

    path = tmp_path / "datasets" / "data" / "digits.csv.gz"
    assert str(raised.value).startswith(
        f"the handwritten digits of scikit-learn cannot be read from {path}: "
    )
    assert str(raised.value).endswith("; pip install --force-reinstall scikit-learn")
