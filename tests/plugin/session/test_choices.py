"""What options are parsed to."""

from __future__ import annotations

import pytest

from perfsuite.plugin.session.choices import _minutes


@pytest.mark.parametrize(("text", "seconds"), [("5", 300.0), ("90s", 90.0), (" 0.5 ", 30.0)])
def test_a_number_without_a_unit_is_minutes(text: str, seconds: float) -> None:
    assert _minutes(text) == seconds
