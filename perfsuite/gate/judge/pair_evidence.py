"""What a pair of launches says of a cell, or why it says nothing."""

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from perfsuite.gate.arms.arm import NO_PROGRESS, NOTHING, OTHER_ENDED, CellRun, Launch, PairPlan
from perfsuite.gate.arms.num_rounds import PairCost
from perfsuite.gate.judge.trial import MAX_UNFIT, Trial
from perfsuite.records.cell import samples_of_step
from perfsuite.records.verdict import VerdictWord
from perfsuite.stats import intervals
from perfsuite.stats.evidence import Pair
from perfsuite.system.background import LEAST_WORK_S, MOST_WORK
from perfsuite.system.untrusted import Amount
from perfsuite.units import counted

# What torch, the C library, Python and the end of a rank or a launch say when memory ran out; and
# what CUDA's libraries say, which need memory beside the allocator's: for a handle, a workspace.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|not enough memory|cannot allocate memory|memory ran out|MemoryError|signal 9"
    r"|CU(?:BLAS|DNN|SPARSE|SOLVER|FFT)_(?:STATUS_)?(?:\w+_)?(?:ALLOC(?:ATION)?_FAILED|NOT_INITIALIZED)"
    r"|unable to find an engine to execute this computation|Cuda failure 2\b",
    re.IGNORECASE,
)

# What sockets, locks, CUDA's exclusive mode and licence servers say where one process alone may,
# and what is said of a command that may have waited for it.
_IS_TAKEN = re.compile(
    r"already in use|(?:already|file) exists|busy or unavailable|resource busy"
    r"|temporarily unavailable"
    r"|\block(?:ed|file)?\b|\blicen[cs]e|\bprinted nothing, for |\bport\W+(?:\d+\W+)?"
    r"(?:(?:it|is|was|but|already|another process) )+(?:in use|utilizing it|taken|allocated)\b",
    re.IGNORECASE,
)
# What an exception says in its line, in a log too; and a path, which may have any name.
_EXCEPTION = re.compile(r"^(?:  \| )?(?:E +|INTERNALERROR> )?\S+: (.+)", re.MULTILINE)
_PATH = re.compile(r"'[^']*/[^']*'|\S*/\S*")

# Of a GPU's clock: as much is a change of what a step takes.
_MOST_CLOCKS_APART = 0.01
_SOME_STEPS = 0.05  # of 50 steps the first or the last has one more or less
_VARYING_SHARE = 0.2  # as much does what a command does beside its steps, such as imports

Launches = Mapping[str, Launch]  # of a pair, by arm
_OF_BOTH = ", which runs head's conftest.py and settings,"
_NO_ROOM = "memory has no room for both arms"
_GO_ON = "its threads or loader workers go on, or wait on, in the other arm's turns"


def add_pair(trial: Trial, launches: Launches, first: str, launch_s: float) -> None:
    """Add what a pair says of a cell, or why it says nothing; it cost `launch_s` beside rounds."""
    # The one that failed by itself first: the other was ended because of it.
    for arm in sorted(launches, key=lambda arm: _is_ended_by_other(launches[arm])):
        if (run := launches[arm].cells.get(trial.name)) is None:
            told = _OF_BOTH if arm == "base" and launches[arm].suite is None else ""
            trial.word, trial.reason = why_missing(trial.name, arm, launches[arm], told)
            return
        # Each holds some thousand names of files, and the last one's are told.
        trial.runs[arm] = [*(replace(one, loaded=NOTHING) for one in trial.runs.get(arm, ())), run]
    base, head = trial.last["base"], trial.last["head"]
    if (untimed := _why_untimed(base, head)) is not None:
        trial.word, trial.reason = untimed
        if "failed" in (base.outcome, head.outcome) and len(launches["head"].cells) > 1:
            trial.add_reason(
                "where it passes in a session of yours: launches run cells in random order, some "
                "left out, so a test must not need what another has stored"
            )
        return
    for arm, run in trial.last.items():
        if _works_on(run):
            trial.word = "INCONCLUSIVE"
            trial.reason = (
                f"threads of the {arm} arm worked for {run.background_s:.3g} s while the other arm "
                f"had its turns, beside {run.turns_s:.3g} s of its own, so they disturbed its "
                "timing; start such threads in the test that needs them, and end them there"
            )
            return
    if (reason := _why_clocks_differ(base, head)) is not None:
        trial.num_unfit += 1
        if trial.num_unfit == MAX_UNFIT:
            trial.word, trial.reason = "INVALID", reason
        return
    # Where counts are not compared, what the arms train is meant to differ.
    if trial.policy.slacks and (reason := _why_incomparable(base, head)) is not None:
        trial.word, trial.reason = "INVALID", reason
        return
    base_s = statistics.median(base.rounds_s)
    log_ratio, error = locate_log_ratio(base.rounds_s, head.rounds_s)
    base_samples, head_samples = trial.policy.num_samples
    raw = base_s / base_samples, base_s * math.exp(log_ratio) / head_samples
    trial.raw.append(raw)
    trial.firsts.append(first)
    is_collecting = launches["head"].agreed.get(trial.name, {}).get("collecting", False)
    trial.sets_collector |= bool(is_collecting) and not (trial.one_by_one or trial.is_apart)
    num_rounds = min(len(base.rounds_s), len(head.rounds_s))
    total = math.fsum(head.rounds_s[:num_rounds]) / math.fsum(base.rounds_s[:num_rounds])
    mean = math.log(total) + math.log(base_samples / head_samples)
    known = error if math.isfinite(error) else None
    trial.pairs.append(Pair(log_ratio=math.log(raw[1] / raw[0]), mean_log_ratio=mean, error=known))
    if (round_s := head.alternated_s / num_rounds) > 0 and math.isfinite(error):
        trial.costs.append(PairCost(log_ratio, error, num_rounds, round_s, launch_s))


def _works_on(run: CellRun) -> bool:
    return run.background_s > max(MOST_WORK * run.turns_s, LEAST_WORK_S)


def may_use_gpus(launches: Launches) -> bool:
    """Whether a cell of a pair may compute on a GPU, so that its heat and users matter."""
    runs = [run for launch in launches.values() for run in launch.cells.values()]
    return any(
        any("/libcuda.so" in path for path in run.loaded.files)
        if (record := _read(run)) is None
        else record.device != "cpu"
        for run in runs
    )


def _why_clocks_differ(base: CellRun, head: CellRun) -> str | None:
    if (record := _read(head)) is None or record.device == "cpu":
        return None
    clocks_mhz = zip(base.clocks_mhz, head.clocks_mhz, strict=False)
    for number, clocks in enumerate(list(clocks_mhz)[: record.world_size]):
        if abs(clocks[1] - clocks[0]) > _MOST_CLOCKS_APART * min(clocks):
            ran = f"{clocks[0]:.0f} MHz in the base's turns, and at {clocks[1]:.0f} MHz in head's"
            advice = "lock its clock below what its power limit allows"
            return f"GPU {number} ran at {ran}; {advice} (nvidia-smi --lock-gpu-clocks)"
    return None


def why_missing(cell: str, arm: str, launch: Launch, of_both: str = "") -> tuple[VerdictWord, str]:
    """Return the verdict of a cell that a launch has no run of, and its reason."""
    word: VerdictWord = "INVALID"
    why = launch.failure or "its session stopped before the cell had ended"
    if launch.suite is not None and (broken := launch.suite.why_broken(cell)) is not None:
        word, why = "NO-BASELINE" if arm == "base" else "ERROR", broken
    elif launch.suite is not None and cell not in launch.suite.cells and arm == "base":
        word, why = "NO-BASELINE", "with head's benchmark files it has no such cell"
    return word, f"the {arm} launch{of_both} did not measure it: {why}"


def _why_untimed(base: CellRun, head: CellRun) -> tuple[VerdictWord, str] | None:
    before, after = (run.outcome == "passed" and bool(run.rounds_s) for run in (base, head))
    if before and not after and head.outcome != "failed":
        return "VANISHED", why_vanished(head)
    if not (before and after):
        arm, run = ("base", base) if after else ("head", head)
        is_both = base.outcome == head.outcome and not (before or after)
        whose = "both arms" if is_both else f"the {arm} arm"
        word: VerdictWord = "ERROR" if run.outcome == "failed" else "SKIPPED"
        why = f"{whose} {run.outcome}: {run.reason or 'nothing was timed'}"
        return "NO-BASELINE" if after else word, why
    if wrong_s := [s for s in (*base.rounds_s, *head.rounds_s) if not 0 < s < math.inf]:
        return "INVALID", f"a round took {wrong_s[0]} s; its clock did not advance, or is broken"
    return None


def why_vanished(head: CellRun) -> str:
    """Return what became of a cell that the base measures and head, which passes, does not."""
    return f"head skips what the base measures: {head.reason or 'it passes and times nothing'}"


def is_postponed(trial: Trial, launches: Launches, names: Sequence[str], plan: PairPlan) -> bool:
    """Whether the cell had no fair trial and is tried once more in the next pair.

    There it runs unpinned, alone in memory, launch after launch, or without what ended a launch.
    """
    runs = [launch.cells[trial.name] for launch in launches.values() if trial.name in launch.cells]
    why_failed = [*failures(trial.name, launches)]
    trial.failure = next(iter(why_failed), None)
    if not trial.is_unpinned and any(run.outgrew_core for run in runs):
        trial.is_unpinned = True
        return True
    # An allocator that waited for memory may have waited for the other arm's.
    records = [record for record in map(_read, runs) if record is not None]
    has_retried = any((one.counts or {}).get("allocator_retries") for one in records)
    lacked_memory = has_retried or any(map(_OUT_OF_MEMORY.search, why_failed))
    hides = any(run.hides_waits or _works_on(run) for run in runs)
    if not trial.one_by_one and (lacked_memory or hides):
        trial.one_by_one = _NO_ROOM if lacked_memory else _GO_ON
        return True
    has_daemon = any(launch.leaves_daemon for launch in launches.values())
    stuck = [one for one in launches.values() if (one.failure or "").startswith(NO_PROGRESS)]
    if plan.is_apart and stuck:
        trial.is_apart = False  # the other arm was not in the way
    elif not trial.is_apart and (has_daemon or any(map(_is_taken, why_failed))):
        trial.is_apart = True
        return True
    has_run = all(trial.name in launch.cells for launch in launches.values())
    return not has_run and _cell_that_ended(launches, names) not in (None, trial.name)


def _cell_that_ended(launches: Launches, names: Sequence[str]) -> str | None:
    """The cell that ended a launch before its last, by itself; None where none did."""
    suites = [launch.suite for launch in launches.values() if launch.suite is not None]
    chosen = [name for name in names if all(name in suite.cells for suite in suites)]
    by_itself = [one for one in launches.values() if one.suite and not _is_ended_by_other(one)]
    return next((name for one in by_itself for name in chosen if name not in one.cells), None)


def _is_taken(failure: str) -> bool:
    """Whether an arm wanted, or may have waited for, what one process alone may have."""
    said = (_PATH.sub("", text) for text in _EXCEPTION.findall(failure))
    return failure.startswith(NO_PROGRESS) or any(map(_IS_TAKEN.search, said))


def failures(name: str, launches: Launches) -> Iterator[str]:
    """Yield why launches of a cell failed."""
    for launch in launches.values():
        run = launch.cells.get(name)
        why = launch.failure if run is None else run.reason if run.outcome == "failed" else None
        if run is None and launch.suite is not None:
            why = launch.suite.why_broken(name) or why
        if why is not None:
            yield why


def _is_ended_by_other(launch: Launch) -> bool:
    return launch.failure is not None and launch.failure.startswith(OTHER_ENDED)


def locate_log_ratio(base_s: Sequence[float], head_s: Sequence[float]) -> tuple[float, float]:
    """Return log(head / base) and its standard error: a trimmed mean over rounds beside each other.

    What the machine did meanwhile happened to both rounds of a pair. Over 14 launches of a loop of
    240 LeNet steps on two shared cores its standard deviation was 0.69 %, that of the median of the
    ratios 1.38 %, that of the ratio of means 1.04 %. Of more rounds in one arm the first are taken.
    """
    rounds = zip(base_s, head_s, strict=False)
    return intervals.trimmed_mean([math.log(after / before) for before, after in rounds])


class _Trained(msgspec.Struct, frozen=True):
    device: str = "cpu"
    world_size: int = 1
    workload: str | None = None
    recipe: dict[str, Any] | None = None
    samples_per_s: Amount | None = None
    counts: dict[str, Any] | None = None


def _why_incomparable(base: CellRun, head: CellRun) -> str | None:
    """Why the times of two launches are of different things, as of steps of another size."""
    before, after = _read(base), _read(head)
    if before is None or after is None:
        return None
    num_rounds = len(base.rounds_s), len(head.rounds_s)
    # The rounds of a cell of ours the gate itself counts off.
    if None not in (before.workload, after.workload) and num_rounds[0] != num_rounds[1]:
        return (
            f"the loop, or its log, ended by itself, after {num_rounds[0]} rounds in the base and "
            f"{num_rounds[1]} in head, so that neither times nor counts compare; let both take the "
            "steps that the test asks for"
        )
    samples = [
        samples_of_step(record.samples_per_s, statistics.median(run.rounds_s))
        for record, run in ((before, base), (after, head))
    ]
    ranks = before.world_size, after.world_size
    if ranks[0] != ranks[1]:
        apart = f"training has {counted(ranks[0], 'rank')} in the base and {ranks[1]} in head"
    elif None in samples or samples[0] == samples[1]:
        return None
    else:
        apart = f"a step has {samples[0]} samples in the base and {samples[1]} in head"
    return f"{apart}, so that neither times nor counts compare; rename the test if that is intended"


def describe_changes(base: CellRun, head: CellRun) -> str | None:
    """Return what head changes of workload and recipe; None without a change, or two records."""
    theirs, ours = (
        {"workload": record.workload, **(record.recipe or {})} if (record := _read(run)) else {}
        for run in (base, head)
    )
    names = (name for name in sorted(ours.keys() & theirs.keys()) if ours[name] != theirs[name])
    changed = [f"{name} {ours[name]!r} instead of {theirs[name]!r}" for name in names]
    return f"head trains with {', '.join(changed)}" if changed else None


def describe_beside(base: Sequence[CellRun], head: Sequence[CellRun], limit: float) -> str | None:
    """Return that a command takes longer beside its timed steps, where each of two pairs has it."""
    if len(base) < 2 or base[-1].record is None or base[-1].alternated_s:  # or all is timed
        return None
    base_s, head_s = ([it.turns_s - math.fsum(it.rounds_s) for it in runs] for runs in (base, head))
    for run, one, two in zip(base, base_s, head_s, strict=False):
        least_s = max(limit * math.fsum(run.rounds_s), max(limit, _VARYING_SHARE) * one)
        if one < 0 or two - one <= least_s:  # a log of several ranks sums up to more than went by
            return None
    took = f"{statistics.median(head_s):.3g} s with head and {statistics.median(base_s):.3g} s with"
    return f"beside its timed steps, which alone are judged, the command took {took} the base"


def why_logs_differ(base: Sequence[CellRun], head: Sequence[CellRun]) -> str | None:
    """Why a command's timed steps may be other ones in head: each launch logs more, or fewer."""
    numbers = [{run.num_logged for run in runs} - {None} for runs in (base, head)]
    if len(base) < 2 or [len(one) for one in numbers] != [1, 1] or numbers[0] == numbers[1]:
        return None
    (theirs,), (ours,) = numbers
    return (
        f"the command logs {ours} step times with head and {theirs} with the base, so that the "
        "first ones may be of other steps, as an evaluation's are; log those under another key, or "
        "rename the cell if that is intended"
    )


def why_steps_differ(base: Sequence[CellRun], head: Sequence[CellRun]) -> str | None:
    """Why a step of a loop may be another part of it in head: an optimizer steps in some alone."""
    theirs, ours = (statistics.median(it.others_per_step for it in runs) for runs in (base, head))
    # A second optimizer that steps as often as the first one, or is gone, leaves a step whole.
    is_part = any(abs(rate - round(rate)) > _SOME_STEPS for rate in (theirs, ours))
    if not is_part or abs(theirs - ours) < _SOME_STEPS:
        return None
    return (
        f"for each step, further optimizers step {ours:.2g} times with head and {theirs:.2g} times "
        "with the base, so that a step is another part of the loop; end it by the optimizer that "
        "steps least (optimizer=), or by perfsuite.step_done()"
    )


def describe_threads(base: Sequence[CellRun], head: Sequence[CellRun]) -> str | None:
    """Return that head computes with more threads, or fewer; None where it does not."""
    theirs, ours = ([one.num_threads for one in runs if one.num_threads] for runs in (base, head))
    if not (theirs and ours) or {*theirs} & {*ours}:
        return None
    return f"head computes with {counted(max(ours), 'thread')}, and the base with {max(theirs)}"


def _read(run: CellRun) -> _Trained | None:
    try:
        return None if run.record is None else msgspec.convert(run.record, _Trained)
    except msgspec.ValidationError:
        return None
