"""How long ranks wait for each other."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from perfsuite.ranks.assignments import all_assignments
from perfsuite.ranks.messages import (
    CallFunction,
    GroupPolicy,
    GroupRequest,
    RankStart,
    TurnChannel,
)
from perfsuite.worker import store


def start_of(folder: Path, *, needs_group: bool = False, **policy: Any) -> RankStart:
    request = GroupRequest(
        job=CallFunction(call=b""),
        world_size=2,
        policy=GroupPolicy(collective_timeout_s=7.0, **policy),
        needs_group=needs_group,
    )
    assignment = all_assignments(2, device="cuda", num_gpus=2)[1]
    return RankStart(
        request=request, assignment=assignment, folder=str(folder), core=None, cores=(0,)
    )


@pytest.mark.parametrize(("is_gated", "days"), [(False, 7 / 86_400), (True, 1.0)])
def test_in_a_gate_ranks_wait_for_the_first_one_while_the_other_arm_has_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gated: bool, days: float
) -> None:
    given: list[datetime.timedelta] = []
    monkeypatch.setattr(
        store.dist, "ProcessGroupGloo", lambda *arguments: given.append(arguments[-1])
    )
    turns = TurnChannel(path=str(tmp_path / "gate"), arm="head") if is_gated else None
    start = start_of(tmp_path, turns=turns)

    meeting = store.group_store(start)
    store._meet(start, meeting)

    assert given == [datetime.timedelta(days=days)]
    assert not is_gated or meeting.timeout == given[0]


def test_a_group_that_is_a_loops_own_keeps_its_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[datetime.timedelta] = []
    monkeypatch.setattr(store.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(store.dist, "set_timeout", given.append, raising=False)

    store.shorten_patience(start_of(tmp_path))
    assert given == []
    store.shorten_patience(start_of(tmp_path, needs_group=True))
    assert given == [datetime.timedelta(seconds=7.0)]
