"""Calibration: sessions of identical code, and of planted slowdowns, through the whole judge.

What it finds are the error rates on the machine at hand, and the noise that the rule then knows
beforehand. Must not know how a result is shown.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfsuite.errors import WorkloadError
from perfsuite.gate.arms import Arm
from perfsuite.gate.calibration import CellNoise, pool_noise
from perfsuite.gate.judge import Judgement, judge
from perfsuite.gating import GateRequest, collect, demands_of, head_arm


@dataclass(frozen=True, kw_only=True)
class Planted:
    """What the judge made of sessions in which head was slowed down.

    Attributes:
        ratio: By how much, 0.05 = 5 %; 0 for identical code.
        verdicts: How often each word was given, over all cells and sessions.
        mean_pairs: Pairs until a cell was decided, on average.
        wall_s: Seconds of a session, on average.
    """

    ratio: float
    verdicts: dict[str, int]
    mean_pairs: float
    wall_s: float


@dataclass(frozen=True, kw_only=True)
class CalibrationResult:
    """What a calibration found.

    Attributes:
        num_sessions: Of each slowdown.
        num_cells: In each session.
        identical: Sessions of identical code.
        planted: Sessions of slower code.
        noise: Of each cell's pairs.
    """

    num_sessions: int
    num_cells: int
    identical: Planted
    planted: tuple[Planted, ...]
    noise: dict[str, CellNoise]


def calibrate(
    request: GateRequest,
    *,
    num_sessions: int,
    planted_ratios: Sequence[float],
    say: Callable[[str], None],
) -> CalibrationResult:
    """Run sessions of identical code first, and judge planted slowdowns with what they have taught.

    Args:
        request: Which cells, and what is asked of them; its base is not looked at.
        num_sessions: Of identical code, and of each planted slowdown.
        planted_ratios: Slowdowns of head's iterations, by a sleep of that share of each.
        say: Shows a line.

    Raises:
        WorkloadError: There is no cell, or one cannot be measured.
    """
    collected = collect(head_arm(request, None))
    if collected.suite is None or collected.failure is not None:
        raise WorkloadError(f"the tests cannot be collected: {collected.failure}")
    head = head_arm(request, collected.suite)
    demands = {name: demands_of(request, collected.suite, name) for name in collected.suite.cells}
    if not demands:
        raise WorkloadError("there is no benchmark to calibrate with")
    seeds = random.Random(request.seed)
    pairs: dict[str, list[list[float]]] = {name: [] for name in demands}

    def run(ratio: float) -> Planted:
        judgements = []
        for number in range(num_sessions):
            say(f"session {number + 1} of {num_sessions}, slowed down by {ratio:.1%}")
            judgement = judge(
                dataclasses.replace(head, name="base"),
                _slowed(head, ratio),
                demands,
                budget=request.budget,
                seed=seeds.randrange(2**32),
                priors=request.priors,
                say=lambda _: None,
            )
            _refuse_broken(judgement)
            judgements.append(judgement)
            if ratio == 0:
                for trial in judgement.trials:
                    pairs[trial.name].append(trial.log_ratios)
        return _summarise(ratio, judgements)

    identical = run(0.0)
    noise = {name: pooled for name in demands if (pooled := pool_noise(pairs[name])) is not None}
    request = dataclasses.replace(request, priors={n: one.as_prior() for n, one in noise.items()})
    return CalibrationResult(
        num_sessions=num_sessions,
        num_cells=len(demands),
        identical=identical,
        planted=tuple(run(ratio) for ratio in planted_ratios),
        noise=noise,
    )


def _slowed(head: Arm, ratio: float) -> Arm:
    if ratio == 0:
        return head
    return dataclasses.replace(head, environment={"PERFSUITE_ARM_PLANTED": repr(ratio)})


def _refuse_broken(judgement: Judgement) -> None:
    for trial in judgement.trials:
        if trial.word in ("ERROR", "NO-BASELINE", "INVALID"):
            raise WorkloadError(f"{trial.name} cannot be calibrated with: {trial.reason}")


def _summarise(ratio: float, judgements: Sequence[Judgement]) -> Planted:
    verdicts: dict[str, int] = {}
    num_pairs = []
    for judgement in judgements:
        for trial in judgement.trials:
            word = trial.word or "INCONCLUSIVE"
            verdicts[word] = verdicts.get(word, 0) + 1
            if trial.decision is not None:
                num_pairs.append(trial.decision.num_pairs)
    return Planted(
        ratio=ratio,
        verdicts=verdicts,
        mean_pairs=sum(num_pairs) / len(num_pairs) if num_pairs else 0.0,
        wall_s=sum(judgement.wall_s for judgement in judgements) / len(judgements),
    )
