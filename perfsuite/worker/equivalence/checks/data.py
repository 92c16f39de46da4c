"""Whether the ranks see the right data: each sample once, in a new order each epoch.

Judges the indices that the ranks' samplers draw, and the first few batches themselves: pairs
(inputs, target) of nested containers, as `default_collate` makes them. S batches, B samples.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import default_collate

from perfsuite.records.equivalence import EquivalenceRow, NumericsStatus
from perfsuite.units import format_ratio
from perfsuite.worker.equivalence.planted_bugs import describe_missed
from perfsuite.worker.equivalence.proof import Case
from perfsuite.worker.equivalence.trace.draws import modules_that_drew, read_random_state
from perfsuite.worker.equivalence.trace.trace import Step
from perfsuite.worker.training.batches import map_tensors, tensors_in
from perfsuite.worker.training.trainer import seed_random_numbers

# From its second batch on, a dataset with a state gives other samples when it is loaded again.
_NUM_LOADED_AGAIN = 3


def check_data(case: Case) -> EquivalenceRow:
    """Return whether the ranks of a run saw the training data that they should have seen.

    The error is a number of wrong samples. That an epoch leaves samples out, so that all shards are
    equal, is reported and no mismatch. Seeds the generators of random numbers anew.
    """
    if case.workload.build_loader is not None:
        return _check_own_loader(case)
    row = partial(EquivalenceRow.of, case.recipe, "data")
    evidence = gather_evidence(case)
    if (mismatch := next(_find_mismatches(evidence), None)) is not None:
        num_wrong, reason = mismatch
        return row("mismatch", reason, error=float(num_wrong), limit=0.0)
    planted = {name: any(_find_mismatches(bug)) for name, bug in plant_bugs(evidence)}
    missed = describe_missed(planted)
    status: NumericsStatus = "no power" if missed else "equivalent"
    reason = "; ".join([*missed, *_describe(evidence)])
    return row(status, reason, error=0.0, limit=0.0, planted=planted)


def _check_own_loader(case: Case) -> EquivalenceRow:
    """Whether each shard saw batches of its own: which samples it should see, its loader knows."""
    seen, row = case.trace.batches, partial(EquivalenceRow.of, case.recipe, "data")
    unproven = "it cannot be proven that an epoch has each sample once, in a new order"
    unknown = f"build_loader gives batches without indices, so {unproven}"
    first, *others = seen[0]
    if len(seen) == 1 or is_among(first, others):  # made-up data
        if len(seen) > 1:
            unknown += "; batches of one shard are alike, so two shards may share some"
        return row("not exercised", unknown)
    for (shard, batches), (other, theirs) in itertools.combinations(enumerate(seen), 2):
        for number, batch in enumerate(theirs, start=1):
            if is_among(batch, batches):
                found = f"batch {number} of shard {other} is one of shard {shard}'s"
                how = "as by a DistributedSampler with num_replicas=num_shards, rank=shard_index"
                cause = f"build_loader does not use shard_index, {how}"
                reason = f"{found}; likeliest cause: {cause}"
                error = float(case.workload.micro_batch_size)
                return row("mismatch", reason, error=error, limit=0.0)
    planted = {"a rank that sees another shard": is_among(first, seen[0])}
    reason = f"the first {len(seen[0])} batches of {len(seen)} shards are all different; {unknown}"
    return row("not exercised", reason, planted=planted)


class DataEvidence(NamedTuple):
    """What the check judges."""

    # The indices (S, B) that the ranks of each shard drew; one epoch where all have the same order.
    epochs: list[list[Tensor]]
    num_samples: int
    batch_size: int
    seen: Sequence[Sequence[Any]]  # the first batches of each shard
    # At least as many, as one process loads them; None where random numbers decide.
    expected: list[list[Any]] | None


def gather_evidence(case: Case) -> DataEvidence:
    """Return what the ranks drew and saw, and what they should have seen."""
    batch_size = case.recipe.micro_batch_size or case.workload.micro_batch_size
    seed_random_numbers(case.seed)
    dataset: Any = case.workload.build_dataset("train")
    epochs = [
        [torch.tensor(batches, dtype=torch.int64).view(-1, batch_size) for batches in shards]
        for shards in zip(*case.trace.indices, strict=True)
    ]
    drawn = itertools.chain.from_iterable(epochs)
    is_larger = any(bool((shard >= len(dataset)).any()) for shard in drawn)
    return DataEvidence(
        epochs=epochs if len(dataset) > 1 else epochs[:1],
        num_samples=len(dataset),
        batch_size=batch_size,
        seen=case.trace.batches,
        expected=None if is_larger else _load_expected(dataset, case),
    )


def _load_expected(dataset: Any, case: Case) -> list[list[Any]] | None:
    # Directly from the dataset, so that no mistake of a loader is on both sides.
    fetch_all = getattr(dataset, "__getitems__", None)
    fetch = fetch_all or (lambda indices: [dataset[index] for index in indices])

    def load(shard: int, num_batches: int, seed: int) -> tuple[list[Any], bool]:
        """The first batches of a shard, and whether the dataset drew random numbers."""
        indices = itertools.chain.from_iterable(case.trace.indices[shard])
        seed_random_numbers(seed)
        before = read_random_state(case.device)
        loaded = [
            default_collate(list(fetch(batch)))
            for batch in itertools.islice(indices, max(num_batches, _NUM_LOADED_AGAIN))
        ]
        return loaded, bool(modules_that_drew(before, read_random_state(case.device)))

    expected = []
    for shard, batches in enumerate(case.trace.batches):
        loaded, draws = load(shard, len(batches), case.seed)
        if draws:
            return None
        expected.append(loaded)
    # A generator that the dataset owns is seen only in samples that are loaded again.
    again, draws = load(0, 0, case.seed + 1)
    return None if draws or find_differences(again, expected[0], 1) else expected


def _find_mismatches(evidence: DataEvidence) -> Iterator[tuple[int, str]]:
    size, num_samples = evidence.batch_size, evidence.num_samples
    for epoch, shards in enumerate(evidence.epochs, start=1):
        indices = torch.cat([shard.flatten() for shard in shards])
        if num_beyond := int((indices >= num_samples).sum()):
            beyond = f"{num_beyond} indices beyond the dataset's {num_samples} samples"
            cause = "the ranks have another number of samples"
            yield num_beyond, f"epoch {epoch} draws {beyond}; likeliest cause: {cause}"
        times = torch.bincount(indices)
        if num_repeated := indices.numel() - int(times.count_nonzero()):
            example = f"such as index {int((times > 1).nonzero()[0])}"
            repeated = f"{num_repeated} of its {indices.numel()} samples, {example}"
            cause = "the sampler does not know its rank, pads its shards, or draws with replacement"
            yield num_repeated, f"epoch {epoch} repeats {repeated}; likeliest cause: {cause}"
        num_batches = num_samples // len(shards) // size
        for index, shard in enumerate(shards):
            if len(shard) != num_batches:
                does = "leaves samples out" if len(shard) < num_batches else "adds samples"
                loaded = f"epoch {epoch} loads {len(shard)} x {size} samples on shard {index}"
                due = f"{num_samples} samples fill {num_batches} x {size} on each"
                found = f"{loaded}, and {due}; likeliest cause: the sampler {does}"
                yield abs(len(shard) - num_batches) * size, found
    first, *others = evidence.epochs
    if others and all(all(map(torch.equal, first, shards)) for shards in others):
        order = "the order of epoch 1, from batch 1 of shard 0 on"
        cause = "no set_epoch, so that the sampler never shuffles anew"
        yield sum(map(torch.numel, first)), f"epoch 2 has {order}; likeliest cause: {cause}"
    if evidence.expected is not None:
        yield from _find_wrong_batches(evidence, evidence.expected)


def _find_wrong_batches(
    evidence: DataEvidence, expected: list[list[Any]]
) -> Iterator[tuple[int, str]]:
    found = [
        (shard, *difference)
        for shard, (batches, theirs) in enumerate(zip(evidence.seen, expected, strict=True))
        for difference in find_differences(batches, theirs, evidence.batch_size)
    ]
    if not found:
        return
    shard, index, place, num_samples = found[0]
    batch = evidence.seen[shard][index]
    of_shards = [n for n, theirs in enumerate(expected) if n != shard and is_among(batch, theirs)]
    cause = "another order or dataset on the rank, or the rank or a loader worker changed it"
    if of_shards:
        cause = f"the loader does not know its rank, for shard {of_shards[0]} has this batch"
    yield (
        sum(difference[-1] for difference in found),
        f"batch {index + 1} on the ranks of shard {shard}: {place} differs from what one process "
        f"loads, in {num_samples} of {evidence.batch_size} samples; likeliest cause: {cause}",
    )


def plant_bugs(evidence: DataEvidence) -> Iterator[tuple[str, DataEvidence]]:
    """Yield the evidence with each bug that this run can have, by the name of the bug."""
    shards, *later_epochs = evidence.epochs
    first, *others = shards

    def with_epoch(shards: list[Tensor]) -> DataEvidence:
        return evidence._replace(epochs=[shards, *later_epochs])

    if others:
        yield "the same shard on every rank", with_epoch([first] * len(shards))
        lost = _with_sample(first, others[0][0, 0])
        yield "a sample lost to one of another shard", with_epoch([lost, *others])
    if first.numel() > 1:
        yield "a sample repeated", with_epoch([_with_sample(first, first[-1, -1]), *others])
    yield "a lost batch", with_epoch([first[:-1], *others])
    if later_epochs:
        yield "no set_epoch", evidence._replace(epochs=[shards] * len(evidence.epochs))
    if evidence.expected is None:
        return
    if others:
        seen = [evidence.seen[0], evidence.seen[0], *evidence.seen[2:]]
        yield "a rank that sees another shard", evidence._replace(seen=seen)
    batches, *of_others = evidence.seen
    flipped = [*map(_with_flipped_bit, batches[:1]), *batches[1:]]
    yield "one bit of a batch flipped", evidence._replace(seen=[flipped, *of_others])


def _with_sample(shard: Tensor, sample: Tensor) -> Tensor:
    shard = shard.clone()
    shard[0, 0] = sample
    return shard


def _with_flipped_bit(batch: Any) -> Any:
    first = next((tensor for tensor in tensors_in(batch) if tensor.numel()), None)
    if first is None:
        return batch
    flipped = first.detach().clone(memory_format=torch.contiguous_format)
    flipped.view(-1).view(torch.uint8)[0] ^= 1
    return map_tensors(batch, lambda tensor: flipped if tensor is first else tensor)


def _describe(evidence: DataEvidence) -> Iterator[str]:
    shards, *others = evidence.epochs
    size = f"{len(shards[0])} x {evidence.batch_size} samples"
    order = "in a new order each epoch" if others else "which have only one order"
    parts = f"{len(shards)} disjoint shards of {size}" if len(shards) > 1 else f"{size}, none twice"
    yield f"{parts}, {order}"
    if evidence.expected is None:
        yield "the dataset draws random numbers, so its samples cannot be compared"
    else:
        yield f"the ranks saw bit for bit what one process loads (batches: {len(evidence.seen[0])})"
    if num_left_out := evidence.num_samples - sum(map(torch.numel, shards)):
        share = format_ratio(num_left_out / evidence.num_samples)
        left_out = f"{num_left_out} of {evidence.num_samples} samples ({share})"
        yield f"bias: each training epoch leaves out {left_out}"


def find_differences(
    batches: Sequence[Any], expected: Sequence[Any], batch_size: int
) -> list[tuple[int, str, int]]:
    """Return the index of each batch that differs, its first such part, how many samples.

    More may be expected than there is. A list may equal a tuple.
    """
    differences = []
    for index, (batch, theirs) in enumerate(zip(batches, expected, strict=False)):
        if wrong := _wrong_parts(batch, theirs, batch_size):
            num_samples = int(torch.stack(list(wrong.values())).any(dim=0).sum())
            differences.append((index, next(iter(wrong)), num_samples))
    return differences


def is_among(batch: Any, batches: Iterable[Any]) -> bool:
    """Whether a batch is one of these, bit for bit."""
    return any(not _wrong_parts(batch, one, 1) for one in batches)


def have_equal_shards(step: Step) -> bool:
    """Whether two shards hold the same samples, so that their mean changes nothing."""
    return any(
        len(one) == len(other)
        and all(is_among(a.batch, [b.batch]) for a, b in zip(one, other, strict=True))
        for one, other in itertools.combinations(step.shards, 2)
    )


def _wrong_parts(batch: Any, expected: Any, batch_size: int) -> dict[str, Tensor]:
    """For each part that differs, which samples do (B,)."""
    ours, theirs = (
        dict([*_parts(inputs, "inputs"), *_parts(target, "target")])
        for inputs, target in (batch, expected)
    )
    if ours.keys() != theirs.keys():
        return {"the structure": torch.ones(batch_size, dtype=torch.bool)}
    wrong = {place: _wrong_samples(ours[place], theirs[place], batch_size) for place in theirs}
    return {place: samples for place, samples in wrong.items() if samples.any()}


def _parts(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Each tensor, string and number in nested containers, with its place."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(part, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _parts(part, f"{place}[{index}]")
    else:
        yield place, value


def _wrong_samples(ours: Any, theirs: Any, batch_size: int) -> Tensor:
    """Which samples differ (B,); all of them where the samples cannot be separated."""
    if isinstance(ours, Tensor) and isinstance(theirs, Tensor):
        if (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape):
            pair = (one.detach().cpu().reshape(-1).view(torch.uint8) for one in (ours, theirs))
            differs = torch.ne(*pair)
            if ours.shape[:1] == (batch_size,):
                return differs.view(batch_size, differs.numel() // batch_size).any(dim=1)
            return differs.any().expand(batch_size)
        return torch.ones(batch_size, dtype=torch.bool)
    # repr separates 0.0 from -0.0, and is the same for any nan.
    return torch.full((batch_size,), type(ours) is not type(theirs) or repr(ours) != repr(theirs))
