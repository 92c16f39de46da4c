"""Whether compiled code is older than what head changes of its sources."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from perfsuite.gate.git.overlay import are_alike, read_start
from perfsuite.gate.provenance.head_files import BUILT, code_times, kept_files

# A copy of a checkout writes a source a moment after what was compiled from it.
_MARGIN_NS = 2 * 10**9
# What is in them is mostly no part of a library.
_BESIDE = frozenset({"doc", "docs", "example", "examples", "test", "tests"})


def find_stale(head: Path, base: Path, loaded: Iterable[Path]) -> str | None:
    """Return why the compiled code that head's checkout loads may not be its own; None if it is.

    `loaded` are files that git does not track, from the top of the checkout; the base's is `base`.
    Where anything was compiled since the newest source, all is taken to be, as builds do that.
    """
    # What both may use is a link.
    own = (
        path for path in loaded if os.path.realpath(base / path) != os.path.realpath(head / path)
    )
    compiled = {path: at for path in own if (at := _compiled_ns(head / path)) is not None}
    if not compiled:
        return None
    newest, built_ns = max(compiled.items(), key=lambda one: one[1])
    changed = {
        path: at_ns
        for path, at_ns in code_times(head).items()
        if path.suffix.lower() in BUILT
        and at_ns > built_ns + _MARGIN_NS
        and _BESIDE.isdisjoint(path.parts)
        and not are_alike(head / path, base / path)
    }
    if not changed:
        return None
    source, at_ns = max(changed.items(), key=lambda one: one[1])
    beside = (one for path in compiled for one in (head / path).parent.iterdir())
    if any((_compiled_ns(one) or 0) > at_ns for one in {*kept_files(head), *beside}):
        return None
    return (
        f"the head arm ran with {newest}, which git does not track, and nothing was compiled since "
        f"{source} was changed; build it anew, or touch {newest} where it holds the change"
    )


def _compiled_ns(file: Path) -> int | None:
    """When a file was compiled, in nanoseconds; None for one that was not, or is gone."""
    with contextlib.suppress(OSError):
        if file.is_file() and read_start(file, 4) == b"\x7fELF":
            return file.stat().st_mtime_ns
    return None
