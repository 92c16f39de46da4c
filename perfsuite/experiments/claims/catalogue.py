"""All claims of reference.md, and how they are tried."""

from collections.abc import Iterator, Sequence

from perfsuite.errors import NotExercisedError, PerfsuiteError, SettingError
from perfsuite.experiments.claims import exact, loading, parallelism, trainings
from perfsuite.experiments.claims.claim import Claim, ClaimFinding
from perfsuite.experiments.interleave import Bench

_MODULES = (exact, loading, parallelism, trainings)
CLAIMS = sorted(
    (one for module in _MODULES for one in vars(module).values() if isinstance(one, Claim)),
    key=lambda one: int(one.id[1:]),
)


def choose_claims(only: Sequence[str], claims: Sequence[Claim] = CLAIMS) -> list[Claim]:
    """Return the claims with ids such as "C5" or "c8,C9", or all; raises a SettingError."""
    chosen = {name.strip().upper() for text in only for name in text.split(",")}
    known = [claim.id for claim in claims]
    if unknown := sorted(chosen - set(known)):
        raise SettingError(f"--only names {unknown[0]!r}; use one of {', '.join(known)}")
    return [claim for claim in claims if not chosen or claim.id in chosen]


def try_claims(claims: Sequence[Claim], bench: Bench) -> Iterator[tuple[Claim, ClaimFinding]]:
    """Yield what becomes of each claim as it comes; the others run where an experiment breaks."""
    for claim in claims:
        bench.say(f"{claim.id}: {claim.text}")
        try:
            finding = claim.experiment(bench)
        except SettingError:  # of this installation, and so of every claim
            raise
        except PerfsuiteError as error:
            is_broken = not isinstance(error, NotExercisedError)
            reason = f"the experiment broke: {error}" if is_broken else str(error)
            finding = ClaimFinding("cannot be tested here", {}, reason, is_broken)
        yield claim, finding
