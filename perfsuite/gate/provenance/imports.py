"""Whether each arm imported its own code: proof that two trees were compared, and not one twice."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path

from perfsuite.gate.arms.arm import Launch
from perfsuite.gate.git.overlay import read_source, tree_files
from perfsuite.gate.git.repository import find_top
from perfsuite.gate.provenance.dependencies import find_changed_dependency
from perfsuite.gate.provenance.installed import owners_of_module, project_names
from perfsuite.gate.provenance.symmetry import find_asymmetry, find_silent, loadings_of

# Where installers put packages, in a tree or not: no code under test is there.
_INSTALLED = {"site-packages", "dist-packages"}
# Names that a tree has beside its code, and that other packages have too.
_NEVER_UNDER_TEST = {"setup", "conftest", "noxfile", "tests", "test", "benchmarks"}
# On the path of both arms in any case (`worktree.import_roots`).
_IMPORT_ROOTS = {Path(), Path("src")}
_OTHER = {"base": "head", "head": "base"}
_MODULE_SUFFIXES = {".py", ".pyx"}


def find_wrong_import(base: Launch, head: Launch) -> str | None:
    """Return why the two launches did not compare two trees, None if they did.

    An arm must import no file of the other's tree; and what both have in their trees, they must not
    import from one installed copy.
    """
    trees = {"base": base.arm.tree.resolve(), "head": head.arm.tree.resolve()}
    if trees["base"] == trees["head"]:
        return None  # the arms differ by interpreter or environment alone
    for arm, name, file in _foreign_imports(base, head, trees):
        return (
            f"the {arm} arm imported {name} from {file}, which is {_OTHER[arm]}'s; is it installed "
            "in editable mode from another folder?"
        )
    before, after = loadings_of(base, head)
    return (
        _find_beside(base, head, trees)
        or _find_installed(base, head, trees)
        or find_asymmetry(before, after)
        or find_silent(base, after)
        or _find_dependency(base, head, (before.top, after.top))
    )


def _find_dependency(base: Launch, head: Launch, tops: tuple[Path, Path]) -> str | None:
    if base.arm.python != head.arm.python:
        return None
    return find_changed_dependency(*tops, base.loaded.files)


def _find_beside(base: Launch, head: Launch, trees: dict[str, Path]) -> str | None:
    """Why an arm ran code of the other's checkout beside its tree, where the two differ in it.

    pytest's root may be one folder of a checkout, and what lies beside it may be installed from
    there.
    """
    tops = {name: find_top(tree) or tree for name, tree in trees.items()}
    if tops["base"] == tops["head"]:
        return None
    for arm, name, file in _foreign_imports(base, head, tops):
        counterpart = tops[arm] / file.relative_to(tops[_OTHER[arm]])
        if file.is_dir() or _are_alike(file, counterpart):
            continue
        return (
            f"the {arm} arm imported {name} from {file}, which is {_OTHER[arm]}'s and another than "
            "its own; is it installed in editable mode? Name its folder in pytest's pythonpath"
        )
    return None


def _find_installed(base: Launch, head: Launch, trees: dict[str, Path]) -> str | None:
    """Why a module that both trees have is none of either tree's."""
    ours = _modules(trees["head"])
    both = ours.keys() & _modules(trees["base"]).keys() & base.modules.keys() & head.modules.keys()
    for name in sorted(both):
        file = head.modules[name]
        place = ours[name]
        if base.modules[name] == file and _is_code_of(
            trees["head"], name, Path(file), trees["head"] / place
        ):
            folder = place.parents[name.count(".") + (place.stem == "__init__")]
            return (
                f"both arms imported {name} from {file}, although the tree has {place}; name "
                f"{str(folder)!r} in pytest's pythonpath, uninstall that copy, or give the arms "
                "interpreters of their own (--base-python)"
            )
    return None


def _foreign_imports(
    base: Launch, head: Launch, folders: dict[str, Path]
) -> Iterator[tuple[str, str, Path]]:
    """Yield each arm's imports from the other's folder, outside its own, that are not installed."""
    for launch in (base, head):
        arm = launch.arm.name
        own, theirs = folders[arm], folders[_OTHER[arm]]
        for name, file in launch.modules.items():
            # An interpreter may live in the folder, its own library with it.
            if name.partition(".")[0] in sys.stdlib_module_names:
                continue
            path = Path(file)
            is_theirs = path.is_relative_to(theirs) and not path.is_relative_to(own)
            if not is_theirs or _INSTALLED.intersection(path.parts):
                continue
            if (own / path.relative_to(theirs)).resolve() != path:  # else it may share it
                yield arm, name, path


def _are_alike(file: Path, other: Path) -> bool:
    both_are_there = file.is_file() and other.is_file()  # a file may be gone, or in an archive
    return both_are_there and read_source(file) == read_source(other)


@functools.cache
def _modules(tree: Path) -> dict[str, Path]:
    """Where the tree has a package or a module, by each name that it can be imported under.

    From any folder, because only the suite knows which are on its path, but not from inside a
    package.
    """
    sources = sorted(tree_files(tree), key=lambda path: (len(path.parts), path))
    packages = {path.parent for path in sources if path.name == "__init__.py"}
    packages -= _IMPORT_ROOTS
    found: dict[str, Path] = {}
    for source in sources:
        place = source.parent if source.name == "__init__.py" else source.with_suffix("")
        if source.suffix not in _MODULE_SUFFIXES or place.parent in packages:
            continue
        for start, top in enumerate(place.parts):
            if top not in _NEVER_UNDER_TEST | sys.stdlib_module_names:
                found.setdefault(".".join(place.parts[start:]), source)
    return found


def _is_code_of(tree: Path, name: str, file: Path, source: Path) -> bool:
    """Whether an installed module's file is code of the tree, where `source` has the same name.

    The record of its installation decides: a project of the tree installed it, or another project,
    and the tree has a copy or a script with the same name. A file without a record, as in a folder
    on PYTHONPATH, is the tree's. Where no project of the tree says its name, equal contents decide.
    """
    owners = owners_of_module(name, file)
    if not owners:
        return True
    if projects := project_names(tree):
        return not owners.isdisjoint(projects)
    return _are_alike(file, source)
