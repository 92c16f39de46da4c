"""The verbs that read stored runs, given URLs: `baseline`, `report` and `explain`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import call_verb
from pytest_benchmark.utils import get_machine_id
from stored_histories import HERE, MACHINE

from perfsuite.cli import options
from perfsuite.system import urls
from perfsuite.system.urls import RemotePath

pytestmark = pytest.mark.usefixtures("empty_memory")

CELL = "benchmarks/test_a.py::test_a"
STORAGE = RemotePath("memory", "bucket/runs")
FOLDER = STORAGE / get_machine_id()

Call = Callable[..., int]


@pytest.fixture
def perfsuite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls the console script's function in a folder outside of git, and returns its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "environment_here", lambda: MACHINE)

    def call(*arguments: str) -> int:
        return call_verb(*arguments)

    return call


def store(name: str, *, day: int, median_s: float = 0.1, num_failed: int = 0) -> RemotePath:
    content = {
        "datetime": f"2026-11-{day:02}T10:30:00+00:00",
        "commit_info": {"id": "5db0efb7ac6bdcd7cfd9f58b9eebfe8798f3638b", "dirty": False},
        "benchmarks": [{"fullname": CELL, "stats": {"median": median_s}}],
        "perfsuite": {
            "schema": 1,
            "fingerprint": HERE,
            "probe_s": None,
            "num_failed": num_failed,
            "is_pull_request": False,
            "verdicts": {},
            "accepted": [],
        },
    }
    path = FOLDER / name
    path.create(json.dumps(content).encode())
    return path


def test_list_shows_the_runs_of_a_url(
    perfsuite: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store("0001_good.json", day=1)
    failed = store("0002_failed.json", day=2, num_failed=2)

    assert perfsuite("baseline", "list", "--storage", str(STORAGE), "--json", "runs.json") == 0

    _, _, *rows, last = capsys.readouterr().out.splitlines()
    assert [" ".join(row.split()) for row in rows] == [
        f"{FOLDER.name}/0001_good.json 2026-11-01 10:30 5db0efb7ac6b {HERE} (here) 1 usable",
        f"{FOLDER.name}/0002_failed.json 2026-11-02 10:30 5db0efb7ac6b {HERE} (here) 1 "
        "2 of its tests failed",
    ]
    assert last == f"1 of 2 usable in this environment, {HERE}"
    runs = json.loads((tmp_path / "runs.json").read_text())["runs"]
    assert runs[1]["path"] == str(failed)


def test_list_of_a_url_without_runs_says_so(
    perfsuite: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert perfsuite("baseline", "list", "--storage", str(STORAGE)) == 0

    assert capsys.readouterr().out == f"{STORAGE}: holds no stored run\n"


def test_prune_removes_old_runs_behind_a_url(
    perfsuite: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, kept = store("0001_a.json", day=1), store("0002_b.json", day=2)
    prune = ("baseline", "prune", "--keep", "1", "--storage", str(STORAGE), "--json", "pruned.json")

    assert perfsuite(*prune) == 0
    assert set(FOLDER.glob("*")) == {old, kept}
    assert perfsuite(*prune, "--yes") == 0

    assert list(FOLDER.glob("*")) == [kept]
    assert capsys.readouterr().out.splitlines() == [
        f"{old}: older than what is kept",
        "none of these was removed; add --yes to remove them",
        f"{old}: removed",
    ]
    assert json.loads((tmp_path / "pruned.json").read_text())["old_runs"] == [str(old)]


class Unreachable:
    """A file system that nothing can be asked of."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object, **__: object) -> None:
            raise PermissionError("Access Denied")

        return fail


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["baseline", "list", "--storage", str(STORAGE)],
            12,
            f"{STORAGE}: cannot be listed: Access Denied",
        ),
        (
            ["baseline", "prune", "--keep", "1", "--storage", str(STORAGE)],
            12,
            f"{STORAGE}: cannot be listed: Access Denied",
        ),
        (
            ["report", f"{FOLDER}/0001_a.json"],
            2,
            f"{FOLDER}/0001_a.json: Access Denied; name a file that pytest-benchmark wrote, such "
            "as results/run.json",
        ),
        (
            ["explain", f"{FOLDER}/0001_a.json", "run.json"],
            2,
            f"{FOLDER}/0001_a.json: Access Denied",
        ),
    ],
)
def test_what_cannot_be_reached_is_one_line(
    perfsuite: Call,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.setattr(urls, "_filesystem", lambda _: Unreachable())

    assert perfsuite(*arguments) == code

    assert capsys.readouterr().err == f"perfsuite: {message}\n"


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        (["baseline", "list", "--storage"], "--storage"),
        (["baseline", "prune", "--keep", "1", "--storage"], "--storage"),
        (["report"], "RUN.json"),
        (["explain", "run.json"], "HEAD"),
    ],
)
def test_a_url_whose_package_is_missing_ends_in_2_with_one_line(
    perfsuite: Call,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    source: str,
) -> None:
    path = store("0001_a.json", day=1)
    (tmp_path / "run.json").write_bytes(path.read_bytes(path.size_bytes()))
    monkeypatch.setitem(sys.modules, "gcsfs", None)

    assert perfsuite(*arguments, "gs://bucket/runs") == 2

    assert capsys.readouterr().err == (
        f"perfsuite: {source} begins with gs://, and gcsfs is not installed: "
        "pip install 'perfsuite[gcs]'\n"
    )


def test_report_and_explain_read_runs_by_url(
    perfsuite: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, head = store("0001_a.json", day=1), store("0002_b.json", day=2, median_s=0.2)

    assert perfsuite("report", str(base), str(head), "--csv", "cells.csv") == 0
    assert perfsuite("explain", str(base), str(head)) == 0

    assert CELL in (tmp_path / "cells.csv").read_text()
    assert f"{CELL}: +100.0 %; " in capsys.readouterr().out
