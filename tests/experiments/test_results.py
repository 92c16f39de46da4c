from __future__ import annotations

import pytest

from perfsuite import Recipe
from perfsuite.experiments.results import not_exercised, report, without_loader
from perfsuite.ranks.messages import RunChecked
from perfsuite.records.equivalence import EquivalenceRow
from perfsuite.records.recipe import PRECISIONS
from perfsuite.worker.equivalence.limits import is_low_precision


def test_a_report_has_a_row_for_each_check_in_order() -> None:
    recipe = Recipe(parallel="hsdp:2x2", precision="amp-bf16", checkpointing="every-block")
    no_power = EquivalenceRow.of(
        recipe,
        "T0",
        "no power",
        "it does not find a planted bug: lost",
        error=1e-8,
        limit=3.4e-7,
        planted={"doubled": True, "lost": False},
    )
    data = EquivalenceRow.of(recipe, "data", "equivalent", "each sample once")
    checked = RunChecked(rows=(no_power, data), inapplicable={"T2": "no one batch"})

    found = report("lenet-digits", recipe, checked)

    assert found.workload == "lenet-digits"
    assert found.recipe == recipe.as_dict()
    assert found.inapplicable == {"T2": "no one batch"}
    assert found.rows == (
        EquivalenceRow(
            parallel="hsdp:2x2",
            precision="amp-bf16",
            checkpointing="every-block",
            world_size=4,
            check="T0",
            status="no power",
            error=1e-8,
            limit=3.4e-7,
            power="1/2",
            reason="it does not find a planted bug: lost",
        ),
        EquivalenceRow(
            parallel="hsdp:2x2",
            precision="amp-bf16",
            checkpointing="every-block",
            world_size=4,
            check="data",
            status="equivalent",
            error=None,
            limit=None,
            power=None,
            reason="each sample once",
        ),
    )


@pytest.mark.parametrize(
    ("parallel", "check"), [("single", "T1"), ("ddp:1", "T1"), ("ddp:2", "T0"), ("tp:4", "T0")]
)
def test_what_cannot_be_exercised_has_one_row_that_says_why(parallel: str, check: str) -> None:
    found = not_exercised("toy-mlp", Recipe(parallel=parallel), "there is no CUDA device")

    (row,) = found.rows
    assert (row.check, row.status, row.reason) == (
        check,
        "not exercised",
        "there is no CUDA device",
    )
    assert (row.error, row.limit, row.power) == (None, None, None)
    assert (found.status, found.is_equivalent, found.inapplicable) == ("not exercised", False, {})


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_process_in_low_precision_would_have_been_held_to_plain_training(
    precision: str,
) -> None:
    parallel = "fsdp:1" if precision == "mp-bf16" else "single"
    recipe = Recipe(parallel=parallel, precision=precision)

    (*_, row) = not_exercised("toy-mlp", recipe, "there is no CUDA device").rows

    assert row.check == ("T2" if is_low_precision(recipe) else "T1")


def test_a_recipe_without_its_loader_is_the_same_mathematics() -> None:
    recipe = Recipe(
        num_workers=2,
        persistent_workers=True,
        pin_memory=True,
        prefetch_factor=4,
        non_blocking=True,
        parallel="ddp:2",
        precision="O1",
        micro_batch_size=3,
        grad_accumulation_steps=2,
    )

    assert without_loader(recipe) == Recipe(
        parallel="ddp:2", precision="O1", micro_batch_size=3, grad_accumulation_steps=2
    )


def test_a_recipe_that_says_nothing_of_its_loader_stays_as_it_is() -> None:
    recipe = Recipe(parallel="fsdp:2", checkpointing="segments:2", compile=True)

    assert without_loader(recipe) == recipe
