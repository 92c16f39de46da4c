"""Stored runs: an increase of a count fails, a time is only ever waved through."""

from __future__ import annotations

import dataclasses
import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

from perfsuite.gate.baselines.screen import Candidate
from perfsuite.gate.baselines.stored_verdict import History, read_history
from perfsuite.gate.judge.counts import Slack
from perfsuite.gate.judge.trial import CellPolicy
from perfsuite.plugin.session.saving import put_stamp
from perfsuite.records.cell import Counts
from perfsuite.records.run_file import RunStamp, StoredCell, StoredRun

COUNTED = CellPolicy(tolerance=0.02, limit=0.05, floor_s=0.0, slacks=({},))
NOW = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)


def counted(flops: int) -> Counts:
    return Counts(
        flops=flops,
        ops=1,
        collectives=0,
        collective_bytes=0,
        saved_activation_bytes=0,
        kernel_launches=None,
    )


def cell(median_s: float = 0.01, flops: int = 100) -> StoredCell:
    return StoredCell(median_s=median_s, params={}, counts=counted(flops))


def history(*cells: StoredCell) -> History:
    return History(
        runs=[
            StoredRun(
                path=Path(f"{number}.json"),
                saved_at=NOW + datetime.timedelta(days=number),
                commit=None,
                is_dirty=False,
                stamp=None,
                cells={"test_a": one},
            )
            for number, one in enumerate(cells)
        ],
        refused=(),
        probe=dict,
    )


def candidate(median_s: float) -> Candidate:
    return Candidate(
        fullname="test_a", median_s=median_s, fingerprint=None, tolerance=0.02, limit=0.05
    )


def test_more_flops_than_in_the_newest_run_are_an_increase() -> None:
    stored = history(cell(flops=80), cell(flops=100))

    grown = stored.find_increases("test_a", cell(flops=120), None, COUNTED, print)

    assert grown == "flops 100 -> 120 (+20.0 %), allowed 0 %"


def test_counts_that_a_stored_run_cannot_say_are_named() -> None:
    elsewhere = dataclasses.replace(cell(flops=100), fingerprint="aaaa")
    here = dataclasses.replace(cell(flops=120), fingerprint="bbbb")
    without = dataclasses.replace(cell(), counts=None)
    said: list[str] = []

    assert history(elsewhere).find_increases("test_a", here, None, COUNTED, said.append) is None
    assert history(without).find_increases("test_a", here, None, COUNTED, said.append) is None

    assert said[0] == (
        "test_a: counts and memory are not compared: the base ran in the environment aaaa, head "
        "in bbbb (the newest stored run)"
    )
    assert said[1] == (
        "test_a: flops is not available of the base, so it is not compared (the newest stored run)"
    )


def test_fewer_or_equal_counts_are_no_increase() -> None:
    stored = history(cell(flops=100))

    assert stored.find_increases("test_a", cell(flops=100), None, COUNTED, print) is None
    assert stored.find_increases("test_a", cell(flops=90), None, COUNTED, print) is None
    assert stored.find_increases("test_b", cell(flops=900), None, COUNTED, print) is None


def test_steps_over_other_samples_are_not_compared_with_stored_ones() -> None:
    small = dataclasses.replace(cell(flops=100), num_samples=16)
    stored = history(small, small, small)
    now = dataclasses.replace(candidate(0.01), num_samples=64)
    said: list[str] = []

    assert stored.find_increases("test_a", cell(flops=400), 64, COUNTED, said.append) is None
    assert stored.screen(now, said.append) is None

    assert said == ["test_a goes to the judge: has 0 of the 3 stored sessions that a screen needs"]


def test_a_decrease_asks_for_a_new_stored_run() -> None:
    stored = history(cell(flops=100))
    said: list[str] = []

    grown = stored.find_increases("test_a", cell(flops=90), None, COUNTED, said.append)

    assert grown is None
    assert said == [
        "test_a: flops 100 -> 90 (-10.0 %), allowed 0 %; store a new run (--benchmark-save=NAME), "
        "or an increase up to the old one passes"
    ]


def test_a_marker_may_allow_an_increase_where_the_bases_does() -> None:
    stored = history(cell(flops=100))

    for slack in (Slack(ratio=0.25), None):
        allowed = dataclasses.replace(COUNTED, slacks=({"flops": slack},))
        assert stored.find_increases("test_a", cell(flops=120), None, allowed, print) is None
        allowed = dataclasses.replace(COUNTED, slacks=({"flops": slack}, {}))
        assert stored.find_increases("test_a", cell(flops=120), None, allowed, print) is not None


def test_three_runs_are_needed_to_screen() -> None:
    assert not history(cell(), cell()).can_screen("test_a")
    assert history(cell(), cell(), cell()).can_screen("test_a")
    assert not history(cell(), cell(), cell()).can_screen("test_b")


def test_a_time_like_the_stored_ones_passes_by_the_screen() -> None:
    stored = history(*(cell(median_s=0.01 * (1 + step / 10_000)) for step in range(8)))

    verdict = stored.screen(candidate(0.01), print)

    assert verdict is not None
    assert (verdict.word, verdict.by, verdict.num_pairs) == ("PASS", "screen", 0)
    assert verdict.ratio is not None
    assert 0.99 < verdict.ratio < 1.01
    assert (verdict.tolerance, verdict.limit) == (0.02, 0.05)


def test_a_slower_time_is_for_the_judge() -> None:
    stored = history(*(cell(median_s=0.01 * (1 + step / 10_000)) for step in range(8)))

    said: list[str] = []

    assert stored.screen(candidate(0.0108), said.append) is None
    assert said == [
        "test_a goes to the judge: 8.0 % slower than 8 stored sessions; at worst 8.0 % "
        "slower, limit 5.0 %"
    ]


def test_a_much_faster_time_is_an_improvement() -> None:
    stored = history(*(cell(median_s=0.01 * (1 + step / 10_000)) for step in range(8)))

    verdict = stored.screen(candidate(0.007), print)

    assert verdict is not None
    assert verdict.word == "IMPROVED"


def store_run(folder: Path, number: int, fingerprint: str, *, commit: str = "") -> None:
    content: dict[str, Any] = {
        "datetime": str(NOW + datetime.timedelta(days=number)),
        "commit_info": {"id": commit, "dirty": False},
        "benchmarks": [{"fullname": "test_a", "stats": {"median": 0.01}}],
    }
    put_stamp(
        content,
        RunStamp(
            fingerprint=fingerprint,
            probe_s=None,
            num_failed=0,
            is_pull_request=False,
            verdicts={},
            accepted=(),
        ),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number:04}_run.json").write_text(json.dumps(content, indent=4))


def test_a_checkout_without_a_commit_has_no_history(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    storage = tmp_path / "baselines"
    store_run(storage / "Linux", 1, "here", commit="5db0efb7ac6bdcd7cfd9f58b9eebfe8798f3638b")

    found = read_history(tmp_path, storage, True, "here", probe=dict)

    assert found.runs == ()
    assert found.refused == (
        f"{storage}/Linux/0001_run.json: its commit 5db0efb7ac6b is neither the base nor an "
        "ancestor of it",
    )


def test_only_the_newest_sessions_of_this_environment_are_history(tmp_path: Path) -> None:
    folder = tmp_path / "baselines" / "Linux"
    for number in range(1, 16):
        store_run(folder, number, "elsewhere" if number == 15 else "here")

    found = read_history(tmp_path, folder.parent, True, "here", probe=dict)

    assert [run.path.name[:4] for run in found.runs] == [f"{n:04}" for n in range(5, 15)]
    assert found.refused == (
        f"{folder}/0015_run.json: was made in the environment elsewhere, and this one is here",
    )
    assert found.can_screen("test_a")
