"""The base's source tree: made in a temporary folder, and always removed.

Its name carries this process's id, so a later session removes the tree of a killed one.
"""

import contextlib
import glob
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from perfsuite.errors import SettingError
from perfsuite.gate.git import overlay, repository
from perfsuite.gate.git.changes import are_equal, is_documentation
from perfsuite.system.environment import PID_NAMESPACE
from perfsuite.system.files import explained
from perfsuite.system.signals import uninterrupted

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_LONG_AGO_S = 10**9  # as no file of a checkout is
_COMPILED = (".so", ".pyd", ".dylib", ".dll", ".a", ".o")
# "perfsuite-<process id>-", as the folders of rank groups are named. A living session in another
# container, or on another machine, may share the repository or the folder: its trees are not stale.
_TREE_NAME = re.compile(rf"perfsuite-(\d+)-(?:base|pair)-{PID_NAMESPACE}-\w+")


@contextlib.contextmanager
def base_tree(root: Path, base: repository.Base) -> Iterator[Path]:
    """Give the base's counterpart of `root`, in a git worktree that is gone after the context."""
    if (top := repository.find_top(root)) is None:
        raise SettingError(f"{root} is not in a git checkout; {repository.USE_FOLDER}")
    with _temporary_folder(repository.worktree_records(root), near=top) as folder:
        arm_root = root.resolve().relative_to(top)
        with overlay.as_write_error(folder):
            repository.add_worktree(root, base, folder)
            copy_same_files(top, folder)
            overlay.make_folder(folder, arm_root)
        yield folder / arm_root


@contextlib.contextmanager
def directory_tree(head: overlay.Head, base_dir: Path) -> Iterator[Path]:
    """Give a copy of the base's root `base_dir` likewise, ignored files too: builds are ignored."""
    source = head.top_of(base_dir.resolve())
    with _temporary_folder(None, near=repository.find_top(head.top) or head.top) as folder:
        with overlay.as_write_error(folder):
            for path in overlay.source_files(source, leave_out=folder):
                overlay.copy_file(source, folder, path)
        yield folder / head.root.relative_to(head.top)


def lay_benchmarks(
    tree: Path, head: overlay.Head, paths: Sequence[Path]
) -> tuple[list[Path], dict[Path, bytes]]:
    """Lay head's benchmark files over `tree`; return those that change, and what was there.

    Both are relative to the tree, and the latter are Python files.
    """
    laid, folder = overlay.plan_overlay(head, paths), head.top_of(tree)
    base = head._replace(top=folder, root=tree)
    files = {path for side in (head, base) for path in overlay.benchmark_files(side, laid)}
    inside = [file for file in files if (folder / file).is_relative_to(tree)]
    python = [folder / file for file in inside if file.suffix == ".py"]
    data = [one for one in inside if one.suffix != ".py" and not is_documentation(one)]
    own = {file: overlay.read_source(file) for file in python if file.is_file()}
    with overlay.as_write_error(folder):
        others = {folder / one for one in data if not are_equal(head.top / one, folder / one)}
        overlay.lay_over(folder, head, laid)
        overlay.make_folder(folder, head.root.relative_to(head.top))
    laid_files = [file for file in (*python, *others) if file.is_file()]
    changed = [it for it in laid_files if it in others or overlay.read_source(it) != own.get(it)]
    # Python knows what it has compiled of the base's own file by its size and second.
    for file in (one for one in changed if one.suffix == ".py"):
        os.utime(file, (_LONG_AGO_S, _LONG_AGO_S), follow_symlinks=False)
    in_tree = sorted(file.relative_to(tree) for file in changed)
    return in_tree, {file.relative_to(tree): source for file, source in own.items()}


def copy_same_files(head: Path, tree: Path, stores: list[Path] | None = None) -> bool:
    """Fill submodules and git-lfs files as `head` has fetched them; False where it has others."""
    is_whole, stores = True, repository.submodule_stores(head) if stores is None else stores
    for path, commit in repository.submodules(tree).items():
        here, there = head / path, tree / path
        is_empty = here.is_dir() and not any(here.iterdir())  # as is one that was not fetched
        has_it = not is_empty and repository.check_out_from(here, stores, commit, there)
        if has_it and copy_same_files(here, there, stores):
            shutil.rmtree(there / ".git")
        else:
            shutil.rmtree(there)
            overlay.make_folder(tree, path)
            is_whole &= not any(here.glob("*"))
    for path in _pointers(tree):
        if (head / path).is_file():
            with (head / path).open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            if digest.encode() in (tree / path).read_bytes():
                overlay.copy_file(head, tree, path)
            else:
                is_whole &= overlay.read_start(head / path, len(_LFS_POINTER)) == _LFS_POINTER
    return is_whole


def missing_files(tree: Path) -> list[Path]:
    """Return the submodules and git-lfs files of its commit that a tree lacks; none outside git."""
    if repository.find_top(tree) is None:
        return []
    submodules = repository.submodules(tree)
    return [*(path for path in submodules if not any((tree / path).glob("*"))), *_pointers(tree)]


def _pointers(tree: Path) -> list[Path]:
    """The git-lfs files of a tree that are not there, only the pointers to them."""
    listed, size = repository.listed_files(tree, "--", ":(attr:filter=lfs)"), len(_LFS_POINTER)
    there = (path for path in listed if (tree / path).is_file())
    return [path for path in there if overlay.read_start(tree / path, size) == _LFS_POINTER]


def check_shared(root: Path, shared: Sequence[str]) -> None:
    """Raise a SettingError for a path of `perf_share` that both arms must not share."""
    for name in shared:
        path = root / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise SettingError(f"perf_share names {name!r}; name a path inside of {root}")
        inside = [path / file for file in overlay.source_files(path)] if path.is_dir() else [path]
        if compiled := [one for one in inside if one.suffix in _COMPILED or ".so." in one.name]:
            why_not = f"{compiled[0]} is compiled code, which each arm needs of its own"
            advice = "build it with --perf-base-build CMD"
            raise SettingError(f"perf_share names {name!r}, and {why_not}; {advice}")
        if repository.tracked_files(root, [Path(name)]):
            why_not = "which git tracks: the base has its own"
            raise SettingError(f"perf_share names {name!r}, {why_not}; name what git ignores")


def share_files(root: Path, tree: Path, shared: Sequence[str]) -> tuple[str, ...]:
    """Link what head has and the base lacks into `tree`; return what was linked."""
    linked = []
    for name in shared:
        if (root / name).exists() and not (tree / name).exists():
            overlay.make_folder(tree, Path(name).parent)
            (tree / name).symlink_to((root / name).resolve())
            linked.append(name)
    return tuple(linked)


def ignore_trees_in(root: Path) -> tuple[str, ...]:
    """Return options of pytest that keep it from collecting a tree's tests as those of `root`."""
    # A CI job may set TMPDIR to a folder of its checkout.
    temporary = Path(tempfile.gettempdir())
    folders = sorted({temporary, temporary.resolve()})
    inside = (glob.escape(str(folder)) for folder in folders if folder.is_relative_to(root))
    return tuple(f"--ignore-glob={folder}/perfsuite-[0-9]*" for folder in inside)


def sweep_stale_trees(root: Path) -> None:
    """Remove this user's trees of killed sessions, and the records of them in `root`'s git."""
    if (records := repository.worktree_records(root)) is not None:
        for record in filter(_is_stale, records.glob("perfsuite-*")):
            _remove_tree(_recorded_folder(record), records)
    top = repository.find_top(root) or root
    for place in {Path(tempfile.gettempdir()), top.resolve().parent}:
        for folder in filter(_is_stale, place.glob("perfsuite-*")):
            _remove_tree(folder, None)


def why_elsewhere(tree: Path, root: Path) -> str | None:
    """Return where the base's tree is, if that is another file system than that of `root`."""
    if tree.stat().st_dev == root.stat().st_dev:
        return None
    place = (repository.find_top(root) or root).parent
    return f"it is in {tree}, on another file system than the checkout: none can be made in {place}"


@contextlib.contextmanager
def _temporary_folder(records: Path | None, *, near: Path) -> Iterator[Path]:
    """Give an empty folder, for a worktree where git's records are given.

    Beside the checkout `near`: on one file system, and not in it, where tools would find its files.
    """
    beside, prefix = near.resolve().parent, f"perfsuite-{os.getpid()}-base-{PID_NAMESPACE}-"
    name = None
    with contextlib.suppress(OSError):
        if beside.stat().st_dev == near.stat().st_dev:
            name = tempfile.mkdtemp(prefix=prefix, dir=beside)
    with explained("make a temporary folder for the base's tree"):
        folder = Path(name or tempfile.mkdtemp(prefix=prefix, dir=None)).resolve()
    try:
        yield folder
    finally:
        _remove_tree(folder, records)


def _remove_tree(folder: Path, records: Path | None) -> None:
    """Remove a tree, and git's record of it, as far as there is any.

    Not through git: `git worktree remove` needs a whole worktree, an unlocked record and one more
    process; `git worktree prune` would remove other stale records too, which are the user's.
    """
    with uninterrupted():
        # A folder without the right to write keeps what is in it.
        for at, folders, _ in os.walk(folder):
            for name in folders:
                if not (Path(at) / name).is_symlink():
                    with contextlib.suppress(OSError):  # gone by now
                        (Path(at) / name).chmod(0o700)
        # A failure to remove must not cost the verdict: the next sweep tries again.
        shutil.rmtree(folder, ignore_errors=True)
        if records is not None:
            shutil.rmtree(records / folder.name, ignore_errors=True)
            with contextlib.suppress(OSError):  # other worktrees have records there
                records.rmdir()


def _is_stale(path: Path) -> bool:
    if (name := _TREE_NAME.fullmatch(path.name)) is None or psutil.pid_exists(int(name[1])):
        return False
    return path.is_dir() and path.lstat().st_uid == os.getuid()


def _recorded_folder(record: Path) -> Path:
    """Return where the tree of a record is; git names the record by the last part of its path."""
    with contextlib.suppress(OSError):  # the session was killed before git had written it
        folder = Path((record / "gitdir").read_text().removesuffix("\n")).parent
        if folder.name == record.name:
            return folder
    return Path(tempfile.gettempdir()) / record.name
