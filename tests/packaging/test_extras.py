"""What is said of a package that only an extra installs, and of a torch that is too old."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfsuite import errors
from perfsuite.errors import (
    MissingPackageError,
    SettingError,
    import_extra,
    missing_package,
    require_torch,
)
from perfsuite.system import urls

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What all has not: itself, and what works on perfsuite.
_NOT_OF_USERS = ("all", "dev", "docs")
EXTRAS = {
    *("torch", "workloads", "plots", "hf", "fp8", "gcs", "mlflow", "s3", "tensorboard", "wandb"),
    *_NOT_OF_USERS,
}


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    require_torch.cache_clear()
    yield
    require_torch.cache_clear()


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!]", one)[0] for one in requirements}


def test_the_core_is_what_gates_a_plain_suite_and_no_more() -> None:
    core = names_of(PROJECT["dependencies"])

    assert not core & {"torch", "torchvision", "scikit-learn", "matplotlib", "fsspec"}
    assert {"numpy", "scipy", "pytest", "pytest-benchmark"} <= core


def test_every_extra_that_a_message_names_is_there_and_all_has_them_all() -> None:
    extras = PROJECT["optional-dependencies"]
    asked = re.compile(r"""(?:import_extra|missing_package)\(\s*["'][\w.-]+["'],\s*["'](\w+)["']""")
    texts = [path.read_text() for path in (ROOT / "perfsuite").rglob("*.py")]
    named = {extra for text in texts for extra in asked.findall(text)}
    named |= {*urls._EXTRAS.values()}

    assert set(extras) == EXTRAS
    assert named == EXTRAS - {*_NOT_OF_USERS, "hf"}
    (everything,) = extras["all"]
    assert everything == f"perfsuite[{','.join(sorted(EXTRAS - {*_NOT_OF_USERS}))}]"


def test_torch_has_its_bounds_in_its_extra_alone() -> None:
    oldest = ".".join(map(str, errors.OLDEST_TORCH))

    assert PROJECT["optional-dependencies"]["torch"] == [f"torch>={oldest},!=2.13.0"]
    others = {
        name: requirements
        for name, requirements in PROJECT["optional-dependencies"].items()
        if "torch" in names_of(requirements)
    }
    assert set(others) == {"torch"}


def test_a_package_that_is_not_there_is_named_with_its_extra() -> None:
    with pytest.raises(MissingPackageError) as missing:
        import_extra("no_such_package.module", "tensorboard")

    assert str(missing.value) == (
        "no_such_package is not installed: pip install 'perfsuite[tensorboard]'"
    )
    assert isinstance(missing.value, SettingError)


def test_what_fits_one_torch_alone_is_asked_for_with_the_torch_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(errors, "installed_version", {"torch": "2.12.1+cpu"}.get)

    assert missing_package("torchvision", "workloads") == (
        "torchvision is not installed: pip install 'perfsuite[workloads]' torch==2.12.1+cpu"
    )
    assert missing_package("matplotlib", "plots") == (
        "matplotlib is not installed: pip install 'perfsuite[plots]'"
    )
    monkeypatch.setattr(errors, "installed_version", {}.get)
    assert missing_package("torchvision", "workloads") == (
        "torchvision is not installed: pip install 'perfsuite[workloads]'"
    )


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0a0+git1f3b", "2.15.1+cu132", "10.0", None])
def test_a_torch_that_is_new_enough_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    monkeypatch.setattr(errors, "installed_version", lambda _: version)

    require_torch()


@pytest.mark.parametrize("version", ["2.10.1+cu128", "2.9.0", "1.13.1"])
def test_a_torch_that_is_too_old_is_told_so_and_stays(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(errors, "installed_version", lambda _: version)

    with pytest.raises(SettingError) as refused:
        require_torch()

    assert not isinstance(refused.value, MissingPackageError)
    assert str(refused.value) == (
        f"torch {version} is too old: install 2.11 or newer; perfsuite replaces no torch"
    )


def test_torch_is_looked_for_without_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(MissingPackageError) as missing:
        require_torch()

    assert str(missing.value) == "torch is not installed: pip install 'perfsuite[torch]'"


def test_the_version_of_a_package_is_none_where_it_is_not_installed() -> None:
    assert errors.installed_version("no-such-package") is None
    assert errors.installed_version("pytest") == importlib.metadata.version("pytest")
