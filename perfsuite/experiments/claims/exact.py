"""Claims that are counted or proven, not timed: C8, C9, C12, C13, C14."""

import itertools
from collections.abc import Mapping, Sequence

from perfsuite.experiments.claims.claim import ClaimFinding, Status, claim, weigh
from perfsuite.experiments.interleave import Bench
from perfsuite.records.equivalence import EquivalenceReport, NumericsStatus
from perfsuite.records.recipe import Recipe
from perfsuite.units import format_bytes

_JOBS = "perfsuite.worker.jobs.claims"
# The smallest workload that trains.
_WORKLOAD = "toy-mlp"
_NUM_RANKS = 2
_NUM_MICRO_BATCHES = 4
# As many as a chain of the shortest length has blocks.
_NUM_CHECKPOINTS = 4
_LENGTHS = (4, 8, 16, 32)
# A layer's backward pass is two products as large as its forward one: for its input and its weight.
_PASSES = 3

# Where a check has no power, or was not exercised, the claim cannot be tested.
_STATUSES: dict[NumericsStatus, Status] = {"equivalent": "holds", "mismatch": "does not hold"}


@claim("C8", quoted="ratio 0.5 exactly", source="S1")
def try_half_precision(bench: Bench) -> ClaimFinding:
    """A tensor in fp16 takes half the bytes of fp32."""
    (num_bytes,) = bench.on_ranks(1, f"{_JOBS}:measure_tensors", ["float32", "float16"])
    single, half = num_bytes["float32"], num_bytes["float16"]
    found = f"a tensor takes {format_bytes(half)} in fp16 and {format_bytes(single)} in fp32"
    figures = {"float32_bytes": single, "float16_bytes": half, "ratio": half / single}
    return weigh(2 * half == single, found, **figures)


@claim("C9", quoted="exact counts on a chain of n equal blocks", source="S1")
def try_checkpointing(bench: Bench) -> ClaimFinding:
    """With c checkpoints O(c) activations of n layers are kept, and O(n - c) recomputed."""
    chains = {
        checkpointing: _count_chains(bench, checkpointing)
        for checkpointing in ("none", f"segments:{_NUM_CHECKPOINTS}", "every-block")
    }
    saved_bytes = {name: saved for name, (saved, _) in chains.items()}
    slopes = {name: _slopes(saved) for name, saved in saved_bytes.items()}
    by_length, constant, by_checkpoints = slopes.values()
    plain, fixed, _ = (flops for _, flops in chains.values())
    layer_flops = _slopes(plain)[0] / _PASSES
    recomputed = {length: (fixed[length] - plain[length]) / layer_flops for length in plain}
    per_block = " / ".join(f"{growth[0]:g}" for growth in slopes.values())
    layers = ", ".join(f"{count:g} of {length}" for length, count in recomputed.items())
    return weigh(
        _is_linear(by_length)
        and _is_linear(by_checkpoints)
        and set(constant) == {0.0}
        and all(count == length - _NUM_CHECKPOINTS for length, count in recomputed.items()),
        f"over n = {', '.join(map(str, _LENGTHS))} blocks the saved activations grow by "
        f"{per_block} bytes a block without checkpoints, with {_NUM_CHECKPOINTS}, with one each; "
        f"{_NUM_CHECKPOINTS} checkpoints recompute {layers} layers",
        saved_bytes=saved_bytes,
        slopes_bytes_per_block=slopes,
        recomputed_layers=recomputed,
    )


@claim("C12", quoted="equality on every rank", source="S2, S3")
def try_averaging(bench: Bench) -> ClaimFinding:
    """DDP averages gradients in backward: all ranks hold equal gradients and weights."""
    report = bench.session.verify(_WORKLOAD, Recipe(parallel=f"ddp:{_NUM_RANKS}"))
    what = "gradients against their mean over ranks, and ranks against each other"
    return weigh_check(report, "T0", what)


@claim(
    "C13", quoted="disjoint index sets whose union is the dataset (up to padding)", source="S1-S4"
)
def try_sharding(bench: Bench) -> ClaimFinding:
    """Each rank gets the global batch divided by the world size, and other data."""
    recipe = Recipe(parallel=f"ddp:{_NUM_RANKS}")
    answers = bench.on_ranks(_NUM_RANKS, f"{_JOBS}:read_shard", _WORKLOAD, recipe, bench.seed)
    # Each rank's batches of one epoch, as indices of the dataset.
    shards, num_samples = [batches for batches, _ in answers], answers[0][1]
    seen = [index for batches in shards for batch in batches for index in batch]
    sizes = {len(batch) for batches in shards for batch in batches}
    num_repeated = len(seen) - len(set(seen))
    # What does not fill a batch on every rank is left out of an epoch.
    global_batch = sum(len(batches[0]) for batches in shards)
    num_left_out = len(set(range(num_samples)) - set(seen))
    (size,) = sizes if len(sizes) == 1 else (None,)
    return weigh(
        len(sizes) == 1 and num_repeated == 0 and num_left_out < global_batch,
        f"{len(shards)} ranks load {len(seen)} of {num_samples} samples in an epoch, "
        f"{num_repeated} of them more than once, {num_left_out} left out, in batches of {size}",
        world_size=len(shards),
        samples=num_samples,
        samples_per_rank=[sum(map(len, batches)) for batches in shards],
        global_batch=global_batch,
        batch_per_rank=size,
        repeated=num_repeated,
        left_out=num_left_out,
    )


@claim("C14", quoted="gradients equal within tolerance", source="S2, S4")
def try_accumulation(bench: Bench) -> ClaimFinding:
    """Accumulating k micro-batches equals one step on the k times larger batch."""
    report = bench.session.verify(_WORKLOAD, Recipe(grad_accumulation_steps=_NUM_MICRO_BATCHES))
    what = f"gradients of {_NUM_MICRO_BATCHES} micro-batches against one large batch"
    return weigh_check(report, "T1", what)


def weigh_check(report: EquivalenceReport, check: str, what: str) -> ClaimFinding:
    """Return what a check, "T0" or "T1", says of a claim; `what` names what it compares."""
    row = next((row for row in report.rows if row.check == check), report.worst)
    compared = "" if row.error is None else f"error {row.error:.2g}, limit {row.limit:.2g}; "
    status = _STATUSES.get(row.status, "cannot be tested here")
    reason = f"{what}: {row.reason}; {compared}planted bugs found: {row.power or 'none'}"
    figures = {name: getattr(row, name) for name in ("check", "world_size", "error", "limit")}
    return weigh(status, reason, **figures, planted_bugs_found=row.power)


def _count_chains(bench: Bench, checkpointing: str) -> tuple[dict[int, int], dict[int, int]]:
    saved_bytes, flops = {}, {}
    for length in _LENGTHS:
        workload = f"perfsuite.worker.workloads.mlp:chain_of_{length}"
        counts = bench.count(workload, Recipe(checkpointing=checkpointing)).record.counts
        assert counts.saved_activation_bytes is not None, "one process trains without torch.compile"
        assert counts.flops is not None
        saved_bytes[length], flops[length] = counts.saved_activation_bytes, counts.flops
    return saved_bytes, flops


def _is_linear(slopes: Sequence[float]) -> bool:
    return slopes[0] > 0 and len(set(slopes)) == 1


def _slopes(values: Mapping[int, int]) -> list[float]:
    return [
        (values[longer] - values[shorter]) / (longer - shorter)
        for shorter, longer in itertools.pairwise(sorted(values))
    ]
