"""What earlier A/A sessions on this machine say of its noise: read, written, and pooled.

A file that people may commit and others may edit, so it is read strictly. Must not know how a
session is run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from perfsuite import stats
from perfsuite.errors import WorkloadError
from perfsuite.files import write_atomically
from perfsuite.gate.rule import Prior
from perfsuite.measure.host import describe_host

# More A/A pairs than that say little more: the machine of tomorrow is not the one of today.
_MAX_DEGREES_OF_FREEDOM = 8.0
# As the rule's own floor: less is a coarse clock.
_LEAST_SD = 0.001
_MAX_FILE_BYTES = 16 * 2**20


# Where a calibration leaves what it has found, from the folder that is gated.
CALIBRATION_FILE = Path("baselines") / "calibration.json"


class CellNoise(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The noise of one cell's pairs.

    Attributes:
        sd: Standard deviation of log(head / base) over A/A pairs of identical code.
        num_pairs: How many there were.
    """

    sd: float
    num_pairs: int

    def as_prior(self) -> Prior:
        """What the rule may know beforehand; pairs that were all equal claim next to nothing."""
        return Prior(
            sd=max(self.sd, _LEAST_SD),
            degrees_of_freedom=min(_MAX_DEGREES_OF_FREEDOM, self.num_pairs - 1.0),
        )


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a calibration found.

    Attributes:
        fingerprint: Of the machine.
        cells: By the test's node id.
    """

    schema: Literal[1] = 1
    fingerprint: str
    cells: dict[str, CellNoise]


def pool_noise(sessions: Sequence[Sequence[float]]) -> CellNoise | None:
    """Return the spread of a cell's A/A pairs within sessions, None of fewer than two in any.

    The root of the mean of squared differences from each session's own mean, by degrees of freedom.

    Args:
        sessions: log(head / base) of each pair, session by session.

    >>> pool_noise([[0.01, -0.01], [0.0, 0.02]])
    CellNoise(sd=0.01414213562373095, num_pairs=4)
    """
    kept = [session for session in sessions if len(session) > 1]
    freedom = sum(len(session) - 1 for session in kept)
    if freedom == 0:
        return None
    squares = 0.0
    for session in kept:
        mean = math.fsum(session) / len(session)
        squares += math.fsum((value - mean) ** 2 for value in session)
    return CellNoise(sd=math.sqrt(squares / freedom), num_pairs=sum(map(len, kept)))


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration.

    Raises:
        WriteError: It cannot be written.
    """
    write_atomically(path, msgspec.json.format(msgspec.json.encode(calibration), indent=2))


def read_priors(path: Path, fingerprint: str) -> dict[str, Prior]:
    """Return what the rule may know beforehand, by cell: nothing without a file of this machine.

    Raises:
        WorkloadError: The file is no calibration.
    """
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise WorkloadError(f"{path} is too large for a calibration; make it anew")
        calibration = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except (OSError, msgspec.DecodeError) as error:
        raise WorkloadError(f"{path} is no calibration ({error}); make it anew") from error
    if calibration.fingerprint != fingerprint:
        return {}
    return {
        name: noise.as_prior()
        for name, noise in calibration.cells.items()
        if noise.num_pairs > 2 and math.isfinite(noise.sd)
    }


def typical_sd(cells: Mapping[str, CellNoise]) -> float | None:
    """Return the median over cells, None without any."""
    return stats.median([noise.sd for noise in cells.values()]) if cells else None


def read_noise(folder: Path, environ: Mapping[str, str]) -> dict[str, Prior]:
    """Return what a calibration of this machine, in this folder, knows of the noise of each cell.

    Raises:
        WorkloadError: Its file is no calibration.
    """
    host = describe_host(environ, len(os.sched_getaffinity(0)))
    return read_priors(folder / CALIBRATION_FILE, host.fingerprint)
