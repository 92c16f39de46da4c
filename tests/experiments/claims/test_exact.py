"""Claims that are counted or proven: what decides them, and that they hold here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfsuite.experiments.claims.exact import (
    try_accumulation,
    try_averaging,
    try_checkpointing,
    try_half_precision,
    try_sharding,
    weigh_check,
)
from perfsuite.experiments.interleave import Bench
from perfsuite.experiments.rank_session import Session
from perfsuite.ranks.messages import GroupPolicy
from perfsuite.records.equivalence import EquivalenceReport, EquivalenceRow
from perfsuite.records.recipe import Recipe

# Blocks of the chain keep 20 bytes and cost 30 flops in three passes, 10 each. For chains of 4, 8,
# 16 and 32 blocks, by their checkpointing.
SAVED_BYTES = {
    "none": [85, 165, 325, 645],
    "segments:4": [45, 45, 45, 45],
    "every-block": [45, 85, 165, 325],
}
FLOPS = {
    "none": [125, 245, 485, 965],
    "segments:4": [125, 285, 605, 1245],
    "every-block": [125, 245, 485, 965],
}


@pytest.fixture
def bench() -> Bench:
    session = Session(GroupPolicy(shows_output=False), say=print)
    return Bench(session=session, seed=3, say=print)


def answering(answers: list[Any]) -> Any:
    """A bench whose ranks give these answers."""
    return SimpleNamespace(seed=3, on_ranks=lambda num_ranks, name, *args: answers)


# --- C8 ---


@pytest.mark.parametrize(("half", "status"), [(200, "holds"), (201, "does not hold")])
def test_half_the_bytes_is_exactly_half(half: int, status: str) -> None:
    bench = answering([{"float32": 400, "float16": half}])

    assert try_half_precision.experiment(bench).status == status


@pytest.mark.slow
def test_a_tensor_in_fp16_takes_half_the_bytes_here(bench: Bench) -> None:
    finding = try_half_precision.experiment(bench)

    assert finding.status == "holds"
    assert finding.figures == {
        "float32_bytes": 4194304,
        "float16_bytes": 2097152,
        "ratio": 0.5,
    }
    assert finding.reason == "a tensor takes 2.00 MiB in fp16 and 4.00 MiB in fp32"


# --- C9 ---


def counting(saved_bytes: dict[str, list[int]], flops: dict[str, list[int]]) -> Any:
    """A bench that counts so in chains of 4, 8, 16 and 32 blocks."""

    def count(workload: str, recipe: Recipe) -> Any:
        at = (4, 8, 16, 32).index(int(workload.rpartition("_")[2]))
        counts = SimpleNamespace(
            saved_activation_bytes=saved_bytes[recipe.checkpointing][at],
            flops=flops[recipe.checkpointing][at],
        )
        return SimpleNamespace(record=SimpleNamespace(counts=counts))

    return SimpleNamespace(count=count)


def test_slopes_and_recomputed_layers_are_those_of_the_counts() -> None:
    finding = try_checkpointing.experiment(counting(SAVED_BYTES, FLOPS))

    assert finding.status == "holds"
    assert finding.figures["slopes_bytes_per_block"] == {
        "none": [20.0] * 3,
        "segments:4": [0.0] * 3,
        "every-block": [10.0] * 3,
    }
    assert finding.figures["recomputed_layers"] == {4: 0.0, 8: 4.0, 16: 12.0, 32: 28.0}
    assert finding.figures["saved_bytes"]["segments:4"] == {4: 45, 8: 45, 16: 45, 32: 45}


@pytest.mark.parametrize(
    ("saved_bytes", "flops"),
    [
        ({"none": SAVED_BYTES["segments:4"]}, {}),
        ({"none": [85, 165, 325, 646]}, {}),
        ({"segments:4": [45, 45, 45, 46]}, {}),
        ({}, {"segments:4": FLOPS["none"]}),
        ({"every-block": [45, 85, 165, 326]}, {}),
    ],
)
def test_one_count_that_is_off_breaks_the_claim(
    saved_bytes: dict[str, list[int]], flops: dict[str, list[int]]
) -> None:
    bench = counting(SAVED_BYTES | saved_bytes, FLOPS | flops)

    assert try_checkpointing.experiment(bench).status == "does not hold"


@pytest.mark.slow
def test_checkpoints_keep_and_recompute_here_what_the_claim_says(bench: Bench) -> None:
    finding = try_checkpointing.experiment(bench)

    assert finding.status == "holds"
    assert finding.figures["slopes_bytes_per_block"] == {
        "none": [16384.0] * 3,
        "segments:4": [0.0] * 3,
        "every-block": [8192.0] * 3,
    }
    assert finding.figures["recomputed_layers"] == {4: 0.0, 8: 4.0, 16: 12.0, 32: 28.0}


# --- C12, C14 ---


def row(check: str, status: str) -> EquivalenceRow:
    return EquivalenceRow(
        parallel="ddp:2",
        precision="fp32",
        checkpointing="none",
        world_size=2,
        check=check,
        status=status,  # type: ignore[arg-type]
        error=0.0,
        limit=1e-7,
        power="5/5",
        reason="said",
    )


@pytest.mark.parametrize(
    ("found", "status"),
    [
        ("equivalent", "holds"),
        ("mismatch", "does not hold"),
        ("no power", "cannot be tested here"),
        ("not exercised", "cannot be tested here"),
    ],
)
def test_the_row_of_the_check_decides(found: str, status: str) -> None:
    rows = (row("T1", "mismatch"), row("T0", found))
    report = EquivalenceReport(workload="toy-mlp", recipe={}, rows=rows, inapplicable={})

    finding = weigh_check(report, "T0", "gradients")

    reason = "gradients: said; error 0, limit 1e-07; planted bugs found: 5/5"
    assert (finding.status, finding.reason) == (status, reason)


@pytest.mark.slow
def test_ddp_averages_gradients_exactly_here(bench: Bench) -> None:
    finding = try_averaging.experiment(bench)

    assert finding.status == "holds"
    assert (finding.figures["error"], finding.figures["limit"]) == (0.0, 0.0)


@pytest.mark.slow
def test_accumulation_equals_a_large_batch_here(bench: Bench) -> None:
    finding = try_accumulation.experiment(bench)

    assert finding.status == "holds"
    assert finding.figures["error"] < finding.figures["limit"]


# --- C13 ---


def test_disjoint_equal_batches_that_cover_the_data_hold() -> None:
    bench = answering([([[0, 3], [4, 7]], 9), ([[1, 2], [5, 6]], 9)])

    finding = try_sharding.experiment(bench)

    assert finding.status == "holds"
    assert finding.figures == {
        "world_size": 2,
        "samples": 9,
        "samples_per_rank": [4, 4],
        "global_batch": 4,
        "batch_per_rank": 2,
        "repeated": 0,
        "left_out": 1,
    }


@pytest.mark.parametrize(
    ("shards", "num_samples"),
    [
        ([[[0, 1]], [[0, 1]]], 4),
        ([[[0, 1]], [[2]]], 3),
        ([[[0, 1]], [[2, 3]]], 8),
    ],
    ids=["shared", "unequal", "too much left out"],
)
def test_shards_that_overlap_differ_or_miss_data_do_not_hold(
    shards: list[list[list[int]]], num_samples: int
) -> None:
    bench = answering([(batches, num_samples) for batches in shards])

    assert try_sharding.experiment(bench).status == "does not hold"


@pytest.mark.slow
def test_two_ranks_divide_the_data_here(bench: Bench) -> None:
    finding = try_sharding.experiment(bench)

    assert finding.status == "holds"
    assert finding.figures["samples_per_rank"] == [1024, 1024]
    assert (finding.figures["repeated"], finding.figures["left_out"]) == (0, 0)
