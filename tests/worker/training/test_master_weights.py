from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from perfsuite.records.stages import untimed
from perfsuite.worker.training.mixed_precision import (
    PRECISION_POLICIES,
    MasterWeights,
    cast_parameters,
)
from perfsuite.worker.training.step import train_step

# Below half of float16's spacing at 1 (2**-11 downwards), so that float16 alone never moves.
TINY = 2.0**-13


def step_with(parameter: nn.Parameter, optimizer: torch.optim.Optimizer, gradient: float) -> None:
    parameter.grad = torch.full_like(parameter, gradient)
    if isinstance(optimizer, MasterWeights):
        optimizer.collect_gradients()
    optimizer.step()


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0, momentum=0.5)


def test_master_weights_train_as_float32_where_float16_alone_does_not_move() -> None:
    half = nn.Parameter(torch.ones(4, dtype=torch.float16))
    mastered = nn.Parameter(torch.ones(4, dtype=torch.float16))
    single = nn.Parameter(torch.ones(4))
    optimizer = MasterWeights([mastered], sgd)
    pairs = [(half, sgd([half])), (mastered, optimizer), (single, sgd([single]))]

    for _ in range(5):
        for parameter, its_optimizer in pairs:
            step_with(parameter, its_optimizer, TINY)

    (master,) = optimizer.param_groups[0]["params"]
    assert torch.equal(master, single)
    assert torch.equal(mastered, single.half())
    assert torch.equal(half, torch.ones_like(half))
    assert not torch.equal(mastered, half)


def test_a_whole_model_trains_as_in_float32_when_its_values_fit_into_half() -> None:
    # Whole numbers up to 2**11 are exact in float16, so only a wrong algorithm can differ.
    torch.manual_seed(0)
    single = nn.Linear(4, 2)
    for parameter in single.parameters():
        parameter.data = torch.randint(-3, 4, parameter.shape).float()
    mastered = nn.Linear(4, 2)
    mastered.load_state_dict(single.state_dict())
    cast_parameters(mastered, PRECISION_POLICIES["O2"])
    plain = torch.optim.SGD(single.parameters(), lr=1.0)
    optimizer = MasterWeights(
        list(mastered.parameters()), lambda parameters: torch.optim.SGD(parameters, lr=1.0)
    )
    x = torch.randint(-2, 3, (3, 4)).float()

    for _ in range(3):
        single.zero_grad()
        mastered.zero_grad()
        single(x).sum().backward()
        mastered(x.half()).sum().backward()
        optimizer.collect_gradients()
        plain.step()
        optimizer.step()

    for parameter, its_master in zip(
        single.parameters(), optimizer.param_groups[0]["params"], strict=True
    ):
        assert torch.equal(parameter, its_master)
    assert torch.equal(mastered(x.half()), single(x).half())


def test_float32_parameters_are_stepped_themselves() -> None:
    norm, weight = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2).half())
    optimizer = MasterWeights([norm, weight], sgd)

    first, second = optimizer.param_groups[0]["params"]

    assert first is norm
    assert second is not weight
    assert second.dtype == torch.float32


def test_the_gradients_of_one_step_are_not_in_the_next_even_where_nothing_steps_them(
    make_workload: Any, make_trainer: Any
) -> None:
    workload = make_workload(
        build_model=lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
        build_optimizer=lambda ps: torch.optim.SGD([p for p in ps if p.dim() > 1], lr=0.0),
    )
    trainer = make_trainer(workload, precision="O2")
    trainer.scaler.update(1024.0)
    batch = torch.randn(4, 6), torch.arange(4) % 3

    train_step(trainer, iter([batch]), untimed)
    first = {name: one.grad.clone() for name, one in trainer.module.named_parameters()}
    train_step(trainer, iter([batch]), untimed)

    for name, one in trainer.module.named_parameters():
        assert torch.equal(one.grad, first[name]), name


def test_a_parameter_without_gradient_is_not_stepped() -> None:
    parameter = nn.Parameter(torch.ones(2).half())
    optimizer = MasterWeights([parameter], sgd)

    optimizer.collect_gradients()
    optimizer.step()

    assert torch.equal(parameter, torch.ones(2).half())


class _Copies(TorchDispatchMode):
    """Counts the operators that copy."""

    num_seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_seen += "copy" in func.name()
        return func(*args, **(kwargs or {}))


def test_master_weights_are_copied_all_at_once_each_way() -> None:
    parameters = [nn.Parameter(torch.ones(2).half()) for _ in range(20)]
    optimizer = MasterWeights(parameters, sgd)
    for parameter in parameters:
        parameter.grad = torch.ones(2).half()

    with _Copies() as copies:
        optimizer.collect_gradients()
        optimizer.step()

    assert copies.num_seen == 2


def test_a_schedule_on_the_wrapper_reaches_the_inner_optimizer() -> None:
    parameter = nn.Parameter(torch.ones(2).half())
    optimizer = MasterWeights([parameter], sgd)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.25)

    step_with(parameter, optimizer, 0.0)
    schedule.step()
    step_with(parameter, optimizer, 1.0)

    assert optimizer.optim.param_groups[0]["lr"] == 0.25
    assert torch.equal(parameter, torch.full((2,), 0.75).half())


def test_o2_trains_with_clipped_and_unscaled_master_gradients(make_trainer: Any) -> None:
    trainer = make_trainer(precision="O2", clip_grad_norm=1e-3)

    train_step(trainer, iter([(torch.randn(4, 6), torch.arange(4) % 3)]), untimed)

    masters = trainer.optimizer.param_groups[0]["params"]
    norm = torch.stack([master.grad.norm() for master in masters]).norm()
    # The scaled gradient would have a norm of about 2**16.
    torch.testing.assert_close(norm, torch.tensor(1e-3), rtol=1e-3, atol=0.0)
