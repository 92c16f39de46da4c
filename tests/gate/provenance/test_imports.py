"""Whether each arm imported its own code, from trees on the disk and what launches report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfsuite.gate.arms.arm import Arm, Launch
from perfsuite.gate.arms.loaded import Loaded
from perfsuite.gate.provenance.imports import find_wrong_import

PLACES = {
    "pkg": "pkg/__init__.py",
    "other": "src/other/__init__.py",
    "alone": "alone.py",
    "lone": "src/lone.py",
}


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


def add(folder: Path, path: str, text: str = "") -> None:
    """Put a file into both trees."""
    for tree in ("base", "head"):
        (folder / tree / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / tree / path).write_text(text)


def install(folder: Path, distribution: str, path: str, text: str = "") -> str:
    """Put a file into site-packages, as pip does for a distribution; return where it is."""
    record = folder / "site-packages" / f"{distribution}-1.dist-info"
    for file, content in {
        record / "METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n",
        record / "RECORD": f"{path},,\n",
        folder / "site-packages" / path: text,
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return f"site-packages/{path}"


def compare(
    folder: Path,
    base: dict[str, str],
    head: dict[str, str],
    *,
    trees: tuple[str, str] = ("base", "head"),
    python: str = sys.executable,
) -> str | None:
    """What is wrong with modules that were imported from files relative to the folder."""
    launches = []
    for name, tree, modules in zip(("base", "head"), trees, (base, head), strict=True):
        arm = Arm(
            name=name, tree=folder / tree, import_roots=(), pytest_arguments=(), python=python
        )
        files = {module: str(folder / file) for module, file in modules.items()}
        loaded = Loaded(files=frozenset(files.values()))
        launches.append(Launch(arm=arm, modules=files, loaded=loaded))
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
        f"both arms imported {name} from {folder}/venv/site-packages/{name}.py, although the tree "
        f"has {PLACES[name]}; name {PLACES[name].split(name)[0].rstrip('/') or '.'!r} in pytest's "
        "pythonpath, uninstall that copy, or give the arms interpreters of their own "
        "(--base-python)"
    )


@pytest.mark.parametrize("name", ["inner", "tests", "benchmarks", "setup", "conftest", "numpy"])
def test_what_is_no_code_of_the_tree_may_be_shared(folder: Path, name: str) -> None:
    shared = {name: f"elsewhere/{name}/__init__.py"}

    assert compare(folder, shared, shared) is None


def test_a_module_with_the_name_of_one_of_pythons_own_may_be_shared(folder: Path) -> None:
    add(folder, "json/__init__.py")
    shared = {"json": "python/json/__init__.py"}

    assert compare(folder, shared, shared) is None


def test_what_is_installed_inside_of_a_tree_is_not_under_test(folder: Path) -> None:
    shared = {"numpy": "head/.venv/lib/python3.11/site-packages/numpy/__init__.py"}

    assert compare(folder, shared, shared) is None


def test_a_package_that_only_one_arm_imported_is_fine(folder: Path) -> None:
    assert compare(folder, {}, {"pkg": "head/pkg/__init__.py"}) is None


def test_a_base_tree_inside_of_heads_is_distinguished_from_it(folder: Path) -> None:
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
    add(folder, "packages/foo/lib/deep/__init__.py")
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


# --- installed copies that are found by their names and records ---


@pytest.mark.parametrize(
    ("name", "path", "import_root"),
    [
        ("calc", "lib/calc.py", "lib"),
        ("fast", "lib/fast.pyx", "lib"),
        ("acme.core", "python/acme/core/__init__.py", "python"),
        ("acme.deep.one", "acme/deep/one.py", "."),
    ],
)
def test_a_module_in_any_folder_of_the_tree_is_part_of_it(
    folder: Path, name: str, path: str, import_root: str
) -> None:
    add(folder, path)
    installed = f"site-packages/{Path(path).relative_to(import_root)}"

    wrong = compare(folder, {name: installed}, {name: installed})

    assert wrong == (
        f"both arms imported {name} from {folder}/{installed}, although the tree has {path}; name "
        f"{import_root!r} in pytest's pythonpath, uninstall that copy, or give the arms "
        "interpreters of their own (--base-python)"
    )


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject.toml", '[project]\nname = "My_Shop"\n'),
        ("setup.cfg", "[metadata]\nname = my-shop\n"),
        ("packages/one/setup.py", "from setuptools import setup\nsetup(name='my.shop')\n"),
    ],
)
def test_an_installed_project_of_the_tree_is_known_by_its_name(
    folder: Path, file: str, text: str
) -> None:
    add(folder, file, text)
    add(folder, "lib/calc.py", "new = 1")
    calc = install(folder, "my-shop", "calc.py", "stale = 1")

    wrong = compare(folder, {"calc": calc}, {"calc": calc})

    assert wrong is not None
    assert wrong.startswith(f"both arms imported calc from {folder}/{calc}, although ")


def test_another_project_may_have_a_module_that_is_called_as_one_of_the_tree(folder: Path) -> None:
    add(folder, "pyproject.toml", '[project]\nname = "shop"\n')
    add(folder, "experiments/datasets/__init__.py")
    add(folder, "third_party/six.py", "the same")
    shared = {
        "datasets": install(folder, "datasets", "datasets/__init__.py"),
        "six": install(folder, "six", "six.py", "the same"),
    }

    assert compare(folder, shared, shared) is None


def test_a_package_of_a_linux_distribution_has_no_list_of_files(folder: Path) -> None:
    add(folder, "pyproject.toml", '[project]\nname = "shop"\n')
    add(folder, "ci/yaml.py")
    record = folder / "dist-packages" / "PyYAML-6.egg-info"
    record.mkdir(parents=True)
    (record / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: PyYAML\nVersion: 6\n")
    (record / "top_level.txt").write_text("_yaml\nyaml\n")
    shared = {"yaml": "dist-packages/yaml/__init__.py"}

    assert compare(folder, shared, shared) is None


@pytest.mark.parametrize(
    ("text", "is_wrong"), [("price = 1\r\n", True), ("price = 2\n", False)], ids=["same", "other"]
)
def test_where_no_project_says_its_name_equal_contents_decide(
    folder: Path, text: str, is_wrong: bool
) -> None:
    add(folder, "setup.py", "setup(**options)")
    add(folder, "lib/calc.py", "price = 1\n")
    calc = install(folder, "calc", "calc.py")
    (folder / calc).write_bytes(text.encode())

    wrong = compare(folder, {"calc": calc}, {"calc": calc})

    assert (wrong is not None) == is_wrong


@pytest.mark.parametrize("vendored", ["pkg/_vendor/six.py", "pkg/six.py"])
def test_a_copy_inside_of_a_package_is_known_by_another_name(folder: Path, vendored: str) -> None:
    add(folder, "pkg/_vendor/__init__.py")
    add(folder, vendored)
    shared = {"six": "site-packages/six.py"}

    assert compare(folder, shared, shared) is None


def test_a_module_that_only_head_has_may_be_installed_for_both(folder: Path) -> None:
    submodule = folder / "head" / "third_party" / "flash"
    submodule.mkdir(parents=True)
    (submodule / "__init__.py").touch()
    shared = {"flash": "site-packages/flash/__init__.py"}

    assert compare(folder, shared, shared) is None


# --- code beside a root that is one folder of the checkout ---


@pytest.mark.parametrize(("changed", "is_wrong"), [("x = 2", True), ("x = 1", False)])
def test_changed_code_beside_the_root_must_be_each_arms_own(
    folder: Path, changed: str, is_wrong: bool
) -> None:
    for tree in ("base", "head"):
        subprocess.run(["git", "init", "--quiet", str(folder / tree)], check=True)
        (folder / tree / "perf").mkdir()
    add(folder, "shop/__init__.py", "x = 1")
    (folder / "head/shop/__init__.py").write_text(changed)
    modules = {"shop": "head/shop/__init__.py"}

    found = compare(folder, modules, modules, trees=("base/perf", "head/perf"))

    assert found == (
        f"the base arm imported shop from {folder}/head/shop/__init__.py, which is head's and "
        "another than its own; is it installed in editable mode? Name its folder in pytest's "
        "pythonpath"
        if is_wrong
        else None
    )


def test_an_interpreter_in_the_checkout_is_not_under_test(folder: Path) -> None:
    library = folder / "head/env/lib/json.py"
    library.parent.mkdir(parents=True)
    library.touch()
    modules = {"json": "head/env/lib/json.py"}
    python = str(folder / "head/env/bin/python")

    assert compare(folder, modules, modules, python=python) is None
