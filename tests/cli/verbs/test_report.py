"""The verb `report`, and the report that `perfsuite run` leaves behind."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from command_line import call_verb
from made_up_runs import benchmark, cell, record, report_on, stamp, verdict, write_run

from perfsuite.errors import SettingError, WriteError
from perfsuite.report.formats import trackers
from perfsuite.report.formats.folder import write_folder

Verb = Callable[..., int]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Verb:
    monkeypatch.chdir(tmp_path)
    slow = record(given=verdict("FAIL", ratio=1.1, interval=(1.05, 1.15)))
    write_run(
        Path("run.json"),
        benchmark("fine", (0.004,) * 4, record(given=verdict(), num_workers=2)),
        benchmark("slow", (0.008,) * 4, slow),
    )
    return partial(call_verb, "report")


def test_without_an_option_the_table_and_the_advice_are_printed(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(
        Path("low.json"),
        benchmark("a", (0.004,) * 4, record()),
        benchmark("b", (0.008,) * 4, record(precision="bf16")),
    )

    assert verb("low.json") == 0

    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "2 cells, none of them judged"
    assert lines[1] == (
        "workload parallel precision checkpointing numerics workers step spread samples/s load"
    )
    assert lines[3] == "lenet single fp32 none equivalent 0 4.00 ms ± 0.0 % 1.00 k 25.0 %"
    assert lines[5] == (
        "lenet, single: bf16 is slower than fp32 here "
        "(8.00 ms a step with bf16, 4.00 ms a step with fp32 (+100.0 %))"
    )


@pytest.mark.parametrize(
    "arguments",
    [("--csv", "run.json"), ("--json", "./run.json"), ("--csv", "x.out", "--markdown", "x.out")],
)
def test_no_output_overwrites_a_run_or_another_output(
    verb: Verb, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    before = (tmp_path / "run.json").read_bytes()

    assert verb("run.json", *arguments) == 2

    said = "is given twice, to read or to write; name another file"
    assert said in capsys.readouterr().err
    assert (tmp_path / "run.json").read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["run.json"]


def test_what_is_reported_is_written_as_json_too(verb: Verb, tmp_path: Path) -> None:
    assert verb("run.json", "--require-verdicts", "--json", "report.json") == 0

    said = json.loads((tmp_path / "report.json").read_text())
    assert (said["word"], said["text"]) == ("FAIL", "2 cells: 1 FAIL, 1 PASS")
    assert (said["gaps"], said["unjudged"], said["exit_code"]) == ([], [], 0)
    times = {cell["id"]: (cell["step_time_s"], cell["verdict"]["word"]) for cell in said["cells"]}
    assert times == {"fine": (0.004, "PASS"), "slow": (0.008, "FAIL")}


def test_what_needs_no_tracker_is_written_though_one_refuses(
    verb: Verb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise SettingError("--wandb: the client refuses")

    monkeypatch.setattr(trackers, "log_to_wandb", refuse)

    assert verb("run.json", "--wandb", "--csv", "cells.csv", "--json", "report.json") == 2

    assert (tmp_path / "cells.csv").exists()
    assert (tmp_path / "report.json").exists()


def test_scaling_is_printed_with_its_notes(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(
        Path("two.json"),
        benchmark("a", (0.1,) * 4, record(samples_per_s=80.0)),
        benchmark("b", (0.1,) * 4, record(samples_per_s=160.0, parallel="ddp:2")),
    )

    assert verb("two.json") == 0

    lines = capsys.readouterr().out.splitlines()
    assert "Weak and strong scaling, measured" in lines
    assert lines[-1] == "How many cores the machine has is not known, so ranks may share them."


def test_a_session_whose_tests_failed_is_no_pass_in_any_format(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts = {"a": "PASS", "d": "INVALID", "e": "VANISHED"}
    judged = benchmark("a", info=record(given=verdict()))
    write_run(Path("red.json"), judged, perfsuite=stamp(num_failed=2, verdicts=verdicts))
    said = "3 cells: 1 INVALID, 1 VANISHED, 1 PASS; 2 of its tests failed"

    assert verb("red.json", "--markdown=m.md", "--html=page", "--csv=t.csv", "--latex=t.tex") == 0

    assert capsys.readouterr().out.splitlines()[0] == f"ERROR {said}"
    assert "**ERROR**" in Path("m.md").read_text()
    assert said in Path("page/index.html").read_text()
    assert "VANISHED" in Path("t.csv").read_text()


def test_a_session_without_a_gate_names_its_failed_tests_and_judges_nothing(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(Path("plain.json"), benchmark("a"), perfsuite=stamp(num_failed=1))

    assert verb("plain.json") == 0

    said = capsys.readouterr().out.splitlines()[0]
    assert said == "1 cell, none of them judged; 1 of its tests failed"


def test_plain_benchmarks_are_printed_by_name(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(Path("plain.json"), benchmark("t.py::a[=1]", (0.004,) * 4))

    assert verb("plain.json") == 0

    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1::2] == ["cell step spread", "t.py::a[=1] 4.00 ms ± 0.0 %"]


def test_every_format_is_written_to_its_option(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    code = verb(
        *("run.json", "--html", "out", "--markdown", "m.md", "--latex", "t.tex"),
        *("--csv", "c.csv", "--bencher", "b.json", "--github-action-benchmark", "g.json"),
        *("--hud", "h.json", "--tensorboard", "events"),
    )

    assert code == 0
    assert capsys.readouterr().out.splitlines() == [
        "FAIL 2 cells: 1 FAIL, 1 PASS",
        "written to out/index.html",
        "written to m.md",
        "written to t.tex",
        "written to c.csv",
        "written to b.json",
        "written to h.json",
        "written to g.json",
        "written to events",
    ]
    names = {path.name for path in Path("out").iterdir()}
    assert names == {"index.html", "report.md", "table.tex", "cells.csv", "chart-1.svg"}
    assert Path("m.md").read_text() == Path("out/report.md").read_text()
    assert len(list(Path("events").rglob("events.out.*"))) == 2
    assert json.loads(Path("b.json").read_text())["slow"]["step_time_s"]["value"] == 0.008
    assert {one["name"] for one in json.loads(Path("g.json").read_text())} == {
        "fine step_time_s",
        "slow step_time_s",
    }
    assert json.loads(Path("h.json").read_text())[0]["benchmark"]["name"] == "perfsuite"


def test_charts_of_an_earlier_report_do_not_stay(tmp_path: Path) -> None:
    write_folder(report_on(cell("a"), cell("b", num_workers=2)), tmp_path)
    assert (tmp_path / "chart-1.svg").exists()

    write_folder(report_on(cell("a")), tmp_path)

    assert not (tmp_path / "chart-1.svg").exists()


def test_a_folder_in_the_place_of_a_file_that_goes_is_named(tmp_path: Path) -> None:
    (tmp_path / "scaling.json").mkdir()

    with pytest.raises(WriteError) as failure:
        write_folder(report_on(cell("a")), tmp_path)

    assert str(failure.value) == f"cannot remove {tmp_path}/scaling.json: Is a directory"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ("none.json",),
            2,
            "none.json: No such file or directory; name a file that pytest-benchmark wrote, such "
            "as results/run.json",
        ),
        (
            ("run.json", "--limit", "1%", "--tolerance", "2%"),
            2,
            "--tolerance is 2%, above the limit of 1%; use a smaller one, or a larger --limit",
        ),
        (("run.json", "--limit", "x"), 2, "--limit is 'x'; use a ratio such as 2%"),
        (("run.json", "--csv", "run.json/c"), 12, "cannot write run.json/c: Not a directory"),
    ],
)
def test_a_mistake_is_one_line(
    verb: Verb,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    assert verb(*arguments) == code
    assert capsys.readouterr().err == f"perfsuite: {message}\n"


def shard(number: int, *names: str, **changes: object) -> str:
    """Write the run of one of two shards, whose session has three cells."""
    part = {"number": number, "num_shards": 2, "num_cells": 3, "partition": "cccccccccccc"}
    path = Path(f"shard-{number}.json")
    judged = (benchmark(name, info=record(given=verdict())) for name in names)
    write_run(path, *judged, perfsuite=stamp(shard={**part, **changes}))
    return str(path)


@pytest.mark.parametrize(
    ("cells", "code", "said"),
    [
        ((("a", "b"), ("c",)), 0, "PASS 3 cells: 3 PASS"),
        (
            (("a",), ("c",)),
            12,
            "NO VERDICT 2 cells: 2 PASS; without a time or a verdict: 1 of the cells",
        ),
    ],
)
def test_shards_that_leave_out_a_cell_are_no_session(
    verb: Verb,
    capsys: pytest.CaptureFixture[str],
    cells: tuple[tuple[str, ...], ...],
    code: int,
    said: str,
) -> None:
    shards = [shard(number, *names) for number, names in enumerate(cells, start=1)]

    assert verb(*shards) == code
    assert capsys.readouterr().out.splitlines()[0] == said


def test_a_shard_may_report_on_itself_and_is_no_session(verb: Verb) -> None:
    alone = shard(1, "a", "b")

    assert verb(alone) == 0
    assert verb(alone, "--require-verdicts") == 12


def test_where_verdicts_are_required_a_cell_without_one_ends_in_12(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb("run.json", "--require-verdicts") == 0
    write_run(
        Path("half.json"),
        benchmark("judged", info=record(given=verdict())),
        benchmark("plain"),
        perfsuite=stamp(verdicts={"judged": "PASS", "gone": "VANISHED"}),
    )

    assert verb("half.json") == 0
    capsys.readouterr()
    assert verb("half.json", "--require-verdicts", "--markdown=m.md") == 12

    assert capsys.readouterr().out.splitlines()[-1] == "plain: no verdict (--require-verdicts)"
    assert "judged" in Path("m.md").read_text()


def test_where_verdicts_are_required_each_shard_of_a_cell_has_one(verb: Verb) -> None:
    first, second = shard(1, "a", "b"), shard(2, "c")
    unjudged = benchmark("a", (0.004,) * 4, record())
    part = {"number": 2, "num_shards": 2, "num_cells": 3, "partition": "cccccccccccc"}
    judged = benchmark("c", info=record(given=verdict()))
    write_run(Path(second), judged, unjudged, perfsuite=stamp(shard=part))

    assert verb(first, second) == 0
    assert verb(second, first, "--require-verdicts") == 12


def test_each_exception_that_a_verdict_rests_on_is_listed_once(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    used = "every cell may take up to 8.0 % more time until 2027-01-31: checks its input"
    judged = (benchmark(name, info=record(given=verdict())) for name in "ab")
    write_run(Path("run.json"), *judged, perfsuite=stamp(exceptions={"a": [used], "b": [used]}))

    assert verb("run.json", "--markdown=m.md") == 0

    assert capsys.readouterr().out.splitlines()[1:] == [f"accepted: {used}", "written to m.md"]
    assert used in html.unescape(Path("m.md").read_text())


# --- perfsuite run ---

A_SESSION_THAT_WROTE = """
    from perfsuite.plugin.session.saving import WRITTEN_RUN

    def pytest_sessionfinish(session):
        path = session.config.rootpath / "results" / "run.json"
        if path.exists():
            session.config.stash[WRITTEN_RUN] = path, 0.01, 0.03
"""


def run(pytester: pytest.Pytester, *, wrote_run: bool = True) -> pytest.RunResult:
    pytester.makeconftest(A_SESSION_THAT_WROTE)
    path = pytester.makepyfile("def test_that_fails(): assert False")
    if wrote_run:
        folder = pytester.mkdir("results")
        write_run(folder / "run.json", benchmark("t.py::a", info=record(given=verdict())))
    return pytester.runpytest_inprocess(path, "-p", "perfsuite.plugin.report")


def test_a_report_lies_beside_the_run_and_the_exit_code_is_pytests(
    pytester: pytest.Pytester,
) -> None:
    result = run(pytester)

    assert result.ret == 1
    folder = pytester.path / "results" / "report"
    assert f"report: {folder}/index.html" in result.outlines
    page = (folder / "index.html").read_text()
    assert "t.py::a" in page
    assert "tolerance +1.0 %, limit +3.0 %" in page


def test_a_report_that_cannot_be_made_changes_no_verdict_and_is_one_line(
    pytester: pytest.Pytester,
) -> None:
    folder = pytester.mkdir("results")
    (folder / "run.json").write_text("{}")

    result = run(pytester, wrote_run=False)

    assert result.ret == 1
    reported = [line for line in result.outlines if line.startswith(("report:", "no report:"))]
    assert reported == [
        f"no report: {folder}/run.json: is no run of pytest-benchmark: Object missing required "
        "field `datetime`; name a file that pytest-benchmark wrote, such as results/run.json"
    ]


def test_a_session_that_wrote_no_run_makes_no_report(pytester: pytest.Pytester) -> None:
    result = run(pytester, wrote_run=False)

    assert result.ret == 1
    assert not [line for line in result.outlines if "report: " in line]
    assert not (pytester.path / "results").exists()
