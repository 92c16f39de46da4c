"""Claims about whole trainings: C7, C10, C11."""

from typing import NamedTuple

from perfsuite.experiments.claims.claim import NOISE, ClaimFinding, claim, weigh, weigh_interval
from perfsuite.experiments.compare import Comparison, ComparisonRequest, Word, compare
from perfsuite.experiments.interleave import Bench, Cell, paired_ratio
from perfsuite.gate.judge.trial import Budget
from perfsuite.records.recipe import Recipe
from perfsuite.stats.intervals import geometric_interval
from perfsuite.units import format_bytes, format_ratio, format_seconds

_QUOTED_FIGURES = "final loss 0.33 for both; memory -30 %, epoch time -20 %; accuracy +0.6 points"
_QUOTED_STAGES = "eval 81.7 s, load 73.76 s, forward 5.81 s, loss + backward 11.7 s, other 66.84 s"
_IMAGES = "lenet-digits"
_SENTENCES = "transformer-tiny"
# The loss of the digits has settled after these.
_NUM_CURVE_EPOCHS = 8
# The quoted runs name their first epoch, and what the following ones took.
_NUM_EPOCHS = 4
_NUM_RUNS = 8
# Losses were quoted as equal with two digits, "0.33 for both"; of 300 images a point is three.
_SAME_LOSS = 0.01
_SAME_ACCURACY = 0.01
# A look at 3 pairs and two more, at 10 s a pair: minutes are for all claims together.
_BUDGET = Budget(max_pairs=5, max_s=60.0, timeout_s=120.0)

# What a comparison's word is called where less time was claimed.
_TIMES: dict[Word, str] = {
    "faster": "it is faster",
    "slower": "it is slower",
    "same": "it is as slow",
    "undecided": "it is not proven to be faster",
}


class LearningCurve(NamedTuple):
    """What one precision came to: a loss of each epoch, None where it is not finite."""

    losses: tuple[float | None, ...]
    accuracy: float
    peak_bytes: int


@claim("C7", quoted=_QUOTED_FIGURES, source="S0, S1")
def try_mixed_precision(bench: Bench) -> ClaimFinding:
    """Mixed precision reaches the same loss and accuracy with less time and memory."""
    low = "amp-fp16" if bench.session.hardware.device == "cuda" else "amp-bf16"
    recipes = {"fp32": Recipe(), low: Recipe(precision=low)}
    curves = {}
    for name, recipe in recipes.items():
        profile = bench.session.profile(_IMAGES, recipe, num_epochs=_NUM_CURVE_EPOCHS).profile
        memory = bench.count(_IMAGES, recipe).record.memory
        assert memory is not None, "one process trains without torch.compile"
        assert profile.accuracy is not None, "the digits have a validation split"
        losses, peak = tuple(epoch.loss for epoch in profile.epochs), memory.peak_bytes
        curves[name] = LearningCurve(losses=losses, accuracy=profile.accuracy, peak_bytes=peak)
    a, b = (Cell(_IMAGES, recipe) for recipe in recipes.values())
    compared = compare(bench, ComparisonRequest(a=a, b=b, budget=_BUDGET))
    return weigh_precisions(curves["fp32"], curves[low], compared, precision=low).on(_IMAGES)


def weigh_precisions(
    full: LearningCurve, mixed: LearningCurve, compared: Comparison, *, precision: str
) -> ClaimFinding:
    """Return what trainings in fp32 and in a mixed precision say of C7; ratios are mixed / full."""
    word, ratio, (low, high) = compared.word, compared.ratio, compared.interval
    full_loss, mixed_loss = full.losses[-1], mixed.losses[-1]
    learns_alike = (
        full_loss is not None
        and mixed_loss is not None
        and abs(mixed_loss - full_loss) <= _SAME_LOSS
        and full.accuracy - mixed.accuracy <= _SAME_ACCURACY
    )
    texts = [
        f"final loss {_spell(full_loss)} and {_spell(mixed_loss)}",
        f"accuracy {format_ratio(full.accuracy)} and {format_ratio(mixed.accuracy)}",
        f"time x{ratio:.2f} ({low:.2f} to {high:.2f}, {word})",
        f"memory {format_bytes(full.peak_bytes)} and {format_bytes(mixed.peak_bytes)}",
    ]
    checks = {
        "it learns otherwise": learns_alike,
        _TIMES[word]: word == "faster",
        "it takes no less memory": mixed.peak_bytes < full.peak_bytes,
    }
    misses = [text for text, holds in checks.items() if not holds]
    return weigh(
        not misses,
        "; ".join([f"{precision}: {', '.join(misses) or 'the same in less'}", *texts]),
        precisions=["fp32", precision],
        losses={"fp32": full.losses, precision: mixed.losses},
        accuracy={"fp32": full.accuracy, precision: mixed.accuracy},
        peak_bytes={"fp32": full.peak_bytes, precision: mixed.peak_bytes},
        time_ratio={"value": ratio, "low": low, "high": high, "word": word},
    )


@claim("C10", quoted=_QUOTED_STAGES, source="S1")
def try_stages(bench: Bench) -> ClaimFinding:
    """Evaluation, loading and the rest dominate a fine-tuning run."""
    stages_s = bench.session.profile(_SENTENCES, Recipe(), num_epochs=2).profile.stages_s
    computing_s = stages_s.forward + stages_s.loss_backward
    around_s = stages_s.load + (stages_s.evaluation or 0.0) + stages_s.other
    share = around_s / (around_s + computing_s)
    found = f"evaluation, loading and other take {format_ratio(share)} of the time"
    return weigh(around_s > computing_s, found, **dict(stages_s.as_rows())).on(_SENTENCES)


@claim("C11", quoted="DDP 3.08 s, then about 2.5 s; DP 26.2 s, then about 15 s", source="S3")
def try_first_epoch(bench: Bench) -> ClaimFinding:
    """Epoch 1 is slower than the following ones."""
    durations_s = []
    for number in range(1, _NUM_RUNS + 1):
        bench.say(f"run {number} of {_NUM_RUNS}")
        run = bench.session.profile(_IMAGES, Recipe(parallel="ddp:2"), num_epochs=_NUM_EPOCHS)
        durations_s.append([epoch.duration_s for epoch in run.profile.epochs])
    firsts = [durations[0] for durations in durations_s]
    laters = [sum(durations[1:]) / (len(durations) - 1) for durations in durations_s]
    ratio = paired_ratio(firsts, laters)
    first, later = (format_seconds(geometric_interval(one).centre) for one in (firsts, laters))
    status = weigh_interval(ratio, low=1.0)
    times = f"x{ratio.centre:.2f} of a later one (between {ratio.low:.2f} and {ratio.high:.2f})"
    found = f"{first}, then {later}: over {_NUM_RUNS} fresh runs the first epoch takes {times}"
    found += NOISE.get(status, "")
    return weigh(status, found, epochs_s=durations_s, first_per_later=ratio).on(_IMAGES)


def _spell(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.3f}"
