"""Branches and revisions with names that a shell or git itself would obey."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_checkouts import git

from perfsuite.errors import PerfsuiteError, SettingError
from perfsuite.gate.git.find_base import describe_head, find_base
from perfsuite.gate.git.repository import Base, changed_files, is_in_history

# What git takes for the name of a branch, and an option or a command for the same.
OPTIONS = ("-h", "--help", "--upload-pack=touch${IFS}owned", "--output=owned")
COMMANDS = (
    "$(touch${IFS}owned)",
    "`touch${IFS}owned`",
    ";touch${IFS}owned;",
    "|tee${IFS}owned",
)
NAMES = (*OPTIONS, *COMMANDS)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "the first")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "the second")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_a_branch_of_a_hostile_name_is_a_branch(repository: Path, name: str) -> None:
    first = git(repository, "rev-parse", "HEAD^")
    git(repository, "update-ref", f"refs/heads/{name}", first)

    found = find_base(repository, f"refs/heads/{name}")

    assert found == Base(revision=first, described=f"refs/heads/{name}, {first[:7]}")
    assert names_in(repository) == {".git"}


@pytest.mark.parametrize("name", OPTIONS)
def test_what_begins_as_an_option_is_no_revision_even_where_it_is_a_branch(
    repository: Path, name: str
) -> None:
    git(repository, "update-ref", f"refs/heads/{name}", "HEAD")

    with pytest.raises(SettingError) as refused:
        find_base(repository, name)

    assert str(refused.value) == (
        f"the revision {name!r} begins with '-', as options do; name the commit by its digits, or "
        f"a branch of that name as 'refs/heads/{name}'"
    )
    assert names_in(repository) == {".git"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_hostile_name_that_is_no_branch_is_refused(repository: Path, name: str) -> None:
    with pytest.raises(SettingError) as refused:
        find_base(repository, name)

    assert str(refused.value).startswith(f"the base {name!r} is no commit of the repository ")
    assert names_in(repository) == {".git"}


@pytest.mark.parametrize("name", NAMES)
def test_a_head_on_a_branch_of_a_hostile_name_is_described(repository: Path, name: str) -> None:
    git(repository, "update-ref", f"refs/heads/{name}", "HEAD")
    git(repository, "symbolic-ref", "HEAD", f"refs/heads/{name}")

    assert describe_head(repository).startswith(f"{name} at ")
    assert isinstance(find_base(repository, None), Base)
    assert names_in(repository) == {".git"}


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_commit_is_in_no_history_and_changes_nothing(repository: Path, name: str) -> None:
    assert not is_in_history(repository, name, "HEAD")
    with pytest.raises(PerfsuiteError, match="'git diff' failed"):
        changed_files(repository, name, "HEAD")
    assert names_in(repository) == {".git"}
