"""The command line: one console script, one verb a module."""

from __future__ import annotations

from perfsuite.cli.app import main

__all__ = ["main"]
