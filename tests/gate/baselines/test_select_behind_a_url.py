"""Baselines behind a URL: found, chosen, refused and saved as those in a folder are."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pytest_benchmark.utils import get_machine_id

from perfsuite.errors import SettingError, StorageError, WriteError
from perfsuite.gate.baselines.select import Choice, choose_runs, save_run
from perfsuite.system import json_files, urls
from perfsuite.system.files import remove_file
from perfsuite.system.urls import RemotePath

pytestmark = pytest.mark.usefixtures("empty_memory")

HERE = "0123456789ab"
CELL = "benchmarks/test_a.py::test_a"
STORAGE = RemotePath("memory", "bucket/runs")
FOLDER = STORAGE / get_machine_id()


def content(*, day: int = 1, **stamp: Any) -> bytes:
    fields = {
        "fingerprint": HERE,
        "probe_s": None,
        "num_failed": 0,
        "is_pull_request": False,
        "verdicts": {},
        "accepted": [],
    }
    return json.dumps(
        {
            "datetime": f"2026-11-{day:02}T00:00:00+00:00",
            "commit_info": {"id": "5db0efb7ac6b", "dirty": False},
            "benchmarks": [{"fullname": CELL, "stats": {"median": 0.1}}],
            "perfsuite": fields | stamp,
        }
    ).encode()


def used(choice: Choice) -> list[str]:
    return [run.path.name for run in choice.usable]


def refusals(choice: Choice) -> list[str]:
    return [str(run) for run in choice.refused]


def test_runs_of_the_environment_are_used_and_the_others_named() -> None:
    (FOLDER / "0001_b.json").create(content(day=3))
    (FOLDER / "0002_a.json").create(content(day=1))
    (STORAGE / "elsewhere/0001_old.json").create(content(day=2, fingerprint="ba9876543210"))
    (FOLDER / "0003_cut.json").create(content()[:40])
    (FOLDER / "0004_empty.json").create(b"")
    (FOLDER / "0005_failed.json").create(content(num_failed=1))
    (FOLDER / "notes.json").create(content(day=9))

    choice = choose_runs(STORAGE, True, HERE)

    assert used(choice) == ["0002_a.json", "0001_b.json"]
    old, cut, empty, failed = refusals(choice)
    assert old == (
        "memory://bucket/runs/elsewhere/0001_old.json: was made in another environment: "
        f"ba9876543210 -> {HERE}"
    )
    assert cut.startswith(f"{FOLDER}/0003_cut.json: is not JSON, or was cut off: ")
    assert empty == f"{FOLDER}/0004_empty.json: is empty"
    assert failed == f"{FOLDER}/0005_failed.json: 1 of its tests failed"


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("0002", ["0002_b.json"]),
        ("*/0001", ["0001_a.json"]),
        ("", ["0001_a.json", "0002_b.json"]),
        (f"{FOLDER}/0001_a.json", ["0001_a.json"]),
    ],
)
def test_a_number_a_glob_or_a_url_chooses(selector: str, expected: list[str]) -> None:
    (FOLDER / "0001_a.json").create(content(day=1))
    (FOLDER / "0002_b.json").create(content(day=2))

    assert used(choose_runs(STORAGE, selector, HERE)) == expected


def test_a_url_chooses_a_run_whatever_the_storage(tmp_path: Any) -> None:
    (FOLDER / "0001_a.json").create(content())

    assert used(choose_runs(tmp_path, f"{FOLDER}/0001_a.json", HERE)) == ["0001_a.json"]


def test_a_url_that_names_nothing_is_refused_by_its_name() -> None:
    assert refusals(choose_runs(STORAGE, f"{FOLDER}/0009_a.json", HERE)) == [
        f"{FOLDER}/0009_a.json: there is no such file or bucket"
    ]
    with pytest.raises(SettingError) as refused:
        choose_runs(STORAGE, "ftp://host/0001_a.json", HERE)
    assert str(refused.value) == (
        "--benchmark-compare is 'ftp://host/0001_a.json'; use a path, s3://BUCKET/… or "
        "gs://BUCKET/…"
    )


def test_where_nothing_is_stored_the_url_is_named() -> None:
    assert refusals(choose_runs(STORAGE, True, HERE)) == [f"{STORAGE}: holds no stored run"]
    assert refusals(choose_runs(STORAGE, "0007", HERE)) == [
        f"{STORAGE}: holds no stored run that matches '0007'"
    ]


def test_a_run_above_the_limit_is_named_and_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    (FOLDER / "0001_good.json").create(content())
    (FOLDER / "0002_large.json").create(content(day=2) + 1000 * b" ")
    monkeypatch.setattr(json_files, "MAX_JSON_BYTES", 512)
    read: list[str] = []
    read_bytes = RemotePath.read_bytes
    monkeypatch.setattr(
        RemotePath,
        "read_bytes",
        lambda path, most: read.append(path.name) or read_bytes(path, most),
    )

    choice = choose_runs(STORAGE, True, HERE)

    assert (used(choice), set(read)) == (["0001_good.json"], {"0001_good.json"})
    assert refusals(choice) == [f"{FOLDER}/0002_large.json: is larger than the 512 B that are read"]


class Unreachable:
    """A file system that nothing can be asked of."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object, **__: object) -> None:
            raise PermissionError("Access Denied")

        return fail


def test_a_storage_that_cannot_be_reached_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(urls, "_filesystem", lambda _: Unreachable())

    with pytest.raises(StorageError) as unread:
        choose_runs(STORAGE, True, HERE)
    with pytest.raises(WriteError) as unsaved:
        save_run(FOLDER, "run", b"data")
    with pytest.raises(WriteError) as unremoved:
        remove_file(FOLDER / "0001_run.json")

    assert str(unread.value) == f"{STORAGE}: cannot be listed: Access Denied"
    assert str(unsaved.value) == f"cannot save {FOLDER}/NNNN_run.json: Access Denied"
    assert str(unremoved.value) == f"cannot remove {FOLDER}/0001_run.json: Access Denied"


def stored() -> dict[str, bytes]:
    return {path.name: path.read_bytes(path.size_bytes()) for path in FOLDER.glob("*")}


def test_a_run_is_saved_under_the_next_number() -> None:
    (FOLDER / "0007_old.json").create(b"old")

    path = save_run(FOLDER, "new", b"data")

    assert path == FOLDER / "0008_new.json"
    assert stored() == {"0007_old.json": b"old", "0008_new.json": b"data"}


@pytest.mark.parametrize("num_runs", [2, 10])
def test_runs_that_are_saved_at_the_same_time_are_all_kept(num_runs: int) -> None:
    start = threading.Barrier(num_runs)

    def save(number: int) -> None:
        start.wait()
        save_run(FOLDER, "run", b"%d" % number)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(num_runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(stored()) == [f"{number:04}_run.json" for number in range(1, num_runs + 1)]
    assert set(stored().values()) == {b"%d" % number for number in range(num_runs)}


def test_a_server_that_ignores_the_condition_gets_a_name_that_is_drawn_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ignoring(MemoryFileSystem):
        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: object) -> None:
            super().pipe_file(path, value)

    monkeypatch.setattr(urls, "_filesystem", lambda _: Ignoring())

    path = save_run(FOLDER, "run", content())

    assert re.fullmatch(r"0002_run-[0-9a-f]{32}\.json", path.name)
    assert path.read_bytes(9999) == content()
    choice = choose_runs(STORAGE, True, HERE)
    assert used(choice) == ["0001_run.json"]
    assert refusals(choice) == [f"{path}: is a copy of 0001_run.json"]
