"""A tree's name: equal for equal code, committed or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_checkouts import git

from perfsuite.gate.git.changes import digest_tree


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clean checkout with a module, a file of data and a page."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    (tmp_path / "gitconfig").write_text("[user]\nname = A\nemail = a@example.org\n")
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    for name in ("code.py", "data.csv", "README.md", "sub/more.py"):
        (folder / name).write_text(name)
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    commit_staged(folder)


def commit_staged(folder: Path) -> None:
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "a change")


@pytest.mark.parametrize("name", ["code.py", "data.csv", "sub/more.py"])
def test_a_change_gives_another_name_which_its_commit_keeps(tree: Path, name: str) -> None:
    before = digest_tree(tree)
    (tree / name).write_text("changed")

    changed = digest_tree(tree)
    commit(tree)

    assert before != changed == digest_tree(tree)
    assert digest_tree(tree / "sub") == changed


def test_an_unknown_module_beside_pytests_root_counts(tree: Path) -> None:
    before = digest_tree(tree / "sub")

    (tree / "beside.py").write_text("new")
    new = digest_tree(tree / "sub")
    (tree / "beside.py").write_text("mended")

    assert len({before, new, digest_tree(tree / "sub")}) == 3


def test_a_removed_and_a_new_module_count_and_their_commit_does_not(tree: Path) -> None:
    names = [digest_tree(tree)]
    (tree / "code.py").unlink()
    names.append(digest_tree(tree))
    (tree / "new.py").write_text("new")
    names.append(digest_tree(tree))
    assert len(set(names)) == 3

    commit(tree)

    assert digest_tree(tree) == names[-1]


def test_pages_outputs_and_what_a_session_leaves_do_not_count(tree: Path) -> None:
    before = digest_tree(tree)
    (tree / "README.md").write_text("changed")
    stored = "baselines/Linux-CPython-3.11-64bit/0001_a.json"
    for name in ("results/pairs.json", stored, "__pycache__/x.py", "out.py"):
        (tree / name).parent.mkdir(exist_ok=True, parents=True)
        (tree / name).write_text("{}")

    assert digest_tree(tree, outputs=[tree / "out.py"]) == before
    assert digest_tree(tree) != before
    (tree / "out.py").unlink()
    git(tree, "add", "README.md", "baselines")
    commit_staged(tree)
    assert digest_tree(tree) == before


@pytest.mark.parametrize("folder", ["baselines", "results", ".benchmarks"])
def test_code_in_a_folder_that_sessions_write_to_counts(tree: Path, folder: str) -> None:
    before = digest_tree(tree)
    (tree / folder / "configs").mkdir(parents=True)
    (tree / folder / "settings.py").write_text("N = 400")

    assert (digest_tree(tree) == before) == folder.startswith(".")

    (tree / folder / "settings.py").unlink()
    (tree / folder / "configs" / "1024_hidden.json").write_text('{"n": 400}')
    git(tree, "add", folder)
    commit_staged(tree)
    assert digest_tree(tree) != before


def test_a_submodule_that_is_not_as_it_was_committed_leaves_no_name(tree: Path) -> None:
    part = tree / "part"
    part.mkdir()
    (part / "code.py").write_text("X = 1")
    git(part, "init", "--quiet")
    commit(part)
    commit(tree)
    assert digest_tree(tree) is not None

    (part / "code.py").write_text("X = 2")

    assert digest_tree(tree) is None


def test_without_a_commit_there_is_no_name(tmp_path: Path) -> None:
    assert digest_tree(tmp_path) is None
    git(tmp_path, "init", "--quiet")
    assert digest_tree(tmp_path) is None
