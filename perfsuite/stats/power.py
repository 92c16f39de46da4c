"""The power of a machine: the tightest tolerance and limit at the rule's own error rates."""

import math

from perfsuite.stats.evidence import Prior, Sessions
from perfsuite.stats.sequential import Rule, follow

# From the tightest on; a tolerance of a quarter to two fifths of the limit, as the defaults have.
_TOLERANCES = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.20)
_LIMITS = (0.02, 0.03, 0.04, 0.05, 0.075, 0.10, 0.15, 0.20, 0.30, 0.50)
# Three standard errors of a rate of 10 % are 1.4 points.
_NUM_SESSIONS = 4000
_OFTEN_ENOUGH = 0.9


def recommend(prior: Prior, *, num_cells: int, max_pairs: int) -> tuple[float, float] | None:
    """Return the tightest (tolerance, limit) that the rule can hold, None if it can hold none.

    With it the rule finds a slowdown as large as the limit, and passes identical code, in nine of
    ten sessions, simulated with normal noise; their rounds explain none of it, none stalls.

    >>> recommend(Prior(sd=0.004), num_cells=8, max_pairs=16)
    (0.005, 0.02)
    >>> recommend(Prior(sd=0.5), num_cells=8, max_pairs=16)
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
