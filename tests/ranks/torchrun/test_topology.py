"""Who shares what: processors, loopback, lock and GPUs of ranks on one machine and on several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfsuite import Recipe
from perfsuite.ranks.torchrun.topology import RankPlace, Topology, read_place


def at(machine: str, **changes: Any) -> RankPlace:
    plain: dict[str, Any] = {"network": "1", "lock": "1", "cores": (0, 1), "gpus": ()}
    return RankPlace(machine=machine, **{**plain, **changes})


TWO_BY_TWO = Topology((at("a"), at("a"), at("b"), at("b")))


def test_ranks_that_may_use_the_same_processors_share_them_out() -> None:
    assert [TWO_BY_TWO.beside(rank, 4, "machine", "cores") for rank in (0, 3)] == [[0, 1], [2, 3]]
    assert TWO_BY_TWO.beside(2, 3, "machine", "cores") == [2]


def test_ranks_bound_to_processors_of_their_own_have_none_beside_them() -> None:
    bound = Topology((at("a", cores=(0,)), at("a", cores=(1,))))

    assert [bound.beside(rank, 2, "machine", "cores") for rank in (0, 1)] == [[0], [1]]


def test_a_group_shares_a_loopback_only_in_one_network_of_one_machine() -> None:
    containers = Topology((at("a", network="1"), at("a", network="2")))

    assert TWO_BY_TWO.is_on_one_machine(2)
    assert not TWO_BY_TWO.is_on_one_machine(3)
    assert not containers.is_on_one_machine(2)


def test_one_rank_of_those_that_share_a_lock_holds_it() -> None:
    containers = Topology((at("a", lock="1"), at("a", lock="2"), at("a", lock="1")))

    assert [TWO_BY_TWO.holds_lock(rank) for rank in range(4)] == [True, False, True, False]
    assert [containers.holds_lock(rank) for rank in range(3)] == [True, True, False]


def test_processors_and_gpus_are_counted_once() -> None:
    layout = Topology((at("a", gpus=("x", "y")), at("a", gpus=("x", "y")), at("b", gpus=("z",))))

    assert (layout.num_cores, layout.num_gpus) == (4, 3)


def test_ranks_have_gpus_of_their_own_unless_there_are_too_few() -> None:
    two = ("x", "y")

    assert Topology((at("a", gpus=two), at("a", gpus=two))).have_own_gpus(2)
    assert Topology((at("a", gpus=("x",)), at("b", gpus=("z",)))).have_own_gpus(2)
    assert not Topology((at("a", gpus=("x",)), at("a", gpus=("x",)))).have_own_gpus(2)
    assert not TWO_BY_TWO.have_own_gpus(2)


@pytest.mark.parametrize(
    ("parallel", "reason"),
    [
        ("ddp:4", None),
        ("ddp:2", None),
        ("single", None),
        ("ddp:5", "parallel 'ddp:5' needs 5 ranks, and torchrun started 4"),
        ("dp:2", "parallel 'dp:2' needs 2 GPUs, and rank 0 sees 0"),
        (
            "horovod:2",
            "parallel 'horovod:2' needs ranks that horovodrun started, and torchrun started these; "
            "horovod-like:2 does the same with torch.distributed",
        ),
    ],
)
def test_what_the_ranks_cannot_run_has_a_reason(parallel: str, reason: str | None) -> None:
    assert TWO_BY_TWO.why_not_exercised(Recipe(parallel=parallel)) == reason


def test_two_looks_from_one_place_see_the_same(tmp_path: Path) -> None:
    here = read_place(tmp_path, ["x"])

    assert here == read_place(tmp_path, ["x"])
    assert here.lock != read_place(Path("/"), ["x"]).lock
