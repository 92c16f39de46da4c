"""What the processes of a launch loaded and started: the gate's end of `load_log`."""

import ast
import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from perfsuite.gate.arms.arm import Loaded
from perfsuite.gate.arms.launched.load_log import LOG, SHARED_FOLDERS, is_python

# A Python process that has computed for so many seconds has begun its log, if it has one.
_STARTED_S = 0.2
# The kind of line that fills a field of `Loaded`.
_KIND = {"old": "old", "made": "made", "programs": "program", "silent": "silent", "shells": "shell"}


class LoadLogReader:
    """Reads a launch's `log`, which the first process begins, while its processes write it.

    Data that lie in `folders`, the first of which is the launch's own tree, count as loaded where a
    process holds them: what C++ or Rust opens is in no log.
    """

    def __init__(self, log: Path, folders: Iterable[Path] = ()) -> None:
        self.log = log
        self._folders = tuple(f"{folder}/" for folder in folders)
        self._began_s = log.parent.stat().st_ctime
        self._num_bytes = 0
        self._texts: dict[str, set[str]] = {kind: set() for kind in _KIND.values()}
        self._files: defaultdict[int, set[str]] = defaultdict(set)
        self._parents: dict[int, int] = {}
        self._processes: set[int] = set()

    def read(self) -> Loaded:
        """Return what is loaded by now."""
        self.look()
        recent = self._recent()
        self._processes = {one for one in self._processes if psutil.pid_exists(one)}
        return Loaded(
            files=frozenset().union(*self._files.values()),
            recent=frozenset().union(*(self._files[process] for process in recent)),
            **{name: frozenset(self._texts[kind]) for name, kind in _KIND.items()},
        )

    def look(self) -> None:
        """Take what is logged by now, and what living processes have mapped and open."""
        self._take_lines()
        for process in self._processes:
            with contextlib.suppress(OSError):  # it has ended
                self._files[process] |= (held := set(_held_files(process, self._folders)))
                self._texts["old"] |= {file for file in held if self._is_old(file)}
        with contextlib.suppress(psutil.NoSuchProcess, StopIteration):
            for child in psutil.Process(next(iter(self._parents))).children(recursive=True):
                self._note_silent(child)

    def _take_lines(self) -> None:
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

    def _is_old(self, file: str) -> bool:
        is_own = file.startswith(self._folders[:1]) and Path(file).exists()
        return is_own and Path(file).stat().st_ctime < self._began_s

    def _note_silent(self, child: psutil.Process) -> None:
        """Keep the command of a process that runs Python, and has not begun its log."""
        with contextlib.suppress(psutil.Error, OSError):  # it has ended, or is another user's
            variables = child.environ()
            # What a script executes in its own place keeps the number. A title may hide variables.
            roots = variables.get("PYTHONPATH", "").split(os.pathsep)
            is_cut_off = LOG in variables and str(self.log.parent) not in roots
            has_begun = child.pid in self._parents and not is_cut_off
            if is_python(child.exe()) and not has_begun and sum(child.cpu_times()[:2]) > _STARTED_S:
                command, at = " ".join(" ".join(child.cmdline()).split()), child.cwd()
                is_elsewhere = self._folders and not f"{at}/".startswith(self._folders[0])
                self._texts["silent"].add(f"{command}, in {at}" if is_elsewhere else command)

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
                if (process := self._parents.get(process, 0)) not in self._parents:
                    return list(self._files)
        return found


def _held_files(process: int, folders: tuple[str, ...]) -> Iterator[str]:
    """The code that a process has mapped, and what of the folders it may read (proc(5))."""
    own = Path(f"/proc/{process}")
    for line in (own / "maps").read_text(errors="surrogateescape").splitlines():
        place = line.split(maxsplit=5)
        file = place[5].removesuffix(" (deleted)") if len(place) == 6 else ""
        is_code = file.startswith("/") and "x" in place[1]
        if is_code or file.startswith((*folders, *SHARED_FOLDERS)):
            yield file
    for link in (own / "fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed
            file = str(link.readlink())
            if file.startswith(folders) and Path(file).is_file():
                _, flags = (own / "fdinfo" / link.name).read_text().split("flags:")
                if int(flags.split()[0], 8) & os.O_ACCMODE != os.O_WRONLY:
                    yield file
