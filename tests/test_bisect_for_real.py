"""A planted slowdown among eight commits, found with real launches and a real clock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gated_repository import Repository

# A turn of 10 ms holds five of these.
PRICE = """
    import time

    def price():
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < {seconds}:
            pass
"""
CELL = """
    import shop

    def test_price(benchmark):
        benchmark(shop.price)
"""


@pytest.mark.soak
def test_a_slowdown_by_thirty_percent_among_eight_commits_is_found(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    repository.git("init", "--quiet", "--initial-branch=main")
    repository.write(benchmarks__test_steps=CELL)
    commits = []
    for number in range(8):
        repository.write(shop=PRICE.format(seconds=0.002 if number < 5 else 0.0026))
        commits.append(repository.commit(f"change {number}"))

    ended = subprocess.run(
        [
            *(sys.executable, "-c", "from perfsuite.cli import main; main()", "bisect"),
            *("--good", commits[0], "benchmarks/test_steps.py::test_price"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"{commits[5]} is the first bad commit, 'change 5': slower by ")
    assert repository.git("status", "--porcelain") == ""
    assert repository.git("worktree", "list").count("\n") == 0
