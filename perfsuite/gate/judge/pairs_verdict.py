"""The verdict of the pairs of one cell: the rule's word, under what is accepted and the floor."""

import dataclasses
import math
import statistics
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from perfsuite.gate.judge.trial import Trial
from perfsuite.records.verdict import CellVerdict, Explanation
from perfsuite.stats.sequential import Decision, decide
from perfsuite.units import format_change, format_ratio, listed


def decide_by_pairs(trial: Trial) -> None:
    """Give a trial its decision, and its word where its pairs suffice."""
    if not trial.pairs:
        return
    accepted, decision = trial.policy.accepted_slowdown, decide_beyond(trial)
    low, high = decision.interval
    trial.decision = dataclasses.replace(
        decision,
        ratio=decision.ratio * accepted,
        mean_ratio=decision.mean_ratio * accepted,
        interval=(low * accepted, high * accepted),
    )
    trial.word = decision.word
    if decision.word is None:
        return
    tell_stalls(trial)
    if accepted != 1.0:
        trial.add_reason(f"a slowdown by {format_ratio(accepted - 1)} is accepted")
        # Faster than what is accepted is not yet faster than the base.
        if trial.word == "IMPROVED" and decide(trial.pairs, trial.rule).word != "IMPROVED":
            trial.word = "PASS"
    typical = [head_s - base_s * accepted for base_s, head_s in trial.raw]
    total = [
        base_s * (math.exp(pair.mean_log_ratio) - accepted)
        for (base_s, _), pair in zip(trial.raw, trial.pairs, strict=True)
    ]
    slower_s = max(statistics.median(typical), statistics.median(total))
    if trial.word == "FAIL" and slower_s < trial.policy.floor_s:
        trial.word = "PASS"
        trial.add_reason(
            f"slower by {slower_s * 1e6:.3g} us an iteration, below the floor of "
            f"{trial.policy.floor_s * 1e6:.3g} us"
        )


def decide_beyond(trial: Trial) -> Decision:
    """Return what the pairs prove as if the base took what is accepted."""
    accepted = math.log(trial.policy.accepted_slowdown)
    beyond = [
        dataclasses.replace(
            pair, log_ratio=pair.log_ratio - accepted, mean_log_ratio=pair.mean_log_ratio - accepted
        )
        for pair in trial.pairs
    ]
    return decide(beyond, trial.rule)


def tell_stalls(trial: Trial) -> None:
    """Tell both locations where they differ, or where the mean alone keeps a cell from passing."""
    decision = trial.decision
    if decision is None:
        return
    both = f"typical {format_change(decision.ratio)}, mean {format_change(decision.mean_ratio)}"
    is_below = decision.interval[1] < 1 + trial.policy.bounds[1]
    is_open = is_below and decision.word in (None, "INCONCLUSIVE")
    if decision.mean_differs:
        trial.add_reason(f"{both}: stalls" if is_open else both)
    elif is_open:
        trial.add_reason(f"{both}: the mean is not proven to be below the limit")


def verdict_of(trial: Trial, explanation: Explanation | None, base: str) -> CellVerdict:
    """Return what became of a cell that was judged against the base, as it is called."""
    tolerance, limit = trial.policy.bounds
    proven: dict[str, Any] = {}
    if trial.decision is not None:
        proven = dataclasses.asdict(trial.decision)
        del proven["word"], proven["mean_differs"]  # counts may have another word
        accepted = {"accepted_slowdown": trial.policy.accepted_slowdown}
        proven["rule"] = dataclasses.asdict(trial.rule) | accepted
    return CellVerdict(
        name=trial.name,
        word=trial.word or "INCONCLUSIVE",
        by=trial.by,
        tolerance=tolerance,
        limit=limit,
        reason=trial.reason,
        compared_with=f"pairs against {base}" if trial.raw else None,
        numerics_change=trial.numerics_change,
        explanation=explanation,
        raw=tuple(trial.raw),
        mean_ratios=tuple(math.exp(pair.mean_log_ratio) for pair in trial.pairs),
        errors=tuple(pair.error for pair in trial.pairs),
        firsts=tuple(trial.firsts),
        **proven,
    )


def remarks_on(trial: Trial, root: Path, changed: Collection[Path]) -> Iterator[str]:
    """Yield what is head's on both sides, and which processes could not say what they loaded.

    `changed` are benchmark files that head has otherwise, relative to its `root`.
    """
    if "head" not in trial.last:
        return
    loaded = trial.last["head"].loaded
    own = Path(trial.name.partition("::")[0])
    same = [path for path in sorted(changed) if str(root / path) in loaded.files]
    if others := [path for path in same if path != own and path.name != "conftest.py"]:
        yield f"what this cell runs is head's on both sides: {listed(others)}"
    if loaded.silent:
        yield f"no process of these could say what it loaded: {listed(sorted(loaded.silent))}"
