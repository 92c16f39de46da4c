"""Modules by their names: which of a tree's lie elsewhere too, and what its projects installed."""

import ast
import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

from perfsuite.gate.git.overlay import name_of_project, nodes_of, read_source, tree_files

# Where installers put packages, in a tree or not.
SITE = re.compile(r"/(?:site|dist)-packages/")

_IN_SETUP_CFG = re.compile(rb"^name\s*=\s*([\w.-]+)\s*$", re.MULTILINE)
# Names that a tree has beside its code, and that other packages have too.
_NEVER_UNDER_TEST = {"setup", "conftest", "noxfile", "tests", "test", "benchmarks"}

# Of a module, as it is imported: ("shop", "prices").
Names = tuple[str, ...]


def by_names(top: Path, modules: Iterable[Path]) -> dict[Names, Path]:
    """Return modules of a tree by their names from the outermost package on; the first of equals.

    A namespace package, which has no __init__.py, and an import root of both are in no name.
    """
    found: dict[Names, Path] = {}
    for module in modules:
        folder = module.parent
        while folder not in (Path(), Path("src")) and (top / folder / "__init__.py").is_file():
            folder = folder.parent
        found.setdefault(module.relative_to(folder).with_suffix("").parts, module)
    return found


def find_source(file: Path, modules: Mapping[Names, Path]) -> Path | None:
    """Return which of the modules a file elsewhere is imported as: their copy, or their build."""
    if file.suffix not in (".py", ".so"):  # a program, a library
        return None
    names = *file.parts[:-1], file.name.partition(".")[0]
    for num_names, folder in enumerate(file.parents, start=1):
        source = modules.get(names[-num_names:])
        if source is not None and not (folder / "__init__.py").exists():
            return source
    return None


@functools.cache
def modules_of(top: Path) -> Mapping[Names, Path]:
    """Return where a tree has code under test, by its names."""
    modules = [path for path in tree_files(top) if path.suffix in (".py", ".pyx")]
    modules.sort(key=lambda path: (len(path.parts), path))
    others = _NEVER_UNDER_TEST | sys.stdlib_module_names
    return {names: path for names, path in by_names(top, modules).items() if names[0] not in others}


@functools.cache
def project_names(tree: Path) -> frozenset[str]:
    """The names of the projects in the tree."""
    names = (name for path in tree_files(tree) for name in _names_given(tree / path))
    return frozenset(map(normalized, filter(None, names)))


@functools.cache
def computes_name(tree: Path, source: Path) -> bool:
    """Whether only a run of a setup.py could tell the name of the project that a source is of."""
    return any(None in _names_given(tree / folder / "setup.py") for folder in source.parents)


@functools.cache
def _names_given(file: Path) -> list[str | None]:
    """The names that a project's file gives; None of a setup.py that computes it."""
    if file.name == "pyproject.toml":
        return [name_of_project(file)]
    if file.name == "setup.cfg":
        return [*map(bytes.decode, _IN_SETUP_CFG.findall(read_source(file)))]
    is_script = file.name == "setup.py" and file.is_file()
    return [*_names_in_setup(read_source(file))] if is_script else []


def _names_in_setup(source: bytes) -> Iterator[str | None]:
    for call in (node for node in nodes_of(source) if isinstance(node, ast.Call)):
        if "setup" in (getattr(call.func, "attr", None), getattr(call.func, "id", None)):
            given = {one.arg: getattr(one.value, "value", None) for one in call.keywords}
            if "name" in given or None in given:  # for **
                yield name if isinstance(name := given.get("name"), str) else None


def normalized(name: str) -> str:
    """The form that names of distributions are compared in (PyPA, "Names and normalization")."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_recorded(file: str) -> bool:
    """Whether an installer says that it has put a file where it is."""
    if (match := SITE.search(file)) is None:
        return False
    place = file[match.end() :]
    recorded = _recorded(file[: match.end()])
    return place in recorded or place.partition("/")[0].partition(".")[0] in recorded


@functools.cache
def _recorded(folder: str) -> frozenset[str]:
    """What is recorded of a folder of packages: files, or modules where no file is listed."""
    found: set[str] = set()
    for one in distributions(path=[folder]):
        if one.files is not None:
            found.update(map(str, one.files))
        else:  # a package of a Linux distribution
            found.update((one.read_text("top_level.txt") or "").split())
    return frozenset(found)


def installed_by_projects(tree: Path, files: Iterable[str]) -> dict[str, str]:
    """Return what the tree's projects installed where `files` are: each file with its project."""
    found: dict[str, str] = {}
    for distribution in _project_distributions(tree, _site_folders(files)):
        # The finders of an editable installation are its own: where they lead to says more.
        origin = distribution.read_text("direct_url.json") or ""
        is_editable = re.search(r'"editable"\s*:\s*true', origin) is not None
        for file in distribution.files or ():
            if not (is_editable and file.suffix == ".py"):
                place = os.path.realpath(str(distribution.locate_file(file)))
                found[place] = distribution.metadata["Name"]
    return found


def is_any_installed(tree: Path, python: str, files: Iterable[str]) -> str | None:
    """Return a project of the tree that an interpreter has by itself, or where `files` are.

    A `.pth` file that leads into the tree is one too: not every tool that writes one records it.
    """
    own = Path(python).parent.parent.glob("lib*/python*/*-packages")
    folders = _site_folders([*files, *(f"{folder}/" for folder in own)])
    names = [one.metadata["Name"] for one in _project_distributions(tree, folders)]
    return min([*names, *_path_files_into(tree, folders)], default=None)


@functools.cache
def _path_files_into(tree: Path, folders: frozenset[str]) -> tuple[str, ...]:
    found = []
    for file in (file for folder in folders for file in Path(folder).glob("*.pth")):
        for line in read_source(file).decode(errors="replace").splitlines():
            # The environment may lie in the tree; a line may be code or a comment.
            path = Path(os.path.realpath(file.parent / line))
            if line and path.is_dir() and path.is_relative_to(tree) and not SITE.search(f"{path}/"):
                found.append(file.name)
    return tuple(found)


def _site_folders(files: Iterable[str]) -> frozenset[str]:
    matches = ((file, SITE.search(file)) for file in files)
    return frozenset(file[: match.end()] for file, match in matches if match is not None)


@functools.cache
def _project_distributions(tree: Path, folders: frozenset[str]) -> tuple[Distribution, ...]:
    """By their names; setup.py may compute one, and installers write down folders (PEP 610)."""
    projects = project_names(tree)
    in_tree = re.compile(rf'(?=.*"dir_info").*"{re.escape(tree.as_uri())}["/]', re.DOTALL)
    return tuple(
        distribution
        for distribution in distributions(path=sorted(folders))
        if normalized(distribution.metadata["Name"] or "") in projects
        or in_tree.match(distribution.read_text("direct_url.json") or "")
    )
