"""A user's own parallelisation is equivalent, or a mismatch that names the axis of its mistake."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from perfsuite import Recipe, Workload
from perfsuite.errors import RecipeError, WorkloadError
from perfsuite.records.equivalence import EquivalenceReport

Check = Callable[..., EquivalenceReport]
Build = Callable[..., Workload]
Expect = Callable[..., dict[str, str]]

FSDP_TP = "mesh:fsdp=2,tp=2"
PLAN = {"hidden": ColwiseParallel(), "output": RowwiseParallel()}


def shard_and_split(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    parallelize_module(model, mesh["tp"], PLAN)
    return fully_shard(model, mesh=mesh["fsdp"])


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return fully_shard(model, mesh=mesh)


def wrap(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(model, process_group=mesh.get_group("dp"))


def split(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(model, mesh["tp"], PLAN)


def shard_replicas(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return fully_shard(model, mesh=mesh)


def statuses(report: EquivalenceReport) -> dict[str, str]:
    return {row.check: row.status for row in report.rows}


@pytest.mark.parametrize(
    ("parallelize", "fields", "checks"),
    [
        (shard_and_split, {"parallel": FSDP_TP}, ("T1", "data")),
        (
            shard_and_split,
            {"parallel": FSDP_TP, "precision": "amp-bf16", "checkpointing": "every-block"},
            ("T2", "checkpointing", "data"),
        ),
        (
            shard_and_split,
            {"parallel": FSDP_TP, "grad_accumulation_steps": 2, "clip_grad_norm": 0.1},
            ("T1", "data"),
        ),
        (split, {"parallel": "mesh:tp=2", "clip_grad_norm": 0.1}, ("T1", "data")),
        (shard, {"parallel": "mesh:fsdp=2"}, ("T0", "T1", "data")),
        (wrap, {"parallel": "mesh:dp=2", "clip_grad_norm": 0.1}, ("T0", "T1", "data")),
        (shard_replicas, {"parallel": "mesh:dp_replicate=2,dp_shard=2"}, ("T0", "T1", "data")),
    ],
    ids=["fsdp-tp", "low", "accumulated", "tp", "fsdp", "ddp", "hsdp"],
)
def test_a_right_parallelisation_is_equivalent(
    check_equivalence: Check,
    perceptron_workload: Build,
    parallelize: Any,
    fields: dict[str, Any],
    checks: tuple[str, ...],
) -> None:
    report = check_equivalence(perceptron_workload(parallelize=parallelize), Recipe(**fields))

    assert statuses(report) == dict.fromkeys(checks, "equivalent"), str(report)
    found = {row.power.split("/")[0] for row in report.rows if row.power}
    assert found == {row.power.split("/")[1] for row in report.rows if row.power}, str(report)


class Dropping(nn.Module):
    """Drops inputs, which the ranks of "tp" share, or hidden units, of which each has a part."""

    def __init__(self, of_inputs: float, of_hidden: float, of_outputs: float = 0.0) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(6, 8), nn.Linear(8, 3)
        self.drops = nn.ModuleList(map(nn.Dropout, (of_inputs, of_hidden, of_outputs)))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.drops[1](self.hidden(self.drops[0](inputs)).tanh())
        return self.drops[2](self.output(hidden))


def test_a_mask_that_all_ranks_of_a_batch_share_is_replayed(
    check_equivalence: Check, perceptron_workload: Build
) -> None:
    workload = perceptron_workload(
        build_model=lambda: Dropping(0.5, 0.0), blocks=None, parallelize=shard_and_split
    )

    report = check_equivalence(workload, Recipe(parallel=FSDP_TP), num_steps=1)

    assert statuses(report) == {"T1": "equivalent", "data": "equivalent"}, str(report)


@pytest.mark.parametrize("parallel", [FSDP_TP, "mesh:fsdp=1,tp=2"])
def test_masks_of_parts_of_a_layer_are_not_exercised_and_name_the_operator(
    check_equivalence: Check, perceptron_workload: Build, parallel: str
) -> None:
    workload = perceptron_workload(
        build_model=lambda: Dropping(0.0, 0.5), blocks=None, parallelize=shard_and_split
    )

    report = check_equivalence(workload, Recipe(parallel=parallel), num_steps=1)

    assert statuses(report) == {"T1": "not exercised", "data": "equivalent"}, str(report)
    assert "aten.bernoulli_ draws " in str(report)


def reseed(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Each rank drops its own elements of the output that both ranks of "tp" have."""

    def seed(*_: Any) -> None:
        torch.manual_seed(dist.get_rank())

    model.register_forward_pre_hook(seed)
    return shard_and_split(model, mesh)


def test_ranks_that_share_a_batch_and_draw_other_masks_for_all_of_it_are_a_mismatch(
    expect_mismatch: Expect, perceptron_workload: Build
) -> None:
    workload = perceptron_workload(
        build_model=lambda: Dropping(0.0, 0.0, 0.5), blocks=None, parallelize=reseed
    )

    cause = "ranks that share a batch draw other numbers: seed them alike"
    where = "the random draw of 'aten.bernoulli_' differs at step 1 on rank 1"
    expect_mismatch(workload, Recipe(parallel=FSDP_TP), "T1", where, cause)


# Wrong parallelisations.


def forget_fsdp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(model, mesh["tp"], PLAN)


def forget_tp_in_forward(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    partial = RowwiseParallel(output_layouts=Partial())
    parallelize_module(model, mesh["tp"], {"hidden": ColwiseParallel(), "output": partial})
    return fully_shard(model, mesh=mesh["fsdp"])


def forget_tp_in_backward(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Each rank of "tp" computes half of the classes, and has the gradient of its half."""
    fully_shard(model, mesh=mesh["fsdp"])
    model.get_submodule("output").register_forward_hook(lambda *args: _whole(args[2], mesh["tp"]))
    return model


def _whole(outputs: Tensor, mesh: DeviceMesh) -> Tensor:
    samples = outputs.chunk(mesh.size())[mesh.get_local_rank()]
    return DTensor.from_local(samples, mesh, [Shard(0)]).full_tensor()


def sum_over_fsdp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for parameter in shard_and_split(model, mesh).parameters():
        parameter.register_post_accumulate_grad_hook(lambda weight: weight.grad.mul_(2))
    return model


def hold_first_shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return _hold(model, mesh, lambda parts: parts[0])


def hold_other_shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return _hold(model, mesh, lambda parts: parts[1 - mesh["tp"].get_local_rank()])


def _hold(model: nn.Module, mesh: DeviceMesh, choose: Any) -> nn.Module:
    hidden = model.get_submodule("hidden")
    part = choose(hidden.weight.detach().chunk(2))
    weight = DTensor.from_local(part, mesh["tp"], [Shard(0)])
    hidden.register_parameter("weight", nn.Parameter(weight))
    parallelize_module(model, mesh["tp"], {"output": RowwiseParallel(input_layouts=Replicate())})
    hidden.register_forward_pre_hook(lambda _, args: _replicated(args[0], mesh["tp"]))
    hidden.register_forward_hook(lambda *args: args[2].full_tensor())
    hidden.register_parameter(
        "bias", nn.Parameter(DTensor.from_local(hidden.bias.detach(), mesh["tp"], [Replicate()]))
    )
    return model


def _replicated(inputs: Tensor, mesh: DeviceMesh) -> Tensor:
    return DTensor.from_local(inputs, mesh, [Replicate()])


def split_by_hand(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The layers' parts are plain tensors, of which nobody can tell what they are parts of."""
    hidden, output = model.get_submodule("hidden"), model.get_submodule("output")
    for layer, name, dim in ((hidden, "weight", 0), (hidden, "bias", 0), (output, "weight", 1)):
        part = getattr(layer, name).detach().chunk(2, dim)[mesh["tp"].get_local_rank()]
        layer.register_parameter(name, nn.Parameter(part.clone()))
    output.register_forward_hook(
        lambda *args: DTensor.from_local(args[2], mesh["tp"], [Partial()]).full_tensor()
    )
    return model


def start_from_own_weights(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    nn.init.constant_(model.get_parameter("output.bias"), mesh["tp"].get_local_rank())
    return fully_shard(model, mesh=mesh["fsdp"])


def use_one_shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """All ranks of "tp" compute with the first half of the hidden layer."""
    fully_shard(model, mesh=mesh["fsdp"])
    model.get_submodule("hidden").register_forward_hook(
        lambda *args: torch.cat([args[2].chunk(2, -1)[0]] * 2, -1)
    )
    return model


FORGOTTEN = "is a reduction over it forgotten, or not waited for?"


@pytest.mark.parametrize(
    ("parallelize", "where", "cause"),
    [
        (
            forget_fsdp,
            "the gradient of 'hidden.weight' differs at step 1",
            f"the ranks along axis 'fsdp' do not have the same gradient: {FORGOTTEN}",
        ),
        (
            forget_tp_in_forward,
            "the gradient of 'hidden.weight' differs at step 1",
            f"the ranks along axis 'tp' do not have the same loss: {FORGOTTEN}",
        ),
        (
            forget_tp_in_backward,
            "the gradient of 'hidden.weight' differs at step 1",
            f"the ranks along axis 'tp' do not have the same gradient: {FORGOTTEN}",
        ),
        (
            sum_over_fsdp,
            "the gradient of 'hidden.weight' differs at step 1",
            "the gradient of 'hidden.weight' is 2 times what it should be: is it summed over axis "
            "'fsdp' or 'tp' where its mean is due?",
        ),
        (
            hold_first_shard,
            "the parameter of 'hidden.weight' differs at step 0",
            "the ranks of axis 'tp' hold one shard, each the same",
        ),
        (
            hold_other_shard,
            "the parameter of 'hidden.weight' differs at step 0",
            "the ranks of axis 'tp' hold each other's shards",
        ),
        (
            start_from_own_weights,
            "the parameter of 'output.bias' differs at step 0",
            "the ranks along axis 'tp' start from other weights: make a parameter that is split a "
            "DTensor",
        ),
        (
            use_one_shard,
            "the gradient of 'hidden.weight' differs at step 1",
            "a part of the gradient of 'hidden.weight' along its dimension 0 is zero: do the ranks "
            "of axis 'tp' use one shard?",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_parallelisation_is_a_mismatch_that_names_the_axis(
    expect_mismatch: Expect, perceptron_workload: Build, parallelize: Any, where: str, cause: str
) -> None:
    workload = perceptron_workload(parallelize=parallelize)

    expect_mismatch(workload, Recipe(parallel=FSDP_TP), "T1", where, cause)


def forget_to_wait(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The second rank comes late to each reduction, of which the first one takes its own part."""

    def reduce(weight: Tensor) -> None:
        time.sleep(0.2 * mesh.get_local_rank())
        total = weight.grad / mesh.size()
        dist.all_reduce(total, async_op=True)
        weight.grad.copy_(total)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(reduce)
    return model


def forget_to_wait_in_forward(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    def reduce(_module: nn.Module, _args: Any, outputs: Tensor) -> Tensor:
        rank = mesh["tp"].get_local_rank()
        time.sleep(0.2 * rank)
        own = outputs.detach()
        mean = own / mesh["tp"].size()
        reduced = dist.all_reduce(mean, async_op=True, group=mesh["tp"].get_group())
        if rank > 0:  # else it may take its own part, too, and both have one loss
            reduced.wait()
        return outputs - own + mean

    model.register_forward_hook(reduce)
    return fully_shard(model, mesh=mesh["fsdp"])


@pytest.mark.parametrize(
    ("parallelize", "parallel", "check", "cause"),
    [
        (
            forget_to_wait,
            "mesh:dp=2",
            "T0",
            f"the ranks along axis 'dp' do not have the same gradient: {FORGOTTEN}",
        ),
        (
            forget_to_wait_in_forward,
            FSDP_TP,
            "T1",
            f"the ranks along axis 'tp' do not have the same loss: {FORGOTTEN}",
        ),
    ],
    ids=["backward", "forward"],
)
def test_a_collective_of_the_users_that_nobody_waits_for_is_a_mismatch(
    expect_mismatch: Expect,
    perceptron_workload: Build,
    parallelize: Any,
    parallel: str,
    check: str,
    cause: str,
) -> None:
    workload = perceptron_workload(parallelize=parallelize)

    where = "the gradient of 'hidden.weight' differs at step 1"
    expect_mismatch(workload, Recipe(parallel=parallel), check, where, cause)


def test_parts_that_do_not_make_the_weight_are_a_mismatch(
    check_equivalence: Check, perceptron_workload: Build
) -> None:
    workload = perceptron_workload(parallelize=split_by_hand)

    (row,) = check_equivalence(workload, Recipe(parallel=FSDP_TP), num_steps=1).rows

    assert (row.check, row.status) == ("T1", "mismatch")
    assert row.reason == (
        "the parts of parameter 'hidden.weight' make a tensor of shape (4, 6), and build_model "
        "gives one of shape (8, 6); likeliest cause: it was split by other placements than it "
        "names, or the parts are no DTensor"
    )


# Mistakes of use.


def replace_model(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return nn.Linear(6, 3)


def return_nothing(model: nn.Module, mesh: DeviceMesh) -> None:
    return None


def rename_parameter(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    hidden = model.get_submodule("hidden")
    weight = hidden.weight
    del hidden.weight
    hidden.register_parameter("matrix", weight)
    return model


def freeze_bias(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    model.get_submodule("output").bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("parallelize", "error", "message"),
    [
        (
            None,
            RecipeError,
            "parallel 'mesh:fsdp=1,tp=1' needs the workload's own function, and workload "
            "'perceptron' has none; use Workload(parallelize=f) with f(model, mesh) -> model, or a "
            "mode that needs none, such as fsdp:1",
        ),
        (
            return_nothing,
            WorkloadError,
            "workload 'perceptron': parallelize returned a NoneType; return the model that it is "
            "given, changed in place, or a wrapper around it",
        ),
        (
            replace_model,
            WorkloadError,
            "workload 'perceptron': parallelize returned another model, a Linear; return the model "
            "that it is given, changed in place, or a wrapper around it",
        ),
        (
            rename_parameter,
            WorkloadError,
            "workload 'perceptron': parallelize took away parameter 'hidden.weight'; keep the "
            "parameters' names, as fully_shard and parallelize_module do, so that their gradients "
            "can be compared with those of one process",
        ),
        (
            freeze_bias,
            WorkloadError,
            "workload 'perceptron': 'output.bias' is trained in one process and not on the ranks, "
            "or the reverse; does parallelize freeze it?",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_function_that_does_not_keep_its_contract_is_refused(
    check_equivalence: Check,
    perceptron_workload: Build,
    parallelize: Any,
    error: type[Exception],
    message: str,
) -> None:
    workload = perceptron_workload(parallelize=parallelize)

    with pytest.raises(error) as raised:
        check_equivalence(workload, Recipe(parallel="mesh:fsdp=1,tp=1"))

    assert str(raised.value) == message
