"""Which rank of several controllers is named in the error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfsuite.errors import (
    LostRankError,
    NotExercisedError,
    PeerState,
    PerfsuiteError,
    RankFailureError,
)
from perfsuite.ranks.messages import FunctionReturned, GroupPolicy, Reply
from perfsuite.ranks.progress import Position
from perfsuite.ranks.torchrun.groups import MultiHostGroups, RankEnd, error_of
from perfsuite.ranks.torchrun.topology import RankPlace, Topology


def ended(
    result: Reply | PerfsuiteError | None, step: int = 3, lines: tuple[str, ...] = ()
) -> RankEnd:
    position = Position(num_marks=step, phase="measure", stage="backward", step=step)
    return RankEnd(result=result, position=position, lines=lines)


def raised(message: str, peer: PeerState | None = None) -> RankFailureError:
    return RankFailureError(message, rank=1, peer=peer)


LOST = raised("connection closed", "gone")
DONE = FunctionReturned(value=b"")


def blamed(said: dict[int, RankEnd], world_size: int) -> str:
    return str(error_of(said, world_size=world_size, timeout_s=30))


def test_the_first_failure_heard_is_blamed_and_no_rank_that_only_lost_its_peer() -> None:
    said = {2: ended(LOST), 1: ended(raised("boom")), 0: ended(raised("later"))}

    assert blamed(said, 3) == "boom"


def test_what_one_rank_cannot_exercise_is_no_failure_of_another() -> None:
    said = {0: ended(raised("boom")), 1: ended(NotExercisedError("too old"))}

    error = error_of(said, world_size=2, timeout_s=30)
    assert isinstance(error, NotExercisedError)


def test_a_rank_for_which_another_waited_in_vain_is_named_with_its_stack() -> None:
    said = {
        0: ended(LOST, step=8),
        1: ended(None, step=7, lines=("line 3 in sleep",)),
        2: ended(None, step=8),
        3: ended(DONE, step=8),
    }

    assert blamed(said, 4) == (
        "rank 1 of 4 did not come to a collective within 30 s (--perf-collective-timeout): it is "
        "in phase 'measure', stage 'backward' of step 7, and rank 0 waited in phase 'measure', "
        "stage 'backward' of step 8\n  where it is:\n    line 3 in sleep"
    )


def test_a_controller_that_does_not_answer_is_named() -> None:
    error = error_of({0: ended(LOST)}, world_size=2, timeout_s=30)

    assert isinstance(error, LostRankError)
    assert str(error) == (
        "rank 1 of 2 is gone or hangs: rank 0 lost it, and its pytest process did not answer "
        "for 10 s"
    )


def test_of_ranks_that_all_lost_a_peer_the_first_heard_is_blamed() -> None:
    said = {1: ended(LOST), 0: ended(raised("closed too", "gone"))}

    assert blamed(said, 2) == "connection closed"


def test_a_rank_that_came_after_the_one_that_waited_had_ended_is_named() -> None:
    waited = raised("timed out", "late")
    said = {1: ended(LOST, step=8, lines=("line 3 in barrier",)), 0: ended(waited, step=9)}

    assert blamed(said, 2) == (
        "rank 1 of 2 did not come to a collective within 30 s (--perf-collective-timeout): it came "
        "later, in phase 'measure', stage 'backward' of step 8, and rank 0 waited in phase "
        "'measure', stage 'backward' of step 9\n  where it is:\n    line 3 in barrier"
    )


@pytest.mark.parametrize(
    ("cores", "networks", "local"),
    [
        ([(0, 1, 2, 3)] * 4, "1111", [(0, 4), (1, 4), (2, 4), (3, 4)]),
        # torchrun --numa-binding=node: two of these chose one GPU where each said that it was 0.
        ([(0, 1), (0, 1), (2, 3), (2, 3)], "1111", [(0, 4), (1, 4), (2, 4), (3, 4)]),
        ([(0, 1, 2, 3)] * 4, "1122", [(0, 2), (1, 2), (0, 2), (1, 2)]),  # two containers
    ],
)
def test_a_rank_is_counted_on_its_machine_whatever_processors_it_may_use(
    cores: list[tuple[int, ...]], networks: str, local: list[tuple[int, int]]
) -> None:
    gpus = ("w", "x", "y", "z")
    places = [
        RankPlace(machine="a", network=network, lock="1", cores=mine, gpus=gpus)
        for mine, network in zip(cores, networks, strict=True)
    ]

    def assign(rank: int) -> Any:
        here = SimpleNamespace(rank=rank, host="a", port=1, prefix="p")
        groups = MultiHostGroups(SimpleNamespace(membership=here), Topology(tuple(places)))  # type: ignore[arg-type]
        return groups._assignment("job", 4, GroupPolicy(device="cuda"))

    found = [assign(rank) for rank in range(4)]

    assert [(one.local_rank, one.local_world_size) for one in found] == local
    assert [one.gpu for one in found] == [0, 1, 2, 3]
