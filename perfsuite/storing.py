"""Where pytest-benchmark stores runs: a folder as it knows one, or a URL, which it does not.

A URL is taken out of its options before it reads them, and given back to its session as a storage
of its own kind. Must not know what is stamped or judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import pytest

from perfsuite.errors import SettingError, StorageError
from perfsuite.gate.baselines import find_runs
from perfsuite.gate.stored import Unusable, read_run
from perfsuite.json_file import read_json
from perfsuite.remote import AnyPath, RemotePath, locate

# Where runs are stored; None where that is no place for files.
STORAGE = pytest.StashKey[AnyPath | None]()
# What pytest-benchmark is to compare with once it has the storage.
_COMPARED = pytest.StashKey[Any]()

_STORAGE_OF_PYTEST_BENCHMARK = "file://./.benchmarks"
_STORAGE = "file://./baselines"
# The one other kind of URL that pytest-benchmark knows; it stays its own affair.
_ELASTICSEARCH = "elasticsearch+"
# How pytest-benchmark asks for every run of this machine.
_NUMBERED = "[0-9][0-9][0-9][0-9]_"
_EXIT_REFUSED = 12


def settle_storage(config: pytest.Config) -> None:
    """Store under `baselines/`, where people review what they commit; an explicit place stays.

    Raises:
        pytest.UsageError: It is a URL that nothing can be stored at.
    """
    given = config.getoption("benchmark_storage", None)
    if given is None:
        return
    if given == _STORAGE_OF_PYTEST_BENCHMARK:
        given = config.option.benchmark_storage = _STORAGE
    if given.startswith(_ELASTICSEARCH):
        config.stash[STORAGE] = None
        return
    try:
        place = locate(given, "--benchmark-storage")
    except SettingError as error:
        raise pytest.UsageError(str(error)) from error
    if isinstance(place, RemotePath):
        # A folder that is there already, since pytest-benchmark makes the one that it is given, and
        # nothing to look for in it.
        config.option.benchmark_storage = f"file://{config.rootpath}"
        config.stash[_COMPARED] = config.option.benchmark_compare
        config.option.benchmark_compare = None
    else:
        place = config.invocation_params.dir / place
    config.stash[STORAGE] = place


def attach_storage(config: pytest.Config, session: Any) -> None:
    """Give the session of pytest-benchmark the storage that a URL names, where one does."""
    place = config.stash.get(STORAGE, None)
    if isinstance(place, RemotePath):
        session.storage = UrlStorage(place, session)
        session.compare = config.stash[_COMPARED]
        session.handle_loading()


class UrlStorage:
    """What pytest-benchmark's session asks of a storage, of one that a URL names."""

    def __init__(self, place: RemotePath, session: Any) -> None:
        """Stand in for the storage of a session of pytest-benchmark."""
        self._place = place
        self._machine: str = session.machine_id
        self._logger = session.logger

    def __str__(self) -> str:
        return str(self._place)

    @property
    def location(self) -> str:
        """The place, for people."""
        return str(self._place)

    def get(self, name: str) -> RemotePath:
        """Return the path of a run of this machine."""
        return self._place / self._machine / name

    def load(self, selector: str | None = None) -> Iterator[tuple[PurePosixPath, Any]]:
        """Yield the runs that a selector names, the newest last; that one alone without any."""
        try:
            found = find_runs(self._place, selector or _NUMBERED)
        except StorageError as error:
            pytest.exit(f"perfsuite: {error}", returncode=_EXIT_REFUSED)
        except SettingError as error:
            raise pytest.UsageError(str(error)) from error
        for path in found if selector else reversed(found):
            run = read_run(path)
            if isinstance(run, Unusable):
                self._logger.warning(f"Failed to load {run}")
                continue
            yield PurePosixPath(path.parent.name, path.name), read_json(path)
            if selector is None:
                return
