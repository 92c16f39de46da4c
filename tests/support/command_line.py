"""The console script's function, called in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from json_schemas import assert_valid

from perfsuite.cli import app


def call_verb(*arguments: str) -> int:
    """The exit code of a verb; what it wrote by --json is held to its schema."""
    with patch.object(sys, "argv", ["perfsuite", *arguments]), pytest.raises(SystemExit) as ended:
        app.main()
    if "--json" in arguments and ended.value.code != 2:  # which refuses, and writes nothing
        path = Path(arguments[arguments.index("--json") + 1])
        if path.is_file():
            name = "-".join(arguments[: 1 + (arguments[0] == "baseline")])
            assert_valid(name, json.loads(path.read_text()))
    return int(ended.value.code or 0)
