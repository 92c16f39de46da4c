"""What `perfsuite run` adds to pytest: the folder that it runs without a path."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        ([], ["benchmarks"]),
        (["tests"], ["tests"]),
        (["tests/test_a.py::test_a[b::c]", "-x"], ["tests/test_a.py::test_a[b::c]"]),
        (["--perf-matrix=smoke", "-vv"], ["benchmarks"]),
        (["-k", "benchmarks"], ["benchmarks"]),
        (["-k", "", "-n0"], ["benchmarks"]),
        (["--junitxml", "out.xml"], ["benchmarks"]),
        (["-c", "pytest.ini"], ["benchmarks"]),
        (["--rootdir", "."], ["benchmarks"]),
        (["--ours", "fast"], ["benchmarks"]),
        (["--pyargs", "json"], ["json"]),
    ],
)
def test_without_a_path_the_benchmarks_run_whatever_an_option_says(
    pytester: pytest.Pytester, arguments: list[str], paths: list[str]
) -> None:
    for name in ("tests/test_a.py", "out.xml", "benchmarks/test_it.py"):
        (pytester.path / name).parent.mkdir(exist_ok=True)
        (pytester.path / name).touch()
    (pytester.path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    (pytester.path / "benchmarks" / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--ours')\n"
    )

    config = pytester.parseconfig("-p", "perfsuite.plugin.report", *arguments)

    assert config.args == paths
