"""SIGTERM and a hang-up end a block as an exception does, and leave other handlers alone."""

from __future__ import annotations

import signal

import pytest

from perfsuite.gate.termination import ends_on_signals

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


def test_a_handler_that_somebody_has_set_stays() -> None:
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
