"""What shell scripts and Makefiles name: no event tells what a shell or make reads and starts."""

import contextlib
import functools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from perfsuite.gate.arms.launched.load_log import SHELLS, interpreter_of, is_python
from perfsuite.gate.git import overlay

_COMMENT = re.compile(r"(?m)(?:^|\s)#.*")
_WORD = re.compile(r"[~$\w{}.+%/-]+")
_MAKES = frozenset({"make", "gmake", "MAKE"})
_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
_SUFFIXES = frozenset({".sh", ".bash", ".mk"})
_MOST_BYTES = 2**20  # a script may unpack an archive that follows it


def places_named(top: Path, commands: Iterable[str]) -> set[Path]:
    """Return what shells and make are told, and scripts of the checkout name in turn; from its top.

    A word is a path from the top, or from the folder of its script.
    """
    scripts = _scripts_of(top)
    names = {path.name for path in scripts} | SHELLS | _MAKES
    texts = [(Path(), one) for one in commands if Path(one.split()[0]).name in names]
    found, read = set[Path](), set[Path]()
    for folder, text in texts:  # which grows
        words = _WORD.findall(text)
        inside = {Path(os.path.normpath(one)) for word in words for one in _places(folder, word)}
        if any(Path(word).name in _MAKES for word in words):
            inside |= {place / name for place in {*inside, folder} for name in _MAKEFILES}
        # Of a folder that a variable or an absolute path names.
        names = {Path(word).name for word in words if word.startswith(("/", "$"))}
        found |= inside
        new = {path for path in scripts if path in inside or path.name in names} - read
        read |= new
        texts += [(path.parent, _COMMENT.sub("", _read(top / path))) for path in new]
    return found


def _places(folder: Path, word: str) -> Iterator[Path]:
    if word.startswith(("~", "$HOME", "${HOME}")):
        return
    inside = word.partition("/")[2] if word.startswith("$") else word.lstrip("/")
    yield from (place / inside for place in (Path(), folder) if inside)


@functools.cache
def _scripts_of(top: Path) -> tuple[Path, ...]:
    """What may be a script, by its name, of a checkout that is not edited meanwhile."""
    paths = overlay.tree_files(top)
    return tuple(one for one in paths if one.suffix in _SUFFIXES or not one.suffix)


def _read(file: Path) -> str:
    """The text of a script or Makefile; nothing for another file, and for one of Python."""
    is_known = file.suffix in _SUFFIXES or file.name in _MAKEFILES
    by = [] if is_known else interpreter_of(str(file))
    if is_known or (by and not is_python(by[0])):
        with contextlib.suppress(OSError):
            return overlay.read_start(file, _MOST_BYTES).decode(errors="replace")
    return ""
