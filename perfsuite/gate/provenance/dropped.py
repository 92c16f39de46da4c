"""What a change stops using, and git does not track: the base's tree began without it, too."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from perfsuite.gate.git import overlay

_WORD = re.compile(r"[\w./-]+")
_MOST_BYTES = 2**20


def find_dropped(
    head: Path, base: Path, kept: Iterable[Path], sources: Iterable[Path]
) -> tuple[Path, Path] | None:
    """Return what of `kept` only the base's `sources` name, and which does; from the tops.

    The base may be slow, or compute something else, because its tree lacks it as head's code does.
    """
    changed = [one for one in sources if not overlay.are_alike(head / one, base / one)]
    ours = {name for path in changed for name in _names(path, head)}
    theirs = {name: path for path in changed for name in _names(path, base) if name not in ours}
    for path in sorted(kept) if theirs else ():
        folders = path.parents[:-1]
        if any(_is_of_a_tool(head / one) for one in folders):
            continue
        names = {path.name, *(one.name for one in folders if not (base / one).exists())}
        if path.suffix in (".py", ".so", ".pyd"):
            names.add(f"import {path.name.partition('.')[0]}")
        elif path.name == ".env":
            names.add("import dotenv")
        if found := theirs.keys() & names:
            return path, theirs[min(found)]
    return None


def _names(path: Path, top: Path) -> Iterator[str]:
    """What a source may name: "import x" for a module, the parts of a path in its strings."""
    file = top / path
    if not file.is_file():
        return
    text = overlay.read_start(file, _MOST_BYTES)
    strings = _WORD.findall(text.decode(errors="replace"))
    if path.suffix == ".py":
        yield from (f"import {one}" for parts in overlay.imports(path, text) for one in parts)
        constants = (
            node.value for node in overlay.nodes_of(text) if isinstance(node, ast.Constant)
        )
        strings = [one for one in constants if isinstance(one, str)]
    for string in strings:
        if "/" in string or "." in string:  # else it may be any word, such as a key
            yield from string.split("/")


def _is_of_a_tool(folder: Path) -> bool:
    """Whether a tool keeps a cache or results there, which it has git ignore."""
    ignored = folder / ".gitignore"
    return ignored.is_file() and "*" in ignored.read_text(errors="replace").split()
