from __future__ import annotations

import json
import threading
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from perfsuite import Recipe
from perfsuite.worker.measure import counters
from perfsuite.worker.measure.counters import (
    count_device_calls,
    count_events,
    count_garbage,
    count_iteration,
)
from perfsuite.worker.measure.iterations import run_iterations
from perfsuite.worker.training.loaders import EpochBatches
from perfsuite.worker.training.step import train_step
from perfsuite.worker.training.trainer import build_trainer
from perfsuite.worker.workloads.transformer import transformer_tiny


def untimed(name):
    return nullcontext()


class EveryCall(TorchDispatchMode):
    """Lists the operators as they come, without any of the counter's rules."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


def lenet():
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


class Encoder(nn.Module):
    def __init__(self, *, is_checkpointed=False):
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(32, 10)
        self.is_checkpointed = is_checkpointed

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            if self.is_checkpointed:
                hidden = checkpoint(layer, hidden, use_reentrant=False)
            else:
                hidden = layer(hidden)
        return self.head(hidden.mean(1))


def training_step(model, inputs):
    optimizer = torch.optim.AdamW(model.parameters())
    target = torch.zeros(len(inputs), dtype=torch.int64)

    def step(stage):
        optimizer.zero_grad()
        with stage("forward"):
            outputs = model(inputs)
        with stage("backward"):
            nn.functional.cross_entropy(outputs, target).backward()
        with stage("optimizer"):
            optimizer.step()

    step(untimed)
    return step


def step_of(name):
    if name == "lenet":
        return training_step(lenet(), torch.randn(32, 1, 28, 28))
    is_checkpointed = name == "checkpointed encoder"
    tokens = torch.zeros(4, 16, dtype=torch.int64)
    return training_step(Encoder(is_checkpointed=is_checkpointed), tokens)


MODELS = ("lenet", "encoder", "checkpointed encoder")


@pytest.mark.parametrize("name", MODELS)
def test_flops_equal_those_of_torchs_own_counter(name):
    step = step_of(name)
    with FlopCounterMode(display=False) as theirs:
        step(untimed)

    assert run_iterations(count_iteration(), step).flops == theirs.get_total_flops() > 0


@pytest.mark.parametrize("name", MODELS)
def test_every_operator_counts_except_the_markers_of_the_profiler(name):
    step = step_of(name)
    with EveryCall() as every:
        step(untimed)
    markers = [func for func in every.calls if func.namespace == "profiler"]

    assert len(markers) > 0
    assert run_iterations(count_iteration(), step).ops == len(every.calls) - len(markers)


def test_a_lenet_step_takes_the_flops_that_its_layers_add_up_to():
    # Multiply-adds of a sample, two flops each: two convolutions and three linear layers.
    convolutions = [28 * 28 * 6 * 25, 10 * 10 * 16 * 25 * 6]
    linears = [400 * 120, 120 * 84, 84 * 10]
    forward = 2 * 32 * sum(convolutions + linears)
    # The backward pass takes twice that, less the gradient of the inputs that nobody wants.
    expected = 3 * forward - 2 * 32 * convolutions[0]

    assert run_iterations(count_iteration(), step_of("lenet")).flops == expected


def transformer_step(recipe):
    workload, device = transformer_tiny(), torch.device("cpu")
    trainer = build_trainer(workload, recipe, device=device, seed=0)
    batches = EpochBatches(workload, recipe, "train", (0, 1), seed=0)
    return partial(train_step, trainer, batches)


@pytest.mark.parametrize("checkpointing", ["none", "every-block", "segments:2", "selective"])
def test_the_model_flops_of_a_transformer_are_those_of_its_shapes(checkpointing):
    batch, tokens, width, layers, classes = 8, 64, 128, 4, 4
    projections = 4 * 2 * batch * tokens * width * width
    perceptron = 2 * 2 * batch * tokens * width * (4 * width)
    attention = 2 * 2 * batch * tokens * tokens * width
    head = 2 * batch * width * width + 2 * batch * width * classes  # of the first token
    # A backward pass takes twice as much: the gradients of weights and of inputs.
    by_hand = 3 * (layers * (projections + perceptron + attention) + head)

    step = transformer_step(Recipe(checkpointing=checkpointing))
    counts = run_iterations(count_iteration(), step)

    assert counts.model_flops == pytest.approx(by_hand, rel=0.01)
    assert (counts.flops > 1.2 * by_hand) == (checkpointing in ("every-block", "segments:2"))


class Attention(nn.Module):
    def __init__(self, backend, use_reentrant):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.backend, self.use_reentrant = backend, use_reentrant

    def attend(self, inputs):
        query, key, value = self.qkv(inputs).view(2, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(self.backend):
            mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, inputs):
        if self.use_reentrant is None:
            return self.attend(inputs)
        return checkpoint(self.attend, inputs, use_reentrant=self.use_reentrant)


@pytest.mark.parametrize("use_reentrant", [None, False, True])
@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_model_flops_leave_out_every_kind_of_recomputation(backend, use_reentrant):
    model, inputs = Attention(backend, use_reentrant), torch.randn(2, 8, 16, requires_grad=True)
    counts = run_iterations(count_iteration(), lambda _: model(inputs).square().sum().backward())

    linear, attention = 2 * 2 * 8 * 16 * 48, 2 * 2 * (2 * 2 * 8 * 8 * 8)
    assert counts.model_flops == 3 * (linear + attention)
    recomputes = backend is SDPBackend.FLASH_ATTENTION or use_reentrant is not None
    assert (counts.flops > counts.model_flops) == recomputes


def test_a_backward_pass_that_is_differentiated_recomputes_nothing():
    weight, inputs = torch.randn(4, 4, requires_grad=True), torch.randn(2, 4, requires_grad=True)

    def penalized(stage):
        (gradient,) = torch.autograd.grad((inputs @ weight).sum(), inputs, create_graph=True)
        gradient.square().sum().backward()

    counts = run_iterations(count_iteration(), penalized)

    # A product, one for its gradient, and one for the gradient of that.
    assert counts.model_flops == counts.flops == 3 * (2 * 2 * 4 * 4)


def test_recomputation_is_counted():
    plain, again = (
        run_iterations(count_iteration(), step_of("encoder")),
        run_iterations(count_iteration(), step_of("checkpointed encoder")),
    )

    assert again.flops > plain.flops
    assert again.ops > plain.ops


def test_the_counts_are_the_same_each_time():
    step = step_of("encoder")

    assert len({run_iterations(count_iteration(), step) for _ in range(3)}) == 1


def test_inference_mode_hides_no_flops():
    model, inputs = lenet(), torch.randn(2, 1, 28, 28)

    def evaluate(stage):
        with torch.inference_mode():
            model(inputs)

    with FlopCounterMode(display=False) as theirs:
        evaluate(untimed)

    assert run_iterations(count_iteration(), evaluate).flops == theirs.get_total_flops() > 0


@pytest.mark.parametrize(
    ("layer", "inputs", "operator"),
    [
        (nn.LSTM(4, 8), (torch.randn(5, 2, 4),), "aten.mkldnn_rnn_layer"),
        (nn.Bilinear(3, 4, 5), (torch.randn(2, 3), torch.randn(2, 4)), "aten._trilinear"),
        (nn.GRU(4, 8), (torch.randn(5, 2, 4),), None),  # of products that are seen
        (torch.fft.rfft2, (torch.randn(4, 4),), "aten._fft_r2c"),
        (torch.linalg.solve, (torch.eye(4), torch.randn(4)), "aten._linalg_solve_ex"),
    ],
)
def test_an_operator_with_products_that_torch_has_no_formula_for_is_named(layer, inputs, operator):
    def step(stage):
        outputs = layer(*inputs)
        if isinstance(layer, nn.Module):
            (outputs[0] if isinstance(outputs, tuple) else outputs).sum().backward()

    assert run_iterations(count_iteration(), step).without_formula == operator


@pytest.mark.parametrize(
    ("multiply", "sizes", "flops"),
    [
        (torch.matmul, ((8, 4), (4,)), 2 * 8 * 4),
        (torch.addmv, ((8,), (8, 4), (4,)), 2 * 8 * 4),
        (torch.dot, ((4,), (4,)), 2 * 4),
    ],
)
def test_a_product_with_a_vector_counts_as_that_with_a_matrix_of_one_column(multiply, sizes, flops):
    tensors = [torch.randn(size) for size in sizes]
    counts = run_iterations(count_iteration(), lambda stage: multiply(*tensors))

    assert (counts.flops, counts.model_flops) == (flops, flops)


def test_what_loading_does_is_not_counted():
    def iterate(stage):
        with stage("load"):
            batch = torch.stack([torch.zeros(4)] * 3) @ torch.zeros(4, 4)
        with stage("forward"):
            batch.relu()

    counts = run_iterations(count_iteration(), iterate)

    assert (counts.ops, counts.flops) == (1, 0)


def test_what_runs_in_another_thread_is_seen_if_it_trains(monkeypatch):
    model, scaling = nn.Linear(4, 4), nn.Sequential(nn.Identity())

    def in_thread(module):
        def iterate(_):
            thread = threading.Thread(target=module, args=(torch.ones(2, 4),))
            thread.start()
            thread.join()

        return run_iterations(count_iteration(), iterate).in_threads

    assert (in_thread(model), in_thread(scaling)) == (True, False)
    assert not run_iterations(count_iteration(), lambda _: model(torch.ones(2, 4))).in_threads
    # A device has a thread of autograd's own, where what is checkpointed runs again.
    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: 7)
    assert not in_thread(model)


def test_loading_that_fails_does_not_hide_what_comes_after():
    def iterate(stage):
        try:
            with stage("load"):
                raise StopIteration
        except StopIteration:
            torch.zeros(1)

    assert run_iterations(count_iteration(), iterate).ops == 1


def event(name: str, start_us: float, **more: Any) -> dict[str, Any]:
    kind = {"cud": "cuda_runtime", "cuL": "cuda_driver", "Mem": "gpu_memcpy"}.get(
        name[:3], "cpu_op"
    )
    return {"ph": "X", "name": name, "ts": start_us, "dur": 1.0, "cat": kind, **more}


ITERATION = event("perfsuite: iteration", 100.0, dur=50.0, cat="user_annotation")
ON_GPU = event("perfsuite: iteration", 105.0, dur=90.0, cat="gpu_user_annotation")
PROFILER = {"ph": "M", "name": "process_name", "ts": 0, "args": {"name": "python"}}


def test_launches_waits_and_copies_of_an_iteration_count_and_nothing_else():
    launches = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
    waits = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy")
    others = ("cudaMemcpyAsync", "cudaLaunchHostFunc", "aten::add", "cudaStreamWaitEvent")
    host = [event(name, 110.0) for name in (*launches, *waits, *others)]
    copies = [
        event("Memcpy HtoD (Pageable -> Device)", 120.0, args={"bytes": 1024}),
        # One that its wait has the device end after the iteration's last call.
        event("Memcpy DtoH (Device -> Pinned)", 160.0, args={"bytes": 4}),
        event("Memcpy DtoD (Device -> Device)", 130.0, args={"bytes": 2**20}),
    ]
    own_wait = event("cudaDeviceSynchronize", 151.0)

    found = count_events([PROFILER, ON_GPU, ITERATION, *host, *copies, own_wait])

    assert found == {
        "kernel_launches": 4,
        "host_syncs": 3,
        "device_copies": 2,
        "device_copy_bytes": 1028,
    }


def test_a_step_that_is_one_cuda_graph_has_its_waits_and_copies_counted():
    calls = [event(name, 110.0) for name in ("cudaGraphLaunch", "cudaStreamSynchronize")]

    assert count_events([ITERATION, *calls]) == {
        "kernel_launches": 0,
        "host_syncs": 1,
        "device_copies": 0,
        "device_copy_bytes": 0,
    }


def test_a_cpu_launches_no_kernels_so_there_is_nothing_to_count():
    def never(stage):
        raise AssertionError("not to be run")

    assert run_iterations(count_device_calls(torch.device("cpu")), never) == {}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (
            ("cudaLaunchKernel",),
            {"kernel_launches": 1, "host_syncs": 0, "device_copies": 0, "device_copy_bytes": 0},
        ),
        ((), {}),
    ],
)
def test_on_cuda_the_calls_of_one_synchronised_iteration_are_counted(monkeypatch, names, found):
    trace = []

    class FakeProfile:
        def __init__(self, activities):
            assert torch.profiler.ProfilerActivity.CUDA in activities

        def __enter__(self):
            trace.append("begin")
            return self

        def __exit__(self, *exception):
            trace.append("end")

        def export_chrome_trace(self, path):
            events = [ITERATION, *(event(name, 110.0) for name in (*names, "aten::mm"))]
            Path(path).write_text(json.dumps({"traceEvents": events}))

    monkeypatch.setattr(torch.profiler, "profile", FakeProfile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: trace.append("synchronize"))

    def iterate(stage):
        with stage("forward"):
            trace.append("iterate")

    assert run_iterations(count_device_calls(torch.device("cuda", 0)), iterate) == found
    assert trace == ["synchronize", "begin", "iterate", "synchronize", "end"]


def test_a_trace_of_torch_names_the_iteration_and_its_end(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        with torch.profiler.record_function(counters._ITERATION[0]):
            torch.zeros(3).square()
        with torch.profiler.record_function("cudaLaunchKernel"):
            torch.zeros(3)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]

    assert count_events(events) == {}  # the launch came later


def test_garbage_of_an_iteration_is_counted_without_what_an_epochs_start_adds():
    num_iterations = 0

    def iterate(stage):
        nonlocal num_iterations
        num_iterations += 1
        for _ in range(10 if num_iterations == 2 else 3):
            ring = []
            ring.append(ring)

    assert run_iterations(count_garbage(), iterate) == 3
    assert run_iterations(count_garbage(), lambda stage: None) == 0


def test_what_runs_outside_of_stages_is_watched_as_other() -> None:
    tensor = torch.ones(4)

    def step(stage: Any) -> None:
        tensor.add_(1)
        with stage("forward"):
            tensor.mul_(2).sub_(1)
        tensor.add_(1).mul_(2).sub_(3)

    watched = run_iterations(count_iteration(), step).watched_s
    alone = run_iterations(count_iteration(), lambda _: tensor.add_(1)).watched_s

    assert {name: num for name, (_, _, num) in watched.items()} == {"forward": 2, "other": 4}
    assert {name: num for name, (_, _, num) in alone.items()} == {"other": 1}
    assert all(own_s > 0 == inside_s for own_s, inside_s, _ in (*watched.values(), alone["other"]))
