"""Options with which a gate would measure nothing, or that are not what they seem: exit code 4."""

from __future__ import annotations

from pathlib import Path

import pytest
from gated_repository import ONE_CELL, Repository, make_shop

PRICE = "benchmarks/test_steps.py::test_price"


@pytest.fixture
def shop(tmp_path: Path) -> Repository:
    """A repository whose first commit has one cell, and whose second changes nothing."""
    return make_shop(tmp_path / "shop")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("-p", "xdist", "-n2"),
            "--benchmark-compare measures nothing beside xdist's -n; use -n0, or leave it out",
        ),
        (
            ("-p", "xdist", "--dist=load"),
            "--benchmark-compare measures nothing beside xdist's -n; use -n0, or leave it out",
        ),
        (
            ("--benchmark-disable",),
            "--benchmark-compare measures nothing beside --benchmark-disable; leave it out",
        ),
        (
            ("-o", "addopts=--benchmark-disable"),
            "--benchmark-compare measures nothing beside --benchmark-disable; leave it out",
        ),
        (
            ("--benchmark-skip",),
            "--benchmark-compare measures nothing beside --benchmark-skip; leave it out",
        ),
        (
            ("--pyargs",),
            "--benchmark-compare finds the base's tests by their paths; name paths, not --pyargs",
        ),
        (
            ("--benchmark-compare", "benchmarks"),
            "--benchmark-compare takes 'benchmarks' for the run to compare with; "
            "write: pytest benchmarks --benchmark-compare",
        ),
        (
            ("--benchmark-compare", PRICE),
            f"--benchmark-compare takes '{PRICE}' for the run to compare with; "
            f"write: pytest {PRICE} --benchmark-compare",
        ),
        (
            ("--perf-tolerance=6%", "--perf-limit=3%"),
            "--perf-tolerance is 6%, above the limit of 3%; use a smaller one, or a larger "
            "--perf-limit (limit: command line; tolerance: command line)",
        ),
        (
            ("--perf-base=no-such-branch",),
            "the base 'no-such-branch' is no commit of the repository *; "
            "use a branch, a tag or a commit that 'git log -1 no-such-branch' shows",
        ),
        (
            ("--perf-base=HEAD~1", "--perf-base-dir=."),
            "--perf-base and --perf-base-dir name two bases; give one of them",
        ),
        (
            ("--perf-base-dir=.",),
            "the base '.' is or holds the folder that is judged; name another one",
        ),
        (
            ("--perf-base-dir=/",),
            "the base '/' is or holds the folder that is judged; name another one",
        ),
        (
            ("--perf-base-dir=no-such-folder",),
            "the base 'no-such-folder' is not a folder; name one",
        ),
    ],
)
def test_what_would_measure_nothing_is_a_usage_error(
    shop: Repository, arguments: tuple[str, ...], message: str
) -> None:
    paths = () if "--benchmark-compare" in arguments else ("benchmarks", "--benchmark-compare")

    gated = shop.pytest(*paths, *arguments)

    gated.expect(4, f"ERROR: {message}")
    assert "passed" not in gated.output


@pytest.mark.parametrize(
    ("marked", "arguments", "source"),
    [
        ("limit='1%', tolerance='2%'", (), "perf marker"),
        ("tolerance='2%'", ("--perf-limit=1%",), "command line"),
        ("tolerance='2%'", ("-o", "perf_limit=1%"), "ini file or default"),
    ],
)
def test_a_cell_whose_limit_is_below_its_tolerance_is_a_usage_error(
    shop: Repository, marked: str, arguments: tuple[str, ...], source: str
) -> None:
    shop.write(benchmarks__test_steps=ONE_CELL.replace("@", f"@pytest.mark.perf({marked})\n    @"))

    gated = shop.gate(*arguments)

    gated.expect(
        4,
        f"ERROR: {PRICE}: the limit is 1.0 % ({source}), below the tolerance of 2.0 % (perf "
        "marker); give a larger limit, or a smaller tolerance",
    )
