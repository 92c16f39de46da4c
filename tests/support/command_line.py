"""The console script's function, called in this process."""

from __future__ import annotations

import sys
from unittest.mock import patch

import pytest

from perfsuite.cli import app


def call_verb(*arguments: str) -> int:
    """The exit code of a verb."""
    with patch.object(sys, "argv", ["perfsuite", *arguments]), pytest.raises(SystemExit) as ended:
        app.main()
    return int(ended.value.code or 0)
