"""Which dependencies a change declares otherwise, in every file that declares some."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_checkouts import commit, git

from perfsuite.gate.git.worktree import copy_same_files
from perfsuite.gate.provenance.dependencies import (
    ANY,
    changed_dependencies,
    find_changed_dependency,
)

ENTRY_POINTS = "entry points"


DEPENDENCIES = "dependencies:\n- "


def change(folder: Path, file: str, old: str | None, new: str | None) -> dict[str, frozenset[str]]:
    """What is changed where head's file has the new text instead of the old."""
    trees = folder / "base", folder / "head"
    for tree, text in zip(trees, (old, new), strict=True):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            (tree / file).write_text(text)
    return changed_dependencies(*trees)


@pytest.mark.parametrize(
    ("file", "old", "new", "names"),
    [
        (
            "requirements.txt",
            "# a\nTorch==2.1\nnumpy\n",
            "numpy # b\ntorch==2.2 \\\n --x\n",
            "torch",
        ),
        ("requirements/gpu.in", "a\nb\n", "b\n", "a"),
        ("requirements/gpu/base.txt", "a\nb\n", "b\n", "a"),
        ("requirements.lock", "a==1\n", "a==2\n", "a"),
        (
            "environment-gpu.yml",
            "name: x\ndependencies:\n  - pytorch=2.3\n  - conda-forge::numpy=1\n  - a=1\n",
            "name: y\ndependencies:\n  - pytorch=2.4\n  - conda-forge::numpy=2\n  - a=1\n",
            "name torch numpy",
        ),
        (
            "conda_cuda.yaml",
            f"{DEPENDENCIES}pytorch-cuda=12.1\n",
            f"{DEPENDENCIES}pytorch-cuda=12.4\n",
            "torch",
        ),
        (
            "conda.yml",
            f"{DEPENDENCIES}pytorch-lightning=2\n",
            f"{DEPENDENCIES}pytorch-lightning=3\n",
            "pytorch-lightning",
        ),
        (
            "docker/Dockerfile.gpu",
            'FROM a:1\nRUN pip install "numpy>=1.26" \\\n  torch[x]==2.10 a==1\n',
            "FROM a:1\nRUN pip install numpy>=2 torch[x]==2.11 a==1 # A=1\n",
            "numpy torch",
        ),
        ("dev-requirements.txt", "-r other.txt\n", "-r another.txt\n", ANY),
        (
            "pyproject.toml",
            '[project]\ndependencies = ["a>1"]\n[dependency-groups]\nx = ["b", {a = "y"}]\n',
            '[project]\ndependencies = ["a>2"]\n[project.optional-dependencies]\nx = ["b>1"]\n',
            "a b",
        ),
        (
            "pyproject.toml",
            '[tool.poetry.dependencies]\na = "^1"\n[tool.poetry.group.x.dependencies]\nb = "1"\n',
            '[tool.poetry.dependencies]\na = "^1"\n[tool.poetry.group.x.dependencies]\nb = "2"\n',
            "b",
        ),
        ("pyproject.toml", "[project", "[project]", ANY),
        # Files of another form: what such a file changes is not known.
        ("pyproject.toml", "project = 1", "project = 2", ANY),
        ("pyproject.toml", "[project]\ndependencies = 1", "[project]\ndependencies = 2", ANY),
        ("uv.lock", "[[package]]\nversion = '1'", "[[package]]\nversion = '2'", ANY),
        ("uv.lock", "package = 1", "package = 2", ANY),
        (
            "setup.cfg",
            "[options]\ninstall_requires =\n  a\n",
            "[options]\ninstall_requires =\n",
            "a",
        ),
        ("setup.py", 'setup(install_requires=["a>1"])', 'setup(install_requires=["a>2"])', "a"),
        ("setup.py", "setup(install_requires=read())", "setup(install_requires=load())", ANY),
        (
            "uv.lock",
            '[[package]]\nname = "a"\nversion = "1"\n[[package]]\nname = "b"\nversion = "1"\n',
            '[[package]]\nname = "b"\nversion = "2"\n[[package]]\nname = "a"\nversion = "1"\n',
            "b",
        ),
        (
            "pyproject.toml",
            '[project.entry-points.kernels]\nmul = "a:fast"\n[project.entry-points.x]\ny = "z"\n',
            '[project.entry-points.x]\ny = "z"\n[project.entry-points.kernels]\nmul = "a:slow"\n',
            ENTRY_POINTS,
        ),
        ("pyproject.toml", "", '[tool.poetry.plugins.kernels]\nmul = "a:slow"\n', ENTRY_POINTS),
        (
            "setup.cfg",
            "[options.entry_points]\nkernels =\n  mul = a:fast\n",
            "[options.entry_points]\nkernels =\n  mul = a:slow\n",
            ENTRY_POINTS,
        ),
        (
            "setup.py",
            "setup(entry_points={'kernels': ['mul = a:fast'], **more})",
            "setup(entry_points={'kernels': ['mul = a:slow'], **more})",
            ENTRY_POINTS,
        ),
        ("setup.py", "setup(entry_points=read())", "setup(entry_points=load())", ENTRY_POINTS),
        ("Pipfile", '[packages]\na = "*"\n', '[packages]\na = "==1"\n', ANY),
        (
            "environment.yml",
            f"{DEPENDENCIES}numpy=1\n- b\n",
            f"{DEPENDENCIES}numpy=2\n- b\n",
            "numpy",
        ),
        ("pixi.lock", "a: 1", "a: 2", ANY),
    ],
)
def test_a_changed_declaration_names_its_distributions(
    tmp_path: Path, file: str, old: str, new: str, names: str
) -> None:
    expected = {names} if names == ENTRY_POINTS else names.split()

    assert change(tmp_path, file, old, new) == {file: frozenset(expected)}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("pyproject.toml", "[tool.ruff]\nx = 1\n", "[tool.ruff]\nx = 2\n"),
        ("conf/environment_cartpole.yaml", "{gravity: 9.8}\n", "{gravity: 9.9}\n"),
        ("docs/requirements.txt", "sphinx==1\n", "sphinx==2\n"),
        ("requirements.txt", "a\nb\n", "# sorted\nb\na\n"),
        ("pyproject.toml", "[project.scripts]\na = 'b:c'\n", "[project.scripts]\na = 'b:d'\n"),
        (
            "setup.cfg",
            "[options.entry_points]\nconsole_scripts = a=b:c\n",
            "[options.entry_points]\nconsole_scripts = a=b:d\n",
        ),
        (
            "setup.py",
            "setup(entry_points={'console_scripts': ['a=b:c']})",
            "setup(entry_points={'console_scripts': ['a=b:d']})",
        ),
        ("setup.py", "setup(install_requires=['a'], x=1)", "setup(install_requires=['a'], x=2)"),
    ],
)
def test_what_declares_the_same_is_not_changed(
    tmp_path: Path, file: str, old: str, new: str
) -> None:
    assert change(tmp_path, file, old, new) == {}


def test_a_dependency_that_head_adds_is_said_and_reaches_no_base(tmp_path: Path) -> None:
    assert change(tmp_path, "requirements.txt", "a\n", "a\npytest\n") == {
        "requirements.txt": frozenset()
    }
    loaded = frozenset({pytest.__file__})

    assert find_changed_dependency(tmp_path / "base", tmp_path / "head", loaded) is None


def test_a_declaration_that_moved_to_another_file_as_it_was_is_not_changed(tmp_path: Path) -> None:
    for tree, listed in (("base", "a>1\n  b>1"), ("head", "")):
        (tmp_path / tree).mkdir()
        (tmp_path / tree / "setup.cfg").write_text(f"[options]\ninstall_requires =\n  {listed}\n")

    found = change(tmp_path, "pyproject.toml", "", '[project]\ndependencies = ["a>1", "b>2"]\n')

    assert found == {"pyproject.toml": frozenset(), "setup.cfg": frozenset({"b"})}


def test_a_declaration_that_changed_is_not_moved_by_a_file_that_has_the_old_one(
    tmp_path: Path,
) -> None:
    for tree, listed in (("base", "a==1"), ("head", "a==2")):
        (tmp_path / tree).mkdir()
        (tmp_path / tree / "requirements.txt").write_text(listed)

    found = change(tmp_path, "requirements-old.txt", None, "a==1\n")

    assert found["requirements.txt"] == {"a"}


def test_a_submodule_that_the_base_has_as_copied_files_declares_the_same(tmp_path: Path) -> None:
    for name in ("part", "head"):
        (tmp_path / name).mkdir()
        git(tmp_path / name, "init", "--quiet")
    commit(tmp_path / "part", "pyproject.toml", "[project.entry-points.x]\na = 'b:c'\n")
    git(
        tmp_path / "head",
        *("-c", "protocol.file.allow=always", "submodule", "--quiet", "add"),
        f"file://{tmp_path}/part",
        "part",
    )
    git(tmp_path / "head", "commit", "--quiet", "--message", "part")
    git(tmp_path / "head", "worktree", "add", "--quiet", "--detach", str(tmp_path / "base"))
    copy_same_files(tmp_path / "head", tmp_path / "base")

    assert (tmp_path / "base/part/pyproject.toml").is_file()
    assert changed_dependencies(tmp_path / "base", tmp_path / "head") == {}
