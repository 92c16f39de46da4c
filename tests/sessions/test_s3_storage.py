"""Baselines on S3: sessions, and writers at the same time, against a server that speaks it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from gated_repository import SHOP, Repository, make_shop
from pytest_benchmark.utils import get_machine_id

from perfsuite.gate.baselines.screen import MIN_SESSIONS
from perfsuite.gate.baselines.select import save_run
from perfsuite.system import urls
from perfsuite.system.urls import RemotePath, locate

SERVER = Path(__file__).parent.parent / "support" / "s3_server.py"
PRICE = "benchmarks/test_steps.py::test_price"
# Each writer is a process, since those of one process take turns.
WRITERS = """
    import multiprocessing
    import sys

    import s3fs  # once, before the fork

    from perfsuite.gate.baselines.select import save_run
    from perfsuite.system.urls import locate

    def save(number):
        folder = locate(sys.argv[1], "argument")
        list(folder.glob("*"))  # connects
        start.wait()
        save_run(folder, "run", b"%d" % number)

    context = multiprocessing.get_context("fork")
    start = context.Barrier(10)
    writers = [context.Process(target=save, args=(number,)) for number in range(10)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    sys.exit(any(writer.exitcode for writer in writers))
"""


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """What makes clients ask a server of this module's own."""
    server = subprocess.Popen(
        [sys.executable, str(SERVER)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    yield {
        "AWS_ENDPOINT_URL": server.stdout.readline().strip(),
        "AWS_ACCESS_KEY_ID": "an-id",
        "AWS_SECRET_ACCESS_KEY": "a-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    server.kill()
    server.communicate()


@pytest.fixture
def storage(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[RemotePath]:
    """An empty bucket of each test's own, and a prefix in it."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    urls._filesystem.cache_clear()
    bucket = f"bucket-{uuid.uuid4().hex}"
    urls._filesystem("s3").mkdir(bucket)
    place = locate(f"s3://{bucket}/runs", "--storage")
    assert isinstance(place, RemotePath)
    yield place
    urls._filesystem.cache_clear()


def stored(folder: RemotePath) -> dict[str, bytes]:
    return {path.name: path.read_bytes(path.size_bytes()) for path in folder.glob("*")}


def test_ten_writers_at_the_same_time_lose_no_run(storage: RemotePath) -> None:
    folder = storage / "machine"

    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WRITERS), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert sorted(stored(folder)) == [f"{number:04}_run.json" for number in range(1, 11)]
    assert set(stored(folder).values()) == {b"%d" % number for number in range(10)}


def test_a_name_that_is_taken_stays_as_it_is(storage: RemotePath) -> None:
    first = save_run(storage, "run", b"first")
    assert isinstance(first, RemotePath)

    with pytest.raises(FileExistsError):
        first.create(b"second")

    assert stored(storage) == {"0001_run.json": b"first"}


def test_a_file_is_read_listed_and_removed(storage: RemotePath) -> None:
    path = storage / "machine" / "0001_run.json"
    path.create(b"data")
    urls._filesystem("s3").touch(f"{storage.key}/0001_empty.json")

    (found,) = storage.glob("*/0*.json")
    assert (found, found.listed_bytes, path.size_bytes()) == (path, 4, 4)
    assert (path.read_bytes(4), path.read_bytes(2)) == (b"data", b"da")
    (empty,) = storage.glob("0*.json")
    assert (empty.name, empty.size_bytes(), empty.read_bytes(0)) == ("0001_empty.json", 0, b"")
    path.unlink()
    assert list(storage.glob("*/*")) == []
    with pytest.raises(FileNotFoundError):
        path.size_bytes()


def test_a_bucket_that_is_not_there_is_named(storage: RemotePath) -> None:
    missing = RemotePath("s3", "no-such-bucket/runs")

    with pytest.raises(OSError, match="there is no such bucket"):
        list(missing.glob("*"))
    with pytest.raises(OSError, match="there is no such bucket"):
        missing.create(b"data")


@pytest.fixture
def shop(tmp_path: Path) -> Repository:
    """A repository whose tests take what the code under test says they take."""
    return make_shop(tmp_path / "shop")


def test_two_runners_save_at_the_same_time_and_a_third_is_judged_by_what_they_saved(
    shop: Repository, storage: RemotePath, environment: dict[str, str]
) -> None:
    at_url = f"--benchmark-storage={storage}"
    folder = storage / get_machine_id()
    save = ("benchmarks", "--benchmark-save=main", at_url)

    sessions = [shop.start(*save, **environment) for _ in range(2)]
    outputs = [session.communicate()[0] for session in sessions]
    assert [session.returncode for session in sessions] == [0, 0], outputs
    assert sorted(stored(folder)) == ["0001_main.json", "0002_main.json"]
    repeat(folder)
    shop.write(shop=f"{SHOP}    # more")
    gated = shop.gate(at_url, **environment)

    gated.expect(0, f"{PRICE} PASS*", "1 cell: screen: *")
    assert "not compared with" not in gated.output
    assert list((shop.path / "baselines").glob("*")) == []


def repeat(folder: RemotePath) -> None:
    """Store as many runs as a screen needs, an hour apart, and none that tells a host's speed."""
    content = json.loads(stored(folder)["0002_main.json"])
    content["perfsuite"]["probe_s"] = None
    for path in folder.glob("*"):
        path.unlink()
    for number in range(MIN_SESSIONS):
        content["datetime"] = str(datetime.now(UTC) + timedelta(hours=number))
        save_run(folder, "main", json.dumps(content).encode())


def test_without_its_bucket_a_session_has_no_baseline_and_its_run_is_not_saved(
    shop: Repository, storage: RemotePath, environment: dict[str, str]
) -> None:
    at_url = "--benchmark-storage=s3://no-such-bucket/runs"
    shop.write(shop=f"{SHOP}    # more")

    gated = shop.gate(at_url, "--benchmark-save=main", **environment)

    gated.expect(
        12,
        "not compared with s3://no-such-bucket/runs: cannot be listed: there is no such bucket",
        "pair 1: *",
        f"{PRICE} PASS *",
        f"perfsuite: cannot save s3://no-such-bucket/runs/{get_machine_id()}/NNNN_main.json: "
        "there is no such bucket",
    )
    assert "a-secret" not in gated.output
