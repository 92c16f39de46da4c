"""Which GPU, backend and cores each rank has."""

from __future__ import annotations

from perfsuite.ranks.assignments import all_assignments, cores_beside_gpus


def test_ranks_use_nccl_where_each_has_a_gpu_of_its_own() -> None:
    found = [
        [one.backend for one in all_assignments(2, device="cuda", num_gpus=num_gpus)]
        for num_gpus in (2, 1)
    ]

    assert found == [["nccl", "nccl"], ["gloo", "gloo"]]


def test_ranks_share_the_cores_beside_their_gpu_and_have_all_where_none_is_known() -> None:
    ranks = all_assignments(4, device="cuda", num_gpus=4)

    assert cores_beside_gpus(ranks, range(8), [(0, 1, 2, 3), (0, 1, 2, 3), (4, 5, 6, 9), ()]) == {
        0: (0, 2),
        1: (1, 3),
        2: (4, 5, 6),
        3: tuple(range(8)),
    }
