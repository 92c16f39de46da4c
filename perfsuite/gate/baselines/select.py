"""Baselines: which stored runs a session may be compared with, why not the others, and saving.

And how long tests took in them, which every runner has to find alike for shards.
"""

import contextlib
import math
import os
import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from pytest_benchmark.utils import get_machine_id

from perfsuite.errors import SettingError, StorageError
from perfsuite.gate.git.find_base import find_trunk, read_lineage
from perfsuite.gate.git.repository import changed_files, find_top
from perfsuite.records import run_file
from perfsuite.records.run_file import RunHead, StoredRun, Unusable
from perfsuite.system.environment import Environment, difference
from perfsuite.system.files import explained, real_path, sync_folder, written_beside
from perfsuite.system.untrusted import printable
from perfsuite.system.urls import AnyPath, RemotePath, locate

# A server takes some 50 ms to answer, however many requests it serves.
_NUM_FETCHED = 8
# No run has a new cell, and it is not worth a search through all of them for its duration.
_MOST_RUNS = 100
# The names of the files that pytest-benchmark saves: four digits, then the name.
_NUMBERED = "[0-9][0-9][0-9][0-9]_*.json"

_Folder = TypeVar("_Folder", Path, RemotePath)
Selector = str | Literal[True]  # the value of `--benchmark-compare`: True for every run


class Choice(NamedTuple):
    """The runs to compare with, the newest last, and those that were refused."""

    usable: tuple[StoredRun, ...]
    refused: tuple[Unusable, ...]


class Trunk(NamedTuple):
    """Which runs belong to a history; outside of git all do."""

    is_in_history: Callable[[str], bool] | None = None
    brought: frozenset[Path] = frozenset()  # by the change, so that they do not count yet


def trunk_of(folder: Path, target: str | None) -> Trunk:
    """Return the trunk of a change in `folder`: where it goes to, as far as HEAD has that.

    A continuous integration names it as the `target`; it is else the upstream's default branch.
    """
    if (root := find_top(folder)) is None:
        return Trunk()
    if (trunk := find_trunk(root, target)) is None:
        return Trunk(lambda commit: False)
    return Trunk(read_lineage(root, trunk).__contains__, changed_files(root, trunk, "HEAD"))


def choose_runs(
    storage: AnyPath,
    selector: Selector,
    here: Environment | str,
    trunk: Trunk = Trunk(),  # noqa: B008  # immutable
    *,
    max_sessions: float = math.inf,
) -> Choice:
    """Return the newest runs that `sift_runs` finds, sorted, and why each other one is refused."""
    usable: list[StoredRun] = []
    refused: list[Unusable] = []
    num_sessions = Fraction()
    for run in sift_runs(storage, selector, here, trunk):
        if isinstance(run, Unusable):
            refused.append(run)
            continue
        usable.append(run)
        num_sessions += run.part
        if num_sessions >= max_sessions:
            break
    return Choice(
        usable=tuple(sorted(usable, key=lambda run: (run.saved_at, _place(run.path)))),
        refused=tuple(sorted(refused, key=lambda one: _place(one.path))),
    )


def sift_runs(
    storage: AnyPath, selector: Selector, here: Environment | str, trunk: Trunk
) -> Iterator[StoredRun | Unusable]:
    """Yield each stored run to compare with, or why it is refused: the newest first, read lazily.

    Files that hold no run come first. `selector` is the value of `--benchmark-compare`: True for
    every run, else a number, a glob or a path, as pytest-benchmark has them, or a URL. Raises a
    SettingError for an invalid one, a StorageError where the storage cannot be listed.
    """
    if not (files := find_runs(storage, selector)):
        yield _nothing_found(storage, selector)
    with ThreadPoolExecutor(_NUM_FETCHED) as pool:
        read = list(pool.map(lambda path: _look_within(storage, path, selector), files))
    yield from (one for one in read if isinstance(one, Unusable))
    found = zip(read, files, strict=True)
    moments = [(moment, path) for moment, path in found if not isinstance(moment, Unusable)]
    is_known = None if trunk.is_in_history is None else cache(trunk.is_in_history)
    used: dict[tuple[datetime, str | None], str] = {}
    for _, path in sorted(moments, key=lambda one: one[0], reverse=True):
        head = run_file.read_head(path)
        if isinstance(head, Unusable):
            yield head
            continue
        session = head.saved_at, head.commit
        reason = _why_refused(head, here, is_known)
        if reason is None and is_brought(path, trunk.brought):
            reason = "comes with the commits that are judged; it counts once they are merged"
        if reason is None and session in used:
            # Counted twice, it would make the history look steadier than it is.
            reason = f"is a copy of {used[session]}"
        if reason is not None:
            yield Unusable(path=path, reason=printable(reason))
            continue
        run = run_file.read_run(path)
        # A second stamp may come behind the benchmarks.
        if isinstance(run, StoredRun) and (why := _why_refused(run, here, is_known)):
            run = Unusable(path=path, reason=printable(why))
        if isinstance(run, StoredRun):
            used[session] = path.name
        yield run


def _look_within(storage: AnyPath, path: AnyPath, selector: Selector) -> datetime | Unusable:
    # A file that the user named may lie anywhere; one that was found must lie in the storage.
    if (
        isinstance(storage, Path)
        and isinstance(path, Path)
        and (selector is True or path != Path(selector))
        and not real_path(path).is_relative_to(real_path(storage))
    ):
        return Unusable(path=path, reason="is a link that leads out of the storage")
    return run_file.read_moment(path)


def find_runs(storage: AnyPath, selector: Selector = True) -> list[AnyPath]:
    """Return the files that a selector of `sift_runs` names, the highest number last."""
    if selector is True:
        # All machines' folders: the fingerprint separates them, with a reason for each refusal.
        return _find(storage, _NUMBERED, f"*/{_NUMBERED}")
    if "://" in selector:
        return [locate(selector, "--benchmark-compare")]
    if Path(selector).is_file():
        return [Path(selector)]
    # The rest is pytest-benchmark's rule: FOLDER-GLOB/FILE-GLOB, or FILE-GLOB in this machine's
    # folder, both also in the storage itself (pytest_benchmark/storage/file.py, query).
    folder, name = _split_glob(selector)
    try:
        return _find(storage, f"{folder}/{name}", name)
    except ValueError as error:  # such as "**" within a name
        raise _not_a_selector(selector) from error


def _find(storage: AnyPath, *patterns: str) -> list[AnyPath]:
    try:
        found = {file for pattern in patterns for file in storage.glob(pattern)}
    except OSError as error:
        raise StorageError(f"{storage}: cannot be listed: {error.strerror}") from error
    return sorted(found, key=_place)


def _split_glob(selector: str) -> tuple[str, str]:
    *folders, name = Path(selector).parts or ("",)
    name = name.rstrip("*")
    # Within a name "**" is an error to Python before 3.13 alone.
    has_stars = any("**" in part and part != "**" for part in (*folders, name))
    if Path(selector).is_absolute() or ".." in (*folders, name) or len(folders) > 1 or has_stars:
        raise _not_a_selector(selector)
    folder = folders[0] if folders else get_machine_id()  # type: ignore[no-untyped-call]
    return folder, f"{name}*.json"


def _not_a_selector(selector: str) -> SettingError:
    return SettingError(
        f"--benchmark-compare is {selector!r} (command line), and there is no such file; use a "
        "number such as 0001, a glob such as 'Linux*/0001', or the path of a stored run"
    )


def _place(file: AnyPath) -> tuple[str, str]:
    return file.name, str(file.parent)


def _nothing_found(storage: AnyPath, selector: Selector) -> Unusable:
    if isinstance(storage, Path) and not storage.is_dir():
        what = "is no folder" if storage.exists() else "does not exist"
        return Unusable(path=storage, reason=f"{what}, so no run is stored in it")
    matching = "" if selector is True else f" that matches {selector!r}"
    return Unusable(path=storage, reason=f"holds no stored run{matching}")


def _why_refused(
    run: RunHead, here: Environment | str, is_in_history: Callable[[str], bool] | None
) -> str | None:
    if (stamp := run.stamp) is None:
        found = "has no stamp of perfsuite, which says whether its tests passed and where it ran"
        return f"{found}; save it again with --benchmark-save"
    if stamp.is_pull_request:
        return "was saved from a pull request"
    if stamp.num_failed:
        return f"{stamp.num_failed} of its tests failed"
    for cell, word in stamp.verdicts.items():
        if word in ("INVALID", "ERROR") or (word == "FAIL" and cell not in stamp.accepted):
            return f"the verdict of its cell {cell} is {word}"
    if stamp.fingerprint is None:
        return "does not say in which environment it was made"
    there = stamp.environments.get(stamp.fingerprint, stamp.fingerprint)
    if stamp.fingerprint != here and (differs := difference(there, here)):
        return f"was made in another environment: {differs}"
    if is_in_history is None:
        return None
    if run.is_dirty:
        return "was made from uncommitted changes"
    if run.commit is None:
        return "does not say from which commit it was made"
    if not is_in_history(run.commit):
        told = "is not in the base's history (without a gate: the default branch's)"
        return f"its commit {run.commit[:12]} {told}"
    return None


def save_run(folder: AnyPath, name: str, data: bytes) -> AnyPath:
    """Save a run under the next free number and return where; raises a WriteError."""
    with explained(f"save {folder}/NNNN_{name}.json"):
        if isinstance(folder, RemotePath):
            remote = _take_number(folder, name, lambda path: path.create(data))
            if remote.refuses(data):
                return remote
            # The server lets others write over it, so it is saved again under a name that is drawn
            # once. The file under the first name may be another session's by now: it stays.
            drawn = f"{name}-{uuid.uuid4().hex}"
            return _take_number(folder, drawn, lambda path: path.create(data))
        with written_beside(folder / f"NNNN_{name}.json", data) as beside:
            # Unlike a rename a link fails where the name is taken.
            path = _take_number(folder, name, lambda path: os.link(beside, path))
            sync_folder(folder)
            return path


def _take_number(folder: _Folder, name: str, create: Callable[[_Folder], None]) -> _Folder:
    """Return the first path above the highest number that `create` could make."""
    number = max((int(path.name[:4]) for path in folder.glob(_NUMBERED)), default=0)
    while True:
        number += 1
        path = folder / f"{number:04}_{name}.json"
        with contextlib.suppress(FileExistsError):
            create(path)
            return path


def is_brought(path: AnyPath, brought: frozenset[Path]) -> bool:
    """Whether a stored run is among the files that a change brings."""
    # Git may name the file itself, or the link to it.
    return isinstance(path, Path) and not brought.isdisjoint(
        {real_path(path.parent) / path.name, real_path(path)}
    )


def read_durations(
    source: AnyPath | None, names: Collection[str], *, but_of: str | None
) -> tuple[dict[str, float | None], list[Unusable]]:
    """Return how long tests took when they were last measured, on any machine, and unread files.

    `source` is a folder of stored runs, a StorageError where it cannot be listed, or one of them.
    Runs of the commit `but_of` do not count. A new test has None.
    """
    seconds: dict[str, float | None] = dict.fromkeys(names)
    unknown, refused = set(seconds), list[Unusable]()
    newest_first: list[AnyPath] = []
    if source is not None:
        is_run = not source.is_dir() if isinstance(source, Path) else source.name.endswith(".json")
        newest_first = [source] if is_run else find_runs(source)[::-1]
    for path in newest_first[:_MOST_RUNS]:
        if not unknown:
            break
        head = run_file.read_head(path)
        if isinstance(head, Unusable):
            refused.append(head)
        elif head.stamp is not None and (but_of is None or head.commit != but_of):
            found = unknown & head.stamp.durations_s.keys()
            seconds |= {name: head.stamp.durations_s[name] for name in found}
            unknown -= found
    return seconds, refused
