"""How long ranks wait for each other."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from perfsuite.ranks.assignments import Rendezvous, all_assignments
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

    store.shorten_patience(start_of(tmp_path), 2.0)
    assert given == []
    # NCCL counts from when a collective is queued, whatever the device has to do before.
    store.shorten_patience(start_of(tmp_path, needs_group=True), 2.0)
    assert given == [datetime.timedelta(seconds=11.0)]


@pytest.mark.parametrize(("backend", "timeout_s"), [("nccl", 600.0), ("gloo", 7.0)])
def test_ranks_of_several_machines_meet_with_the_patience_of_their_collectives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, timeout_s: float
) -> None:
    # NCCL's own id lies in this store too, and the GPUs of one machine may wake late.
    given: list[float] = []
    monkeypatch.setattr(store, "open_store", lambda *arguments: given.append(arguments[-1]))
    start = start_of(tmp_path)
    met = Rendezvous(host="a", port=1, prefix="p", is_on_one_machine=False)
    assignment = start.assignment._replace(backend=backend, rendezvous=met)

    store.group_store(start._replace(assignment=assignment))

    assert given == [timeout_s]
