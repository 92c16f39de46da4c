"""A small package of somebody else in a git repository of its own, with a slowdown, and its gate.

Four plain pytest-benchmark cells, of interpreted and of compiled work. A slowdown is so much more
of the same work, so it is the same share on every machine.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from session_log import gate_command, git, run

# Turns of each function's loop, for 1 to 4 ms: 5 % and 12 % more of each are whole numbers.
WORK: Final = {"weigh": 40_000, "route": 20_000, "seal": 1_000, "shelve": 200}

_PACKAGE = """
import hashlib

PAGE = bytes(4096)
PARCELS = [number * 7919 % 211 for number in range(211)]


def weigh():
    total = 0
    for item in range({weigh}):
        total += item * item % 7
    return total


def route():
    state, stops = 1, {{}}
    for stop in range({route}):
        state = state * 1103515245 % 2147483647
        stops[state % 97] = stop
    return stops


def seal():
    digest = hashlib.sha256()
    for _ in range({seal}):
        digest.update(PAGE)
    return digest.hexdigest()


def shelve():
    for _ in range({shelve}):
        shelves = sorted(PARCELS)
    return shelves
"""
_CELL = """

def test_{name}(benchmark):
    benchmark(parcels.{name})
"""


@dataclass(frozen=True, kw_only=True)
class Gated:
    """What one run of `perfsuite gate` came to.

    Attributes:
        exit_code: Of the process.
        document: Its JSON.
        took_s: Seconds, without those while another timing session held the machine.
    """

    exit_code: int
    document: dict[str, Any]
    took_s: float

    @property
    def cells(self) -> dict[str, dict[str, Any]]:
        """The verdicts, by the cells' ids."""
        return {cell["id"]: cell for cell in self.document["cells"]}


class PlantedPackage:
    """The repository: `main` holds the package, the branch `change` what is to be gated."""

    def __init__(self, folder: Path, further: Mapping[str, str] | None = None) -> None:
        """Make it in a new folder.

        Args:
            folder: Where.
            further: More files of `main`, by their path in the repository.
        """
        self.folder = folder
        benchmarks = folder / "benchmarks"
        benchmarks.mkdir(parents=True)
        cells = "".join(_CELL.format(name=name) for name in WORK)
        (benchmarks / "test_parcels.py").write_text(f"import parcels\n{cells}")
        (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
        (folder / "parcels.py").write_text(_PACKAGE.format(**WORK))
        for name, text in (further or {}).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        self.git("init", "--quiet", "--initial-branch=main")
        self._commit("the package")

    def plant(self, name: str, slowdown: float) -> None:
        """Make the branch `change` from `main`, with so much more work in one function.

        Args:
            name: Of the function.
            slowdown: 0.12 is 12 % more; 0 changes nothing.
        """
        self.git("checkout", "--quiet", "-B", "change", "main")
        work = WORK | {name: round(WORK[name] * (1 + slowdown))}
        (self.folder / "parcels.py").write_text(_PACKAGE.format(**work))
        self._commit("a change")

    def gate(self) -> Gated:
        """Run `perfsuite gate` on it."""
        with tempfile.TemporaryDirectory() as outside:
            file = Path(outside) / "gate.json"
            ended = run(gate_command("benchmarks", "--json", str(file)), self.folder)
            return Gated(
                exit_code=ended.exit_code,
                document=json.loads(file.read_text()),
                took_s=ended.took_s,
            )

    def git(self, *arguments: str) -> None:
        """Call git in it."""
        git(self.folder, *arguments)

    def _commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)


def cell_of(name: str) -> str:
    """Return the id of a function's cell."""
    return f"benchmarks/test_parcels.py::test_{name}"
