"""All claims of reference.md, and how they are tried."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfsuite.errors import NotExercisedError, PerfsuiteError, SettingError
from perfsuite.experiments.claims import exact, loading, parallelism, trainings
from perfsuite.experiments.claims.claim import Bench, Claim, ClaimFinding, weigh

_MODULES = (exact, loading, parallelism, trainings)
CLAIMS = sorted(
    (one for module in _MODULES for one in vars(module).values() if isinstance(one, Claim)),
    key=lambda one: int(one.id[1:]),
)


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A claim and its finding; where the experiment itself failed it is broken."""

    claim: Claim
    finding: ClaimFinding
    is_broken: bool


def choose_claims(only: Sequence[str], claims: Sequence[Claim] = CLAIMS) -> list[Claim]:
    """Return the claims with ids such as "C5" or "c8,C9", or all; raises a SettingError."""
    chosen = {name.strip().upper() for text in only for name in text.split(",")}
    known = [claim.id for claim in claims]
    if unknown := sorted(chosen - set(known)):
        raise SettingError(f"--only names {unknown[0]!r}; use one of {', '.join(known)}")
    return [claim for claim in claims if not chosen or claim.id in chosen]


def try_claims(
    claims: Sequence[Claim], bench: Bench, *, show: Callable[[Tested], None]
) -> list[Tested]:
    """Return what became of each claim, shown as it comes; the others run where one breaks."""
    results = []
    for claim in claims:
        bench.say(f"{claim.id}: {claim.text}")
        is_broken = False
        try:
            finding = claim.experiment(bench)
        except PerfsuiteError as error:
            is_broken = not isinstance(error, NotExercisedError)
            reason = f"the experiment broke: {error}" if is_broken else str(error)
            finding = weigh("cannot be tested here", reason)
        results.append(Tested(claim=claim, finding=finding, is_broken=is_broken))
        show(results[-1])
    return results
