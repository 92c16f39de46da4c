"""What the processes of a launch loaded and started: the gate's end of `load_log`."""

import ast
import contextlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What the processes of a launch have loaded and started so far; absolute paths."""

    # Sources, compiled code, what the launch watches, and what it read of its own tree.
    files: frozenset[str] = frozenset()
    old: frozenset[str] = frozenset()  # what it read of its own tree, written before the launch
    recent: frozenset[str] = frozenset()  # of processes since the last reading, and ancestors
    programs: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()  # commands that may have run Python but could not log it
    shells: frozenset[str] = frozenset()  # and scripts that may have started such a process


NOTHING = Loaded()


class LoadLogReader:
    """Reads a launch's `log`, which the first process begins, while its processes write it."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._num_bytes = 0
        self._texts: dict[str, set[str]] = {
            kind: set() for kind in ("old", "program", "silent", "shell")
        }
        self._files: defaultdict[int, set[str]] = defaultdict(set)
        self._parents: dict[int, int] = {}
        self._processes: set[int] = set()

    def read(self) -> Loaded:
        """Return what is loaded by now, with the libraries that living processes have mapped."""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as opened:
            opened.seek(self._num_bytes)
            *lines, _ = opened.read().split(b"\n")
            self._num_bytes += sum(len(line) + 1 for line in lines)
            for line in lines:
                try:
                    number, kind, quoted = line.decode().split(" ", 2)
                    process, text = int(number), ast.literal_eval(quoted)
                except (ValueError, SyntaxError):  # a full disk cut it
                    self._texts["silent"].add("a process whose log was cut")
                    continue
                self._processes.add(process)
                if kind == "process" and text:
                    self._parents[process] = int(text)
                elif kind in ("file", "old"):
                    self._files[process].add(text)
                if kind in self._texts:
                    self._texts[kind].add(text)
        recent = self._recent()
        for process in list(self._processes):
            try:
                self._files[process] |= _mapped_libraries(process)
            except OSError:  # it has ended
                self._processes.remove(process)
        return Loaded(
            files=frozenset().union(*self._files.values()),
            recent=frozenset().union(*(self._files[process] for process in recent)),
            old=frozenset(self._texts["old"]),
            programs=frozenset(self._texts["program"]),
            silent=frozenset(self._texts["silent"]),
            shells=frozenset(self._texts["shell"]),
        )

    def _recent(self) -> Iterable[int]:
        """The processes that lived since the last reading, and those that they were forked from.

        All processes, where a process without this log started one: a shell, or one that is gone.
        """
        found: set[int] = set()
        first = next(iter(self._parents), None)
        for process in self._processes:
            while process not in found:
                found.add(process)
                if process == first:
                    break
                process = self._parents.get(process, 0)
                if process not in self._parents:
                    return list(self._files)
        return found


def _mapped_libraries(process: int) -> set[str]:
    """The files whose code a process has mapped (proc(5)), its program included."""
    maps = Path(f"/proc/{process}/maps").read_text(errors="surrogateescape")
    return {
        place[5].removesuffix(" (deleted)")
        for place in (line.split(maxsplit=5) for line in maps.splitlines())
        if len(place) == 6 and "x" in place[1] and place[5].startswith("/")
    }
