"""Three gates side by side: same machine, same cells, same slowdowns.

python benchmarks/peers/compare_gates.py --sessions 10

Each session gates a branch of a small package twice: once it changes nothing, once it plants 5 %
more work in one of four functions. README.md beside this file says what each gate is asked.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from planted_package import WORK, PlantedPackage

from perfsuite.system.timing_lock import TimingLock

# benchmatrix judges matrices of its own making, so it gets the same calls as one.
_MATRIX = """
import parcels
from benchmatrix import BenchmarkCase, make_benchmark_test

NAMES = "weigh", "route", "seal", "shelve"
test_matrix = make_benchmark_test(
    {name: lambda _, name=name: getattr(parcels, name)() for name in NAMES},
    [BenchmarkCase.from_values("all", None)],
    metrics=["single_call_latency"],
)
"""
# The limit that its users take, and what ours accepts: a whole interval beyond it is a regression.
_THRESHOLDS = ("5%", "2%")
# pytest with the plugins of the peers alone.
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:perfsuite", "--benchmark-only")
# For another timing session on this machine to end.
_WAIT_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What one gate came to in one session.

    Attributes:
        blamed: Functions that it calls slower.
        undecided: Functions that it leaves open.
        num_launches: Timed runs of the four cells.
        took_s: Without the time while another session held the machine.
    """

    blamed: frozenset[str]
    undecided: frozenset[str]
    num_launches: int
    took_s: float


# One peer can be read in several ways: what it came to, by the name of the row.
Gate = Callable[[PlantedPackage, Path], dict[str, Judged]]


def main(
    sessions: Annotated[int, typer.Option(min=1, help="Of each branch, for each gate.")] = 10,
    slowdown: Annotated[float, typer.Option(min=0, help="0.05 is 5 % more work.")] = 0.05,
    gates: Annotated[list[str] | None, typer.Option("--gate", help="Only these.")] = None,
) -> None:
    """Run the sessions and print the table as Markdown."""
    chosen = gates or list(_GATES)
    if unknown := [name for name in chosen if name not in _GATES]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(_GATES)}")
    if "benchmatrix" in chosen and importlib.util.find_spec("benchmatrix") is None:
        typer.echo("benchmatrix is left out: pip install benchmatrix", err=True)
        chosen.remove("benchmatrix")
    names = list(WORK)
    innocent: dict[str, list[Judged]] = defaultdict(list)
    planted: dict[str, list[tuple[str, Judged]]] = defaultdict(list)
    for number in range(sessions):
        name = names[number % len(names)]
        for row, judged in _judge_all(chosen, name, 0.0):
            innocent[row].append(judged)
        for row, judged in _judge_all(chosen, name, slowdown):
            planted[row].append((name, judged))
    typer.echo(
        f"\n| gate | identical: false alarms | identical: undecided | +{slowdown:.0%}: missed "
        f"| +{slowdown:.0%}: undecided | +{slowdown:.0%}: another blamed | launches | seconds |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for row in innocent:
        typer.echo(_show(row, innocent[row], planted[row]))


def _judge_all(gates: Iterable[str], name: str, slowdown: float) -> Iterator[tuple[str, Judged]]:
    """Give what each gate comes to, in a repository of its own."""
    for gate in gates:
        with tempfile.TemporaryDirectory() as folder:
            package = PlantedPackage(Path(folder) / "parcels", {"matrix/test_matrix.py": _MATRIX})
            base = Path(folder) / "base"
            package.git("worktree", "add", "--quiet", "--detach", str(base), "main")
            package.plant(name, slowdown)
            found = _GATES[gate](package, base)
        for row, judged in found.items():
            typer.echo(
                f"+{slowdown:.0%} in {name}, {row}: blames {sorted(judged.blamed)}, "
                f"undecided {sorted(judged.undecided)}, {judged.took_s:.0f} s",
                err=True,
            )
            yield row, judged


def _show(row: str, innocent: Sequence[Judged], planted: Sequence[tuple[str, Judged]]) -> str:
    """One line of the table; sessions, but for the last two columns."""
    every = [*innocent, *(judged for _, judged in planted)]
    figures = [
        sum(bool(judged.blamed) for judged in innocent),
        sum(bool(judged.undecided) for judged in innocent),
        sum(name not in judged.blamed | judged.undecided for name, judged in planted),
        sum(name in judged.undecided for name, judged in planted),
        sum(bool(judged.blamed - {name}) for name, judged in planted),
    ]
    launches = sum(judged.num_launches for judged in every) / len(every)
    took_s = sum(judged.took_s for judged in every) / len(every)
    shown = " | ".join(f"{figure} of {len(innocent)}" for figure in figures)
    return f"| {row} | {shown} | {launches:.0f} | {took_s:.0f} |"


def judge_by_pytest_benchmark(package: PlantedPackage, base: Path) -> dict[str, Judged]:
    """Save a run of the base, and compare one of head with it."""
    command = [*_PYTEST, "benchmarks", f"--benchmark-storage=file://{base.parent / 'runs'}"]
    with _lock():
        began_s = time.monotonic()
        _call([*command, "--benchmark-save=base"], base, codes=(0,))
        compared = [*command, "--benchmark-compare", "--benchmark-compare-fail=mean:5%"]
        done = _call(compared, package.folder, codes=(0, 1))
        took_s = time.monotonic() - began_s
    # "<TAB>test_weigh (0001_base) - Field 'mean' has failed …", in the log
    blamed = re.findall(r"^\ttest_(\w+) .* - Field ", done.stderr, re.MULTILINE)
    if bool(blamed) != bool(done.returncode):
        sys.exit(f"pytest-benchmark ended in {done.returncode} and blamed {blamed}")
    return {
        "pytest-benchmark, mean:5%": Judged(
            blamed=frozenset(blamed), undecided=frozenset(), num_launches=2, took_s=took_s
        )
    }


def judge_by_benchmatrix(package: PlantedPackage, base: Path) -> dict[str, Judged]:
    """Collect its paired runs, as many as it asks for, and compare them at either threshold."""
    matrix = [sys.executable, "-m", "benchmatrix"]
    runs = base.parent / "pairs"
    where = ["--output", str(runs), "--baseline-cwd", str(base)]
    where += ["--candidate-cwd", str(package.folder)]
    command = [*_PYTEST, "matrix"]
    with _lock():
        began_s = time.monotonic()
        collect = [*matrix, "collect-paired", *where, "--", *command, ":::", *command]
        _call(collect, package.folder, codes=(0,))
        took_s = time.monotonic() - began_s
    found = {}
    for threshold in _THRESHOLDS:
        compare = [*matrix, "compare", str(runs), "--paired", "--threshold", threshold]
        compare += ["--fail-on-regression", "--format", "json"]
        report = json.loads(_call(compare, package.folder, codes=(0, 1)).stdout)
        by_word: dict[str, set[str]] = defaultdict(set)
        for cell in report["comparisons"]:
            by_word[cell["regression"]].add(cell["implementation_name"])
        found[f"benchmatrix, pairs, {threshold}"] = Judged(
            blamed=frozenset(by_word["regressed"]),
            undecided=frozenset(by_word["inconclusive"] | by_word["not_comparable"]),
            num_launches=len(list(runs.glob("pair-*.json"))),
            took_s=took_s,
        )
    return found


def judge_by_perfsuite(package: PlantedPackage, base: Path) -> dict[str, Judged]:
    """Run `perfsuite gate`, which makes its own tree of the base."""
    gated = package.gate()
    by_word: dict[str, set[str]] = defaultdict(set)
    for cell, verdict in gated.cells.items():
        by_word[verdict["word"]].add(cell.rpartition("test_")[2])
    failed = by_word.pop("FAIL", set())
    fine = by_word.pop("PASS", set()) | by_word.pop("IMPROVED", set())
    return {
        "perfsuite gate": Judged(
            blamed=frozenset(failed),
            undecided=frozenset(WORK) - failed - fine,
            num_launches=2 * gated.document["pairs"],
            took_s=gated.took_s,
        )
    }


_GATES: dict[str, Gate] = {
    "pytest-benchmark": judge_by_pytest_benchmark,
    "benchmatrix": judge_by_benchmatrix,
    "perfsuite": judge_by_perfsuite,
}


def _lock() -> TimingLock:
    """The machine, which `perfsuite gate` holds by itself."""
    return TimingLock(wait_s=_WAIT_S, say=lambda text: typer.echo(text, err=True))


def _call(
    command: Sequence[str], folder: Path, *, codes: Sequence[int]
) -> subprocess.CompletedProcess[str]:
    """Return what a command came to.

    Raises:
        SystemExit: It ended in none of the codes; says what it said.
    """
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode not in codes:
        sys.exit(f"{' '.join(command)} ended in {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


if __name__ == "__main__":
    typer.run(main)
