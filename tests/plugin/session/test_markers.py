"""The names that a perf marker may have."""

from __future__ import annotations

from perfsuite.gate.arms.launched.collected import MARKED
from perfsuite.plugin.session import markers


def test_a_session_parses_what_a_launch_takes_for_ours() -> None:
    # A launch copies its list beside its plugin, and can import nothing of the session.
    assert tuple(markers._MARKER_PARSERS) == MARKED
