"""Commits in the order in which they were made."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from perfsuite.errors import PerfsuiteError
from perfsuite.gate.git.repository import count_commits, read_log, subject_of

STREAM = """\
commit refs/heads/main
mark :1
committer A <a@example.org> 1000000000 +0000
data 5
first
commit refs/heads/side
mark :2
committer A <a@example.org> 1100000000 +0000
data 4
side
from :1
commit refs/heads/main
mark :3
committer A <a@example.org> 1050000000 +0000
data 18
\x1b[31mred\x07 and\nmore
from :1
commit refs/heads/main
mark :4
committer A <a@example.org> 1040000000 +0000
data 5
merge
from :3
merge :2
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A side branch that was merged, by a clock that went backwards."""
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", tmp_path], check=True)
    import_stream = ["git", "-C", tmp_path, "fast-import", "--quiet"]
    subprocess.run(import_stream, input=STREAM.encode(), check=True)
    return tmp_path


def run_git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", root, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_parents_come_before_their_children_whatever_the_clock_said(repository: Path) -> None:
    log = read_log(repository, "main")

    subjects = [subject_of(repository, commit) for commit in log]
    assert (subjects[0], subjects[-1]) == ("first", "merge")
    assert len(subjects) == 4
    assert next(iter(log.values())) == datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)


def commit_at(root: Path, when: str, parents: list[str]) -> str:
    """Return a commit that says it was made then, whatever that is."""
    tree = run_git(root, "rev-parse", "main^{tree}")
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
    lines += [f"author A <a@example.org> {when}", f"committer A <a@example.org> {when}", "", "odd"]
    written = subprocess.run(
        ["git", "-C", root, "hash-object", "-t", "commit", "-w", "--literally", "--stdin"],
        input="\n".join(lines),
        check=True,
        capture_output=True,
        text=True,
    )
    return written.stdout.strip()


ODD = ("999999999999 +0000", "99999999999999999999 +0000", "abc", "-62135596801 +0000", "")


@pytest.mark.parametrize("when", ODD)
def test_a_commit_of_an_odd_time_counts_as_made_with_the_one_before(
    repository: Path, when: str
) -> None:
    newest = commit_at(repository, when, [run_git(repository, "rev-parse", "main")])

    log = read_log(repository, newest)

    assert list(log)[-1] == newest
    assert log[newest] == log[run_git(repository, "rev-parse", "main")]


@pytest.mark.parametrize("when", ODD)
def test_first_commits_of_an_odd_time_count_as_made_with_the_one_after_them(
    repository: Path, when: str
) -> None:
    first = commit_at(repository, when, [])
    second = commit_at(repository, "1000000000 +0000", [first])

    assert read_log(repository, second) == dict.fromkeys(
        [first, second], datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)
    )


def test_commits_that_all_name_no_time_have_a_place_all_the_same(repository: Path) -> None:
    first = commit_at(repository, "abc", [])
    second = commit_at(repository, "abc", [first])

    assert list(read_log(repository, second)) == [first, second]


def test_commits_that_only_the_second_has_are_counted(repository: Path) -> None:
    assert count_commits(repository, "main~1", "main") == 2
    assert count_commits(repository, "main", "main~1") == 0


def test_a_subject_moves_no_cursor(repository: Path) -> None:
    assert subject_of(repository, "main~1") == r"\x1b[31mred\x07 and more"


def test_what_git_does_not_know_is_said(repository: Path) -> None:
    with pytest.raises(PerfsuiteError) as failed:
        read_log(repository, "nowhere")

    assert str(failed.value) == (
        f"'git log' failed in {repository}: ambiguous argument 'nowhere': unknown revision or path "
        "not in the working tree."
    )
