"""What git ignores in a checkout, which only that checkout has."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_checkouts import git

from perfsuite.gate.provenance import head_files
from perfsuite.gate.provenance.head_files import kept_files


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository that ignores caches and checkpoints, and has some."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("cache\nvenv\n*.pt\nlink\n")
    for file in ("cache/a/x", "cache/y", "pkg/last.pt", "pkg/code.py", "venv/pyvenv.cfg"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "link").symlink_to("/usr")
    for file in ("new.txt", "pytest.ini", "pkg/pyproject.toml"):
        (tmp_path / file).touch()
    git(tmp_path, "add", ".gitignore")
    return tmp_path.resolve()


def test_what_git_does_not_know_is_kept_but_for_environments_new_code_and_settings(
    checkout: Path,
) -> None:
    expected = {
        checkout / name for name in ("cache/a/x", "cache/y", "pkg/last.pt", "link", "new.txt")
    }

    assert kept_files(checkout / "pkg") == expected


def test_a_folder_of_many_files_stands_for_them_all(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_files, "_MOST_FILES", 2)

    assert kept_files(checkout) == {
        checkout / name for name in ("cache", "pkg/last.pt", "link", "new.txt")
    }


def test_outside_of_git_nothing_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "last.pt").touch()

    assert kept_files(tmp_path) == frozenset()
