"""Every error that a user of perfsuite can meet, as one hierarchy, and the exit codes.

A message says what is wrong, the value, where it came from, what is allowed and what to do. The
plugin and the command line print it alone: none of these is shown with a traceback of ours.
"""

import copyreg
import enum
import functools
import importlib.util
import re
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

# As in the extra "torch".
OLDEST_TORCH = (2, 11)


class ExitCode(enum.IntEnum):
    """What a session or a verb ends in; 3 (internal error) and 5 (no tests) are pytest's own."""

    OK = 0
    # A test, a training, a finding of `doctor` or an experiment of `claims` failed.
    FAILED = 1
    USAGE = 2
    PYTEST_USAGE = 4
    REGRESSION = 10
    INCONCLUSIVE = 11
    # No usable baseline, a vanished or invalid cell, an unfit machine, or an unwritable file.
    REFUSED = 12
    NOTHING_COMPARED = 13
    MISMATCH = 20
    NO_POWER = 21
    NOT_EXERCISED = 22


class PerfsuiteError(Exception):
    """Base of all errors with a message for the user."""


class SettingError(PerfsuiteError):
    """An option, ini value or marker argument has a value that is not allowed."""


class MissingPackageError(SettingError):
    """A package that an extra installs is not there."""


class RecipeError(PerfsuiteError, ValueError):
    """A recipe is impossible: a field, or a combination of fields."""


class WorkloadError(PerfsuiteError):
    """A workload is unknown, cannot be imported, or breaks the workload contract."""


class NotExercisedError(PerfsuiteError):
    """This machine cannot exercise the cell; the message is the reason. A skip, not a failure."""


class NonFiniteError(PerfsuiteError):
    """A loss, a gradient or a parameter became NaN or infinite during training."""


class EquivalenceError(PerfsuiteError):
    """A cell computes something else than its reference, so its speed is meaningless."""


class DataLoadError(PerfsuiteError):
    """The user's dataset, or a worker of its loader, failed."""


class DeviceError(PerfsuiteError):
    """A GPU, or its driver, does not answer any more, or not to this torch."""


class BusyMachineError(PerfsuiteError):
    """Another timing session of this user holds the machine."""


class StorageError(PerfsuiteError):
    """The place of stored runs cannot be listed."""


class WriteError(PerfsuiteError):
    """A file could not be written; nothing half-written stays."""


# What a failure only says of another rank: it waited for it in vain, or lost it.
PeerState = Literal["late", "gone"]


@dataclass(eq=False, repr=False)
class RankFailureError(PerfsuiteError):
    """One rank of a group failed; the others were ended because of it."""

    message: str
    _: KW_ONLY
    rank: int  # the first that failed, and never one that only lost its peer
    exit_code: int | None = None
    signal_name: str | None = None  # that ended it, such as "SIGKILL"
    log_lines: tuple[str, ...] = ()  # the last of its standard output and error
    peer: PeerState | None = None  # what it only reports of another; None is a failure of its own

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def __reduce__(self) -> tuple[object, ...]:
        # As any object's: an exception's own calls __init__ with `args`, where no keyword is.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class LostRankError(PerfsuiteError):
    """The pytest process of another rank is gone or silent; the session cannot go on."""


def missing_package(package: str, extra: str) -> str:
    """Return the sentence about a package that is not there, and the extra that installs it."""
    command = f"pip install 'perfsuite[{extra}]'"
    # torchvision fits one torch alone, and pip would replace the one that is there.
    if extra == "workloads" and (torch := installed_version("torch")) is not None:
        command += f" torch=={torch}"
    return f"{package} is not installed: {command}"


def import_extra(module: str, extra: str) -> Any:
    """Return a module of a package that an extra installs; raises a MissingPackageError."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingPackageError(missing_package(str(error.name), extra)) from error


@functools.cache
def require_torch() -> None:
    """Raise a MissingPackageError without torch, a SettingError for an old one; import neither."""
    if importlib.util.find_spec("torch") is None:
        raise MissingPackageError(missing_package("torch", "torch"))
    version = installed_version("torch")
    # A torch that is on the path without being installed has no version here.
    if version and tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_TORCH:
        oldest = "{}.{}".format(*OLDEST_TORCH)
        found = f"torch {version} is too old: install {oldest} or newer"
        raise SettingError(f"{found}; perfsuite replaces no torch")


def installed_version(package: str) -> str | None:
    """Return the version of a package, None where it is not installed."""
    # Imported here: what runs in a user's training imports this module.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
