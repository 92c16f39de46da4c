"""Commits in the order in which they were made."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from perfsuite.errors import PerfsuiteError
from perfsuite.gate.lineage import count_commits, read_lineage, subject_of

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


def test_parents_come_before_their_children_whatever_the_clock_said(repository: Path) -> None:
    lineage = read_lineage(repository, "main")

    subjects = [subject_of(repository, commit) for commit in lineage]
    assert (subjects[0], subjects[-1]) == ("first", "merge")
    assert len(subjects) == 4
    assert next(iter(lineage.values())) == datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)


def test_commits_that_only_the_second_has_are_counted(repository: Path) -> None:
    assert count_commits(repository, "main~1", "main") == 2
    assert count_commits(repository, "main", "main~1") == 0


def test_a_subject_moves_no_cursor(repository: Path) -> None:
    assert subject_of(repository, "main~1") == r"\x1b[31mred\x07 and more"


def test_what_git_does_not_know_is_said(repository: Path) -> None:
    with pytest.raises(PerfsuiteError) as failed:
        read_lineage(repository, "nowhere")

    assert str(failed.value) == (
        f"'git log' failed in {repository}: ambiguous argument 'nowhere': unknown revision or path "
        "not in the working tree."
    )
