"""Whether what head loads from its own tree, the base loads from its own or has not."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from perfsuite.gate.arms.arm import Launch
from perfsuite.gate.git import repository
from perfsuite.gate.git.fill_tree import missing_files
from perfsuite.gate.git.overlay import SITE_FOLDER, is_left_out, read_source
from perfsuite.gate.git.repository import find_top
from perfsuite.gate.provenance.installed import SITE, installed_by_projects, is_any_installed
from perfsuite.gate.provenance.untracked import BUILD, SHARE

_PYTHON = "give the base an interpreter of its own with --base-python (pytest: --perf-base-python)"
_CODE = (".py", ".so", ".zip", ".egg", ".whl", ".pyz")
# Temporary folders of sessions, which a continuous integration may have in the checkout.
_OF_LAUNCHES = re.compile(r"perfsuite-\d+-")


@dataclass(frozen=True, kw_only=True)
class Loading:
    """What one arm loaded and started.

    Attributes:
        top: Of its checkout.
        roots: Folders that come first on its path.
        site: Where the base's build installs.
        prefix: Of its interpreter.
        files: With links followed, but not those of its checkout; programs included.
    """

    name: str
    top: Path
    roots: tuple[Path, ...]
    site: Path
    prefix: Path
    programs: frozenset[str]
    files: frozenset[str]

    @functools.cached_property
    def own_files(self) -> tuple[Path, ...]:
        """What came from its checkout, relative to that."""
        paths = (Path(file) for file in sorted(self.files) if file.startswith(f"{self.top}/"))
        return tuple(path.relative_to(self.top) for path in paths if self.is_code(path))

    def is_code(self, file: Path) -> bool:
        """Whether a file of its checkout is of no interpreter, package or launch that lie in it."""
        if SITE.search(str(file)) or (
            file.is_relative_to(self.prefix) and not self.top.is_relative_to(self.prefix)
        ):
            return False
        folders = [folder for folder in file.relative_to(self.top).parents if folder.parts]
        return not any(
            _OF_LAUNCHES.match(folder.name) or _is_left_out(self.top / folder) for folder in folders
        )


def loadings_of(base: Launch, head: Launch) -> tuple[Loading, Loading]:
    """Return what the launches loaded and started."""
    base_tree, head_tree = base.arm.tree.resolve(), head.arm.tree.resolve()
    tops = base_tree, head_tree
    if (head_top := find_top(head_tree)) is not None:
        root = head_tree.relative_to(head_top)
        base_top = base_tree.parents[len(root.parts) - 1] if root.parts else base_tree
        if (base_top / ".git").exists():  # else it is a copy of a folder
            tops = base_top, head_top
    return _loading(base, tops[0]), _loading(head, tops[1])


def _loading(launch: Launch, top: Path) -> Loading:
    return Loading(
        name=launch.arm.name,
        top=top,
        roots=tuple(root.resolve() for root in launch.arm.import_roots),
        site=launch.arm.tree.resolve() / SITE_FOLDER,
        programs=launch.loaded.programs,
        prefix=Path(_real_path(launch.arm.python)).parent.parent,
        files=frozenset(
            file if file.startswith(f"{top}/") else _real_path(file)
            for file in launch.loaded.files | launch.loaded.programs
        ),
    )


_is_left_out = functools.cache(is_left_out)
_real_path = functools.cache(os.path.realpath)


def find_asymmetry(base: Loading, head: Loading) -> str | None:
    """Return what one arm loads from its own tree, and the other does not, with what to do.

    What is new in head is none: git tracks it, or would add it, and the base's commit has none.
    """
    return (
        _find_foreign(base, head)
        or _find_foreign(head, base)
        or _find_installed_instead(base, head)
        or _find_missing(base, head)
        or _find_shared(base, head)
    )


def find_silent(base: Launch, head: Loading) -> str | None:
    """Return why the base may have run head's code where it could not say what it loads."""
    if not base.loaded.silent:
        return None
    project = is_any_installed(head.top, base.arm.python, base.loaded.files)
    if project is None:
        return None
    command = min(base.loaded.silent)
    return (
        f"the base arm started '{command}', which cannot say what it loads, and {project} is "
        "installed where it runs; start it with the environment of the test and without -I, -E "
        f"and -S, uninstall {project}, or {_PYTHON}"
    )


def _find_foreign(arm: Loading, other: Loading) -> str | None:
    """Why an arm loaded a file of the other's checkout, unless its own is the same.

    Data that git does not track belongs to neither.
    """
    for file in sorted(arm.files):
        # A link in its own tree may be what it is meant to share; a map has a library's own path.
        if file.startswith(f"{arm.top}/") or not file.startswith(f"{other.top}/"):
            continue
        path = Path(file)
        if not other.is_code(path):
            continue
        place = path.relative_to(other.top)
        is_data = not file.endswith(_CODE) and ".so." not in file and file not in arm.programs
        if is_data and place not in _tracked(other.top, [place]):
            continue
        if not _are_alike(path, arm.top / place):
            advice = f" and {BUILD}, or name its folder in pytest's pythonpath"
            return (
                f"the {arm.name} arm loaded {path}, which is {other.name}'s; have the code find it "
                f"beside itself{'' if is_data else advice}"
            )
    return None


def _are_alike(file: Path, other: Path) -> bool:
    if not (file.is_file() and other.is_file()):  # a file may be gone, or in an archive
        return False
    return read_source(file) == read_source(other)


def _find_installed_instead(base: Loading, head: Loading) -> str | None:
    """Why the base loaded an installed copy of what head loads from its own tree."""
    installed = {SITE.split(file)[-1]: file for file in base.files if SITE.search(file)}
    for root in head.roots:
        for path in head.own_files:
            own = head.top / path
            name = str(own.relative_to(root)) if own.is_relative_to(root) else None
            if name in installed and ((base.top / path).exists() or _is_lacked(base.top, path)):
                return (
                    f"the base arm loaded {installed[name]}, although its commit has {path}, which "
                    f"the head arm loaded; uninstall that copy, or {_PYTHON}"
                )
    return None


def _find_missing(base: Loading, head: Loading) -> str | None:
    """Why the base's tree lacks what head loads from its own, if that is no part of head's change.

    Nothing else would say so where the code can do without, such as a module in Python.
    """
    for path in (*head.own_files, *base.own_files):
        if (lacked := _is_lacked(base.top, path)) is not None:
            return (
                f"{path} was loaded, and the base's tree has not got {lacked}, which is another at "
                "its commit than in head, or changed in head; name a checkout of the base that has "
                "it with --base-dir (pytest: --perf-base-dir)"
            )
    missing = [path for path in head.own_files if not _has(base, head, path)]
    if not missing:
        return None
    tracked = _tracked(head.top, missing)
    for path in missing:
        is_built = _is_compiled(head.top / path)
        if path not in tracked and (is_built or repository.is_ignored(head.top, path)):
            return (
                f"the head arm loaded {path}, which git does not track and the base's tree does "
                f"not have; {BUILD}" + ("" if is_built else f", or {SHARE}")
            )
    return None


def _has(base: Loading, head: Loading, path: Path) -> bool:
    """Whether the base has its own of a file of head, in place or installed by its build."""
    file = head.top / path
    names = [file.relative_to(root) for root in head.roots if file.is_relative_to(root)]
    return any(one.exists() for one in (base.top / path, *(base.site / name for name in names)))


def _tracked(top: Path, paths: list[Path]) -> set[Path]:
    return set() if find_top(top) is None else repository.tracked_files(top, paths)


def _is_lacked(top: Path, path: Path) -> Path | None:
    """The submodule or git-lfs file that a path is in, and that the base's tree lacks."""
    return next((one for one in _lacks(top) if path.is_relative_to(one)), None)


@functools.cache
def _lacks(top: Path) -> tuple[Path, ...]:
    return () if find_top(top) is None else tuple(missing_files(top))


def _find_shared(base: Loading, head: Loading) -> str | None:
    """Why both arms loaded one file that a project of the tree has installed."""
    both = base.files & head.files
    installed = installed_by_projects(head.top, both)
    for file in sorted(both & installed.keys()):
        if Path(file).suffix == ".py" or _is_compiled(Path(file)):  # a script says where it leads
            return (
                f"both arms loaded {file}, which {installed[file]} has installed; {BUILD}, or "
                f"{_PYTHON}"
            )
    return None


def _is_compiled(file: Path) -> bool:
    """Whether a file is neither a Python module nor a script."""
    if file.suffix == ".py" or not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(2) != b"#!"
