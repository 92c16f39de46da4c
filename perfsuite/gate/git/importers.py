"""Which files import the modules of a folder, from their text: nothing is run."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path


def importers(top: Path, files: frozenset[Path], folder: Path) -> Iterator[Path]:
    """Yield the files, relative to `top`, that import the folder or a module in it from elsewhere.

    An import counts under each end of the folder's path: only the suite knows what is on its path.
    """
    for file in sorted(files):
        if file.suffix != ".py" or file.is_relative_to(folder):
            continue
        text = _text(top / file)
        if folder.name.encode() in text and any(
            _leads_to(folder.parts, parts) for parts in _imports(file, text)
        ):
            yield file


@functools.cache
def _text(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def _imports(file: Path, text: bytes) -> Iterator[tuple[str, ...]]:
    """Yield the parts of what a file imports; a relative import begins with "" and is whole."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError):  # Python will say so
        return
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            begin = file.parts[: -node.level] if node.level else ()
            parts = (*begin, *(node.module or "").split("."))
            whole = ("",) if node.level else ()
            yield from ((*whole, *filter(None, (*parts, alias.name))) for alias in node.names)


def _leads_to(folder: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Whether imported parts begin with the folder's path, or with an end of it.

    >>> _leads_to(("acme", "perf"), ("perf", "engine"))
    True
    >>> _leads_to(("acme", "perf"), ("", "acme", "tests"))
    False
    """
    if parts[0] == "":
        return parts[1 : 1 + len(folder)] == folder
    return any(parts[:count] == folder[-count:] for count in range(1, len(folder) + 1))
