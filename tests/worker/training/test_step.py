from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perfsuite import WorkloadError
from perfsuite.errors import NotExercisedError
from perfsuite.records.stages import untimed
from perfsuite.worker.training.batches import call_model
from perfsuite.worker.training.step import compute_loss, evaluate_batch, train_step
from perfsuite.worker.training.trainer import Trainer

WHOLE = (torch.randn(8, 6, generator=torch.Generator().manual_seed(2)), torch.arange(8) % 3)
QUARTERS = [(WHOLE[0][i : i + 2], WHOLE[1][i : i + 2]) for i in range(0, 8, 2)]


class RecordingStage:
    """Logs the beginning and the end of each stage, and other events in between."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.log.append(f"{name} (")
        yield
        self.log.append(")")


def relative_difference(trainer: Trainer, reference: Trainer) -> float:
    """The Frobenius norm of the difference of all gradients, over the reference's norm."""
    pairs = zip(trainer.module.parameters(), reference.module.parameters(), strict=True)
    gradients = [(p.grad.flatten(), q.grad.flatten()) for p, q in pairs]
    tested, expected = (torch.cat(parts) for parts in zip(*gradients, strict=True))
    return ((tested - expected).norm() / expected.norm()).item()


def test_one_step_equals_the_loop_that_a_user_writes(make_trainer: Any) -> None:
    trainer, reference = make_trainer(), make_trainer()

    losses = [train_step(trainer, iter([batch]), untimed) for batch in QUARTERS]

    optimizer = torch.optim.SGD(reference.module.parameters(), lr=0.1)
    for (inputs, target), loss in zip(QUARTERS, losses, strict=True):
        optimizer.zero_grad()
        expected = nn.functional.cross_entropy(reference.module(inputs), target)
        expected.backward()
        optimizer.step()
        assert torch.equal(loss, expected)
    for mine, theirs in zip(
        trainer.module.parameters(), reference.module.parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_the_loss_is_detached(make_trainer: Any) -> None:
    loss = train_step(make_trainer(), iter([WHOLE]), untimed)

    assert loss.shape == ()
    assert not loss.requires_grad


@pytest.mark.parametrize("clip", [None, 1e-2])
def test_accumulated_micro_batches_equal_one_batch(make_trainer: Any, clip: float | None) -> None:
    accumulated = make_trainer(precision="fp64", grad_accumulation_steps=4, clip_grad_norm=clip)
    whole = make_trainer(precision="fp64", clip_grad_norm=clip)

    loss = train_step(accumulated, iter(QUARTERS), untimed)
    expected = train_step(whole, iter([WHOLE]), untimed)

    assert (loss - expected).abs() < 1e-15
    # 16 times the float64 rounding of each of the 4 sums (design, T1).
    assert relative_difference(accumulated, whole) < 16 * 2.3e-16 * 2


def test_gradients_are_clipped_to_the_recipes_norm(make_trainer: Any) -> None:
    trainer = make_trainer(clip_grad_norm=1e-2)

    train_step(trainer, iter([WHOLE]), untimed)

    norm = torch.cat([p.grad.flatten() for p in trainer.module.parameters()]).norm()
    torch.testing.assert_close(norm, torch.tensor(1e-2), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("precision", ["amp-fp16", "O1", "O2"])
def test_a_scaled_loss_is_unscaled_before_clipping_and_stepping(
    make_trainer: Any, precision: str
) -> None:
    trainer = make_trainer(precision=precision, clip_grad_norm=1e6)
    reference = make_trainer()

    loss = train_step(trainer, iter([WHOLE]), untimed)
    expected = train_step(reference, iter([WHOLE]), untimed)

    # Rounding to float16 (eps 9.8e-4), against a scale of 65536.
    assert (loss / expected - 1).abs() < 1e-2
    for mine, theirs in zip(
        trainer.module.parameters(), reference.module.parameters(), strict=True
    ):
        torch.testing.assert_close(mine.float(), theirs, rtol=1e-2, atol=1e-3)


class Recorder(torch.optim.SGD):
    """Logs its calls in a stage's log."""

    log: list[str]

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.log.append("zero_grad")
        super().zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        self.log.append("step")
        return super().step(closure)


def recorded(trainer: Trainer, stage: RecordingStage) -> Trainer:
    """The trainer; its parts log their calls in the stage's log."""
    trainer.optimizer = Recorder(trainer.module.parameters(), lr=0.1)
    trainer.optimizer.log = stage.log
    trainer.module.register_forward_hook(lambda *_: stage.log.append("model"))
    for parameter in list(trainer.module.parameters())[:1]:
        parameter.register_post_accumulate_grad_hook(lambda _: stage.log.append("gradient"))

    def loss(outputs: Tensor, target: Tensor) -> Tensor:
        stage.log.append("loss")
        return nn.functional.cross_entropy(outputs, target)

    trainer.workload = replace(trainer.workload, loss=loss)
    return trainer


def recorded_batches(stage: RecordingStage) -> Iterator[Any]:
    for batch in QUARTERS:
        stage.log.append("next")
        yield batch


def test_the_stages_of_a_step_follow_the_algorithm(make_trainer: Any) -> None:
    stage = RecordingStage()
    trainer = recorded(make_trainer(grad_accumulation_steps=2, clip_grad_norm=1.0), stage)

    train_step(trainer, recorded_batches(stage), stage)

    micro_batch = "load ( next ) forward ( model ) backward ( loss gradient )"
    assert " ".join(stage.log) == (
        f"optimizer ( zero_grad ) {micro_batch} {micro_batch} optimizer ( step )"
    )


def test_evaluation_runs_under_load_and_evaluation(make_trainer: Any) -> None:
    stage = RecordingStage()
    trainer = recorded(make_trainer(), stage)

    evaluate_batch(trainer, recorded_batches(stage), stage)

    assert " ".join(stage.log) == "load ( next ) evaluation ( model loss )"


class Earlier:
    """A mode without a loss on this rank, as in a pipeline's first stage."""

    splits_parameters = False

    def __init__(self) -> None:
        self.last: list[bool] = []

    def run_micro_batch(self, trainer: Any, inputs: Any, target: Any, **known: Any) -> None:
        self.last.append(known["is_last"])

    def finish_gradients(self) -> None:
        self.last.append(None)


def test_a_rank_without_a_loss_returns_none(make_trainer: Any) -> None:
    trainer = make_trainer(grad_accumulation_steps=3)
    trainer.strategy = Earlier()

    loss = train_step(trainer, iter(QUARTERS), untimed)

    assert loss is None
    assert trainer.strategy.last == [False, False, True, None]


def test_a_rank_without_a_loss_has_a_scale_all_the_same(make_trainer: Any) -> None:
    trainer = make_trainer(precision="amp-fp16")
    trainer.strategy = Earlier()
    for parameter in trainer.module.parameters():
        parameter.grad = torch.full_like(parameter, 2.0**16)
    before = [parameter.detach().clone() for parameter in trainer.module.parameters()]
    trainer.optimizer.zero_grad = lambda: None

    train_step(trainer, iter(QUARTERS), untimed)

    for parameter, value in zip(trainer.module.parameters(), before, strict=True):
        assert torch.equal(parameter, value - 0.1)


class Mixed(nn.Module):
    """One part that the user keeps in eval mode, and one that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.norm = nn.BatchNorm1d(6).eval(), nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.frozen(x)))


def test_evaluation_changes_nothing(make_trainer: Any, make_workload: Any) -> None:
    trainer = make_trainer(make_workload(build_model=Mixed))
    before = {name: value.clone() for name, value in trainer.module.state_dict().items()}
    training = [module.training for module in trainer.module.modules()]

    loss = evaluate_batch(trainer, iter([WHOLE]), untimed)

    assert training == [True, False, True, True]
    assert [module.training for module in trainer.module.modules()] == training
    assert not loss.requires_grad
    for name, value in trainer.module.state_dict().items():
        assert torch.equal(value, before[name])
    with torch.no_grad():
        expected = nn.functional.cross_entropy(trainer.module.eval()(WHOLE[0]), WHOLE[1])
    assert torch.equal(loss, expected)


def test_a_model_that_cannot_be_evaluated_says_why(make_trainer: Any) -> None:
    trainer = make_trainer()
    trainer.strategy.why_not_evaluated = "it cannot be cut in eval mode"

    with pytest.raises(NotExercisedError, match=r"^it cannot be cut in eval mode$"):
        evaluate_batch(trainer, iter([WHOLE]), untimed)


class Keyed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(4, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor, weights: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head((self.embed(ids) * weights[..., None]).mean(1))}


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "amp-bf16", "O2", "O3"])
def test_dicts_go_in_and_dicts_come_out_in_every_precision(
    make_trainer: Any, make_workload: Any, precision: str
) -> None:
    workload = make_workload(
        build_model=Keyed,
        loss=lambda outputs, target: (outputs["logits"] - target["wanted"]).square().mean(),
    )
    trainer = make_trainer(workload, precision=precision)
    inputs = {"ids": torch.arange(8).view(2, 4) % 4, "weights": torch.ones(2, 4)}

    loss = train_step(trainer, iter([(inputs, {"wanted": torch.ones(2, 3)})]), untimed)

    wide = torch.float64 if precision == "fp64" else torch.float32
    assert loss.isfinite()
    assert loss.dtype == wide
    assert trainer.module.embed.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("loss", "returned"),
    [
        (
            lambda outputs, target: nn.functional.cross_entropy(outputs, target, reduction="none"),
            "a tensor of shape (8,); return a scalar tensor, the mean over the batch",
        ),
        (lambda outputs, target: 0.5, "a float; return a scalar tensor, the mean over the batch"),
    ],
)
def test_a_loss_that_is_no_scalar_is_refused(
    make_trainer: Any, make_workload: Any, loss: Any, returned: str
) -> None:
    trainer = make_trainer(make_workload(loss=loss))

    message = f"workload 'small': its loss returned {returned}"
    with pytest.raises(WorkloadError, match=f"^{re.escape(message)}$"):
        compute_loss(trainer, call_model(trainer.model, WHOLE[0]), WHOLE[1])
