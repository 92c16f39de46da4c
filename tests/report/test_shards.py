"""Shards of one session in one report, and what is said where they are not all of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_up_runs import benchmark, record, stamp, verdict, write_run

from perfsuite.report.model import Report, report_on_runs
from perfsuite.report.runs import Run, read_runs
from perfsuite.report.shards import merge_shards
from perfsuite.system.environment import describe_host

MORNING = datetime.fromisoformat("2026-11-21T08:00:00+00:00")
HERE, THERE = "5db0efb" + "0" * 33, "aaaaaaa" + "0" * 33
FAMILY = "verdicts are corrected over the 6 cells under test in all 3 shards"


def shard(
    path: Path,
    number: int,
    *cells: str,
    word: str = "PASS",
    policy: str | None = None,
    minutes: float = 0.0,
    commit: str = HERE,
    fingerprint: str | None = "0123456789ab",
    is_dirty: bool = False,
    stamped: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write the run of one of three shards, whose cells all have one verdict and policy."""
    part = {"number": number, "num_shards": 3, "num_cells": 6, "partition": "cccccccccccc"}
    made = record(given=verdict(word, policy=policy), fingerprint=fingerprint)
    return write_run(
        path / f"{number}-{minutes:g}.json",
        *(benchmark(cell, info=made) for cell in cells),
        datetime=(MORNING + timedelta(minutes=minutes)).isoformat(),
        commit_info={"id": commit, "dirty": is_dirty},
        perfsuite=stamp(fingerprint=fingerprint, shard={**part, **changes}, **(stamped or {})),
    )


def merged(*paths: Path) -> Run:
    (run,) = merge_shards(read_runs(paths))
    return run


def report(*paths: Path) -> Report:
    return report_on_runs(merge_shards(read_runs(paths)))


def three(path: Path, **changes: Any) -> tuple[Path, Path, Path]:
    return (
        shard(path, 1, "a", "b", **changes),
        shard(path, 2, "c", "d", **changes),
        shard(path, 3, "e", "f", **changes),
    )


def test_all_shards_of_a_session_are_one_run_with_one_verdict(tmp_path: Path) -> None:
    paths = three(tmp_path)

    made = report(*reversed(paths))

    assert (made.summary.word, made.summary.text) == ("PASS", "6 cells: 6 PASS")
    assert [row.name for row in made.rows] == ["a", "b", "c", "d", "e", "f"]
    assert made.sources == (
        f"{paths[0]}, {paths[1]}, {paths[2]}, 2026-11-21 08:00 UTC, commit 5db0efb, a CPU, Linux",
    )
    assert made.remarks == (FAMILY,)


@pytest.mark.parametrize(("policy", "word"), [("quarantined", "PASS"), ("advisory", "FAIL")])
def test_a_regression_that_changes_no_exit_code_is_shown_as_such(
    tmp_path: Path, policy: str, word: str
) -> None:
    first, second, _ = three(tmp_path)
    paths = first, second, shard(tmp_path, 3, "e", "f", word="FAIL", policy=policy)

    made = report(*paths)

    assert (made.summary.word, made.summary.text) == (word, f"6 cells: 2 FAIL {policy}, 4 PASS")
    assert merged(*paths).unjudged == ()


def test_shards_whose_cells_are_all_quarantined_compare_nothing(tmp_path: Path) -> None:
    made = report(*three(tmp_path, policy="quarantined"))

    assert (made.summary.word, made.summary.text) == (
        "NOTHING COMPARED",
        "6 cells: 6 PASS quarantined",
    )


def test_a_regression_in_one_shard_is_one_of_the_session(tmp_path: Path) -> None:
    first, second, _ = three(tmp_path)

    made = report(first, second, shard(tmp_path, 3, "e", "f", word="FAIL"))

    assert (made.summary.word, made.summary.text) == ("FAIL", "6 cells: 2 FAIL, 4 PASS")


def test_a_missing_shard_is_named_and_no_pass_is_proven(tmp_path: Path) -> None:
    first, _, third = three(tmp_path)

    made = report(first, third)

    assert made.summary.word == "NO VERDICT"
    assert made.summary.text == "4 cells: 4 PASS; missing: shard 2/3"
    assert made.remarks == ("missing: shard 2/3", FAMILY)


def test_a_shard_alone_is_no_session(tmp_path: Path) -> None:
    made = report(shard(tmp_path, 2, "c", "d"))

    assert made.summary.text == "2 cells: 2 PASS; missing: shards 1/3 and 3/3"


@pytest.mark.parametrize("word", ["FAIL", "INCONCLUSIVE"])
def test_a_missing_shard_hides_nothing_graver(tmp_path: Path, word: str) -> None:
    assert report(shard(tmp_path, 2, "c", "d", word=word)).summary.word == word


def test_of_a_shard_that_is_there_twice_the_newest_counts(tmp_path: Path) -> None:
    again = shard(tmp_path, 2, "c", "d", word="FAIL", minutes=5)

    made = report(*three(tmp_path), again)

    assert made.summary.text == "6 cells: 2 FAIL, 4 PASS"
    assert made.remarks == (FAMILY, "more than once, the newest counts: shard 2/3")


def test_of_two_sessions_at_one_commit_the_newest_counts(tmp_path: Path) -> None:
    morning = three(tmp_path)
    evening = three(tmp_path, minutes=600)

    run = merged(*morning, *evening)

    assert (run.saved_at.hour, run.gaps) == (18, ())
    assert run.remarks == (
        FAMILY,
        "more than once, the newest counts: shards 1/3, 2/3 and 3/3",
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"commit": THERE}, "other commit or changes"),
        ({"is_dirty": True}, "other commit or changes"),
        ({"num_shards": 4}, "other partition"),
        ({"num_cells": 7}, "other partition"),
        ({"partition": "dddddddddddd"}, "other partition"),
    ],
)
def test_shards_that_were_cut_or_made_apart_are_not_merged(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    first, second, _ = three(tmp_path)
    third = shard(tmp_path, 3, "e", "f", minutes=5, **changes)

    made = report(first, second, third)

    assert made.summary.word == "NO VERDICT"
    assert made.remarks[0].startswith("missing: shards 1/")
    assert made.remarks[2:4] == (f"not merged: {first} ({why})", f"not merged: {second} ({why})")


def test_shards_of_several_environments_are_merged_and_named(tmp_path: Path) -> None:
    first, second, _ = three(tmp_path)

    made = report(first, second, shard(tmp_path, 3, "e", "f", fingerprint="ba9876543210"))

    assert made.summary.word == "PASS"
    assert made.remarks == (
        FAMILY,
        "the shards ran in 2 environments: shards 1/3 and 2/3; shard 3/3 "
        "(0123456789ab -> ba9876543210)",
    )


def test_environments_of_shards_are_told_by_their_fields(tmp_path: Path) -> None:
    here = describe_host({}, 2)
    there = msgspec.structs.replace(here, driver="580", nccl="2.30")
    known = {one.fingerprint: msgspec.to_builtins(one) for one in (here, there)}
    first, second = (
        shard(tmp_path, 1 + number, *cells, fingerprint=one, stamped={"environments": known})
        for number, (one, cells) in enumerate(zip(known, ("ab", "cd"), strict=True))
    )

    made = report(first, second, shard(tmp_path, 3, "e", "f", fingerprint=None))

    assert made.remarks[1] == (
        "the shards ran in 3 environments: shard 1/3; shard 2/3 (driver none -> 580, "
        f"NCCL none -> 2.30); shard 3/3 ({here.fingerprint} -> unknown)"
    )


def test_cells_without_a_time_or_in_two_shards_are_named(tmp_path: Path) -> None:
    first, second, _ = three(tmp_path)

    run = merged(first, second, shard(tmp_path, 3, "a"))

    assert run.remarks == (FAMILY, "in more than one shard: a")
    assert run.gaps == ("without a time or a verdict: 2 of the cells",)
    assert [row.name for row in run.rows] == ["a", "b", "c", "d"]


def test_cells_that_no_shard_has_prove_no_pass(tmp_path: Path) -> None:
    first, second, _ = three(tmp_path)

    made = report(first, second, shard(tmp_path, 3, "e"))

    assert made.summary.word == "NO VERDICT"
    assert made.summary.text == "5 cells: 5 PASS; without a time or a verdict: 1 of the cells"


def test_a_test_that_failed_in_one_shard_failed_in_the_session(tmp_path: Path) -> None:
    first, second, _ = three(tmp_path)

    made = report(first, second, shard(tmp_path, 3, "e", "f", stamped={"num_failed": 2}))

    assert (made.summary.word, made.summary.text) == (
        "ERROR",
        "6 cells: 6 PASS; 2 of its tests failed",
    )


def test_a_cell_that_one_shard_judged_without_measuring_it_is_shown(tmp_path: Path) -> None:
    first, second, _ = three(tmp_path)

    made = report(first, second, shard(tmp_path, 3, "e", stamped={"verdicts": {"f": "INVALID"}}))

    assert (made.summary.word, made.summary.text) == ("NO VERDICT", "6 cells: 1 INVALID, 5 PASS")
    assert [row.name for row in made.rows if row.step_time_s is None] == ["f"]


def test_commits_that_begin_alike_are_two(tmp_path: Path) -> None:
    first, second, _ = three(tmp_path)
    other = HERE[:-1] + "1"

    made = report(first, second, shard(tmp_path, 3, "e", "f", commit=other, minutes=5))

    assert made.summary.word == "NO VERDICT"
    assert f"not merged: {first} (other commit or changes)" in made.remarks


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"commit": ""}, "no shard names its commit, so they may be of different code"),
        ({"is_dirty": True}, "the shards were made with uncommitted changes, so they may be of "
                             "different code"),
    ],
)  # fmt: skip
def test_shards_of_unknown_code_are_merged_with_a_remark(
    tmp_path: Path, changes: dict[str, Any], remark: str
) -> None:
    made = report(*three(tmp_path, **changes))

    assert made.summary.word == "PASS"
    assert made.remarks == (FAMILY, remark)


def test_a_shard_that_is_given_twice_is_one_run(tmp_path: Path) -> None:
    first = shard(tmp_path, 1, "a", "b")

    made = report(first, first)

    assert made.remarks == (
        "missing: shards 2/3 and 3/3",
        FAMILY,
        f"given 2 times, counted once: {first}",
    )


def test_a_copy_of_a_run_is_no_second_point_of_its_history(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.json", benchmark("a", info=record()))
    copy = tmp_path / "b.json"
    copy.write_bytes(path.read_bytes())

    made = report(path, copy)

    assert made.remarks == (f"given 2 times, counted once: {path}, {copy}",)
    assert [len(row.history) for row in made.rows] == [1]


def test_whole_runs_stay_as_they_are_and_are_the_history(tmp_path: Path) -> None:
    whole = write_run(
        tmp_path / "whole.json",
        benchmark("a", info=record()),
        datetime=(MORNING - timedelta(days=1)).isoformat(),
    )

    made = report(whole, *three(tmp_path))

    assert [len(row.history) for row in made.rows] == [2, 1, 1, 1, 1, 1]
    assert made.summary.word == "PASS"


def test_one_of_very_many_shards_does_not_list_the_others(tmp_path: Path) -> None:
    run = merged(shard(tmp_path, 2, "a", num_shards=99_999))

    assert run.gaps == ("missing: 99998 shards, 1/99999 the first",)
