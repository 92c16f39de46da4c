"""Signals end a block as an exception does, and wait while nothing may be lost."""

from __future__ import annotations

import signal
import threading

import pytest

from perfsuite.system.signals import ends_on_signals, handled_by, uninterrupted

pytestmark = pytest.mark.usefixtures("default_signals")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_block_and_runs_what_cleans_up(number: signal.Signals, code: int) -> None:
    cleaned = []

    with pytest.raises(SystemExit) as ended, ends_on_signals():  # noqa: PT012
        try:
            signal.raise_signal(number)
        finally:
            cleaned.append(True)

    assert ended.value.code == code
    assert cleaned == [True]
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_handler_that_is_set_stays() -> None:
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(True))
    try:
        with ends_on_signals():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert seen == [True]


def test_an_end_by_a_signal_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), ends_on_signals():
        signal.raise_signal(signal.SIGTERM)

    assert capfd.readouterr() == ("", "perfsuite: ended by SIGTERM\n")


def test_a_signal_that_comes_while_nothing_may_be_lost_is_delivered_afterwards() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    done = []
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            with uninterrupted():
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
                done.append(True)
            done.append(False)
    finally:
        assert signal.signal(signal.SIGINT, before) is signal.default_int_handler

    assert done == [True]


def test_what_may_not_be_lost_may_be_part_of_more_that_may_not() -> None:
    done = []

    with pytest.raises(SystemExit), ends_on_signals():  # noqa: PT012
        with uninterrupted():
            with uninterrupted():
                signal.raise_signal(signal.SIGTERM)
            done.append(True)
        done.append(False)

    assert done == [True]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_second_ctrl_c_does_nothing_while_a_first_one_ends_the_session() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with handled_by(signal.SIG_IGN, [signal.SIGINT]):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_beside_the_main_thread_nothing_is_held_back() -> None:
    done = []

    def act() -> None:
        with uninterrupted(), handled_by(signal.SIG_IGN, [signal.SIGINT]), ends_on_signals():
            done.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()

    assert done == [signal.SIG_DFL]
