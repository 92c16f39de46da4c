"""Claims put to the test, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfsuite.errors import NotExercisedError, PerfsuiteError, SettingError
from perfsuite.experiments.claims import CLAIMS, Bench, Claim, ClaimFinding
from perfsuite.experiments.claims.claim import weigh


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A claim and its finding; where the experiment itself failed it is broken."""

    claim: Claim
    finding: ClaimFinding
    is_broken: bool


def choose_claims(only: Sequence[str], claims: Sequence[Claim] = CLAIMS) -> list[Claim]:
    """Return the claims of ids such as "C5" or "c8,C9", in their usual order; all without any.

    Raises:
        SettingError: There is no such claim.
    """
    chosen = {name.strip().upper() for text in only for name in text.split(",")}
    known = [claim.id for claim in claims]
    if unknown := sorted(chosen - set(known)):
        raise SettingError(f"--only names {unknown[0]!r}; use one of {', '.join(known)}")
    return [claim for claim in claims if not chosen or claim.id in chosen]


def try_claims(
    claims: Sequence[Claim], bench: Bench, *, show: Callable[[Tested], None]
) -> list[Tested]:
    """Return what became of each claim, shown as it comes; a broken experiment ends no other."""
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
    return weigh("cannot be tested here", here="-", reason=reason)
