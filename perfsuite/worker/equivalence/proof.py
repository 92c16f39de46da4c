"""What a check has gathered, and the one finding that follows from it.

Must not know which computations were compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from perfsuite.records.equivalence import Check, Finding, Planted, missed
from perfsuite.worker.equivalence.comparison import Evidence
from perfsuite.worker.equivalence.diagnosis import explain_weights
from perfsuite.worker.equivalence.planted_bugs import Bug
from perfsuite.worker.equivalence.tensors import Tensors


@dataclass(kw_only=True)
class Proof:
    """What a check has gathered.

    Attributes:
        check: Which check.
        evidence: Its comparisons; none of them means that nothing was compared.
        planted: The bugs it was given to find.
        vacuous: Why it would have passed whatever the code does; empty where it could have failed.
        notes: What else a reader of the finding should know.
        find_cause: Tells the likeliest cause of a piece of evidence that is not within its limit.
    """

    check: Check
    evidence: list[Evidence] = field(default_factory=list)
    planted: list[Planted] = field(default_factory=list)
    vacuous: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    find_cause: Callable[[Evidence], str | None] = lambda evidence: None

    def plant(self, bugs: Iterable[Bug], judge: Callable[[Tensors], list[Evidence]]) -> None:
        """Give the check bugs to find, by the very comparison that it makes itself."""
        self.planted += [
            Planted(
                bug=bug.name,
                is_flagged=any(not evidence.is_within for evidence in judge(bug.gradients)),
            )
            for bug in bugs
        ]

    def conclude(self) -> Finding:
        """Return what the proof comes to: mismatch before no power before equivalent."""
        # The first step that went wrong, because later ones inherit; then the worst of it.
        failures = [evidence for evidence in self.evidence if not evidence.is_within]
        decisive = min(
            failures or self.evidence,
            key=lambda evidence: (evidence.step if failures else 0, -evidence.severity),
            default=None,
        )
        no_power = [*self.vacuous]
        if missed(self.planted):
            no_power.append(f"it does not find a planted bug: {missed(self.planted)}")
        if decisive is None:
            no_power.append("there was nothing to compare")
        if failures:
            assert decisive is not None
            named = self._first_named(failures, decisive)
            cause = explain_weights(named) or self.find_cause(named)
            reason = _describe(named) + (f"; likeliest cause: {cause}" if cause else "")
        elif no_power:
            reason = "; ".join(no_power)
        else:
            assert decisive is not None
            reason = f"limit {decisive.limit:.1e} = {decisive.formula}"
            if decisive.limit == 0:
                reason = f"equal {decisive.formula}"
        shown = self._first_named(failures, decisive) if failures and decisive else decisive
        return Finding(
            check=self.check,
            status="mismatch" if failures else "no power" if no_power else "equivalent",
            error=None if shown is None else shown.error,
            limit=None if shown is None else shown.limit,
            planted=tuple(self.planted),
            reason="; ".join([reason, *self.notes]),
        )

    @staticmethod
    def _first_named(failures: list[Evidence], decisive: Evidence) -> Evidence:
        """The first of the same step that names a tensor, which tells more than a total."""
        return next(
            (one for one in failures if one.step == decisive.step and one.name is not None),
            decisive,
        )


def _describe(evidence: Evidence) -> str:
    subject = evidence.what if evidence.name is None else f"{evidence.what} of {evidence.name!r}"
    where = "" if evidence.rank is None else f" on rank {evidence.rank}"
    allowed = (
        f"where equal bits are due ({evidence.formula})"
        if evidence.limit == 0
        else f"over the limit of {evidence.limit:.1e} ({evidence.formula})"
    )
    return (
        f"the {subject} differs at step {evidence.step}{where} by {evidence.error:.1e}, {allowed}"
    )
