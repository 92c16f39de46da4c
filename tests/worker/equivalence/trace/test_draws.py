from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from perfsuite import Recipe, Workload
from perfsuite.records.stages import untimed
from perfsuite.worker.equivalence.trace import draws
from perfsuite.worker.equivalence.trace.draws import (
    Draw,
    DrawRecorder,
    join_ranks,
    read_random_state,
)
from perfsuite.worker.equivalence.trace.recording import record_run
from perfsuite.worker.measure import dispatch
from perfsuite.worker.training.step import train_step
from perfsuite.worker.training.trainer import build_trainer
from perfsuite.worker.workloads.transformer import transformer_tiny

CPU = torch.device("cpu")


def test_a_kernel_with_dropout_and_a_state_of_its_own_is_seen_to_draw_at_each_call() -> None:
    recorder = DrawRecorder([], [], CPU)
    seen = Mock(wraps=torch.ops.aten._cudnn_rnn.default, return_value=torch.ones(2))
    seen.name = lambda: "aten::_cudnn_rnn"
    seen.overloadpacket.__name__ = "_cudnn_rnn"
    seen._schema = torch.ops.aten._cudnn_rnn.default._schema
    names = [argument.name for argument in seen._schema.arguments]
    given = dict.fromkeys(names) | {"train": True, "dropout": 0.1}
    with pytest.MonkeyPatch.context() as patch, recorder.micro_batch() as chunks:
        patch.setattr(draws, "_may_draw", lambda _: True)
        for dropout in (0.1, 0.0):
            recorder.observe(seen, (*(given | {"dropout": dropout}).values(),), {})

    assert [draw.values for draw in chunks[0]] == [None]


class Drawing(nn.Module):
    """Draws in several ways: by its layers, in attention, and by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
        self.layer = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
        self.head = nn.Linear(8, 3)

    def forward(self, points: Tensor) -> Tensor:
        hidden = functional.pad(points, (0, 2))[:, None].expand(-1, 4, -1)
        hidden = self.layer(self.attention(hidden, hidden, hidden)[0][:, 0])
        kept = torch.rand(len(hidden), 1) < 0.7
        outputs: Tensor = self.head((hidden + torch.randn_like(hidden)) * kept)
        return outputs


def workload() -> Workload:
    inputs = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
    return Workload(
        name="drawing",
        build_model=Drawing,
        build_dataset=lambda split: torch.utils.data.TensorDataset(inputs, torch.arange(24) % 3),
        loss=lambda outputs, target: functional.cross_entropy(
            outputs + torch.rand_like(outputs), target
        ),
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        blocks=lambda model: [model.layer],
        micro_batch_size=4,
    )


def batches_of(one: Workload) -> Iterator[Any]:
    dataset: Any = one.build_dataset("train")
    loader = torch.utils.data.DataLoader(dataset, batch_size=one.micro_batch_size)
    return itertools.cycle([tuple(batch) for batch in itertools.islice(loader, 6)])


@pytest.mark.parametrize("build", [workload, transformer_tiny], ids=["drawing", "transformer"])
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(checkpointing="every-block", grad_accumulation_steps=2),
        Recipe(checkpointing="selective", precision="amp-bf16"),
        Recipe(precision="bf16"),
    ],
    ids=["plain", "recomputed", "selective", "bf16"],
)
def test_recording_changes_no_bit_and_leaves_the_generators_where_the_run_would(
    build: Callable[[], Workload], recipe: Recipe
) -> None:
    unwatched = build_trainer(build(), recipe, device=CPU, seed=5)
    left = batches_of(build())
    losses = [train_step(unwatched, left, untimed) for _ in range(2)]
    state, following = read_random_state(CPU), torch.rand(3)

    recorded = build_trainer(build(), recipe, device=CPU, seed=5)
    trace = record_run(
        recorded,
        batches_of(build()),
        num_steps=2,
        on_step=lambda: None,
    )

    assert read_random_state(CPU) == state
    assert torch.equal(torch.rand(3), following)
    assert [step.loss for step in trace.steps] == [
        float(loss) for loss in losses if loss is not None
    ]
    for name, parameter in unwatched.module.named_parameters():
        assert torch.equal(trace.steps[-1].after.parameters[name], parameter), name
    micro_batches = [one for step in trace.steps for one in step.micro_batches]
    assert all(one.draws is not None and one.draws[0] for one in micro_batches)


def make_gloo_groups() -> list[dist.ProcessGroup]:
    """Return the two ends, of rank 0 and rank 1, of one group within this process."""
    store = dist.HashStore()

    def make(rank: int) -> dist.ProcessGroup:
        group = dist.ProcessGroup(store, rank, 2)
        gloo = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))
        group._register_backend(CPU, dist.ProcessGroup.BackendType.GLOO, gloo)
        return group

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(make, range(2)))


@pytest.mark.parametrize("caller", [None, "my_package.reduction"])
def test_a_collective_of_torchs_own_has_ended_before_the_next_operator_runs(
    monkeypatch: pytest.MonkeyPatch, caller: str | None
) -> None:
    # Sparse gradients that gloo reduces while the rank goes on may corrupt the heap (torch 2.14.1).
    # The user's own collectives are the user's to wait for, or to forget.
    monkeypatch.setattr(dispatch, "find_caller", lambda: caller)
    early, late = make_gloo_groups()
    with ThreadPoolExecutor(1) as thread, DrawRecorder([], [0], CPU):
        thread.submit(lambda: time.sleep(0.3) or late.allreduce([torch.ones(2)]).wait())
        work = early.allreduce([torch.ones(2)])
        has_ended = work.is_completed()
        work.wait()
    assert has_ended == (caller is None)


def record(model: nn.Module, *inputs: Tensor) -> list[list[Draw]]:
    recorder = DrawRecorder([model], [0], CPU)
    with recorder.micro_batch() as chunks:
        for one in inputs:
            model(one).sum().backward()
    return chunks


def test_a_mask_is_kept_as_booleans_with_its_operator_and_probability() -> None:
    (chunk,) = record(nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.25)), torch.ones(2, 3))

    (draw,) = chunk
    assert (draw.operator, draw.arguments, draw.bound) == ("aten.bernoulli_", (0.75,), None)
    assert draw.values is not None
    assert (draw.values.dtype, draw.values.shape) == (torch.bool, (2, 5))


def test_each_call_of_the_model_is_a_chunk_and_a_call_without_gradients_is_none() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.25))
    recorder = DrawRecorder([model], [3], CPU)

    with recorder.micro_batch() as chunks:
        with torch.no_grad():
            model(torch.ones(1, 3))
        first = model(torch.ones(2, 3))
        model(torch.ones(4, 3))
        first.sum().backward()

    assert [[draw.values.shape[0] for draw in chunk] for chunk in chunks] == [[2], [4]]
    assert chunks[0][0].stage == 3


class Recomputing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.25), nn.Linear(5, 5))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = checkpoint(self.block, inputs, use_reentrant=False)
        return outputs


def test_what_recomputation_draws_again_is_not_kept() -> None:
    assert [len(chunk) for chunk in record(Recomputing(), torch.ones(9, 3))] == [1]


def test_attention_without_dropout_draws_nothing() -> None:
    class Attention(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(inputs, inputs, inputs)

    inputs = torch.ones(2, 2, 4, 8, requires_grad=True)

    assert record(Attention(), inputs) == [[]]


def drawn(value: float, stage: int = 0) -> Draw:
    return Draw(
        operator="aten.rand", arguments=(), bound=None, values=torch.tensor([value]), stage=stage
    )


def test_stages_of_several_ranks_are_joined_in_their_order_chunk_by_chunk() -> None:
    first = [[drawn(0.0), drawn(2.0, stage=2)], [drawn(4.0), drawn(6.0, stage=2)]]
    second = [[drawn(1.0, stage=1), drawn(3.0, stage=3)], [drawn(5.0, stage=1)]]

    chunks, differing = join_ranks([first, second])

    values = [[float(draw.values) for draw in chunk] for chunk in chunks if chunk]
    assert values == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert differing == {}


def test_ranks_that_compute_the_same_are_kept_once_and_compared() -> None:
    chunks, differing = join_ranks([[[drawn(1.0)]], [[drawn(1.0)]], [[drawn(2.0)]], [[]]])

    assert [[float(draw.values) for draw in chunk] for chunk in chunks] == [[1.0]]
    assert differing == {2: "aten.rand"}
