"""When an accelerator has warmed up: its clock, compiled code and the loss scale have settled."""

import math
from collections.abc import Sequence

# Taken alike one after the other: with the same loss scale, so that none was skipped for it, and
# without another graph compiled.
_ALIKE = 3
# An idle H200 runs at a sixth of its clock; milliseconds of work do not raise that.
_LEAST_S = 0.5
_STEADY = 1.05
# What has not settled by then never does: a step that is noisy, or a model that is compiled anew.
_MOST_S = 10.0


def is_warm(durations_s: Sequence[float], states: Sequence[object]) -> bool:
    """Whether the next iteration will be like all later ones.

    Of each iteration so far: its seconds, and what of its state shows that it differs from others.

    >>> is_warm([0.3, 0.2, 0.2], ["scale 1024"] * 3), is_warm([0.3, 0.2, 0.2], [2048, 1024, 1024])
    (True, False)
    """
    spent_s = math.fsum(durations_s)
    if len(durations_s) < _ALIKE:
        return False
    if spent_s >= _MOST_S:
        return True
    faster_s, slower_s = sorted(durations_s[-2:])
    are_alike = all(state == states[-1] for state in states[-_ALIKE:])
    return spent_s >= _LEAST_S and are_alike and slower_s <= _STEADY * faster_s
