from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

from perfsuite import Recipe, Workload
from perfsuite.records.equivalence import EquivalenceRow
from perfsuite.worker.equivalence.checks.optimizer_steps import check_optimizer_steps
from perfsuite.worker.equivalence.proof import Case, Proof
from perfsuite.worker.equivalence.trace.recording import record_run
from perfsuite.worker.equivalence.trace.trace import Step, Trace, Weights, join_traces
from perfsuite.worker.training.trainer import Trainer, build_trainer

# torch says so itself when it builds Adagrad's sparse step.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

CPU = torch.device("cpu")
SEED = 5
U32 = 2.0**-23  # the epsilon of float32
STEP_CAUSE = (
    "the optimizer's step does not follow from the gradients: a norm over one rank's part, "
    "state that another process shares, stale master weights, or a clip before unscaling"
)
STAYS = "the weights stay as they are"
NOT_CLIPPED = "the gradients are not clipped"
CLIPPED_EARLY = "the gradients are clipped before they are unscaled"


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class Words(nn.Module):
    """An embedding with a sparse gradient that holds words more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 3, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding((8 * x.abs()).long() % 20).mean(1)


def layers(parameters: Iterator[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    (*hidden, weight, bias) = parameters
    return hidden, [weight, bias]


def sgd(parameters: Any) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def workload(**fields: Any) -> Workload:
    defaults: dict[str, Any] = {
        "name": "updated",
        "build_model": perceptron,
        "build_dataset": lambda split: TensorDataset(torch.zeros(4, 6), torch.zeros(4)),
        "loss": functional.cross_entropy,
        "build_optimizer": sgd,
    }
    return Workload(**{**defaults, **fields})


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(8)
    while True:
        yield torch.randn(4, 6, generator=generator), torch.arange(4) % 3


def record(
    trained: Workload, recipe: Recipe, break_trainer: Callable[[Trainer], None] | None = None
) -> Trace:
    trainer = build_trainer(trained, recipe, device=CPU, seed=SEED)
    if break_trainer is not None:
        break_trainer(trainer)
    trace = record_run(trainer, batches(), num_steps=3, on_step=lambda: None)
    return join_traces([trace])


def gather(trained: Workload, recipe: Recipe, trace: Trace | None = None) -> Proof:
    case = Case(
        workload=trained,
        recipe=recipe,
        device=CPU,
        seed=SEED,
        num_steps=3,
        trace=trace or record(trained, recipe),
        twin=None,
        on_step=lambda: None,
    )
    proof = Proof(check="T0")
    check_optimizer_steps(case, proof)
    return proof


def check(trained: Workload, recipe: Recipe, trace: Trace | None = None) -> EquivalenceRow:
    return gather(trained, recipe, trace).conclude(recipe)


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": sgd,
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.9),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    # A norm in another order has another last bit, and one of other parameters is another norm.
    "groups": lambda parameters: sgd([{"params": one} for one in reversed(layers(parameters))]),
    "head": lambda parameters: sgd(layers(parameters)[1]),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(clip_grad_norm=0.1, grad_accumulation_steps=2),
        Recipe(precision="amp-fp16", clip_grad_norm=0.1),
        Recipe(precision="O2"),
        Recipe(precision="bf16"),
    ],
    ids=["plain", "clipped", "amp", "masters", "bf16"],
)
def test_every_optimizer_steps_again_bit_by_bit(optimizer: str, recipe: Recipe) -> None:
    row = check(workload(build_optimizer=OPTIMIZERS[optimizer]), recipe)

    assert (row.status, row.reason) == ("equivalent", "equal bit for bit")
    assert (row.error, row.limit) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("recipe", "planted"),
    [
        (Recipe(), [STAYS]),
        (Recipe(clip_grad_norm=1e6), [STAYS]),
        (Recipe(clip_grad_norm=0.1), [STAYS, NOT_CLIPPED]),
        (Recipe(precision="amp-bf16", clip_grad_norm=0.1), [STAYS, NOT_CLIPPED]),
        (Recipe(precision="amp-fp16", clip_grad_norm=1e3), [STAYS]),
        (Recipe(precision="amp-fp16", clip_grad_norm=0.1), [STAYS, NOT_CLIPPED, CLIPPED_EARLY]),
        (Recipe(precision="O2", clip_grad_norm=0.1), [STAYS, NOT_CLIPPED, CLIPPED_EARLY]),
    ],
)
def test_the_bugs_that_the_recipe_can_have_are_planted_and_found(
    recipe: Recipe, planted: list[str]
) -> None:
    proof = gather(workload(), recipe)

    assert proof.planted == dict.fromkeys(planted, True)


def test_weights_before_the_first_step_are_compared_as_well() -> None:
    proof = gather(workload(), Recipe())

    assert [(one.what, one.step) for one in proof.evidence if one.name is None] == [
        ("parameter", 0),
        ("parameter", 1),
        ("parameter", 2),
        ("parameter", 3),
    ]


def test_a_run_that_starts_from_other_weights_is_seen() -> None:
    trained = workload()
    trace = record(trained, Recipe())
    start = Weights(
        parameters={**trace.start.parameters, "2.bias": trace.start.parameters["2.bias"] * 1.25},
        buffers={},
    )

    row = check(trained, Recipe(), dataclasses.replace(trace, start=start))

    assert (row.status, row.error) == ("mismatch", pytest.approx(0.25))
    assert row.reason == (
        "the parameter of '2.bias' differs at step 0 by 2.5e-01, where equal bits are due "
        "(bit for bit); likeliest cause: the run does not start from the weights that build_model "
        "gives under its seed: are they drawn from a generator of their own?"
    )


def with_step(trace: Trace, index: int, **fields: Any) -> Trace:
    steps: list[Step] = [*trace.steps]
    steps[index] = steps[index]._replace(**fields)
    return dataclasses.replace(trace, steps=steps)


def test_one_bit_of_one_parameter_is_seen_at_its_step() -> None:
    trace = record(workload(), Recipe())
    parameters = dict(trace.steps[1].after.parameters)
    parameters["2.weight"] = parameters["2.weight"].clone()
    parameters["2.weight"][1, 3] *= 1 + 2 * U32
    moved = with_step(trace, 1, after=Weights(parameters=parameters, buffers={}))

    row = check(workload(), Recipe(), moved)

    assert row.error is not None
    assert 0 < row.error < 1e-4
    assert row.reason.startswith("the parameter of '2.weight' differs at step 2 by ")
    assert row.reason.endswith(f"likeliest cause: {STEP_CAUSE}")


def test_an_error_is_given_in_units_of_what_the_step_moves() -> None:
    trained = workload(build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.125))
    trace = record(trained, Recipe())
    moved = {
        name: after + (after - trace.steps[0].before.parameters[name])
        for name, after in trace.steps[0].after.parameters.items()
    }
    twice = with_step(trace, 0, after=Weights(parameters=moved, buffers={}))

    row = check(trained, Recipe(), twice)

    # Stepped twice as far: an error as large as the step.
    assert row.error == pytest.approx(1.0, rel=1e-5)


def leave_masters_alone(trainer: Trainer) -> None:
    """Let the model keep its rounded weights while the master weights change."""
    inner_step = trainer.optimizer.optim.step  # type: ignore[attr-defined]
    trainer.optimizer.step = inner_step  # type: ignore[method-assign]


def unscale_late(trainer: Trainer) -> None:
    """Clip the gradients while they are scaled; the step unscales them afterwards."""
    unscale, calls = trainer.scaler.unscale_, itertools.count()

    def every_second_time(optimizer: Optimizer) -> None:
        if next(calls) % 2:
            unscale(optimizer)

    trainer.scaler.unscale_ = every_second_time  # type: ignore[method-assign]


def ignore_momentum(trainer: Trainer) -> None:
    step = trainer.optimizer.step

    def forgetful(closure: Any = None) -> Any:
        trainer.optimizer.state.clear()
        return step(closure)

    trainer.optimizer.step = forgetful  # type: ignore[method-assign]


def double_learning_rate(trainer: Trainer) -> None:
    for group in trainer.optimizer.param_groups:
        group["lr"] *= 2


@pytest.mark.parametrize(
    ("break_trainer", "recipe", "step"),
    [
        (leave_masters_alone, Recipe(precision="O2"), 1),
        (unscale_late, Recipe(precision="amp-fp16", clip_grad_norm=0.1), 1),
        (double_learning_rate, Recipe(), 1),
        (ignore_momentum, Recipe(), 2),
    ],
)
def test_an_optimizer_that_steps_otherwise_is_seen(
    break_trainer: Callable[[Trainer], None], recipe: Recipe, step: int
) -> None:
    row = check(workload(), recipe, record(workload(), recipe, break_trainer))

    assert row.status == "mismatch"
    assert f" differs at step {step} by " in row.reason
    assert row.reason.endswith(f"likeliest cause: {STEP_CAUSE}")


def test_gradients_that_are_not_clipped_are_seen() -> None:
    row = check(workload(), Recipe(clip_grad_norm=0.1), record(workload(), Recipe()))

    assert (row.status, " differs at step 1 by " in row.reason) == ("mismatch", True)


class Unused(nn.Module):
    """A head that no forward pass uses."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_zeros_in_place_of_no_gradient_are_seen_where_they_move_a_weight() -> None:
    trained = workload(build_model=lambda: nn.Sequential(nn.Linear(6, 3), Unused()))
    trace, name = record(trained, Recipe()), "1.weight"
    first = trace.steps[0]
    assert name not in first.gradients
    filled = {**first.gradients, name: torch.zeros(3)}

    row = check(trained, Recipe(), with_step(trace, 0, gradients=filled))
    assert row.status == "equivalent", row

    decayed = {**first.after.parameters, name: torch.ones(3) * (1 - 0.1 * 0.01)}
    after = Weights(parameters=decayed, buffers={})
    row = check(trained, Recipe(), with_step(trace, 0, gradients=filled, after=after))
    assert row.status == "mismatch"
    assert row.reason.startswith("the parameter of '1.weight' differs at step 1 by ")
    assert row.reason.endswith(
        "likeliest cause: one side has a gradient where the other has none; even by a gradient of "
        "zeros, momentum and decay move a weight"
    )


def test_an_optimizer_that_does_not_move_shows_nothing() -> None:
    still = workload(build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))

    row = check(still, Recipe())

    assert (row.status, row.power) == ("no power", "0/1")


@pytest.mark.parametrize("optimizer", ["adamw", "adagrad"])
@pytest.mark.parametrize("precision", ["O2", "bf16"])
def test_a_step_that_hardly_depends_on_the_gradients_length_is_no_lack_of_power(
    optimizer: str, precision: str
) -> None:
    trained = workload(build_optimizer=OPTIMIZERS[optimizer])

    recipe = Recipe(precision=precision, clip_grad_norm=0.1)
    proof = gather(trained, recipe)

    row = proof.conclude(recipe)
    assert (row.status, row.reason) == ("equivalent", "equal bit for bit")
    assert STAYS in proof.planted


@pytest.mark.parametrize(
    ("optimizer", "precision", "start", "advice"),
    [
        (
            lambda parameters: torch.optim.SGD(parameters, lr=6e4),
            "O3",
            " of its 48 values are infinite or NaN after step 1: ",
            "lower the learning rate, or clip gradients (clip_grad_norm), or use a precision that "
            "steps float32 weights (amp-bf16, amp-fp16, O2)",
        ),
        (
            lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
            "O3",
            " of its 48 values are infinite or NaN after step 1: ",
            "the eps of AdamW, 1e-08, is 0 in float16, as squares of small gradients are, and it "
            "divides by both; use eps=1e-6, or a precision that steps float32 weights (amp-fp16, "
            "O2)",
        ),
    ],
    ids=["float16", "eps"],
)
def test_a_weight_that_becomes_infinite_is_named_with_its_step_and_what_to_use(
    optimizer: Any, precision: str, start: str, advice: str
) -> None:
    def loss(outputs: Tensor, target: Tensor) -> Tensor:
        # So large that a step of 60,000 gradients leaves the range of float16.
        factor = 1 if "AdamW" in advice else 4096
        return functional.cross_entropy(outputs, target) * factor

    trained = workload(build_optimizer=optimizer, loss=loss)

    row = check(trained, Recipe(precision=precision))

    assert (row.status, row.error) == ("mismatch", math.inf)
    assert row.reason.startswith("the parameter of '0.weight' differs at step "), row.reason
    assert start in row.reason, row.reason
    assert row.reason.endswith(advice), row.reason


def test_adam_with_the_eps_of_roberta_survives_float16() -> None:
    trained = workload(
        build_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, eps=1e-6)
    )

    assert check(trained, Recipe(precision="O3")).status == "equivalent"


def test_a_step_after_a_skipped_one_starts_from_where_it_left_the_weights() -> None:
    trained = workload()
    recipe = Recipe(precision="amp-fp16")
    trainer = build_trainer(trained, recipe, device=CPU, seed=SEED)
    good = batches()
    overflowing = (torch.full((4, 6), float("inf")), torch.arange(4) % 3)
    mixed = iter([next(good), overflowing, next(good), overflowing, next(good)])
    recorded = record_run(trainer, mixed, num_steps=3, on_step=lambda: None)

    row = check(trained, recipe, join_traces([recorded]))

    assert recorded.num_skipped == 2
    assert (row.status, row.reason) == ("equivalent", "equal bit for bit")


def norm(tensors: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors.values()))


def size_over_step(step: Step) -> float:
    """|p| / |D| of a step."""
    after, before = step.after.parameters, step.before.parameters
    return norm(after) / norm({name: after[name].double() - before[name] for name in after})


@pytest.mark.parametrize("parallel", ["fsdp:4", "tp:4", "pp:4", "mp:4"])
def test_ranks_that_add_up_a_norm_may_be_off_by_its_rounding(parallel: str) -> None:
    trace = record(workload(), Recipe(clip_grad_norm=0.1))

    proof = gather(workload(), Recipe(parallel=parallel, clip_grad_norm=0.1), trace)

    share = 4 * U32  # 2 u sqrt(4)
    for evidence, step in zip(proof.evidence[-3:], trace.steps, strict=True):
        expected = share + math.sqrt(share * U32 * size_over_step(step))
        assert evidence.limit == pytest.approx(expected, rel=1e-6)
        assert evidence.limit < 1e-4
        assert evidence.formula == (
            "e + sqrt(e u |p| / |D|), e 2 u sqrt(ws), u 1.2e-07, in units of the step |D|"
        )
    assert all(proof.planted.values())


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(parallel="fsdp:4"),
        Recipe(parallel="ddp:4", clip_grad_norm=0.1),
        Recipe(parallel="zero1:4", clip_grad_norm=0.1),
    ],
)
def test_ranks_that_add_up_nothing_are_held_to_equal_bits(recipe: Recipe) -> None:
    trace = record(workload(), Recipe(clip_grad_norm=recipe.clip_grad_norm))

    proof = gather(workload(), recipe, trace)

    assert {evidence.limit for evidence in proof.evidence} == {0.0}
    assert proof.conclude(recipe).status == "equivalent"


SPARSE_OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    "sparse adam": lambda parameters: torch.optim.SparseAdam(list(parameters), lr=0.1),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}


@pytest.mark.parametrize("optimizer", SPARSE_OPTIMIZERS)
def test_sparse_gradients_step_sparse_and_round_once_more(optimizer: str) -> None:
    trained = workload(build_model=Words, build_optimizer=SPARSE_OPTIMIZERS[optimizer])
    trace = record(trained, Recipe())

    proof = gather(trained, Recipe(), trace)

    row, last = proof.conclude(Recipe()), proof.evidence[-1]
    assert row.status == "equivalent"
    assert list(proof.planted) == [STAYS]
    (pieces,) = trace.sparse.values()
    assert last.limit == pytest.approx(
        2 * U32 + 2 * U32 * pieces**0.5 * size_over_step(trace.steps[-1]), rel=1e-3
    )
    assert last.formula == (
        f"e + 2 u sqrt(k) |p| / |D|, k {pieces}, e 2 u sqrt(ws), u 1.2e-07, in units of the step "
        "|D|"
    )


@pytest.mark.parametrize("optimizer", SPARSE_OPTIMIZERS)
def test_a_sparse_step_of_another_length_is_seen(optimizer: str) -> None:
    trained = workload(build_model=Words, build_optimizer=SPARSE_OPTIMIZERS[optimizer])

    def lengthen(trainer: Trainer) -> None:
        for group in trainer.optimizer.param_groups:
            group["lr"] *= 1.01

    row = check(trained, Recipe(), record(trained, Recipe(), lengthen))

    assert (row.status, row.error) == ("mismatch", pytest.approx(0.01, rel=0.01))
