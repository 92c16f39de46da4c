"""A planted slowdown among eight commits, found with real launches and a real clock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gated_repository import Repository

# Turns and not seconds: a process that has to wait spends seconds without work.
PRICE = """
    def price():
        for _ in range({num_turns}):
            pass
"""
CELL = """
    import shop

    def test_price(benchmark):
        benchmark(shop.price)
"""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Eight commits, the sixth of which takes 30 % more turns."""
    repository = Repository(tmp_path / "shop")
    repository.path.mkdir()
    (repository.path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    repository.git("init", "--quiet", "--initial-branch=main")
    repository.write(benchmarks__test_steps=CELL)
    for number in range(8):
        repository.write(shop=PRICE.format(num_turns=100_000 if number < 5 else 130_000))
        repository.commit(f"change {number}")
    return repository


def start_search(repository: Repository, temporary: Path) -> subprocess.Popen[str]:
    """Start the verb between the first commit and the last."""
    temporary.mkdir()
    return subprocess.Popen(
        [
            *(sys.executable, "-c", "from perfsuite.cli.app import main; main()", "bisect"),
            *("--good", "HEAD~7", "benchmarks/test_steps.py::test_price"),
        ],
        cwd=repository.path,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.soak
def test_a_slowdown_by_thirty_percent_among_eight_commits_is_found(
    repository: Repository, tmp_path: Path
) -> None:
    search = start_search(repository, tmp_path / "tmp")
    out, err = search.communicate()

    assert search.returncode == 0, err
    first_bad = repository.git("rev-parse", "HEAD~2")[:7]
    assert out.startswith(f"{first_bad} is the first bad commit, 'change 5': slower by ")
    expect_nothing_left(repository, tmp_path / "tmp")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_search_that_a_signal_ends_leaves_nothing_behind(
    repository: Repository, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    search = start_search(repository, tmp_path / "tmp")
    assert search.stderr is not None
    while "pair 1" not in search.stderr.readline():
        assert search.poll() is None

    search.send_signal(number)
    search.communicate()

    assert search.returncode == code
    expect_nothing_left(repository, tmp_path / "tmp")


def expect_nothing_left(repository: Repository, temporary: Path) -> None:
    assert repository.git("status", "--porcelain") == ""
    assert "\n" not in repository.git("worktree", "list")
    assert [path for path in temporary.iterdir() if path.name.startswith("perfsuite-")] == []
