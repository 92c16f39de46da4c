"""Stored runs that come with the very change that is judged: they count once it is merged.

Whoever proposes a change writes what they like into its commits: a history of slow runs would let
any slowdown pass the screen. Must not know what a run holds.
"""

from __future__ import annotations

from pathlib import Path

from perfsuite.gate.baselines import Choice
from perfsuite.gate.repository import changed_files
from perfsuite.gate.stored import Unusable
from perfsuite.remote import AnyPath, RemotePath

_REASON = "comes with the commits that are judged; it counts once they are merged"


def without_proposed(chosen: Choice, root: Path, storage: AnyPath, trunk: str | None) -> Choice:
    """Return a choice of runs without those that no branch but this one has.

    Args:
        chosen: Of the runs in the storage.
        root: A folder of the checkout.
        storage: Of `--benchmark-storage`; what lies behind a URL comes with no commit.
        trunk: The newest commit that HEAD shares with the upstream's default branch; None outside
            of git, where nothing is proposed.
    """
    if trunk is None or isinstance(storage, RemotePath):
        return chosen
    changed = changed_files(root, trunk, storage.resolve())
    proposed = [run for run in chosen.usable if _names_of(run.path) & changed]
    return Choice(
        usable=tuple(run for run in chosen.usable if run not in proposed),
        refused=(*chosen.refused, *(Unusable(path=run.path, reason=_REASON) for run in proposed)),
    )


def _names_of(path: AnyPath) -> set[Path]:
    """The file, and the link that leads to it, as git calls them."""
    assert isinstance(path, Path)
    return {path.parent.resolve() / path.name, path.resolve()}
