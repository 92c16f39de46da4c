"""What reaches the terminal: lines past the capture, and the output of ranks that may be silent."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfsuite.errors import ExitCode, PerfsuiteError, SettingError

# The characters of our tables that a terminal may lack.
_ASCII = str.maketrans({"─": "-", "±": "+-"})


def legible(text: str) -> str:
    """Return a text in ASCII where the terminal has no more."""
    try:
        text.encode(getattr(sys.__stdout__, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return text.translate(_ASCII)
    return text


def say(config: pytest.Config, text: str) -> None:
    """Show a line at once, past whatever captures the output of a test."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    if reporter is None:
        return
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        reporter.ensure_newline()
        reporter.write_line(legible(text))
        reporter.flush()


@contextlib.contextmanager
def ends_on_mistakes() -> Iterator[None]:
    """End pytest in 4 for a setting that is not allowed, in 12 for what else cannot be done."""
    try:
        yield
    except SettingError as error:
        raise pytest.UsageError(str(error)) from error
    except PerfsuiteError as error:
        pytest.exit(f"perfsuite: {error}", returncode=ExitCode.REFUSED)


class _HeldStream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._held = io.StringIO()
        self.write: Callable[[str], int] = self._held.write

    def release(self, stream: Any | None) -> None:
        """Write what was kept, and all that comes, to its own stream or to another one."""
        self._stream = stream or self._stream
        held, self._held = self._held, io.StringIO()
        self.write = self._stream.write
        self.write(held.getvalue())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class HeldOutput:
    """Both streams of a rank under torchrun: only the first prints, where the session is ours."""

    def __init__(self) -> None:
        self.stderr = sys.stderr
        self._streams = _HeldStream(sys.stdout), _HeldStream(sys.stderr)
        # pytest's reporter takes these when it is made, after this.
        sys.stdout, sys.stderr = self._streams

    def show(self, *, nowhere: bool = False) -> None:
        """Print what was held back, and all that comes; or none of it."""
        other = Path(os.devnull).open("w") if nowhere else None  # noqa: SIM115
        for stream in self._streams:
            stream.release(other)
