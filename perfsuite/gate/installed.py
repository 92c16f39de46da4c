"""Whose code an installed module is: that of a tree, or of another project.

Must not know what an arm is, nor what a verdict is.
"""

from __future__ import annotations

import functools
import re
from importlib.metadata import Distribution, distributions
from pathlib import Path

from perfsuite.gate.overlay import read_source, source_files

# Where a project says what it is called, and how. Of setup.py, which computes, what is in quotes.
_QUOTED = re.compile(rb"""\bname\s*=\s*["']([\w.-]+)["']""")
_PROJECT_FILES = {
    "pyproject.toml": _QUOTED,
    "setup.py": _QUOTED,
    "setup.cfg": re.compile(rb"^name\s*=\s*([\w.-]+)\s*$", re.MULTILINE),
}


def is_code_of(tree: Path, name: str, file: Path, source: Path) -> bool:
    """Return whether an installed module is code of the tree, which has one of the same name.

    The record of who installed it decides: a project of the tree, or another one, where the tree
    has a copy of it, or a script that is called alike. A file without a record, as in a folder on
    PYTHONPATH, is the tree's. Where no project of the tree says its name, equal contents decide.

    Args:
        tree: The tree.
        name: The module's, with dots.
        file: What was imported.
        source: The tree's file of that name.
    """
    owners = _owners(name, file)
    if not owners:
        return True
    if projects := _project_names(tree):
        return not owners.isdisjoint(projects)
    return file.is_file() and read_source(file) == read_source(source)


def _owners(name: str, file: Path) -> set[str]:
    """The names of the distributions that installed a module."""
    levels = name.count(".") + (file.stem == "__init__")
    folder = file.parents[levels]
    place = file.relative_to(folder)
    return {
        _normalized(distribution.metadata["Name"])
        for distribution in distributions(path=[str(folder)])
        if _has_installed(distribution, place)
    }


def _has_installed(distribution: Distribution, place: Path) -> bool:
    if distribution.files is not None:
        return any(Path(file).is_relative_to(place) for file in distribution.files)
    # Packages of a Linux distribution have no list of their files.
    top_level = (distribution.read_text("top_level.txt") or "").split()
    return place.parts[0].partition(".")[0] in top_level


@functools.cache
def _project_names(tree: Path) -> frozenset[str]:
    """What the projects are called whose files are in the tree."""
    return frozenset(
        _normalized(name.decode())
        for path in source_files(tree)
        if path.name in _PROJECT_FILES
        for name in _PROJECT_FILES[path.name].findall(read_source(tree / path))
    )


def _normalized(name: str) -> str:
    """The form in which names of distributions are compared (PyPA, "Names and normalization")."""
    return re.sub(r"[-_.]+", "-", name).lower()
