"""What earlier A/A sessions on this machine say of its noise; such a file is read strictly."""

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from perfsuite.errors import WorkloadError
from perfsuite.stats.evidence import LEAST_SD, Prior
from perfsuite.system.files import write_atomically
from perfsuite.system.untrusted import printable, read_untrusted, why_unreadable

# More A/A pairs than that say little more, because machines change from day to day.
_MAX_DEGREES_OF_FREEDOM = 8.0
_MAX_FILE_BYTES = 16 * 2**20
# A factor of e^50 between launches, a billion pairs: more is no measurement; its square overflows.
_MOST_SPREAD = 50.0
_MOST_PAIRS = 10**9

# Where a calibration is stored, relative to the gated folder.
CALIBRATION_FILE = Path("baselines") / "calibration.json"

LogRatio = Annotated[float, msgspec.Meta(ge=0, le=_MOST_SPREAD)]


class CellNoise(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The noise of one cell's A/A pairs: standard deviations and effects of log(head / base).

    Attributes:
        round_sd: The part of it that the rounds of the pairs explain; None where that is not known.
        order_effect: How much slower head was where it ran first than where the base did.
        session_sd: By how much means of sessions differ beyond what their pairs explain, or None.
        bias: By how much head was slower than a fresh checkout of itself.
    """

    sd: LogRatio
    num_pairs: Annotated[int, msgspec.Meta(ge=2, le=_MOST_PAIRS)]
    round_sd: LogRatio | None = None
    order_effect: Annotated[float, msgspec.Meta(ge=-_MOST_SPREAD, le=_MOST_SPREAD)] | None = None
    order_error: LogRatio | None = None
    session_sd: LogRatio | None = None
    bias: Annotated[float, msgspec.Meta(ge=-_MOST_SPREAD, le=_MOST_SPREAD)] | None = None
    bias_error: LogRatio | None = None

    @property
    def launch_sd(self) -> float | None:
        """The part that launches vary by, beyond what their rounds explain."""
        return None if self.round_sd is None else math.sqrt(max(0.0, self.sd**2 - self.round_sd**2))

    def as_prior(self) -> Prior:
        """What the rule may know beforehand; pairs that were all equal claim next to nothing."""
        freedom = min(_MAX_DEGREES_OF_FREEDOM, self.num_pairs - 1.0)
        return Prior(sd=max(self.sd, LEAST_SD), degrees_of_freedom=freedom)


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a calibration found on the machine of a fingerprint, by the test's node id."""

    schema: Literal[1] = 1
    fingerprint: str
    cells: dict[str, CellNoise]


class SessionPairs(NamedTuple):
    """The A/A pairs of one cell in one session, with the standard errors that are known."""

    log_ratios: Sequence[float]
    firsts: Sequence[str] = ()
    errors: Sequence[float] = ()


def pool_noise(sessions: Sequence[SessionPairs]) -> CellNoise | None:
    """Return the noise of a cell's A/A pairs; None with fewer than two in every session.

    The spread is that within sessions, about each one's own mean.
    """
    kept = [session.log_ratios for session in sessions if len(session.log_ratios) > 1]
    if not kept:
        return None
    num_pairs = sum(map(len, kept))
    squares = math.fsum(statistics.variance(one) * (len(one) - 1) for one in kept)
    errors = [error for session in sessions for error in session.errors]
    order_effect, order_error = _order_effect(sessions)
    variance = squares / (num_pairs - len(kept))
    return CellNoise(
        sd=math.sqrt(variance),
        num_pairs=num_pairs,
        round_sd=math.sqrt(statistics.median([error**2 for error in errors])) if errors else None,
        order_effect=order_effect,
        order_error=order_error,
        **_between_sessions(kept, variance),
    )


def _between_sessions(sessions: Sequence[Sequence[float]], variance: float) -> dict[str, float]:
    """What the means of sessions say, whose pairs vary by `variance`: a one-way random effect."""
    if len(sessions) < 2:
        return {}
    means = [statistics.fmean(session) for session in sessions]
    explained = variance * statistics.fmean([1 / len(session) for session in sessions])
    return {
        "session_sd": math.sqrt(max(0.0, statistics.variance(means) - explained)),
        "bias": statistics.fmean(means),
        "bias_error": math.sqrt(max(statistics.variance(means), explained) / len(means)),
    }


def _order_effect(sessions: Sequence[SessionPairs]) -> tuple[float, float] | tuple[None, None]:
    """Mean of the pairs where head ran first less that of the others, and its error."""
    pairs = [pair for one in sessions for pair in zip(one.firsts, one.log_ratios, strict=False)]
    base, head = ([ratio for first, ratio in pairs if first == arm] for arm in ("base", "head"))
    if min(len(base), len(head)) < 2:
        return None, None
    variance = sum(statistics.variance(ratios) / len(ratios) for ratios in (base, head))
    return statistics.fmean(head) - statistics.fmean(base), math.sqrt(variance)


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration; a `WriteError` where that is impossible."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(calibration), indent=2))


def parse_priors(data: bytes, fingerprint: str) -> dict[str, Prior]:
    """Return what a calibration of this machine tells the rule, by cell; a ValueError for none."""
    calibration = msgspec.json.decode(data, type=Calibration)
    if calibration.fingerprint != fingerprint:
        return {}
    cells = calibration.cells.items()
    return {name: noise.as_prior() for name, noise in cells if noise.num_pairs > 2}


def read_priors(path: Path, fingerprint: str) -> dict[str, Prior]:
    """Return the same of a file, which need not exist; a WorkloadError where it is wrong."""
    try:
        return parse_priors(read_untrusted(path, max_bytes=_MAX_FILE_BYTES), fingerprint)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        reason = printable(why_unreadable(error))
        raise WorkloadError(f"{path} is no calibration ({reason}); make it anew") from error


def median(values: Iterable[float | None]) -> float | None:
    """Return the median over cells of what is known, None without any."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
