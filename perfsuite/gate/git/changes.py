"""Which files of a tree can change what a cell computes, and how fast."""

import filecmp
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from perfsuite.gate.git.command import find_commit, output
from perfsuite.gate.git.repository import changed_files, find_top, listed_files, working_files
from perfsuite.system.files import real_path

# Documentation touches no cell: texts and these folders at the top of a checkout but for their
# modules, and a text with one of these names anywhere. Another text may be a page that it shows.
_TEXTS = frozenset({".md", ".rst"})
_TEXT_FOLDERS = frozenset({"docs", ".github"})
_TEXT_NAMES = frozenset({"readme", "changelog", "contributing"})
_LICENCE = re.compile(r"(licen[cs]e|copying|notice)([-_][\w-]+)?(\.txt)?", re.IGNORECASE)

# What Python can import. Of other files that git does not know, nothing says that a cell reads
# them, and a session leaves many behind: logs, checkpoints, JUnit's XML.
IMPORTABLE = frozenset({".py", ".pyd", ".pyx", ".so"})

# Beside one of these, builds leave folders behind; under pytest's root, sessions do.
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
_LEFT_IN_ROOT = ("results", "baselines", ".benchmarks")
_LEFT_NAMES = re.compile(r"junit[^/]*\.xml|\.coverage.*|.*\.(lock|log)")
# Virtual environments (PEP 405; conda) and caches, as they mark themselves (bford.info/cachedir).
_LEFT_OUT_MARKS = ("pyvenv.cfg", "conda-meta", "CACHEDIR.TAG")

_AT_ONCE = 1000  # paths, which surely fit into one call of a program

# Where the base's build may install, in the base's tree.
SITE_FOLDER = ".perfsuite-site"

# What perfsuite itself keeps under version control: exceptions, calibration, and the stored runs of
# each kind of machine, by pytest-benchmark's name of it. A package may be called `baselines` too.
_HOST = r"[^/-]+-[^/-]+-\d+\.\d+-\d+bit"
_RECORD = re.compile(rf"baselines/(accepted\.toml|calibration\.json|{_HOST}/\d{{4,}}_[^/]*\.json)")


def is_documentation(path: PurePath) -> bool:
    """Whether a file, by its path from the top of a checkout, is read by people alone."""
    is_at_top = len(path.parts) == 1
    return path.suffix != ".py" and (
        (path.suffix.lower() in _TEXTS and (is_at_top or path.stem.lower() in _TEXT_NAMES))
        or path.parts[0] in _TEXT_FOLDERS
        or (is_at_top and _LICENCE.fullmatch(path.name) is not None)
    )


def is_record(path: PurePath) -> bool:
    """Whether a file, by its path from pytest's root, is one that perfsuite keeps."""
    return _RECORD.fullmatch(path.as_posix()) is not None


def is_dirty(root: Path, *, outputs: Sequence[Path] = ()) -> bool:
    """Whether a tree differs from HEAD in what a cell could load."""
    return any(uncommitted_files(root, outputs=outputs).values())


def uncommitted_files(
    root: Path, *, outputs: Sequence[Path] = (), folders: Sequence[Path] = ()
) -> dict[Path, bool]:
    """Return the files that differ from HEAD, and whether a cell could load each.

    A tracked file counts unless it is documentation or a record. An unknown one that git does not
    ignore counts where it can be imported, lies in `root` or one of the `folders`, and no virtual
    environment or session left it. `outputs` are files that this session writes.
    """
    arguments = ("status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames")
    top, root = (find_top(root) or root).resolve(), root.resolve()
    is_sessions = _of_sessions(root, outputs)
    searched = {root, *(folder.resolve() for folder in folders)}
    found: dict[Path, bool] = {}
    for entry in filter(None, output(root, *arguments).split(b"\0")):
        path = top / os.fsdecode(entry[3:])
        if entry[:2] != b"??":
            found[path] = _may_be_loaded(top, root, path)
        elif not is_sessions(path):
            is_importable = path.suffix in IMPORTABLE and not searched.isdisjoint(path.parents)
            found[path] = is_importable and not _is_left_behind(top, path)
    return found


def digest_tree(root: Path, *, outputs: Sequence[Path] = ()) -> str | None:
    """Return the name of what a cell could load from a tree: equal trees have equal names.

    The same before and after a commit of it. None without a commit, or with a changed submodule.
    """
    top, root = find_top(root), root.resolve()
    if top is None or find_commit(root, "HEAD") is None:
        return None
    listed = output(root, "ls-tree", "-r", "-z", "--full-tree", "HEAD").split(b"\0")
    entries = (entry.partition(b"\t") for entry in filter(None, listed))
    blobs = {PurePath(os.fsdecode(name)): about.split()[-1] for about, _, name in entries}
    uncommitted = uncommitted_files(root, outputs=outputs, folders=[top])
    changed = [path for path, is_code in uncommitted.items() if is_code]
    if any(path.is_dir() and not path.is_symlink() for path in changed):
        return None
    for path in changed:
        blobs.pop(path.relative_to(top), None)
    files = [path for path in changed if path.is_file()]
    for begin in range(0, len(files), _AT_ONCE):
        some = files[begin : begin + _AT_ONCE]
        names = output(root, "hash-object", "--", *map(os.fspath, some)).split()
        blobs |= {path.relative_to(top): name for path, name in zip(some, names, strict=True)}
    digest = hashlib.sha256()
    for file in sorted(blobs):
        if _may_be_loaded(top, root, top / file):
            digest.update(b"%s %s\0" % (blobs[file], os.fsencode(file)))
    return digest.hexdigest()


def is_code_changed(root: Path, old: str, new: str) -> bool:
    """Whether two commits differ in more than documentation and the records of pytest's `root`."""
    top, root = find_top(root) or root, root.resolve()
    return any(_may_be_loaded(top, root, file) for file in changed_files(root, old, new))


class Changes(NamedTuple):
    """What differs between head and base; a module that only the base has is among the others."""

    documents: tuple[Path, ...]
    modules: tuple[Path, ...]
    others: tuple[Path, ...]


def compare_trees(
    top: Path, root: Path, files: Iterable[Path], base_top: Path, base_files: Iterable[Path]
) -> Changes:
    """Return how head's tree differs from the base's, byte by byte, in those files."""
    kinds: dict[str, list[Path]] = {"documents": [], "modules": [], "others": []}
    for path in sorted({*files, *base_files}):
        is_module = path.suffix == ".py" and path.name != "setup.py"  # which decides what is built
        if are_equal(top / path, base_top / path):
            continue
        if not _may_be_loaded(top, root, top / path):
            kinds["documents"].append(path)
        elif is_module and (top / path).is_file() and not (top / path).is_symlink():
            kinds["modules"].append(path)
        else:
            kinds["others"].append(path)
    return Changes(**{kind: tuple(paths) for kind, paths in kinds.items()})


def tree_files(top: Path, root: Path, outputs: Sequence[Path]) -> list[Path]:
    """Return the files of a checkout that a cell could load, from its top: no session left them."""
    unknown = listed_files(top, "--others", "--exclude-standard", "--", ".")
    is_sessions = _of_sessions(root, outputs)
    left = {
        path
        for path in unknown
        if is_sessions(top / path)
        or _LEFT_NAMES.fullmatch(path.name)
        or _is_left_behind(top, top / path)
    }
    return [path for path in working_files(top) if path not in left]


def _of_sessions(root: Path, outputs: Sequence[Path]) -> Callable[[Path], bool]:
    written = set(map(real_path, outputs))
    left = {(root / name).resolve() for name in _LEFT_IN_ROOT}
    # A package may have the name of one of those folders.
    return lambda path: (
        not written.isdisjoint((path, *path.parents))
        or (path.suffix not in IMPORTABLE and not left.isdisjoint(path.parents))
    )


def are_equal(one: Path, other: Path) -> bool:
    """Whether two files have the same bytes and mode, or are links that read the same."""
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    if not (one.is_file() and other.is_file()):
        return False
    is_program = [bool(path.stat().st_mode & stat.S_IXUSR) for path in (one, other)]
    return is_program[0] == is_program[1] and filecmp.cmp(one, other, shallow=False)


def is_left_out(folder: Path) -> bool:
    """Whether a folder is no part of a source tree: an environment, a cache, git's own."""
    # Path.exists raises where the folder may not be looked into.
    return folder.name in (".git", "__pycache__", SITE_FOLDER) or any(
        os.path.exists(folder / mark)  # noqa: PTH110
        for mark in _LEFT_OUT_MARKS
    )


def _is_left_behind(top: Path, path: Path) -> bool:
    folders = [folder for folder in path.parents if folder.is_relative_to(top) and folder != top]
    return any(
        folder.name.startswith(".")
        or folder.name == "node_modules"
        or is_left_out(folder)
        or (
            folder.name in ("build", "dist")
            and any((folder.parent / file).exists() for file in _PROJECT_FILES)
        )
        for folder in folders
    )


def _may_be_loaded(top: Path, root: Path, path: Path) -> bool:
    is_kept = path.is_relative_to(root) and is_record(path.relative_to(root))
    return not is_kept and not is_documentation(path.relative_to(top))
