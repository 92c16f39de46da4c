"""All claims of reference.md, with their figures and experiments, and how they are tried."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfsuite.errors import NotExercisedError, PerfsuiteError, SettingError
from perfsuite.experiments.claims import exact, loading, parallelism, trainings
from perfsuite.experiments.claims.claim import Bench, Claim, ClaimFinding, weigh

CLAIMS = (
    Claim(
        id="C1",
        text="loading time falls sharply to 2 workers, then flattens, and rises again",
        quoted="best at 2 workers of 0..10; at 7 and more slower than at 0",
        source="S0, S1",
        experiment=loading.try_workers,
    ),
    Claim(
        id="C2",
        text="small-batch LeNet training is bound by data loading, not by compute",
        quoted="load / update: at 0 workers 6.4 / 1.1 ms, at 2 4.3 / 1.2 ms, at 4 0.5 / 1.2 ms",
        source="S3",
        experiment=loading.try_bound,
    ),
    Claim(
        id="C3",
        text="the random affine augmentation is about half of the load time",
        quoted="6.42 ms a batch with it, 3.30 ms without",
        source="S3",
        experiment=loading.try_augmentation,
    ),
    Claim(
        id="C4",
        text="DP slows LeNet training down, and DDP seems to speed it up",
        quoted="baseline 73 s, DDP on 8 GPUs 26 s, DP on 8 GPUs 161 s",
        source="S3",
        experiment=parallelism.try_modes,
    ),
    Claim(
        id="C5",
        text="the gain of DDP comes from its 4 loader workers, not from parallelism",
        quoted="1-process DDP against baseline: 75.58 / 72.80 s at 0 workers, 20.27 / 18.47 s at 4",
        source="S3",
        experiment=parallelism.try_attribution,
    ),
    Claim(
        id="C6",
        text="DP gathers on device 0 and leaves the others idle; DDP keeps all busy",
        quoted="GPU utilisation: DP 8 % on device 0 and 1 % elsewhere, DDP 40-60 % on each",
        source="S3",
        experiment=parallelism.try_usage,
    ),
    Claim(
        id="C7",
        text="mixed precision reaches the same loss and accuracy with less time and memory",
        quoted="final loss 0.33 for both; memory -30 %, epoch time -20 %; accuracy +0.6 points",
        source="S0, S1",
        experiment=trainings.try_mixed_precision,
    ),
    Claim(
        id="C8",
        text="a tensor in fp16 takes half the bytes of fp32",
        quoted="ratio 0.5 exactly",
        source="S1",
        experiment=exact.try_half_precision,
    ),
    Claim(
        id="C9",
        text="c checkpoints keep O(c) activations of n layers, and recompute O(n - c)",
        quoted="exact counts on a chain of n equal blocks",
        source="S1",
        experiment=exact.try_checkpointing,
    ),
    Claim(
        id="C10",
        text="evaluation, loading and the rest dominate a fine-tuning run",
        quoted="eval 81.7 s, load 73.76 s, forward 5.81 s, loss + backward 11.7 s, other 66.84 s",
        source="S1",
        experiment=trainings.try_stages,
    ),
    Claim(
        id="C11",
        text="epoch 1 is slower than the following ones",
        quoted="DDP 3.08 s, then about 2.5 s; DP 26.2 s, then about 15 s",
        source="S3",
        experiment=trainings.try_first_epoch,
    ),
    Claim(
        id="C12",
        text="DDP averages gradients in backward: all ranks hold equal gradients and weights",
        quoted="equality on every rank",
        source="S2, S3",
        experiment=exact.try_averaging,
    ),
    Claim(
        id="C13",
        text="each rank gets the global batch divided by the world size, and other data",
        quoted="disjoint index sets whose union is the dataset (up to padding)",
        source="S1-S4",
        experiment=exact.try_sharding,
    ),
    Claim(
        id="C14",
        text="accumulating k micro-batches equals one step on the k times larger batch",
        quoted="gradients equal within tolerance",
        source="S2, S4",
        experiment=exact.try_accumulation,
    ),
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
        results.append(_try(claim, bench))
        show(results[-1])
    return results


def _try(claim: Claim, bench: Bench) -> Tested:
    try:
        return Tested(claim=claim, finding=claim.experiment(bench), is_broken=False)
    except SettingError:  # of this installation, and so of every claim
        raise
    except PerfsuiteError as error:
        is_broken = not isinstance(error, NotExercisedError)
        reason = f"the experiment broke: {error}" if is_broken else str(error)
        finding = weigh("cannot be tested here", here="-", reason=reason)
        return Tested(claim=claim, finding=finding, is_broken=is_broken)
