from __future__ import annotations

import functools
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import (
    checkpoint,
    create_selective_checkpoint_contexts,
)

from perfsuite.ranks.messages import PeakMemory
from perfsuite.worker.measure import clock
from perfsuite.worker.measure.counters import count_iteration
from perfsuite.worker.measure.device import memory_stats
from perfsuite.worker.measure.iterations import run_iterations
from perfsuite.worker.measure.memory import LiveStorage, Storages, measure_peak, with_kept_bytes

CPU = torch.device("cpu")
KIB = 1024


class Chain(nn.Module):
    """Blocks of width 64; with 32 samples each activation is 8 KiB and each weight 16 KiB."""

    def __init__(self, num_blocks: int, checkpointing: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            for _ in range(num_blocks)
        )
        self.checkpointing = checkpointing

    def forward(self, activation):
        for block in self.blocks:
            activation = self._run(block, activation)
        return activation

    def _run(self, block, activation):
        if self.checkpointing == "none":
            return block(activation)
        if self.checkpointing == "every-block":
            return checkpoint(block, activation, use_reentrant=False)
        keep_products = functools.partial(
            create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default]
        )
        return checkpoint(block, activation, use_reentrant=False, context_fn=keep_products)


def forward_and_backward(model, inputs, stage):
    with stage("forward"):
        outputs = model(inputs)
    with stage("backward"):
        outputs.sum().backward()


def measure_chain(num_blocks: int, checkpointing: str) -> PeakMemory:
    model = Chain(num_blocks, checkpointing)
    inputs = torch.randn(32, 64)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    held = (tensor for p in model.parameters() for tensor in (p, p.grad))
    return run_iterations(
        measure_peak(held, CPU), functools.partial(forward_and_backward, model, inputs)
    )


@pytest.mark.parametrize(
    ("checkpointing", "saved_kib_per_block"),
    # Kept of a block: the two outputs of ReLU; its input; its input and both products.
    [("none", 16), ("every-block", 8), ("selective", 24)],
)
def test_what_a_forward_pass_keeps_grows_with_the_blocks(checkpointing, saved_kib_per_block):
    few, many = measure_chain(4, checkpointing), measure_chain(12, checkpointing)

    saved_bytes = many.saved_activation_bytes - few.saved_activation_bytes
    assert saved_bytes == 8 * saved_kib_per_block * KIB


def test_checkpointing_lowers_the_peak_by_what_it_does_not_keep():
    plain = measure_chain(12, "none").peak_bytes - measure_chain(4, "none").peak_bytes
    saving = (
        measure_chain(12, "every-block").peak_bytes - measure_chain(4, "every-block").peak_bytes
    )

    # Each block: two weights and biases and their gradients, and what is kept of it.
    parameters = 2 * 2 * (64 * 64 + 64) * 4
    assert plain == 8 * (parameters + 16 * KIB)
    assert saving == 8 * (parameters + 8 * KIB)


def test_the_measurement_is_the_same_each_time():
    assert len({repr(measure_chain(6, "every-block")) for _ in range(3)}) == 1


def test_a_storage_counts_from_its_making_to_its_end():
    with LiveStorage([]) as tracker:
        kept = torch.zeros(256)
        dropped = torch.zeros(1024)
        both = tracker.current_bytes
        del dropped

        assert (both, tracker.current_bytes) == (5 * KIB, 1 * KIB)

    assert tracker.peak_bytes == 5 * KIB
    assert kept.sum() == 0


def test_views_of_one_storage_count_once():
    weight = torch.zeros(256)
    tracker = LiveStorage([weight, weight.view(16, 16), weight[:10]])

    with tracker:
        part = weight.view(2, 128)[1]
        part.add_(1)

    assert (tracker.current_bytes, tracker.peak_bytes) == (1 * KIB, 1 * KIB)


def test_freeing_a_held_tensor_is_seen():
    held = [torch.zeros(256), torch.zeros(256)]
    tracker = LiveStorage(iter(held))

    with tracker:
        held.pop()

        assert tracker.current_bytes == 1 * KIB
    assert tracker.peak_bytes == 2 * KIB


def test_a_tensor_from_before_counts_from_its_first_use_but_was_not_made_here():
    batch = torch.zeros(256)

    with LiveStorage([]) as tracker:
        outputs = batch + 1

        assert (tracker.current_bytes, tracker.made_bytes) == (2 * KIB, 1 * KIB)
    assert outputs.sum() == 256


def test_a_storage_resized_without_an_operator_is_followed():
    gathered = torch.zeros(256)

    with LiveStorage([gathered]) as tracker:
        gathered.untyped_storage().resize_(0)
        others = torch.zeros(512)

        assert tracker.current_bytes == 2 * KIB
    assert tracker.peak_bytes == 2 * KIB
    assert others.numel() == 512


def test_sparse_gradients_count_by_their_indices_and_values():
    embedding = nn.Embedding(1000, 4, sparse=True)
    index = torch.tensor([1, 2])

    with LiveStorage([embedding.weight, index]) as tracker:
        embedding(index).sum().backward()
        gc.collect()

        assert embedding.weight.grad.is_sparse
        values, indices = 2 * 4 * 4, 2 * 8
        assert values <= tracker.made_bytes <= values + indices


def test_loading_is_not_counted_but_what_it_loaded_is_once_used():
    def iterate(stage):
        with stage("load"):
            batch = torch.zeros(1024).reshape(4, 256)[0].clone()
        with stage("forward"):
            outputs = batch * 2
        with stage("backward"):
            outputs.sum()

    measured = run_iterations(measure_peak(iter([]), CPU), iterate)

    assert measured.peak_bytes == 2 * KIB + 4
    assert measured.saved_activation_bytes == 1 * KIB


def test_of_several_micro_batches_the_one_that_keeps_most_counts():
    def iterate(stage):
        for num_kib in (1, 3, 2):
            with stage("forward"):
                kept = torch.zeros(256 * num_kib)
            with stage("backward"):
                del kept

    assert run_iterations(measure_peak(iter([]), CPU), iterate).saved_activation_bytes == 3 * KIB


def test_a_pipelines_forward_passes_count_together_until_the_first_backward_pass():
    def iterate(stage):
        kept = []
        for name in ("forward", "forward", "backward", "forward", "backward", "backward"):
            with stage(name):
                if name == "forward":
                    kept.append(torch.zeros(256))
                else:
                    kept.pop()

    assert run_iterations(measure_peak(iter([]), CPU), iterate).saved_activation_bytes == 2 * KIB


def test_without_a_backward_pass_nothing_is_said_of_saved_activations():
    def evaluate(stage):
        with stage("evaluation"):
            torch.zeros(256)

    assert run_iterations(measure_peak(iter([]), CPU), evaluate) == PeakMemory(
        metric="live_storage_peak", peak_bytes=1 * KIB, saved_activation_bytes=None
    )


class Allocator:
    """CUDA's allocator, by what is asked of it; `calls` are those of it and of the device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.is_native = True
        self._asked_bytes = iter([0, 100, 700, 0])
        for name in ("synchronize", "reset_peak_memory_stats", "memory_stats"):
            monkeypatch.setattr(torch.cuda, name, functools.partial(self._call, name))
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")

    def _call(self, name: str, of_device: torch.device) -> dict[str, int]:
        assert of_device == torch.device("cuda", 0)
        self.calls.append(name)
        if name != "memory_stats":
            return {}
        asked_bytes = next(self._asked_bytes)
        return {
            "requested_bytes.all.current": asked_bytes if self.is_native else 0,
            "requested_bytes.all.peak": 900 if self.is_native else 0,
            "allocated_bytes.all.current": 2 * asked_bytes,
            "allocated_bytes.all.peak": 2**20,
            "reserved_bytes.all.peak": 2**21,
        }


def test_of_cudas_own_allocator_the_blocks_that_it_gave_are_read(monkeypatch):
    allocator = Allocator(monkeypatch)
    allocator.is_native = False  # cudaMallocAsync, which leaves those figures at zero

    def iterate(stage):
        for name in ("forward", "backward"):
            with stage(name):
                pass

    measured = run_iterations(measure_peak(iter([]), torch.device("cuda", 0)), iterate)

    assert measured == PeakMemory(
        metric="max_memory_allocated",
        peak_bytes=2**20,
        saved_activation_bytes=1200,
        reserved_bytes=2**21,
    )


def test_an_allocator_of_the_users_own_counts_nothing_and_is_asked_for_nothing(monkeypatch):
    def refuse(*_):
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")

    for name in ("reset_peak_memory_stats", "memory_stats"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "pluggable")
    cuda = torch.device("cuda", 0)

    measured = run_iterations(measure_peak(iter([]), cuda), lambda stage: None)

    assert (measured, memory_stats(cuda)) == (None, {})


def test_what_another_stream_uses_is_read_as_it_was_given(monkeypatch):
    # What was asked for falls by it when the allocator learns that the stream is done, by chance.
    Allocator(monkeypatch)

    def iterate(stage):
        for name in ("forward", "backward"):
            with stage(name):
                pass

    cuda = torch.device("cuda", 0)
    measured = run_iterations(measure_peak(iter([]), cuda, frees_late=True), iterate)

    assert (measured.metric, measured.peak_bytes) == ("max_memory_allocated", 2**20)
    assert measured.saved_activation_bytes == 1200


def test_on_cuda_what_was_asked_of_the_allocator_is_read_after_a_reset(monkeypatch):
    allocator = Allocator(monkeypatch)

    def iterate(stage):
        for name in ("load", "forward", "backward", "optimizer"):
            with stage(name):
                allocator.calls.append(name)

    measured = run_iterations(measure_peak(iter([]), torch.device("cuda", 0)), iterate)

    assert measured == PeakMemory(
        metric="requested_peak",
        peak_bytes=900,
        saved_activation_bytes=600,
        reserved_bytes=2**21,
    )
    assert allocator.calls == [
        "memory_stats",
        "synchronize",
        "reset_peak_memory_stats",
        "load",
        "memory_stats",
        "forward",
        "memory_stats",
        "backward",
        "optimizer",
        "synchronize",
        "memory_stats",
    ]


def test_garbage_from_before_is_gone_from_the_allocators_peak(monkeypatch):
    class Node:
        pass

    Allocator(monkeypatch)
    gc.disable()
    try:
        node = Node()
        node.itself = node
        garbage = weakref.ref(node)
        del node
        alive = []
        monkeypatch.setattr(
            torch.cuda, "reset_peak_memory_stats", lambda _: alive.append(garbage() is not None)
        )
        enabled = []
        run_iterations(
            measure_peak(iter([]), torch.device("cuda", 0)),
            lambda stage: enabled.append(gc.isenabled()),
        )
    finally:
        gc.enable()

    assert (alive, enabled) == ([False], [False])


class Stubborn(torch.Tensor):
    """A tensor whose class refuses all that it is asked for."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


class Pinned(torch.Tensor):
    """A batch that a loader's thread has pinned, as only an accelerator's host can."""

    def is_pinned(self):
        return True


@pytest.mark.parametrize("is_frozen", [False, True])
def test_what_an_iteration_leaves_alive_is_counted_once_and_without_scalars_and_batches(is_frozen):
    kept, held = [torch.zeros(512)], [torch.zeros(2048)]
    odd = [nn.LazyLinear(2), torch.zeros(8, device="meta"), Stubborn()]

    def iterate(stage):
        kept.extend([torch.zeros(1024), torch.tensor(0.5), torch.zeros(64).share_memory_()])
        kept.append(kept[-3].view(4, 256))
        kept.append(torch.zeros(4, 4).to_sparse())  # its parts are of other storages
        kept.append(torch.Tensor._make_subclass(Pinned, torch.zeros(256)))
        held[0] = torch.zeros(2048)
        node = [torch.zeros(4096)]
        node.append(node)  # garbage

    def count():
        yield lambda stage: None
        return "counts"

    gc.unfreeze()
    if is_frozen:
        gc.freeze()
    try:
        found = run_iterations(with_kept_bytes(count(), {}), iterate)
        was_frozen = gc.get_freeze_count() > 0, clock.user_has_frozen()
    finally:
        gc.unfreeze()

    assert found == ("counts", 4096)
    assert len(odd) == 3
    assert was_frozen == (is_frozen, is_frozen)


def test_a_view_of_what_was_there_before_is_not_kept():
    data, weight = torch.ones(64, 256).share_memory_(), torch.ones(256, requires_grad=True)

    def iterate(stage):
        (data[:8] * weight).sum().backward()
        weight.grad = None

    def both():
        yield from count_iteration(made := Storages())
        return (yield from with_kept_bytes(measure_peak(iter([]), CPU), made))

    assert run_iterations(both(), iterate)[1] == 0


@pytest.mark.parametrize(("keeps", "kept_bytes"), [("all", 4096), ("backward", 0), ("last", 0)])
def test_a_graph_that_a_scalar_keeps_alive_is_counted(keeps, kept_bytes):
    inputs, weight = torch.ones(1024), torch.ones(1024, requires_grad=True)
    losses = []

    def iterate(stage):
        loss = (inputs * weight).square().sum()
        if keeps == "backward":
            loss.backward()
            weight.grad = None
        losses[:] = [loss] if keeps == "last" else [*losses, loss]

    def both():
        yield from count_iteration(made := Storages())
        return (yield from with_kept_bytes(measure_peak(iter([]), CPU), made))

    _, found = run_iterations(both(), iterate)

    assert found == kept_bytes
