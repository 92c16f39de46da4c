"""Numbers of 8 bits: proven by T2 with torchao, real or made up, and told where it is not there."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import made_up_torchao
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from perfsuite import Recipe, Workload
from perfsuite.errors import NotExercisedError, RecipeError
from perfsuite.experiments.rank_session import Session
from perfsuite.ranks.messages import GroupPolicy
from perfsuite.records.equivalence import EquivalenceReport, EquivalenceRow, Numerics
from perfsuite.worker.equivalence.proof import Case
from perfsuite.worker.equivalence.run_checks import check_run
from perfsuite.worker.equivalence.trace.recording import record_run
from perfsuite.worker.equivalence.trace.trace import join_traces
from perfsuite.worker.training.trainer import build_trainer

Check = Callable[..., EquivalenceReport]

CPU = torch.device("cpu")
PRECISIONS = ("fp8-tensorwise", "fp8-rowwise")
NOT_INSTALLED = "precision {!r}: torchao is not installed: pip install 'perfsuite[fp8]'"


def make_layers() -> nn.Module:
    layers = (nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3))
    return nn.Sequential(*layers)


def make_samples(split: str) -> TensorDataset | None:
    inputs = torch.randn(128, 32, generator=torch.Generator().manual_seed(7))
    return TensorDataset(inputs, inputs[:, :3].argmax(1)) if split == "train" else None


WORKLOAD = Workload(
    name="layers",
    build_model=make_layers,
    build_dataset=make_samples,
    loss=nn.functional.cross_entropy,
    build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    micro_batch_size=16,
)


def check_here(recipe: Recipe, plant: Callable[[nn.Module], None]) -> dict[str, EquivalenceRow]:
    """The rows of a run in this process, whose model `plant` breaks once it is built."""
    trainer = build_trainer(WORKLOAD, recipe, device=CPU, seed=0)
    plant(trainer.module)
    samples = make_samples("train")
    assert samples is not None
    epoch = [list(range(begin, begin + 16)) for begin in range(0, 128, 16)]
    batches = iter([[part.clone() for part in samples[indices]] for indices in epoch])
    recorded = record_run(trainer, batches, num_steps=3, on_step=lambda: None)
    recorded = dataclasses.replace(recorded, indices=[epoch])
    case = Case(
        workload=WORKLOAD,
        recipe=recipe,
        device=CPU,
        seed=0,
        num_steps=3,
        trace=join_traces([recorded]),
        twin=None,
        on_step=lambda: None,
    )
    return {row.check: row for row in check_run(case)[0]}


@pytest.fixture
def torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_torchao.install(monkeypatch)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("parallel", ["single", "ddp:2"])
def test_it_is_equivalent_or_names_the_package(
    check_equivalence: Check, parallel: str, precision: str
) -> None:
    report = check_equivalence(WORKLOAD, Recipe(parallel=parallel, precision=precision))

    if importlib.util.find_spec("torchao") is None:
        assert report.status == "not exercised"
        assert report.worst.reason == NOT_INSTALLED.format(precision)
    else:
        assert report.is_equivalent, str(report)


def test_where_it_is_emulated_it_has_numerics_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    session = Session(GroupPolicy(), say=print)
    proven = Numerics(status="equivalent", check="T2", error=0.05, limit=0.1, power="6/6")

    monkeypatch.setattr(session, "require_equivalence", lambda *_, **__: Mock(numerics=proven))

    with pytest.raises(NotExercisedError) as raised:
        session.measure_cell(WORKLOAD, Recipe(precision="fp8-rowwise"), checks_numerics=True)

    assert str(raised.value) == (
        "precision 'fp8-rowwise' has no time here: 8-bit products need an NVIDIA GPU of compute "
        "capability 9.0 or more, and torchao emulates them on cpu; its numerics are equivalent"
    )


def nothing(model: nn.Module) -> None:
    """Plant no bug."""


def scale_weights(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, made_up_torchao.Float8Linear):
            layer.factor = 1.5


def leave_out(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, made_up_torchao.Float8Linear):
            layer.__class__ = nn.Linear


def test_t2_holds_it_to_the_error_of_plain_training_alone(torchao: None) -> None:
    row = check_here(Recipe(precision="fp8-tensorwise"), nothing)["T2"]

    assert row.status == "equivalent", row.reason
    assert row.limit is not None
    assert row.limit < 0.125
    assert row.reason.endswith(" of plain training")
    assert row.power == "6/6"


def test_t2_finds_a_product_of_another_scale(torchao: None) -> None:
    row = check_here(Recipe(precision="fp8-tensorwise"), scale_weights)["T2"]

    assert row.status == "mismatch", row.reason
    assert row.reason.startswith("the gradient of '0.weight' differs at step 1 by ")


def test_layers_that_were_left_in_16_bits_have_no_power(torchao: None) -> None:
    row = check_here(Recipe(precision="fp8-tensorwise"), leave_out)["T2"]

    assert row.status == "no power", row.reason
    assert "low precision left no trace: the error is " in row.reason


def test_only_layers_whose_sides_16_divides_are_rounded(torchao: None) -> None:
    trainer = build_trainer(WORKLOAD, Recipe(precision="fp8-rowwise"), device=CPU, seed=0)

    layers = [one for one in trainer.module if isinstance(one, nn.Linear)]

    assert [type(one).__name__ for one in layers] == ["Float8Linear", "Float8Linear", "Linear"]
    assert layers[0].linear_mm_config == made_up_torchao.Float8LinearConfig(
        recipe_name="rowwise", emulate=True, pad_inner_dim=True
    )


@pytest.mark.parametrize(
    ("layer", "is_there", "error", "message"),
    [
        (
            nn.Linear(32, 32),
            False,
            NotExercisedError,
            "precision 'fp8-rowwise' needs the package torchao, which cannot be imported: import "
            "of torchao.float8 halted; None in sys.modules",
        ),
        (
            nn.Linear(6, 32),
            True,
            RecipeError,
            "precision 'fp8-rowwise' needs an nn.Linear whose in_features and out_features are "
            "divisible by 16; workload 'layers' has none; use precision='amp-bf16'",
        ),
    ],
)
def test_without_package_or_layer_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    layer: nn.Module,
    is_there: bool,
    error: type[Exception],
    message: str,
) -> None:
    if is_there:
        made_up_torchao.install(monkeypatch)
    else:
        monkeypatch.setitem(sys.modules, "torchao.float8", None)
    workload: Any = dataclasses.replace(WORKLOAD, build_model=lambda: nn.Sequential(layer))

    with pytest.raises(error) as raised:
        build_trainer(workload, Recipe(precision="fp8-rowwise"), device=CPU, seed=0)

    assert str(raised.value) == message
