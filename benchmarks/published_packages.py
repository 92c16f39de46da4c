"""Gates published packages by their own pytest-benchmark suites, as they are in their sources.

python benchmarks/published_packages.py FOLDER

For each package: a twin of the base that differs by a comment must end in 0, and a function that a
cell calls, made slower by an eighth of the cell, in 10 with that function named. Of the package
with an extension: one rebuilt for each tree, 30 % slower, must end in 10, and one that is installed
where both arms run in 12. Sources come from the package index (`pip download`). Results go to
FOLDER/published_packages.jsonl, and what is there is not run again. Exits with 1 where one of them
is another.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUILD = "python setup.py build_ext --inplace"
PYTHON_LOOP = "for _ in range({count}): pass"
CPP_LOOP = "for (volatile long i = 0; i < {count}; i++) {{}}"
TRIAL_COUNT = 20_000


@dataclass(frozen=True, kw_only=True)
class Package:
    """A published package.

    Attributes:
        requirement: As pip takes it.
        cells: The suite's file, and what selects some cells of it.
        slowed: The cell in which a function becomes slower.
        file: Where that function is.
        after: The line after which the loop goes.
        function: As the gate names it; None where it is compiled.
    """

    requirement: str
    cells: tuple[str, str]
    slowed: str
    file: str
    after: str
    function: str | None
    slower: float = 0.125


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
        slowed="test_dumps[complex object-rapidjson_f]",
        file="rapidjson.cpp",
        after="    /* Converts a Python object to a JSON-encoded string. */\n",
        function=None,
        slower=0.3,
    ),
)


def call(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def must(folder: Path, *command: str) -> str:
    """Run a command that has to succeed, and return what it printed."""
    ended = call(folder, *command)
    if ended.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed in {folder}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def unpack(package: Package, folder: Path) -> Path:
    """Return a new repository whose only commit is the package as it was published."""
    name = package.requirement.partition("==")[0].replace("-", "_")
    download = ("-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation")
    sources = folder / "sources"
    sources.mkdir(exist_ok=True)
    if not list(sources.glob(f"{name}-*")):
        must(sources, sys.executable, *download, "--no-binary", ":all:", package.requirement)
    (archive,) = sources.glob(f"{name}-*")
    top = folder / f"{name}-{time.time_ns()}"
    with tarfile.open(archive) as opened:
        opened.extractall(top, filter="data")
    (root,) = top.iterdir()
    (root / ".gitignore").write_text("*.so\nbuild/\n__pycache__/\n*.egg-info/\nresults/\n")
    must(root, "git", "init", "--quiet", "--initial-branch=main")
    must(root, "git", "add", "--all")
    author = ("-c", "user.name=published", "-c", "user.email=published@example.org")
    must(root, "git", *author, "commit", "--quiet", "--message", package.requirement)
    return root


def interpreter(folder: Path) -> str:
    """Return a new interpreter with all packages of this one."""
    venv.create(folder)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    ours = sysconfig.get_path("purelib")
    (site_packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return str(folder / "bin" / "python")


def median_s(python: str, root: Path, package: Package) -> float:
    """Seconds of the cell that is to become slower."""
    path, select = package.cells
    result = root / "results" / "median.json"
    result.parent.mkdir(exist_ok=True)
    must(root, python, "-m", "pytest", path, "-k", select, "-q", f"--benchmark-json={result}")
    cells = json.loads(result.read_text())["benchmarks"]
    (cell,) = (one for one in cells if one["name"] == package.slowed)
    return float(cell["stats"]["median"])


def plant(python: str, root: Path, package: Package, build: list[str]) -> None:
    """Make the function slower by that share of its cell."""
    file = root / package.file
    text = file.read_text()
    assert package.after in text

    def write(count: int) -> float:
        loop = CPP_LOOP if package.function is None else PYTHON_LOOP
        line = package.after.splitlines()[-1]
        indent = line[: len(line) - len(line.lstrip())]
        loop = f"{package.after}{indent}{loop.format(count=count)}\n"
        file.write_text(text.replace(package.after, loop, 1))
        if build:
            must(root, python, *build)
        return statistics.median(median_s(python, root, package) for _ in range(3))

    without_s, with_s = write(0), write(TRIAL_COUNT)
    write(round(package.slower * without_s * TRIAL_COUNT / (with_s - without_s)))


def gate(python: str, root: Path, package: Package, *options: str) -> dict[str, Any]:
    """Gate the working tree against its commit."""
    path, select = package.cells
    result = root / "results" / "gate.json"
    result.parent.mkdir(exist_ok=True)
    began_s = time.monotonic()
    script = "import perfsuite.cli; perfsuite.cli.main()"
    command = (python, "-c", script, "gate", path, "-k", select, "--json", str(result))
    ended = call(root, *command, *options)
    document = json.loads(result.read_text()) if result.exists() else {"cells": []}
    cells = {cell["id"].partition("::")[2]: cell for cell in document["cells"]}
    slowed = cells.get(package.slowed, {})
    return {
        "exit_code": ended.returncode,
        "words": sorted(cell["word"] for cell in cells.values()),
        "ratio": slowed.get("ratio"),
        "pairs": slowed.get("pairs"),
        "reason": slowed.get("reason"),
        "explanation": slowed.get("explanation"),
        "wall_s": round(time.monotonic() - began_s, 1),
        "output": ended.stdout[-2000:] + ended.stderr[-2000:],
    }


def run(package: Package, case: str, folder: Path) -> dict[str, Any]:
    """Make what a case needs, and gate it."""
    root = unpack(package, folder)
    python = interpreter(root.parent / "venv")
    build = BUILD.split()[1:] if package.function is None else []
    options = ("--base-build", BUILD) if build else ()
    if build:
        must(root, python, *build)
    if case == "twin":
        comment = "// a comment\n" if build else "# a comment\n"
        (root / package.file).write_text((root / package.file).read_text() + comment)
        if build:
            must(root, python, *build)
    else:
        plant(python, root, package, build)
    if case == "shared":
        offline = ("--quiet", "--no-deps", "--no-build-isolation")
        must(root, sys.executable, "-m", "pip", "--python", python, "install", *offline, ".")
        for built in root.glob("*.so"):
            built.unlink()
        options = ()
    return gate(python, root, package, *options)


def main() -> int:
    """Run what is missing, and say what is there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "published_packages.jsonl"
    lines = results.read_text().splitlines() if results.exists() else []
    done = {(one["package"], one["case"]): one for one in map(json.loads, lines)}
    expected = {"twin": 0, "slower": 10, "shared": 12}
    failures = 0
    for package in PACKAGES:
        for case in expected if package.function is None else ("twin", "slower"):
            key = package.requirement, case
            if key not in done:
                done[key] = {"package": key[0], "case": case, **run(package, case, folder)}
                with results.open("a") as opened:
                    opened.write(json.dumps(done[key]) + "\n")
            one = done[key]
            is_named = case != "slower" or str(package.function or "") in str(one["explanation"])
            is_right = one["exit_code"] == expected[case] and is_named
            failures += not is_right
            print(
                f"{'ok  ' if is_right else 'NOT '} {key[0]} {case}: {one['exit_code']}, "
                f"{one['words']}, ratio {one['ratio']}, {one['pairs']} pairs, {one['wall_s']} s",
                flush=True,
            )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
