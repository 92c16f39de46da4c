"""Logs what a process of a launch loads and starts, as it happens.

It is copied into the launches as `sitecustomize`, so every Python process imports it that inherits
their environment. Each process pays for what it imports: only a little of the standard library. The
gate's end is `perfsuite.gate.arms.loaded`; decision 0023 has the kinds of its lines.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib import _bootstrap_external
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

# The file to log to, the files and folders to watch, the launch's own tree, and when it began.
LOG = "PERFSUITE_ARM_LOADED"
WATCHED = "PERFSUITE_ARM_WATCHED"
OWN = "PERFSUITE_ARM_OWN"
BEGAN = "PERFSUITE_ARM_BEGAN"
SESSION = "PERFSUITE_ARM_SESSION"  # when its session began
_FOLDER = os.path.dirname(__file__)
_READ = (".py", ".pyc", ".so", ".zip", ".egg", ".whl", ".pyz", ".md", ".rst")
SHELLS = frozenset({"sh", "ash", "bash", "dash", "zsh", "env", "nice", "nohup", "timeout"})
# What they are told is no file that they read; what a shell is told, it may hand on.
_WRITERS = SHELLS | {"rm", "mv", "touch", "tee"}
# They start no Python. What any other program starts is as unknown as what a shell does.
_TOOLS = (_WRITERS - SHELLS) | {"cat", "cp", "file", "git", "hg", "ldconfig", "lscpu", "true"}
_TOOLS |= {"as", "c++", "cc", "clang", "clang++", "g++", "gcc", "ld", "nvcc", "nvidia-smi", "uname"}
_OF_COMMANDS = "/perfsuite/ranks/command/hooked/sitecustomize.py"
_OF_METRICS = "/perfsuite/ranks/command/metrics.py"  # reads logs of earlier launches, to skip them
_MOST_CHARACTERS, _MOST_OF_COMMAND = 200, 10_000  # shown, and kept
_OF_SYSTEM = ("/dev/", "/etc/", "/proc/", "/run/", "/sys/")
SHARED_FOLDERS = ("/dev/shm/", "/run/user/")  # but for these
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class LoadLog:
    """An audit hook: the code under test meets no changed function."""

    def __init__(
        self, path: str, watched: Iterable[str], own: str, began_s: float, session_s: float
    ) -> None:
        self._path = path
        self._watched = tuple(watched)
        self._own = tuple(filter(None, [own]))
        self._began_s, self._session_s = began_s, session_s
        self._seen: set[str] = set()
        self._made: set[str] = set()
        self._moved: dict[str, str] = {}
        self._folders: dict[str, str] = {}
        self._parent = os.getppid()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Log an event of the interpreter, if it is one of those above."""
        if event == "open":
            path, flags = arguments[0], arguments[-1] if isinstance(arguments[-1], int) else 0
            # As it was: no file that is emptied as it is opened, or only written (open(2)).
            self._note_file(path, may_read=not flags & (os.O_TRUNC | os.O_WRONLY))
            if isinstance(path, (str, bytes)) and flags & os.O_ACCMODE:
                self._note_made(path)
        elif event == "ctypes.dlopen" or event == "sqlite3.connect":
            self._note_file(arguments[0])
        elif event == "import":  # of an extension; else its file is opened
            self._note_file(arguments[1])
        elif event == "os.rename" and arguments[2:] == (-1, -1):  # from the working folder
            self._note_move(*map(_text, arguments[:2]))
        elif event == "subprocess.Popen":
            self._note_start(*arguments)
        elif event == "os.exec" or event == "os.posix_spawn":
            self._note_start(arguments[0], arguments[1], None, arguments[2])
        elif event == "os.system":
            self._note_start("/bin/sh", ("sh", "-c", arguments[0]), None, None)
        elif event == "os.putenv" or event == "os.unsetenv":
            self._note_variable(*map(_text, arguments))

    def note_fork(self) -> None:
        """Remember the process that forks: it may end before its child asks."""
        self._parent = os.getpid()

    def note_process(self) -> None:
        """Log this process."""
        self.write("process", str(self._parent))

    def note_modules(self) -> None:
        """Log what is imported by now: a line of a .pth file may have done that."""
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] not in {*sys.stdlib_module_names, __name__}:
                self._note_file(getattr(module, "__file__", None))

    def write(self, kind: str, text: str = "") -> None:
        """Append a whole line, even where several processes write."""
        # A codec by name may be imported, which is logged.
        line = f"{os.getpid()} {kind} {text!a}\n".encode()
        # Opened each time, because code under test may close files that it does not know. Where the
        # launch's folder is gone, the launch is ending.
        with contextlib.suppress(OSError):
            log = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(log, line)
            finally:
                os.close(log)

    def _note_file(self, path: object, *, may_read: bool = True) -> None:
        if isinstance(path, (bytes, os.PathLike)):
            path = os.fsdecode(path)
        # Relative, a missing name may be a library that the linker finds, whose path the map has,
        # and a folder's name one in another open folder (openat(2)), as where a tree is removed.
        if not isinstance(path, str) or not (path[:1] == "/" or os.path.isfile(path)):
            return
        if (path := _from_root(path)) in self._seen:
            return
        is_read = path.endswith(_READ) or ".so." in path
        if not is_read:
            real = self._resolve(path)
            caller = sys._getframe(1).f_back  # none where the interpreter itself opens a file
            may_read &= caller is None or not caller.f_code.co_filename.endswith(_OF_METRICS)
            is_own = may_read and (self._is_own(path, real) or self._is_new(real))
            is_read = is_own or real.startswith(self._watched)
        if is_read:
            self._seen.add(path)
            named = _source_of(os.path.normpath(path))
            for file in dict.fromkeys((named, self._resolve(named))):
                old = self._find_old(file)
                self.write("old" if old else "file", old or file)

    def _note_move(self, source: str, target: str) -> None:
        """Remember where a file or folder of an earlier run is now: reading it reads that."""
        self._note_made(target)
        self._seen.discard(_from_root(target))
        place, moved = self._resolve(target), self._resolve(source)
        old = self._find_old(moved)
        self._moved = {at: was for at, was in self._moved.items() if at not in (moved, place)}
        if old:
            self._moved[place] = old

    def _is_own(self, path: str, real: str) -> bool:
        """Whether a file is there, of the launch's tree, and of no package that is installed."""
        names = (real, os.path.normpath(path))
        is_inside = any(name.startswith(self._own) for name in names)
        is_of_package = any(folder in name for folder in _PACKAGES for name in names)
        return is_inside and not is_of_package and os.path.exists(real)

    def _is_new(self, file: str) -> bool:
        """Whether a file outside of its tree and its temporary folder is of this session."""
        if _is_outside(file):
            with contextlib.suppress(OSError):
                return os.stat(file).st_mtime > self._session_s and os.path.isfile(file)
        return False

    def _note_made(self, path: object) -> None:
        made = self._resolve(_text(path))
        if made not in self._made and _is_outside(made) and not made.startswith(self._own):
            self._made.add(made)
            self.write("made", made)

    def _find_old(self, file: str) -> str | None:
        """What a file of its own tree was called before the launch; None if it is newer."""
        with contextlib.suppress(OSError):
            found = os.stat(file)
            for place, old in self._moved.items():
                # A move sets the one time, and what is written at that place both.
                if f"{file}/".startswith(f"{place}/") and found.st_mtime < self._began_s:
                    return old + file[len(place) :]
            if file.startswith(self._own) and found.st_ctime < self._began_s:
                return file
        return None

    def _resolve(self, path: str) -> str:
        """Where links lead now, which may be gone when it is looked up; folders stay as first seen.

        Code under test waits for this at each file that it opens.
        """
        folder, name = os.path.split(_from_root(path))
        if (real := self._folders.get(folder)) is None:
            real = self._folders[folder] = os.path.realpath(folder)
        found = f"{real}/{name}"
        return os.path.realpath(found) if name in ("", "..") or os.path.islink(found) else found

    def _note_start(self, program: Any, words: Any, folder: Any, environment: Any) -> None:
        given = os.environ if environment is None else environment
        variables = {_text(name): _text(given[name]) for name in given}
        words = [_text(word).partition("\0")[0] for word in words]
        found = os.path.join(_text(folder or ""), _find(_text(program), variables))
        if os.path.exists(found):
            self.write("program", os.path.normpath(_from_root(found)))
        may_read = not is_python(found) and os.path.basename(found) not in _WRITERS
        for word in words[1:]:  # any other file may be one that it writes
            told = self._resolve(os.path.join(_text(folder or ""), word.rpartition("=")[2]))
            if "/" in word and told.startswith(self._watched):
                self.write("file", told)
            elif may_read and os.path.isfile(told) and (old := self._find_old(told)):
                self.write("old", old)
        command = " ".join(" ".join(words).split())[:_MOST_OF_COMMAND]
        if script := interpreter_of(found):
            found, words = script[0], [*script, found, *words[1:]]
        runs_python = is_python(found)
        is_shell = os.path.basename(found) in SHELLS or (bool(script) and not runs_python)
        if (runs_python or is_shell) and not self._is_inherited(words, variables):
            self.write("silent", command[:_MOST_CHARACTERS])
        if is_shell or not (runs_python or os.path.basename(found) in _TOOLS):
            self.write("shell", command)

    def _note_variable(self, name: str, value: str = "") -> None:
        # No event tells of what multiprocessing spawns from now on, which has this variable.
        variables = {**os.environ, name: value}
        if name in (LOG, "PYTHONPATH") and not self._is_inherited(("python",), variables):
            self.write("shell", f"os.environ[{name!r}]")

    def _is_inherited(self, words: Sequence[str], variables: Mapping[str, str]) -> bool:
        """Whether a process that is started like this has this log, if it is Python."""
        roots = variables.get("PYTHONPATH", "").split(os.pathsep)
        if variables.get(LOG) != self._path or _FOLDER not in roots:
            return False
        # Python runs the first that it finds. That of a measured command runs the next one.
        first = PathFinder.find_spec("sitecustomize", roots[: roots.index(_FOLDER)])
        if first is not None and not str(first.origin).endswith(_OF_COMMANDS):
            return False
        if not is_python(words[0]):
            return True
        options = iter(words[1:])
        for option in options:
            if not option.startswith("-") or option in ("-", "-c", "-m"):
                break
            if option in ("-W", "-X"):
                next(options, None)
            elif not option.startswith(("-W", "-X", "--")) and {*"EIS"} & {*option}:
                return False
        return True


def _is_outside(file: str) -> bool:
    """Whether a file is neither the system's nor in a folder of the launch's own."""
    is_of_system = file.startswith(_OF_SYSTEM) and not file.startswith(SHARED_FOLDERS)
    return not (is_of_system or file.startswith(_FOLDER))


def _from_root(path: str) -> str:
    try:
        return path if path[:1] == "/" else os.path.join(os.getcwd(), path)
    except FileNotFoundError:  # the working folder is gone, and so is what it had
        return f"/{path}"


def _text(value: Any) -> str:
    return os.fsdecode(value) if isinstance(value, (str, bytes, os.PathLike)) else str(value)


def _source_of(path: str) -> str:
    """The source of a bytecode file, in whichever cache it lies; any other path as it is."""
    folder, name = os.path.split(path)
    if not name.endswith(".pyc"):
        return path
    if sys.pycache_prefix and folder.startswith(sys.pycache_prefix):
        folder = folder[len(sys.pycache_prefix) :]
    elif os.path.basename(folder) == "__pycache__":
        folder = os.path.dirname(folder)
    return os.path.join(folder, name.partition(".")[0] + ".py")


def _find(program: str, variables: Mapping[str, str]) -> str:
    if "/" not in program:
        for folder in os.get_exec_path(dict(variables)):
            if os.access(found := os.path.join(folder, program), os.X_OK):
                return found
    return program


def is_python(program: str) -> bool:
    """Return whether a program is an interpreter of Python, by its name."""
    return os.path.basename(program).rstrip("t").rstrip("0123456789.") in ("python", "pypy")


def interpreter_of(program: str) -> list[str]:
    """The interpreter and the options in a script's first line; nothing for another program."""
    with contextlib.suppress(OSError), open(program, "rb") as script:
        if script.read(2) == b"#!":
            words = os.fsdecode(script.readline(_MOST_CHARACTERS)).split()
            while words[1:] and (os.path.basename(words[0]) == "env" or words[0] == "-S"):
                del words[0]
            return words
    return []


def read_installed_bytecode() -> None:
    """Have imports look beside an installed source first; nothing is written there.

    What is under test is compiled into a folder of the arm's own (PYTHONPYCACHEPREFIX). To compile
    all packages again takes seconds in each arm, and both arms import the same.
    """
    if sys.pycache_prefix is None:
        return
    find_in_prefix = _bootstrap_external.cache_from_source

    def cache_from_source(path: Any, *arguments: Any, **options: Any) -> str:
        cached: str = find_in_prefix(path, *arguments, **options)
        path = os.fspath(path)
        if path.startswith(_STANDARD_LIBRARY) or any(folder in path for folder in _PACKAGES):
            folder = os.path.join(os.path.dirname(path), "__pycache__")
            beside = os.path.join(folder, os.path.basename(cached))
            if os.path.exists(beside):
                return beside
        return cached

    _bootstrap_external.cache_from_source = cache_from_source


def _run_the_next() -> None:
    """Run the environment's own `sitecustomize`, which this one hides."""
    spec = PathFinder.find_spec(__name__, sys.path[sys.path.index(_FOLDER) + 1 :])
    if spec is not None and spec.loader is not None:
        module = sys.modules[__name__] = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if found_log := os.environ.get(LOG):
        _log = LoadLog(
            found_log,
            filter(None, os.environ.get(WATCHED, "").split(os.pathsep)),
            os.environ.get(OWN, ""),
            float(os.environ.get(BEGAN, "0")),
            float(os.environ.get(SESSION, "inf")),
        )
        sys.addaudithook(_log)
        os.register_at_fork(before=_log.note_fork, after_in_child=_log.note_process)
        _log.note_process()
        _log.note_modules()
        read_installed_bytecode()
    _run_the_next()
