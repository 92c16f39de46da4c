"""The sequential rule: what the pairs of one cell prove.

Of each pair the rule sees x = log(head / base). At each look it has a location m of the n pairs so
far, its standard error SE and degrees of freedom, and two bounds:

    lower = m - t(1 - alpha w / cells, df) SE          upper = m + t(1 - beta u, df) SE

    FAIL      lower > log(1 + tolerance)
    IMPROVED  upper < log(1 - tolerance)
    PASS      upper < log(1 + limit)

and at the last look, if none holds, INCONCLUSIVE. The shares w and u of the looks sum to 1, so by
Bonferroni over looks and cells a session of identical or tolerably slower cells sees a FAIL with
probability alpha at most, and a cell at its limit passes with probability beta at most, however the
looks and the cells depend on each other.

The variance is moderated (Smyth 2004, "Linear Models and Empirical Bayes Methods"): s0 and d0 of
earlier A/A pairs on this machine supplement pairs that are too few to show their own spread.
Figures, and what else was tried: decision 0008; `python benchmarks/gate_error_rates.py`.

Shapes: S sessions, n pairs each. One session is S = 1, a simulation many thousand: the same code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

from perfsuite.stats.intervals import exceeded_t

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


Word = Literal["PASS", "FAIL", "IMPROVED", "INCONCLUSIVE"]

# Where the rule looks, as far as `max_pairs` allows; `max_pairs` itself is always the last look.
# Two pairs are too few: where spikes hit head alone, they fail identical code.
_LOOKS: Final = (3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)
FIRST_LOOK: Final = _LOOKS[0]

# A prior weighs the less, the more the sample's variance exceeds this many times the prior's: a
# quarter more is chance, twice as much means that the prior is of a quieter machine. At 1 the rule
# loses power where the prior is right; at 1.5 it gains no safety where the prior's spread is half.
_PRIOR_HOLDS_TO = 1.25

# From this many pairs on, one farther from the median than this many standard deviations is pulled
# in to that distance, so that a single spike hides no regression. Of three pairs two spikes are the
# majority, and with five the fence costs false alarms and finds no more regressions.
_FENCE_FROM = 6
_FENCE_SDS = 2.0

# A quarter of the smallest standard deviation of a pair that was ever measured, 0.37 %. Pairs that
# are closer together, or equal, show a coarse clock, not a quiet machine.
_SMALLEST_SD = 0.001

# Of `detectable`: a slowdown that large would have been proven in four of five sessions.
_POWER = 0.80


@dataclass(frozen=True, kw_only=True)
class Prior:
    """The noise of a cell in earlier A/A pairs on this machine.

    Attributes:
        sd: Standard deviation of one pair's log ratio, such as 0.004.
        degrees_of_freedom: How many pairs it is worth.

    Raises:
        ValueError: One of them is not a positive, finite number.
    """

    sd: float
    degrees_of_freedom: float = 8.0

    def __post_init__(self) -> None:
        for name in ("sd", "degrees_of_freedom"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"a prior's {name} is {value}; it must be positive and finite")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The requirements on a cell, and the error rates.

    Attributes:
        tolerance: The slowdown that is accepted, 0.02 = 2 %.
        limit: The slowdown that must not pass.
        num_cells: Cells under test in the session: they share `alpha`.
        max_pairs: Where the rule gives up.
        alpha: Probability of a FAIL in a session with all cells within the tolerance.
        beta: Probability of a PASS of a cell at its limit.
        prior: None where this machine has no history: the pairs alone count.

    Raises:
        ValueError: One of them is out of its range.
    """

    tolerance: float
    limit: float
    num_cells: int
    max_pairs: int = 16
    alpha: float = 0.05
    beta: float = 0.10
    prior: Prior | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"the tolerance is {self.tolerance}; it must be in [0, 1)")
        if not self.tolerance <= self.limit < math.inf:
            raise ValueError(
                f"the limit is {self.limit}; it must be finite and at least the tolerance, "
                f"{self.tolerance}"
            )
        if self.num_cells < 1:
            raise ValueError(f"the number of cells is {self.num_cells}; it must be at least 1")
        if self.max_pairs < FIRST_LOOK:
            raise ValueError(
                f"the number of pairs is at most {self.max_pairs}; the rule needs {FIRST_LOOK}"
            )
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if not 0 < value < 0.5:
                raise ValueError(f"{name} is {value}; it must be in (0, 0.5)")


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The conclusion from the pairs.

    Attributes:
        word: None as long as more pairs are needed.
        ratio: Location of head / base: 1.05 is 5 % slower.
        interval: The two bounds that decide, on the scale of `ratio`.
        num_pairs: How many pairs the decision rests on; later ones are not looked at.
        detectable: The smallest slowdown, 0.034 = 3.4 %, that these pairs would have proven to
            exceed the tolerance in four of five sessions.
    """

    word: Word | None
    ratio: float
    interval: tuple[float, float]
    num_pairs: int
    detectable: float


@dataclass(frozen=True)
class Evidence:
    """The pairs of S sessions at one look, as logarithms of head / base, each (S,)."""

    location: Floats
    lower: Floats
    upper: Floats
    detectable: Floats


def looks(rule: Rule) -> tuple[int, ...]:
    """Return the numbers of pairs at which the rule looks.

    >>> looks(Rule(tolerance=0.02, limit=0.05, num_cells=24))
    (3, 4, 5, 6, 8, 10, 12, 16)
    >>> looks(Rule(tolerance=0.02, limit=0.05, num_cells=24, max_pairs=9))
    (3, 4, 5, 6, 8, 9)
    """
    earlier = tuple(look for look in _LOOKS if look < rule.max_pairs)
    return (*earlier, rule.max_pairs)


def shares(rule: Rule, num_pairs: int) -> tuple[float, float]:
    """Return which part of alpha and of beta is spent at the first look that is not earlier.

    Fixed by `max_pairs` alone, so beforehand: alpha in proportion to the look's number of pairs,
    beta to its square, because a PASS of a regression cannot be taken back by later pairs.

    >>> shares(Rule(tolerance=0.02, limit=0.05, num_cells=24, max_pairs=5), 4)  # 3, 4, 5
    (0.3333333333333333, 0.32)
    """
    at = looks(rule)
    look = next(look for look in at if look >= num_pairs)
    return look / sum(at), look**2 / sum(look**2 for look in at)


def decide(log_ratios: Sequence[float], rule: Rule) -> Decision:
    """Return what the pairs so far prove, by going through the looks they have reached.

    A pure function of its arguments: the first look that decides holds, whatever comes later, so
    a verdict can be recomputed from the raw pairs. Between looks the interval is the running one,
    at the level of the next look. The order of pairs matters only across looks.

    Args:
        log_ratios: log(head / base) of each pair, in the order in which they were run.
        rule: Its requirements.

    Raises:
        ValueError: There is no pair, or one is not finite.

    >>> rule = Rule(tolerance=0.02, limit=0.05, num_cells=1, prior=Prior(sd=0.004))
    >>> decide([0.001, -0.002, 0.002], rule).word
    'PASS'
    >>> decide([0.051, 0.048, 0.052], rule).word
    'FAIL'
    """
    import numpy as np

    if not log_ratios:
        raise ValueError("there is no pair to decide on; the rule needs at least one")
    for number, log_ratio in enumerate(log_ratios, start=1):
        if not math.isfinite(log_ratio):
            raise ValueError(f"pair {number} has the log ratio {log_ratio}; it must be finite")
    sessions = np.asarray(log_ratios, dtype=np.float64)[np.newaxis]
    words, ends = follow(sessions, rule)
    num_pairs = int(ends[0])
    if num_pairs < 2:  # one pair does not show its spread
        ratio = math.exp(log_ratios[0])
        return Decision(
            word=None, ratio=ratio, interval=(0.0, math.inf), num_pairs=1, detectable=math.inf
        )
    evidence = weigh(sessions[:, :num_pairs], rule)
    with np.errstate(over="ignore"):  # a bound beyond every number is infinite
        return Decision(
            word=cast(Word | None, str(words[0]) or None),
            ratio=float(np.exp(evidence.location[0])),
            interval=(float(np.exp(evidence.lower[0])), float(np.exp(evidence.upper[0]))),
            num_pairs=num_pairs,
            detectable=float(np.expm1(evidence.detectable[0])),
        )


def follow(log_ratios: Floats, rule: Rule) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """Return each session's word, "" where the pairs do not suffice, and its number of pairs.

    `log_ratios` are (S, n) and finite; both results are (S,).
    """
    import numpy as np

    num_sessions, num_pairs = log_ratios.shape
    words = np.full(num_sessions, "", dtype="<U12")
    ends = np.full(num_sessions, min(num_pairs, rule.max_pairs))
    undecided = np.arange(num_sessions)
    for look in looks(rule):
        if look > num_pairs or not undecided.size:
            break
        evidence = weigh(log_ratios[undecided, :look], rule)
        found = np.select(
            [
                evidence.lower > math.log1p(rule.tolerance),
                evidence.upper < math.log1p(-rule.tolerance),
                evidence.upper < math.log1p(rule.limit),
            ],
            ["FAIL", "IMPROVED", "PASS"],
            default="INCONCLUSIVE" if look == rule.max_pairs else "",
        )
        words[undecided] = found
        ends[undecided[found != ""]] = look
        undecided = undecided[found == ""]
    return words, ends


def weigh(log_ratios: Floats, rule: Rule) -> Evidence:
    """Return the location and both bounds of (S, n) log ratios, n at least 2."""
    num_pairs = log_ratios.shape[1]
    location, variance, freedom = _estimate(log_ratios, rule.prior)
    standard_error = (variance / num_pairs) ** 0.5
    alpha_share, beta_share = shares(rule, num_pairs)
    below = exceeded_t(rule.alpha * alpha_share / rule.num_cells, freedom)
    above = exceeded_t(rule.beta * beta_share, freedom)
    seen = below + exceeded_t(1 - _POWER, freedom)
    return Evidence(
        location=location,
        lower=location - below * standard_error,
        upper=location + above * standard_error,
        detectable=math.log1p(rule.tolerance) + seen * standard_error,
    )


def _estimate(log_ratios: Floats, prior: Prior | None) -> tuple[Floats, Floats, Floats]:
    """Return location, variance of one pair and degrees of freedom, each (S,)."""
    import numpy as np

    num_pairs = log_ratios.shape[1]
    if num_pairs >= _FENCE_FROM:
        variance, _ = _moderate(log_ratios.var(axis=1, ddof=1), num_pairs - 1, prior)
        reach = _FENCE_SDS * variance[:, np.newaxis] ** 0.5
        centre = np.median(log_ratios, axis=1, keepdims=True)
        log_ratios = log_ratios.clip(centre - reach, centre + reach)
    location = log_ratios.mean(axis=1)
    return location, *_moderate(log_ratios.var(axis=1, ddof=1), num_pairs - 1, prior)


def _moderate(variance: Floats, freedom: int, prior: Prior | None) -> tuple[Floats, Floats]:
    """Return the variance pulled towards the prior's, and its degrees of freedom, each (S,).

    (d s0^2 + (n - 1) s^2) / (d + n - 1), where d is d0 as long as the sample bears the prior out,
    and falls with s^2 beyond.
    """
    sd, degrees_of_freedom = (prior.sd, prior.degrees_of_freedom) if prior else (_SMALLEST_SD, 0.0)
    borne_out = _PRIOR_HOLDS_TO * sd**2
    weight = degrees_of_freedom * borne_out / variance.clip(min=borne_out)
    total = weight + freedom
    moderated = (weight * sd**2 + freedom * variance) / total
    return moderated.clip(min=_SMALLEST_SD**2), total
