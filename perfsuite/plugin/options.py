"""The `--perf-*` options and their ini twins; every session imports this, only ours `choices`."""

import argparse
from collections.abc import Container
from typing import Any, NamedTuple

import pytest


class Option(NamedTuple):
    """One option and its ini twin."""

    name: str  # without prefix, with hyphens: "collective-timeout"
    metavar: str  # what a value is; "on|off" are the words that it may be
    default: str  # as text, where neither command line nor ini file gives one
    help: str
    is_repeated: bool = False  # on the command line, and in the ini file a value a line

    @property
    def flag(self) -> str:
        """As on the command line."""
        return f"--perf-{self.name}"

    @property
    def ini(self) -> str:
        """As in an ini file."""
        return f"perf_{self.name.replace('-', '_')}"


_SHOWN = (
    Option("device", "auto|cpu|cuda", "auto", "where cells run; auto is cuda where there is a GPU"),
    Option("require-gpus", "N", "0", "refuse to run (exit 12) with fewer visible GPUs"),
    Option("rounds", "N", "10", "timed rounds of each cell"),
    Option("matrix", "smoke|default|full", "default", "how many of the cells run"),
    Option("numerics", "on|off", "on", "before timing, check that a cell computes as one process"),
    Option("identical", "pass|judge", "pass", "cells that no change touches pass, or are judged"),
    Option("numerics-change", "tell|fail", "tell", "tell or fail a cell whose losses moved"),
    Option("policy", "enforce|advisory", "enforce", "advisory: exit codes 10 to 13 become 0"),
    Option("gate", "on|off", "on", "judge cells under --benchmark-compare, or leave it as it is"),
    Option("limit", "RATIO", "5%", "slowdown that must not pass"),
    Option("base", "REV", "", "what cells are compared with; the merge base unless given"),
    Option("base-python", "PY", "", "interpreter of the base's launches; this one unless given"),
    Option("base-build", "CMD", "", "builds the base in its tree, or into $PERFSUITE_SITE"),
    Option("base-env", "KEY=VALUE", "", "a variable of the base's launches", is_repeated=True),
    Option("max-minutes", "TIME", "30min", "start no pair of launches that would end after this"),
    Option("timeout", "SECONDS", "120", "a cell fails after so long without progress"),
    Option("wait", "SECONDS", "86400", "patience with another timing session; 0 refuses (exit 12)"),
    Option("shard", "I/N", "1/1", "measure one of N shares of the cells, balanced by their times"),
)
# Left out of --help, because they follow from others.
_HIDDEN = (
    Option("tolerance", "RATIO", "", "slowdown that is accepted; 0.4 of the limit unless given"),
    Option("base-dir", "DIR", "", "a folder to compare with, instead of a revision"),
    Option("max-pairs", "N", "40", "launches of each side, at most; from 200 cells on 12 more"),
    Option("seed", "N", "0", "seed of weights, data order and random numbers"),
    Option("collective-timeout", "SECONDS", "30", "a rank fails that waits longer for another"),
    Option("report", "DIR", "results", "folder of run.json and cells.jsonl, from the rootdir"),
    Option("durations", "PATH", "", "run or folder that says how long cells took"),
)
OPTIONS = (*_SHOWN, *_HIDDEN)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare every option and its ini twin."""
    group = parser.getgroup("perfsuite", "performance of PyTorch training")
    for option in OPTIONS:
        text = f"{option.help} (ini: {option.ini}; default: {option.default or 'none'})"
        # argparse takes what follows a % for its own.
        shown = argparse.SUPPRESS if option in _HIDDEN else text.replace("%", "%%")
        action = "append" if option.is_repeated else "store"
        group.addoption(option.flag, action=action, metavar=option.metavar, help=shown)
        see = "" if option in _HIDDEN else f"; see {option.flag}"
        parser.addini(option.ini, help=f"{option.help}{see}", default=None)
    of_share = "files that git ignores, and both arms of a gate may use; from the rootdir"
    parser.addini("perf_share", help=of_share, type="args")


def given(config: pytest.Config, *, overridden: Container[str] = ()) -> dict[str, str]:
    """Return what the command line says, else the ini file; of `overridden` ones the ini file."""
    found = {}
    for option in OPTIONS:
        value: Any = None if option.name in overridden else config.getoption(option.flag)
        value = config.getini(option.ini) if value is None else value
        if value is not None:
            found[option.name] = "\n".join(value) if isinstance(value, list) else str(value)
    return found
