"""The script that proves perfsuite on a GPU: its rows, and that each can fail."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "benchmarks" / "gpu_acceptance.py"

sys.path.append(str(SCRIPT.parent))

import gpu_acceptance  # noqa: E402
import gpu_checks  # noqa: E402
import gpu_surroundings  # noqa: E402
from gpu_acceptance import CHECKS, Check, Figures, run_checks  # noqa: E402

from perfsuite.gate.arms.launched import turn_clock  # noqa: E402
from perfsuite.gate.judge import pair_evidence  # noqa: E402
from perfsuite.ranks import failures  # noqa: E402
from perfsuite.system import fitness, gpus  # noqa: E402
from perfsuite.worker.jobs import cell  # noqa: E402
from perfsuite.worker.measure import memory  # noqa: E402

STOOD_IN = {check.number: check for check in CHECKS if check.stands_in}
# They start ranks of their own, which a forked process cannot.
WITH_RANKS = ("stack", "faults")


# --- each mend taken out, in a process that has the stand-in already ---


def times_each_round_by_the_host(device: Any) -> None:
    measured: Any = cell
    whole = measured.measure_rounds
    measured.rounds.LEAST_ON_ACCELERATOR = 1
    measured.measure_rounds = lambda rounds, **options: whole(
        rounds, **(options | {"run_up": None, "clock": device.clock})
    )


def counts_loading_as_the_devices(_: Any) -> None:
    whole = gpu_checks.combine_stages
    module: Any = gpu_checks
    module.combine_stages = lambda *given, overlaps_loading: whole(*given)


def records_events_in_timed_rounds(device: Any) -> None:
    measured: Any = cell
    measured.StageMarks = lambda _, on_enter: measured.StageClock(None, on_enter=on_enter)


def warms_up_for_three_steps(_: Any) -> None:
    measured: Any = cell
    measured.rounds.has_warmed_up = lambda *_: True


def plants_in_each_step(device: Any) -> None:
    def inject(asked: Iterator[Any], channel: Any, _: Any) -> Iterator[Any]:
        for stage in asked:
            began_s = device.clock()
            yield stage
            device.synchronize()
            device.work_on_host(channel.planted_ratio * (device.clock() - began_s))

    measured: Any = cell
    measured.inject_fault = inject
    whole = measured.measure_rounds
    measured.measure_rounds = lambda rounds, **options: whole(
        rounds, **(options | {"slowdown": 0.0})
    )


def ends_turns_at_once(_: Any) -> None:
    module: Any = turn_clock
    module.synchronize = lambda: None


def reads_blocks(device: Any) -> None:
    module: Any = memory
    asked = module.memory_stats

    def blocks(of: Any) -> dict[str, int]:
        found = asked(of)
        return found | {
            name.replace("allocated", "requested"): value
            for name, value in found.items()
            if name.startswith("allocated")
        }

    module.memory_stats = blocks


def knows_one_text(_: Any) -> None:
    module: Any = pair_evidence
    module._OUT_OF_MEMORY = re.compile("out of memory")


def counts_nothing_as_0(_: Any) -> None:
    def count(_: Any) -> Iterator[Any]:
        yield from ()
        return {"kernel_launches": 0}

    module: Any = gpu_surroundings
    module.count_device_calls = count


def looks_once(_: Any) -> None:
    module: Any = fitness
    module._is_busy = lambda gpu: fitness.pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu > 10


def sets_the_older_switch_alone(_: Any) -> None:
    def set_tf32(policy: Any, device: Any) -> None:
        backends: Any = gpu_surroundings.torch.backends
        backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = policy.allows_tf32

    module: Any = gpu_surroundings
    module.set_tf32 = set_tf32


MENDS: dict[str, Callable[[Any], None]] = {
    "overlap": times_each_round_by_the_host,
    "hidden-sync": times_each_round_by_the_host,
    "stages": counts_loading_as_the_devices,
    "overhead": records_events_in_timed_rounds,
    "clocks": warms_up_for_three_steps,
    "planted-speed": plants_in_each_step,
    "plain-suite": ends_turns_at_once,
    "memory": reads_blocks,
    "two-arms-memory": knows_one_text,
    "counts": counts_nothing_as_0,
    "sensors": looks_once,
    "precision": sets_the_older_switch_alone,
}


def _run(name: str, path: Path, take_out: Callable[[Any], None] | None) -> None:
    (check,) = (one for one in CHECKS if one.name == name)
    figures = Figures(path, dry=True)
    device = figures.device
    if take_out is not None:
        take_out(device)
    gpu_acceptance.run_child(check.run, figures)


def test_every_row_that_has_a_stand_in_has_a_mend_to_take_out() -> None:
    assert [one.number for one in CHECKS] == list(range(28))
    assert list(STOOD_IN) == [0, 4, 5, 6, 7, 9, 12, 13, 14, 15, 16, 17, 18, 26]
    assert {*MENDS, *WITH_RANKS} == {check.name for check in STOOD_IN.values()}


@pytest.mark.parametrize("name", MENDS)
def test_a_check_is_right_on_its_stand_in_and_fails_without_the_mend(
    tmp_path: Path, rank_group: Any, name: str
) -> None:
    def verdicts(file: str, take_out: Callable[[Any], None] | None) -> set[str]:
        path = tmp_path / file
        # Not beside pytest's objects, all of which each measurement would collect as garbage.
        rank_group(1, _run, name, path, take_out)
        return {json.loads(line)["verdict"] for line in path.read_text().splitlines()}

    assert verdicts("mended", None) <= {"ok", "told"}
    assert "FAIL" in verdicts("taken out", MENDS[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "module", "attribute", "value"),
    [
        ("stack", gpus, "if_shown", lambda query, *arguments: query(*arguments)),
        ("faults", failures, "NUM_WATCHDOG_BYTES", 400),
    ],
)
def test_a_check_on_ranks_is_right_and_fails_without_the_mend(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    module: Any,
    attribute: str,
    value: Any,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check = {"stack": gpu_surroundings.stack, "faults": gpu_surroundings.faults}[name]

    def found(path: Path) -> set[str]:
        figures = Figures(path, dry=True)
        figures.__dict__["device"] = SimpleNamespace(is_real=False)
        check(figures)
        return {json.loads(line)["verdict"] for line in path.read_text().splitlines()}

    assert found(tmp_path / "mended") <= {"ok", "told"}
    monkeypatch.setattr(module, attribute, value)
    assert "FAIL" in found(tmp_path / "taken out")


# --- rows that survive ---


def planted(name: str, number: int) -> Check:
    return Check(
        number=number,
        name=name,
        part=1,
        seconds=1.0,
        must="survive",
        run=f"planted_checks:{name}",
        stands_in=True,
    )


@pytest.mark.slow
def test_a_row_that_crashes_hangs_or_is_killed_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"))
    names = ("crashes", "is_killed", "hangs", "raises", "says_nothing", "wrong", "fine")
    checks = [planted(name, number) for number, name in enumerate(names)]

    rows = list(run_checks(checks, tmp_path, dry=True, budget_s=60.0, has_gpu=False))

    assert {row.check: (row.verdict, row.found) for row in rows} == {
        "crashes": ("FAIL", "before: 7; ended with signal 6: terminate called"),
        "is_killed": ("FAIL", "before: 7; ended with signal 9: it said nothing"),
        "hangs": ("FAIL", "before: 7; it did not end within 3 s"),
        "raises": (
            "FAIL",
            "ended with exit code 1: RuntimeError: CUDA error: an illegal memory access was "
            "encountered",
        ),
        "says_nothing": ("FAIL", "it found nothing"),
        "wrong": ("FAIL", "half: 0.6 for 0.5"),
        "fine": ("ok", "noise: 3"),
    }


def test_what_does_not_fit_into_the_budget_or_needs_a_gpu_is_skipped(tmp_path: Path) -> None:
    def skipped(**options: Any) -> dict[str, str]:
        given = {"dry": False, "budget_s": 540.0, "has_gpu": True} | options
        checks = [one for one in CHECKS if not one.stands_in or not given["dry"]]
        rows = run_checks(checks, tmp_path, **given)
        assert {row.verdict for row in rows_of(rows)} == {"SKIPPED"}
        return {row.check: row.found for row in rows_kept}

    rows_kept: list[Any] = []

    def rows_of(rows: Iterator[Any]) -> list[Any]:
        rows_kept[:] = rows
        return rows_kept

    assert set(skipped(has_gpu=False).values()) == {"no GPU is visible; --dry-run uses a stand-in"}
    assert skipped(budget_s=1.0)["overlap"].endswith("s are left of the budget")
    needs = {"needs a GPU: nothing can stand in for it"}
    assert set(skipped(dry=True).values()) == needs


@pytest.mark.slow
def test_a_row_starts_if_half_of_it_fits_and_is_cut_off_as_the_budget_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"))
    seconds = {"fine": 16.0, "says_nothing": 30.0, "hangs": 5.0}
    checks = [replace(planted(name, 0), seconds=most_s) for name, most_s in seconds.items()]

    rows = list(run_checks(checks, tmp_path, dry=False, budget_s=9.0, has_gpu=True))

    assert [row.verdict for row in rows] == ["ok", "SKIPPED", "CUT"]
    cut = r"before: 7; it did not end within \d s; the budget was spent, and 0 figures were right"
    assert re.fullmatch(cut, rows[-1].found)


WAITS = """
import os, signal, subprocess, time

def waits(figures):
    {prepare}
    other = subprocess.Popen(["sleep", "600"])
    figures.told("processes", f"{{os.getpid()}} {{other.pid}}")
    try:
        time.sleep(600)
    finally:
        other.kill()
        figures.told("ended by", "itself")
"""
DRIVER = """
import sys
from pathlib import Path
import gpu_acceptance as script
script.GRACE_S = float(sys.argv[2])
script.CHECKS = (script.Check(
    number=0, name="waits", part=1, seconds=600, must="", run="waiting:waits", stands_in=True
),)
script.main(None, None, 540.0, Path(sys.argv[1]), True, None)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prepare", "grace_s", "found"),
    [
        ("pass", 60, ["processes", "ended by"]),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", 1, ["processes"]),
    ],
)
def test_a_script_that_is_ended_ends_the_row_that_runs(
    tmp_path: Path, prepare: str, grace_s: int, found: list[str]
) -> None:
    (tmp_path / "waiting.py").write_text(WAITS.format(prepare=prepare))
    paths = os.pathsep.join(map(str, (ROOT, SCRIPT.parent, tmp_path)))
    command = [sys.executable, "-c", DRIVER, str(tmp_path), str(grace_s)]
    script = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths})
    figures = tmp_path / "waits.jsonl"
    deadline_s = time.monotonic() + 60
    while not figures.exists() and time.monotonic() < deadline_s:
        time.sleep(0.1)

    script.terminate()

    assert script.wait(60) == 143
    lines = [json.loads(line) for line in figures.read_text().splitlines()]
    assert [line["what"] for line in lines] == found
    for number in map(int, lines[0]["found"].split()):
        assert not psutil.pid_exists(number) or psutil.Process(number).status() == "zombie"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_row_has_its_own_code(check: Check) -> None:
    module, _, name = check.run.partition(":")

    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.soak  # 14 interpreters that load torch
def test_a_dry_run_has_28_rows_and_keeps_them(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--dry-run", "--out", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    rows = json.loads((tmp_path / "acceptance.json").read_text())
    assert ended.returncode == 0, ended.stdout
    assert len(rows) == 28
    assert [row["number"] for row in rows if row["verdict"] != "SKIPPED"] == list(STOOD_IN)
    assert len(ended.stdout.splitlines()) == 28
