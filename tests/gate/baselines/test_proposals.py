"""Stored runs that a change brings along: none of them judges that change."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_checkouts import git

from perfsuite.gate.baselines.select import is_brought
from perfsuite.gate.git.find_base import find_trunk
from perfsuite.gate.git.repository import changed_files


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "a change")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A branch of a repository whose main branch has two stored runs."""
    storage = tmp_path / "baselines" / "Linux"
    storage.mkdir(parents=True)
    for name in ("0001_main.json", "0002_main.json"):
        (storage / name).write_text("{}")
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commit(tmp_path)
    git(tmp_path, "switch", "--quiet", "--create", "feature")
    return tmp_path


def split(root: Path, storage: Path | None = None) -> tuple[list[str], list[str]]:
    """The names of the files that count, and of those that the branch proposes."""
    storage = root / "baselines" if storage is None else storage
    trunk = find_trunk(root)
    assert trunk is not None
    brought = changed_files(root, trunk, "HEAD")
    paths = sorted(storage.glob("*/*.json"))
    return (
        [path.name for path in paths if not is_brought(path, brought)],
        [path.name for path in paths if is_brought(path, brought)],
    )


def usable(root: Path) -> list[str]:
    return split(root)[0]


def test_runs_of_the_main_branch_count(checkout: Path) -> None:
    assert usable(checkout) == ["0001_main.json", "0002_main.json"]


def test_a_run_that_the_branch_adds_or_rewrites_is_refused_by_name(checkout: Path) -> None:
    storage = checkout / "baselines" / "Linux"
    (storage / "0002_main.json").write_text('{"slow": true}')
    (storage / "0003_mine.json").write_text("{}")
    commit(checkout)

    assert split(checkout) == (["0001_main.json"], ["0002_main.json", "0003_mine.json"])


def test_a_link_of_the_branch_counts_as_what_it_brings(checkout: Path) -> None:
    hidden = checkout / "baselines" / "deep" / "deeper"
    hidden.mkdir(parents=True)
    (hidden / "0004_mine.json").write_text("{}")
    (checkout / "baselines" / "Other").symlink_to("deep/deeper")
    (checkout / "baselines" / "Linux" / "0005_mine.json").symlink_to("0001_main.json")
    commit(checkout)

    assert usable(checkout) == ["0001_main.json", "0002_main.json"]


def test_a_run_that_is_not_committed_is_the_users_own(checkout: Path) -> None:
    (checkout / "baselines" / "Linux" / "0003_mine.json").write_text("{}")

    assert usable(checkout) == ["0001_main.json", "0002_main.json", "0003_mine.json"]


def test_once_it_is_merged_it_counts(checkout: Path) -> None:
    (checkout / "baselines" / "Linux" / "0003_mine.json").write_text("{}")
    commit(checkout)
    git(checkout, "switch", "--quiet", "main")
    git(checkout, "merge", "--quiet", "--ff-only", "feature")

    assert usable(checkout) == ["0001_main.json", "0002_main.json", "0003_mine.json"]


def test_a_storage_outside_of_the_checkout_is_no_part_of_a_change(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    storage = tmp_path_factory.mktemp("elsewhere")
    (storage / "Linux").mkdir()
    (storage / "Linux" / "0001_main.json").write_text("{}")
    (checkout / "new.txt").write_text("new")
    commit(checkout)

    assert split(checkout, storage) == (["0001_main.json"], [])
