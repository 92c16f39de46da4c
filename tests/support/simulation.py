"""Thousands of judged cells in a second: pairs drawn from known noise, judged by the shipped rule.

Nothing of the rule is copied here; `perfsuite.stats.sequential.follow` judges all of them at once.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfsuite.stats.sequential import Prior, Rule, follow

NUM_SESSIONS = 40_000
NUM_CELLS = 24
TOLERANCE = 0.02
LIMIT = 0.05
PAIR_SDS = (0.005, 0.01, 0.02)
ALPHA_PER_CELL = 0.05 / NUM_CELLS
# Three Monte Carlo standard deviations of a rate that is exactly alpha / 24.
MONTE_CARLO = 3 * math.sqrt(ALPHA_PER_CELL * (1 - ALPHA_PER_CELL) / NUM_SESSIONS)


@dataclass(frozen=True, kw_only=True)
class World:
    """How pairs really vary, and what the rule believes.

    Attributes:
        noise: "normal", "t3", "spikes" (5 % of pairs are off by 6 sd, either way), "head spikes"
            (the same, head always the slower) or "AR(0.3)" (pairs correlate with the next one).
        prior_factor: The prior's sd as a multiple of the true one; None without a prior.
    """

    name: str
    noise: str = "normal"
    prior_factor: float | None = 1.0


NOMINAL = World(name="normal")
# What the contract's error rates must survive.
MISSPECIFIED = (
    World(name="t3 tails", noise="t3"),
    World(name="5 % six-sd spikes", noise="spikes"),
    World(name="AR(0.3) pairs", noise="AR(0.3)"),
    World(name="s0 half the truth", prior_factor=0.5),
    World(name="s0 double the truth", prior_factor=2.0),
)
# Beyond it: shown, with no promise.
FURTHER = (
    World(name="spikes in head only", noise="head spikes"),
    World(name="AR(0.3), s0 half", noise="AR(0.3)", prior_factor=0.5),
    World(name="no history", prior_factor=None),
)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What became of the judged cells: rates of the words, and pairs on average."""

    failed: float
    passed: float
    improved: float
    inconclusive: float
    pairs: float


def simulate(
    world: World,
    *,
    pair_sd: float,
    slowdown: float,
    max_pairs: int = 16,
    num_sessions: int = NUM_SESSIONS,
    seed: int = 0,
) -> Rates:
    """Return the rates of one cell whose head is slower by `slowdown` (0.05 = 5 %)."""
    factor = world.prior_factor
    rule = Rule(
        tolerance=TOLERANCE,
        limit=LIMIT,
        num_cells=NUM_CELLS,
        max_pairs=max_pairs,
        prior=None if factor is None else Prior(sd=factor * pair_sd),
    )
    noise = draw(world.noise, num_sessions, max_pairs, seed)
    words, ends = follow(math.log1p(slowdown) + pair_sd * noise, rule)
    return Rates(
        failed=float(np.mean(words == "FAIL")),
        passed=float(np.mean(words == "PASS")),
        improved=float(np.mean(words == "IMPROVED")),
        inconclusive=float(np.mean(words == "INCONCLUSIVE")),
        pairs=float(np.mean(ends)),
    )


@functools.lru_cache(maxsize=8)
def draw(noise: str, num_sessions: int, num_pairs: int, seed: int) -> NDArray[np.float64]:
    """Return (S, n) deviations of unit scale; spikes come on top of it."""
    generator = np.random.default_rng(seed)
    shape = (num_sessions, num_pairs)
    if noise == "t3":
        return generator.standard_t(3, shape) / math.sqrt(3)  # of variance 1
    normal = generator.standard_normal(shape)
    if noise in ("spikes", "head spikes"):
        spikes = 6 * (generator.random(shape) < 0.05)
        signs = generator.choice([-1, 1], shape) if noise == "spikes" else 1
        return normal + signs * spikes
    if noise == "AR(0.3)":
        for pair in range(1, num_pairs):
            normal[:, pair] = 0.3 * normal[:, pair - 1] + math.sqrt(1 - 0.3**2) * normal[:, pair]
    return normal
