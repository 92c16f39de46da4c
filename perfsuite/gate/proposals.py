"""Stored runs that come with the very change that is judged: they count once it is merged.

Whoever proposes a change writes what they like into its commits: a history of slow runs would let
any slowdown pass the screen. Must not know what a run holds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perfsuite.gate.repository import changed_files
from perfsuite.remote import AnyPath


def find_proposed(root: Path, storage: AnyPath, trunk: str | None) -> Callable[[AnyPath], bool]:
    """Return what tells of a stored run whether no branch but this one has it.

    Args:
        root: A folder of the checkout.
        storage: The place of `--benchmark-storage`; behind a URL nothing comes with a commit.
        trunk: The newest commit that HEAD shares with the upstream's default branch; None outside
            of git, where nothing is proposed.
    """
    if trunk is None or not isinstance(storage, Path):
        return lambda path: False
    changed = changed_files(root, trunk, storage.resolve())
    return lambda path: isinstance(path, Path) and not changed.isdisjoint(_names_of(path))


def _names_of(path: Path) -> set[Path]:
    """The file, and the link that leads to it, as git calls them."""
    return {path.parent.resolve() / path.name, path.resolve()}
