"""The command line: one console script, one verb a module."""

from perfsuite.cli.app import main

__all__ = ["main"]
