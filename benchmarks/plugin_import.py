"""What the installed plugin costs a pytest session that uses nothing of it.

python benchmarks/plugin_import.py [--runs 20]

Runs two pairs of processes in turns: the import of pytest and pytest-benchmark without and with the
plugin, and an empty session without and with it. Prints the difference of the medians of their
processor time, which other load hardly changes, beside the limit; ends in 1 where one is above it.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

LIMIT_S = 0.050
_IMPORT = "import pytest, pytest_benchmark.plugin"
# Each without the plugin, and with it. Other plugins would only add their own noise to both.
_PAIRS = {
    "import": (("-c", _IMPORT), ("-c", f"{_IMPORT}, perfsuite.plugin")),
    "empty session": (
        ("-m", "pytest", "-q", "-p", "benchmark"),
        ("-m", "pytest", "-q", "-p", "benchmark", "-p", "perfsuite"),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=20, help="of each process; default 20")
    num_runs = parser.parse_args().runs
    added_s = {name: added(pair, num_runs) for name, pair in _PAIRS.items()}
    for name, seconds in added_s.items():
        print(f"{name}: {seconds * 1e3:+.1f} ms (limit: {LIMIT_S * 1e3:.0f} ms)")
    return int(max(added_s.values()) > LIMIT_S)


def added(pair: Sequence[Sequence[str]], num_runs: int) -> float:
    """Return how many seconds the second command takes more than the first, in the median."""
    with tempfile.TemporaryDirectory() as folder:
        for command in pair:  # both find their bytecode from then on
            seconds_of(command, Path(folder))
        pairs_s = [[seconds_of(command, Path(folder)) for command in pair] for _ in range(num_runs)]
    without_s, with_s = (median(column) for column in zip(*pairs_s, strict=True))
    return with_s - without_s


def seconds_of(command: Sequence[str], folder: Path) -> float:
    """Return the processor time of one process."""
    environment = os.environ | {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
    )
    assert ended.returncode in (0, 5), ended.stderr  # 5: an empty session has no tests
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
