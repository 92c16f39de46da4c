"""Which files of a tree can change what a cell computes, and how fast."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from perfsuite.gate.git.command import output

# Documentation touches no cell. `docs` and `.github` count at the top of a checkout alone.
_TEXTS = frozenset({".md", ".rst"})
_TEXT_FOLDERS = frozenset({"docs", ".github"})
_LICENCE = re.compile(r"(licen[cs]e|copying|notice)([-_.][\w-]+)?(\.txt)?", re.IGNORECASE)

# What Python can import. Of other files that git does not know, nothing says that a cell reads
# them, and a session leaves many behind: logs, checkpoints, JUnit's XML.
_IMPORTABLE = frozenset({".py", ".pyd", ".pyx", ".so"})

# What installers, Python, pytest and sessions leave behind: anywhere, or under pytest's root.
_LEFT_ANYWHERE = frozenset({"__pycache__", "build", "dist", "node_modules"})
_LEFT_IN_ROOT = ("results", "baselines", ".benchmarks")
# Virtual environments (PEP 405; conda) and caches, as they mark themselves (bford.info/cachedir).
LEFT_OUT_MARKS = ("pyvenv.cfg", "conda-meta", "CACHEDIR.TAG")

# What perfsuite itself keeps under version control: stored runs, exceptions, calibration.
_RECORD = re.compile(r"baselines/(accepted\.toml|calibration\.json|(.*/)?\d{4,}_[^/]*\.json)")


def is_documentation(path: PurePath) -> bool:
    """Whether a file, by its path from the top of a checkout, is read by people alone.

    >>> [is_documentation(PurePath(name)) for name in ("README.md", "docs/conf.py", "LICENSE-MIT")]
    [True, True, True]
    >>> [is_documentation(PurePath(name)) for name in ("shop/docs/prices.py", "license.py")]
    [False, False]
    """
    return (
        path.suffix.lower() in _TEXTS
        or path.parts[0] in _TEXT_FOLDERS
        or (path.suffix != ".py" and _LICENCE.fullmatch(path.name) is not None)
    )


def is_record(path: PurePath) -> bool:
    """Whether a file, by its path from pytest's root, is one that perfsuite keeps.

    >>> is_record(PurePath("baselines/Linux-3.12/0001_main.json")), is_record(PurePath("a.json"))
    (True, False)
    """
    return _RECORD.fullmatch(path.as_posix()) is not None


@dataclass(frozen=True, kw_only=True)
class Uncommitted:
    """What git says of a tree beside HEAD: whether a cell could load any of it."""

    is_dirty: bool
    is_clean: bool


def read_uncommitted(
    root: Path, top: Path, *, outputs: Sequence[Path] = (), folders: Sequence[Path] = ()
) -> Uncommitted:
    """Return whether the tree differs from HEAD in what a cell could load; see below."""
    found = [*uncommitted_files(root, top, outputs=outputs, folders=folders)]
    return Uncommitted(is_dirty=any(is_code for _, is_code in found), is_clean=not found)


def uncommitted_files(
    root: Path, top: Path, *, outputs: Sequence[Path] = (), folders: Sequence[Path] = ()
) -> Iterator[tuple[Path, bool]]:
    """Yield each file that differs from HEAD, and whether a cell could load it.

    A tracked file counts unless it is documentation or a record. A file that git neither tracks nor
    ignores counts where it can be imported, lies in `root` or one of the `folders`, and neither a
    virtual environment nor a session left it: with one such file, a commit would be compared with
    itself. `outputs` are files that this session writes.
    """
    arguments = ("status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames")
    top, root = top.resolve(), root.resolve()
    left = [path.resolve() for path in (*(root / name for name in _LEFT_IN_ROOT), *outputs)]
    searched = [root, *(folder.resolve() for folder in folders)]
    for entry in filter(None, output(root, *arguments).split(b"\0")):
        path = top / os.fsdecode(entry[3:])
        if entry[:2] != b"??":
            is_code = not is_documentation(path.relative_to(top)) and not _is_record_of(root, path)
            yield path, is_code
        elif not any(path.is_relative_to(folder) for folder in left):
            is_searched = any(path.is_relative_to(folder) for folder in searched)
            is_importable = path.suffix in _IMPORTABLE and is_searched
            yield path, is_importable and not is_left_behind(top, path)


def is_left_behind(top: Path, path: Path) -> bool:
    """Whether a file that git does not know lies where installers and caches put theirs."""
    parts = path.relative_to(top).parts[:-1]
    if any(part.startswith(".") or part in _LEFT_ANYWHERE for part in parts):
        return True
    folders = [folder for folder in path.parents if folder.is_relative_to(top) and folder != top]
    return any((folder / mark).exists() for folder in folders for mark in LEFT_OUT_MARKS)


def _is_record_of(root: Path, path: Path) -> bool:
    return path.is_relative_to(root) and is_record(path.relative_to(root))
