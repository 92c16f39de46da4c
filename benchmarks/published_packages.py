"""Gates published packages by their own pytest-benchmark suites, as they are in their sources.

python benchmarks/published_packages.py --out FOLDER

For each package: a twin of the base that differs by a comment must end in 0, and a function that a
cell calls, made slower by 12 % of the cell, in 10 with that function named. Of the package with an
extension: one rebuilt for each tree, 30 % slower, must end in 10, and one that is installed where
both arms run in 12. Sources come from the package index (`pip download`). Each finished session is
a line of FOLDER/published_packages.jsonl, and a second start goes on. Exits with 1 where one of
them is another.
"""

from __future__ import annotations

import json
import statistics
import sys
import sysconfig
import tarfile
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from session_log import SessionLog, commit, gate_command, git, must, run, verdicts

BUILD = "python setup.py build_ext --inplace"
PYTHON_LOOP = "for _ in range({count}): pass"
CPP_LOOP = "for (volatile long i = 0; i < {count}; i++) {{}}"
TRIAL_COUNT = 20_000
CODES = {"twin": 0, "slower": 10, "shared": 12}


@dataclass(frozen=True, kw_only=True)
class Package:
    """A published package: some cells of its suite, and a function that one of them calls.

    Attributes:
        after: The line of the function's file after which a loop goes.
        function: As the gate names it; None where it is compiled.
    """

    requirement: str
    cells: tuple[str, str]
    slowed: str
    file: str
    after: str
    function: str | None
    slower: float = 0.12


PACKAGES = (
    Package(
        requirement="fastjsonschema==2.22.3",
        cells=("tests/benchmarks/test_benchmark.py", "bad_values"),
        slowed="test_benchmark_bad_values[value0]",
        file="fastjsonschema/exceptions.py",
        after="        super().__init__(message)\n        self.message = message\n",
        function="exceptions.py:__init__",
    ),
    Package(
        requirement="bidict==0.21.4",
        cells=("tests/test_benchmark.py", "withdup"),
        slowed="test_update_withdup[bidict]",
        file="bidict/_base.py",
        after="        # args[0] may be a generator that yields many items, so process input in a "
        "single pass.\n",
        function="_base.py:_update",
    ),
    Package(
        requirement="python-rapidjson==1.25",
        cells=("benchmarks/test_benchmark.py", "test_dumps and complex"),
        slowed="test_dumps[rapidjson_f-complex object]",
        file="rapidjson.cpp",
        after="    /* Converts a Python object to a JSON-encoded string. */\n",
        function=None,
        slower=0.3,
    ),
)


def main(
    out: Annotated[Path, typer.Option(help="Folder of what is finished, and of the sources.")],
    sessions: Annotated[int, typer.Option(min=0, help="Of each case.")] = 1,
) -> None:
    """Run the sessions that are missing, and say what all of them came to."""
    out = out.resolve()
    log = SessionLog(out, "published_packages")
    for number in range(sessions):
        for package in PACKAGES:
            for case in CODES if package.function is None else ("twin", "slower"):
                done = [(one["package"], one["case"]) for one in log.sessions]
                if done.count((package.requirement, case)) <= number:
                    with tempfile.TemporaryDirectory(prefix="published-") as folder:
                        typer.echo(_run_session(package, case, Path(folder), out, log))
    functions = {package.requirement: package.function or "" for package in PACKAGES}
    wrong = []
    for one in log.sessions:
        slowed = one["cells"].get(one["slowed"], {})
        failed = [name for name, cell in one["cells"].items() if cell["word"] == "FAIL"]
        is_right = one["exit_code"] == CODES[one["case"]] and not one["has_traceback"]
        if one["case"] == "slower":  # others of the suite may call the function too
            named = json.dumps(slowed.get("explanation"))
            is_right &= one["slowed"] in failed and functions[one["package"]] in named
        wrong += [] if is_right else [f"not as promised: {one['output']}"]
        typer.echo(
            f"{one['package']} {one['case']}: {one['exit_code']}, {len(failed)} FAIL of "
            f"{len(one['cells'])}, ratio {slowed.get('ratio')}, {slowed.get('pairs')} pairs, "
            f"{one['took_s']} s"
        )
    hosts = sorted({session["host"] for session in log.sessions})
    typer.echo("\n".join([*hosts, *(wrong or ["as promised"])]))
    sys.exit(bool(wrong))


def _run_session(package: Package, case: str, folder: Path, out: Path, log: SessionLog) -> str:
    """Make what a case needs, gate it, and write it down."""
    root = _unpack(package, folder, out / "sources")
    python = _interpreter(folder / "venv")
    build = [python, *BUILD.split()[1:]] if package.function is None else []
    options = ["--base-build", BUILD] if build else []
    if case == "twin":
        comment = "// a comment\n" if build else "# a comment\n"
        (root / package.file).write_text((root / package.file).read_text() + comment)
        if build:
            must(build, root)
    else:
        _plant(python, root, package, build)
    if case == "shared":
        offline = ("--quiet", "--no-deps", "--no-build-isolation")
        must([sys.executable, "-m", "pip", "--python", python, "install", *offline, "."], root)
        for built in root.glob("*.so"):
            built.unlink()
        options = []
    path, select = package.cells
    result = folder / "gate.json"
    command = gate_command(path, "-k", select, "--json", str(result), *options, python=python)
    ended = run(command, root)
    cells = verdicts(result)
    slowed = f"{path}::{package.slowed}"
    fields = {"package": package.requirement, "case": case, "slowed": slowed}
    return log.add(f"{package.requirement}-{case}", ended, cells, **fields)


def _unpack(package: Package, folder: Path, sources: Path) -> Path:
    """Return a new repository whose only commit is the package as it was published."""
    name = package.requirement.partition("==")[0].replace("-", "_")
    sources.mkdir(exist_ok=True)
    if not list(sources.glob(f"{name}-*")):
        options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:")
        must([sys.executable, "-m", "pip", "download", *options, package.requirement], sources)
    (archive,) = sources.glob(f"{name}-*")
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "sources", filter="data")
    (root,) = (folder / "sources").iterdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    ignored = "*.so\nbuild/\n__pycache__/\n*.egg-info/\nresults/\n"
    commit(root, package.requirement, {".gitignore": ignored})
    return root


def _interpreter(folder: Path) -> str:
    """Return a new interpreter with all packages of this one."""
    venv.create(folder)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    ours = sysconfig.get_path("purelib")
    (site_packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return str(folder / "bin" / "python")


def _median_s(python: str, root: Path, package: Package) -> float:
    """Seconds of the cell that is to become slower."""
    path, select = package.cells
    result = root.parent / "median.json"
    must([python, "-m", "pytest", path, "-k", select, "-q", f"--benchmark-json={result}"], root)
    cells = json.loads(result.read_text())["benchmarks"]
    (median_s,) = (cell["stats"]["median"] for cell in cells if cell["name"] == package.slowed)
    return float(median_s)


def _plant(python: str, root: Path, package: Package, build: list[str]) -> None:
    """Make the function slower by that share of its cell."""
    file = root / package.file
    text = file.read_text()
    assert package.after in text

    def write(count: int) -> float:
        loop = CPP_LOOP if package.function is None else PYTHON_LOOP
        line = package.after.splitlines()[-1]
        indent = line[: len(line) - len(line.lstrip())]
        planted = f"{package.after}{indent}{loop.format(count=count)}\n"
        file.write_text(text.replace(package.after, planted, 1))
        if build:
            must(build, root)
        return statistics.median(_median_s(python, root, package) for _ in range(3))

    without_s, with_s = write(0), write(TRIAL_COUNT)
    write(round(package.slower * without_s * TRIAL_COUNT / (with_s - without_s)))


if __name__ == "__main__":
    typer.run(main)
