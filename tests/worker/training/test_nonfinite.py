from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from perfsuite.errors import NonFiniteError
from perfsuite.records.stages import untimed
from perfsuite.worker.training.nonfinite import check_finite, first_non_finite, gradients_are_finite
from perfsuite.worker.training.step import train_step

NAN = float("nan")
ADVICE = "lower the learning rate, clip gradients, or use a precision with more range"
FINE = [torch.tensor(1.0), torch.tensor(2.0)]


def refusal(message: str) -> Any:
    return pytest.raises(NonFiniteError, match=f"^{re.escape(message)}$")


def test_finite_losses_and_parameters_pass(make_trainer: Any) -> None:
    trainer = make_trainer()

    check_finite(trainer, FINE, 0)

    assert first_non_finite(trainer) is None


def test_a_rank_without_losses_passes(make_trainer: Any) -> None:
    check_finite(make_trainer(), [], 0)


def test_a_training_that_explodes_is_blamed_on_step_and_parameter(
    make_trainer: Any, make_workload: Any
) -> None:
    workload = make_workload(
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e30)
    )
    trainer = make_trainer(workload)
    batch = (torch.ones(4, 6), torch.arange(4) % 3)
    losses = [train_step(trainer, iter([batch]), untimed) for _ in range(4)]
    first_bad = next(i for i, loss in enumerate(losses) if not loss.isfinite())

    message = (
        f"the loss is {losses[first_bad].item()} at step {10 + first_bad}; "
        f"the first parameter that is not finite is '0.weight' (gradient); {ADVICE}"
    )
    with refusal(message):
        check_finite(trainer, losses, 10)


def test_a_gradient_is_named_before_a_later_value(make_trainer: Any) -> None:
    trainer = make_trainer()
    trainer.module[0].bias.grad = torch.full((8,), float("inf"))
    trainer.module[2].weight.data.fill_(NAN)

    message = (
        "the loss is nan at step 8; "
        f"the first parameter that is not finite is '0.bias' (gradient); {ADVICE}"
    )
    with refusal(message):
        check_finite(trainer, [FINE[0], torch.tensor(NAN)], 7)


def test_a_loss_that_spoils_no_parameter_says_so(make_trainer: Any) -> None:
    message = (
        "the loss is inf at step 3; every gradient and parameter on this rank is finite, so it "
        f"comes from the inputs, the forward pass or the loss itself; {ADVICE}"
    )
    with refusal(message):
        check_finite(make_trainer(), [torch.tensor(float("inf"))], 3)


def test_parameters_spoiled_by_the_last_step_are_seen(make_trainer: Any) -> None:
    trainer = make_trainer()
    trainer.module[2].weight.data[1, 2] = NAN

    message = f"parameter '2.weight' is not finite after step 6, although the loss was; {ADVICE}"
    with refusal(message):
        check_finite(trainer, FINE, 5)


def test_infinite_gradients_of_a_skipped_step_are_no_failure(make_trainer: Any) -> None:
    trainer = make_trainer(precision="amp-fp16")
    trainer.module[0].weight.grad = torch.full((8, 6), float("inf"))

    check_finite(trainer, FINE, 0)

    assert first_non_finite(trainer) == "'0.weight' (gradient)"


def test_the_name_is_the_users_under_checkpointing_and_autocast(
    make_trainer: Any, make_workload: Any
) -> None:
    trainer = make_trainer(
        make_workload(blocks=list), precision="amp-bf16", checkpointing="every-block"
    )
    trainer.module[2].bias.data.fill_(NAN)

    assert first_non_finite(trainer) == "'2.bias' (value)"


@pytest.mark.parametrize("value", [NAN, float("inf"), -float("inf")])
def test_a_single_gradient_that_is_not_finite_is_seen(make_trainer: Any, value: float) -> None:
    trainer = make_trainer()
    for parameter in trainer.module.parameters():
        parameter.grad = torch.full_like(parameter, 1e30)
    assert bool(gradients_are_finite(trainer))

    parameter.grad.view(-1)[-1] = value

    assert not bool(gradients_are_finite(trainer))


def test_an_infinite_value_of_a_sparse_gradient_is_seen(make_trainer: Any) -> None:
    trainer = make_trainer()
    parameter = next(trainer.module.parameters())
    parameter.grad = torch.full_like(parameter, float("inf")).to_sparse()

    assert not bool(gradients_are_finite(trainer))


def test_without_gradients_all_of_them_are_finite(make_trainer: Any) -> None:
    assert bool(gradients_are_finite(make_trainer()))
