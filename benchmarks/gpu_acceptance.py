"""Whether perfsuite keeps its promises on a machine with a GPU: a table, one row for each check.

python benchmarks/gpu_acceptance.py --part 1 --budget 540 --out acceptance
python benchmarks/gpu_acceptance.py --dry-run

Each check runs in a process of its own and writes what it finds as it finds it, so that one that
crashes, hangs or is killed costs its own row. `acceptance.json` in the folder of `--out` is written
anew after each check. A figure is "ok", "FAIL", or "told": nobody can predict it. Without a GPU
`--dry-run` runs the checks that have a stand-in against it, and skips the others. Ends in 1 where a
row is FAIL.

A check starts where at least half of the time that it takes is left of the budget, since its
figures are kept one by one. At the end of the budget it is told to end, and its row is CUT unless a
figure is FAIL. SIGTERM ends the script and the check that runs.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from perfsuite.system.signals import ends_on_signals, uninterrupted

# A check that takes so many times what was estimated does not end.
PATIENCE = 3.0
# What a check has to end what it has started, and to keep what that has found.
GRACE_S = 10.0
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, kw_only=True)
class Check:
    """One row.

    Attributes:
        seconds: What it takes on an H100, about.
        must: What it must show.
        run: "module:function" of a function that takes a `Figures`.
        stands_in: Whether the function takes a stand-in for the GPU.
    """

    number: int
    name: str
    part: int
    seconds: float
    must: str
    run: str
    stands_in: bool = False


# Those of a step's time are in gpu_checks.
_MODULES = {
    **dict.fromkeys(
        (
            "stack",
            "plain-suite",
            "memory",
            "two-arms-memory",
            "counts",
            "sensors",
            "precision",
            "faults",
        ),
        "gpu_surroundings",
    ),
    **dict.fromkeys(("noise-floor", "verify", "planted"), "gpu_numerics"),
    **dict.fromkeys(("nccl-one", "gloo-shared-gpu"), "gpu_groups"),
    **dict.fromkeys(("matrix", "turns", "a-a", "profile", "baseline"), "gpu_sessions"),
    **dict.fromkeys(("compile", "loader", "scale", "affinity"), "gpu_training"),
}


def _stood_in(number: int, name: str, part: int, seconds: float, must: str) -> Check:
    function = f"{_MODULES.get(name, 'gpu_checks')}:{name.replace('-', '_')}"
    return Check(
        number=number,
        name=name,
        part=part,
        seconds=seconds,
        must=must,
        run=function,
        stands_in=True,
    )


def _on_gpu(number: int, name: str, part: int, seconds: float, must: str) -> Check:
    return dataclasses.replace(_stood_in(number, name, part, seconds, must), stands_in=False)


CHECKS = (
    _stood_in(0, "stack", 1, 20, "ranks are forked without CUDA, NVML answers or says why not"),
    _on_gpu(1, "noise-floor", 1, 60, "0 with deterministic kernels; told otherwise"),
    _on_gpu(2, "verify", 1, 160, "no mismatch; what the shares of the limits are is told"),
    _on_gpu(3, "planted", 1, 30, "every planted mistake is a mismatch"),
    _stood_in(4, "overlap", 1, 45, "within 2 % of 200 steps without a synchronisation"),
    _stood_in(5, "hidden-sync", 1, 15, "the slowdown of 200 steps by one .item(), within 20 %"),
    _stood_in(6, "stages", 1, 10, "each planted stage within 3 %, other is the copy"),
    _stood_in(7, "overhead", 1, 15, "0.98 to 1.02 of the loop by hand"),
    _on_gpu(8, "matrix", 1, 150, "each cell passed, or not exercised for the number of GPUs"),
    _stood_in(9, "clocks", 2, 10, "the first round within 1 % of the last"),
    _on_gpu(10, "turns", 2, 100, "ratio 1.00 +- 0.01 beside another arm"),
    _on_gpu(11, "a-a", 2, 260, "no FAIL of identical code"),
    _stood_in(12, "planted-speed", 2, 10, "5 % planted is 5 % within 0.3 %"),
    _stood_in(13, "plain-suite", 2, 10, "the time of a benchmark that does not synchronise"),
    _stood_in(14, "memory", 2, 10, "the same peak 8 times, and a leak of 1 MiB found"),
    _stood_in(15, "two-arms-memory", 2, 10, "every text of a full GPU is recognised"),
    _stood_in(16, "counts", 2, 15, "launches repeat, and are never 0"),
    _stood_in(17, "sensors", 2, 10, "our own load of before is no other process"),
    _stood_in(18, "precision", 3, 15, "fp32 is no TF32, whatever a model file sets"),
    _on_gpu(19, "nccl-one", 3, 40, "hooks, FSDP and ZeRO of one rank leave nothing"),
    _on_gpu(20, "gloo-shared-gpu", 3, 40, "two ranks on one GPU equal one process"),
    _on_gpu(21, "profile", 3, 25, "stages add up within 1 %"),
    _on_gpu(22, "compile", 3, 100, "no recompilation in a round, memory is there"),
    _on_gpu(23, "loader", 3, 35, "copies overlap with pinned memory and non_blocking alone"),
    _on_gpu(24, "scale", 3, 330, "verified in 120 s, with progress"),
    _on_gpu(25, "affinity", 3, 15, "told"),
    _stood_in(26, "faults", 3, 55, "one line each, the rank that was at fault, the next cell runs"),
    _on_gpu(27, "baseline", 3, 130, "run.json, its report and calibration.json"),
)


class Figures:
    """What a check finds, figure by figure, on the disk at once."""

    def __init__(self, path: Path, *, dry: bool) -> None:
        self._path = path
        self._dry = dry

    @cached_property
    def device(self) -> Any:
        """The GPU, or what stands in for it (`gpu_devices`)."""
        devices = importlib.import_module("gpu_devices")
        return devices.StandIn() if self._dry else devices.Gpu()

    def told(self, what: str, found: object) -> None:
        """Keep a figure that nobody can predict."""
        self._keep(what, found, "told")

    def must(self, what: str, found: object, is_right: bool) -> None:
        """Keep a figure that is right or wrong."""
        self._keep(what, found, "ok" if is_right else "FAIL")

    def near(self, what: str, found: float, expected: float, within: float) -> None:
        """Keep a number that must be another one, within a share of it."""
        is_right = math.isfinite(found) and abs(found - expected) <= within * abs(expected)
        self.must(what, f"{found:.5g} for {expected:.5g}", is_right)

    def _keep(self, what: str, found: object, verdict: str) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"what": what, "found": str(found), "verdict": verdict}) + "\n")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the table."""

    number: int
    check: str
    must: str
    found: str
    verdict: str
    seconds: float

    def __str__(self) -> str:
        """Return the line."""
        return (
            f"{self.number:>2} {self.check:<16} {self.verdict:<8}{self.seconds:>6.1f} s  "
            f"{self.found}  [{self.must}]"
        )


def run_check(check: Check, folder: Path, *, dry: bool, left_s: float) -> Row:
    """Run a check in a process of its own, and return its row whatever becomes of it."""
    figures = folder / f"{check.name}.jsonl"
    figures.unlink(missing_ok=True)
    began_s = time.monotonic()
    most_s = min(PATIENCE * check.seconds, left_s)
    command = [sys.executable, __file__, "--child", check.run, "--out", str(figures)]
    child = subprocess.Popen(
        [*command, "--dry-run"] if dry else command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        stdout=(folder / f"{check.name}.log").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    with ExitStack() as ending:
        ending.callback(_end, child)
        try:
            code: int | str = child.wait(most_s)
        except subprocess.TimeoutExpired:
            code = f"it did not end within {most_s:.0f} s"
    is_cut = isinstance(code, str) and most_s == left_s
    found = (
        [json.loads(line) for line in figures.read_text().splitlines()] if figures.exists() else []
    )
    verdicts = {one["verdict"] for one in found}
    texts = [f"{one['what']}: {one['found']}" for one in found if one["verdict"] != "ok"]
    if code != 0:
        verdicts.add("CUT" if is_cut else "FAIL")
        texts.append(code if isinstance(code, str) else _ended(code, folder / f"{check.name}.log"))
        if is_cut:
            num_right = len([one for one in found if one["verdict"] == "ok"])
            texts.append(f"the budget was spent, and {num_right} figures were right")
    elif not found:
        verdicts, texts = {"FAIL"}, ["it found nothing"]
    verdict = next(one for one in ("FAIL", "CUT", "ok", "told") if one in verdicts)
    if not texts:
        texts = [f"{len(found)} figures are right" if len(found) > 1 else found[0]["found"]]
    return _row(check, "; ".join(texts), verdict, time.monotonic() - began_s)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child and all that it started, after a signal too."""
    with uninterrupted():
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _ended(code: int, log: Path) -> str:
    last = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"ended with {how}: {last[-1] if last else 'it said nothing'}"


def _row(check: Check, found: str, verdict: str, seconds: float = 0.0) -> Row:
    return Row(
        number=check.number,
        check=check.name,
        must=check.must,
        found=found,
        verdict=verdict,
        seconds=round(seconds, 1),
    )


def run_checks(
    checks: Sequence[Check], folder: Path, *, dry: bool, budget_s: float, has_gpu: bool
) -> Iterator[Row]:
    """Yield the row of each check, those of which less than half fits into the budget skipped."""
    began_s = time.monotonic()
    for check in checks:
        left_s = budget_s - (time.monotonic() - began_s)
        if dry and not check.stands_in:
            yield _row(check, "needs a GPU: nothing can stand in for it", "SKIPPED")
        elif not dry and not has_gpu:
            yield _row(check, "no GPU is visible; --dry-run uses a stand-in", "SKIPPED")
        elif not dry and check.seconds / 2 > left_s:
            yield _row(check, f"{left_s:.0f} s are left of the budget", "SKIPPED")
        else:
            yield run_check(check, folder, dry=dry, left_s=math.inf if dry else left_s)


def run_child(run: str, figures: Figures) -> None:
    """Run one check in this process, which a signal ends by an exception."""
    module, _, name = run.partition(":")
    with ends_on_signals():
        function: Callable[[Figures], None] = getattr(importlib.import_module(module), name)
        function(figures)


def main(
    part: Annotated[
        int | None, typer.Option(min=1, max=3, help="One of three; all without.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Checks by name.")] = None,
    budget: Annotated[float, typer.Option(help="Seconds for all of them.")] = 540.0,
    out: Annotated[Path, typer.Option(help="Folder of acceptance.json.")] = Path("acceptance"),
    dry_run: Annotated[bool, typer.Option(help="Use stand-ins for the GPU.")] = False,
    child: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the checks, and show a table."""
    if child is not None:
        run_child(child, Figures(out, dry=dry_run))
        return
    from perfsuite.system.files import write_atomically
    from perfsuite.system.gpus import visible_gpus

    if unknown := {*(only or ())}.difference(check.name for check in CHECKS):
        raise typer.BadParameter(f"{min(unknown)!r} is no check", param_hint="--only")
    folder = out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    checks = [
        check for check in CHECKS if part in (None, check.part) and (not only or check.name in only)
    ]
    rows: list[Row] = []
    has_gpu = bool(visible_gpus())
    with ends_on_signals():
        for row in run_checks(checks, folder, dry=dry_run, budget_s=budget, has_gpu=has_gpu):
            rows.append(row)
            print(row, flush=True)
            table = json.dumps([vars(one) for one in rows], indent=1)
            write_atomically(folder / "acceptance.json", table.encode())
    # Without a GPU nothing was checked.
    if any(row.verdict == "FAIL" for row in rows) or not (dry_run or has_gpu):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
