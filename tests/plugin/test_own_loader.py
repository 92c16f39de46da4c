"""Workloads with a loader of their own through an inner pytest session, on real ranks."""

from __future__ import annotations

import json

# As in test_hooks: torch can be imported only once per process.
import multiprocessing.forkserver  # noqa: F401

import pytest
import torch  # noqa: F401

CELLS = """
    import pytest
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    from perfsuite import Recipe, Workload


    class Stream(IterableDataset):
        def __init__(self, shard_index, num_shards, size=96):
            self.shard_index, self.num_shards, self.size = shard_index, num_shards, size

        def __len__(self):
            return self.size // self.num_shards

        def __iter__(self):
            return (float(n) for n in range(self.shard_index, self.size, self.num_shards))


    def collate(numbers):
        inputs = torch.tensor(numbers).view(-1, 1).expand(-1, 4) / 96
        return inputs, inputs[:, :2].clone()


    def streamed(split, shard_index, num_shards):
        if split == "test":
            return None
        return DataLoader(Stream(shard_index, num_shards), 8, collate_fn=collate, num_workers=1)


    def same_on_every_rank(split, shard_index, num_shards):
        return DataLoader(Stream(0, 1), 8, collate_fn=collate)


    def longer_on_one(split, shard_index, num_shards):
        return DataLoader(Stream(0, 1, 64 + 8 * shard_index), 8, collate_fn=collate)


    def workload(build_loader):
        return Workload(
            name="streamed",
            build_model=lambda: torch.nn.Linear(4, 2),
            build_loader=build_loader,
            loss=torch.nn.functional.mse_loss,
            build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            micro_batch_size=8,
            metric="none",
        )


    def test_training(train_benchmark):
        outcome = train_benchmark(
            workload(streamed), Recipe(parallel="ddp:2"), rounds=2, iterations=6
        )
        assert outcome.losses_are_finite
        assert outcome.record.numerics.check == "data"
        assert outcome.record.numerics.status == "not exercised"


    def test_evaluating(evaluation_benchmark):
        evaluation_benchmark(workload(streamed), Recipe(), rounds=2, iterations=6)


    def test_same_on_every_rank(train_benchmark):
        train_benchmark(workload(same_on_every_rank), Recipe(parallel="ddp:2"))


    def test_longer_on_one(loader_benchmark):
        loader_benchmark(workload(longer_on_one), Recipe(parallel="ddp:2"))


    def test_with_workers(loader_benchmark):
        loader_benchmark(workload(streamed), Recipe(num_workers=1))


    def test_cached(train_benchmark):
        train_benchmark(workload(streamed), Recipe(loader="cached"))
"""


def test_loaders_of_ones_own_are_measured_and_their_mistakes_told(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini("[pytest]\nperf_device = cpu\nperf_timeout = 60\n")
    pytester.makepyfile(test_inner=CELLS)

    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")

    result.assert_outcomes(passed=2, failed=4)
    lines = [
        json.loads(line)
        for line in (pytester.path / "results" / "cells.jsonl").read_text().splitlines()
    ]
    trained, evaluated, *refused = lines
    assert trained["perfsuite"]["world_size"] == 2
    assert trained["perfsuite"]["samples_per_s"] > 0
    assert set(trained["perfsuite"]["slow_ranks"]) >= {"load", "forward", "backward", "optimizer"}
    assert evaluated["perfsuite"]["stages_s"]["evaluation"] > 0
    same, longer, workers, cached = (line["reason"] for line in refused)
    assert same.startswith("EquivalenceError: not timed, because its numerics check fails: ")
    assert "batch 1 of shard 1 is one of shard 0's; likeliest cause: build_loader does not" in same
    assert longer == (
        "WorkloadError: workload 'streamed': build_loader gives one rank 9 train batches an epoch, "
        "and another 8; give every rank as many"
    )
    assert workers == (
        "RecipeError: num_workers=1 says nothing to workload 'streamed', which builds its own "
        "loader (build_loader); leave num_workers out"
    )
    assert cached == (
        "RecipeError: loader='cached' trains on a few batches over and over, and is for perfsuite "
        "compare and perfsuite sweep alone; use loader='own'"
    )
