"""Whether each arm imported its own code, from trees on the disk and what launches told."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsuite.gate.arms import Arm, Launch
from perfsuite.gate.imports import find_wrong_import


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two trees, each with a package, one in src, a module, tests and benchmarks."""
    folder = tmp_path.resolve()
    for tree in ("base", "head"):
        for package in ("pkg", "pkg/inner", "src/other", "tests", "benchmarks"):
            (folder / tree / package).mkdir(parents=True)
            (folder / tree / package / "__init__.py").touch()
        for module in ("alone.py", "setup.py", "src/lone.py"):
            (folder / tree / module).touch()
    return folder


def compare(
    folder: Path,
    base: dict[str, str],
    head: dict[str, str],
    *,
    trees: tuple[str, str] = ("base", "head"),
) -> str | None:
    """What is wrong with modules that were imported from files relative to the folder."""
    launches = []
    for name, tree, modules in zip(("base", "head"), trees, (base, head), strict=True):
        arm = Arm(name=name, tree=folder / tree, import_roots=(), pytest_arguments=())
        files = {module: str(folder / file) for module, file in modules.items()}
        launches.append(Launch(arm=arm, modules=files))
    return find_wrong_import(*launches)


def test_two_trees_that_imported_their_own_code_are_fine(folder: Path) -> None:
    base, head = (
        {
            "pkg": f"{tree}/pkg/__init__.py",
            "other": f"{tree}/src/other/__init__.py",
            "alone": f"{tree}/alone.py",
            "numpy": "elsewhere/site-packages/numpy/__init__.py",
        }
        for tree in ("base", "head")
    )

    assert compare(folder, base, head) is None


@pytest.mark.parametrize("importer", ["base", "head"])
def test_an_arm_that_imported_the_others_file_is_named(folder: Path, importer: str) -> None:
    other = {"base": "head", "head": "base"}[importer]
    modules = {
        importer: {"pkg": f"{other}/pkg/__init__.py"},
        other: {"pkg": f"{other}/pkg/__init__.py"},
    }

    assert compare(folder, modules["base"], modules["head"]) == (
        f"the {importer} arm imported pkg from {folder}/{other}/pkg/__init__.py, which is "
        f"{other}'s; is it installed in editable mode from another folder?"
    )


@pytest.mark.parametrize("name", ["pkg", "other", "alone", "lone"])
def test_the_same_file_of_a_package_of_the_tree_in_both_arms_is_wrong(
    folder: Path, name: str
) -> None:
    installed = {name: f"venv/site-packages/{name}.py"}

    assert compare(folder, installed, installed) == (
        f"both arms imported {name} from {folder}/venv/site-packages/{name}.py, although it is "
        "part of the tree; install it in editable mode, name its folder in pytest's pythonpath, "
        "or give the arms interpreters of their own (--base-python)"
    )


@pytest.mark.parametrize("name", ["inner", "tests", "benchmarks", "setup", "conftest", "numpy"])
def test_what_is_no_code_of_the_tree_may_be_shared(folder: Path, name: str) -> None:
    shared = {name: f"elsewhere/{name}/__init__.py"}

    assert compare(folder, shared, shared) is None


def test_a_module_with_the_name_of_one_of_pythons_own_may_be_shared(folder: Path) -> None:
    (folder / "head" / "json").mkdir()
    (folder / "head" / "json" / "__init__.py").touch()
    shared = {"json": "python/json/__init__.py"}

    assert compare(folder, shared, shared) is None


def test_what_is_installed_inside_of_a_tree_is_nobodys_code(folder: Path) -> None:
    shared = {"numpy": "head/.venv/lib/python3.11/site-packages/numpy/__init__.py"}

    assert compare(folder, shared, shared) is None


def test_a_package_that_only_one_arm_imported_is_fine(folder: Path) -> None:
    assert compare(folder, {}, {"pkg": "head/pkg/__init__.py"}) is None


def test_a_base_tree_inside_of_heads_is_told_from_it(folder: Path) -> None:
    (folder / "head" / "old" / "pkg").mkdir(parents=True)

    assert (
        compare(
            folder,
            {"pkg": "head/old/pkg/__init__.py"},
            {"pkg": "head/pkg/__init__.py"},
            trees=("head/old", "head"),
        )
        is None
    )
    assert "the base arm imported pkg" in str(
        compare(
            folder,
            {"pkg": "head/pkg/__init__.py"},
            {"pkg": "head/pkg/__init__.py"},
            trees=("head/old", "head"),
        )
    )


def test_arms_of_one_tree_may_import_the_same(folder: Path) -> None:
    same = {"pkg": "head/pkg/__init__.py"}

    assert compare(folder, same, same, trees=("head", "head")) is None


def test_a_tree_is_known_through_symbolic_links(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "head")
    base = {"pkg": "head/pkg/__init__.py"}
    head = {"pkg": "head/pkg/__init__.py"}

    assert "which is head's" in str(compare(folder, base, head, trees=("base", "link")))


def test_a_package_deep_in_the_tree_is_part_of_it(folder: Path) -> None:
    for tree in ("base", "head"):
        package = folder / tree / "packages" / "foo" / "lib" / "deep"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    modules = {"deep": "elsewhere/site-packages/deep/__init__.py"}

    wrong = compare(folder, modules, modules)

    assert wrong is not None
    assert wrong.startswith(f"both arms imported deep from {folder}/elsewhere/")


def test_a_module_of_a_package_that_is_split_over_folders_must_not_be_the_others(
    folder: Path,
) -> None:
    split = {"ns": "elsewhere/ns"}

    wrong = compare(
        folder,
        split | {"ns.core": "head/packages/ns/core.py"},
        split | {"ns.core": "head/packages/ns/core.py"},
    )

    assert wrong is not None
    assert wrong.startswith(
        f"the base arm imported ns.core from {folder}/head/packages/ns/core.py, which is head's"
    )
