"""What the projects of a tree have installed, where launches import from."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

from perfsuite.gate.git.overlay import read_source, tree_files

# Where installers put packages, in a tree or not.
SITE = re.compile(r"/(?:site|dist)-packages/")

# Where a project says its name, and how. setup.py computes: only a name in quotes is found.
_QUOTED = re.compile(rb"""\bname\s*=\s*["']([\w.-]+)["']""")
_PROJECT_FILES = {
    "pyproject.toml": _QUOTED,
    "setup.py": _QUOTED,
    "setup.cfg": re.compile(rb"^name\s*=\s*([\w.-]+)\s*$", re.MULTILINE),
}


@functools.cache
def project_names(tree: Path) -> frozenset[str]:
    """The names of the projects in the tree."""
    return frozenset(
        normalized(name.decode())
        for path in tree_files(tree)
        if path.name in _PROJECT_FILES
        for name in _PROJECT_FILES[path.name].findall(read_source(tree / path))
    )


def normalized(name: str) -> str:
    """The form in which names of distributions are compared (PyPA, "Names and normalization")."""
    return re.sub(r"[-_.]+", "-", name).lower()


def owners_of_module(name: str, file: Path) -> set[str]:
    """The names of the distributions that installed a module."""
    levels = name.count(".") + (file.stem == "__init__")
    folder = file.parents[levels]
    place = file.relative_to(folder)
    return {
        normalized(distribution.metadata["Name"])
        for distribution in distributions(path=[str(folder)])
        if _has_installed(distribution, place)
    }


def _has_installed(distribution: Distribution, place: Path) -> bool:
    if distribution.files is not None:
        return any(Path(file).is_relative_to(place) for file in distribution.files)
    # Packages of a Linux distribution have no list of their files.
    top_level = (distribution.read_text("top_level.txt") or "").split()
    return place.parts[0].partition(".")[0] in top_level


def installed_by_projects(tree: Path, files: Iterable[str]) -> dict[str, str]:
    """Return the files that the tree's projects installed where `files` are; to each the project.

    The finders of an editable installation are its own: where they lead to says more.
    """
    found: dict[str, str] = {}
    for distribution in _project_distributions(tree, _site_folders(files)):
        is_editable = '"editable": true' in json.dumps(_origin_of(distribution))
        for file in distribution.files or ():
            if not (is_editable and file.suffix == ".py"):
                place = os.path.realpath(str(distribution.locate_file(file)))
                found[place] = distribution.metadata["Name"]
    return found


def is_any_installed(tree: Path, python: str, files: Iterable[str]) -> str | None:
    """Return the name of a project of the tree that an interpreter has, if any is.

    It is looked for in its own folder of packages and where `files` were loaded from.
    """
    own = Path(python).parent.parent.glob("lib*/python*/*-packages")
    folders = _site_folders([*files, *(f"{folder}/" for folder in own)])
    names = (one.metadata["Name"] for one in _project_distributions(tree, folders))
    return next(iter(sorted(names)), None)


def _site_folders(files: Iterable[str]) -> frozenset[str]:
    matches = ((file, SITE.search(file)) for file in files)
    return frozenset(file[: match.end()] for file, match in matches if match is not None)


@functools.cache
def _project_distributions(tree: Path, folders: frozenset[str]) -> tuple[Distribution, ...]:
    projects = project_names(tree)
    return tuple(
        distribution
        for distribution in distributions(path=sorted(folders))
        if normalized(distribution.metadata["Name"] or "") in projects
    )


def _origin_of(distribution: Distribution) -> object:
    try:
        return json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
