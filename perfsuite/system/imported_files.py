"""Where a process imported its code from; copied into an arm, so the standard library alone."""

from __future__ import annotations

import re
import sys
from pathlib import Path

# Where installers put packages, and the standard library.
_INSTALLED = re.compile(r"(site|dist)-packages|/lib/python3")


def imported_files() -> dict[str, str]:
    """Return the file of each module; for an installed package, only the package's own file.

    For a top-level package without a file, its first folder.
    """
    files = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." not in name:
            file = file or next(iter(getattr(module, "__path__", ())), None)
        elif _INSTALLED.search(file or "") and _has_file(name.rpartition(".")[0]):
            continue  # its package represents it; there are thousands
        if file:
            files[name] = str(Path(file).resolve())
    return files


def _has_file(name: str) -> bool:
    """Whether a package has a file; else it is split over the folders of several projects."""
    return getattr(sys.modules.get(name), "__file__", None) is not None
