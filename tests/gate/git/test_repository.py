"""What git is asked, of real repositories in temporary folders."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from git_checkouts import clone, commit, git, head_of

from perfsuite.errors import WriteError
from perfsuite.gate.git.changes import is_dirty
from perfsuite.gate.git.find_base import find_base
from perfsuite.gate.git.repository import (
    Base,
    add_worktree,
    find_top,
    is_ignored,
    is_in_history,
    submodules,
    working_files,
    worktree_records,
)

# --- how git is run ---


def test_the_environment_of_a_hook_does_not_mislead(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    git(tmp_path / "other", "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))

    assert find_top(repository) == repository.resolve()
    assert not is_dirty(repository)


def test_asking_writes_nothing_to_the_repository(repository: Path) -> None:
    index = repository / ".git" / "index"
    (repository / "code.py").touch()  # git status would note the new time in the index
    before = hashlib.sha256(index.read_bytes()).hexdigest(), index.stat().st_mtime_ns

    find_base(repository, None)
    is_dirty(repository)
    working_files(repository)

    assert (hashlib.sha256(index.read_bytes()).hexdigest(), index.stat().st_mtime_ns) == before


# --- files ---


def test_the_files_of_a_folder_are_those_tracked_and_those_that_git_would_add(
    repository: Path,
) -> None:
    bench = repository / "bench"
    bench.mkdir()
    for name in ("kept.py", "deleted.py", "a b é.py"):
        commit(repository, f"bench/{name}")
    commit(repository, ".gitignore", "*.log\n")
    (bench / "deleted.py").unlink()
    (bench / "new.py").touch()
    (bench / "noise.log").touch()
    (bench / "latin-\udce9.py").touch()
    (bench / "link").symlink_to("nowhere")

    files = working_files(bench)

    assert sorted(map(str, files)) == ["a b é.py", "kept.py", "latin-\udce9.py", "link", "new.py"]


def test_the_files_of_submodules_and_nested_checkouts_are_included(
    repository: Path, tmp_path: Path
) -> None:
    part = clone(repository)
    git(repository, "submodule", "--quiet", "add", str(part), "part")
    git(repository, "commit", "--quiet", "--message", "part")
    (repository / "part" / "new.py").touch()
    (repository / "nested").mkdir()
    git(repository / "nested", "init", "--quiet")
    (repository / "nested" / "inner.py").touch()

    files = working_files(repository)

    assert sorted(map(str, files)) == [
        ".gitmodules",
        "code.py",
        "nested/inner.py",
        "part/code.py",
        "part/new.py",
    ]
    assert [*submodules(repository)] == [Path("part")]


def test_a_submodule_that_was_not_fetched_has_no_files(repository: Path) -> None:
    (repository / "part").mkdir()
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{head_of(repository)},part")

    assert working_files(repository) == [Path("code.py")]
    assert working_files(repository / "part") == []
    assert [*submodules(repository)] == [Path("part")]


def test_a_submodule_that_was_copied_without_its_git_has_the_files_that_are_there(
    repository: Path,
) -> None:
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{head_of(repository)},part")
    (repository / "part" / "inner").mkdir(parents=True)
    (repository / "part" / "inner" / "a.py").touch()
    (repository / "part" / "link").symlink_to("inner")

    files = working_files(repository)

    assert sorted(map(str, files)) == ["code.py", "part/inner/a.py", "part/link"]


# --- worktrees ---


def test_the_records_of_a_linked_worktree_are_its_repositorys(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "worktree", "add", "--quiet", str(tmp_path / "linked"))

    assert worktree_records(tmp_path / "linked") == repository.resolve() / ".git" / "worktrees"
    assert worktree_records(tmp_path) is None


def test_a_commit_that_cannot_be_checked_out_is_told_with_gits_reason(
    repository: Path, tmp_path: Path
) -> None:
    base = Base(revision="f" * 40, described="main, fffffff")
    (tmp_path / "tree").mkdir()

    with pytest.raises(WriteError) as failure:
        add_worktree(repository, base, tmp_path / "tree")

    assert re.fullmatch(
        rf"cannot check out the base, fffffff, in {tmp_path}/tree \(\S+ \w+ free there\): "
        rf"invalid reference: {'f' * 40}",
        str(failure.value),
    )


def test_a_commit_belongs_to_the_history_of_itself_and_of_its_descendants(
    repository: Path,
) -> None:
    first = head_of(repository)
    second = commit(repository, "second.py")

    assert is_in_history(repository, first, second)
    assert is_in_history(repository, first[:10], second)
    assert is_in_history(repository, second, second)
    assert not is_in_history(repository, second, first)
    assert not is_in_history(repository, "0" * 40, second)


def test_where_git_is_not_installed_it_ignores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert not is_ignored(tmp_path, Path("cache"))
