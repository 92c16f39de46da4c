from __future__ import annotations

from typing import Any

from perfsuite.experiments.verify import exit_code
from perfsuite.records.equivalence import EquivalenceReport, EquivalenceRow
from perfsuite.records.recipe import Recipe
from perfsuite.report.terminal.equivalence import differing_fields, equivalence_table, explanations


def report(*statuses: Any, **fields: Any) -> EquivalenceReport:
    recipe = Recipe(**fields)
    rows = [
        EquivalenceRow(
            parallel=recipe.parallel,
            precision=recipe.precision,
            checkpointing=recipe.checkpointing,
            world_size=recipe.plan.world_size,
            check=f"T{index}",
            status=status,
            error=None if status == "not exercised" else 2.5e-8 * index,
            limit=None if status == "not exercised" else 4.1e-7 * index,
            power=None if status == "not exercised" else "9/9",
            reason=f"reason {index}",
        )
        for index, status in enumerate(statuses)
    ]
    return EquivalenceReport(
        workload="own", recipe=recipe.as_dict(), rows=tuple(rows), inapplicable={"T9": "why"}
    )


def test_one_report_is_shown_check_by_check() -> None:
    lines = equivalence_table([report("equivalent", "mismatch", parallel="ddp:3")]).splitlines()

    assert lines[2].split() == [
        *("ddp:3", "fp32", "none", "-", "T0", "equivalent", "0", "bitwise", "9/9")
    ]
    assert lines[3].split() == [
        *("ddp:3", "fp32", "none", "-", "T1", "mismatch", "2.5e-08", "4.1e-07", "9/9")
    ]


def test_of_several_reports_each_is_one_row_that_its_worst_check_decides() -> None:
    table = equivalence_table(
        [report("equivalent", "mismatch", parallel="ddp:3"), report("not exercised")]
    )

    assert table.splitlines()[2].split() == [
        *("ddp:3", "fp32", "none", "-", "T0", "T1", "mismatch", "2.5e-08", "4.1e-07", "9/9")
    ]
    assert table.splitlines()[3].split() == [
        *("single", "fp32", "none", "-", "-", "not", "exercised", "-", "-", "-")
    ]


def test_what_else_a_recipe_says_has_a_column() -> None:
    one = report("equivalent", parallel="ddp:2", static_graph=True, grad_accumulation_steps=2)

    assert differing_fields(one) == ["grad_accumulation_steps=2", "static_graph=True"]


def test_every_row_is_explained_alone_and_only_failing_ones_in_a_table() -> None:
    one = report("equivalent", "no power", checkpointing="selective")

    assert list(explanations([one], every_row=True)) == [
        "T0 equivalent (single, fp32, selective): reason 0",
        "T1 no power (single, fp32, selective): reason 1",
        "T9 does not apply: why",
    ]
    assert list(explanations([one], every_row=False)) == [
        "T1 no power (single, fp32, selective): reason 1"
    ]


def test_the_exit_code_is_the_worst_reports() -> None:
    fine, missing = report("equivalent"), report("not exercised")
    weak, wrong = report("no power"), report("mismatch")

    assert exit_code([fine], of_table=False) == 0
    assert exit_code([missing], of_table=False) == 22
    assert exit_code([fine, missing], of_table=True) == 0
    assert exit_code([missing], of_table=True) == 22
    assert exit_code([fine, weak, missing], of_table=True) == 21
    assert exit_code([wrong, weak], of_table=True) == 20
