"""Where a session of ours stores its runs: a folder or a URL, each file whole or absent.

pytest-benchmark's session is handed one of these storages in place of its own, when collection has
ended; to it they are what it makes itself.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from pytest_benchmark.storage.file import FileStorage

from perfsuite.errors import WriteError
from perfsuite.gate.baselines.select import find_runs, save_run
from perfsuite.plugin import recorder
from perfsuite.plugin.output import ends_on_mistakes
from perfsuite.records.run_file import Unusable, read_run
from perfsuite.system.json_files import read_json
from perfsuite.system.urls import AnyPath, RemotePath, locate

# Where runs are stored; None where files cannot be stored there.
STORAGE = pytest.StashKey[AnyPath | None]()

# Called with what cannot be written.
Fail = Callable[[WriteError], None]

_DEFAULT_OF_PYTEST_BENCHMARK = "file://./.benchmarks"
# Where people review what they commit.
_DEFAULT = "file://./baselines"
# pytest-benchmark knows one other kind of URL, and writes whole documents there itself.
_ELASTICSEARCH = "elasticsearch+"
# How pytest-benchmark asks for every run of this machine.
_NUMBERED = "[0-9][0-9][0-9][0-9]_"


def encode_run(output_json: Any) -> bytes:
    """Return a run as pytest-benchmark writes it, with what JSON cannot hold as its text."""
    return json.dumps(output_json, ensure_ascii=True, indent=4, default=str).encode()


def use_storage(config: pytest.Config, fail: Fail) -> None:
    """Store where the option says, else under `baselines/`; raises a UsageError for a wrong URL."""
    given: str = config.getoption("benchmark_storage")
    session = recorder.session_of(config)
    if given == _DEFAULT_OF_PYTEST_BENCHMARK:
        given = config.option.benchmark_storage = _DEFAULT
    if given.startswith(_ELASTICSEARCH):
        config.stash[STORAGE] = None
        session.storage = recorder.open_storage(config, given)
        return
    with ends_on_mistakes():
        place = locate(given, "--benchmark-storage")
    if isinstance(place, RemotePath):
        config.stash[STORAGE] = place
        session.storage = UrlStorage(place, session, fail)
    else:
        config.stash[STORAGE] = config.invocation_params.dir / place
        session.storage = FolderStorage(place, session, fail)


class FolderStorage(FileStorage):
    """pytest-benchmark's storage in a folder; two sessions never take one number."""

    def __init__(self, place: Path, session: Any, fail: Fail) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            place, session.logger, default_machine_id=session.machine_id
        )
        self._fail = fail

    def save(self, output_json: Any, name: str) -> None:
        """Store a run of this machine."""
        save_whole(self, output_json, name, self._fail)


class UrlStorage:
    """A storage behind a URL, with the methods that pytest-benchmark's session calls."""

    def __init__(self, place: RemotePath, session: Any, fail: Fail) -> None:
        self.logger = session.logger
        self._place = place
        self._machine: str = session.machine_id
        self._fail = fail

    def __str__(self) -> str:
        return str(self._place)

    @property
    def location(self) -> str:
        """The place, for people."""
        return str(self._place)

    def get(self, name: str) -> RemotePath:
        """Return the path of a run of this machine."""
        return self._place / self._machine / name

    def save(self, output_json: Any, name: str) -> None:
        """Store a run of this machine."""
        save_whole(self, output_json, name, self._fail)

    def load(self, selector: str | None = None) -> Iterator[tuple[PurePosixPath, Any]]:
        """Yield the runs that a selector names, the newest last; without one, only the newest."""
        with ends_on_mistakes():
            found = find_runs(self._place, selector or _NUMBERED)
        for path in found if selector else reversed(found):
            run = read_run(path)
            if isinstance(run, Unusable):
                self.logger.warning(f"Failed to load {run}")
                continue
            yield PurePosixPath(path.parent.name, path.name), read_json(path)
            if selector is None:
                return


def save_whole(storage: Any, output_json: Any, name: str, fail: Fail) -> None:
    """Store a run under a number of its own, whole or not at all."""
    try:
        path = save_run(storage.get(name).parent, name, encode_run(output_json))
    except WriteError as error:
        fail(error)
        return
    storage.logger.info(f"Saved benchmark data in: {path}")
