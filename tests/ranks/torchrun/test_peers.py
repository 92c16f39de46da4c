"""Two controllers over a real store: what they receive, its order, and which one is gone."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from perfsuite.errors import LostRankError
from perfsuite.ranks import bootstrap
from perfsuite.ranks.forkserver import start_process
from perfsuite.ranks.torchrun.membership import Membership
from perfsuite.ranks.torchrun.peers import MessengerStart, Peers, enter_messenger

pytestmark = pytest.mark.usefixtures("nothing_left")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def membership_at(port: int, *, rank: int) -> Membership:
    return Membership(
        rank=rank,
        world_size=2,
        host="127.0.0.1",
        port=port,
        hosts_store=rank == 0,
        num_restarts=0,
    )


def peers_at(port: int, *, silence_s: float = 60.0, ranks: Sequence[int] = (0, 1)) -> list[Peers]:
    return [Peers(membership_at(port, rank=rank), silence_s=silence_s) for rank in ranks]


@pytest.fixture
def peers() -> Iterator[list[Peers]]:
    pair = peers_at(free_port())
    yield pair
    for one in reversed(pair):  # the first keeps the store
        one.close()


def test_what_all_say_is_returned_in_rank_order(peers: list[Peers]) -> None:
    first, second = peers
    second.broadcast("names", "b")

    assert first.gather("names", "a") == ["a", "b"]


def test_a_value_of_several_pages_comes_whole(peers: list[Peers]) -> None:
    first, second = peers
    large = os.urandom(9 * 2**20)
    second.broadcast("data", large)

    assert first.gather("data", b"") == [b"", large]


def test_what_was_said_in_a_phase_is_forgotten_in_the_next(peers: list[Peers]) -> None:
    first, second = peers
    second.broadcast("late", "word")
    with ThreadPoolExecutor() as pool:
        other = pool.submit(second.end_phase, "passed")
        assert first.end_phase("failed") == other.result() == ["failed", "passed"]

    assert first.received("late") == {}
    assert (first.phase, second.phase) == (1, 1)


def test_a_rank_that_ended_the_phase_without_a_word_is_named(peers: list[Peers]) -> None:
    first, second = peers
    with ThreadPoolExecutor() as pool:
        other = pool.submit(second.end_phase, "failed")
        with pytest.raises(LostRankError) as caught:
            first.gather("names", "a")
        first.end_phase("failed")
        other.result()

    assert str(caught.value) == "rank 1 of 2 took no part in this test"


def test_a_rank_that_ended_its_session_is_named(peers: list[Peers]) -> None:
    first, second = peers
    with ThreadPoolExecutor() as pool:
        other = pool.submit(second.leave, 2)
        with pytest.raises(LostRankError) as caught:
            first.end_phase("passed")
        assert first.leave(1) == other.result() == [1, 2]

    assert str(caught.value) == "rank 1 of 2 has ended its session"


def test_a_messenger_that_was_killed_is_noticed_at_once() -> None:
    first, second = peers_at(free_port())
    try:
        second.broadcast("names", "b")
        first.gather("names", "a")
        pid = second._messenger.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait(second.sources())

        with pytest.raises(LostRankError) as caught:
            second.gather("more names", "d")
    finally:
        second.close()
        first.close()

    assert str(caught.value) == "the messenger between the ranks has died"


def test_a_rank_that_falls_silent_is_named() -> None:
    first, second = peers_at(free_port(), silence_s=2.5)
    try:
        second.broadcast("names", "b")
        first.gather("names", "a")
        second.close()

        with pytest.raises(LostRankError) as caught:
            first.gather("more names", "c")
    finally:
        first.close()

    assert str(caught.value) == (
        "rank 1 of 2 is gone, stopped or hangs: nothing was heard of its pytest process for 2.5 s"
    )


def test_a_controller_that_is_stopped_is_named_and_goes_on_to_its_end(tmp_path: Path) -> None:
    port = free_port()
    first = peers_at(port, silence_s=2.5, ranks=[0])[0]
    controller = subprocess.Popen(["sleep", "600"])
    messenger, pipe = start_process(
        enter_messenger,
        MessengerStart(
            membership=membership_at(port, rank=1),
            controller=controller.pid,
            folder=str(tmp_path),
            arrival_s=60.0,
            silence_s=60.0,
        ),
    )
    try:
        pipe.send_bytes(pickle.dumps((1, first.phase, "names", "b")))
        first.gather("names", "a")
        controller.send_signal(signal.SIGSTOP)
        with pytest.raises(LostRankError) as caught:
            first.gather("more names", "c")
        first.close()  # and the store with it
        while not isinstance(pipe.recv(), str):
            pass
        assert not bootstrap.why_stopped(controller.pid)
    finally:
        controller.kill()
        controller.wait()
        pipe.close()
        messenger.join()

    assert str(caught.value) == (
        "rank 1 of 2 is gone, stopped or hangs: nothing was heard of its pytest process for 2.5 s"
    )
