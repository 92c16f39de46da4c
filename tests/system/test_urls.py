"""Files behind a URL: their names, their errors in one line, and that no file is lost."""

from __future__ import annotations

import errno
import logging
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from perfsuite.errors import SettingError
from perfsuite.system import urls
from perfsuite.system.urls import RemotePath, locate, mask

pytestmark = pytest.mark.usefixtures("empty_memory")

ALLOWED = "use a path, s3://BUCKET/… or gs://BUCKET/…"
CREDENTIALS = (
    "which holds credentials or a port before its first '/'; leave them out: the client takes them "
    "from its environment variables or its own files"
)


def at(key: str) -> RemotePath:
    return RemotePath("memory", key)


class Answering:
    """A file system whose every method raises one error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        def answer(*_: object, **__: object) -> None:
            raise self._error

        return answer


def answer_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(urls, "_filesystem", lambda _: Answering(error))


# --- what a text names ---


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("baselines", Path("baselines")),
        ("/a/b", Path("/a/b")),
        ("file:///a/b", Path("/a/b")),
        ("file://./a", Path("a")),
        ("memory://bucket/a/b/", at("bucket/a/b")),
        ("memory://bucket/a@b/c:d", at("bucket/a@b/c:d")),
        (
            "memory://arn:aws:s3:us-east-1:1:accesspoint/a",
            at("arn:aws:s3:us-east-1:1:accesspoint/a"),
        ),
    ],
)
def test_a_text_names_a_path_or_a_url(text: str, path: Path | RemotePath) -> None:
    assert locate(text, "--storage") == path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ftp://host/a", f"--storage is 'ftp://host/a'; {ALLOWED}"),
        ("ftp://me:secret@host/a", f"--storage is 'ftp://***@host/a'; {ALLOWED}"),
        ("simplecache::s3://b/a", f"--storage is 'simplecache::s3://b/a'; {ALLOWED}"),
        ("s3:///", f"--storage is 's3:///'; {ALLOWED}"),
        (
            "s3://AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY@bucket/a",
            f"--storage is 's3://***@bucket/a', {CREDENTIALS}",
        ),
        ("s3://key:secret@bucket/a", f"--storage is 's3://***@bucket/a', {CREDENTIALS}"),
        ("s3://token@bucket/a@b", f"--storage is 's3://***@b', {CREDENTIALS}"),
        ("s3://key:sec/ret/a", f"--storage is 's3://***', {CREDENTIALS}"),
        ("memory://a:b/c@d/x", f"--storage is 'memory://***@d/x', {CREDENTIALS}"),
        ("http://me:pa/ss@host/x", f"--storage is 'http://***@host/x'; {ALLOWED}"),
    ],
)
def test_a_url_of_nothing_is_refused_and_no_secret_is_repeated(text: str, message: str) -> None:
    with pytest.raises(SettingError) as refused:
        locate(text, "--storage")

    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("protocol", "package", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs")]
)
def test_a_url_whose_package_is_missing_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, protocol: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)

    with pytest.raises(SettingError) as refused:
        locate(f"{protocol}://bucket/a", "--storage")

    assert str(refused.value) == (
        f"--storage begins with {protocol}://, and {package} is not installed: "
        f"pip install 'perfsuite[{extra}]'"
    )


def test_every_user_and_password_in_a_text_is_masked() -> None:
    text = "cannot reach http://me:pa/ss@one/ or https://token@two/a, and s3://bucket/a does"

    assert mask(text) == (
        "cannot reach http://***@one/ or https://***@two/a, and s3://bucket/a does"
    )


def test_what_a_name_would_do_to_a_terminal_is_shown_instead() -> None:
    assert str(at("bucket/\x1b[2J")) == r"memory://bucket/\x1b[2J"


# --- files ---


def test_a_path_has_the_parts_of_one() -> None:
    path = at("bucket/runs") / "machine" / "0001_run.json"

    assert (path.name, str(path.parent)) == ("0001_run.json", "memory://bucket/runs/machine")


def test_a_file_is_created_read_and_removed() -> None:
    path = at("bucket/a")

    path.create(b"data")

    assert (path.size_bytes(), path.read_bytes(4), path.read_bytes(2)) == (4, b"data", b"da")
    path.unlink()
    path.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError, match="there is no such file or bucket"):
        path.unlink()


def test_an_empty_file_is_read() -> None:
    at("bucket/a").create(b"")

    assert at("bucket/a").read_bytes(0) == b""


def test_files_are_found_part_by_part_with_their_sizes() -> None:
    for key in ("0001_a.json", "one/0001_b.json", "one/notes", "one/two/0001_c.json"):
        at(f"bucket/runs/{key}").create(b"data")
    at("bucket/runs-of-others/0001_d.json").create(b"data")
    folder = at("bucket/runs")

    assert list(folder.glob("0*.json")) == [at("bucket/runs/0001_a.json")]
    (found,) = folder.glob("o*/0*.json")
    assert (found, found.listed_bytes) == (at("bucket/runs/one/0001_b.json"), 4)
    assert list(at("bucket/nothing").glob("*")) == []


@pytest.mark.parametrize("key", ["runs/../secret", "runs/", "runs/./a", "elsewhere/a", "runs//a"])
def test_a_listing_cannot_lead_out_of_the_folder(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    class Listing:
        def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
            assert detail
            return [{"name": f"bucket/{key}", "type": "file", "size": 1}]

    monkeypatch.setattr(urls, "_filesystem", lambda _: Listing())

    assert list(at("bucket/runs").glob("*")) == []
    assert list(at("bucket/runs").glob("*/*")) == []


def test_a_file_is_created_by_the_first_alone() -> None:
    at("bucket/a").create(b"first")

    with pytest.raises(FileExistsError):
        at("bucket/a").create(b"second")

    assert at("bucket/a").read_bytes(9) == b"first"
    assert at("bucket/a").refuses(b"first")


def test_of_those_who_create_a_file_at_the_same_time_one_does() -> None:
    start = threading.Barrier(10)
    lost: list[int] = []

    def create(number: int) -> None:
        start.wait()
        try:
            at("bucket/a").create(b"%d" % number)
        except FileExistsError:
            lost.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (winner,) = set(range(10)) - set(lost)
    assert at("bucket/a").read_bytes(9) == b"%d" % winner


def test_a_file_that_another_client_wrote_over_at_once_is_not_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Racing(MemoryFileSystem):
        """Looks for a name and writes it in two steps, with another writer between them."""

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: object) -> None:
            super().pipe_file(path, value, mode)
            super().pipe_file(path, b"another's")

    monkeypatch.setattr(urls, "_filesystem", lambda _: Racing())

    with pytest.raises(FileExistsError, match="it was written twice at the same moment"):
        at("bucket/a").create(b"ours")


def test_a_server_that_ignores_the_condition_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ignoring(MemoryFileSystem):
        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: object) -> None:
            super().pipe_file(path, value)

    monkeypatch.setattr(urls, "_filesystem", lambda _: Ignoring())

    at("bucket/a").create(b"data")

    assert not at("bucket/a").refuses(b"data")


# --- errors ---


class AnswerError(Exception):
    """As botocore's ClientError: the server's answer is all that says what it is."""

    def __init__(self, code: object) -> None:
        super().__init__("the server's words")
        self.response = {"Error": {"Code": code}}


def caused(error: OSError, code: object) -> OSError:
    """As s3fs raises what it made of an answer."""
    error.__cause__ = AnswerError(code)
    return error


@pytest.mark.parametrize("code", ["PreconditionFailed", "ConditionalRequestConflict"])
def test_an_answer_that_the_name_is_taken_is_understood_whatever_the_client_makes_of_it(
    monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    answer_with(monkeypatch, caused(OSError(errno.EIO, "unknown"), code))

    with pytest.raises(FileExistsError):
        at("bucket/a").create(b"data")


def test_a_bucket_that_is_not_there_is_no_empty_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, caused(FileNotFoundError("no bucket"), "NoSuchBucket"))

    with pytest.raises(OSError, match="there is no such bucket"):
        list(at("bucket/a").glob("*"))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError("Access Denied"), "Access Denied"),
        (OSError(errno.EBUSY, "Slow down"), "Slow down"),
        (TimeoutError(), "TimeoutError"),
        (OSError("one:\n  two\n"), "one: two"),
        (OSError("cannot reach http://me:secret@host/"), "cannot reach http://***@host/"),
        (OSError("\x1b[2J" + 400 * "a"), r"\x1b[2J" + 296 * "a"),
    ],
)
def test_whatever_fails_has_a_reason_of_one_line(
    monkeypatch: pytest.MonkeyPatch, error: OSError, reason: str
) -> None:
    answer_with(monkeypatch, error)

    with pytest.raises(OSError, match=re.escape(reason)) as failed:
        at("bucket/a").read_bytes(1)

    assert (failed.value.errno, failed.value.strerror) == (errno.EIO, reason)


def test_a_failure_of_the_client_itself_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(urls._FAILURES, "memory", (f"{__name__}:{AnswerError.__name__}",))
    answer_with(monkeypatch, AnswerError(None))

    with pytest.raises(OSError, match="the server's words"):
        at("bucket/a").size_bytes()


def test_what_a_client_logs_of_its_errors_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    at("bucket/a").create(b"data")

    logging.getLogger("memoryfs").error("out of retries")

    assert capsys.readouterr().err == ""
