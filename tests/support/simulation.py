"""Thousands of judged cells in a second: pairs drawn from known noise, judged by the shipped rule.

Nothing of the rule is copied here; `perfsuite.stats.sequential.follow` judges all of them at once.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfsuite.stats.evidence import Prior, Sessions
from perfsuite.stats.sequential import DEFAULT_MAX_PAIRS, Rule, follow

NUM_SESSIONS = 40_000
NUM_CELLS = 24
TOLERANCE = 0.02
LIMIT = 0.05
# A second stage and a re-run beyond the first session.
_MOST_PAIRS = 2 * DEFAULT_MAX_PAIRS
ALPHA_PER_CELL = 0.05 / NUM_CELLS
# Of the variance of a pair its rounds explain so much: in the eight cells of docs/how-to/
# noisy-machine.md 0.5 to 1, the median 0.76. It is measured in each pair with as many degrees of
# freedom.
_EXPLAINED = 0.7
_ROUNDS = 30
# The standard deviation of the mean over that of the location, as measured for decision 0010.
_SDS_OF_MEAN = 1.5


@dataclass(frozen=True, kw_only=True)
class World:
    """How pairs really vary, and what the rule believes.

    Attributes:
        noise: "normal", "t3", "spikes" (5 % of pairs are off by 6 sd, either way), "head spikes"
            (the same, head always the slower), "AR(0.3)" (pairs correlate with the next one),
            "slow processes" (6 % of the launches of either arm are slower by 5 to 30 pair sd) or
            "two states" (half of the launches are slower by 10 pair sd, and else vary by a fifth
            of it).
        prior_factor: The prior's sd as a multiple of the true one; None without a prior.
        bias: Of all pairs of a session, in pair sd: normal, of that standard deviation.
        explained: The part of a pair's variance that its rounds explain, and measure.
        slow_launches: Share of head's launches that are slower.
        slower_by: By how much, 0.5 = 50 %.
        stalls: By how much the total time of head is longer, while its typical round is not.
        has_mean: Whether the mean is among the conditions of PASS.
    """

    noise: str = "normal"
    prior_factor: float | None = 1.0
    bias: float = 0.0
    explained: float = _EXPLAINED
    slow_launches: float = 0.0
    slower_by: float = 0.5
    stalls: float = 0.0
    has_mean: bool = True


NOISES = ("normal", "t3", "spikes", "AR(0.3)")
PRIOR_FACTORS = (1.0, 0.5, 2.0)
# What the error rates must survive, the first of it as the rule assumes it.
WORLDS = tuple(
    World(noise=noise, prior_factor=factor) for noise in NOISES for factor in PRIOR_FACTORS
)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What became of the judged cells, each (S,): words, pairs, and whether a launch was slow."""

    words: NDArray[np.str_]
    num_pairs: NDArray[np.int64]
    met_slow: NDArray[np.bool_]

    def rate(self, word: str) -> float:
        """Return the share of cells with a word."""
        return float(np.mean(self.words == word))

    @property
    def pairs(self) -> float:
        """Pairs on average."""
        return float(np.mean(self.num_pairs))


def simulate(
    world: World,
    *,
    pair_sd: float,
    slowdown: float,
    num_cells: int = NUM_CELLS,
    max_pairs: int = DEFAULT_MAX_PAIRS,
    num_sessions: int | None = None,
    num_reruns: int = 0,
    seed: int = 0,
) -> Judged:
    """Return what becomes of a cell whose head is slower by `slowdown` (0.05 = 5 %)."""
    num_sessions = num_sessions or NUM_SESSIONS
    factor = world.prior_factor
    rule = Rule(
        tolerance=TOLERANCE,
        limit=LIMIT,
        num_cells=num_cells,
        max_pairs=max_pairs,
        num_sessions=1 + num_reruns,
        prior=None if factor is None else Prior(sd=factor * pair_sd),
    )
    most = max(_MOST_PAIRS, rule.looks[-1])
    drawn = _draw(world.noise, num_sessions, most, seed)
    # The others are drawn so that all rules see the same pairs, and no stage comes to them.
    num_read = sum(stage.looks[-1] for stage in rule.stages)
    normal, noise, chance, errors = (each[:, : each.shape[1] - most + num_read] for each in drawn)
    is_slow = chance < world.slow_launches
    common = math.log1p(slowdown) + math.log1p(world.slower_by) * is_slow
    common = common + pair_sd * world.bias * normal[:, :1]
    log_ratios = common + pair_sd * noise
    means = log_ratios + math.log1p(world.stalls)
    means = means + pair_sd * math.sqrt(_SDS_OF_MEAN**2 - 1) * normal[:, 1:]
    sessions = Sessions(
        log_ratios,
        means if world.has_mean else log_ratios - 1.0,
        pair_sd * math.sqrt(world.explained) * errors,
    )
    words, _, ends = follow(sessions, rule)
    met_slow = (is_slow & (np.arange(num_read) < ends[:, np.newaxis])).any(axis=1)
    return Judged(words=words, num_pairs=ends, met_slow=met_slow)


@functools.lru_cache(maxsize=4)
def _draw(
    noise: str, num_sessions: int, num_pairs: int, seed: int
) -> tuple[NDArray[np.float64], ...]:
    """Normal (S, 1 + n), then (S, n) each: deviations of unit scale, uniform, and errors.

    Spikes come on top of the unit scale.
    """
    generator = np.random.default_rng(seed)
    shape = (num_sessions, num_pairs)
    deviations = _deviations(noise, generator, shape)
    return (
        generator.standard_normal((num_sessions, num_pairs + 1)),
        deviations,
        generator.random(shape),
        np.sqrt(generator.chisquare(_ROUNDS, shape) / _ROUNDS),
    )


def _deviations(
    noise: str, generator: np.random.Generator, shape: tuple[int, int]
) -> NDArray[np.float64]:
    if noise == "t3":
        return generator.standard_t(3, shape) / math.sqrt(3)  # of variance 1
    normal = generator.standard_normal(shape)
    if noise in ("spikes", "head spikes"):
        spikes = 6 * (generator.random(shape) < 0.05)
        signs = generator.choice([-1, 1], shape) if noise == "spikes" else 1
        return normal + signs * spikes
    if noise == "slow processes":
        head, base = (
            (generator.random(shape) < 0.06) * generator.uniform(5, 30, shape) for _ in "hb"
        )
        return normal + head - base
    if noise == "two states":
        head, base = (10 * (generator.random(shape) < 0.5) for _ in "hb")
        return 0.2 * normal + head - base
    if noise == "AR(0.3)":
        for pair in range(1, shape[1]):
            normal[:, pair] = 0.3 * normal[:, pair - 1] + math.sqrt(1 - 0.3**2) * normal[:, pair]
    return normal


def most_by_chance(rate: float, num_sessions: int | None = None) -> float:
    """Return a rate with three Monte Carlo standard deviations."""
    return rate + 3 * math.sqrt(rate * (1 - rate) / (num_sessions or NUM_SESSIONS))
