"""The pytest plugin of `perfsuite run`: the folder that it runs, and a report on its session."""

import subprocess
import sys
from pathlib import Path

import pytest

from perfsuite.plugin.session.saving import WRITTEN_RUN
from perfsuite.report.formats.folder import PAGE


def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Run the benchmarks where no path is given: pytest would run all tests of the project."""
    known = early_config.known_args_namespace
    # What follows an option of a conftest looks like a path here.
    paths = (Path(text.partition("::")[0]) for text in known.file_or_dir)
    if not known.pyargs and not any(path.exists() for path in paths):
        for words in (args, known.file_or_dir):
            words.append("benchmarks")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the report beside the run, and say in one line where, or why not."""
    if (written := terminalreporter.config.stash.get(WRITTEN_RUN, None)) is None:
        return
    path, tolerance, limit = written
    folder = path.parent / "report"
    bounds = (f"--tolerance={tolerance!r}", f"--limit={limit!r}")
    words = ("-m", "perfsuite", "report", str(path), "--html", str(folder), *bounds)
    # A process of its own, so that no fault of the report changes the session's exit code.
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if ended.returncode == 0:
        terminalreporter.write_line(f"report: {folder / PAGE}")
    else:
        reason = (ended.stderr.strip() or f"exit code {ended.returncode}").splitlines()[-1]
        terminalreporter.write_line(f"no report: {reason.removeprefix('perfsuite: ')}", red=True)
