from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset, DistributedSampler, TensorDataset, get_worker_info

from perfsuite import Recipe, Workload
from perfsuite.records.equivalence import EquivalenceReport, EquivalenceRow
from perfsuite.worker.equivalence.checks.data import check_data, gather_evidence, plant_bugs
from perfsuite.worker.equivalence.proof import Case
from perfsuite.worker.equivalence.trace.recording import read_epochs
from perfsuite.worker.equivalence.trace.trace import Trace, Weights
from perfsuite.worker.training.loaders import EpochBatches
from perfsuite.worker.training.trainer import seed_random_numbers

CPU = torch.device("cpu")
SEED = 5
T = TypeVar("T", covariant=True)


class Numbers(Dataset[Any]):
    """Sample i is (i, -i)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return float(index), -index


def make_workload(build: Any, batch_size: int = 4) -> Workload:
    """A workload with a dataset for training, or with one for each split in a dict."""

    def build_dataset(split: str) -> Any:
        if callable(build):
            return build() if split == "train" else None
        return build.get(split)

    return Workload(
        name="numbers",
        build_model=lambda: nn.Linear(1, 1),
        build_dataset=build_dataset,
        loss=nn.functional.mse_loss,
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        micro_batch_size=batch_size,
    )


def load(workload: Workload, recipe: Recipe, num_batches: int = 3, seed: int = SEED) -> Any:
    """What the ranks of each shard load first."""
    seen = []
    for shard_index in range(recipe.plan.data_parallel_size):
        seed_random_numbers(seed)
        with EpochBatches(
            workload,
            Recipe(parallel=recipe.parallel),
            "train",
            (shard_index, recipe.plan.data_parallel_size),
            seed=seed,
        ) as batches:
            seen.append([next(batches) for _ in range(num_batches)])
    return seen


def draw_indices(workload: Workload, recipe: Recipe) -> list[list[list[list[int]]]]:
    """What the samplers of each shard's ranks draw for the first epochs."""
    num_shards = recipe.plan.data_parallel_size
    drawn = []
    for shard_index in range(num_shards):
        batches = EpochBatches(
            workload,
            Recipe(micro_batch_size=recipe.micro_batch_size),
            "train",
            (shard_index, num_shards),
            seed=SEED,
        )
        batches.epoch = 4  # as if so many had been loaded
        drawn.append(read_epochs(batches))
    return drawn


def make_case(workload: Workload, recipe: Recipe, *, drawn: Any, seen: Any) -> Case:
    """A run whose ranks drew these indices and saw these batches."""
    trace = Trace(
        start=Weights(parameters={}, buffers={}),
        indices=drawn,
        batches=seen,
        steps=[],
        num_skipped=0,
        sparse={},
        num_calls=None,
        communicating=frozenset(),
        bucket_layout=[],
        differences=[],
        num_accumulated=1,
    )
    return Case(
        workload=workload,
        recipe=recipe,
        device=CPU,
        seed=SEED,
        num_steps=0,
        trace=trace,
        twin=None,
        on_step=lambda: None,
    )


def check_trace(workload: Workload, recipe: Recipe, *, drawn: Any, seen: Any) -> EquivalenceRow:
    """The row about such a run."""
    return check_data(make_case(workload, recipe, drawn=drawn, seen=seen))


def check(
    build: Any,
    parallel: str = "ddp:2",
    *,
    batch_size: int = 4,
    seen: Any = None,
    change: Callable[[Any], None] = lambda seen: None,
    **fields: Any,
) -> EquivalenceRow:
    """The row about what was seen; by default what correct ranks see, changed in place."""
    workload = make_workload(build, batch_size)
    recipe = Recipe(parallel=parallel, **fields)
    seen = load(workload, recipe) if seen is None else seen
    change(seen)
    return check_trace(workload, recipe, drawn=draw_indices(workload, recipe), seen=seen)


def summary(row: EquivalenceRow) -> tuple[str, float | None, float | None, str | None]:
    return row.status, row.error, row.limit, row.power


# What a run may look like: samples, shards, samples of a batch.
RUNS = st.tuples(st.integers(1, 70), st.integers(1, 4), st.integers(1, 9)).filter(
    lambda run: run[0] // run[1] >= run[2]
)
SHARDED_RUNS = RUNS.filter(lambda run: run[1] > 1)
DERANDOMIZED = settings(derandomize=True, deadline=None, max_examples=60)


@DERANDOMIZED
@given(run=RUNS, num_batches=st.integers(1, 5))
def test_correct_loaders_are_never_flagged(run: tuple[int, int, int], num_batches: int) -> None:
    size, num_shards, batch_size = run
    workload = make_workload({split: Numbers(size) for split in ("train", "test")}, batch_size)
    recipe = Recipe(parallel=f"ddp:{num_shards}")

    row = check_trace(
        workload,
        recipe,
        drawn=draw_indices(workload, recipe),
        seen=load(workload, recipe, num_batches),
    )

    assert (row.status, row.error, row.limit) == ("equivalent", 0.0, 0.0)
    num_found, num_planted = map(int, (row.power or "0/0").split("/"))
    assert num_found == num_planted >= 2


@pytest.mark.parametrize("draws", [False, True])
def test_a_rank_that_draws_another_shard_is_found_even_where_samples_are_random(
    draws: bool,
) -> None:
    workload = make_workload(lambda: Augmented(random.random) if draws else Numbers(24))
    recipe = Recipe(parallel="ddp:2")
    drawn = draw_indices(workload, recipe)
    seen = load(workload, recipe)

    row = check_trace(workload, recipe, drawn=[drawn[0], drawn[0]], seen=seen)

    assert row.status == "mismatch"
    assert row.reason.startswith("epoch 1 repeats 12 of its 24 samples, such as index ")


def test_a_rank_with_other_data_is_found() -> None:
    workload = make_workload(lambda: Augmented(random.random))
    recipe = Recipe(parallel="ddp:2")
    drawn = draw_indices(workload, recipe)

    row = check_trace(
        workload,
        recipe,
        drawn=[drawn[0], [epoch[:1] for epoch in drawn[1]]],
        seen=load(workload, recipe),
    )

    assert row.status == "mismatch"
    assert row.reason == (
        "epoch 1 loads 1 x 4 samples on shard 1, and 24 samples fill 3 x 4 on each; likeliest "
        "cause: the sampler leaves samples out"
    )


class Unshuffled(DistributedSampler[T]):
    """Ignores epochs."""

    def set_epoch(self, epoch: int) -> None:
        pass


class Rankless(DistributedSampler[T]):
    """Treats every rank as the first."""

    def __init__(self, *args: Any, rank: int, **known: Any) -> None:
        super().__init__(*args, rank=0, **known)


def scripted(*epochs: Sequence[Sequence[int]]) -> Any:
    """A sampler of these indices for each shard and epoch; the last epoch is repeated."""

    class Scripted(DistributedSampler[T]):
        def __iter__(self) -> Iterator[Any]:
            return iter(epochs[min(self.epoch, len(epochs) - 1)][self.rank])

    return Scripted


def use_sampler(patch: pytest.MonkeyPatch, sampler: Any) -> None:
    patch.setattr("perfsuite.worker.training.loaders.data.DistributedSampler", sampler)


@DERANDOMIZED
@given(run=RUNS)
def test_a_sampler_that_ignores_set_epoch_is_always_flagged(run: tuple[int, int, int]) -> None:
    size, num_shards, batch_size = run
    assume(size > 1)
    with pytest.MonkeyPatch.context() as patch:
        use_sampler(patch, Unshuffled)
        row = check(lambda: Numbers(size), f"ddp:{num_shards}", batch_size=batch_size)

    num_loaded = size // num_shards // batch_size * batch_size * num_shards
    assert summary(row) == ("mismatch", num_loaded, 0.0, None)
    assert row.reason == (
        "epoch 2 has the order of epoch 1, from batch 1 of shard 0 on; "
        "likeliest cause: no set_epoch, so that the sampler never shuffles anew"
    )


@DERANDOMIZED
@given(run=SHARDED_RUNS)
def test_a_sampler_that_ignores_its_rank_is_always_flagged(run: tuple[int, int, int]) -> None:
    size, num_shards, batch_size = run
    with pytest.MonkeyPatch.context() as patch:
        use_sampler(patch, Rankless)
        row = check(lambda: Numbers(size), f"ddp:{num_shards}", batch_size=batch_size)

    num_distinct = size // num_shards // batch_size * batch_size
    assert summary(row) == ("mismatch", (num_shards - 1) * num_distinct, 0.0, None)
    assert "; likeliest cause: the sampler does not know its rank" in row.reason


@DERANDOMIZED
@given(run=SHARDED_RUNS, data=st.data())
def test_a_batch_of_another_shard_is_always_flagged(
    run: tuple[int, int, int], data: st.DataObject
) -> None:
    size, num_shards, batch_size = run
    shard, other = data.draw(st.permutations(range(num_shards)))[:2]
    batch = data.draw(st.integers(0, 2))

    def swap(seen: Any) -> None:
        assume(not torch.equal(seen[shard][batch][0], seen[other][batch][0]))
        seen[shard][batch] = seen[other][batch]

    row = check(lambda: Numbers(size), f"ddp:{num_shards}", batch_size=batch_size, change=swap)

    assert summary(row) == ("mismatch", batch_size, 0.0, None)
    assert row.reason.startswith(f"batch {batch + 1} on the ranks of shard {shard}: inputs ")


@DERANDOMIZED
@given(run=RUNS, data=st.data())
def test_a_sample_changed_in_one_bit_is_always_flagged(
    run: tuple[int, int, int], data: st.DataObject
) -> None:
    size, num_shards, batch_size = run
    shard = data.draw(st.integers(0, num_shards - 1))
    batch = data.draw(st.integers(0, 2))
    sample = data.draw(st.integers(0, batch_size - 1))

    def flip(seen: Any) -> None:
        inputs = seen[shard][batch][0]
        inputs[sample : sample + 1].view(torch.int64)[0] ^= 1

    row = check(lambda: Numbers(size), f"ddp:{num_shards}", batch_size=batch_size, change=flip)

    assert summary(row) == ("mismatch", 1.0, 0.0, None)
    assert row.reason.startswith(
        f"batch {batch + 1} on the ranks of shard {shard}: inputs differs from what one process "
        f"loads, in 1 of {batch_size} samples; likeliest cause: "
    )


@pytest.mark.parametrize(
    ("parallel", "power", "reason"),
    [
        (
            "single",
            "4/4",
            "6 x 4 samples, none twice, in a new order each epoch; "
            "the ranks saw bit for bit what one process loads (batches: 3); "
            "bias: each training epoch leaves out 2 of 26 samples (7.7 %)",
        ),
        (
            "ddp:3",
            "7/7",
            "3 disjoint shards of 2 x 4 samples, in a new order each epoch; "
            "the ranks saw bit for bit what one process loads (batches: 3); "
            "bias: each training epoch leaves out 2 of 26 samples (7.7 %)",
        ),
    ],
)
def test_the_reason_says_what_was_compared(parallel: str, power: str, reason: str) -> None:
    row = check(lambda: Numbers(26), parallel)

    assert summary(row) == ("equivalent", 0.0, 0.0, power)
    assert row.reason == reason


def test_every_bug_that_a_run_can_have_is_planted() -> None:
    workload = make_workload(lambda: Numbers(24))
    recipe = Recipe(parallel="ddp:2")
    drawn, seen = draw_indices(workload, recipe), load(workload, recipe)

    evidence = gather_evidence(make_case(workload, recipe, drawn=drawn, seen=seen))

    assert [name for name, _ in plant_bugs(evidence)] == [
        "the same shard on every rank",
        "a sample lost to one of another shard",
        "a sample repeated",
        "a lost batch",
        "no set_epoch",
        "a rank that sees another shard",
        "one bit of a batch flipped",
    ]


def test_modes_that_share_a_batch_have_one_shard() -> None:
    for parallel in ("tp:2", "pp:2", "dp:2"):
        assert check(lambda: Numbers(24), parallel).reason == (
            "6 x 4 samples, none twice, in a new order each epoch; "
            "the ranks saw bit for bit what one process loads (batches: 3)"
        )


def test_the_recipes_batch_size_goes_before_the_workloads() -> None:
    workload = make_workload(lambda: Numbers(24))
    recipe = Recipe(micro_batch_size=6)
    with EpochBatches(workload, recipe, "train", (0, 1), seed=SEED) as batches:
        seen = [[next(batches)]]

    drawn = draw_indices(workload, recipe)

    row = check_trace(workload, recipe, drawn=drawn, seen=seen)

    assert row.reason == (
        "4 x 6 samples, none twice, in a new order each epoch; "
        "the ranks saw bit for bit what one process loads (batches: 1)"
    )


def test_a_rank_whose_dataset_is_larger_is_found() -> None:
    recipe = Recipe(parallel="ddp:2")
    larger = make_workload(lambda: Numbers(32))

    row = check_trace(
        make_workload(lambda: Numbers(24)),
        recipe,
        drawn=draw_indices(larger, recipe),
        seen=load(larger, recipe),
    )

    assert row.status == "mismatch"
    assert re.match(
        r"epoch 1 draws \d+ indices beyond the dataset's 24 samples; likeliest cause: "
        "the ranks have another number of samples",
        row.reason,
    )


REPEATS = (
    "likeliest cause: the sampler does not know its rank, pads its shards, or draws with "
    "replacement"
)


@pytest.mark.parametrize(
    ("epochs", "size", "num_wrong", "reason"),
    [
        (
            [[(0, 1, 2, 3), (3, 2, 1, 0)]],
            8,
            4,
            f"epoch 1 repeats 4 of its 8 samples, such as index 0; {REPEATS}",
        ),
        (
            [[(0, 2, 4, 6), (1, 3, 5, 0)]],
            7,
            1,
            f"epoch 1 repeats 1 of its 8 samples, such as index 0; {REPEATS}",
        ),
        (
            [[(0, 1, 2, 3), (4, 5, 6, 7)], [(7, 5, 3, 1), (0, 2, 2, 0)]],
            8,
            2,
            f"epoch 2 repeats 2 of its 8 samples, such as index 0; {REPEATS}",
        ),
        (
            [[(0, 1, 2, 3), (4, 5)]],
            8,
            2,
            "epoch 1 loads 1 x 2 samples on shard 1, and 8 samples fill 2 x 2 on each; "
            "likeliest cause: the sampler leaves samples out",
        ),
        (
            [[(0, 1, 2, 3), (4, 5, 6, 7, 8, 9)]],
            10,
            2,
            "epoch 1 loads 3 x 2 samples on shard 1, and 10 samples fill 2 x 2 on each; "
            "likeliest cause: the sampler adds samples",
        ),
        (
            [[(0, 1, 2, 3), (4, 5, 6, 7)]],
            8,
            8,
            "epoch 2 has the order of epoch 1, from batch 1 of shard 0 on; "
            "likeliest cause: no set_epoch, so that the sampler never shuffles anew",
        ),
    ],
)
def test_a_wrong_sampler_is_named(
    monkeypatch: pytest.MonkeyPatch, epochs: Any, size: int, num_wrong: int, reason: str
) -> None:
    use_sampler(monkeypatch, scripted(*epochs))

    row = check(lambda: Numbers(size), batch_size=2)

    assert (row.reason, *summary(row)) == (reason, "mismatch", num_wrong, 0.0, None)


def test_two_epochs_of_the_same_order_may_be_chance_where_there_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_sampler(monkeypatch, scripted([(0, 1)], [(0, 1)], [(0, 1)], [(1, 0)]))

    assert check(lambda: Numbers(2), "single", batch_size=2).status == "equivalent"


def swap_shards(seen: Any) -> None:
    seen[1] = seen[0]


def change_target(seen: Any) -> None:
    seen[0][1][1][2] += 1


def change_inputs_twice(seen: Any) -> None:
    seen[1][0][0][:3] += 0.5
    seen[1][2][0][:3] += 0.5


def change_all(seen: Any) -> None:
    seen[0][0][0].neg_().sub_(1)


def change_structure(seen: Any) -> None:
    inputs, target = seen[0][2]
    seen[0][2] = {"x": inputs}, target


CHANGED = (
    "likeliest cause: another order or dataset on the rank, or the rank or a loader worker changed "
    "it"
)


@pytest.mark.parametrize(
    ("change", "num_wrong", "reason"),
    [
        (
            swap_shards,
            12,
            "batch 1 on the ranks of shard 1: inputs differs from what one process loads, in 4 of "
            "4 samples; likeliest cause: the loader does not know its rank, for shard 0 has this "
            "batch",
        ),
        (
            change_target,
            1,
            "batch 2 on the ranks of shard 0: target differs from what one process loads, in 1 of "
            f"4 samples; {CHANGED}",
        ),
        (
            change_inputs_twice,
            6,
            "batch 1 on the ranks of shard 1: inputs differs from what one process loads, in 3 of "
            f"4 samples; {CHANGED}",
        ),
        (
            change_all,
            4,
            "batch 1 on the ranks of shard 0: inputs differs from what one process loads, in 4 of "
            f"4 samples; {CHANGED}",
        ),
        (
            change_structure,
            4,
            "batch 3 on the ranks of shard 0: the structure differs from what one process loads, "
            f"in 4 of 4 samples; {CHANGED}",
        ),
    ],
)
def test_ranks_that_saw_other_batches_are_named(
    change: Callable[[Any], None], num_wrong: int, reason: str
) -> None:
    row = check(lambda: Numbers(24), change=change)

    assert (row.reason, *summary(row)) == (reason, "mismatch", num_wrong, 0.0, None)


def test_ranks_of_another_seed_are_flagged() -> None:
    seen = load(make_workload(lambda: Numbers(24)), Recipe(parallel="ddp:2"), seed=SEED + 1)

    row = check(lambda: Numbers(24), seen=seen)

    assert row.status == "mismatch"
    assert row.reason.startswith("batch 1 on the ranks of shard 0: inputs differs from ")


def test_batches_of_several_epochs_are_compared() -> None:
    seen = load(make_workload(lambda: Numbers(9)), Recipe(), num_batches=7)
    assert check(lambda: Numbers(9), "single", seen=seen).status == "equivalent"

    seen[0][6][1][0] += 1

    assert check(lambda: Numbers(9), "single", seen=seen).reason.startswith(
        "batch 7 on the ranks of shard 0: target differs from what one process loads, in 1 of 4 "
    )


class Augmented(Numbers):
    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__(24)
        self.draw = draw

    def __getitem__(self, index: int) -> Any:
        return index + self.draw(), -index


class Flipping(Numbers):
    """Draws random numbers that rarely change a sample."""

    def __getitem__(self, index: int) -> Any:
        return (-1.0 if random.random() < 1e-9 else 1.0) * index, -index


def _own_generator() -> Augmented:
    generator = numpy.random.default_rng(0)
    return Augmented(lambda: float(generator.random()))


def _no_seed_at_all() -> Augmented:
    generator = random.SystemRandom()
    return Augmented(generator.random)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Augmented(lambda: torch.rand(()).item()),
        lambda: Augmented(random.random),
        lambda: Augmented(numpy.random.rand),
        lambda: Flipping(24),
        _own_generator,
        _no_seed_at_all,
    ],
)
def test_what_random_numbers_decide_is_not_compared(build: Any) -> None:
    row = check(build)

    assert summary(row) == ("equivalent", 0.0, 0.0, "5/5")
    assert row.reason == (
        "2 disjoint shards of 3 x 4 samples, in a new order each epoch; "
        "the dataset draws random numbers, so its samples cannot be compared"
    )


def test_a_few_samples_that_are_drawn_are_enough() -> None:
    class Drawing(Numbers):
        def __getitem__(self, index: int) -> Any:
            return index + (random.random() if index == drawn else 0.0), -index

    drawn = None
    of_second_shard = load(make_workload(lambda: Numbers(24)), Recipe(parallel="ddp:2"))[1]
    drawn = int(of_second_shard[2][0][3])

    assert "the dataset draws random numbers" in check(lambda: Drawing(24)).reason


def test_the_samplers_of_an_augmented_dataset_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    use_sampler(monkeypatch, Rankless)

    assert check(lambda: Augmented(random.random)).status == "mismatch"


def test_a_dataset_that_is_drawn_when_it_is_built_is_the_same_under_the_runs_seed() -> None:
    def build() -> TensorDataset:
        return TensorDataset(torch.randn(24, 2), torch.from_numpy(numpy.random.rand(24)))

    assert summary(check(build)) == ("equivalent", 0.0, 0.0, "7/7")


class Nested(Numbers):
    """Dict inputs with text, a NaN, and nested tensors."""

    def __getitem__(self, index: int) -> Any:
        row = torch.tensor([index, math.nan])
        inputs = {"ids": row, "text": f"sample {index}", "pair": (row.bfloat16(), row > 3)}
        return inputs, {"labels": [index, torch.zeros(0)]}


def change_text(seen: Any) -> None:
    seen[0][1][0]["text"][3] = "no sample"


def change_mask(seen: Any) -> None:
    mask: Tensor = seen[0][1][0]["pair"][1]
    mask[3, 1] = True


def change_label(seen: Any) -> None:
    seen[1][0][1]["labels"][0][1] += 1


@pytest.mark.parametrize(
    ("change", "begin"),
    [
        (change_text, "batch 2 on the ranks of shard 0: inputs['text'][3] differs "),
        (change_mask, "batch 2 on the ranks of shard 0: inputs['pair'][1] differs "),
        (change_label, "batch 1 on the ranks of shard 1: target['labels'][0] differs "),
    ],
)
def test_each_part_of_a_nested_batch_is_compared(change: Any, begin: str) -> None:
    assert summary(check(lambda: Nested(24))) == ("equivalent", 0.0, 0.0, "7/7")

    row = check(lambda: Nested(24), change=change)

    assert row.status == "mismatch"
    assert row.reason.startswith(begin)


class OfWorker(Numbers):
    """The second worker gives other numbers than the first, or than no worker."""

    def __getitem__(self, index: int) -> Any:
        worker = get_worker_info()
        shift = 0.5 if worker is not None and worker.id == 1 else 0.0
        return torch.tensor([index + shift]), torch.tensor([-float(index)])


def test_samples_that_depend_on_the_worker_are_found_where_the_recipe_has_workers(
    check_equivalence: Callable[..., EquivalenceReport],
) -> None:
    workload = make_workload(lambda: OfWorker(24))

    assert check_equivalence(workload, Recipe(), num_steps=2)
    row = check_equivalence(workload, Recipe(num_workers=2), num_steps=2).rows[-1]

    assert summary(row) == ("mismatch", 4.0, 0.0, None)
    assert row.reason == (
        "batch 2 on the ranks of shard 0: inputs differs from what one process loads, in 4 of 4 "
        f"samples; {CHANGED}"
    )


def test_samples_that_are_all_equal_tell_no_shards_apart() -> None:
    row = check(lambda: TensorDataset(torch.ones(24, 2), torch.ones(24)))

    assert summary(row) == ("no power", 0.0, 0.0, "6/7")
    assert row.reason == (
        "it does not find a planted bug: a rank that sees another shard; "
        "2 disjoint shards of 3 x 4 samples, in a new order each epoch; "
        "the ranks saw bit for bit what one process loads (batches: 3)"
    )


def test_ranks_that_saw_nothing_prove_nothing() -> None:
    row = check(lambda: Numbers(24), seen=[[], []])

    assert summary(row) == ("no power", 0.0, 0.0, "5/7")
    assert row.reason == (
        "it does not find a planted bug: a rank that sees another shard; one bit of a batch "
        "flipped; 2 disjoint shards of 3 x 4 samples, in a new order each epoch; "
        "the ranks saw bit for bit what one process loads (batches: 0)"
    )


def test_an_epoch_of_a_single_order_is_reported_and_no_order_is_planted() -> None:
    row = check(lambda: Numbers(1), "single", batch_size=1)

    assert summary(row) == ("equivalent", 0.0, 0.0, "2/2")
    assert row.reason == (
        "1 x 1 samples, none twice, which have only one order; "
        "the ranks saw bit for bit what one process loads (batches: 3)"
    )


def test_a_large_dataset_is_not_loaded() -> None:
    loaded: list[int] = []

    class Watched(Numbers):
        def __getitem__(self, index: int) -> Any:
            loaded.append(index)
            return super().__getitem__(index)

    row = check({"train": Watched(100_000), "validation": Watched(100_001)})

    assert row.status == "equivalent"
    assert len(loaded) == (2 + 2 + 1) * 3 * 4  # by the ranks, by one process, and once more


def test_one_dataset_is_built() -> None:
    built: list[str] = []

    def build_dataset(split: str) -> Numbers:
        built.append(split)
        return Numbers(24)

    workload = make_workload({})
    object.__setattr__(workload, "build_dataset", build_dataset)
    recipe = Recipe(parallel="ddp:4")
    seen = load(workload, recipe)
    drawn = draw_indices(workload, recipe)
    built.clear()

    check_trace(workload, recipe, drawn=drawn, seen=seen)

    assert built == ["train"]
