"""The verbs `baseline list`, `accept` and `prune`: what they show, write, remove and refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from command_line import call_verb
from pytest_benchmark.utils import get_machine_id
from stored_histories import HERE, MACHINE

from perfsuite.cli import app, options
from perfsuite.gate.baselines.accepted import (
    Increase,
    Loosening,
    Quarantine,
    Removal,
    Rename,
    Slowdown,
    read_accepted,
)
from perfsuite.plugin.session import saving

ELSEWHERE = "ba9876543210"
CELL = "benchmarks/test_a.py::test_a[ddp:2]"
FOLDER = get_machine_id()
WHY = ("--reason", "it checks its input", "--expires", "2999-01-31")
ABOUT: dict[str, Any] = {
    "cell": CELL,
    "reason": "it checks its input",
    "expires": date(2999, 1, 31),
}
EXPIRED = """\
# Kept.
[[accepted]]
cell = "a"
kind = "removed"
reason = "nobody used it"
expires = 2999-01-31

# Gone.
[[accepted]]
cell = "b"
kind = "slowdown"
ratio = 1.08
reason = "slower, and right"
expires = 2020-01-31
"""

Call = Callable[..., int]


class FirstOfFebruary(date):
    """A calendar that stands still, also where the tests run past midnight."""

    @classmethod
    def today(cls) -> Self:
        return cls(2020, 2, 1)


@pytest.fixture
def perfsuite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls the console script's function in a folder outside of git, and returns its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "environment_here", lambda: MACHINE)
    return partial(call_verb, "baseline")


def store(
    storage: Path,
    name: str,
    *,
    day: int,
    num_failed: int = 0,
    fingerprint: str = HERE,
    commit: str = "5db0efb7ac6bdcd7cfd9f58b9eebfe8798f3638b",
    shard: int | None = None,
) -> Path:
    path = storage / FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "datetime": f"2026-11-{day:02}T10:30:00+00:00",
        "commit_info": {"id": commit, "dirty": False},
        "benchmarks": [{"fullname": CELL, "stats": {"median": 0.1}}],
        "perfsuite": {
            "schema": 1,
            "fingerprint": fingerprint,
            "probe_s": None,
            "num_failed": num_failed,
            "is_pull_request": False,
            "verdicts": {},
            "accepted": [],
        },
    }
    if shard is not None:
        cut = {"number": shard, "num_shards": 2, "num_cells": 1, "partition": "1a"}
        content["perfsuite"] = {**content["perfsuite"], "shard": cut}  # type: ignore[dict-item]
    path.write_text(json.dumps(content))
    return path


# --- list ---


def test_list_shows_each_run_and_why_it_is_not_used(
    perfsuite: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = tmp_path / "baselines"
    store(storage, "0001_good.json", day=1)
    store(storage, "0003_failed.json", day=3, num_failed=2)
    store(storage, "0002_other.json", day=2, fingerprint=ELSEWHERE)
    store(storage, "0004_cut.json", day=4).write_text("")

    assert perfsuite("list") == 0

    heading, _, *rows, last = capsys.readouterr().out.splitlines()
    assert heading.split() == ["run", "saved", "(UTC)", "commit", "environment", "cells", "use"]
    assert [" ".join(row.split()) for row in rows] == [
        f"{FOLDER}/0004_cut.json - - - - is empty",
        f"{FOLDER}/0001_good.json 2026-11-01 10:30 5db0efb7ac6b {HERE} (here) 1 usable",
        f"{FOLDER}/0002_other.json 2026-11-02 10:30 5db0efb7ac6b {ELSEWHERE} 1 "
        f"was made in another environment: {ELSEWHERE} -> {HERE}",
        f"{FOLDER}/0003_failed.json 2026-11-03 10:30 5db0efb7ac6b {HERE} (here) 1 "
        "2 of its tests failed",
    ]
    assert last == f"1 of 4 usable in this environment, {HERE}"


def test_list_writes_what_it_shows(perfsuite: Call, tmp_path: Path) -> None:
    storage = tmp_path / "elsewhere"
    good = store(storage, "0001_good.json", day=1)
    cut = store(storage, "0002_cut.json", day=2)
    cut.write_text("{")

    assert perfsuite("list", "--storage", str(storage), "--json", "runs.json") == 0

    document = json.loads((tmp_path / "runs.json").read_text())
    unreadable, usable = document.pop("runs")
    assert document == {"schema": 1, "fingerprint": HERE}
    assert usable == {
        "path": str(good),
        "saved_at": "2026-11-01T10:30:00Z",
        "commit": "5db0efb7ac6bdcd7cfd9f58b9eebfe8798f3638b",
        "fingerprint": HERE,
        "is_this_environment": True,
        "num_cells": 1,
        "is_usable": True,
        "reason": None,
    }
    assert unreadable["path"] == str(cut)
    assert unreadable["is_usable"] is False
    assert unreadable["reason"].startswith("is not JSON, or was cut off: ")
    assert (unreadable["saved_at"], unreadable["num_cells"]) == (None, None)


def test_list_of_no_storage_says_so(
    perfsuite: Call, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert perfsuite("list", "--json", "runs.json") == 0

    said = "baselines: does not exist, so no run is stored in it\n"
    assert capsys.readouterr().out == said
    assert json.loads((tmp_path / "runs.json").read_text())["runs"] == []


def test_in_a_checkout_the_runs_of_the_default_branch_are_usable(
    perfsuite: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = make_commit(tmp_path, "init")
    run_git(tmp_path, "checkout", "--quiet", "-b", "side")
    merged = make_commit(tmp_path)
    run_git(tmp_path, "checkout", "--quiet", "main")
    run_git(tmp_path, "merge", "--quiet", "--no-ff", "--message", "a merge", "side")
    run_git(tmp_path, "checkout", "--quiet", "-b", "feature")
    theirs = make_commit(tmp_path)
    for day, commit in enumerate((ours, merged, theirs), start=1):
        store(tmp_path / "baselines", f"000{day}_run.json", day=day, commit=commit)

    perfsuite("list")

    *_, main, side, feature, last = capsys.readouterr().out.splitlines()
    assert main.endswith("  usable")
    for line, commit in ((side, merged), (feature, theirs)):
        reason = "is not in the base's history (without a gate: the default branch's)"
        assert line.endswith(f"its commit {commit[:12]} {reason}")
    assert last == f"1 of 3 usable in this environment, {HERE}"


def make_commit(folder: Path, *before: str) -> str:
    if before:
        run_git(folder, "init", "--quiet", "-b", "main")
    run_git(folder, "commit", "--quiet", "--allow-empty", "--message", "a")
    return run_git(folder, "rev-parse", "HEAD")


def run_git(folder: Path, *arguments: str) -> str:
    git = ("git", "-c", "user.name=A", "-c", "user.email=a@example.org")
    ended = subprocess.run(
        [*git, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return ended.stdout.strip()


def test_a_run_that_was_just_saved_is_listed_as_usable(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(saving, "is_pull_request", lambda environ: False)
    pytester.makepyfile(test_sum="def test_sum(benchmark): benchmark.pedantic(sum, args=([1],))")
    pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "--perf-gate=on", "--benchmark-save=base"
    )
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["perfsuite", "baseline", "list"])

    with pytest.raises(SystemExit):
        app.main()

    row, last = capsys.readouterr().out.splitlines()[-2:]
    assert row.split()[-3:] == ["(here)", "1", "usable"]
    assert last.startswith("1 of 1 usable in this environment, ")


# --- accept ---


@pytest.mark.parametrize(
    ("arguments", "entry", "said"),
    [
        (
            ["--slowdown", "1.08"],
            Slowdown(ratio=1.08, **ABOUT),
            "may take up to 8.0 % more time",
        ),
        (["--removed"], Removal(**ABOUT), "may be gone"),
        (["--quarantined"], Quarantine(**ABOUT), "is quarantined"),
        (["--renamed-to", "b[c]"], Rename(to="b[c]", **ABOUT), "may be called b[c]"),
        (
            ["--increase", "flops=1.5"],
            Increase(count="flops", ratio=1.5, **ABOUT),
            "may have up to 50.0 % more of flops",
        ),
        (
            ["--increase", "memory"],
            Increase(count="memory", **ABOUT),
            "may have any amount more of memory",
        ),
        (
            ["--looser", "limit=8%", "--looser", "gate=off"],
            Loosening(limit="8%", gate="off", **ABOUT),
            "may be judged by limit 8%, gate off",
        ),
    ],
)
def test_accept_writes_one_line_for_the_review(
    perfsuite: Call,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    entry: Any,
    said: str,
) -> None:
    assert perfsuite("accept", CELL, *arguments, *WHY, "--json", "entry.json") == 0

    path = tmp_path / "baselines" / "accepted.toml"
    assert read_accepted(path, date.today()).entries == (entry,)
    assert capsys.readouterr().out.splitlines() == [
        f"baselines/accepted.toml: {CELL} {said} until 2999-01-31: it checks its input",
        "review and commit it like code: git add baselines/accepted.toml",
    ]
    document = json.loads((tmp_path / "entry.json").read_text())
    assert (document["schema"], document["file"]) == (1, "baselines/accepted.toml")
    assert document["accepted"]["cell"] == CELL


def test_accept_adds_to_what_is_there(perfsuite: Call, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(EXPIRED)

    assert perfsuite("accept", CELL, "--removed", *WHY, "--file", str(path)) == 0

    assert path.read_text().startswith(EXPIRED)
    assert read_accepted(path, date.today()).removal(CELL) is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [CELL, *WHY],
            "0 of --slowdown, --removed, --quarantined, --renamed-to, --increase and --looser are "
            "given; use one of them",
        ),
        (
            [CELL, "--slowdown", "1.08", "--removed", *WHY],
            "2 of --slowdown, --removed, --quarantined, --renamed-to, --increase and --looser are "
            "given; use one of them",
        ),
        (
            [CELL, "--increase", "ops", "--increase", "memory", *WHY],
            "--increase is given several times; call this once for each count",
        ),
        (
            [CELL, "--slowdown", "0.08", *WHY],
            "ratio is 0.08; use a number above 1, such as 1.08 for 8 % more",
        ),
        (
            [CELL, "--slowdown", "nan", *WHY],
            "ratio is nan; use a number above 1, such as 1.08 for 8 % more",
        ),
        (
            [CELL, "--looser", "limit", *WHY],
            "--looser is 'limit'; use NAME=VALUE, such as limit=8%, with one of limit, tolerance, "
            "floor, policy, gate",
        ),
        (
            [CELL, "--looser", "limit=8%", "--looser", "limit=9%", *WHY],
            "--looser is 'limit=8% limit=9%'; give each of them once",
        ),
        (
            [CELL, "--looser", "limt=8%", *WHY],
            "--looser is 'limt=8%'; use NAME=VALUE, such as limit=8%, with one of limit, "
            "tolerance, floor, policy, gate",
        ),
        (
            [CELL, "--looser", "limit=much", *WHY],
            "limit: 'much' is not a ratio; write '2%' or '0.02'",
        ),
        (
            [CELL, "--increase", "flop", *WHY],
            "count is 'flop'; use one of flops, ops, collectives, collective_bytes, "
            "saved_activation_bytes, kernel_launches, collected_objects, "
            "allocator_retries, host_syncs, device_copies, device_copy_bytes, graph_breaks, "
            "recompiles, kept_bytes, memory",
        ),
        (
            [CELL, "--increase", "flops=", *WHY],
            "--increase flops is ''; use a number above 1, such as 1.08 for 8 % more",
        ),
        (
            [CELL, "--slowdown", "8%", *WHY],
            "--slowdown is '8%'; use a number above 1, such as 1.08 for 8 % more",
        ),
        (
            [CELL, "--renamed-to", CELL, *WHY],
            f"to is {CELL!r}; use another name than the cell's",
        ),
        ([" ", "--removed", *WHY], "cell is empty"),
        ([CELL, "--removed", *WHY, "--reason", ""], "reason is empty"),
        (
            [CELL, "--removed", "--reason", "old", "--expires", "2020-01-31"],
            "--expires is 2020-01-31, which is past; use 2020-02-01 or a later day",
        ),
    ],
)
def test_a_mistake_in_accept_is_one_line_and_writes_nothing(
    perfsuite: Call,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perfsuite.cli.verbs.baseline.date", FirstOfFebruary)

    assert perfsuite("accept", *arguments) == 2

    assert capsys.readouterr().err == f"perfsuite: {message}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["--reason", "--expires"])
def test_an_exception_needs_a_reason_and_an_end(
    perfsuite: Call, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    given = {"--reason": "it checks its input", "--expires": "2999-01-31"}
    del given[missing]
    ((option, value),) = given.items()

    assert perfsuite("accept", CELL, "--removed", option, value) == 2

    assert f"Missing option '{missing}'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["list"], ["accept", CELL, "--removed", *WHY], ["prune"]])
def test_json_that_cannot_be_written_ends_in_12_with_one_line(
    perfsuite: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    (tmp_path / "taken").write_text("")

    assert perfsuite(*arguments, "--json", "taken/result.json") == 12

    assert capsys.readouterr().err == "perfsuite: cannot write taken/result.json: Not a directory\n"


# --- prune ---


def test_prune_removes_exceptions_that_have_expired(
    perfsuite: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "baselines" / "accepted.toml"
    path.parent.mkdir()
    path.write_text(EXPIRED)

    assert perfsuite("prune", "--json", "pruned.json") == 0

    assert path.read_text() == EXPIRED[: EXPIRED.index("# Gone.")]
    assert capsys.readouterr().out == (
        "baselines/accepted.toml: removed, because it has expired: "
        "b may take up to 8.0 % more time until 2020-01-31: slower, and right\n"
        "baselines/accepted.toml: stays: a may be gone until 2999-01-31: nobody used it\n"
    )
    document = json.loads((tmp_path / "pruned.json").read_text())
    assert [entry["cell"] for entry in document.pop("expired")] == ["b"]
    assert document == {"schema": 1, "old_runs": [], "is_removed": False}


def test_prune_names_old_runs_and_removes_them_only_with_yes(
    perfsuite: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = tmp_path / "baselines"
    # The numbers are not in the order of time: another machine's clock, or a moved file.
    old = [store(storage, name, day=day) for name, day in (("0004_a.json", 1), ("0001_b.json", 2))]
    kept = [
        store(storage, "0002_c.json", day=4),
        store(storage, "0003_d.json", day=5),
        # Not this environment's, or no baseline: never counted, and never removed.
        store(storage, "0005_failed.json", day=6, num_failed=1),
        store(storage, "0006_other.json", day=1, fingerprint=ELSEWHERE),
    ]

    assert perfsuite("prune", "--keep", "2") == 0
    names = [f"baselines/{FOLDER}/{path.name}" for path in old]
    assert capsys.readouterr().out.splitlines() == [
        *(f"{name}: older than what is kept" for name in names),
        "none of these was removed; add --yes to remove them",
    ]
    assert all(path.exists() for path in (*old, *kept))

    assert perfsuite("prune", "--keep", "2", "--yes", "--json", "pruned.json") == 0
    assert capsys.readouterr().out.splitlines() == [f"{name}: removed" for name in names]
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in old)
    document = json.loads((tmp_path / "pruned.json").read_text())
    assert (document["old_runs"], document["is_removed"]) == (names, True)


def test_prune_keeps_sessions_with_all_of_their_shards(
    perfsuite: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for day in (1, 3, 5):
        for shard in (1, 2):
            name = f"000{day + shard}_a.json"
            store(tmp_path / "baselines", name, day=day + shard - 1, shard=shard)

    assert perfsuite("prune", "--keep", "2") == 0

    old = [f"baselines/{FOLDER}/000{number}_a.json: older than what is kept" for number in (2, 3)]
    assert capsys.readouterr().out.splitlines()[:-1] == old


def test_prune_removes_nothing_where_its_json_cannot_be_written(
    perfsuite: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "baselines" / "accepted.toml"
    path.parent.mkdir()
    path.write_text(EXPIRED)

    assert perfsuite("prune", "--json", ".") == 12

    assert path.read_text() == EXPIRED
    assert capsys.readouterr().err == "perfsuite: cannot write .: Is a directory\n"


def test_accept_writes_nothing_where_its_json_cannot_be_written(
    perfsuite: Call, tmp_path: Path
) -> None:
    assert perfsuite("accept", CELL, "--removed", *WHY, "--json", ".") == 12

    assert not (tmp_path / "baselines").exists()


def test_prune_with_nothing_to_remove_says_so(
    perfsuite: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path / "baselines", "0001_a.json", day=1)

    assert perfsuite("prune", "--keep", "1", "--yes") == 0

    assert capsys.readouterr().out == "nothing to remove\n"


def test_prune_is_not_sure_about_nothing(
    perfsuite: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert perfsuite("prune", "--yes") == 2

    assert capsys.readouterr().err == (
        "perfsuite: --yes removes runs; say with --keep N how many are to stay\n"
    )


def test_at_least_one_run_is_kept(perfsuite: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert perfsuite("prune", "--keep", "0", "--yes") == 2

    assert "Invalid value for '--keep'" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["accept", "prune"])
def test_a_list_that_is_none_is_named(
    perfsuite: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    (tmp_path / "list.toml").write_text("accepted = 7\n")
    arguments = [CELL, "--removed", *WHY] if verb == "accept" else []

    assert perfsuite(verb, *arguments, "--file", "list.toml") == 2

    error = capsys.readouterr().err
    assert error.startswith("perfsuite: list.toml has 'accepted' at its top; use [[accepted]] ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("verb", ["list", "accept", "prune"])
def test_every_verb_has_help_with_an_example(
    perfsuite: Call, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert perfsuite(verb, "--help") == 0

    assert f"Example: perfsuite baseline {verb}" in capsys.readouterr().out


def test_the_example_of_accept_names_a_whole_cell(
    perfsuite: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    perfsuite("accept", "--help")

    assert "'benchmarks/test_step.py::test_step[ddp:2]'" in capsys.readouterr().out
