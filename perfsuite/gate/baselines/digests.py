"""A digest of what a cell is beside the code under test: benchmark files, options and recipe."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from perfsuite.errors import PerfsuiteError
from perfsuite.gate.git.overlay import Head, benchmark_files, is_test_file, plan_overlay
from perfsuite.gate.git.repository import find_top


class CellDigests:
    """The digests of a session's cells, from pytest's root, paths, `python_files` and options."""

    def __init__(
        self,
        root: Path,
        paths: Sequence[Path],
        python_files: Sequence[str],
        options: Sequence[tuple[str, str]] = (),
    ) -> None:
        top = find_top(root) or root.resolve()
        self._head = Head(top=top, root=root.resolve(), python_files=tuple(python_files))
        self._paths, self._options = paths, options
        self._digest_of_file = cache(self._digest_files)

    def of(self, cell: str, record: Mapping[str, Any]) -> str | None:
        """Return the digest of a cell, given its record; None where its files are not known."""
        try:
            files = self._digest_of_file(cell.partition("::")[0])
        except (PerfsuiteError, OSError):  # the session says why, where it needs the files
            return None
        kept = [files, record.get("workload"), record.get("recipe"), *self._options]
        return _digest(json.dumps(kept, sort_keys=True, default=str).encode())

    def _digest_files(self, file: str) -> str:
        own = (self._head.root / file).relative_to(self._head.top)
        digest = hashlib.sha256()
        for path in sorted(self._shared | {own}):
            digest.update(f"{path}\0{_digest((self._head.top / path).read_bytes())}\0".encode())
        return digest.hexdigest()

    @cached_property
    def _shared(self) -> set[Path]:
        files = benchmark_files(self._head, plan_overlay(self._head, self._paths))
        return {it for it in files if it.name == "conftest.py" or not is_test_file(self._head, it)}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
