"""How the judge decides each cell, and what it keeps of it: all that a verdict rests on."""

import math
import random
import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from perfsuite.gate.arms.arm import CellRun
from perfsuite.gate.arms.num_rounds import PairCost
from perfsuite.gate.judge.counts import Slack
from perfsuite.records.verdict import CellVerdict, Explanation, VerdictWord
from perfsuite.stats.evidence import Pair
from perfsuite.stats.sequential import Decision, Rule, decide
from perfsuite.units import format_change, format_ratio, listed


@dataclass(frozen=True, kw_only=True)
class CellPolicy:
    """How one cell is judged."""

    tolerance: float
    limit: float
    floor_s: float  # a slowdown of an iteration below this many seconds is never a FAIL
    # A reviewed exception: the base may be taken to be this many times slower.
    accepted_slowdown: float = 1.0
    # Of counts, in place of the usual ones; None switches one off. Of several, head's and the
    # base's, the strictest holds; without any the arms' counts are not compared at all.
    slacks: tuple[Mapping[str, Slack | None], ...] = ()
    # How many times the base's a reviewed exception lets a count be.
    accepted_increase: Callable[[str], float] = lambda count: 1.0
    refuses_numerics_change: bool = False
    # Of an iteration of base and of head, where times are compared per sample.
    num_samples: tuple[int, int] = (1, 1)

    @property
    def bounds(self) -> tuple[float, float]:
        """Tolerance and limit as they hold against the base as it is, the exception included."""
        more = self.accepted_slowdown - 1
        # (1 + tolerance) (1 + more) - 1, which leaves the digits as given where nothing is accepted
        return self.tolerance * (1 + more) + more, self.limit * (1 + more) + more


LAUNCH_TIMEOUT_S = 300.0
MAX_UNFIT = 3  # pairs that do not count, before the machine does not, or a cell


class Budget(NamedTuple):
    """What a judgement may cost; a launch without any message for `timeout_s` is stuck."""

    max_pairs: int
    max_s: float
    timeout_s: float = LAUNCH_TIMEOUT_S


@dataclass(kw_only=True)
class Trial:
    """One cell on its way to a verdict; its `word` is None until then."""

    name: str
    policy: CellPolicy
    rule: Rule
    # Seconds an iteration of both launches of each pair, base first: the median of the base, and
    # that times the location of head's rounds over the base's beside them. Seconds a sample where
    # the policy says how many samples an iteration has.
    raw: list[tuple[float, float]] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)  # what the rule sees of each pair in `raw`
    word: VerdictWord | None = None
    by: str = "pairs"
    reason: str | None = None
    decision: Decision | None = None  # what the pairs prove so far
    runs: dict[str, list[CellRun]] = field(default_factory=dict)  # those of all pairs, by arm
    num_counted: int | None = None  # the first so many runs have counts; None for all
    firsts: list[str] = field(default_factory=list)  # by pair, the arm that ran its first round
    costs: list[PairCost] = field(default_factory=list)
    one_by_one: str = ""  # why one arm runs it after the other in its next pair; empty for in turns
    is_apart: bool = False  # as in a `PairPlan`, of its next pair
    is_unpinned: bool = False  # likewise
    sets_collector: bool = False  # one arm does, and not as the other
    num_unfit: int = 0  # pairs that did not count for this cell
    failure: str | None = None  # of the last pair, after which it is tried once more
    numerics_change: str | None = None
    accepted_counts: tuple[str, ...] = ()  # that grew as a reviewed exception lets them
    failed_counts: tuple[str, ...] = ()  # that fail it

    @property
    def last(self) -> dict[str, CellRun]:
        """The runs of the last pair, by arm."""
        return {arm: runs[-1] for arm, runs in self.runs.items()}

    @property
    def found(self) -> str:
        """The word, and what else than its pairs gave it."""
        return f"{self.word or 'open'}{'' if self.by == 'pairs' else f' by {self.by}'}"

    def add_reason(self, text: str) -> None:
        """Say one thing more that a reader should know."""
        self.reason = text if self.reason is None else f"{self.reason}; {text}"

    def decide(self) -> None:
        """Take the decision of the pairs, and their word where they suffice."""
        if not self.pairs:
            return
        accepted, decision = self.policy.accepted_slowdown, self.decide_beyond()
        low, high = decision.interval
        self.decision = replace(
            decision,
            ratio=decision.ratio * accepted,
            mean_ratio=decision.mean_ratio * accepted,
            interval=(low * accepted, high * accepted),
        )
        self.word = decision.word
        if decision.word is None:
            return
        self.tell_stalls()
        if accepted != 1.0:
            self.add_reason(f"a slowdown by {format_ratio(accepted - 1)} is accepted")
            # Faster than what is accepted is not yet faster than the base.
            if self.word == "IMPROVED" and decide(self.pairs, self.rule).word != "IMPROVED":
                self.word = "PASS"
        typical = [head_s - base_s * accepted for base_s, head_s in self.raw]
        total = [
            base_s * (math.exp(pair.mean_log_ratio) - accepted)
            for (base_s, _), pair in zip(self.raw, self.pairs, strict=True)
        ]
        slower_s = max(statistics.median(typical), statistics.median(total))
        if self.word == "FAIL" and slower_s < self.policy.floor_s:
            self.word = "PASS"
            by, floor = (f"{seconds * 1e6:.3g} us" for seconds in (slower_s, self.policy.floor_s))
            self.add_reason(f"slower by {by} an iteration, below the floor of {floor}")

    def decide_beyond(self) -> Decision:
        """Return what the pairs prove as if the base took what is accepted."""
        more = math.log(self.policy.accepted_slowdown)
        beyond = [
            replace(one, log_ratio=one.log_ratio - more, mean_log_ratio=one.mean_log_ratio - more)
            for one in self.pairs
        ]
        return decide(beyond, self.rule)

    def tell_stalls(self) -> None:
        """Tell both locations where they differ, or where the mean alone keeps it from passing."""
        if (decision := self.decision) is None:
            return
        both = f"typical {format_change(decision.ratio)}, mean {format_change(decision.mean_ratio)}"
        is_below = decision.interval[1] < 1 + self.policy.bounds[1]
        is_open = is_below and decision.word in (None, "INCONCLUSIVE")
        if decision.mean_differs:
            self.add_reason(f"{both}: stalls" if is_open else both)
        elif is_open:
            self.add_reason(f"{both}: the mean is not proven to be below the limit")

    def tell_loaded(self, root: Path, changed: Collection[Path]) -> None:
        """Tell what is head's on both sides, and which processes could not say what they loaded.

        `changed` are benchmark files that head has otherwise, relative to its `root`.
        """
        if "head" not in self.last:
            return
        loaded = self.last["head"].loaded
        own = Path(self.name.partition("::")[0])
        same = [path for path in sorted(changed) if str(root / path) in loaded.files]
        if others := [path for path in same if path != own]:
            self.add_reason(f"what this cell runs is head's on both sides: {listed(others)}")
        if silent := sorted(loaded.silent):
            self.add_reason(f"no process of these could say what it loaded: {listed(silent)}")

    def verdict(self, explanation: Explanation | None, base: str) -> CellVerdict:
        """Return what became of the cell, which was judged against the base, as it is called."""
        tolerance, limit = self.policy.bounds
        proven: dict[str, Any] = {}
        if self.decision is not None:
            proven = asdict(self.decision)
            del proven["word"], proven["mean_differs"]  # counts may have another word
            accepted = {"accepted_slowdown": self.policy.accepted_slowdown}
            proven["rule"] = asdict(self.rule) | accepted
        return CellVerdict(
            name=self.name,
            word=self.word or "INCONCLUSIVE",
            by=self.by,
            tolerance=tolerance,
            limit=limit,
            reason=self.reason,
            compared_with=f"pairs against {base}" if self.raw else None,
            numerics_change=self.numerics_change,
            explanation=explanation,
            raw=tuple(self.raw),
            mean_ratios=tuple(math.exp(pair.mean_log_ratio) for pair in self.pairs),
            errors=tuple(pair.error for pair in self.pairs),
            firsts=tuple(self.firsts),
            **proven,
        )


def draw_seed() -> int:
    """Return a random seed, for everything that is random in a judgement."""
    return random.SystemRandom().randrange(2**32)


class Judgement(NamedTuple):
    """The result of the pairs."""

    trials: tuple[Trial, ...]
    num_pairs: int
    wall_s: float
