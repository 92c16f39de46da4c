"""The sequential rule: what the pairs of one cell prove.

Its bounds and levels, and why they hold: docs/explanation/error-rates.md. Figures, and what else
was tried: decisions 0008 and 0019; `python benchmarks/gate_error_rates.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast, get_args

from perfsuite.stats.evidence import Evidence, Pair, Prior, Sessions, weigh
from perfsuite.stats.spending import FIRST_FULL_LOOK, Schedule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Word = Literal["PASS", "FAIL", "IMPROVED", "INCONCLUSIVE"]
WORDS = get_args(Word)

# With 20 a cell of identical code whose pairs have an sd of 10 % would be INCONCLUSIVE.
DEFAULT_MAX_PAIRS = 40
# Fewer pairs prove no slowdown.
LEAST_MAX_PAIRS = FIRST_FULL_LOOK

# A process may be fast or slow for its whole life: where half of them are slower by 10 %, three of
# three pairs say so of head once in 64 sessions of identical code, and six of six once in 4,096.
_LEAST_FAILED_PAIRS = 6

# From so many cells on alpha / cells costs more pairs than a second stage. The first one takes the
# level of 24 cells, the second has one look at so many fresh pairs: at a pair sd of 2 % they
# confirm 97 of 100 slowdowns of the limit among 500 cells.
_TWO_STAGES_FROM = 200
_FIRST_STAGE_CELLS = 24
_CONFIRMING_PAIRS = 12
# Of beta: both stages can end in PASS, and few cells at their limit reach the second undecided.
_FIRST_STAGE_BETA = 0.75

# What `recommend` tries, from the tightest on: a tolerance of a quarter to two fifths of the limit.
_TOLERANCES = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.20)
_LIMITS = (0.02, 0.03, 0.04, 0.05, 0.075, 0.10, 0.15, 0.20, 0.30, 0.50)
# Three standard errors of a rate of 10 % are 1.4 points.
_NUM_SESSIONS = 4000
_OFTEN_ENOUGH = 0.9


@dataclass(frozen=True, kw_only=True)
class Rule(Schedule):
    """The requirements on a cell, the error rates, and where they are spent in the first stage."""

    tolerance: float  # the slowdown that is accepted, 0.02 = 2 %
    limit: float  # the one that must not pass
    num_cells: int  # under test in the session: they share `alpha`
    max_pairs: int = DEFAULT_MAX_PAIRS
    # Probability of a FAIL in a session with all cells within the tolerance, and of an IMPROVED in
    # one with no cell faster than that.
    alpha: float = 0.05
    beta: float = 0.075  # of a PASS of a cell at its limit; the screen has 2.5 % more
    prior: Prior | None = None  # None where this machine has no history: the pairs alone count

    def __post_init__(self) -> None:
        allowed = {
            "tolerance": (0 <= self.tolerance < 1, "in [0, 1)"),
            "limit": (
                self.tolerance <= self.limit < math.inf,
                f"finite and at least the tolerance, {self.tolerance}",
            ),
            "num_cells": (self.num_cells >= 1, "at least 1"),
            "num_sessions": (self.num_sessions >= 1, "at least 1"),
            "max_pairs": (self.max_pairs >= LEAST_MAX_PAIRS, f"at least {LEAST_MAX_PAIRS}"),
            "alpha": (0 < self.alpha < 0.5, "in (0, 0.5)"),
            "beta": (0 < self.beta < 0.5, "in (0, 0.5)"),
        }
        for name, (is_allowed, text) in allowed.items():
            if not is_allowed:
                raise ValueError(f"a rule's {name} is {getattr(self, name)}; it must be {text}")

    @property
    def stages(self) -> tuple[Rule, ...]:
        """The rules of its stages, one or two."""
        if self.num_cells < _TWO_STAGES_FROM:
            return (self,)
        first = replace(self, num_cells=_FIRST_STAGE_CELLS, beta=_FIRST_STAGE_BETA * self.beta)
        second = replace(
            self,
            num_cells=1,
            max_pairs=_CONFIRMING_PAIRS,
            first_look=_CONFIRMING_PAIRS,
            alpha=_FIRST_STAGE_CELLS / self.num_cells,
            beta=(1 - _FIRST_STAGE_BETA) * self.beta,
        )
        return first, second


@dataclass(frozen=True)
class Decision:
    """The conclusion from the first `num_pairs` pairs."""

    word: Word | None  # None as long as more pairs are needed
    ratio: float  # the location of head / base, 1.05 = 5 % slower
    mean_ratio: float  # has stalls in it
    mean_differs: bool
    interval: tuple[float, float]  # the two bounds of the ratio that decide
    num_pairs: int
    # The smallest slowdown, 0.034 = 3.4 %, that four of five such sessions would have proven.
    detectable: float


def decide(pairs: Sequence[Pair], rule: Rule) -> Decision:
    """Return what the pairs so far prove, by going through the looks they have reached.

    A pure function of its arguments: the first look that decides holds, whatever comes later, so a
    verdict can be recomputed from the raw pairs, in their order. Between looks the interval is the
    running one, at the level of the next look. Raises a ValueError where there is no pair.
    """
    import numpy as np

    if not pairs:
        raise ValueError("there is no pair to decide on; the rule needs at least one")
    values = [(pair.log_ratio, pair.mean_log_ratio, pair.error or 0.0) for pair in pairs]
    session = Sessions(*np.array(values)[np.newaxis].transpose(2, 0, 1))
    words, begins, ends = follow(session, rule)
    begin, end, stage = int(begins[0]), int(ends[0]), rule.stages[int(begins[0] > 0)]
    if end - begin < 2 and begin > 0:  # what was flagged, before two fresh pairs
        begin, end, stage = 0, begin, rule.stages[0]
    if end < 2:  # one pair does not show its spread
        ratio, mean_ratio = math.exp(pairs[0].log_ratio), math.exp(pairs[0].mean_log_ratio)
        return Decision(None, ratio, mean_ratio, False, (0.0, math.inf), 1, math.inf)
    evidence = weigh_look(session.select(np.array([0]), begin, end), stage)
    word = cast(Word | None, str(words[0]) or None)
    upper = evidence.improved if word == "IMPROVED" else evidence.upper
    with np.errstate(over="ignore"):  # a bound beyond every number is infinite
        return Decision(
            word=word,
            ratio=float(np.exp(evidence.location[0])),
            mean_ratio=float(np.exp(evidence.mean[0])),
            mean_differs=bool(evidence.mean_differs[0]),
            interval=(float(np.exp(evidence.lower[0])), float(np.exp(upper[0]))),
            num_pairs=int(ends[0]),
            detectable=float(np.expm1(math.log1p(rule.tolerance) + evidence.detectable[0])),
        )


def follow(
    pairs: Sessions, rule: Rule
) -> tuple[NDArray[np.str_], NDArray[np.int64], NDArray[np.int64]]:
    """Return each session's word, "" where the pairs do not suffice, and the pairs it rests on.

    The pairs are (S, n) and finite; the results are (S,): words, and where their pairs begin and
    end. In a second stage they begin where the first one flagged the cell.
    """
    import numpy as np

    first, *later = rule.stages
    words, ends = _follow_stage(pairs, first)
    begins = np.zeros_like(ends)
    for stage in later:
        is_flagged = np.isin(words, ("FAIL", "IMPROVED"))
        for begin in np.unique(ends[is_flagged]):
            flagged = np.flatnonzero(is_flagged & (ends == begin) & (begins == 0))
            fresh = pairs.select(flagged, begin, pairs.log_ratios.shape[1])
            words[flagged], num_fresh = _follow_stage(fresh, stage)
            begins[flagged], ends[flagged] = begin, begin + num_fresh
    return words, begins, ends


def _follow_stage(pairs: Sessions, rule: Rule) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    import numpy as np

    num_sessions, num_pairs = pairs.log_ratios.shape
    looks = rule.looks
    words = np.full(num_sessions, "", dtype="<U12")
    ends = np.full(num_sessions, min(num_pairs, looks[-1]))
    undecided = np.arange(num_sessions)
    for look in looks:
        if look > num_pairs or not undecided.size:
            break
        found = _words(weigh_look(pairs.select(undecided, 0, look), rule), rule, look)
        words[undecided] = found
        ends[undecided[found != ""]] = look
        undecided = undecided[found == ""]
    return words, ends


def _words(evidence: Evidence, rule: Rule, look: int) -> NDArray[np.str_]:
    import numpy as np

    limit = math.log1p(rule.limit)
    faster, slower = math.log1p(-rule.tolerance), math.log1p(rule.tolerance)
    is_total_fine = evidence.mean_upper < limit
    passes = (evidence.upper < limit) & is_total_fine
    if look < FIRST_FULL_LOOK:
        is_tolerable = (evidence.location >= faster) & (evidence.location <= slower)
        return np.where(passes & is_tolerable, "PASS", "")
    words = np.select(
        [evidence.lower > slower, (evidence.improved < faster) & is_total_fine, passes],
        ["FAIL", "IMPROVED", "PASS"],
        default="INCONCLUSIVE" if look == rule.looks[-1] else "",
    )
    may_fail = look >= min(_LEAST_FAILED_PAIRS, rule.max_pairs)
    return words if may_fail else np.where(words == "FAIL", "", words)


def weigh_look(pairs: Sessions, rule: Rule) -> Evidence:
    """Return what (S, n) pairs say at the first look that is not earlier, n at least 2."""
    alpha_share, beta_share = rule.shares(pairs.log_ratios.shape[1])
    alpha, beta = rule.alpha * alpha_share / rule.num_cells, rule.beta * beta_share
    return weigh(pairs, rule.prior, alpha=alpha, beta=beta)


def recommend(prior: Prior, *, num_cells: int, max_pairs: int) -> tuple[float, float] | None:
    """Return the tightest (tolerance, limit) that the rule can hold, None if it can hold none.

    With it the rule finds a slowdown as large as the limit, and passes identical code, in nine of
    ten sessions, simulated with normal noise; their rounds explain none of it, none stalls.
    """
    import numpy as np

    noise = np.random.default_rng(0).normal(0.0, prior.sd, (_NUM_SESSIONS, max_pairs))
    for tolerance, limit in zip(_TOLERANCES, _LIMITS, strict=True):
        rule = Rule(
            tolerance=tolerance, limit=limit, num_cells=num_cells, max_pairs=max_pairs, prior=prior
        )
        measured = (noise + math.log1p(slowdown) for slowdown in (limit, 0.0))
        slower, same = (follow(Sessions(logs, logs, 0 * logs), rule)[0] for logs in measured)
        found, passed = (slower == "FAIL").mean(), np.isin(same, ("PASS", "IMPROVED")).mean()
        if min(found, passed) >= _OFTEN_ENOUGH:
            return tolerance, limit
    return None
