"""Calibration: sessions of identical code, and of planted slowdowns, through the whole judge.

What it finds are the error rates on the machine at hand, and the noise that the rule then knows
beforehand. Must not know how a result is shown.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from perfsuite.errors import WorkloadError
from perfsuite.gate.arms.arm import Arm
from perfsuite.gate.judge.judge import judge
from perfsuite.gate.judge.trial import CellPolicy, Judgement, Trial
from perfsuite.gate.noise import CellNoise, SessionPairs, pool_noise
from perfsuite.gate.request import GateRequest, collect, head_arm, policy_of
from perfsuite.gate.run_gate import HELD


@dataclass(frozen=True, kw_only=True)
class Plant:
    """What is done to head in some sessions.

    Attributes:
        ratio: Slowdown of every iteration, 0.05 = 5 %.
        recipe: A field of every recipe that is changed instead: "precision=fp32".
        fault: One of `ranks.messages.FAULTS`, in every iteration, instead.
    """

    ratio: float = 0.0
    recipe: str | None = None
    fault: str | None = None

    @property
    def needs_recipe(self) -> bool:
        """Whether it can be planted in cells of perfsuite alone."""
        return self.recipe is not None or self.fault is not None

    def __str__(self) -> str:
        """As people read it.

        >>> print(Plant(ratio=0.05), "and", Plant(recipe="num_workers=0"))
        5 % and num_workers=0
        """
        return self.recipe or self.fault or f"{100 * self.ratio:g} %"


NOTHING = Plant()


@dataclass(frozen=True, kw_only=True)
class PlantedResult:
    """What the judge made of sessions in which something was planted in head.

    Attributes:
        plant: What; nothing for identical code.
        num_sessions: How many.
        num_red: Sessions that ended red, with a FAIL of any cell.
        verdicts: How often each word was given, over all cells and sessions.
        mean_pairs: Pairs until a cell was decided, on average.
        wall_s: Seconds of a session, on average.
    """

    plant: Plant
    num_sessions: int
    num_red: int
    verdicts: dict[str, int]
    mean_pairs: float
    wall_s: float


@dataclass(frozen=True, kw_only=True)
class CalibrationResult:
    """What a calibration found.

    Attributes:
        num_cells: In each session.
        max_pairs: Where the rule gave up.
        identical: Sessions of identical code.
        planted: Sessions of slower code.
        noise: Of each cell's pairs.
    """

    num_cells: int
    max_pairs: int
    identical: PlantedResult
    planted: tuple[PlantedResult, ...]
    noise: dict[str, CellNoise]


def calibrate(
    request: GateRequest,
    *,
    num_identical: int,
    num_sessions: int,
    plants: Sequence[Plant],
    say: Callable[[str], None],
    machine: AbstractContextManager[object] = HELD,
) -> CalibrationResult:
    """Run sessions of identical code first, and judge planted slowdowns with what they have taught.

    Args:
        request: Which cells, and what is asked of them; its base is not looked at.
        num_identical: Sessions of identical code.
        num_sessions: Of each plant.
        plants: What is done to head in further sessions.
        say: Shows a line.
        machine: Entered once the cells are known, and left at the end: it may wait for another
            session.

    Raises:
        WorkloadError: There is no cell, or one cannot be measured.
    """
    head, demands = _collect_cells(request, plants)
    seeds = random.Random(request.seed)
    pairs: dict[str, list[SessionPairs]] = {name: [] for name in demands}

    def run(plant: Plant) -> PlantedResult:
        judgements = []
        most = num_identical if plant == NOTHING else num_sessions
        for number in range(most):
            what = "identical code" if plant == NOTHING else f"{plant} planted"
            say(f"session {number + 1} of {most}, {what}")
            judgement = judge(
                dataclasses.replace(head, name="base"),
                _with_plant(head, plant),
                demands,
                budget=request.budget,
                seed=seeds.randrange(2**32),
                priors=request.priors,
                say=lambda _: None,
            )
            _refuse_broken(judgement)
            judgements.append(judgement)
            if plant == NOTHING:
                for trial in judgement.trials:
                    pairs[trial.name].append(_pairs_of(trial))
        return _summarise(plant, judgements)

    with machine:
        identical = run(NOTHING)
        pooled = {name: pool_noise(pairs[name]) for name in demands}
        noise = {name: found for name, found in pooled.items() if found is not None}
        priors = {name: found.as_prior() for name, found in noise.items()}
        request = dataclasses.replace(request, priors=priors)
        return CalibrationResult(
            num_cells=len(demands),
            max_pairs=request.budget.max_pairs,
            identical=identical,
            planted=tuple(map(run, plants if num_sessions else ())),
            noise=noise,
        )


def _collect_cells(
    request: GateRequest, plants: Sequence[Plant]
) -> tuple[Arm, dict[str, CellPolicy]]:
    """Head's arm, and what is asked of each of its cells."""
    collected = collect(head_arm(request, None))
    if collected.suite is None or collected.failure is not None:
        raise WorkloadError(f"the tests cannot be collected: {collected.failure}")
    cells = collected.suite.cells
    if not cells:
        raise WorkloadError("there is no benchmark to calibrate with")
    others = [name for name, asked in cells.items() if not asked.get("is_train")]
    for plant in plants:
        if plant.needs_recipe and others:
            raise WorkloadError(
                f"{plant} can be planted in cells of train_benchmark alone, and {others[0]} is "
                "none; leave it out with -k, or plant a slowdown such as 5%"
            )
    demands = {name: policy_of(request, collected.suite, name) for name in cells}
    return head_arm(request, collected.suite), demands


def _pairs_of(trial: Trial) -> SessionPairs:
    return SessionPairs(
        log_ratios=trial.log_ratios,
        firsts=trial.firsts,
        errors=[cost.error for cost in trial.costs],
    )


def _with_plant(head: Arm, plant: Plant) -> Arm:
    if plant == NOTHING:
        return head
    text = plant.recipe or plant.fault or repr(plant.ratio)
    return dataclasses.replace(head, environment={"PERFSUITE_ARM_PLANTED": text})


def _refuse_broken(judgement: Judgement) -> None:
    for trial in judgement.trials:
        if trial.word in ("ERROR", "NO-BASELINE", "INVALID"):
            raise WorkloadError(f"{trial.name} cannot be calibrated with: {trial.reason}")


def _summarise(plant: Plant, judgements: Sequence[Judgement]) -> PlantedResult:
    verdicts: dict[str, int] = {}
    num_pairs = []
    for judgement in judgements:
        for trial in judgement.trials:
            by = " by counts" if trial.by == "counts" else ""
            word = f"{trial.word or 'INCONCLUSIVE'}{by}"
            verdicts[word] = verdicts.get(word, 0) + 1
            if trial.decision is not None:
                num_pairs.append(trial.decision.num_pairs)
    return PlantedResult(
        plant=plant,
        num_sessions=len(judgements),
        num_red=sum(
            any(trial.word == "FAIL" for trial in judgement.trials) for judgement in judgements
        ),
        verdicts=verdicts,
        mean_pairs=sum(num_pairs) / len(num_pairs) if num_pairs else 0.0,
        wall_s=sum(judgement.wall_s for judgement in judgements) / len(judgements),
    )
