"""Rounds: iterations between two device synchronisations; each round yields one sample.

A training loop does not wait for its accelerator between steps: the host queues the next step while
the device computes this one. So there a round begins when the host has run ahead by one iteration,
and lasts from border to border in the device's time, without filling and draining the queue.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction

from perfsuite.errors import PerfsuiteError
from perfsuite.ranks.messages import RoundTimes
from perfsuite.records.stages import Stage
from perfsuite.worker.measure.clock import collection_s, collector_off, user_has_frozen, whole_heap
from perfsuite.worker.measure.iterations import Iterations
from perfsuite.worker.measure.stages import StageClock

# The noise of paired launches was measured with rounds of at least 25 ms: a standard deviation of
# 0.4 % over pairs. Twice as long allows for an estimate that is off by half.
ROUND_S = 0.050
# Iterations of a round on an accelerator, at least: of one or two, the host's lead is gone at once.
LEAST_ON_ACCELERATOR = 8
# Such a ratio of the host's time of a round to that between the events: work was in other streams.
_MOST_BESIDE = 1.2
# Taken alike one after the other: with one loss scale, so that none was skipped, and one graph.
_ALIKE = 3
# An idle H200 runs at a sixth of its clock; milliseconds of work do not raise that.
_LEAST_WARM_UP_S = 0.5
_STEADY = 1.05
# What has not settled by then never does: a step that is noisy, or a model that is compiled anew.
_MOST_WARM_UP_S = 10.0


def choose_num_iterations(
    iteration_s: float,
    *,
    steps_per_epoch: Fraction | None,
    round_s: float = ROUND_S,
    least: int = 1,
) -> int:
    """Return how many iterations make a round of about so many seconds, and no fewer than `least`.

    A power of two, so that a noisy estimate of the iteration's time rarely changes the choice.
    Where an epoch is shorter than two such rounds, whole epochs instead: their starts cost more
    than other steps, and each round has as many; `steps_per_epoch` is None if they cost nothing.
    """
    if not 0 < iteration_s < math.inf:
        found = f"an iteration of {iteration_s!r} s cannot be timed in rounds"
        raise PerfsuiteError(f"{found}; it must take a positive, finite number of seconds")
    num_iterations = max(least, 1 << (math.ceil(round_s / iteration_s) - 1).bit_length())
    if steps_per_epoch is not None and steps_per_epoch < 2 * num_iterations:
        # So many steps are whole epochs where accumulation ends epochs within a step, too.
        whole = steps_per_epoch.numerator
        period = whole if whole < 2 * num_iterations else steps_per_epoch
        return round(math.ceil(num_iterations / period) * period)
    return num_iterations


def has_warmed_up(durations_s: Sequence[float], states: Sequence[object]) -> bool:
    """Whether the next iteration will be like all later ones, by durations and states so far."""
    spent_s = math.fsum(durations_s)
    if len(durations_s) < _ALIKE:
        return False
    if spent_s >= _MOST_WARM_UP_S:
        return True
    faster_s, slower_s = sorted(durations_s[-2:])
    are_alike = all(state == states[-1] for state in states[-_ALIKE:])
    return spent_s >= _LEAST_WARM_UP_S and are_alike and slower_s <= _STEADY * faster_s


def measure_rounds(
    rounds: list[RoundTimes],
    *,
    num_rounds: int,
    num_iterations: int,
    stages: StageClock,
    start_together: Callable[[], None],
    synchronize: Callable[[], None],
    after_round: Callable[[], None],
    take_turn: Callable[[], AbstractContextManager[None]] = nullcontext,
    most_spans: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    run_up: Stage | None = None,
    slowdown: float = 0.0,
    collecting: bool = False,
) -> Iterations[None]:
    """Append this rank's own times of each round to `rounds`.

    The garbage collector runs between rounds, and what the garbage of a round costs it belongs to
    the time of that round; in rounds that are `collecting` it runs as the code has set it. What the
    code collects by itself takes as long as in a process where nothing is frozen.
    `take_turn` is entered for each round, its preparation and `after_round`. The first rounds keep
    spans, until `most_spans`. With `run_up`, the stage of one iteration more before each round, the
    device times it, from border to border. A round is longer by `slowdown` of itself: 0.05 = 5 %.
    """
    num_spans = 0
    whole = nullcontext if user_has_frozen() else whole_heap
    with nullcontext() if collecting else collector_off():
        synchronize()
        stages.collect()
        for _ in range(num_rounds):
            with take_turn():
                start_together()
                synchronize()
                if run_up is not None:
                    yield run_up
                with whole():
                    start_s = clock()
                    for _ in range(num_iterations):
                        stages.mark_border()
                        yield stages
                    stages.mark_border()
                    synchronize()
                    duration_s = clock() - start_s
                if run_up is not None:
                    duration_s = _on_device(math.fsum(stages.steps_s()), duration_s, num_iterations)
                duration_s += 0.0 if collecting else collection_s(clock)
                duration_s += _spend(slowdown * duration_s, clock)
                spans = stages.spans() if num_spans < most_spans else ()
                num_spans += len(spans)
                steps_s, each = stages.steps_s(), stages.collect()
                one = RoundTimes(duration_s=duration_s, stages_s=each, steps_s=steps_s, spans=spans)
                rounds.append(one)
                after_round()


def _on_device(between_events_s: float, on_host_s: float, num_iterations: int) -> float:
    """Return a round's seconds: by the host, less its run-up, where much ran in other streams."""
    least_s = on_host_s * num_iterations / (num_iterations + 1)
    return least_s if least_s > _MOST_BESIDE * between_events_s else between_events_s


def _spend(seconds: float, clock: Callable[[], float]) -> float:
    """Work for so long, and return for how long it was; a sleep would last 0.1 ms too long."""
    now_s = start_s = clock() if seconds else 0.0
    while now_s - start_s < seconds:
        now_s = clock()
    return now_s - start_s
