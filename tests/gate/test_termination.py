"""SIGTERM ends a block as an exception does, and leaves other handlers alone."""

from __future__ import annotations

import signal

import pytest

from perfsuite.gate.termination import ends_on_sigterm


def test_sigterm_ends_the_block_and_runs_what_cleans_up() -> None:
    cleaned = []

    with pytest.raises(SystemExit) as ended, ends_on_sigterm():  # noqa: PT012
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned.append(True)

    assert ended.value.code == 143
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_that_somebody_has_set_stays() -> None:
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(True))
    try:
        with ends_on_sigterm():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert seen == [True]
