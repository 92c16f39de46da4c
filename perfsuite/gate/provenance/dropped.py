"""What a change stops using, and git does not track: the base's tree began without it, too."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from perfsuite.gate.git import overlay

_WORD = re.compile(r"[\w.-]+")
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
        lacked = [path, *(one for one in folders if not (base / one).exists())]
        names = {one.name for one in lacked} | {"dotenv" if path.name == ".env" else path.name}
        if path.suffix in (".py", ".so", ".pyd"):
            names.add(path.name.partition(".")[0])  # as it is imported
        if found := theirs.keys() & names:
            return path, theirs[min(found)]
    return None


def _names(path: Path, top: Path) -> Iterator[str]:
    """What a source may name: modules that it imports, parts of paths in its strings."""
    file = top / path
    if not file.is_file():
        return
    text = overlay.read_start(file, _MOST_BYTES)
    if path.suffix != ".py":
        yield from _WORD.findall(text.decode(errors="replace"))
        return
    for parts in overlay.imports(path, text):
        yield from parts
    for node in overlay.nodes_of(text):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from node.value.split("/")


def _is_of_a_tool(folder: Path) -> bool:
    """Whether a tool keeps a cache or results there, which it has git ignore."""
    ignored = folder / ".gitignore"
    return ignored.is_file() and "*" in ignored.read_text(errors="replace").split()
