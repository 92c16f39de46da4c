"""What a file or a user wrote, as it may be shown."""

from __future__ import annotations

from datetime import datetime

import pytest

from perfsuite.system.untrusted import in_utc, printable, printable_lines


@pytest.mark.parametrize("written", ["2026-11-21T15:02:00+02:00", "2026-11-21T13:02:00"])
def test_a_time_is_told_in_utc(written: str) -> None:
    assert in_utc(datetime.fromisoformat(written)).isoformat() == "2026-11-21T13:02:00+00:00"


def test_what_is_not_printable_is_escaped() -> None:
    text = "a\x1b[2J\n\tb"

    assert printable(text) == r"a\x1b[2J\n\tb"
    assert printable_lines(text) == "a\\x1b[2J\n\tb"
