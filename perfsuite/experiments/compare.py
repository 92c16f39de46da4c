"""Two cells through the gate's paired rule: is b faster than a, slower, or the same?

Times are compared per sample, because an iteration of two ranks handles twice the samples of one.
The rule is one-sided, so "the same" is proven from both sides, on the same pairs where they suffice
(Schuirmann 1987, the two one-sided tests procedure).
"""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from perfsuite.errors import NotExercisedError, WorkloadError
from perfsuite.experiments import compared_cell
from perfsuite.experiments.interleave import Bench, Cell
from perfsuite.experiments.rank_session import Session
from perfsuite.gate.arms.arm import Arm
from perfsuite.gate.judge.judge import judge
from perfsuite.gate.judge.trial import Budget, CellPolicy, Trial
from perfsuite.records.cell import CellRecord, samples_of_step
from perfsuite.records.equivalence import EquivalenceReport
from perfsuite.records.recipe import describe_recipe
from perfsuite.stats import intervals
from perfsuite.stats.sequential import Decision, Rule, decide

Word = Literal["faster", "slower", "same", "undecided"]

_FILE = Path(compared_cell.__file__)
_UNMEASURED = ("ERROR", "NO-BASELINE", "INVALID", "SKIPPED")
# What b is by the judge's word on b against a, and then by the one on a against b: there an
# improvement says that a is faster, though by less than the limit.
_FORWARD: dict[str | None, Word] = {"FAIL": "slower", "IMPROVED": "faster"}
_BACKWARD: dict[str | None, Word] = {"FAIL": "faster", "IMPROVED": "slower"}


class ComparisonRequest(NamedTuple):
    """Two trainings; b is compared with a."""

    a: Cell
    b: Cell
    budget: Budget  # of each of at most two judgements
    tolerance: float = 0.02  # a difference up to this counts as none, 0.02 = 2 %
    limit: float = 0.05  # "the same" is within this


class Comparison(NamedTuple):
    """What the pairs came to; ratios are b / a, 1.05 = b takes 5 % longer for a sample."""

    word: Word
    ratio: float
    interval: tuple[float, float]  # the bounds that decided
    raw: tuple[tuple[float, float], ...]  # seconds per sample of both launches of each pair
    num_samples: dict[str, int]  # of an iteration, by "a" and "b"
    records: dict[str, CellRecord]  # of the last launches, likewise
    wall_s: float

    @property
    def step_times_s(self) -> dict[str, float]:
        """Seconds of an iteration by "a" and "b", the median over pairs."""
        return {
            name: statistics.median([pair[at] for pair in self.raw]) * self.num_samples[name]
            for at, name in enumerate(("a", "b"))
        }


def check_numerics(session: Session, cell: Cell) -> EquivalenceReport:
    """Return the proof that a cell computes what one process would, and that it was exercised."""
    report = session.require_equivalence(cell.workload, cell.recipe)
    # What a loader of the user's own gives is no question of this machine.
    missing = [row for row in report.rows if row.status == "not exercised" and row.check != "data"]
    if report.status == "not exercised" and missing:
        raise NotExercisedError(missing[0].reason)
    return report


def compare(bench: Bench, request: ComparisonRequest) -> Comparison:
    """Return whether b is faster than a, on a machine held from here on; raises a WorkloadError."""
    cells = request.a, request.b
    num_samples = _count_samples(bench, request.a), _count_samples(bench, request.b)
    bench.session.hold_machine()
    trial, forward, wall_s = _judge(bench, request, cells, num_samples)
    raw, backward = list(trial.raw), None
    if forward.word == "PASS":
        pairs, bounds = request.budget.max_pairs, (request.tolerance, request.limit)
        rule = Rule(tolerance=bounds[0], limit=bounds[1], num_cells=1, max_pairs=pairs)
        reverse = [
            replace(one, log_ratio=-one.log_ratio, mean_log_ratio=-one.mean_log_ratio)
            for one in trial.pairs
        ]
        backward = decide(reverse, rule)
        if backward.word is None:
            bench.say("b is not slower; is it faster?")
            further, backward, further_s = _judge(bench, request, cells[::-1], num_samples[::-1])
            raw += [(a_s, b_s) for b_s, a_s in further.raw]
            wall_s += further_s
    word, interval = weigh(forward, backward)
    return Comparison(
        word=word,
        ratio=intervals.geometric_interval([b_s / a_s for a_s, b_s in raw]).centre,
        interval=interval,
        raw=tuple(raw),
        num_samples=dict(zip(("a", "b"), num_samples, strict=True)),
        records={
            name: msgspec.convert(trial.last[arm].record, CellRecord)
            for name, arm in (("a", "base"), ("b", "head"))
        },
        wall_s=wall_s,
    )


def weigh(forward: Decision, backward: Decision | None) -> tuple[Word, tuple[float, float]]:
    """Return what b against a and a against b prove together, and the bounds of b / a."""
    if forward.word != "PASS" or backward is None:
        return _FORWARD.get(forward.word, "undecided"), forward.interval
    back_low, back_high = backward.interval
    if backward.word in _BACKWARD:
        return _BACKWARD[backward.word], (1 / back_high, 1 / back_low)
    word: Word = "same" if backward.word == "PASS" else "undecided"
    return word, (1 / back_high, forward.interval[1])


def _count_samples(bench: Bench, cell: Cell) -> int:
    """Return the samples of an iteration, from an untimed one, which also finds mistakes."""
    outcome = bench.count(cell.workload, cell.recipe)
    samples = samples_of_step(outcome.record.samples_per_s, statistics.median(outcome.step_times_s))
    assert samples is not None
    return samples


def _judge(
    bench: Bench, request: ComparisonRequest, cells: tuple[Cell, Cell], num_samples: tuple[int, int]
) -> tuple[Trial, Decision, float]:
    base, head = cells
    # Without a floor, because the user asked for every difference.
    tolerance, limit = request.tolerance, request.limit
    policy = CellPolicy(tolerance=tolerance, limit=limit, floor_s=0.0, num_samples=num_samples)
    device = bench.session.hardware.device
    judgement = judge(
        _arm("base", base, device),
        _arm("head", head, device),
        {f"{_FILE.name}::test_training": policy},
        budget=request.budget,
        seed=bench.seed,
        priors={},
        say=lambda text: None if _FILE.name in text else bench.say(text),  # in words of the gate
    )
    (trial,) = judgement.trials
    if trial.word in _UNMEASURED or trial.decision is None:
        one, other = (f"{cell.workload} under {describe_recipe(cell.recipe)}" for cell in cells)
        raise WorkloadError(f"{one} (base) and {other} (head) cannot be compared: {trial.reason}")
    return trial, trial.decision, judgement.wall_s


def _arm(name: str, cell: Cell, device: str) -> Arm:
    variable = {"workload": cell.workload, "recipe": cell.recipe.as_dict()}
    return Arm(
        name=name,
        tree=Path.cwd(),
        import_roots=(),
        pytest_arguments=(
            # An empty configuration: neither this folder's nor the package's.
            *("-c", str(_FILE.with_suffix(".ini")), f"--rootdir={_FILE.parent}"),
            f"--perf-device={device}",
            str(_FILE),
        ),
        environment={compared_cell.CELL_VARIABLE: json.dumps(variable), "PYTEST_ADDOPTS": ""},
    )
