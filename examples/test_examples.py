"""Every example is measured in its own repository, and some are gated: `make test-examples`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from example_sessions import EXAMPLES, NAMES, Example

# The gate takes a minute or two for both of its sessions; benchmarks/example_sessions.py judges all
# by the default limits, which need a quiet machine.
GATED = {"plain_loop", "gan"}
OPTIONS = ("--tolerance=4%", "--limit=10%")


@pytest.mark.parametrize("name", NAMES)
def test_an_example_ends_as_its_readme_says(name: str, tmp_path: Path) -> None:
    example = Example(name, tmp_path)
    for kind in ("measured", "twin", "slower") if name in GATED else ("measured",):
        ended, _, wrong = example.run(kind, *OPTIONS)

        assert wrong == [], ended.output


def test_a_benchmark_is_short_and_a_training_knows_nothing_of_it() -> None:
    for path in (path for name in NAMES for path in (EXAMPLES / name).rglob("*.py")):
        if path.parent.name == "benchmarks":
            assert len(path.read_text().splitlines()) <= 15, path
        else:
            assert "perfsuite" not in path.read_text(), path
