"""Stored runs of the base: an increase of a count is for pairs, a time is only waved through."""

from __future__ import annotations

import dataclasses
import datetime
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from git_checkouts import git

from perfsuite.gate.baselines.stored_verdict import History, read_history
from perfsuite.gate.git.repository import Base
from perfsuite.gate.judge.counts import Slack
from perfsuite.gate.judge.trial import CellPolicy
from perfsuite.plugin.session.saving import put_stamp
from perfsuite.records.cell import Counts
from perfsuite.records.run_file import RunStamp, StoredCell, StoredRun
from perfsuite.records.verdict import CellVerdict
from perfsuite.system.environment import describe_host

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
    return StoredCell(median_s=median_s, counts=counted(flops))


def history(*cells: StoredCell, base: int | None = None) -> History:
    """Runs of a cell, each of a commit of its own; the newest is of the base unless it is told."""
    of_base = str(len(cells) - 1 if base is None else base)
    return History(
        runs=[
            StoredRun(
                path=Path(f"{number}.json"),
                saved_at=NOW + datetime.timedelta(days=number),
                commit=str(number),
                is_dirty=False,
                stamp=None,
                cells={"test_a": one},
            )
            for number, one in enumerate(cells)
        ],
        refused=(),
        probe=dict,
        behind={str(number): len(cells) - 1 - number for number in range(len(cells))},
        is_of_base=of_base.__eq__,
    )


def screen(stored: History, median_s: float, said: list[str]) -> CellVerdict | None:
    return stored.screen("test_a", cell(median_s), None, COUNTED, said.append)


def test_more_flops_than_in_the_bases_run_are_an_increase() -> None:
    stored = history(cell(flops=80), cell(flops=100))

    grown = stored.find_increases("test_a", cell(flops=120), COUNTED, print)

    assert grown == "flops 100 -> 120 (+20.0 %), allowed 0 %"


def test_counts_that_a_stored_run_cannot_say_are_named() -> None:
    elsewhere = msgspec.structs.replace(cell(flops=100), fingerprint="aaaa")
    here = msgspec.structs.replace(cell(flops=120), fingerprint="bbbb")
    without = msgspec.structs.replace(cell(), counts=None)
    said: list[str] = []

    assert history(elsewhere).find_increases("test_a", here, COUNTED, said.append) is None
    assert history(without).find_increases("test_a", here, COUNTED, said.append) is None

    assert said[0] == (
        "test_a: counts and memory are not compared: the base ran in another environment: "
        "aaaa -> bbbb (the base's stored run)"
    )
    assert said[1] == (
        "test_a: flops is not available of the base, so it is not compared (the base's stored run)"
    )


def test_counts_of_ranks_in_another_environment_are_not_compared_by_its_fields() -> None:
    here = msgspec.structs.replace(describe_host({}, 2), nccl="2.30", cudnn="91002")
    there = msgspec.structs.replace(here, nccl="2.28")
    stored, own = (
        msgspec.structs.replace(cell(), fingerprint=one.fingerprint, environment=one)
        for one in (there, here)
    )
    said: list[str] = []

    assert history(stored).find_increases("test_a", own, COUNTED, said.append) is None

    assert said == [
        "test_a: counts and memory are not compared: the base ran in another environment: "
        "NCCL 2.28 -> 2.30 (the base's stored run)"
    ]


def test_fewer_or_equal_counts_are_no_increase() -> None:
    stored = history(cell(flops=100))

    assert stored.find_increases("test_a", cell(flops=100), COUNTED, print) is None
    assert stored.find_increases("test_a", cell(flops=90), COUNTED, print) is None
    assert stored.find_increases("test_b", cell(flops=900), COUNTED, print) is None


def test_steps_over_other_samples_are_not_compared_with_stored_ones() -> None:
    small = msgspec.structs.replace(cell(flops=100), samples_per_s=16 / 0.01)
    stored = history(*[small] * 5)
    now = msgspec.structs.replace(cell(flops=400), samples_per_s=64 / 0.01)
    said: list[str] = []

    assert stored.find_increases("test_a", now, COUNTED, said.append) is None
    assert stored.screen("test_a", now, None, COUNTED, said.append) is None

    assert said == ["test_a goes to the judge: has 0 of the 5 stored sessions that a screen needs"]


def test_a_decrease_asks_for_a_new_stored_run() -> None:
    stored = history(cell(flops=100))
    said: list[str] = []

    grown = stored.find_increases("test_a", cell(flops=90), COUNTED, said.append)

    assert grown is None
    assert said == [
        "test_a: flops 100 -> 90 (-10.0 %); store a new run (--benchmark-save=NAME), "
        "or an increase up to the old one passes"
    ]


def test_a_marker_may_allow_an_increase_where_the_bases_does() -> None:
    stored = history(cell(flops=100))

    for slack in (Slack(ratio=0.25), None):
        allowed = dataclasses.replace(COUNTED, slacks=({"flops": slack},))
        assert stored.find_increases("test_a", cell(flops=120), allowed, print) is None
        allowed = dataclasses.replace(COUNTED, slacks=({"flops": slack}, {}))
        assert stored.find_increases("test_a", cell(flops=120), allowed, print) is not None


def test_five_runs_are_needed_to_screen() -> None:
    assert not history(*[cell()] * 4).can_screen("test_a")
    assert history(*[cell()] * 5).can_screen("test_a")
    assert not history(*[cell()] * 5).can_screen("test_b")


def test_where_the_newest_run_is_not_the_bases_no_run_decides_anything() -> None:
    stored = history(*[cell(flops=100)] * 8, base=6)
    said: list[str] = []

    assert not stored.can_screen("test_a")
    assert stored.find_increases("test_a", cell(flops=120), COUNTED, said.append) is None
    assert screen(stored, 0.01, said) is None
    assert said == [
        "test_a goes to the judge: no stored run that can be compared is of the base itself"
    ]


def test_a_time_like_the_stored_ones_passes_by_the_screen() -> None:
    stored = history(*(cell(median_s=0.01 * (1 + step / 10_000)) for step in range(8)))

    verdict = screen(stored, 0.01, [])

    assert verdict is not None
    assert (verdict.word, verdict.by, verdict.num_pairs) == ("PASS", "screen", 0)
    assert verdict.ratio is not None
    assert 0.99 < verdict.ratio < 1.01
    assert (verdict.tolerance, verdict.limit) == (0.02, 0.05)
    assert verdict.compared_with == "screen: 8 runs, newest of the base itself"


def test_a_slower_time_is_for_the_judge() -> None:
    stored = history(*(cell(median_s=0.01 * (1 + step / 10_000)) for step in range(8)))

    said: list[str] = []

    assert screen(stored, 0.0108, said) is None
    assert said == [
        "test_a goes to the judge: 8.0 % slower than 8 stored sessions and 7.9 % slower than the "
        "newest; at worst 8.0 % slower, limit 5.0 %"
    ]


def test_a_much_faster_time_is_an_improvement() -> None:
    stored = history(*(cell(median_s=0.01 * (1 + step / 10_000)) for step in range(8)))

    verdict = screen(stored, 0.007, [])

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


def commit(root: Path, name: str = "code.py") -> str:
    with (root / name).open("a") as file:
        file.write("more\n")
    git(root, "add", name)
    git(root, "commit", "--quiet", "--message", name)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    return tmp_path


def read(checkout: Path, revision: str | None) -> History:
    base = None if revision is None else Base(revision=revision, described="the base")
    storage = checkout / "baselines"
    return read_history(checkout, storage, True, "here", base=base, probe=dict)


def test_without_a_base_in_git_no_stored_run_counts(tmp_path: Path) -> None:
    store_run(tmp_path / "baselines" / "Linux", 1, "here")

    found = read(tmp_path, None)

    assert found.runs == ()
    assert found.refused == (
        "stored runs: without a base in git nothing says which of them are the base's",
    )


def test_the_base_and_its_first_parents_alone_have_a_history_in_the_order_of_commits(
    checkout: Path,
) -> None:
    first = commit(checkout)
    git(checkout, "switch", "--quiet", "--create", "side")
    side = commit(checkout, "side.py")
    git(checkout, "switch", "--quiet", "main")
    second = commit(checkout)
    git(checkout, "merge", "--quiet", "--no-edit", "side")
    base = git(checkout, "rev-parse", "HEAD")
    later = commit(checkout)
    folder = checkout / "baselines" / "Linux"
    # The old job was run again last.
    for number, one in enumerate((side, later, base, second, first), start=1):
        store_run(folder, number, "here", commit=one)

    found = read(checkout, base)

    assert [run.commit for run in found.runs] == [first, second, base]
    assert found.refused == tuple(
        f"{folder}/{number:04}_run.json: its commit {one[:12]} is not in the base's history "
        "(without a gate: the default branch's)"
        for number, one in ((1, side), (2, later))
    )


def test_a_run_is_the_bases_own_where_documentation_and_records_alone_came_later(
    checkout: Path,
) -> None:
    older, measured = commit(checkout), commit(checkout)
    for name in ("README.md", "docs/index.txt", "baselines/accepted.toml"):
        (checkout / name).parent.mkdir(exist_ok=True)
        base = commit(checkout, name)
    folder = checkout / "baselines" / "Linux"
    for number in range(1, 5):
        store_run(folder, number, "here", commit=older)
    store_run(folder, 5, "here", commit=measured)

    found = read(checkout, base)
    before = read(checkout, commit(checkout))

    assert found.can_screen("test_a")
    verdict = screen(found, 0.01, [])
    assert verdict is not None
    assert verdict.compared_with == "screen: 5 runs, newest 3 commits behind the base"
    assert len(before.runs) == 5
    assert not before.can_screen("test_a")


def test_only_the_newest_sessions_of_this_environment_are_history(checkout: Path) -> None:
    base = commit(checkout)
    folder = checkout / "baselines" / "Linux"
    for number in range(1, 26):
        store_run(folder, number, "elsewhere" if number == 25 else "here", commit=base)

    found = read(checkout, base)

    assert [run.path.name[:4] for run in found.runs] == [f"{n:04}" for n in range(5, 25)]
    assert found.refused == (
        f"{folder}/0025_run.json: was made in another environment: elsewhere -> here",
    )
    assert found.can_screen("test_a")
