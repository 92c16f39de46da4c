"""Workloads by object, name and import reference, and what breaks the contract."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from perfsuite import Workload, WorkloadError, workload
from perfsuite.records import workload as workload_module
from perfsuite.records.workload import (
    find_workload,
    load_workload,
    no_dataset,
    workload_names,
)


def build(**changed: Any) -> Workload:
    """A valid workload; no test calls its functions."""
    fields: dict[str, Any] = {
        "name": "mine",
        "build_model": lambda: None,
        "build_dataset": lambda split: None,
        "loss": lambda outputs, targets: None,
        "build_optimizer": lambda parameters: None,
    }
    return Workload(**fields | changed)


@pytest.fixture(autouse=True)
def no_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_module, "_REGISTERED", {})


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module that can be imported until the end of the test."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": ""}, "Workload name is ''; use a non-empty string"),
        ({"name": None}, "Workload name is None; use a non-empty string"),
        ({"build_model": 1}, "workload 'mine': build_model is 1; use a callable"),
        ({"build_dataset": None}, "workload 'mine': build_dataset is None; use a callable"),
        ({"loss": "mse"}, "workload 'mine': loss is 'mse'; use a callable"),
        ({"build_optimizer": []}, "workload 'mine': build_optimizer is []; use a callable"),
        (
            {"blocks": ["layers"]},
            "workload 'mine': blocks is ['layers']; "
            "use None or a function from the model to a list of its modules",
        ),
        (
            {"micro_batch_size": 0},
            "workload 'mine': micro_batch_size is 0; use a whole number from 1",
        ),
        (
            {"micro_batch_size": True},
            "workload 'mine': micro_batch_size is True; use a whole number from 1",
        ),
        (
            {"build_loader": [(1, 2)]},
            "workload 'mine': build_loader is [(1, 2)]; "
            "use None or a function of (split, shard_index, num_shards)",
        ),
        (
            {"build_loader": lambda *_: []},
            "workload 'mine' has build_dataset and build_loader; use one of them",
        ),
        (
            {"build_dataset": no_dataset},
            "workload 'mine' has neither build_dataset nor build_loader; use one of them",
        ),
        (
            {"metric": "f1"},
            "workload 'mine': metric is 'f1'; "
            "use 'accuracy', 'none' or a function of (outputs, targets)",
        ),
        (
            {"parallelize": "fsdp"},
            "workload 'mine': parallelize is 'fsdp'; "
            "use None or a function from (model, mesh) to the model",
        ),
    ],
)
def test_a_workload_that_breaks_the_contract_is_refused(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(WorkloadError) as refused:
        build(**changed)

    assert str(refused.value) == message


def test_an_object_stays_itself() -> None:
    mine = build()

    assert find_workload(mine) is mine
    assert load_workload(mine) is mine


def test_a_registered_function_is_found_by_its_name_and_called_only_when_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perfsuite.records.workload._REGISTERED", {})
    calls = []

    @workload("registered")
    def make() -> Workload:
        calls.append("made")
        return build(name="registered")

    found = find_workload("registered")
    assert calls == []

    assert load_workload(found).name == "registered"
    assert "registered" in workload_names()


@pytest.mark.parametrize("name", ["", "a:b", None, "lenet-digits"])
def test_a_name_that_cannot_be_referred_to_is_not_registered(name: Any) -> None:
    with pytest.raises(WorkloadError) as refused:
        workload(name)

    assert str(refused.value) == (
        f"cannot register a workload as {name!r}; use a non-empty name without a colon that no "
        "built-in workload has"
    )


def test_a_built_in_name_becomes_a_reference_that_imports_nothing() -> None:
    assert find_workload("toy-mlp") == "perfsuite.worker.workloads.mlp:toy_mlp"


@pytest.mark.parametrize("name", workload_names())
def test_every_built_in_name_leads_to_a_workload_of_that_name(name: str) -> None:
    assert load_workload(find_workload(name)).name == name


@pytest.mark.parametrize("reference", ["toy", "", "no colon", "my-package:x", ":x", "x:", "a:b:c"])
def test_an_unknown_name_is_refused_with_all_names(reference: str) -> None:
    with pytest.raises(WorkloadError) as refused:
        find_workload(reference)

    assert str(refused.value) == (
        f"workload {reference!r} is not known; use one of lenet-digits, lenet-digits-affine, "
        "lenet-mnist, lenet-mnist-affine, resnet18, toy-mlp, transformer-tiny, "
        "transformer-tiny-lora, or 'package.module:attribute', or register it with "
        "@perfsuite.workload"
    )


def test_anything_but_a_name_or_a_workload_is_refused() -> None:
    with pytest.raises(WorkloadError) as refused:
        find_workload(3)  # type: ignore[arg-type]

    assert str(refused.value) == (
        "workload is 3; use a name, a perfsuite.Workload or 'module:attribute'"
    )


def test_a_reference_leads_to_an_object_or_a_function(module: Any) -> None:
    module(
        "my_workloads",
        "from perfsuite import Workload\n"
        "def make(name='made'):\n"
        "    return Workload(name=name, build_model=make, build_dataset=make, loss=make,\n"
        "                    build_optimizer=make)\n"
        "class Shelf:\n"
        "    ready = make('ready')\n",
    )

    assert load_workload(find_workload("my_workloads:make")).name == "made"
    assert load_workload(find_workload("my_workloads:Shelf.ready")).name == "ready"


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(WorkloadError) as refused:
        load_workload("my_package.missing:make")

    assert str(refused.value) == (
        "workload 'my_package.missing:make': there is no module 'my_package' in the current "
        "directory, pytest's rootdir or the installed packages"
    )


def test_the_path_of_a_file_is_answered_with_the_name_of_its_module(module: Any) -> None:
    module("my_workloads", "make = None")

    with pytest.raises(WorkloadError, match=r"; name the module: my_workloads:make$"):
        load_workload("my_workloads.py:make")
    with pytest.raises(WorkloadError, match=r"; name the module: mine\.of_work:make$"):
        load_workload("mine/of_work.py:make")


def test_a_module_that_the_users_module_lacks_is_the_users_error(module: Any) -> None:
    module("needs_more", "import not_installed_anywhere")

    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load_workload("needs_more:make")


def test_an_attribute_that_is_not_there_is_named(module: Any) -> None:
    module("has_little", "")

    with pytest.raises(WorkloadError) as refused:
        load_workload("has_little:make.it")

    assert str(refused.value) == "workload 'has_little:make.it': 'has_little' has no 'make.it'"


def test_what_a_reference_leads_to_must_be_a_workload(module: Any) -> None:
    module("has_a_number", "number = 3\ndef make():\n    return {}\n")

    messages = []
    for reference in ("has_a_number:number", "has_a_number:make"):
        with pytest.raises(WorkloadError) as refused:
            load_workload(reference)
        messages.append(str(refused.value))

    expected = "not a perfsuite.Workload or a function without arguments that returns one"
    assert messages == [
        f"'has_a_number:number' is of the type int, {expected}",
        f"'has_a_number:make' is of the type dict, {expected}",
    ]


def test_a_registered_function_that_returns_no_workload_is_named() -> None:
    @workload("nothing")
    def make_nothing() -> Workload:
        return None  # type: ignore[return-value]

    with pytest.raises(WorkloadError) as refused:
        load_workload(find_workload("nothing"))

    assert str(refused.value) == (
        "test_a_registered_function_that_returns_no_workload_is_named.<locals>.make_nothing is of "
        "the type NoneType, not a perfsuite.Workload or a function without arguments that returns "
        "one"
    )
