"""The examples, measured and gated: an identical twin, and 12 % more work in the model.

python benchmarks/example_sessions.py --out FOLDER [NAME ...]

Each session runs in a repository of the example's own. `measured` runs its benchmarks, `twin` gates
a comment in its model's file, so that pairs decide, and `slower` a model that works longer. Each
finished session is a line of FOLDER/example_sessions.jsonl, and a second start goes on. Exits with
1 where a session did not end as it must.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import timeit
import uuid
from pathlib import Path
from typing import Annotated, Any, Final

import psutil
import typer
from session_log import PYTEST, Ended, SessionLog, commit, gate_command, git, run, verdicts

EXAMPLES: Final = Path(__file__).resolve().parent.parent / "examples"
NAMES: Final = sorted(folder.parent.name for folder in EXAMPLES.glob("*/benchmarks"))
_CODES: Final = {"measured": 0, "twin": 0, "slower": 10}
_PLANTED: Final = 0.12
# Of the first model in a step: three critics and a generator; two micro-batches.
_FORWARDS: Final = {"gan": 4, "accelerate_loop": 2}
_SLOWER: Final = """

_build_model = build_model


def _work(*_):
    for _ in range({turns}):
        pass


def build_model():
    built = _build_model()
    (built[0] if isinstance(built, tuple) else built).register_forward_pre_hook(_work)
    return built
"""
# A training may print, but not in the way of the table.
_MOST_LINES: Final = 40
_PATIENCE_S: Final = 3.0
# Where torchrun and accelerate are, as in an environment that was activated.
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


class Example:
    """A copy of an example, as a repository whose owner has committed once."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder / name
        # Apart from the repository, whose files are its owner's.
        self._json = folder / "gate.json"
        unwanted = shutil.ignore_patterns("__pycache__", "results", "runs")
        shutil.copytree(EXAMPLES / name, self.folder, ignore=unwanted)
        git(self.folder, "init", "--quiet", "--initial-branch=main")
        commit(self.folder, "a training", {".gitignore": "__pycache__/\nresults/\n"})

    def run(self, kind: str, *options: str) -> tuple[Ended, dict[str, dict[str, Any]], list[str]]:
        """Run a session, a gate with these options; `slower` needs one of `measured` before it.

        Returns:
            What it ended in; its verdicts by cell; what is wrong with them.
        """
        if kind != "measured":
            self._change(kind)
        self._json.unlink(missing_ok=True)
        mark = os.environ["EXAMPLE_SESSION"] = uuid.uuid4().hex
        if kind == "measured":
            command = list(PYTEST)
        else:
            command = gate_command("benchmarks", "--json", str(self._json), *options)
        ended = run(command, self.folder)
        cells = verdicts(self._json)
        broken = {
            f"exit code {ended.exit_code}": ended.exit_code != _CODES[kind],
            "a traceback": "Traceback" in ended.output,
            "too many lines": kind == "measured" and ended.output.count("\n") > _MOST_LINES,
            "not all by pairs": {cell["by"] for cell in cells.values()} - {"pairs"} != set(),
            "no verdict": (kind == "measured") != (not cells),
            f"left files: {(left := self._left_files())}": left != "",
            f"left processes: {(alive := _alive(mark))}": alive != [],
        }
        return ended, cells, [why for why, is_so in broken.items() if is_so]

    def _change(self, kind: str) -> None:
        more = "# the same\n" if kind == "twin" else _SLOWER.format(turns=self._turns())
        text = (self.folder / "model.py").read_text() + more
        commit(self.folder, f"a {kind} model", {"model.py": text})

    def _turns(self) -> int:
        """Return how many turns of an empty loop make a step slower by 12 %.

        By the fastest of each: what else the machine does may last for one of them alone.
        """
        stored = json.loads((self.folder / "results" / "run.json").read_text())
        step_s = max(cell["stats"]["min"] for cell in stored["benchmarks"])
        turn_s = min(timeit.repeat("for _ in range(100_000): pass", number=1, repeat=20)) / 1e5
        return round(_PLANTED * step_s / turn_s / _FORWARDS.get(self.name, 1))

    def _left_files(self) -> str:
        return git(self.folder, "status", "--porcelain")


def _alive(mark: str) -> list[str]:
    """Return what still runs of a session that has ended a moment ago."""
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        alive = [
            " ".join(process.info["cmdline"] or ())
            for process in psutil.process_iter(["environ", "cmdline", "status"])
            if (process.info["environ"] or {}).get("EXAMPLE_SESSION") == mark
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ]
        if not alive or time.monotonic() > until_s:
            return alive
        time.sleep(0.1)


def main(
    out: Annotated[Path, typer.Option(help="Folder of what is finished.")],
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(NAMES)}.")] = None,
) -> None:
    """Run the sessions that are missing, and print what all of them came to."""
    if unknown := [name for name in names or () if name not in NAMES]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(NAMES)}")
    log = SessionLog(out.resolve(), "example_sessions")
    for name in names or NAMES:
        if all(_was_run(log, name, kind) for kind in _CODES):
            continue
        with tempfile.TemporaryDirectory(prefix="example-sessions-") as folder:
            example = Example(name, Path(folder))
            for kind in _CODES:
                ended, cells, wrong = example.run(kind)
                line = log.add(f"{name}-{kind}", ended, cells, example=name, kind=kind, wrong=wrong)
                typer.echo(": ".join([line, *wrong]))
    wrong = [f"{one['output']}: {why}" for one in log.sessions for why in one["wrong"]]
    typer.echo("\n".join([*sorted({one["host"] for one in log.sessions}), *wrong]))
    sys.exit(bool(wrong))


def _was_run(log: SessionLog, name: str, kind: str) -> bool:
    return any((one["example"], one["kind"]) == (name, kind) for one in log.sessions)


if __name__ == "__main__":
    typer.run(main)
