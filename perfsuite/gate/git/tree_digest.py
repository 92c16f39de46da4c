"""A name for the code of a tree as it is, committed or not: equal trees have equal names."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path, PurePath

from perfsuite.gate.git.changes import is_documentation, is_record, uncommitted_files
from perfsuite.gate.git.command import find_commit, output
from perfsuite.gate.git.repository import find_top


def digest_tree(root: Path, *, outputs: Sequence[Path] = ()) -> str | None:
    """Return the digest of what a cell could load from a checkout; None without a commit.

    It is the same before and after a commit of it.
    """
    top = find_top(root)
    if top is None or find_commit(root, "HEAD") is None:
        return None
    blobs: dict[PurePath, bytes] = {}
    listed = output(root, "ls-tree", "-r", "-z", "--full-tree", "HEAD").split(b"\0")
    for entry in filter(None, listed):
        described, _, name = entry.partition(b"\t")
        blobs[PurePath(os.fsdecode(name))] = described.split()[-1]
    changed = [path for path, is_code in uncommitted_files(root, top, outputs=outputs) if is_code]
    for path in changed:
        blobs.pop(path.relative_to(top), None)
    files = [path for path in changed if path.is_file()]
    if files:
        names = output(root, "hash-object", "--", *map(os.fspath, files)).split()
        blobs |= {path.relative_to(top): name for path, name in zip(files, names, strict=True)}
    place = root.resolve().relative_to(top)
    digest = hashlib.sha256()
    for file in sorted(blobs):
        is_ours = file.is_relative_to(place) and is_record(file.relative_to(place))
        if not is_documentation(file) and not is_ours:
            digest.update(b"%s %s\0" % (blobs[file], os.fsencode(file)))
    return digest.hexdigest()
