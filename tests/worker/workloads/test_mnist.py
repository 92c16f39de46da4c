from __future__ import annotations

from pathlib import Path

import idx_files
import numpy as np
import pytest
import torch
import torchvision
from idx_files import TEST_IMAGES, TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS, write_idx

from perfsuite import WorkloadError
from perfsuite.records.workload import Split
from perfsuite.worker.workloads.digits import mnist
from perfsuite.worker.workloads.lenet import AugmentedDataset, lenet_mnist, lenet_mnist_affine

NUM_TRAIN, NUM_TEST = 24, 10


def write_mnist(root: Path) -> Path:
    """Write files like MNIST's: every pixel of image i is i, and its class is i % 10."""
    train, test = (
        np.broadcast_to(np.arange(count)[:, None, None], (count, 28, 28))
        for count in (NUM_TRAIN, NUM_TEST)
    )
    return idx_files.write_mnist(root, train, test)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that MNIST_ROOT names, still empty."""
    monkeypatch.setenv("MNIST_ROOT", str(tmp_path))
    monkeypatch.delenv("PERFSUITE_DOWNLOAD", raising=False)
    return tmp_path


def unreadable(folder: Path, reason: str) -> str:
    return (
        f"MNIST in {folder} is damaged or partial ({reason}); delete that folder and fetch MNIST "
        "again (PERFSUITE_DOWNLOAD=1 downloads it)"
    )


@pytest.mark.parametrize(
    ("split", "numbers"),
    [("train", range(22)), ("validation", range(22, 24)), ("test", range(10))],
)
def test_the_last_twelfth_of_the_training_file_is_for_validation(
    root: Path, split: Split, numbers: range
) -> None:
    write_mnist(root)

    images, labels = mnist(split).tensors

    assert images.shape == (len(numbers), 1, 28, 28)
    assert torch.equal(images[:, 0, 5, 7], torch.tensor(numbers) / 255)
    assert labels.tolist() == [number % 10 for number in numbers]
    assert labels.dtype == torch.int64


def test_the_real_training_file_leaves_55000_images_for_training(root: Path) -> None:
    folder = write_mnist(root)
    write_idx(folder / TRAIN_IMAGES, np.zeros((60000, 28, 28), dtype=np.uint8))
    write_idx(folder / TRAIN_LABELS, np.zeros(60000, dtype=np.uint8))

    assert len(mnist("train")) == 55000
    assert len(mnist("validation")) == 5000


def test_the_files_are_those_that_torchvision_reads(root: Path) -> None:
    write_mnist(root)

    theirs = torchvision.datasets.MNIST(root, train=False)

    images, labels = mnist("test").tensors
    assert torch.equal((255 * images).byte().squeeze(1), theirs.data)
    assert torch.equal(labels, theirs.targets)


def test_without_the_variable_the_files_lie_in_the_data_folder_here(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(root / "data")
    monkeypatch.delenv("MNIST_ROOT")
    monkeypatch.chdir(root)

    assert len(mnist("test")) == NUM_TEST


def test_lenet_trains_on_mnist_and_augments_the_training_images_alone(root: Path) -> None:
    write_mnist(root)

    plain = lenet_mnist().build_dataset("train")
    augmented = lenet_mnist_affine().build_dataset("train")
    test = lenet_mnist_affine().build_dataset("test")

    assert plain is not None
    assert isinstance(augmented, AugmentedDataset)
    assert not isinstance(test, AugmentedDataset)
    assert lenet_mnist().build_model()(plain[0][0][None]).shape == (1, 10)
    assert augmented[0][0].shape == (1, 28, 28)


def test_absent_files_are_an_error_that_says_what_to_do(root: Path) -> None:
    folder = write_mnist(root)
    (folder / TRAIN_LABELS).unlink()
    (folder / TEST_IMAGES).unlink()

    with pytest.raises(WorkloadError) as raised:
        mnist("train")

    assert str(raised.value) == (
        f"MNIST is not on disk: {folder} (MNIST_ROOT) has no train-labels-idx1-ubyte, "
        "t10k-images-idx3-ubyte; set MNIST_ROOT to the folder that holds MNIST/raw, or set "
        "PERFSUITE_DOWNLOAD=1 to download it there, or use lenet-digits, which needs no download"
    )


def test_the_error_says_where_it_looked_by_default(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MNIST_ROOT")
    monkeypatch.chdir(root)

    with pytest.raises(WorkloadError) as raised:
        mnist("test")

    assert str(raised.value).startswith(
        f"MNIST is not on disk: {root / 'data' / 'MNIST' / 'raw'} (the default, data/) has no "
        "train-images-idx3-ubyte, train-labels-idx1-ubyte, "
    )


def test_nothing_is_downloaded_unless_the_user_asked_for_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFSUITE_DOWNLOAD", "0")
    monkeypatch.setattr(torchvision.datasets, "MNIST", lambda *_, **__: pytest.fail("downloaded"))

    with pytest.raises(WorkloadError, match="MNIST is not on disk"):
        mnist("train")


def test_the_download_is_torchvisions_and_goes_to_the_root(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Downloading(torchvision.datasets.MNIST):
        """Torchvision's, which finds what it downloads in the folder of its name."""

        def download(self) -> None:
            write_mnist(Path(self.root))

    Downloading.__name__ = "MNIST"
    monkeypatch.setenv("MNIST_ROOT", str(root / "new"))
    monkeypatch.setenv("PERFSUITE_DOWNLOAD", "1")
    monkeypatch.setattr(torchvision.datasets, "MNIST", Downloading)

    assert len(mnist("test")) == NUM_TEST
    assert (root / "new" / "MNIST" / "raw" / TEST_IMAGES).is_file()


def test_a_failed_download_is_an_error_with_its_reason(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, *, download: bool) -> None:
        raise RuntimeError("Error downloading train-images-idx3-ubyte.gz")

    monkeypatch.setenv("PERFSUITE_DOWNLOAD", "1")
    monkeypatch.setattr(torchvision.datasets, "MNIST", fail)

    with pytest.raises(WorkloadError) as raised:
        mnist("train")

    assert str(raised.value) == (
        f"MNIST could not be downloaded to {root} (PERFSUITE_DOWNLOAD=1): "
        "Error downloading train-images-idx3-ubyte.gz; "
        f"copy its four files to {root / 'MNIST' / 'raw'}, or use lenet-digits"
    )


def test_a_partial_file_is_an_error_with_both_lengths(root: Path) -> None:
    folder = write_mnist(root)
    path = folder / TRAIN_IMAGES
    path.write_bytes(path.read_bytes()[:1016])

    with pytest.raises(WorkloadError) as raised:
        mnist("train")

    reason = "RuntimeError: shape '[24, 28, 28]' is invalid for input of size 1000"
    assert str(raised.value) == unreadable(folder, reason)


@pytest.mark.parametrize("content", [b"", b"\0\0\x08", b"<html>not found</html>"])
@pytest.mark.parametrize("file", [TEST_IMAGES, TEST_LABELS])
def test_a_file_of_something_else_is_an_error(root: Path, file: str, content: bytes) -> None:
    (write_mnist(root) / file).write_bytes(content)

    with pytest.raises(WorkloadError, match=r"is damaged or partial \((Value|Assertion)Error: "):
        mnist("test")


def test_files_that_do_not_belong_together_are_an_error(root: Path) -> None:
    folder = write_mnist(root)
    write_idx(folder / TEST_LABELS, np.zeros(7))

    with pytest.raises(WorkloadError) as raised:
        mnist("test")

    assert str(raised.value) == unreadable(folder, "7 labels for images (10, 28, 28)")


def test_images_of_another_size_are_an_error(root: Path) -> None:
    folder = write_mnist(root)
    write_idx(folder / TEST_IMAGES, np.zeros((10, 32, 30)))

    with pytest.raises(WorkloadError) as raised:
        mnist("test")

    assert str(raised.value) == unreadable(folder, "10 labels for images (10, 32, 30)")


def test_a_label_that_is_no_digit_is_an_error(root: Path) -> None:
    folder = write_mnist(root)
    write_idx(folder / TEST_LABELS, np.full(10, 11))

    with pytest.raises(WorkloadError) as raised:
        mnist("test")

    assert str(raised.value) == unreadable(folder, "it has a label 11, and 9 is the last")


def test_a_file_that_cannot_be_read_is_an_error_with_the_reason(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_mnist(root)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(torchvision.datasets.MNIST, "_load_data", refuse)

    with pytest.raises(WorkloadError) as raised:
        mnist("test")

    reason = "PermissionError: [Errno 13] Permission denied"
    assert str(raised.value) == unreadable(folder, reason)
