"""Whether head's tree stayed as it is while it was judged: its launches run in the working tree."""

from collections.abc import Collection, Mapping
from pathlib import Path

from perfsuite.gate.git.overlay import tree_files
from perfsuite.units import listed

_CODE = frozenset({".py", ".pyx", ".c", ".cc", ".cpp", ".cu", ".h"})


def code_times(top: Path) -> dict[Path, int]:
    """Return when each source of a checkout was written, in nanoseconds."""
    files = [path for path in tree_files(top) if path.suffix in _CODE]
    return {path: (top / path).stat().st_mtime_ns for path in files if (top / path).is_file()}


def why_edited(top: Path, before: Mapping[Path, int]) -> str | None:
    """Return which sources were written or removed since; undone edits are edits."""
    edited = {str(path) for path, _ in before.items() - code_times(top).items()}
    if not edited:
        return None
    return (
        f"{listed(sorted(edited))} changed while head was judged, by an edit or by a test, so its "
        "launches did not run one tree; gate again, and leave the working tree as it is meanwhile"
    )


def name_new(top: Path, before: Collection[Path]) -> str | None:
    """Return which files a checkout has that git does not ignore and that were not there before."""
    new = set(tree_files(top)).difference(before)
    return f"new since, and left there: {listed(sorted(map(str, new)))}" if new else None
