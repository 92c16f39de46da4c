from __future__ import annotations

import os
from collections import Counter, namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, multiprocessing

from perfsuite.worker.equivalence.checks.data import have_equal_shards
from perfsuite.worker.equivalence.comparison import Discrepancy
from perfsuite.worker.equivalence.trace.draws import read_random_state
from perfsuite.worker.equivalence.trace.trace import (
    MicroBatch,
    RankStep,
    RankTrace,
    Weights,
    join_traces,
    load_traces,
    save_trace,
    share_trace,
)

CPU = torch.device("cpu")


def micro_batch(batch: Any) -> MicroBatch:
    return MicroBatch(batch=batch, random_state=read_random_state(CPU))


def weights(**parameters: float) -> Weights:
    tensors = {name: torch.tensor([value]) for name, value in parameters.items()}
    return Weights(parameters=tensors, buffers={f"{name}.mean": tensors[name] for name in tensors})


def values(tensors: dict[str, Tensor]) -> dict[str, float]:
    return {name: tensor.item() for name, tensor in tensors.items()}


def rank_step(**fields: Any) -> RankStep:
    defaults: dict[str, Any] = {
        "micro_batches": [micro_batch(torch.zeros(2))],
        "loss": 1.0,
        "gradients": {},
        "after": weights(),
    }
    return RankStep(**{**defaults, **fields})


def rank_trace(**fields: Any) -> RankTrace:
    return RankTrace(**{"shard_index": 0, "start": weights(), "steps": [], **fields})


def test_the_ranks_of_a_pipeline_hold_disjoint_names_and_one_loss() -> None:
    first = rank_trace(
        start=weights(a=1.0),
        steps=[rank_step(loss=None, gradients={"a": torch.ones(1)}, after=weights(a=2.0))],
        num_calls=Counter(a=3),
    )
    last = rank_trace(
        start=weights(b=5.0),
        steps=[rank_step(loss=0.5, gradients={"b": torch.zeros(1)}, after=weights(b=6.0))],
        num_calls=Counter(a=1, b=3),
    )

    trace = join_traces([first, last])

    (step,) = trace.steps
    assert values(trace.start.parameters) == values(step.before.parameters) == {"a": 1.0, "b": 5.0}
    assert values(trace.start.buffers) == {"a.mean": 1.0, "b.mean": 5.0}
    assert values(step.after.parameters) == {"a": 2.0, "b": 6.0}
    assert values(step.gradients) == {"a": 1.0, "b": 0.0}
    assert step.losses == [0.5]
    assert len(step.shards) == 1
    assert trace.num_calls == Counter(a=4, b=3)


def test_the_ranks_of_ddp_have_a_shard_and_a_loss_each() -> None:
    def rank(index: int, loss: float) -> RankTrace:
        batches = [micro_batch(torch.tensor([float(index)]))]
        step = rank_step(micro_batches=batches, loss=loss, scale=8.0)
        return rank_trace(shard_index=index, steps=[step, step], num_skipped=2)

    trace = join_traces([rank(0, 1.0), rank(1, 2.0), rank(2, 4.0)])

    assert [step.losses for step in trace.steps] == [[1.0, 2.0, 4.0]] * 2
    assert [shard[0].batch.item() for shard in trace.steps[1].shards] == [0.0, 1.0, 2.0]
    assert (trace.num_skipped, trace.steps[0].scale) == (2, 8.0)


def test_ranks_that_share_a_shard_count_once_and_shards_are_in_order() -> None:
    def rank(index: int, loss: float) -> RankTrace:
        batches = [micro_batch(torch.tensor([float(index)]))]
        return rank_trace(shard_index=index, steps=[rank_step(micro_batches=batches, loss=loss)])

    trace = join_traces([rank(1, 3.0), rank(1, 3.0), rank(0, 2.0), rank(0, 2.0)])

    assert trace.steps[0].losses == [2.0, 3.0]
    assert [shard[0].batch.item() for shard in trace.steps[0].shards] == [0.0, 1.0]


def test_a_step_starts_where_the_step_before_ended() -> None:
    steps = [rank_step(after=weights(a=2.0)), rank_step(after=weights(a=3.0))]

    trace = join_traces([rank_trace(start=weights(a=1.0), steps=steps)])

    assert [values(step.before.parameters) for step in trace.steps] == [{"a": 1.0}, {"a": 2.0}]


def test_a_step_after_skipped_ones_starts_where_they_left_off() -> None:
    def rank(name: str) -> RankTrace:
        steps = [
            rank_step(after=weights(**{name: 2.0})),
            rank_step(before=weights(**{name: 7.0}), after=weights(**{name: 3.0})),
            rank_step(after=weights(**{name: 4.0})),
        ]
        return rank_trace(start=weights(**{name: 1.0}), steps=steps)

    trace = join_traces([rank("a"), rank("b")])

    assert [values(step.before.parameters) for step in trace.steps] == [
        {"a": 1.0, "b": 1.0},
        {"a": 7.0, "b": 7.0},
        {"a": 3.0, "b": 3.0},
    ]


def test_operators_that_one_rank_cannot_see_are_unknown() -> None:
    counted = rank_trace(num_calls=Counter(a=3))

    assert join_traces([counted, rank_trace()]).num_calls is None


def test_the_first_rank_decides_and_what_later_ones_kept_differs() -> None:
    def difference(what: Any, step: int, rank: int, error: float) -> Discrepancy:
        return Discrepancy(what, step, error, 0.0, "on all ranks", name="a", rank=rank)

    gradients = [{"a": torch.tensor([value])} for value in (4.0, 5.0)]
    ranks = [
        rank_trace(
            start=weights(a=2.0), steps=[rank_step(gradients=gradients[0])], bucket_layout=[["a"]]
        ),
        rank_trace(steps=[rank_step()]),
        rank_trace(
            start=Weights(parameters={"a": torch.tensor([3.0])}, buffers={}),
            steps=[rank_step(gradients=gradients[1])],
        ),
    ]

    trace = join_traces(ranks)

    assert values(trace.start.parameters) == {"a": 2.0}
    assert values(trace.steps[0].gradients) == {"a": 4.0}
    assert trace.differences == [
        difference("parameter", 0, 2, 0.5),
        difference("gradient", 1, 2, 0.25),
    ]
    assert trace.bucket_layout == [["a"]]


def test_batches_are_kept_by_shard_and_sparse_names_of_all_ranks() -> None:
    first, second = torch.zeros(1), torch.ones(1)
    ranks = [
        rank_trace(shard_index=1, batches=[second], sparse={"a": 3, "b": 2}),
        rank_trace(shard_index=0, batches=[first], sparse={"b": 7}),
        rank_trace(shard_index=0, batches=[first]),
    ]

    trace = join_traces(ranks)

    assert [[batch.item() for batch in shard] for shard in trace.batches] == [[0.0], [1.0]]
    assert trace.sparse == {"a": 3, "b": 7}


def test_a_run_without_steps_has_none() -> None:
    trace = join_traces([rank_trace(start=weights(a=1.0), num_skipped=8)])

    assert (trace.steps, trace.num_skipped) == ([], 8)


@pytest.mark.parametrize(
    ("shards", "is_equal"),
    [
        ([[1.0, 2.0], [1.0, 2.0]], True),
        ([[1.0, 2.0], [1.0, 3.0]], False),
        ([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]], True),
        ([[1.0, 2.0], [2.0, 1.0]], False),
        ([[1.0, 2.0], [1.0]], False),
        ([[1.0, 2.0]], False),
    ],
)
def test_two_shards_with_the_same_samples_are_seen(
    shards: list[list[float]], is_equal: bool
) -> None:
    ranks = [
        rank_trace(
            shard_index=index,
            steps=[
                rank_step(
                    micro_batches=[
                        micro_batch(({"x": torch.tensor([value])}, torch.zeros(1)))
                        for value in shard
                    ]
                )
            ],
        )
        for index, shard in enumerate(shards)
    ]

    assert have_equal_shards(join_traces(ranks).steps[0]) == is_equal


def test_traces_come_back_from_their_files_bit_by_bit(tmp_path: Path) -> None:
    sparse = torch.tensor([1.0, -0.0, 1e-45])
    steps = [
        rank_step(
            micro_batches=[micro_batch((torch.arange(3), ["a", "b", "c"]))],
            gradients={"a": sparse.bfloat16(), "b": sparse},
        )
    ]
    saved = rank_trace(start=weights(a=1.0), steps=steps, num_skipped=1)
    paths = [tmp_path / "tested-0.pt", tmp_path / "tested-1.pt"]
    save_trace(saved, paths[0])
    save_trace(rank_trace(shard_index=1, steps=steps), paths[1])

    trace = load_traces(paths)

    (step,) = trace.steps
    assert trace.num_skipped == 1
    assert values(trace.start.parameters) == {"a": 1.0}
    for name, tensor in steps[0].gradients.items():
        assert step.gradients[name].dtype == tensor.dtype
        assert torch.equal(step.gradients[name].view(torch.uint8), tensor.view(torch.uint8))
    inputs, words = step.shards[1][0].batch
    assert (inputs.tolist(), words) == ([0, 1, 2], ["a", "b", "c"])
    state = step.shards[0][0].random_state
    assert state == steps[0].micro_batches[0].random_state


def test_a_batch_of_a_class_that_only_a_test_knows_is_saved(tmp_path: Path) -> None:
    local_class = namedtuple("local_class", "x y")
    batch = local_class(torch.ones(2), torch.zeros(2))
    save_trace(rank_trace(steps=[rank_step(micro_batches=[micro_batch(batch)])]), tmp_path / "0")

    trace = load_traces([tmp_path / "0"])

    loaded = trace.steps[0].shards[0][0].batch
    assert loaded.x.tolist() == [1.0, 1.0]
    assert loaded._fields == ("x", "y")


def share_shards(rank: int, store: str) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    num_made = 0

    def full_tensor(self: DTensor, **_: Any) -> Tensor:
        nonlocal num_made
        num_made += 1
        return make_whole(self)

    make_whole, DTensor.full_tensor = DTensor.full_tensor, full_tensor

    def sharded(*of_ranks: float) -> Tensor:
        return DTensor.from_local(torch.full((1,), of_ranks[rank]), mesh, [Shard(0)])

    def after(*of_ranks: float) -> RankStep:
        buffers = {"frozen": sharded(1.0, 2.0), "other": sharded(*of_ranks)}
        return rank_step(after=Weights(parameters={}, buffers=buffers))

    start = after(3.0, 4.0).after
    steps = [after(3.0, 4.0), after(3.0, 5.0), after(3.0, 4.0)]
    shared = share_trace(rank_trace(start=start, steps=steps))

    found = [shared.start, *(step.after for step in shared.steps)]
    others = [[3.0, 4.0], [3.0, 4.0], [3.0, 5.0], [3.0, 4.0]]
    expected = [{"frozen": [1.0, 2.0], "other": one} if rank == 0 else {} for one in others]
    assert [{n: t.tolist() for n, t in one.buffers.items()} for one in found] == expected
    assert num_made == 3
    dist.destroy_process_group()
    os._exit(0)  # a forked rank ends so, too; else torch 2.14.1 aborts now and then while it exits


def test_a_dtensor_is_made_whole_once_for_each_content_on_all_ranks(tmp_path: Path) -> None:
    multiprocessing.spawn(share_shards, args=(str(tmp_path / "store"),), nprocs=2)
