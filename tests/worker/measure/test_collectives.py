"""What is counted of real collectives on real ranks."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn

from perfsuite.worker.measure.counters import count_iteration
from perfsuite.worker.measure.iterations import run_iterations
from perfsuite.worker.measure.memory import measure_peak

PARAMETER_BYTES = 4 * ((32 * 64 + 64) + (64 * 64 + 64) + (64 * 8 + 8))


def untimed(name):
    return nullcontext()


def build_mlp():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    )


def training_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(16, 32)

    def step(stage):
        optimizer.zero_grad()
        with stage("forward"):
            outputs = model(inputs)
        with stage("backward"):
            outputs.square().mean().backward()
        with stage("optimizer"):
            optimizer.step()

    return step


def warmed_up(step):
    # DDP rebuilds its buckets after the first step.
    step(untimed)
    step(untimed)
    return step


def held_by(model):
    for parameter in model.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad


def shard(model):
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def count_ddp(hook_name):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(build_mlp())
    if hook_name is not None:
        model.register_comm_hook(None, getattr(default_hooks, hook_name))
    step = warmed_up(training_step(model))
    return [run_iterations(count_iteration(), step) for _ in range(3)]


def count_fsdp():
    step = warmed_up(training_step(shard(build_mlp())))
    return [run_iterations(count_iteration(), step) for _ in range(3)]


def measure_fsdp():
    model = shard(build_mlp())
    step = warmed_up(training_step(model))
    return [
        run_iterations(measure_peak(held_by(model), torch.device("cpu")), step) for _ in range(3)
    ]


def count_tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(build_mlp()[:3], mesh, plan)
    inputs = torch.randn(16, 32)
    # DTensor runs each operator once more the first time, to learn the shape of its result.
    model(inputs)
    return run_iterations(count_iteration(), lambda stage: model(inputs))


def count_one(name):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    small, large = torch.ones(10), torch.ones(10 * world_size)
    parts = [torch.ones(10) for _ in range(world_size)]
    communicate = {
        "all_reduce": lambda: dist.all_reduce(small),
        "broadcast": lambda: dist.broadcast(small, 0),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(large, small),
        "all_gather": lambda: dist.all_gather(parts, small),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(small, large),
        "gather": lambda: dist.gather(small, parts if rank == 0 else None),
        "send and receive": lambda: dist.send(small, 1) if rank == 0 else dist.recv(small, 0),
        "barrier": dist.barrier,
        "monitored_barrier": dist.monitored_barrier,
    }[name]
    counts = run_iterations(count_iteration(), lambda stage: communicate())
    return counts.collectives, counts.collective_bytes


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("all_reduce", [(1, 40), (1, 40)]),
        ("broadcast", [(1, 40), (1, 40)]),
        ("all_gather_into_tensor", [(1, 80), (1, 80)]),
        ("all_gather", [(1, 80), (1, 80)]),
        ("reduce_scatter_tensor", [(1, 80), (1, 80)]),
        ("gather", [(1, 80), (1, 40)]),
        ("send and receive", [(1, 40), (1, 40)]),
        ("barrier", [(0, 0), (0, 0)]),
        ("monitored_barrier", [(0, 0), (0, 0)]),
    ],
)
def test_a_collective_has_the_larger_size_of_what_is_given_and_gotten(rank_group, name, expected):
    assert rank_group(2, count_one, name) == expected


def test_ddp_reduces_all_parameters_in_one_bucket(rank_group):
    for repeats in rank_group(2, count_ddp, None):
        assert len(set(repeats)) == 1
        assert repeats[0].collectives == 1
        assert repeats[0].collective_bytes == PARAMETER_BYTES


def test_what_a_communication_hook_does_after_its_collective_is_counted_every_time(rank_group):
    for repeats in rank_group(2, count_ddp, "fp16_compress_hook"):
        assert len(set(repeats)) == 1
        assert repeats[0].collective_bytes == PARAMETER_BYTES // 2


def test_fsdp_gathers_every_layer_twice_and_scatters_its_gradients_once(rank_group):
    for repeats in rank_group(2, count_fsdp):
        assert len(set(repeats)) == 1
        assert repeats[0].collectives == 6 + 3
        assert repeats[0].collective_bytes == (2 + 1) * PARAMETER_BYTES


def test_fsdp_peaks_below_the_whole_parameters_twice_and_the_same_each_time(rank_group):
    for repeats in rank_group(2, measure_fsdp):
        assert len({measured.peak_bytes for measured in repeats}) == 1
        # Shards of the parameters and gradients are there always; whole layers come and go.
        assert PARAMETER_BYTES < repeats[0].peak_bytes < 3 * PARAMETER_BYTES
        # Two hidden activations after ReLU and the outputs; not the layers gathered meanwhile.
        assert repeats[0].saved_activation_bytes == 4 * 16 * (64 + 64 + 8)


def test_tensor_parallelism_is_counted_on_the_local_shards(rank_group):
    for counts in rank_group(2, count_tensor_parallel):
        assert counts.flops == 2 * 16 * (32 * 64 + 64 * 64) // 2
        assert counts.collectives == 1
        assert counts.collective_bytes == 4 * 16 * 64


def reduce_without_work(_):
    # As ProcessGroupNCCL does where the caller waits: it has queued the sum, and returns nothing.
    class InCurrentStream(torch._C._distributed_c10d.Backend):
        def allreduce(self, tensors, options=None):
            return None

    kind = dist.ProcessGroup.BackendType.CUSTOM
    group = dist.ProcessGroup(dist.HashStore(), 0, 1)
    group._register_backend(torch.device("cpu"), kind, InCurrentStream(0, 1))
    group._set_default_backend(kind)
    summed = torch.ones(8)
    found = run_iterations(count_iteration(), lambda _: group.allreduce([summed]))
    return found.collectives, found.collective_bytes


def test_a_collective_that_nobody_has_to_wait_for_is_counted(rank_group):
    assert rank_group(1, reduce_without_work, None) == [(1, 32)]
