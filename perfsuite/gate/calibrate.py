"""Calibration: sessions of identical code, and of planted slowdowns, through the whole gate.

The base of each session is a fresh checkout of HEAD, as a change's base is one of another commit.
"""

import dataclasses
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from perfsuite.errors import WorkloadError
from perfsuite.gate.git.changes import is_dirty
from perfsuite.gate.git.repository import find_top
from perfsuite.gate.judge.trial import Judgement
from perfsuite.gate.noise import CellNoise, SessionPairs, pool_noise
from perfsuite.gate.request import GateRequest, collect, head_arm
from perfsuite.gate.run_gate import HELD, Machine, run_gate


class Plant(NamedTuple):
    """What is done to head in some sessions: nothing, or one of these."""

    ratio: float = 0.0  # a slowdown of every iteration, 0.05 = 5 %
    # In cells of perfsuite alone: a recipe's field, "precision=fp32", or an `INJECTABLE_FAULTS`.
    in_recipe: str | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What tells a launch to plant it."""
        planted = self.in_recipe or repr(self.ratio)
        return {} if self == NOTHING else {"PERFSUITE_ARM_PLANTED": planted}

    def __str__(self) -> str:
        return self.in_recipe or f"{100 * self.ratio:g} %"


NOTHING = Plant()
# Verdicts that say nothing about the rule.
_WITHOUT_MEASUREMENT = ("ERROR", "NO-BASELINE", "INVALID", "NEW", "VANISHED")


class PlantedResult:
    """The verdicts of one plant's sessions, red with any FAIL; means of a cell and of a session."""

    def __init__(self, plant: Plant, judgements: Sequence[Judgement]) -> None:
        trials = [trial for judgement in judgements for trial in judgement.trials]
        num_pairs = [trial.decision.num_pairs for trial in trials if trial.decision is not None]
        self.plant = plant
        self.num_sessions = len(judgements)
        self.num_red = sum(any(one.word == "FAIL" for one in each.trials) for each in judgements)
        self.verdicts = Counter(one.found for one in trials)
        self.mean_pairs = fmean(num_pairs) if num_pairs else 0.0
        self.wall_s = fmean(judgement.wall_s for judgement in judgements)


class CalibrationResult(NamedTuple):
    """The result of a calibration."""

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
    machine: Machine = HELD,
) -> CalibrationResult:
    """Run sessions of identical code first, and judge planted slowdowns with the noise they show.

    There are `num_sessions` of each plant. The machine is entered once the cells are known. Raises
    a WorkloadError where the working tree is not HEAD's, or a cell is missing or not measured.
    """
    num_cells = _count_cells(request, plants)
    seeds = random.Random(request.seed)
    request = dataclasses.replace(
        request, base="HEAD", judges_identical=True, heeds_exceptions=False, explains=False
    )

    def run(plant: Plant, num: int) -> list[Judgement]:
        judgements = []
        for number in range(num):
            what = "identical code" if plant == NOTHING else f"{plant} planted"
            say(f"session {number + 1} of {num}, {what}")
            seed = seeds.randrange(2**32)
            planted = dataclasses.replace(request, seed=seed, head_environment=plant.variables)
            result = run_gate(planted, say=lambda _: None)
            if result.refusal is not None:
                raise WorkloadError(f"the gate compares nothing here: {result.refusal}")
            for cell in result.cells:
                if cell.word in _WITHOUT_MEASUREMENT:
                    raise WorkloadError(f"{cell.name} cannot be calibrated with: {cell.reason}")
            assert result.judgement is not None
            judgements.append(result.judgement)
        return judgements

    with machine:
        identical = run(NOTHING, num_identical)
        noise = _noise_of(identical)
        priors = {name: found.as_prior() for name, found in noise.items()}
        request = dataclasses.replace(request, priors=priors)
        planted = [PlantedResult(one, run(one, num_sessions)) for one in plants if num_sessions]
        same, most = PlantedResult(NOTHING, identical), request.budget.max_pairs
        return CalibrationResult(
            num_cells=num_cells, max_pairs=most, identical=same, planted=tuple(planted), noise=noise
        )


def _count_cells(request: GateRequest, plants: Sequence[Plant]) -> int:
    folder = request.command.folder
    why = "a calibration compares the working tree with a fresh checkout of HEAD"
    if find_top(folder) is None:
        found = f"{folder} is not in a git checkout, and {why}; run 'git init', and commit"
        raise WorkloadError(found)
    if is_dirty(folder, outputs=request.outputs):
        raise WorkloadError(f"there are uncommitted changes, and {why}; commit them")
    collected = collect(head_arm(request, None))
    if collected.suite is None or collected.why_not_collected is not None:
        raise WorkloadError(f"the tests cannot be collected: {collected.why_not_collected}")
    if not (cells := collected.suite.cells):
        raise WorkloadError("there is no benchmark to calibrate with")
    others = [name for name, found in cells.items() if found["fixture"] != "train_benchmark"]
    for plant in plants:
        if plant.in_recipe and others:
            raise WorkloadError(
                f"{plant} can be planted in cells of train_benchmark alone, and {others[0]} is "
                "none; leave it out with -k, or plant a slowdown such as 5%"
            )
    return len(cells)


def _noise_of(judgements: Sequence[Judgement]) -> dict[str, CellNoise]:
    pairs: defaultdict[str, list[SessionPairs]] = defaultdict(list)
    for trial in (trial for judgement in judgements for trial in judgement.trials):
        errors = [cost.error for cost in trial.costs]
        log_ratios = [pair.log_ratio for pair in trial.pairs]
        session = SessionPairs(log_ratios=log_ratios, firsts=trial.firsts, errors=errors)
        pairs[trial.name].append(session)
    return {name: noise for name in pairs if (noise := pool_noise(pairs[name])) is not None}
