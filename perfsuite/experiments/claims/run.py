"""Claims put to the test, one after the other. Must not know what is claimed or how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfsuite.errors import NotExercisedError, PerfsuiteError, SettingError
from perfsuite.experiments.claims import CLAIMS, Bench, Claim, ClaimFinding


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A claim and what became of it.

    Attributes:
        is_broken: Whether the experiment itself failed.
    """

    claim: Claim
    finding: ClaimFinding
    is_broken: bool


def choose_claims(only: Sequence[str], claims: Sequence[Claim] = CLAIMS) -> list[Claim]:
    """Return the claims of these ids, in their usual order; all where none is named.

    Args:
        only: Ids, of either case; one text may name several, as "C8,C9".
        claims: What there is to choose from.

    Raises:
        SettingError: There is no such claim.
    """
    wanted = {name.strip().upper() for text in only for name in text.split(",")}
    known = [claim.id for claim in claims]
    if unknown := sorted(wanted - set(known)):
        raise SettingError(f"--only names {unknown[0]!r}; use one of {', '.join(known)}")
    return [claim for claim in claims if not wanted or claim.id in wanted]


def try_claims(
    claims: Sequence[Claim], bench: Bench, *, show: Callable[[Tested], None]
) -> list[Tested]:
    """Return what became of each claim; an experiment that breaks ends none of the others.

    Args:
        claims: In order.
        bench: What they measure with.
        show: Called with each as it comes.
    """
    results = []
    for claim in claims:
        bench.say(f"{claim.id}: {claim.text}")
        results.append(_try(claim, bench))
        show(results[-1])
    return results


def _try(claim: Claim, bench: Bench) -> Tested:
    try:
        return Tested(claim=claim, finding=claim.experiment(bench), is_broken=False)
    except NotExercisedError as error:
        return Tested(claim=claim, finding=_untested(str(error)), is_broken=False)
    except PerfsuiteError as error:
        reason = f"the experiment broke: {error}"
        return Tested(claim=claim, finding=_untested(reason), is_broken=True)


def _untested(reason: str) -> ClaimFinding:
    return ClaimFinding(status="cannot be tested here", figures={}, here="-", reason=reason)
