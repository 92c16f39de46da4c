"""What the processes of a launch loaded and started: the gate's end of `load_log`."""

from __future__ import annotations

import ast
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What the processes of a launch have loaded and started so far; absolute paths.

    Attributes:
        files: Python sources, compiled code, and those files that a launch is told to watch.
        programs: What was started.
        silent: Commands whose process may have run Python and could not log what it loaded.
    """

    files: frozenset[str] = frozenset()
    programs: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()


NOTHING: Final = Loaded()


class LoadLogReader:
    """Reads a launch's log while its processes write it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._num_bytes = 0
        self._texts: dict[str, set[str]] = {"file": set(), "program": set(), "silent": set()}
        self._processes: set[int] = set()

    def read(self) -> Loaded:
        """Return what is loaded by now; what living processes have mapped is looked up."""
        with contextlib.suppress(FileNotFoundError), self._log.open("rb") as opened:
            opened.seek(self._num_bytes)
            *lines, _ = opened.read().split(b"\n")
            self._num_bytes += sum(len(line) + 1 for line in lines)
            for number, kind, text in (line.decode().split(" ", 2) for line in lines):
                self._processes.add(int(number))
                if kind in self._texts:
                    self._texts[kind].add(ast.literal_eval(text))
        for process in list(self._processes):
            try:
                self._texts["file"] |= _mapped_libraries(process)
            except OSError:  # it has ended
                self._processes.remove(process)
        return Loaded(
            files=frozenset(self._texts["file"]),
            programs=frozenset(self._texts["program"]),
            silent=frozenset(self._texts["silent"]),
        )


def _mapped_libraries(process: int) -> set[str]:
    """The files whose code a process has in its memory (proc(5)), programs included."""
    maps = Path(f"/proc/{process}/maps").read_text(errors="surrogateescape")
    fields = (line.split(maxsplit=5) for line in maps.splitlines())
    return {
        place[5].removesuffix(" (deleted)")
        for place in fields
        if len(place) == 6 and "x" in place[1] and place[5].startswith("/")
    }
