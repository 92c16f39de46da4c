"""Lets a launch read the bytecode that installed packages already have.

What is under test is compiled into a folder of the arm's own (PYTHONPYCACHEPREFIX). To compile all
packages again takes seconds in each arm, and both arms import the same.
"""

from __future__ import annotations

import os
import sys
from importlib import _bootstrap_external

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def read_installed_bytecode() -> None:
    """Have imports look beside an installed source first; nothing is written there."""
    if sys.pycache_prefix is None:
        return
    find_in_prefix = _bootstrap_external.cache_from_source

    def cache_from_source(path: Any, *arguments: Any, **options: Any) -> str:
        cached: str = find_in_prefix(path, *arguments, **options)
        path = os.fspath(path)
        if path.startswith(_STANDARD_LIBRARY) or any(folder in path for folder in _PACKAGES):
            folder = os.path.join(os.path.dirname(path), "__pycache__")
            beside = os.path.join(folder, os.path.basename(cached))
            if os.path.exists(beside):
                return beside
        return cached

    _bootstrap_external.cache_from_source = cache_from_source
