"""Real repositories in temporary folders, out of reach of this machine's own configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_checkouts import commit, git


@pytest.fixture(autouse=True)
def _no_configuration_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "gitconfig").write_text(
        "[user]\nname = A\nemail = a@example.org\n[init]\ndefaultBranch = main\n"
        '[protocol "file"]\nallow = always\n'
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clean repository with one commit on main."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "--quiet")
    commit(folder)
    return folder
