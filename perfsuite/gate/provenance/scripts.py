"""What shell scripts and Makefiles name: no event tells what a shell or make reads and starts."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from perfsuite.gate.git import overlay

_WORD = re.compile(r"\$\w+|[\w.+%/-]+")
_MAKES = frozenset({"make", "gmake"})
_MAKEFILES = frozenset({"GNUmakefile", "makefile", "Makefile"})
_SUFFIXES = frozenset({".sh", ".bash", ".mk"})


def places_named(top: Path, commands: Iterable[str]) -> set[Path]:
    """Return what commands name, and scripts of the checkout that they name in turn; from its top.

    A word may be a path from the top, or from the folder of its script.
    """
    texts = [(Path(), command) for command in commands]
    found, left = set[Path](), {*overlay.tree_files(top)} if texts else set[Path]()
    for folder, text in texts:  # which grows
        words = {*_WORD.findall(text)}
        names = {word.rpartition("/")[2] for word in words}
        names |= _MAKEFILES if names & _MAKES else set()
        inside = [(place / word.lstrip("/")) for word in words for place in (Path(), folder)]
        found |= {Path(os.path.normpath(one)) for one in inside}
        new = {path for path in left if path.name in names and _is_script(top / path)}
        left -= new
        texts += [(path.parent, (top / path).read_text(errors="replace")) for path in new]
    return found


def _is_script(file: Path) -> bool:
    is_known = file.suffix in _SUFFIXES or file.name in _MAKEFILES
    return file.is_file() and (
        is_known or (file.suffix != ".py" and overlay.read_start(file, 2) == b"#!")
    )
