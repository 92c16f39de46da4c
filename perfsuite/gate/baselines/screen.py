"""The screen: which cells are clearly fine by the stored history, so that they need no pair.

It never fails a cell. Its formulas, and why they hold: docs/explanation/screen.md.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal, NamedTuple

from perfsuite.gate.judge.trial import CellPolicy
from perfsuite.records.run_file import StoredCell, StoredRun
from perfsuite.stats.intervals import exceeded_t, robust_sd
from perfsuite.stats.trend import as_ratio, find_trend
from perfsuite.units import format_ratio, format_seconds

# Older sessions ran older code on an older machine.
MAX_SESSIONS = 10
# With fewer sessions, a cell that is noisier than the others passes too often.
MIN_SESSIONS = 5
# Sessions that are searched for a change of level, which takes more than a screen.
NUM_SEARCHED = 20
# A slope costs a degree of freedom, and the spread of fewer probes is a guess: of four normal ones
# a fifth lies more than 3 robust sd from the median of the others.
_MIN_PROBES = 5
_REFUSED_SDS = 3.0
# A shift of three times this is the gap between tolerance and limit (2 % and 5 %): no smaller one
# can make a regression look fine, so it is corrected and not refused, however steady the history.
_MIN_PROBE_SD = 0.01
# Where the probe did not move, a slope on it would be the quotient of two noises.
_MIN_MOVED_SD = 0.001
# The weight of the prior variance, in degrees of freedom; it yields where a cell's own variance
# exceeds so many times the prior's, as in the rule for pairs (`stats.evidence`).
_PRIOR_DF = 8.0
_PRIOR_HOLDS_TO = 1.25
# A cell at its limit passes the screen in at most 2.5 % of sessions: a quarter of what may pass.
_TAIL = 0.025
_WEEK = timedelta(weeks=1)
_ProbesS = Mapping[str, float] | None  # of host and GPU, by name; None without any


class Screened(NamedTuple):
    """The result for one cell; what has a default is so where nothing can be compared."""

    reason: str
    num_sessions: int
    # PASS: no slowdown of the limit or more; IMPROVED: faster by more than the tolerance, too.
    word: Literal["PASS", "IMPROVED"] | None = None
    ratio: float | None = None  # head over history, 1.05 = 5 % slower, the host's shift taken out
    interval: tuple[float, float] | None = None  # 95 % bounds of the next session's ratio
    newest: StoredRun | None = None


class _Fit(NamedTuple):
    """A cell against its history: d, e, s², df and n of the formulas; leverage is SE² / v."""

    difference: float
    from_newest: float
    newest: StoredRun
    variance: float
    df: int
    leverage: float
    num_sessions: int


class Screener:
    """Which cells of a session are clearly fine; the others are for the judge.

    Cells come one by one, and each moderates those after it, by the formulas of
    docs/explanation/screen.md. `history` holds usable runs of the same environment, the newest
    commit last. `probe_s` is what probes of host and GPU took in this session, None without any.
    """

    def __init__(self, history: Sequence[StoredRun], probe_s: _ProbesS) -> None:
        self._unfit = why_unfit(history, probe_s)
        self._history, self._probe_s = history, probe_s
        self._fits: dict[str, _Fit] = {}

    def screen(
        self, name: str, cell: StoredCell, digest: str | None, policy: CellPolicy
    ) -> Screened:
        """Return what a cell of this session is against its history; its digest may be unknown."""
        if self._unfit is not None:
            return Screened(reason=self._unfit, num_sessions=0)
        sessions = _sessions_of(name, cell, digest, self._history)
        if (num := len(sessions)) < MIN_SESSIONS:
            reason = f"has {num} of the {MIN_SESSIONS} stored sessions that a screen needs"
            return Screened(reason=reason, num_sessions=num)
        fit = self._fits[name] = _fit(name, cell, sessions, self._probe_s)
        return _decide(fit, list(self._fits.values()), policy)


def why_unfit(history: Sequence[StoredRun], probe_s: _ProbesS) -> str | None:
    """Return why the host differs from the stored sessions, None where it does not, or unknown."""
    for name, seconds in (probe_s or {}).items():
        probes_s = [run.probe_s[name] for run in history if run.probe_s and name in run.probe_s]
        logs = [math.log(stored_s) for stored_s in probes_s[-MAX_SESSIONS:]]
        if len(logs) < _MIN_PROBES:
            continue
        centre = statistics.median(logs)
        allowed = _REFUSED_SDS * max(robust_sd(logs), _MIN_PROBE_SD)
        if abs(math.log(seconds) - centre) > allowed:
            return (
                f"the probe {name!r} took {format_seconds(seconds)}, and "
                f"{format_seconds(math.exp(centre))} in {len(logs)} stored sessions: a shift of "
                f"{format_ratio(abs(as_ratio(math.log(seconds) - centre) - 1))}, where "
                f"{format_ratio(as_ratio(allowed) - 1)} is usual; let the machine come to rest"
            )
    return None


def _sessions_of(
    name: str, cell: StoredCell, digest: str | None, history: Sequence[StoredRun]
) -> list[StoredRun]:
    """The last sessions of the cell, since its last change of level, intended or not."""
    sessions: list[StoredRun] = []
    for run in reversed(history):
        if (stored := run.cells.get(name)) is None or stored.fingerprint != cell.fingerprint:
            continue
        its_digest = None if run.stamp is None else run.stamp.digests.get(name)
        if (stored.num_samples, its_digest) != (cell.num_samples, digest):
            break  # another cell under the same name
        word = run.stamp.verdicts.get(name) if run.stamp else None
        # A slowdown that was not ruled out must not become the measure of the next one.
        if word != "INCONCLUSIVE":
            sessions.append(run)
        is_accepted = run.stamp is not None and name in run.stamp.accepted
        if len(sessions) == NUM_SEARCHED or word == "IMPROVED" or is_accepted:
            break
    sessions.reverse()
    weeks = [run.saved_at.timestamp() / _WEEK.total_seconds() for run in sessions]
    trend = find_trend(weeks, [run.cells[name].median_s for run in sessions])
    start = trend.steps[-1].place if trend is not None and trend.steps else 0
    return sessions[start:][-MAX_SESSIONS:]


def _fit(name: str, cell: StoredCell, sessions: Sequence[StoredRun], probe_s: _ProbesS) -> _Fit:
    num_sessions = len(sessions)
    cells = (cell, *(run.cells[name] for run in sessions))
    time, *times = (math.log(one.median_s) for one in cells)
    shift, *shifts = _probe_shifts(sessions, probe_s) or [0.0] * (num_sessions + 1)
    squares = sum(one**2 for one in shifts)
    products = sum(s * t for s, t in zip(shifts, times, strict=True))
    # No code runs faster on a slower host.
    slope = products / squares if products > 0 else 0.0
    df = num_sessions - (2 if slope else 1)
    unshifted = [t - slope * s for t, s in zip(times, shifts, strict=True)]
    return _Fit(
        difference=time - statistics.fmean(times) - slope * shift,
        from_newest=time - times[-1] - slope * (shift - shifts[-1]),
        newest=sessions[-1],
        variance=statistics.variance(unshifted) * ((num_sessions - 1) / df),
        df=df,
        leverage=1 + 1 / num_sessions + (shift**2 / squares if slope else 0.0),
        num_sessions=num_sessions,
    )


def _probe_shifts(sessions: Sequence[StoredRun], probe_s: _ProbesS) -> list[float] | None:
    """Return p - mean(p) of this session and each stored one; None where they give no slope."""
    runs = [probe_s or {}, *(run.probe_s or {} for run in sessions)]
    names = runs[0].keys()
    if not names or any(names - run.keys() for run in runs):
        return None
    probes = [statistics.fmean(math.log(run[name]) for name in names) for run in runs]
    mean = statistics.fmean(probes[1:])
    shifts = [probe - mean for probe in probes]
    return shifts if statistics.stdev(shifts[1:]) >= _MIN_MOVED_SD else None


def _decide(fit: _Fit, fits: Sequence[_Fit], policy: CellPolicy) -> Screened:
    prior_df = min(_PRIOR_DF, sum(other.df for other in fits) - fit.df)
    prior_variance = statistics.median([other.variance for other in fits])
    if fit.variance > _PRIOR_HOLDS_TO * prior_variance:
        prior_df *= _PRIOR_HOLDS_TO * prior_variance / fit.variance
    df = prior_df + fit.df
    variance = (prior_df * prior_variance + fit.df * fit.variance) / df
    margin = float(exceeded_t(_TAIL, df)) * math.sqrt(variance * fit.leverage)
    low, high = fit.difference - margin, fit.difference + margin
    is_fine = max(high, fit.from_newest) < math.log1p(policy.limit)
    is_faster = high < math.log1p(-policy.tolerance)
    return Screened(
        word=None if not is_fine else "IMPROVED" if is_faster else "PASS",
        reason=(
            f"{_in_words(fit.difference)} than {fit.num_sessions} stored sessions and "
            f"{_in_words(fit.from_newest)} than the newest; at worst {_in_words(high)}, limit "
            f"{format_ratio(policy.limit)}"
        ),
        ratio=as_ratio(fit.difference),
        interval=(as_ratio(low), as_ratio(high)),
        num_sessions=fit.num_sessions,
        newest=fit.newest,
    )


def _in_words(difference: float) -> str:
    change = as_ratio(difference) - 1
    return f"{format_ratio(abs(change))} {'slower' if change >= 0 else 'faster'}"
