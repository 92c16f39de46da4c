"""Files of runs: ours, those of any suite, and files that hold none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_up_runs import benchmark, record, stamp, verdict, write_run

from perfsuite.errors import SettingError
from perfsuite.report.runs import read_runs, rows_of
from perfsuite.system.environment import describe_host

WHAT_TO_DO = "name a file that pytest-benchmark wrote, such as results/run.json"


def test_a_plain_benchmark_has_its_times_and_nothing_else(tmp_path: Path) -> None:
    (run,) = read_runs([write_run(tmp_path / "a.json", benchmark("t.py::a", (0.1, 0.4, 0.2)))])

    (row,) = run.rows
    assert (row.name, row.step_time_s, row.rounds_s) == ("t.py::a", 0.2, (0.1, 0.4, 0.2))
    assert (row.record, row.recipe, row.verdict, row.load_ratio) == (None,) * 4


def test_a_file_without_rounds_still_has_its_median(tmp_path: Path) -> None:
    one = benchmark("t.py::a")
    del one["stats"]["data"]

    (run,) = read_runs([write_run(tmp_path / "a.json", one)])

    assert (run.rows[0].step_time_s, run.rows[0].rounds_s) == (0.002, ())
    assert run.rows[0].spread_ratio is None


def test_the_verdict_of_a_plain_benchmark_is_read(tmp_path: Path) -> None:
    info = {"verdict": msgspec.to_builtins(record(given=verdict("FAIL")))["verdict"]}

    (run,) = read_runs([write_run(tmp_path / "a.json", benchmark("t.py::a", info=info))])

    assert run.rows[0].verdict == verdict("FAIL")


def test_a_cell_of_ours_has_its_record(tmp_path: Path) -> None:
    made = record(parallel="ddp:2", num_workers=2)

    (run,) = read_runs([write_run(tmp_path / "a.json", benchmark("t.py::a", info=made))])

    assert run.rows[0].record == made
    assert run.rows[0].recipe is not None
    assert run.rows[0].recipe.parallel == "ddp:2"


@pytest.mark.parametrize(
    ("cpu", "num_cores"),
    [
        ({"count": 16}, 16),
        ({}, None),
        ({"count": 0}, None),
        ({"count": True}, None),
        ({"count": "16"}, None),
        ("16 cores", None),
    ],
)
def test_the_cores_of_the_machine_are_those_that_the_file_names(
    tmp_path: Path, cpu: object, num_cores: int | None
) -> None:
    path = write_run(tmp_path / "a.json", benchmark("t.py::a"), machine_info={"cpu": cpu})

    (run,) = read_runs([path])

    assert run.rows[0].num_cores == num_cores


def test_a_run_is_described_in_one_line(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.json", benchmark("t.py::a"), commit_info={"dirty": True})

    (run,) = read_runs([path])

    assert run.described == (
        f"{path}, 2026-11-21 15:02 UTC, with uncommitted changes, a CPU, Linux"
    )


def gpus(number: int, name: str, driver: str) -> dict[str, Any]:
    """The stamp of a session on a machine with these GPUs."""
    gpu = f"{name}, 79.6 GiB, 700 W, MIG off"
    there = msgspec.structs.replace(
        describe_host({}, 2), accelerators=(gpu,) * number, driver=driver
    )
    known = {there.fingerprint: msgspec.to_builtins(there)}
    return stamp(fingerprint=there.fingerprint, environments=known)


def test_a_run_on_gpus_names_them_and_their_driver(tmp_path: Path) -> None:
    stamped = gpus(2, "NVIDIA H100 80GB HBM3", "570.86")
    path = write_run(tmp_path / "a.json", benchmark("t.py::a"), perfsuite=stamped)

    (run,) = read_runs([path])

    assert run.machine == "a CPU, 2 x NVIDIA H100 80GB HBM3, driver 570.86, Linux"


def test_names_of_gpus_are_text_from_a_file_and_no_escapes(tmp_path: Path) -> None:
    stamped = gpus(1, "H\x1b[2J100", "5\n70" + "0" * 10_000)
    path = write_run(tmp_path / "a.json", benchmark("t.py::a"), perfsuite=stamped)

    (run,) = read_runs([path])

    assert run.machine is not None
    assert run.machine.startswith("a CPU, 1 x H\\x1b[2J100, driver 5\\n700")
    assert len(run.machine) < 500


def test_a_driver_without_a_gpu_is_not_named(tmp_path: Path) -> None:
    stamped = gpus(0, "H100", "570.86")

    (run,) = read_runs([write_run(tmp_path / "a.json", benchmark("t.py::a"), perfsuite=stamped)])

    assert run.machine == "a CPU, Linux"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ": is empty"),
        ("{", ": is not JSON, or was cut off: Expecting property name enclosed in double quotes: "
              "line 1 column 2 (char 1)"),
        ("[]", ": is no run of pytest-benchmark: Expected `object`, got `array`"),
        ("{}", ": is no run of pytest-benchmark: Object missing required field `datetime`"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_run_is_named_with_the_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)

    with pytest.raises(SettingError) as refused:
        read_runs([path])

    assert str(refused.value) == f"{path}{reason}; {WHAT_TO_DO}"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as refused:
        read_runs([tmp_path / "none.json"])

    assert str(refused.value) == f"{tmp_path}/none.json: No such file or directory; {WHAT_TO_DO}"


@pytest.mark.parametrize(
    ("benchmarks", "reason"),
    [
        ([], "holds no benchmark"),
        ([benchmark("t"), benchmark("t")], "holds the cell t twice"),
        ([benchmark("t", (0.1, float("nan")))], "holds a time of nan s of the cell t"),
        ([benchmark("t", (-1.0,))], "holds a time of -1.0 s of the cell t"),
        ([benchmark("t", (0.0,))], "holds a time of 0.0 s of the cell t"),
        ([benchmark("t", (0.1, 0.0))], "holds a time of 0.0 s of the cell t"),
        (
            [
                benchmark(
                    "t", info={**msgspec.to_builtins(record()), "recipe": {"parallel": "warp:9"}}
                )
            ],
            "holds an invalid record of the cell t: parallel 'warp:9' is not a known "
            "mode; use one of single, dp:N, ddp:N, fsdp:N, hsdp:RxS, zero1:N, zero2:N, tp:N, "
            "pp:N[:gpipe|1f1b|interleaved], mp:N, horovod-like:N, horovod:N, "
            "mesh:AXIS=N[,AXIS=N]",
        ),
        (
            [benchmark("t", info={**msgspec.to_builtins(record()), "schema": 2})],
            "holds an invalid record of the cell t: Invalid enum value 2 - at `$.schema`, for a "
            "newer perfsuite wrote it: update this one",
        ),
    ],
)
def test_an_impossible_run_is_refused(
    tmp_path: Path, benchmarks: list[dict[str, object]], reason: str
) -> None:
    path = write_run(tmp_path / "a.json", *benchmarks)

    with pytest.raises(SettingError) as refused:
        read_runs([path])

    assert str(refused.value) == f"{path}: {reason}; {WHAT_TO_DO}"


def test_a_name_is_one_printable_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_run(path, benchmark("t\x1b[2J\n|"))
    path.write_text(path.read_text().replace("|", "\\ud800"))

    (run,) = read_runs([path])

    assert run.rows[0].name == "t\\x1b[2J\\n\\ud800"


# --- several runs ---


def day(path: Path, number: int, *benchmarks: dict[str, object], **changes: object) -> Path:
    when = f"2026-11-{number:02d}T12:00:00"
    return write_run(path / f"{number}.json", *benchmarks, datetime=when, **changes)


def test_a_cell_is_shown_as_the_newest_run_has_it_with_the_others_as_history(
    tmp_path: Path,
) -> None:
    paths = [
        day(tmp_path, 3, benchmark("t", (0.3,)), perfsuite=stamp()),
        day(tmp_path, 1, benchmark("t", (0.1,))),
        day(tmp_path, 2, benchmark("t", (0.2,)), perfsuite=stamp(accepted=["t"])),
    ]

    (row,) = rows_of(read_runs(paths))

    assert row.step_time_s == 0.3
    assert [past.step_time_s for past in row.history] == [0.1, 0.2, 0.3]
    assert [past.is_accepted for past in row.history] == [False, True, False]
    assert row.history[0].when == "2026-11-01 12:00 UTC"


def test_another_environment_is_no_part_of_a_history(tmp_path: Path) -> None:
    paths = [
        day(tmp_path, 1, benchmark("t", (0.1,), record(fingerprint="gpu"))),
        day(tmp_path, 2, benchmark("t", (0.2,), record(fingerprint="cpu"))),
    ]

    (row,) = rows_of(read_runs(paths))

    assert [past.step_time_s for past in row.history] == [0.2]


def test_a_plain_benchmark_of_another_machine_is_no_part_of_a_history(tmp_path: Path) -> None:
    paths = [
        day(tmp_path, number, benchmark("t", (0.1 * number,)), perfsuite=stamp(fingerprint=machine))
        for number, machine in enumerate(("a", "b"), 1)
    ]

    (row,) = rows_of(read_runs(paths))

    assert [past.step_time_s for past in row.history] == [0.2]


def test_a_cell_that_the_newest_run_has_not_is_kept_and_marked(tmp_path: Path) -> None:
    paths = [day(tmp_path, 1, benchmark("old")), day(tmp_path, 2, benchmark("new"))]

    rows = rows_of(read_runs(paths))

    assert [(row.name, row.is_from_older_run) for row in rows] == [("new", False), ("old", True)]


# --- what the stamp says ---


def test_a_cell_that_was_judged_and_not_measured_has_its_word_and_no_time(tmp_path: Path) -> None:
    judged = stamp(num_failed=1, verdicts={"t": "PASS", "gone": "VANISHED"})
    path = write_run(tmp_path / "a.json", benchmark("t"), perfsuite=judged)

    (run,) = read_runs([path])

    words = [(row.name, row.verdict and row.verdict.word, row.step_time_s) for row in run.rows]
    assert words == [("t", "PASS", 0.002), ("gone", "VANISHED", None)]
    assert run.num_failed == 1


def test_two_verdicts_of_one_cell_are_refused(tmp_path: Path) -> None:
    info = {"verdict": msgspec.to_builtins(record(given=verdict("PASS")))["verdict"]}
    judged = stamp(verdicts={"t": "FAIL"})
    path = write_run(tmp_path / "a.json", benchmark("t", info=info), perfsuite=judged)

    with pytest.raises(SettingError) as refused:
        read_runs([path])

    assert str(refused.value) == (
        f"{path}: holds two verdicts of the cell t: PASS and FAIL; {WHAT_TO_DO}"
    )


def test_a_word_that_is_no_verdict_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.json", benchmark("t"), perfsuite=stamp(verdicts={"t": "FINE"}))

    with pytest.raises(SettingError) as refused:
        read_runs([path])

    assert str(refused.value) == (
        f"{path}: is no run of pytest-benchmark: Invalid enum value 'FINE' - at "
        f"`$.perfsuite.verdicts[...]`; {WHAT_TO_DO}"
    )


def test_a_cell_without_a_time_is_told_by_the_newest_run_alone(tmp_path: Path) -> None:
    vanished = stamp(verdicts={"gone": "VANISHED"})
    older = day(tmp_path, 1, benchmark("t"), perfsuite=vanished)
    newer = day(tmp_path, 2, benchmark("t"))

    assert [row.name for row in rows_of(read_runs([older, newer]))] == ["t"]


def test_a_cell_that_failed_in_the_newest_run_is_not_shown_as_an_earlier_one_has_it(
    tmp_path: Path,
) -> None:
    older = day(tmp_path, 1, benchmark("t"), benchmark("fine"))
    newer = day(tmp_path, 2, benchmark("fine"), perfsuite=stamp(verdicts={"t": "ERROR"}))

    _, row = rows_of(read_runs([older, newer]))

    assert (row.name, row.step_time_s, row.is_from_older_run) == ("t", None, False)
    assert [past.step_time_s for past in row.history] == [0.002]


def test_a_number_that_json_has_not_elsewhere_in_the_file_is_no_obstacle(tmp_path: Path) -> None:
    one = benchmark("t")
    one["extra_info"] = {"mine": float("nan")}
    path = write_run(tmp_path / "a.json", one)

    assert "NaN" in path.read_text()
    assert json.loads(path.read_text())["benchmarks"]
    assert read_runs([path])[0].rows[0].name == "t"
