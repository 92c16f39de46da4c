from __future__ import annotations

import random
import re
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from perfsuite import Recipe, WorkloadError
from perfsuite.records.stages import untimed
from perfsuite.worker.training.mixed_precision import MasterWeights
from perfsuite.worker.training.step import train_step
from perfsuite.worker.training.trainer import build_trainer, seed_random_numbers

CPU = torch.device("cpu")


def refusal(error: type[Exception], message: str) -> Any:
    return pytest.raises(error, match=f"^{re.escape(message)}$")


class Journal:
    """A mode that logs its calls and the state of the model at each of them."""

    splits_parameters = False
    shard_index = 1
    num_shards = 2

    def __init__(self) -> None:
        self.log: list[str] = []

    def note(self, name: str, model: Any) -> Any:
        layer = model[0]
        self.log.append(
            f"{name}: {layer.weight.dtype}, autocast {type(model) is not nn.Sequential}, "
            f"checkpointed {type(layer) is not nn.Linear}"
        )
        return model

    def split(self, model: nn.Module) -> nn.Module:
        return self.note("split", model)

    def local_blocks(self, model: Any) -> list[nn.Module]:
        return list(self.note("local_blocks", model))

    def entry_modules(self, model: nn.Module) -> list[nn.Module]:
        return [self.note("entry_modules", model)]

    def wrap(self, model: nn.Module) -> nn.Module:
        return nn.Sequential(self.note("wrap", model))

    def build_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        self.log.append(f"build_optimizer: {parameters[0].dtype}")
        return torch.optim.SGD(parameters, lr=0.1)


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> Journal:
    from perfsuite.worker.training import trainer

    journal = Journal()
    monkeypatch.setattr(trainer, "choose_strategy", lambda *args, **known: journal)
    return journal


def test_the_parts_are_wrapped_in_the_stated_order(journal: Journal, make_workload: Any) -> None:
    trainer = build_trainer(
        make_workload(blocks=list),
        Recipe(precision="amp-bf16", checkpointing="every-block"),
        device=CPU,
        seed=0,
    )

    single = "torch.float32"
    assert journal.log == [
        f"split: {single}, autocast False, checkpointed False",
        f"local_blocks: {single}, autocast False, checkpointed False",
        f"entry_modules: {single}, autocast False, checkpointed True",
        f"wrap: {single}, autocast True, checkpointed True",
        f"build_optimizer: {single}",
    ]
    assert trainer.model[0] is trainer.module


def test_master_weights_wrap_the_optimizer_of_the_mode(
    journal: Journal, make_workload: Any
) -> None:
    trainer = build_trainer(make_workload(), Recipe(precision="O2"), device=CPU, seed=0)

    assert journal.log[0].startswith("split: torch.float16")
    assert journal.log[-1] == "build_optimizer: torch.float32"
    assert isinstance(trainer.optimizer, MasterWeights)
    assert isinstance(trainer.optimizer.optim, torch.optim.SGD)


def test_compile_comes_after_autocast_and_before_the_wrapper(
    journal: Journal, make_workload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        nn.Sequential, "compile", lambda model: journal.log.append("compile"), raising=False
    )

    trainer = build_trainer(make_workload(), Recipe(compile=True), device=CPU, seed=0)

    names = [entry.partition(":")[0] for entry in journal.log]
    assert names[-3:] == ["compile", "wrap", "build_optimizer"]
    assert next(iter(trainer.module.state_dict())) == "0.weight"


def test_the_same_seed_gives_the_same_weights_and_losses(make_workload: Any) -> None:
    def losses(seed: int) -> list[float]:
        workload = make_workload(
            build_model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(), nn.Linear(8, 3))
        )
        trainer = build_trainer(workload, Recipe(), device=CPU, seed=seed)
        batch = (torch.ones(4, 6), torch.arange(4) % 3)
        return [train_step(trainer, iter([batch]), untimed).item() for _ in range(3)]

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_shards_start_from_the_same_weights_and_draw_other_numbers(
    journal: Journal, make_workload: Any
) -> None:
    drawn, weights = [], []
    for journal.shard_index in (0, 1, 1):
        trainer = build_trainer(make_workload(), Recipe(), device=CPU, seed=4)
        weights.append(trainer.module[0].weight.detach())
        drawn.append(torch.rand(1).item())

    assert torch.equal(weights[0], weights[1])
    assert drawn[0] != drawn[1] == drawn[2]


def test_seeding_covers_torch_python_and_numpy() -> None:
    def draw() -> tuple[float, float, float]:
        return torch.rand(1).item(), random.random(), numpy.random.rand()

    seed_random_numbers(2**40)
    first = draw()
    second = draw()
    seed_random_numbers(2**40)

    assert draw() == first
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_only_trainable_parameters_reach_the_optimizer(
    make_trainer: Any, make_workload: Any
) -> None:
    def build_model() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
        model[0].requires_grad_(False)
        return model

    trainer = make_trainer(make_workload(build_model=build_model), precision="O2")

    assert len(trainer.optimizer.param_groups[0]["params"]) == 2
    assert trainer.module[0].weight.dtype == torch.float16


def test_a_model_without_trainable_parameters_is_refused(
    make_trainer: Any, make_workload: Any
) -> None:
    workload = make_workload(build_model=lambda: nn.Linear(6, 3).requires_grad_(False))

    message = (
        "workload 'small': no parameter of its model requires a gradient; "
        "leave requires_grad on for the parameters to train"
    )
    with refusal(WorkloadError, message):
        make_trainer(workload)


def test_an_optimizer_that_is_none_is_refused(make_trainer: Any, make_workload: Any) -> None:
    message = (
        "workload 'small': build_optimizer returned a NoneType; return a torch.optim.Optimizer"
    )
    with refusal(WorkloadError, message):
        make_trainer(make_workload(build_optimizer=lambda parameters: None))


def test_an_optimizer_that_needs_a_closure_is_refused(
    make_trainer: Any, make_workload: Any
) -> None:
    message = (
        "workload 'small': LBFGS needs a closure for each step, and a recipe has none; use "
        "step_benchmark with a step of your own"
    )
    with refusal(WorkloadError, message):
        make_trainer(make_workload(build_optimizer=torch.optim.LBFGS))


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda: "model", "a str; return a torch.nn.Module"),
        (
            lambda: nn.Sequential(nn.LazyLinear(4)),
            "parameters without a shape (nn.LazyLinear); run a batch through it there",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double()),
            "parameters in float64; build them in float32, or use precision='fp64'",
        ),
        (
            lambda: nn.Linear(4, 4).eval(),
            "a model in eval mode, as from_pretrained does; return it after model.train()",
        ),
    ],
)
def test_a_model_that_cannot_be_trained_as_it_is_is_refused(
    make_trainer: Any, make_workload: Any, build: Any, what: str
) -> None:
    with refusal(WorkloadError, f"workload 'small': build_model returned {what}"):
        make_trainer(make_workload(build_model=build))


class Frozen(nn.Module):
    """Keeps its statistics, as a training's `model.train()` has it do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.norm.eval()
        return self


def test_a_part_of_a_model_that_freezes_itself_in_train_is_frozen(
    make_trainer: Any, make_workload: Any
) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), Frozen(), nn.Dropout(0.5).eval())

    linear, frozen, kept = make_trainer(make_workload(build_model=build)).model

    assert [linear.training, frozen.training, frozen.dropout.training] == [True, True, True]
    assert [frozen.norm.training, kept.training] == [False, False]


def test_a_model_in_float64_is_trained_in_it(make_trainer: Any, make_workload: Any) -> None:
    workload = make_workload(build_model=lambda: nn.Linear(4, 4).double())

    assert make_trainer(workload, precision="fp64").model.weight.dtype == torch.float64


def test_the_parts_of_a_trainer_name_their_device_and_policy(make_trainer: Any) -> None:
    trainer = make_trainer(precision="O1")

    assert trainer.device == CPU
    assert trainer.precision.name == "O1"
    assert trainer.scaler.is_enabled()
    assert trainer.model is trainer.module


def test_the_untimed_stage_does_nothing() -> None:
    with untimed("forward") as nothing:
        assert nothing is None
