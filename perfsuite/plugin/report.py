"""The pytest plugin that `perfsuite run` adds: a report of what the session has just written."""

import subprocess
import sys

import pytest

from perfsuite.plugin.session.saving import WRITTEN_RUN
from perfsuite.report.formats.folder import PAGE

# A process of its own, so that no fault of the report changes the session's exit code.
_COMMAND = (sys.executable, "-c", "from perfsuite.cli.app import main; main()", "report")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Write the report beside the run, and say in one line where, or why not."""
    written = config.stash.get(WRITTEN_RUN, None)
    if written is None:
        return
    path, tolerance, limit = written
    folder = path.parent / "report"
    bounds = (f"--tolerance={tolerance!r}", f"--limit={limit!r}")
    command = [*_COMMAND, str(path), "--html", str(folder), *bounds]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode == 0:
        terminalreporter.write_line(f"report: {folder / PAGE}")
    else:
        reason = (ended.stderr.strip() or f"exit code {ended.returncode}").splitlines()[-1]
        terminalreporter.write_line(f"no report: {reason.removeprefix('perfsuite: ')}", red=True)
