from __future__ import annotations

import msgspec

from perfsuite.records.cell import CellLine, CellRecord, Counts, Memory, StageTimes
from perfsuite.records.equivalence import Numerics
from perfsuite.records.recipe import Recipe
from perfsuite.report.rows import missing_lines, row_of_line, skipped_lines
from perfsuite.report.terminal.tables import progress_line, report_table, text_table

NO_STAGES = {"forward": None, "backward": None, "optimizer": None, "evaluation": None}


def line(
    stages: dict[str, float | None], *, times: tuple[float, ...] = (0.002, 0.001, 0.003)
) -> CellLine:
    return CellLine(
        fullname="benchmarks/test_it.py::test_it[a]",
        outcome="passed",
        reason=None,
        step_times_s=times,
        perfsuite=CellRecord(
            workload="lenet",
            recipe=Recipe(parallel="ddp:2", num_workers=2).as_dict(),
            device="cpu",
            world_size=2,
            exercised=True,
            fingerprint="0123456789ab",
            numerics=Numerics(status="equivalent", check="T0", error=0.0, limit=0.0, power="9/9"),
            stages_s=StageTimes(**{**NO_STAGES, "load": 0.0005, "other": 0.0, **stages}),
            counts=Counts(
                flops=1,
                ops=1,
                collectives=3,
                collective_bytes=8,
                saved_activation_bytes=0,
                kernel_launches=None,
            ),
            memory=Memory(metric="live_storage_peak", peak_bytes=2**20, per_rank=(2**20, 5)),
            samples_per_s=16000.0,
            losses=(1.0,),
            verdict=None,
        ),
    )


def terminal_table(lines: list[CellLine]) -> str:
    return report_table([row for row in map(row_of_line, lines) if row is not None])


TRAINED = {"forward": 0.0005, "backward": 0.0005, "optimizer": 0.0005}


def test_the_table_has_a_row_for_each_measured_cell_and_none_for_others() -> None:
    skipped = CellLine(
        fullname="b::t", outcome="skipped", reason="no GPU", step_times_s=(), perfsuite=None
    )

    table = terminal_table([line(TRAINED), skipped])

    header, _, *rows = table.splitlines()
    titles = (
        "workload parallel precision checkpointing numerics workers step spread samples/s "
        "samples/s each load peak memory"
    )
    values = "lenet ddp:2 fp32 none equivalent 2 2.00 ms ± 74.1 % 16.0 k 8.00 k 25.0 % 1.00 MiB 3"
    assert " ".join(header.split()) == f"{titles} collectives"
    assert [" ".join(row.split()) for row in rows] == [values]
    assert [*skipped_lines([line(TRAINED), skipped])] == ["NOT EXERCISED b::t: no GPU"]


def test_cells_of_one_workload_and_recipe_are_told_apart_by_their_tests() -> None:
    small, large = (
        msgspec.structs.replace(line(TRAINED), fullname=f"b.py::test_{name}")
        for name in ("small", "large")
    )

    rows = terminal_table([small, large]).splitlines()[2:]

    assert [row.split()[:2] for row in rows] == [
        ["b.py::test_small", "lenet"],
        ["b.py::test_large", "lenet"],
    ]


def test_a_cell_whose_check_had_no_power_has_a_line_that_says_why() -> None:
    proven = line(TRAINED)
    assert proven.perfsuite is not None
    numerics = Numerics(status="no power", check="T1", error=0.0, limit=0.0, power="2/4")
    unproven = msgspec.structs.replace(
        proven,
        reason="no flops: it is a loop; no numerics: all gradients are zero; or none; no tflops: x",
        perfsuite=msgspec.structs.replace(proven.perfsuite, numerics=numerics),
    )

    assert [*missing_lines([proven, unproven])] == [
        "NO POWER benchmarks/test_it.py::test_it[a]: all gradients are zero; or none"
    ]
    numerics = msgspec.structs.replace(numerics, status="not exercised")
    record = msgspec.structs.replace(proven.perfsuite, numerics=numerics)
    unexercised = msgspec.structs.replace(
        proven, reason="no numerics: it draws noise; no flops: x", perfsuite=record
    )
    assert [*missing_lines([proven, unexercised])] == [
        "NO PROOF benchmarks/test_it.py::test_it[a]: it draws noise"
    ]
    by_choice = msgspec.structs.replace(
        unexercised, reason="no ops: y; no numerics: no reference= is given"
    )
    assert [*missing_lines([by_choice])] == []


def test_a_users_own_cell_without_counts_or_a_whole_proof_has_lines_that_say_why() -> None:
    ours = msgspec.structs.replace(
        line(TRAINED),
        reason="no memory: a; no ops: it ended early; no numerics of small gradients: those of "
        "'t'; no numerics of frozen parameters: the step changes 'm' without an optimizer",
    )
    assert ours.perfsuite is not None
    own = msgspec.structs.replace(
        ours, perfsuite=msgspec.structs.replace(ours.perfsuite, recipe=None)
    )

    assert [*missing_lines([ours, own])] == [
        "NO COUNTS benchmarks/test_it.py::test_it[a]: it ended early",
        "NO PROOF OF SMALL GRADIENTS benchmarks/test_it.py::test_it[a]: those of 't'",
        "NO PROOF OF FROZEN PARAMETERS benchmarks/test_it.py::test_it[a]: the step changes 'm' "
        "without an optimizer",
    ]


def test_speeds_have_columns_where_any_cell_has_them() -> None:
    measured = line(TRAINED)
    assert measured.perfsuite is not None
    record = msgspec.structs.replace(
        measured.perfsuite, tokens_per_s=1.2e6, tflops=312.46, mfu=0.3158, hfu=0.421
    )

    table = terminal_table([msgspec.structs.replace(measured, perfsuite=record)])

    header, _, row = (" ".join(text.split()) for text in table.splitlines())
    assert (
        "samples/s tokens/s samples/s each tokens/s each TFLOP/s each MFU HFU load peak" in header
    )
    assert "16.0 k 1.20 M 8.00 k 600 k 312 31.6 % 42.1 % 25.0 %" in row


def test_evaluating_and_loading_are_told_from_training() -> None:
    table = terminal_table([line({"evaluation": 0.001}), line({})])

    assert [row.split("  ")[0].strip() for row in table.splitlines()[2:]] == [
        "lenet, evaluated",
        "lenet, loaded",
    ]


def test_a_cell_that_ended_gets_one_line_however_it_ended() -> None:
    failed = CellLine(
        fullname="b::t", outcome="failed", reason="boom\n  more", step_times_s=(), perfsuite=None
    )

    assert progress_line(line(TRAINED)) == (
        "benchmarks/test_it.py::test_it[a]: 2.00 ms ± 74.1 % a step, 16.0 k samples/s"
    )
    assert progress_line(failed) == "b::t: failed: boom"
    own = line(TRAINED)
    assert own.perfsuite is not None
    record = msgspec.structs.replace(own.perfsuite, samples_per_s=None)
    own = msgspec.structs.replace(own, perfsuite=record)
    assert progress_line(own) == "benchmarks/test_it.py::test_it[a]: 2.00 ms ± 74.1 % a step"


def test_hostile_names_are_shown_as_they_are() -> None:
    cell = line(TRAINED)
    assert cell.perfsuite is not None
    hostile = CellLine(
        fullname=cell.fullname,
        outcome="passed",
        reason=None,
        step_times_s=(0.0,),
        perfsuite=CellRecord(
            **{
                name: getattr(cell.perfsuite, name)
                for name in cell.perfsuite.__struct_fields__
                if name != "workload"
            },
            workload="[bold]x[/nonsense]",
        ),
    )

    assert "[bold]x[/nonsense]" in terminal_table([hostile])


def test_parametrized_cells_of_one_function_are_told_apart() -> None:
    record = line(TRAINED).perfsuite
    assert record is not None
    own = msgspec.structs.replace(record, recipe=None, workload="train")
    cells = [
        msgspec.structs.replace(line(TRAINED), fullname=f"b.py::{name}", perfsuite=own)
        for name in ("test_a[64-x]", "test_b")
    ]

    rows = terminal_table(cells).splitlines()[-2:]

    assert [row.split()[0] for row in rows] == ["train[64-x]", "train"]


def test_a_long_text_takes_nothing_from_another_column() -> None:
    name = "benchmarks/test_it.py::test_it[" + 500 * "x" + "]"

    table = text_table(
        [("cell", False), ("verdict", False), ("pairs", True)], [[name, "FAIL", "4"]]
    )

    assert table.splitlines()[-1] == f" {name}   FAIL          4"
