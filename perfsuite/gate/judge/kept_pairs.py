"""What earlier sessions found of the same two trees: each FAIL, and the pairs of each open cell.

Without it every re-run of a red session would be another draw: a slowdown that passes in one of
seven sessions passes in half of five re-runs. The file is untrusted, as from a CI's cache.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from perfsuite.gate.judge.trial import Trial
from perfsuite.stats.evidence import Pair
from perfsuite.stats.sequential import WORDS, Rule
from perfsuite.system import untrusted
from perfsuite.system.files import write_atomically
from perfsuite.system.untrusted import MOST, Amount, Label, printable, printable_lines

_MAX_FILE_BYTES = 64 * 2**20
_KEPT = "an earlier session of these two trees has failed it"
# A branch is seldom re-run after so many others.
_MOST_COMPARISONS = 20

Positive = Annotated[float, msgspec.Meta(gt=0, le=float(MOST))]


class KeptCell(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A cell that a re-run does not judge again; its fields are those of a `Trial`.

    The rule is as it was: with another history, earlier looks would now end otherwise. `counts` are
    those that failed it, and how far each was accepted to grow.
    """

    word: Literal["FAIL", "INCONCLUSIVE"]
    by: Label
    reason: str | None
    rule: Rule
    accepted_slowdown: Positive
    floor_s: Amount
    raw: list[tuple[Positive, Positive]]
    pairs: Annotated[list[Pair], msgspec.Meta(min_length=1)]
    firsts: list[Literal["base", "head"]]
    counts: dict[Label, Amount] = {}
    numerics_change: str | None = None

    def __post_init__(self) -> None:
        if not len(self.raw) == len(self.pairs) == len(self.firsts):
            raise ValueError(f"it has {len(self.pairs)} pairs and {len(self.raw)} times of them")


class KeptComparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is kept of two trees, the cells by their printable names."""

    base: str
    head: str
    cells: dict[str, KeptCell]


class KeptFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file, with the newest comparison last."""

    schema: Literal[1] = 1
    comparisons: list[KeptComparison] = []


class KeptPairs:
    """What a file keeps of two trees, by `printable` names of cells; `unreadable` is why not."""

    def __init__(self, path: Path, base: str, head: str) -> None:
        """Read it: nothing where the file is missing or cannot be read."""
        self.path, self.base, self.head = path, base, head
        kept, self.unreadable = _read(path)
        self.cells = next((one.cells for one in kept if (one.base, one.head) == (base, head)), {})

    def describe(self, names: Iterable[str]) -> str | None:
        """What a reader should know of where the verdicts of these cells come from."""
        if self.unreadable is not None:
            return f"{self.path} cannot be read ({self.unreadable}): judged anew"
        if not (found := self.cells.keys() & set(map(printable, names))):
            return None
        who = "1 cell goes" if len(found) == 1 else f"{len(found)} cells go"
        most = " or ".join(map(str, sorted({self.cells[name].rule.max_pairs for name in found})))
        what = f"of these two trees, with at most {most} pairs a session as before"
        advice = "remove that file for another number, or if more than the trees has changed"
        return f"{who} on from what {self.path} has {what}; {advice}"

    def write(self, trials: Iterable[Trial]) -> None:
        """Keep what a re-run must not judge again; a WriteError where that is impossible."""
        judged = {printable(trial.name): trial for trial in trials}
        said = {name for name, trial in judged.items() if trial.decision and trial.word in WORDS}
        cells = {name: kept for name, kept in self.cells.items() if name not in said}
        cells |= {name: _keep(trial) for name, trial in judged.items() if _is_kept(trial)}
        earlier, _ = _read(self.path)
        others = [one for one in earlier if (one.base, one.head) != (self.base, self.head)]
        if not cells and others == earlier:
            return
        newest = KeptComparison(base=self.base, head=self.head, cells=cells)
        kept = KeptFile(comparisons=[*others, newest][-_MOST_COMPARISONS:])
        write_atomically(self.path, msgspec.json.format(msgspec.json.encode(kept), indent=1))


def kept_names(path: Path | None, head: str | None) -> frozenset[str]:
    """Return the `printable` names of what the file has of a head, with whichever base."""
    comparisons = [] if path is None else _read(path)[0]
    return frozenset(name for one in comparisons if one.head == head for name in one.cells)


def resume(trial: Trial, kept: KeptCell) -> None:
    """Let a trial go on where an earlier session ended; a FAIL is final unless more is accepted."""
    policy = trial.policy
    trial.rule = dataclasses.replace(kept.rule, tolerance=policy.tolerance, limit=policy.limit)
    trial.raw, trial.pairs, trial.firsts = [*kept.raw], [*kept.pairs], [*kept.firsts]
    asked = trial.rule, policy.accepted_slowdown, policy.floor_s
    is_told_alone = kept.by == "numerics" and not policy.refuses_numerics_change
    is_same = (kept.rule, kept.accepted_slowdown, kept.floor_s) == asked and not is_told_alone
    if kept.by == "counts":
        is_same &= any(policy.accepted_increase(name) <= most for name, most in kept.counts.items())
    if kept.word == "FAIL" and is_same:
        trial.decide()
        trial.word, trial.by, trial.failed_counts = "FAIL", kept.by, tuple(kept.counts)
        trial.numerics_change = kept.numerics_change
        told = (kept.reason or "").removeprefix(_KEPT).removeprefix("; ")
        trial.reason = "; ".join(filter(None, (_KEPT, told)))
        return
    while trial.decide_beyond().word == "INCONCLUSIVE":
        trial.rule = dataclasses.replace(trial.rule, num_sessions=trial.rule.num_sessions + 1)


def _is_kept(trial: Trial) -> bool:
    if trial.word == "FAIL":
        return bool(trial.pairs)
    # Another reason than the pairs may be gone in a re-run, and they would then decide.
    is_open = trial.decision is not None and trial.decision.word in (None, "INCONCLUSIVE")
    return trial.word in (None, "INCONCLUSIVE") and is_open


def _keep(trial: Trial) -> KeptCell:
    kept = {name: getattr(trial, name) for name in ("by", "rule", "raw", "pairs", "firsts")}
    bounds = {name: getattr(trial.policy, name) for name in ("accepted_slowdown", "floor_s")}
    accepted = trial.policy.accepted_increase  # without end, where an exception names no ratio
    bounds["counts"] = {name: min(accepted(name), float(MOST)) for name in trial.failed_counts}
    told = {name: getattr(trial, name) for name in ("reason", "numerics_change")}
    told = {name: None if one is None else printable_lines(one) for name, one in told.items()}
    word = trial.word or "INCONCLUSIVE"
    return msgspec.convert({**kept, **bounds, **told, "word": word}, KeptCell)


def _read(path: Path) -> tuple[list[KeptComparison], str | None]:
    """The comparisons in a file, and why it cannot be read: then there are none."""
    try:
        data = untrusted.read_untrusted(path, max_bytes=_MAX_FILE_BYTES)
        return msgspec.json.decode(data, type=KeptFile).comparisons, None
    except FileNotFoundError:
        return [], None
    except (OSError, ValueError) as error:
        return [], printable(untrusted.why_unreadable(error))
