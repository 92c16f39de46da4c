"""The verb `init`: a starter set for a repository; it overwrites nothing."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from perfsuite.cli.output import JsonFile, write_json
from perfsuite.errors import SettingError
from perfsuite.system.files import append_line, check_writable, write_atomically

# Where each starter file goes, from the repository's root.
_STARTERS = {
    Path("benchmarks/test_training_step.py"): "test_training_step.py",
    Path(".github/workflows/performance.yml"): "performance.yml",
}
# What pytest takes its configuration from (its documentation, "Configuration file formats").
_PYTEST_FILES = ("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
_CONFIGURATION = """\
[pytest]
testpaths = benchmarks
pythonpath = {pythonpath}
# What the gate accepts, and what it must not let pass; a test's own perf marker goes before.
perf_tolerance = 2%
perf_limit = 5%
"""
_GIT_IGNORE = Path(".gitignore")
_IGNORED = ("results/", "__pycache__/")


def init(
    folder: Annotated[Path, typer.Argument(help="The repository's root.")] = Path(),
    json_file: JsonFile = None,
) -> None:
    """Write a starter benchmark, a configuration and a workflow into a repository.

    A file that is there already stays as it is, and is named.
    """
    if not folder.is_dir():
        raise SettingError(f"{folder} is no folder; name the root of a repository")
    check_writable(json_file)
    written, kept = write_starters(folder)
    for path in written:
        typer.echo(f"wrote {path}")
    for path in kept:
        typer.echo(f"kept  {path}, which was there already")
    typer.echo("next: pytest benchmarks --perf-matrix=smoke")
    write_json(json_file, written=written, kept=kept)


def write_starters(folder: Path) -> tuple[list[str], list[str]]:
    """Return which files were written, and which were there already, from the folder.

    Raises:
        WriteError: A file cannot be written.
    """
    written, kept = [], []
    for path, name in _STARTERS.items():
        if (folder / path).exists():
            kept.append(str(path))
            continue
        write_atomically(folder / path, (files("perfsuite.cli.starter") / name).read_bytes())
        written.append(str(path))
    configured = next((name for name in _PYTEST_FILES if (folder / name).exists()), None)
    if configured is None:
        # What the gate's arms find in any case (`import_roots`): so do other sessions.
        pythonpath = "src ." if (folder / "src").is_dir() else "."
        text = _CONFIGURATION.format(pythonpath=pythonpath)
        write_atomically(folder / "pytest.ini", text.encode())
        written.append("pytest.ini")
    else:
        kept.append(configured)
    ignored = _lines(folder / _GIT_IGNORE)
    if missing := [line for line in _IGNORED if line not in ignored]:
        append_line(folder / _GIT_IGNORE, "\n".join(missing).encode())
        written.append(str(_GIT_IGNORE))
    return written, kept


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.is_file() else []
