"""Chains of groups: order, errors, what runs together, and that a broken one leaves nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from perfsuite import RankFailureError, WorkloadError
from perfsuite.errors import PerfsuiteError
from perfsuite.ranks.chains import Chain, run_chain, run_chains
from perfsuite.ranks.messages import CallFunction, GroupPolicy, GroupRequest
from perfsuite.ranks.pickling import pack, packed_by_value, unpack

pytestmark = pytest.mark.usefixtures("nothing_left")


def ask_for(function: Any, *args: Any, world_size: int = 1) -> GroupRequest:
    with packed_by_value([sys.modules[__name__]]):
        call = pack((function, args))
    return GroupRequest(
        job=CallFunction(call=call),
        world_size=world_size,
        policy=GroupPolicy(),
        needs_group=world_size > 1,
    )


def values_of(replies: list[Any]) -> list[Any]:
    return [unpack(reply.value) for reply in replies]


def double(number: int) -> int:
    return 2 * number


def fail() -> None:
    raise ValueError("planted")


def chain_of(number: int) -> Chain[int]:
    (doubled,) = values_of((yield ask_for(double, number)))
    (quadrupled,) = values_of((yield ask_for(double, doubled)))
    return int(quadrupled)


def test_a_chain_is_sent_the_replies_of_the_groups_it_asks_for() -> None:
    assert run_chain(chain_of(3)) == 12


def read_arguments() -> list[str]:
    return sys.argv[1:]


def test_ranks_see_no_argument_of_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["perfsuite", "verify", "model:main"])

    def read() -> Chain[list[str]]:
        return values_of((yield ask_for(read_arguments)))

    assert run_chain(read()) == [[]]


def test_outcomes_come_in_the_order_of_the_chains_however_many_run_together() -> None:
    def chains() -> Iterator[Chain[int]]:
        yield chain_of(1)
        yield short()
        yield chain_of(2)

    def short() -> Chain[int]:
        return 0
        yield ask_for(double, 0)

    assert list(run_chains(chains(), at_once=2)) == [4, 0, 8]
    assert list(run_chains(chains(), at_once=1)) == [4, 0, 8]


def test_chains_are_drawn_only_as_others_end() -> None:
    drawn = []

    def chains() -> Iterator[Chain[int]]:
        for number in range(4):
            drawn.append(number)
            yield chain_of(number)

    outcomes = run_chains(chains(), at_once=2)

    assert next(outcomes) == 0
    assert 2 <= len(drawn) <= 3
    outcomes.close()  # type: ignore[attr-defined]  # a generator


def test_a_failing_chain_is_an_outcome_and_the_others_go_on() -> None:
    def failing() -> Chain[int]:
        yield ask_for(fail)
        return 0

    first, second = run_chains([failing(), chain_of(1)], at_once=2)

    assert isinstance(first, RankFailureError)
    assert "planted" in str(first)
    assert second == 4


def test_a_chain_may_handle_the_failure_of_its_group() -> None:
    def careful() -> Chain[str]:
        try:
            yield ask_for(fail)
        except PerfsuiteError as error:
            return type(error).__name__
        return "nothing failed"

    assert run_chain(careful()) == "RankFailureError"


def test_an_error_of_a_chain_alone_is_raised() -> None:
    def wrong() -> Chain[int]:
        raise WorkloadError("no such thing")
        yield ask_for(double, 0)

    with pytest.raises(WorkloadError, match=r"^no such thing$"):
        run_chain(wrong())


def test_chains_that_are_left_are_closed_and_their_ranks_ended() -> None:
    closed = []

    def waiting(number: int) -> Chain[int]:
        try:
            yield ask_for(os.getpid)
            yield ask_for(hang)
        finally:
            closed.append(number)
        return number

    outcomes = run_chains([quick(), waiting(1), waiting(2)], at_once=3)
    next(outcomes)

    outcomes.close()  # type: ignore[attr-defined]  # a generator

    assert sorted(closed) == [1, 2]


def quick() -> Chain[int]:
    return 0
    yield ask_for(os.getpid)


def hang() -> None:
    import threading

    threading.Event().wait()
