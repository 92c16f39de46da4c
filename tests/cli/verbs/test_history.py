"""The verb `history`: what it dates, what it says, writes and ends in."""

from __future__ import annotations

import json
import math
import random
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from command_line import call_verb
from stored_histories import CELL, HERE, MACHINE, day, make_commits, store_run

from perfsuite.cli import options
from perfsuite.cli.verbs import history as history_module

DRIFTING = "b.py::drifting"
FLAT = "b.py::flat"
NUM_DAYS = 40
SLOWER_FROM = 20
ACCEPTED = f"""\
[[accepted]]
cell = "{CELL}"
kind = "slowdown"
ratio = 1.09
reason = "it checks its input now"
expires = 2026-03-01
"""

Call = Callable[..., int]


def noise(numbers: random.Random, sd: float = 0.005) -> float:
    return math.exp(sd * numbers.gauss(0, 1))


def store_days(folder: Path, commits: list[str], *, num_days: int = NUM_DAYS) -> None:
    """A run a day: one cell steps by 8 %, one drifts by 1 % a week, one stays."""
    numbers = random.Random(4)
    for number in range(num_days):
        times_s = {
            CELL: 0.002 * 1.08 ** (number >= SLOWER_FROM) * noise(numbers),
            DRIFTING: 0.003 * 1.01 ** (number / 7) * noise(numbers),
            FLAT: 0.001 * noise(numbers),
        }
        commit = commits[number] if commits else ""
        store_run(folder / "baselines", number, times_s, commit=commit)


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls the console script's function in an empty folder, and returns its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "environment_here", lambda: MACHINE)
    return partial(call_verb, "history")


@pytest.fixture
def commits(tmp_path: Path) -> list[str]:
    """A commit a day, and a run of each."""
    commits = make_commits(tmp_path, NUM_DAYS)
    store_days(tmp_path, commits)
    return commits


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


# --- one cell ---


def test_a_step_is_dated_between_two_commits_with_who_accepted_it(
    history: Call, commits: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "baselines" / "accepted.toml").write_text(ACCEPTED)
    first, before, after, last = (
        commits[place][:7] for place in (0, SLOWER_FROM - 1, SLOWER_FROM, -1)
    )

    assert history(CELL) == 0

    lines = said(capsys)
    assert lines[0] == f"{CELL}: 40 runs, {first} (2026-01-01) to {last} (2026-02-09)"
    assert lines[1] == "▁▁▂▂▁▁▁▁▂▁████▇█████ 1.99 ms to 2.18 ms"
    assert lines[2:] == [
        f"slower by 7.8 % (+7.5 % to +8.2 %) between {before} (2026-01-20) and {after} "
        "(2026-01-21), 1 commit, accepted: it checks its input now"
    ]


def test_a_drift_is_shown_with_its_rate_and_its_total(
    history: Call, commits: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(DRIFTING) == 0

    assert said(capsys)[2:] == [
        f"drifts by +1.07 % a week (+0.98 % to +1.14 %), +6.1 % since {commits[0][:7]} (2026-01-01)"
    ]


def test_a_cell_that_stays_is_said_to(
    history: Call, commits: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(FLAT) == 0

    assert said(capsys)[2:] == ["no change and no drift"]


def test_outside_of_git_changes_lie_between_days(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_days(tmp_path, [])

    assert history(CELL) == 0

    lines = said(capsys)
    assert lines[0] == f"{CELL}: 40 runs, 2026-01-01 to 2026-02-09"
    assert lines[-1] == "slower by 7.8 % (+7.5 % to +8.2 %) between 2026-01-20 and 2026-01-21"


def test_a_change_between_two_runs_of_one_commit_is_no_commits(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (commit,) = make_commits(tmp_path, 1)
    store_days(tmp_path, [commit] * NUM_DAYS)

    assert history(CELL) == 0

    named = f"{commit[:7]} (2026-01-01)"
    assert said(capsys)[-1] == (
        f"slower by 7.8 % (+7.5 % to +8.2 %) between {named} and {named}, so not by a commit"
    )


def test_runs_that_were_measured_afterwards_lie_where_their_commits_do(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commits = make_commits(tmp_path, NUM_DAYS)
    numbers = random.Random(4)
    night = datetime(2026, 6, 1, tzinfo=UTC)
    for number in reversed(range(NUM_DAYS)):
        time_s = 0.003 * 1.01 ** (number / 7) * noise(numbers)
        saved_at = night.replace(minute=NUM_DAYS - 1 - number)
        store_run(
            tmp_path / "baselines", number, {DRIFTING: time_s}, commit=commits[number],
            saved_at=saved_at,
        )  # fmt: skip

    assert history(DRIFTING) == 0

    assert said(capsys)[-1].startswith("drifts by +1.0")


def test_a_slowdown_between_several_commits_says_how_to_find_the_one(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commits = make_commits(tmp_path, 3 * NUM_DAYS)[::3]
    store_days(tmp_path, commits)
    before, after = (commits[place][:7] for place in (SLOWER_FROM - 1, SLOWER_FROM))

    assert history(CELL) == 0

    change, advice = said(capsys)[-2:]
    assert change.endswith(f"between {before} (2026-02-27) and {after} (2026-03-02), 3 commits")
    assert advice == (
        f"which commit it was: perfsuite bisect --good {before} --bad {after} '{CELL}'"
    )


def test_a_change_of_the_host_itself_is_shown_beside(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = random.Random(5)
    for number in range(40):
        slower = 1.06 ** (number >= 20)
        probe_s = {"cpu": 0.01 * slower * noise(numbers)}
        time_s = 0.002 * slower * noise(numbers)
        store_run(tmp_path / "baselines", number, {CELL: time_s}, probe_s=probe_s)

    assert history(CELL) == 0

    where = "between 2026-01-20 and 2026-01-21"
    cell, host = said(capsys)[-2:]
    assert cell.startswith("slower by 6.")
    assert cell.endswith(where)
    assert host.startswith("the host itself, by its own probes: slower by 6.")
    assert host.endswith(where)


def test_few_runs_are_said_to_be_too_few(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_days(tmp_path, [], num_days=12)

    assert history(CELL) == 0

    assert said(capsys) == [
        f"{CELL}: 12 runs, 2026-01-01 to 2026-01-12",
        "too few to tell: from 13 runs on a change can be seen",
    ]


def test_runs_in_another_environment_of_its_ranks_are_counted(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        store_run(
            tmp_path / "baselines", number, {CELL: 0.1}, cell_fingerprint="old" if number else "x"
        )

    assert history(CELL) == 0

    assert said(capsys)[1] == "further runs, whose ranks found another environment: 1"


def test_runs_that_come_with_the_change_itself_are_no_history_yet(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (commit,) = make_commits(tmp_path, 1)
    path = store_run(tmp_path / "baselines", 1, {CELL: 0.1}, commit=commit)
    for arguments in (
        ("checkout", "--quiet", "-b", "feature"),
        ("add", "baselines"),
        ("-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "runs"),
    ):
        subprocess.run(["git", "-C", tmp_path, *arguments], check=True)

    assert history(CELL) == 12

    assert capsys.readouterr().err.splitlines()[0] == (
        f"{path.relative_to(tmp_path)}: comes with the commits that are judged; it counts once "
        "they are merged"
    )


def test_what_a_terminal_would_obey_is_shown_as_its_escape(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_run(tmp_path / "baselines", 1, {"b.py::a\x1b[2J": 0.1})

    history("--all")
    history("b.py::a\x1b[2J")

    assert "\x1b" not in capsys.readouterr().out


# --- all cells ---


def test_all_cells_are_a_line_each(
    history: Call, commits: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert history("--all") == 0

    heading, _, drifting, flat, stepping, last = (" ".join(line.split()) for line in said(capsys))
    assert heading == "cell runs times what became of it"
    assert drifting.startswith(f"{DRIFTING} 40 ▂")
    assert "█ drifts by +1.07 % a week (" in drifting
    assert flat.endswith(" no change and no drift")
    assert stepping == (
        f"{CELL} 40 ▁▁▂▂▁▁▁▁▂▁████▇█████ slower by 7.8 % (+7.5 % to +8.2 %) between "
        f"{commits[SLOWER_FROM - 1][:7]} (2026-01-20) and {commits[SLOWER_FROM][:7]} (2026-01-21), "
        "1 commit"
    )
    assert last == (
        "2 of 3 cells changed; at most 1 in 100 cells without a change is reported as changed"
    )


def test_a_renamed_cell_is_listed_once(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_run(tmp_path / "baselines", 1, {"b.py::old": 0.1})
    store_run(tmp_path / "baselines", 2, {CELL: 0.1})
    (tmp_path / "baselines" / "accepted.toml").write_text(
        f'[[accepted]]\ncell = "b.py::old"\nkind = "renamed"\nto = "{CELL}"\nreason = "r"\n'
        "expires = 2020-01-01\n"
    )

    assert history("--all") == 0

    (row,) = said(capsys)[2:-1]
    assert row.split()[:2] == [CELL, "2"]


# --- files, exit codes, refusals ---


def test_a_json_that_cannot_be_written_is_refused_before_anything_is_read(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_days(tmp_path, [])

    assert history(CELL, "--json", ".") == 12

    assert capsys.readouterr() == ("", "perfsuite: cannot write .: Is a directory\n")


def test_the_json_holds_runs_and_changes(history: Call, commits: list[str], tmp_path: Path) -> None:
    history("--all", "--json", "history.json")

    document = json.loads((tmp_path / "history.json").read_text())
    drifting, flat, stepping = document["cells"]
    (change,) = stepping["changes"]
    assert (document["schema"], document["refused"]) == (1, [])
    assert [cell["id"] for cell in document["cells"]] == [DRIFTING, FLAT, CELL]
    assert change["ratio"] == pytest.approx(1.08, abs=0.01)
    assert change["interval"][0] < 1.08 < change["interval"][1]
    assert change["before"]["commit"] == commits[SLOWER_FROM - 1]
    assert change["after"]["commit"] == commits[SLOWER_FROM]
    assert (change["num_commits"], change["accepted"]) == (1, None)
    assert drifting["drift"]["ratio_per_week"] == pytest.approx(1.01, abs=0.001)
    assert drifting["drift"]["since"]["made_at"] == day(0).isoformat().replace("+00:00", "Z")
    assert (flat["changes"], flat["drift"], flat["is_long_enough"]) == ([], None, True)
    assert len(flat["runs"]) == NUM_DAYS


@pytest.mark.parametrize(("cell", "code"), [(CELL, 10), (DRIFTING, 10), (FLAT, 0)])
def test_only_a_job_that_asks_for_it_fails_on_a_change(
    history: Call, commits: list[str], cell: str, code: int
) -> None:
    assert history(cell) == 0
    assert history(cell, "--fail-on-change") == code


def test_an_accepted_change_fails_no_job(history: Call, commits: list[str], tmp_path: Path) -> None:
    (tmp_path / "baselines" / "accepted.toml").write_text(ACCEPTED)

    assert history(CELL, "--fail-on-change") == 0


def store_levels(folder: Path, *levels: float) -> list[str]:
    """A commit a day with a run each, twenty days at each level; return the commits."""
    num_days = SLOWER_FROM * len(levels)
    commits = make_commits(folder, num_days)
    numbers = random.Random(1)
    for number in range(num_days):
        time_s = 0.002 * levels[number // SLOWER_FROM] * noise(numbers)
        store_run(folder / "baselines", number, {CELL: time_s}, commit=commits[number])
    return commits


@pytest.mark.parametrize("arguments", [[CELL], ["--all"]])
@pytest.mark.parametrize(("expires", "code"), [("2026-01-25", 10), ("2026-03-01", 0)])
def test_an_exception_accepts_slowdowns_within_its_ratio_until_it_expires(
    history: Call, tmp_path: Path, arguments: list[str], expires: str, code: int
) -> None:
    store_levels(tmp_path, 1.0, 1.08, 1.08 * 1.07)
    (tmp_path / "baselines" / "accepted.toml").write_text(ACCEPTED.replace("2026-03-01", expires))

    assert history(*arguments, "--fail-on-change") == code


@pytest.mark.parametrize("arguments", [[CELL], ["--all"]])
def test_an_exception_lets_no_larger_slowdown_through(
    history: Call, tmp_path: Path, arguments: list[str]
) -> None:
    store_levels(tmp_path, 1.0, 1.08, 1.08 * 1.12)
    (tmp_path / "baselines" / "accepted.toml").write_text(ACCEPTED)

    assert history(*arguments, "--fail-on-change") == 10


def test_one_line_shows_the_middle_of_what_falls_together() -> None:
    sparkline = history_module._sparkline

    assert sparkline([1.0] * 30 + [9.0] + [1.0] * 29) == "▁" * 20
    assert sparkline([1.0] * 40 + [3.0] * 40) == "▁" * 10 + "█" * 10
    assert sparkline([1.0]) == "▁"


def test_a_slowdown_that_recovered_is_shown_and_fails_no_job(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_levels(tmp_path, 1.0, 1.1, 1.0)

    assert history(CELL, "--fail-on-change", "--json", "history.json") == 0
    shown = said(capsys)
    assert history("--all", "--fail-on-change") == 0

    slower, faster = shown[-2:]
    assert slower.startswith("slower by ")
    assert slower.endswith("(2026-01-21), 1 commit, recovered since")
    assert faster.startswith("faster by ")
    assert faster.endswith("(2026-02-10), 1 commit")
    assert "1 commit, recovered since; faster by " in said(capsys)[-2]
    (cell,) = json.loads((tmp_path / "history.json").read_text())["cells"]
    assert [change["is_mended"] for change in cell["changes"]] == [True, False]


@pytest.mark.parametrize("levels", [(1.0, 1.1, 1.04), (1.0, 1.1, 1.0, 1.1)])
def test_a_slowdown_of_which_something_is_left_or_that_came_again_fails_a_job(
    history: Call, tmp_path: Path, levels: tuple[float, ...]
) -> None:
    store_levels(tmp_path, *levels)

    assert history(CELL, "--fail-on-change") == 10


def test_an_environment_without_a_name_is_refused(
    history: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert history("--all", "--fingerprint", "") == 2
    assert capsys.readouterr().err == (
        "perfsuite: --fingerprint is '', which no environment has; use one that 'perfsuite "
        "baseline list' shows, or leave it out for this machine's\n"
    )


def test_what_is_smaller_than_the_option_is_not_shown(
    history: Call, commits: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(CELL, "--smallest", "9%", "--fail-on-change") == 0
    assert said(capsys)[-1] == "no change and no drift"


def test_the_newest_runs_may_be_enough(
    history: Call, commits: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(CELL, "--runs", "25") == 0
    assert said(capsys)[0].startswith(f"{CELL}: 25 runs, {commits[-25][:7]} ")


def test_runs_of_another_machine_can_be_looked_at(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_run(tmp_path / "baselines", 1, {CELL: 0.1}, fingerprint="ba9876543210")

    assert history(CELL, "--fingerprint", "ba9876543210") == 0
    assert said(capsys)[0] == f"{CELL}: 1 run, 2026-01-02 to 2026-01-02"


def test_runs_are_found_where_benchmark_storage_says(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_run(tmp_path / "elsewhere", 1, {CELL: 0.1})

    assert history(CELL, "--storage", "file://./elsewhere") == 0
    assert said(capsys)[0] == f"{CELL}: 1 run, 2026-01-02 to 2026-01-02"


def test_without_a_usable_run_there_is_no_history(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [
        store_run(tmp_path / "baselines", number, {CELL: 0.1}, fingerprint="ba9876543210")
        for number in range(7)
    ]

    assert history(CELL, "--json", "history.json") == 12

    reason = f"was made in another environment: ba9876543210 -> {HERE}"
    told = json.loads((tmp_path / "history.json").read_text())
    assert told["cells"] == []
    assert [one["reason"] for one in told["refused"]] == [reason] * 7
    assert capsys.readouterr().err.splitlines() == [
        *(f"{path.relative_to(tmp_path)}: {reason}" for path in paths[:5]),
        "and 2 more; see 'perfsuite baseline list'",
        "no stored run of this environment can be used",
    ]


def test_a_shallow_clone_is_no_history(
    history: Call,
    commits: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clone = tmp_path / "clone"
    fetched = ["git", "clone", "--quiet", "--depth=3", f"file://{tmp_path}", str(clone)]
    subprocess.run(fetched, check=True)
    monkeypatch.chdir(clone)
    runs = ("--storage", str(tmp_path / "baselines"))

    assert history("--all", "--fail-on-change", *runs) == 2

    told = capsys.readouterr().err
    assert told.startswith("perfsuite: this clone is shallow, and 37 stored runs left out, as ")
    assert told.endswith("; run 'git fetch --unshallow'\n")
    assert history("--all", "--storage", "nowhere") == 12
    assert "shallow" not in capsys.readouterr().err  # a deeper one would have no runs either
    subprocess.run(["git", "fetch", "--quiet", "--unshallow"], check=True)
    assert history("--all", "--fail-on-change", *runs) == 10


def test_runs_that_are_left_out_are_told(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_run(tmp_path / "baselines", 1, {CELL: 0.1})
    path = store_run(tmp_path / "baselines", 2, {CELL: 0.1}, fingerprint="ba9876543210")

    assert history(CELL) == 0

    why = f"was made in another environment: ba9876543210 -> {HERE}"
    assert capsys.readouterr().err == (
        f"1 stored run left out, as {path.relative_to(tmp_path)}: {why}; see 'perfsuite baseline "
        "list'\n"
    )


def test_an_unknown_cell_is_answered_with_the_nearest(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_run(tmp_path / "baselines", 1, {CELL: 0.1, FLAT: 0.1})

    assert history("b.py::flot") == 2

    assert capsys.readouterr().err == (
        "perfsuite: 'b.py::flot' is not a cell of the stored runs; of their cells these come "
        f"nearest: '{FLAT}', '{CELL}'\n"
    )


@pytest.mark.parametrize("arguments", [[], [CELL, "--all"]])
def test_either_a_cell_or_all_are_named(
    history: Call, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert history(*arguments) == 2
    assert capsys.readouterr().err == (
        "perfsuite: name one cell, or all with --all: perfsuite history CELL\n"
    )


def test_a_smallest_change_that_is_no_ratio_is_refused(
    history: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert history("--all", "--smallest", "small") == 2
    assert capsys.readouterr().err == ("perfsuite: --smallest is 'small'; use a ratio such as 2%\n")
