"""Durations: what the newest runs tell, the same for every runner that has the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfsuite.gate.baselines.select import read_durations
from perfsuite.plugin.session.saving import put_stamp
from perfsuite.records.run_file import RunStamp

OLD, NEW = "a" * 40, "b" * 40


def store(path: Path, durations_s: dict[str, float], *, commit: str = OLD) -> Path:
    """Write a run of some machine or other."""
    content: dict[str, Any] = {
        "datetime": "2026-11-01T00:00:00+00:00",
        "commit_info": {"id": commit, "dirty": False},
        "benchmarks": [],
    }
    stamp = RunStamp(
        fingerprint=path.stem,
        probe_s=None,
        num_failed=0,
        is_pull_request=False,
        verdicts={},
        accepted=(),
        durations_s=durations_s,
    )
    put_stamp(content, stamp)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=4))
    return path


def test_the_newest_run_that_has_a_test_tells_its_duration(tmp_path: Path) -> None:
    store(tmp_path / "Linux-3.11" / "0001_a.json", {"a": 1.0, "b": 1.0, "c": 1.0})
    store(tmp_path / "Linux-3.12" / "0002_b.json", {"a": 2.0, "b": 2.0, "z": 2.0})
    store(tmp_path / "Linux-3.11" / "0003_c.json", {"a": 3.0})

    seconds, refused = read_durations(tmp_path, ["a", "b", "c", "d"], but_of=None)

    assert seconds == {"a": 3.0, "b": 2.0, "c": 1.0, "d": None}
    assert refused == []


def test_a_run_of_the_commit_that_is_measured_tells_nothing(tmp_path: Path) -> None:
    store(tmp_path / "x" / "0001_a.json", {"a": 1.0})
    store(tmp_path / "x" / "0002_b.json", {"a": 9.0}, commit=NEW)

    assert read_durations(tmp_path, ["a"], but_of=NEW)[0] == {"a": 1.0}
    assert read_durations(tmp_path, ["a"], but_of=None)[0] == {"a": 9.0}


def test_one_run_may_be_named(tmp_path: Path) -> None:
    path = store(tmp_path / "run.json", {"a": 1.0})

    assert read_durations(path, ["a"], but_of=None)[0] == {"a": 1.0}


def test_runs_without_durations_and_files_that_are_none_leave_them_unknown(tmp_path: Path) -> None:
    store(tmp_path / "x" / "0001_a.json", {})
    (tmp_path / "x" / "0002_b.json").write_text("")
    missing = tmp_path / "missing"

    seconds, refused = read_durations(tmp_path, ["a"], but_of=None)

    assert seconds == {"a": None}
    assert [one.reason for one in refused] == ["is empty"]
    assert [one.reason for one in read_durations(missing, ["a"], but_of=None)[1]] == [
        "No such file or directory"
    ]
