"""Stored runs: what a good file holds, and how every bad one is named instead of believed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfsuite.plugin.session.saving import put_stamp
from perfsuite.records.cell import Counts, Memory, Operator, StageTimes
from perfsuite.records.run_file import (
    RunHead,
    RunStamp,
    StoredRun,
    Unusable,
    read_head,
    read_moment,
    read_run,
)
from perfsuite.system import json_files
from perfsuite.system.environment import describe_host

CELL = "benchmarks/test_a.py::test_a[1]"
PLAIN = "benchmarks/test_b.py::test_b"
COMMIT = "5db0efb7ac6bdcd7cfd9f58b9eebfe8798f3638b"


def run_json() -> dict[str, Any]:
    """What pytest-benchmark saves of one cell of ours and of one plain benchmark."""
    record = {
        "schema": 1,
        "workload": "toy-mlp",
        "fingerprint": "aaaaaaaaaaaa",
        "stages_s": dict.fromkeys(
            ("load", "forward", "backward", "optimizer", "evaluation", "other"), 0.001
        ),
        "counts": {
            "flops": 10,
            "ops": 2,
            "collectives": 0,
            "collective_bytes": 0,
            "saved_activation_bytes": 4096,
            "kernel_launches": None,
        },
        "memory": {"metric": "live_storage_peak", "peak_bytes": 8, "per_rank": [8]},
        "operators": [{"name": "aten::mm", "calls": 3, "self_s": 0.001}],
    }
    return {
        "machine_info": {"system": "Linux"},
        "commit_info": {"id": COMMIT, "dirty": False, "branch": "main"},
        "benchmarks": [
            {
                "fullname": CELL,
                "params": {"n": 1},
                "extra_info": {"perfsuite": record},
                "stats": {"median": 9.0, "data": [0.3, 0.1, 0.2]},
            },
            {"fullname": PLAIN, "params": None, "extra_info": {}, "stats": {"median": 0.5}},
        ],
        "datetime": "2026-11-21T15:02:29.852122+00:00",
        "version": "5.3.1",
        "perfsuite": {
            "schema": 1,
            "fingerprint": "0123456789ab",
            "probe_s": {"memory": 0.05},
            "num_failed": 0,
            "is_pull_request": False,
            "verdicts": {},
            "accepted": [],
        },
    }


def written(folder: Path, content: Any) -> Path:
    path = folder / "0001_run.json"
    path.write_text(json.dumps(content))
    return path


def stamped_first(content: dict[str, Any]) -> str:
    """As perfsuite writes a run: the benchmarks behind everything else."""
    content["benchmarks"] = content.pop("benchmarks")
    return json.dumps(content, indent=4)


def read_good(path: Path) -> StoredRun:
    run = read_run(path)
    assert isinstance(run, StoredRun), run
    return run


def reason_of(path: Path) -> str:
    run = read_run(path)
    assert isinstance(run, Unusable)
    assert run.path == path
    return run.reason


def test_a_run_is_read_with_everything_that_comparisons_use(tmp_path: Path) -> None:
    run = read_good(written(tmp_path, run_json()))

    assert run.saved_at == datetime(2026, 11, 21, 15, 2, 29, 852122, tzinfo=UTC)
    assert (run.commit, run.is_dirty, run.fingerprint) == (COMMIT, False, "0123456789ab")
    assert run.probe_s == {"memory": 0.05}
    cell = run.cells[CELL]
    assert (cell.median_s, cell.fingerprint) == (0.2, "aaaaaaaaaaaa")
    assert cell.counts == Counts(
        flops=10,
        ops=2,
        collectives=0,
        collective_bytes=0,
        saved_activation_bytes=4096,
        kernel_launches=None,
    )
    assert cell.memory == Memory(metric="live_storage_peak", peak_bytes=8, per_rank=(8,))
    assert isinstance(cell.stages_s, StageTimes)
    assert cell.operators == (Operator(name="aten::mm", calls=3, self_s=0.001),)


def test_a_run_says_what_its_fingerprints_stand_for(tmp_path: Path) -> None:
    content, known = run_json(), describe_host({}, 2)
    content["perfsuite"]["environments"] = {"aaaaaaaaaaaa": msgspec.to_builtins(known)}
    # Of a file that may lie the stamp alone is read.
    content["benchmarks"][1]["extra_info"] = {"perfsuite": {"environment": "a lie"}}

    run = read_good(written(tmp_path, content))

    assert run.stamp is not None
    assert run.stamp.environments == {"aaaaaaaaaaaa": known}
    assert (run.cells[CELL].environment, run.cells[PLAIN].environment) == (known, None)


def test_a_plain_benchmark_has_a_time_and_nothing_else(tmp_path: Path) -> None:
    cell = read_good(written(tmp_path, run_json())).cells[PLAIN]

    assert cell.median_s == 0.5
    assert (cell.counts, cell.memory, cell.stages_s, cell.fingerprint) == (None, None, None, None)


def test_a_run_without_our_stamp_is_read_all_the_same(tmp_path: Path) -> None:
    content = run_json()
    del content["perfsuite"]

    run = read_good(written(tmp_path, content))

    assert (run.stamp, run.fingerprint, run.probe_s) == (None, None, None)


@pytest.mark.parametrize("commit", ["unversioned", "--output=/tmp/x", "HEAD", "", COMMIT + " "])
def test_what_is_no_commit_never_gets_to_git(tmp_path: Path, commit: str) -> None:
    content = run_json()
    content["commit_info"]["id"] = commit

    assert read_good(written(tmp_path, content)).commit is None


def test_a_time_without_a_zone_is_utc(tmp_path: Path) -> None:
    content = run_json()
    content["datetime"] = "2019-05-06T07:08:09.000001"

    run = read_good(written(tmp_path, content))

    assert run.saved_at == datetime(2019, 5, 6, 7, 8, 9, 1, tzinfo=UTC)


def test_a_nan_in_a_users_own_extra_info_does_not_cost_the_baseline(tmp_path: Path) -> None:
    content = run_json()
    content["benchmarks"][1]["extra_info"] = {"loss": math.nan}

    assert read_good(written(tmp_path, content)).cells[PLAIN].median_s == 0.5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        (
            '{"benchmarks": [',
            "is not JSON, or was cut off: Expecting value: line 1 column 17 (char 16)",
        ),
        ("hello", "is not JSON, or was cut off: Expecting value: line 1 column 1 (char 0)"),
        ("[]", "is no run of pytest-benchmark: Expected `object`, got `array`"),
        (
            "{}",
            "is no run of pytest-benchmark: Object missing required field `datetime`",
        ),
        ("[" * 100_000, "is nested too deeply"),
    ],
)
def test_a_file_that_is_no_run_is_named_with_the_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "0001_run.json"
    path.write_text(text)

    assert reason_of(path) == reason


def test_a_truncated_run_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, run_json())
    path.write_bytes(path.read_bytes()[:-1])

    assert reason_of(path).startswith("is not JSON, or was cut off: ")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "0001_run.json"
    path.write_bytes(b'{"a": "\xff"}')

    assert reason_of(path) == "is not UTF-8: invalid start byte at byte 7"


def test_a_file_that_is_gone_is_refused(tmp_path: Path) -> None:
    assert reason_of(tmp_path / "0001_run.json") == "No such file or directory"


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    path = tmp_path / "0001_run.json"
    os.mkfifo(path)

    assert reason_of(path) == "is not a regular file"


def test_a_huge_file_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_files, "MAX_JSON_BYTES", 1024)
    path = tmp_path / "0001_run.json"
    path.write_bytes(b"[" * 1025)

    assert reason_of(path) == "is larger than the 1.00 KiB that are read"


def set_time(seconds: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["benchmarks"][1]["stats"].update(median=seconds)


def set_round(seconds: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["benchmarks"][0]["stats"].update(data=[0.1, seconds])


def set_operator(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["benchmarks"][0]["extra_info"]["perfsuite"]["operators"][
        0
    ].update(fields)


def set_count(count: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["benchmarks"][0]["extra_info"]["perfsuite"]["counts"].update(
        flops=count
    )


NOT_OURS = "is no run of pytest-benchmark: "
INVALID = f"holds an invalid record of the cell {CELL}: "


@pytest.mark.parametrize(
    ("poison", "reason"),
    [
        (set_time(math.nan), f"holds a time of nan s of the cell {PLAIN}"),
        (set_time(-0.5), f"holds a time of -0.5 s of the cell {PLAIN}"),
        (set_time(0), f"holds a time of 0.0 s of the cell {PLAIN}"),
        (
            set_time("0.5"),
            f"{NOT_OURS}Expected `float`, got `str` - at `$.benchmarks[1].stats.median`",
        ),
        (set_time(10**400), f"{NOT_OURS}Number out of range - at `$.benchmarks[1].stats.median`"),
        (set_round(math.inf), f"holds a time of inf s of the cell {CELL}"),
        (set_round(1e308), f"holds a time of 1e+308 s of the cell {CELL}"),
        (set_round(0.0), f"holds a time of 0.0 s of the cell {CELL}"),
        (
            set_operator(calls=-1),
            f"{INVALID}Expected `int` >= 0 - at `$.operators[0].calls`",
        ),
        (
            set_operator(self_s=math.nan),
            f"{INVALID}Expected `float` >= 0.0 - at `$.operators[0].self_s`",
        ),
        (set_operator(name="\ud800"), "holds a name that is no text: '\\ud800'"),
        (set_count(-1), f"{INVALID}Expected `int` >= 0 - at `$.counts.flops`"),
        (
            set_count(2**63),
            f"{INVALID}Expected `int` <= {2**63 - 1} - at `$.counts.flops`",
        ),
        (
            set_count(10**400),
            f"{INVALID}Expected `int` <= {2**63 - 1} - at `$.counts.flops`",
        ),
        (
            set_count(1.5),
            f"{INVALID}Expected `int | null`, got `float` - at `$.counts.flops`",
        ),
        (lambda content: content.update(benchmarks=[]), "holds no benchmark"),
        (
            lambda content: content["benchmarks"].append(content["benchmarks"][0]),
            f"holds the cell {CELL} twice",
        ),
        (
            lambda content: content["benchmarks"][1].update(fullname="a\ud800"),
            "holds a name that is no text: 'a\\ud800'",
        ),
        (
            lambda content: content["perfsuite"].update(schema=2),
            f"{NOT_OURS}Invalid enum value 2 - at `$.perfsuite.schema`",
        ),
        (
            lambda content: content.update(datetime="yesterday"),
            f"{NOT_OURS}Invalid RFC3339 encoded datetime - at `$.datetime`",
        ),
    ],
)
def test_a_poisoned_run_is_refused_and_named(
    tmp_path: Path, poison: Callable[[dict[str, Any]], None], reason: str
) -> None:
    content = run_json()
    poison(content)

    assert reason_of(written(tmp_path, content)) == reason


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value of a JSON document lies."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [path, *(found for key, item in items for found in paths_of(item, (*path, key)))]


UNEXPECTED = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from([10**400, -1, 0, -0.0, 1e-320, 1e308, "", "\ud800", "1", [], {}, [[]]]),
    st.text(max_size=3),
)


def mutate(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return content


def holds_only_real_times(run: StoredRun) -> bool:
    return all(math.isfinite(cell.median_s) and cell.median_s > 0 for cell in run.cells.values())


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(path=st.sampled_from(paths_of(run_json())), value=UNEXPECTED)
def test_whatever_stands_in_a_file_no_impossible_time_comes_out(
    tmp_path: Path, path: tuple[Any, ...], value: Any
) -> None:
    file = written(tmp_path, mutate(run_json(), path, value))

    run = read_run(file)

    assert isinstance(run, Unusable) or holds_only_real_times(run)
    assert not isinstance(run, Unusable) or run.reason


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(start=st.integers(0, 1400), junk=st.binary(max_size=8))
def test_overwritten_bytes_never_crash_the_reader(tmp_path: Path, start: int, junk: bytes) -> None:
    file = written(tmp_path, run_json())
    data = file.read_bytes()
    file.write_bytes(data[:start] + junk + data[start + len(junk) :])

    run = read_run(file)

    assert isinstance(run, Unusable) or holds_only_real_times(run)


def test_a_head_is_read_without_the_benchmarks(tmp_path: Path) -> None:
    path = tmp_path / "0001_run.json"
    path.write_text(stamped_first(run_json()))
    run = read_good(path)
    path.write_text(path.read_text().partition('"fullname"')[0])

    head = read_head(path)

    assert isinstance(head, RunHead)
    facts = ("path", "saved_at", "commit", "is_dirty", "stamp", "fingerprint", "probe_s")
    assert {name: getattr(head, name) for name in facts} == {
        name: getattr(run, name) for name in facts
    }
    assert isinstance(read_run(path), Unusable)


def test_the_writer_puts_the_stamp_before_the_benchmarks_so_that_a_head_needs_nothing_of_them(
    tmp_path: Path,
) -> None:
    content = run_json()
    stamp = msgspec.convert(content.pop("perfsuite"), RunStamp)
    put_stamp(content, stamp)
    path = tmp_path / "0001_run.json"
    # As pytest-benchmark writes it.
    text = json.dumps(content, ensure_ascii=True, indent=4)
    path.write_text(text.partition('"fullname"')[0])

    head, moment = read_head(path), read_moment(path)

    assert isinstance(head, RunHead)
    assert head.stamp == stamp
    assert moment == head.saved_at


def test_a_head_is_found_beyond_a_very_long_stamp(tmp_path: Path) -> None:
    content = run_json()
    content["perfsuite"]["verdicts"] = {f"{CELL}{number}": "PASS" for number in range(20_000)}
    path = tmp_path / "0001_run.json"
    path.write_text(stamped_first(content))

    head = read_head(path)

    assert isinstance(head, RunHead)
    assert head.stamp is not None
    assert len(head.stamp.verdicts) == 20_000


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(run_json()),
        json.dumps(run_json(), indent=4),
        json.dumps(run_json(), indent=2, sort_keys=True),
        stamped_first(run_json()).replace('"Linux"', "NaN"),
    ],
    ids=["in one line", "stamped last", "by others", "not a number"],
)
def test_a_head_is_found_wherever_it_stands(tmp_path: Path, text: str) -> None:
    path = tmp_path / "0001_run.json"
    path.write_text(text)

    head, run = read_head(path), read_good(path)

    assert isinstance(head, RunHead)
    assert (head.saved_at, head.commit, head.stamp) == (run.saved_at, run.commit, run.stamp)
    assert read_moment(path) == run.saved_at


def test_a_head_that_is_none_is_named_like_a_run(tmp_path: Path) -> None:
    content = run_json()
    content["perfsuite"]["num_failed"] = -1
    path = tmp_path / "0001_run.json"
    path.write_text(stamped_first(content))

    reason = "is no run of pytest-benchmark: Expected `int` >= 0 - at `$.perfsuite.num_failed`"
    assert read_head(path) == read_run(path) == Unusable(path=path, reason=reason)
    nothing = Unusable(path=tmp_path, reason="is not a regular file")
    assert read_head(tmp_path) == read_moment(tmp_path) == nothing
