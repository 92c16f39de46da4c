"""Runs that pytest-benchmark stores behind a URL. Through inner sessions, with memory://."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_benchmark.logger import PytestBenchmarkWarning
from pytest_benchmark.utils import get_machine_id

from perfsuite.gate.baselines.select import choose_runs
from perfsuite.plugin import recorder
from perfsuite.plugin.session import saving
from perfsuite.plugin.session.saving import STORAGE as STORAGE_KEY
from perfsuite.plugin.session.saving import use_storage
from perfsuite.system import environment, urls
from perfsuite.system.urls import RemotePath

pytestmark = pytest.mark.usefixtures("empty_memory")

STORAGE = RemotePath("memory", "bucket/runs")
FOLDER = STORAGE / get_machine_id()
AT_URL = f"--benchmark-storage={STORAGE}"
# One of our settings, which makes the session of a plain suite ours.
OURS = ("--perf-seed=0",)
# A plain suite: no fixture of ours, no torch.
PLAIN = """
    def test_sum(benchmark):
        assert benchmark.pedantic(sum, args=([1, 2],), rounds=3) == 3
"""


@pytest.fixture(autouse=True)
def _on_a_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pull request, whoever runs these tests, and no half a second for each inner session."""
    for name in (*environment._PULL_REQUEST_EVENTS, *environment._PULL_REQUEST_NUMBERS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(saving, "probe_host", lambda: {"interpreter": 0.03})


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(test_inner=PLAIN)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *OURS, *arguments)


def stored() -> dict[str, Any]:
    return {
        path.name: json.loads(path.read_bytes(path.size_bytes())) for path in FOLDER.glob("*.json")
    }


@pytest.mark.parametrize("option", ["--benchmark-autosave", "--benchmark-save=base"])
def test_runs_are_saved_there_as_they_are_in_a_folder(
    pytester: pytest.Pytester, capfd: pytest.CaptureFixture[str], option: str
) -> None:
    before = set(pytester.path.iterdir())

    results = [run(pytester, AT_URL, option) for _ in range(2)]

    assert [result.ret for result in results] == [0, 0]
    names = sorted(stored())
    assert [name[:5] for name in names] == ["0001_", "0002_"]
    said = capfd.readouterr().err.splitlines()
    assert [f"Saved benchmark data in: {FOLDER}/{name}" in said for name in names] == [True, True]
    fingerprint = stored()[names[0]]["perfsuite"]["fingerprint"]
    assert len(choose_runs(STORAGE, True, fingerprint).usable) == 2
    made = {path.name for path in set(pytester.path.iterdir()) - before}
    assert made - {"__pycache__"} == {"test_inner.py", "results"}


def test_pytest_benchmarks_own_comparison_reads_the_newest_run(pytester: pytest.Pytester) -> None:
    run(pytester, AT_URL, "--benchmark-save=old")
    run(pytester, AT_URL, "--benchmark-save=new")

    result = run(
        pytester, AT_URL, "--benchmark-compare", "--perf-gate=off", "--benchmark-columns=min"
    )

    assert result.ret == 0
    shown = {line.split("  ")[0] for line in result.outlines if line.startswith("test_sum (")}
    assert shown == {"test_sum (NOW)", "test_sum (0002_new)"}


def test_pytest_benchmarks_own_comparison_fails_where_it_is_asked_to(
    pytester: pytest.Pytester, capfd: pytest.CaptureFixture[str]
) -> None:
    run(pytester, AT_URL, "--benchmark-save=base")
    (path,) = FOLDER.glob("*")
    fast = stored()["0001_base.json"]
    for name in ("min", "max", "mean", "median"):
        fast["benchmarks"][0]["stats"][name] = 1e-12
    path.unlink()
    path.create(json.dumps(fast).encode())

    options = ("--benchmark-compare=0001", "--benchmark-compare-fail=min:1%", "--perf-gate=off")
    result = run(pytester, AT_URL, *options)

    assert result.ret not in (0, None)
    assert "Performance has regressed" in capfd.readouterr().err


def test_a_run_that_cannot_be_read_is_named_and_left_out(
    pytester: pytest.Pytester, capfd: pytest.CaptureFixture[str]
) -> None:
    run(pytester, AT_URL, "--benchmark-save=good")
    (FOLDER / "0002_cut.json").create(b"{")

    with pytest.warns(PytestBenchmarkWarning) as warned:
        result = run(pytester, AT_URL, "--benchmark-compare", "--perf-gate=off")

    assert result.ret == 0
    (warning,) = warned
    assert str(warning.message).startswith(
        f"Failed to load {FOLDER}/0002_cut.json: is not JSON, or was cut off: "
    )
    compared = f"Comparing against benchmarks from: {get_machine_id()}/0001_good.json"
    assert compared in capfd.readouterr().err.splitlines()


class Unreachable:
    """A file system that nothing can be asked of."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object, **__: object) -> None:
            raise PermissionError("Access Denied")

        return fail


def test_a_run_that_cannot_be_saved_ends_in_12_with_one_line(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "_filesystem", lambda _: Unreachable())

    result = run(pytester, AT_URL, "--benchmark-save=base")

    assert result.ret == 12
    result.stdout.fnmatch_lines(
        [f"perfsuite: cannot save {FOLDER}/NNNN_base.json: Access Denied"], consecutive=True
    )


def test_a_storage_that_cannot_be_reached_ends_pytest_benchmarks_own_comparison_in_12(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "_filesystem", lambda _: Unreachable())

    result = run(pytester, AT_URL, "--benchmark-compare", "--perf-gate=off")

    assert result.ret == 12
    result.stdout.fnmatch_lines([f"*perfsuite: {STORAGE}: cannot be listed: Access Denied*"])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "ftp://me:secret@host/runs",
            "--benchmark-storage is 'ftp://***@host/runs'; use a path, s3://BUCKET/… or "
            "gs://BUCKET/…",
        ),
        (
            "s3://key:secret@bucket/runs",
            "--benchmark-storage is 's3://***@bucket/runs', which holds credentials or a port "
            "before its first '/'; leave them out: the client takes them from its environment "
            "variables or its own files",
        ),
    ],
)
def test_a_url_that_nothing_can_be_stored_at_is_a_usage_error(
    pytester: pytest.Pytester, url: str, message: str
) -> None:
    result = run(pytester, f"--benchmark-storage={url}", "--benchmark-save=base")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stderr.lines[-2:] == [f"ERROR: {message}", ""]
    assert "secret" not in result.stdout.str() + result.stderr.str()


def test_a_url_whose_package_is_missing_is_a_usage_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)

    result = run(pytester, "--benchmark-storage=gs://bucket/runs")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "ERROR: --benchmark-storage begins with gs://, and gcsfs is not installed: "
            "pip install 'perfsuite[[]gcs]'"
        ]
    )


def test_elasticsearch_stays_pytest_benchmarks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "elasticsearch+http://me:secret@localhost/a/b"
    option = SimpleNamespace(benchmark_storage=url)
    session = SimpleNamespace(storage=None)
    config: Any = SimpleNamespace(
        option=option,
        getoption=lambda name: vars(option)[name],
        getini=lambda name: [],
        invocation_params=SimpleNamespace(args=()),
        stash=pytest.Stash(),
    )
    monkeypatch.setattr(recorder, "session_of", lambda _: session)
    monkeypatch.setattr(recorder, "open_storage", lambda _, storage: f"its own of {storage}")

    use_storage(config, pytest.fail)

    assert session.storage == f"its own of {url}"
    assert (option.benchmark_storage, config.stash[STORAGE_KEY]) == (url, None)
