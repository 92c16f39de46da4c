"""What a worktree of the base lacks: submodules, git-lfs files, and what head shares with it."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from perfsuite.errors import SettingError
from perfsuite.gate.git import repository
from perfsuite.gate.git.overlay import copy_file, make_folder, source_files

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_COMPILED = (".so", ".pyd", ".dylib", ".dll", ".a", ".o")


def copy_same_files(head: Path, tree: Path) -> None:
    """Copy submodules and git-lfs files that `head` has, unchanged, as the base's commit."""
    ours = repository.submodules(head)
    for path, commit in repository.submodules(tree).items():
        files = repository.files_of_commit(head / path, commit) if path in ours else None
        for file in files or ():
            copy_file(head, tree, path / file)
    for path in _pointers(tree):
        if (head / path).is_file():
            with (head / path).open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            if digest.encode() in (tree / path).read_bytes():
                copy_file(head, tree, path)


def missing_files(tree: Path) -> list[Path]:
    """Return the submodules and git-lfs files of its commit that a tree lacks; none outside git."""
    if repository.find_top(tree) is None:
        return []
    submodules = repository.submodules(tree)
    return [*(path for path in submodules if not any((tree / path).glob("*"))), *_pointers(tree)]


def _pointers(tree: Path) -> list[Path]:
    """The git-lfs files of a tree that are not there, only the pointers to them."""
    files = [tree / path for path in repository.listed_files(tree, "--", ":(attr:filter=lfs)")]
    return [file.relative_to(tree) for file in files if file.is_file() and _is_pointer(file)]


def _is_pointer(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(_LFS_POINTER)) == _LFS_POINTER


def check_shared(root: Path, shared: Sequence[str]) -> None:
    """Raise a SettingError for a path of `perf_share` that both arms must not share."""
    for name in shared:
        path = root / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise SettingError(f"perf_share names {name!r}; name a path inside of {root}")
        inside = [path / file for file in source_files(path)] if path.is_dir() else [path]
        if compiled := [one for one in inside if one.suffix in _COMPILED or ".so." in one.name]:
            raise SettingError(
                f"perf_share names {name!r}, and {compiled[0]} is compiled code, which each arm "
                "needs of its own; build it with --perf-base-build CMD"
            )
        if repository.tracked_files(root, [Path(name)]):
            raise SettingError(
                f"perf_share names {name!r}, which git tracks: the base has its own; name what git "
                "ignores"
            )


def share_files(root: Path, tree: Path, shared: Sequence[str]) -> tuple[str, ...]:
    """Link what head has and the base lacks into `tree`; return what was linked."""
    linked = []
    for name in shared:
        if (root / name).exists() and not (tree / name).exists():
            make_folder(tree, Path(name).parent)
            (tree / name).symlink_to((root / name).resolve())
            linked.append(name)
    return tuple(linked)
