"""A user's step against a reference, in one process: each "rank" computes all shards itself."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from perfsuite.records.equivalence import EquivalenceRow
from perfsuite.records.recipe import Recipe
from perfsuite.worker.equivalence.checks.own_reference import OwnCase, check_own_steps
from perfsuite.worker.equivalence.trace.own_steps import (
    MOST_UPDATES,
    OwnSteps,
    record_steps,
    without_wrappers,
)
from perfsuite.worker.equivalence.trace.trace import Weights, join_traces

DRAWN = torch.Generator().manual_seed(1)
SIZE = 24
INPUTS = torch.randn(96, 8, generator=DRAWN)
TARGETS = torch.randint(4, (96,), generator=DRAWN)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def build(
    parts: int = 1,
    *,
    told: int | None = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] = sgd,
    change: Callable[[nn.Module], None] = lambda model: None,
    casts: Callable[[], Any] = contextlib.nullcontext,
    has_model: bool = True,
    layers: Callable[[], tuple[nn.Module, ...]] = tuple,
    dtype: torch.dtype = torch.float32,
) -> OwnSteps:
    """Return a step whose gradients are the mean over so many parts of the samples.

    It tells the loss of one part, or their mean. `change` may spoil the gradients.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4), *layers())
    if dtype != torch.float32:  # which would make complex weights real
        model.to(dtype)
    update = optimizer(model.parameters())
    numbers = itertools.count()

    def step() -> float:
        begin = next(numbers) % 4 * SIZE
        losses = []
        update.zero_grad()
        for part in torch.arange(begin, begin + SIZE).chunk(parts):
            with casts():
                outputs = model(INPUTS[part].to(dtype))
            loss = nn.functional.cross_entropy(outputs.float(), TARGETS[part])
            (loss / parts).backward()
            losses.append(float(loss.detach()))
        change(model)
        update.step()
        return sum(losses) / parts if told is None else losses[told]

    return OwnSteps(model if has_model else None, step)


def check(
    reference: Callable[[], OwnSteps] = build, *, precision: str = "fp32", **tested: Any
) -> tuple[EquivalenceRow, dict[str, str]]:
    """Check two "ranks", each of which takes the shards of both."""
    ranks = [
        record_steps(
            build(2, **{"told": rank, **tested}), rank=rank, num_steps=3, on_step=lambda: None
        )
        for rank in range(2)
    ]
    return check_own_steps(
        OwnCase(
            recipe=Recipe(parallel="ddp:2", precision=precision),
            trace=join_traces(ranks),
            build=reference,
            device=torch.device("cpu"),
            on_step=lambda: None,
        )
    )


def of(**fields: Any) -> Callable[[], OwnSteps]:
    return lambda: build(**fields)


def test_a_right_step_is_equivalent_by_all_that_it_tells() -> None:
    row, missing = check()

    assert (row.status, row.check, row.power, missing) == ("equivalent", "T1", "5/5", {})
    assert row.error is not None
    assert 0 < row.error < row.limit  # type: ignore[operator]


def test_of_weights_in_bfloat16_a_rounding_shows_how_far_rounding_goes() -> None:
    row, _ = check(of(dtype=torch.bfloat16), precision="bf16", dtype=torch.bfloat16)

    assert (row.status, row.check) == ("equivalent", "T2"), row.reason
    assert row.limit is not None
    assert row.limit > 1.5 * torch.finfo(torch.bfloat16).eps  # the rest is the measured error


def test_ranks_that_hold_parts_of_a_parameter_are_compared_by_their_losses() -> None:
    def of_rank(rank: int) -> OwnSteps:
        steps = build(2, told=rank)
        whole = steps.weights

        def parts() -> Weights:  # as FSDP1 shows them, others on each rank
            read = whole().parameters.items()
            halves = {name: one.flatten().chunk(2)[rank] for name, one in read}
            return Weights(parameters=halves, buffers={})

        steps.weights = parts  # type: ignore[method-assign]
        return steps

    ranks = [
        record_steps(of_rank(rank), rank=rank, num_steps=3, on_step=lambda: None)
        for rank in range(2)
    ]
    case = OwnCase(
        recipe=Recipe(parallel="ddp:2"),
        trace=join_traces(ranks),
        build=build,
        device=torch.device("cpu"),
        on_step=lambda: None,
    )

    row, missing = check_own_steps(case)

    assert row.status == "equivalent", row.reason
    assert missing["gradients and weights"].endswith("are no DTensor cannot be put together")


class Magnifying(nn.Module):
    """Adds what three sums lose to rounding, thousands of times."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + 3000.0 * (3.0 * inputs - inputs - inputs - inputs)


def test_without_a_model_a_rounding_of_what_steps_shows_how_far_losses_go() -> None:
    deep: dict[str, Any] = {"layers": lambda: (Magnifying(),), "has_model": False}

    row, _ = check(of(**deep), **deep)

    assert row.status == "equivalent", row.reason
    assert "times the error" in row.reason


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adagrad])
def test_adaptive_optimizers_do_not_multiply_rounding(optimizer: Any) -> None:
    row, _ = check(of(optimizer=optimizer), optimizer=optimizer)

    assert (row.status, row.power) == ("equivalent", "5/5")


def scale(factor: float, *names: str) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if not names or name in names:
                parameter.grad *= factor

    return change


@pytest.mark.parametrize(
    ("tested", "cause"),
    [
        (
            {"change": scale(2)},
            "gradients are summed over the 2 ranks or the 2 micro-batches and not divided by their "
            "number",
        ),
        (
            {"change": scale(1 + 1e-4)},
            "all gradients are 1.0001 times what they should be: is one scaled or clipped?",
        ),
        ({"change": scale(0.0, "0.bias")}, "the gradient of '0.bias' is lost: is it detached?"),
        (
            {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1)},
            "of the same gradients the reference makes other weights: another learning rate or "
            "optimizer, or weights that something else changes",
        ),
        (
            # As where it was all-reduced before it was returned.
            {"told": None, "change": scale(2)},
            "gradients are summed over the 2 ranks or the 2 micro-batches and not divided by their "
            "number",
        ),
        (
            # The averaged loss is right, and so are the data.
            {"told": None, "change": lambda model: model[0].weight.grad.abs_()},
            None,
        ),
        (
            {"casts": lambda: torch.autocast("cpu", torch.bfloat16)},
            None,
        ),
    ],
)
def test_a_mistake_is_a_mismatch_with_its_likeliest_cause(
    tested: dict[str, Any], cause: str | None
) -> None:
    row, _ = check(**tested)

    assert row.status == "mismatch", row.reason
    assert (cause is None) == ("likeliest" not in row.reason)
    assert cause is None or row.reason.endswith(f"likeliest cause: {cause}")


def test_low_precision_is_held_to_its_own_error_whichever_the_reference_casts() -> None:
    autocast = lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731
    for reference in (build, of(casts=autocast)):
        row, _ = check(reference, precision="amp-bf16", casts=autocast)
        assert (row.status, row.check, row.power) == ("equivalent", "T2", "4/4"), row.reason

    for reference in (build, of(casts=autocast)):
        row, _ = check(reference, precision="amp-bf16")
        assert row.status == "no power"
        assert "low precision left no trace: the error is " in row.reason
    row, _ = check(precision="amp-bf16", casts=autocast, change=scale(2))
    assert row.status == "mismatch"


def test_a_gradient_that_is_lost_in_the_rounding_of_the_others_is_named() -> None:
    tiny = scale(1e-8, "0.bias")
    row, missing = check(of(change=tiny), change=tiny)

    assert row.status == "equivalent"
    why = "'0.bias', below 1e-06 of all, were judged in total alone"
    assert missing == {"small gradients": why}
    assert row.reason.endswith(f"small gradients were not compared: {why}")


class Spectral(nn.Module):
    """Has a complex weight, as a Fourier neural operator has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.complex64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs * self.weight).real


def test_mistakes_are_planted_in_complex_gradients_too() -> None:
    complex_part = {"layers": lambda: (Spectral(),), "has_model": False}
    row, _ = check(of(**complex_part), **complex_part)

    assert (row.status, row.power) == ("equivalent", "4/4")


def test_losses_alone_show_what_references_with_a_mistake_would_lose() -> None:
    row, missing = check(of(has_model=False), has_model=False)

    assert (row.status, row.power) == ("equivalent", "4/4")
    assert missing == {"gradients and weights": "build_step returns no Step.model"}
    row, _ = check(of(has_model=False), has_model=False, change=scale(1.0625))
    assert (row.status, row.check) == ("mismatch", "T1")
    assert "the loss differs at step 2 by " in row.reason
    # AdamW's step does not depend on the length of a gradient.
    adam = {"optimizer": torch.optim.AdamW, "has_model": False}
    row, _ = check(of(**adam), **adam)
    assert (row.status, row.power) == ("no power", "2/4")


def test_what_shows_nothing_has_no_power() -> None:
    row, _ = check(told=None)
    assert row.status == "no power"
    assert row.reason == (
        "all ranks return the same loss, so a missing reduction might not show: return each rank's "
        "own loss (of ranks that share data, only one's)"
    )
    zero = {"change": scale(0.0)}
    row, _ = check(of(**zero), **zero)
    assert row.status == "no power"
    assert "all gradients of step 1 are zero" in row.reason


def test_weights_that_no_step_moves_show_nothing_of_the_optimizer() -> None:
    row, _ = check(of(optimizer=warming(0.1, 5)), optimizer=warming(1.0, 5))
    assert (row.status, row.power) == ("no power", "4/5")
    assert row.reason == "it does not find a planted bug: the weights stay as they are"

    row, _ = check(of(optimizer=warming(0.1, 2)), optimizer=warming(0.1, 2))
    assert row.status == "equivalent", row
    row, _ = check(of(optimizer=warming(0.1, 2)), optimizer=warming(1.0, 2))
    assert row.status == "mismatch"


def warming(rate: float, num_steps: int) -> Callable[[Any], torch.optim.Optimizer]:
    """Return an optimizer whose rate is 0 for so many steps."""

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        found = torch.optim.SGD(parameters, lr=0.0)
        steps = itertools.count(1)

        def warm(*_: object) -> None:
            found.param_groups[0]["lr"] = 0.0 if next(steps) <= num_steps else rate

        found.register_step_pre_hook(warm)
        return found

    return optimizer


class Unused(nn.Module):
    """A head that no forward pass uses."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs


def fill(model: nn.Module) -> None:
    """Put zeros in place of no gradient, as before a reduction by hand."""
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


@pytest.mark.parametrize(
    ("optimizer", "status"),
    [(torch.optim.AdamW, "mismatch"), (torch.optim.Adam, "equivalent"), (sgd, "equivalent")],
)
def test_zeros_in_place_of_no_gradient_are_a_mistake_where_they_move_a_weight(
    optimizer: Any, status: str
) -> None:
    fields: dict[str, Any] = {"optimizer": optimizer, "layers": lambda: (Unused(),)}

    for tested, reference in ((fill, None), (None, fill)):
        changes = [{"change": one} if one else {} for one in (tested, reference)]
        row, _ = check(of(**fields, **changes[1]), **fields, **changes[0])
        assert row.status == status, row
        told = (
            "likeliest cause: one side has a gradient where the other has none; even by a gradient "
            "of zeros, momentum and decay move a weight ('3.weight')"
        )
        assert row.reason.endswith(told) == (status == "mismatch")
    both = fields | {"change": fill}
    row, _ = check(of(**both), **both)
    assert row.status == "equivalent"


class Faint(Unused):
    """A bias that hardly shows, whose gradient is below the limit of its own share."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + 1e-9 * self.weight.sum() * inputs


def lose(model: nn.Module) -> None:
    """Lose the gradient of the last parameter, by which Adam would move it as far as any."""
    *_, last = model.parameters()
    last.grad = None


def test_a_gradient_too_small_to_be_compared_is_missed_by_what_it_does() -> None:
    fields: dict[str, Any] = {"optimizer": torch.optim.Adam, "layers": lambda: (Faint(),)}

    row, _ = check(of(**fields), **fields)
    assert row.status == "equivalent", row
    row, _ = check(of(**fields), **fields, change=lose)
    assert row.status == "mismatch"
    assert row.reason.startswith("the update of '3.weight' differs at step 1 by ")


class Skipping(torch.optim.SGD):
    """Leaves its second step out, as a GradScaler does."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.num_asked = 0
        self._step = self.step
        self.step = self.maybe_step  # type: ignore[method-assign,assignment]

    def maybe_step(self) -> None:
        self.num_asked += 1
        if self.num_asked != 2:
            self._step()


@pytest.mark.parametrize("skips", ["ranks", "reference"])
def test_a_step_that_one_side_leaves_out_is_a_mismatch(skips: str) -> None:
    skipping: dict[str, Any] = {"optimizer": Skipping}
    plain: dict[str, Any] = {"optimizer": functools.partial(torch.optim.SGD, lr=0.1)}
    ours, theirs = (skipping, plain) if skips == "ranks" else (plain, skipping)

    row, _ = check(of(**theirs), **ours)

    assert row.status == "mismatch"
    assert "the update of '0.weight' differs at step 2 by " in row.reason
    assert "ranks and reference do not step equally often: one side alone has" in row.reason
    # A GradScaler may have left it out.
    autocast = functools.partial(torch.autocast, "cpu", torch.bfloat16)
    row, _ = check(of(casts=autocast, **theirs), precision="amp-bf16", casts=autocast, **ours)
    assert row.status == "no power", row.reason


def test_a_step_that_both_sides_leave_out_is_told() -> None:
    row, _ = check(of(optimizer=Skipping), optimizer=Skipping)

    assert row.status == "no power"
    assert row.reason == (
        "no optimizer stepped in step 2: is it a part of one that accumulates, does a GradScaler "
        "leave it out, or are gradients made in a closure?"
    )


def test_dropout_is_not_exercised_and_batchnorm_is_named() -> None:
    row, _ = check(of(layers=lambda: (nn.Dropout(0.5),)))
    assert (row.status, row.reason) == (
        "not exercised",
        "the model has dropout (3), and ranks and reference draw different masks; build both with "
        "p=0",
    )
    norm: dict[str, Any] = {"layers": lambda: (nn.BatchNorm1d(4),)}
    row, _ = check(of(**norm), **norm)
    assert row.status == "mismatch"
    assert row.reason.endswith(
        "likeliest cause: BatchNorm: each rank, micro-batch or chunk is normalised by its own "
        "statistics, which is a different computation; use SyncBatchNorm or GroupNorm; buffers "
        "were not compared: a rank may keep its own, as batch normalisation does; small gradients "
        "were not compared: '2.bias', below 1e-06 of all, were judged in total alone"
    )


class Noise(nn.Module):
    """Drops out by a function, as a stochastic depth does: no layer says so."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(inputs, 0.5, self.training)


def test_a_step_that_computes_with_what_it_draws_is_not_exercised() -> None:
    noise: dict[str, Any] = {"layers": lambda: (Noise(),)}
    row, _ = check(of(**noise), **noise)

    assert (row.status, row.reason) == (
        "not exercised",
        "the step draws random numbers, and ranks and reference draw different ones",
    )
    # As a data loader does that begins an epoch in a fixed order.
    idle: dict[str, Any] = {"layers": lambda: (Idle(),)}
    assert check(of(**idle), **idle)[0].status == "equivalent"
    assert check(of(**idle), **idle, change=scale(2))[0].status == "mismatch"


def test_what_is_drawn_excuses_no_missing_reduction_and_no_infinite_step() -> None:
    noise: dict[str, Any] = {"layers": lambda: (Noise(),)}
    ranks = [
        record_steps(
            build(2, told=rank, change=scale(1.0 + rank), **noise),
            rank=rank,
            num_steps=3,
            on_step=lambda: None,
        )
        for rank in range(2)
    ]
    recipe, cpu = Recipe(parallel="ddp:2"), torch.device("cpu")
    row, _ = check_own_steps(
        OwnCase(
            recipe=recipe,
            trace=join_traces(ranks),
            build=of(**noise),
            device=cpu,
            on_step=lambda: None,
        )
    )
    assert (row.status, "not reduced over the ranks" in row.reason) == ("mismatch", True)
    nan: dict[str, Any] = {"layers": lambda: (Idle(),), "change": scale(float("nan"))}
    assert check(of(**nan), **nan)[0].status == "mismatch"
    nan["has_model"] = False
    assert check(of(**nan), **nan)[0].status == "mismatch"


class Idle(nn.Identity):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        torch.rand(())
        return inputs


class Two(torch.optim.Optimizer):
    """Steps its parameters by two optimizers, one of them twice, as a GAN with a critic does."""

    def __init__(self, parameters: Any) -> None:
        given = list(parameters)
        self.inner = [torch.optim.SGD(given[:2], lr=0.1), torch.optim.AdamW(given[2:], lr=0.01)]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self.inner:
            one.zero_grad(set_to_none)

    def step(self) -> None:  # type: ignore[override]
        self.inner[0].step()
        self.inner[1].step()
        self.inner[0].step()


def test_each_optimizer_counts_and_each_update_is_compared() -> None:
    row, missing = check(of(optimizer=Two), optimizer=Two)
    assert (row.status, row.power, missing) == ("equivalent", "5/5", {})

    row, _ = check(of(optimizer=Two), optimizer=Two, change=scale(1.001, "2.bias"))
    assert row.status == "mismatch"
    assert "the gradient of '2.bias' differs at step 1 by 1.0e-03" in row.reason


class Often(Two):
    """Updates all weights often in a step; all gradients but the first are `factor` times those."""

    def __init__(self, parameters: Any, *, factor: float = 0.5, times: int = 4) -> None:
        self.given = list(parameters)
        self.inner = [torch.optim.AdamW(self.given, lr=0.01)]
        self.factor, self.times = factor, times

    def step(self) -> None:  # type: ignore[override]
        for time in range(self.times):
            for one in self.given if time else ():
                one.grad.mul_(self.factor)  # type: ignore[union-attr]
            self.inner[0].step()


def test_a_later_update_by_another_gradient_or_one_too_many_is_a_mismatch() -> None:
    often = {name: functools.partial(Often, **its) for name, its in OFTEN.items()}
    row, missing = check(of(optimizer=often["right"]), optimizer=often["right"])
    assert (row.status, missing) == ("equivalent", {}), row.reason

    row, _ = check(of(optimizer=often["right"]), optimizer=often["scaled"])
    assert row.status == "mismatch"
    assert "(update 2)' differs at step 1" in row.reason
    row, _ = check(of(optimizer=often["right"]), optimizer=often["again"])
    assert row.status == "mismatch"
    assert "ranks and reference do not step equally often: one side alone has" in row.reason

    row, _ = check(of(optimizer=often["most"]), optimizer=often["most"])
    assert row.status == "no power"
    names = "'0.weight', '0.bias', '2.weight' and 1 more"
    assert row.reason == f"a step updates {names} over 16 times: the later ones are not seen"


def test_the_gradients_of_updates_that_nothing_compares_are_not_kept() -> None:
    steps = build(2, optimizer=functools.partial(Often, times=40))
    steps.take()

    kept = [sum(one.gradient is not None for one in its) for its in steps.updates.values()]
    assert [len(its) for its in steps.updates.values()] == [40] * 4
    assert kept == [MOST_UPDATES + 1] * 4  # one more, which may take the place of the last


OFTEN: dict[str, dict[str, Any]] = {
    "right": {},
    "scaled": {"factor": 0.51},
    "again": {"times": 5},
    "most": {"times": 17},
}


class Clipping(torch.optim.SGD):
    """Changes the gradients and leaves the rest to its base class, as many optimizers do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 0.1)
        return super().step(closure)


class Centralised(Clipping):
    def step(self, closure: Any = None) -> Any:
        for one in self.param_groups[0]["params"]:
            one.grad.sub_(one.grad.mean())
        return super().step(closure)


@pytest.mark.parametrize("kind", [Clipping, Centralised])
@pytest.mark.parametrize("is_hooked", [False, True])
def test_the_gradients_of_an_optimizer_that_calls_its_base_class_are_compared(
    kind: type[torch.optim.SGD], is_hooked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = torch.optim.SGD.step
    while hasattr(plain, "__wrapped__") and getattr(plain, "hooked", False):
        plain = plain.__wrapped__
    monkeypatch.setattr(torch.optim.SGD, "step", plain)
    if is_hooked:  # by torch, once there is an instance of the base class
        torch.optim.SGD([nn.Parameter(torch.ones(1))])
        assert torch.optim.SGD.step.hooked  # type: ignore[attr-defined]
    optimizer = functools.partial(kind, lr=0.1, momentum=0.9)

    row, missing = check(of(optimizer=optimizer), optimizer=optimizer)
    assert (row.status, row.power, missing) == ("equivalent", "5/5", {})

    wrong = check(of(optimizer=optimizer), optimizer=optimizer, change=scale(-1.001, "2.bias"))[0]
    assert wrong.status == "mismatch"
    assert "the gradient of" in wrong.reason
    unlike = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    assert check(of(optimizer=optimizer), optimizer=unlike)[0].status == "mismatch"


class Lookahead(torch.optim.Optimizer):
    """Steps another optimizer within its own step, and then moves slow weights."""

    def __init__(self, parameters: Any, *, share: float = 0.5, clip: float = 0.1) -> None:
        given = list(parameters)
        super().__init__(given, {})
        self.inner = torch.optim.Adam(given, lr=0.01)
        self.slow = [one.detach().clone() for one in given]
        self.share, self.clip = share, clip

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        weights = self.param_groups[0]["params"]
        torch.nn.utils.clip_grad_norm_(weights, self.clip)
        self.inner.step(closure)
        for one, slow in zip(weights, self.slow, strict=True):
            one.copy_(slow.lerp_(one, self.share))


class Halves(Lookahead):
    """Steps each half of its parameters by an optimizer of its own."""

    def __init__(self, parameters: Any, *, rate: float = 0.01) -> None:
        given = list(parameters)
        super().__init__(given)
        self.halves = [torch.optim.Adam(given[:2], lr=0.01), torch.optim.AdamW(given[2:], lr=rate)]

    def step(self, closure: Any = None) -> Any:
        for one in self.halves:
            one.step()


@pytest.mark.parametrize(
    ("optimizer", "wrong"),
    [(Lookahead, {"share": 0.4}), (Lookahead, {"clip": 0.11}), (Halves, {"rate": 0.011})],
)
def test_an_optimizer_within_another_is_compared_and_so_are_its_weights(
    optimizer: type[Lookahead], wrong: dict[str, Any]
) -> None:
    row, missing = check(of(optimizer=optimizer), optimizer=optimizer)
    assert (row.status, row.power, missing) == ("equivalent", "5/5", {}), row.reason
    for changed in (
        {"optimizer": functools.partial(optimizer, **wrong)},
        {"optimizer": optimizer, "change": scale(-1, "2.bias")},
    ):
        row, _ = check(of(optimizer=optimizer), **changed)
        assert row.status == "mismatch", row


class Third(Centralised):
    """Its class, and that above it, change the gradients first; here those of one rank too."""

    def __init__(self, *arguments: Any, factor: float = 1.0, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.factor = factor

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["params"][3].grad.mul_(self.factor)
        return super().step(closure)


def test_the_innermost_of_several_base_classes_counts() -> None:
    optimizer = functools.partial(Third, lr=0.1, momentum=0.9)
    row, missing = check(of(optimizer=optimizer), optimizer=optimizer)
    assert (row.status, row.power, missing) == ("equivalent", "5/5", {}), row.reason

    # What the outermost one puts right is right.
    doubled = functools.partial(optimizer, factor=0.5)
    fields: dict[str, Any] = {"optimizer": doubled, "change": scale(2, "2.bias")}
    assert check(of(optimizer=optimizer), **fields)[0].status == "equivalent"
    fields["change"] = scale(2.1, "2.bias")
    assert check(of(optimizer=optimizer), **fields)[0].status == "mismatch"


class EverySecond(torch.optim.SGD):
    """Accumulates in the optimizer: only every second step of it is one."""

    count = 0

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        return super().step(closure) if self.count % 2 == 0 else None


def test_a_step_that_leaves_the_base_classes_out_is_no_update() -> None:
    class Pairs(Two):
        def __init__(self, parameters: Any) -> None:
            self.given = list(parameters)
            self.inner = [EverySecond(self.given, lr=0.1)]

        def step(self) -> None:  # type: ignore[override]
            """Of half of the gradient first, as the ranks have it before they reduce it."""
            for factor in (0.5, 2.0):
                for one in self.given:
                    one.grad.mul_(factor)  # type: ignore[union-attr]
                self.inner[0].step()

    row, missing = check(of(optimizer=functools.partial(torch.optim.SGD, lr=0.1)), optimizer=Pairs)
    assert (row.status, row.power, missing) == ("equivalent", "5/5", {}), row.reason
    row, _ = check(of(optimizer=Pairs), optimizer=Pairs, change=scale(1.001, "0.bias"))
    assert row.status == "mismatch"

    class Odd(EverySecond):
        count = 1

    each = {kind: functools.partial(kind, lr=0.1) for kind in (Odd, EverySecond)}
    row, _ = check(of(optimizer=each[EverySecond]), optimizer=each[Odd])
    assert row.status == "mismatch"  # no step is one on both sides
    assert "ranks and reference do not step equally often: one side alone has" in row.reason


def freezing(*steps: int, is_frozen_first: bool = False) -> dict[str, Any]:
    """Freeze the first weight after these steps, until the next step has ended."""

    def build_optimizer(parameters: Any) -> torch.optim.Optimizer:
        first, *others = parameters
        return sgd([first.requires_grad_(not is_frozen_first), *others])

    def change(model: Any) -> None:
        model.num_steps = getattr(model, "num_steps", 0) + 1
        model[0].weight.requires_grad_(model.num_steps not in steps)

    return {"optimizer": build_optimizer, "change": change}


@pytest.mark.parametrize("steps", [(), (1,), (1, 2), (2,)])
@pytest.mark.parametrize("is_frozen_first", [False, True])
def test_parameters_may_be_frozen_and_trained_from_step_to_step(
    steps: tuple[int, ...], is_frozen_first: bool
) -> None:
    plan = freezing(*steps, is_frozen_first=is_frozen_first)
    other = freezing(*(() if 1 in steps else (1,)), is_frozen_first=is_frozen_first)

    row, missing = check(of(**plan), **plan)
    assert (row.status, missing) == ("equivalent", {}), row.reason
    assert check(of(**other), **plan)[0].status == "mismatch"


class Masters(Two):
    """Steps copies of the weights, which the model gets."""

    def __init__(self, parameters: Any) -> None:
        self.given = list(parameters)
        self.copies = [nn.Parameter(one.detach().clone()) for one in self.given]
        self.inner = [torch.optim.SGD(self.copies, lr=0.1)]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self.given:
            one.grad = None

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for one, copy in zip(self.given, self.copies, strict=True):
            copy.grad = one.grad.clone()  # type: ignore[union-attr]
        self.inner[0].step()
        for one, copy in zip(self.given, self.copies, strict=True):
            one.copy_(copy)


def test_copies_of_weights_that_an_optimizer_steps_in_the_models_place_prove_nothing() -> None:
    row, missing = check(of(optimizer=Masters), optimizer=Masters)

    assert (row.status, [*missing]) == ("no power", ["gradients and weights"])
    assert row.reason.startswith("4 parameters that an optimizer updates and Step.model does not ")


def half(parameters: Any) -> torch.optim.Optimizer:
    """Build it too early, before the model has its last layer."""
    return sgd(list(parameters)[:2])


def test_parameters_that_no_optimizer_steps_are_the_cause() -> None:
    row, _ = check(optimizer=half)
    assert row.status == "mismatch"
    assert row.reason.endswith(
        "no optimizer steps '2.bias', '2.weight': is one not called, or built before the model had "
        "them?"
    )
    # Neither does the reference here.
    assert (
        "no optimizer" not in check(of(optimizer=half), optimizer=half, change=scale(2))[0].reason
    )


def freeze(factor: float) -> Callable[[Any], torch.optim.Optimizer]:
    """Train all but the first weight, times a factor, as an adapter of a model does."""

    def build_optimizer(parameters: Any) -> torch.optim.Optimizer:
        frozen, *trained = parameters
        frozen.requires_grad_(False).mul_(factor)
        return sgd(trained)

    return build_optimizer


@torch.no_grad()
def average(model: Any) -> None:
    """Let a copy of the last weights follow them, as the target network of a method does."""
    *_, target = model
    target.weight.lerp_(model[2].weight, 0.1)


def test_a_frozen_parameter_that_the_step_changes_is_said_not_to_be_compared() -> None:
    class Target(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs

    def make_target() -> tuple[nn.Module, ...]:
        return (Target(16, 4, bias=False).requires_grad_(False),)

    fields: dict[str, Any] = {"layers": make_target, "change": average}
    row, missing = check(of(**fields), **fields)

    assert row.status == "equivalent"
    assert missing == {"frozen parameters": "the step changes '3.weight' without an optimizer"}


@pytest.mark.parametrize("rate", [1e-5, 0.1])
def test_weights_of_a_lower_precision_than_the_references_are_compared(rate: float) -> None:
    optimizer = functools.partial(torch.optim.AdamW, lr=rate)
    fields: dict[str, Any] = {"optimizer": optimizer, "dtype": torch.bfloat16}

    row, _ = check(of(optimizer=optimizer), precision="bf16", **fields)
    assert row.status == ("no power" if rate < 1e-3 else "equivalent"), row

    twice = functools.partial(torch.optim.AdamW, lr=4 * rate)
    row, _ = check(of(optimizer=optimizer), precision="bf16", **(fields | {"optimizer": twice}))
    assert row.status == ("no power" if rate < 1e-3 else "mismatch"), row


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_weights_that_lost_their_bits_on_the_ranks_alone_are_told(precision: str) -> None:
    optimizer = functools.partial(torch.optim.AdamW, lr=0.1)
    fields: dict[str, Any] = {"optimizer": optimizer, "dtype": torch.bfloat16}

    row, _ = check(of(optimizer=optimizer), precision=precision, **fields)
    assert row.status == ("mismatch" if precision == "fp32" else "no power"), row
    told = "weights have fewer bits on the ranks than in the reference, and round at each step"
    assert (told in row.reason) == (precision != "fp32")
    row, _ = check(of(**fields), precision=precision, **fields)
    assert told not in row.reason


def test_where_no_mistake_can_be_planted_losses_that_agree_prove_nothing() -> None:
    class ByHand:
        def __init__(self, parameters: Any) -> None:
            self.parameters = list(parameters)

        def zero_grad(self) -> None:
            for one in self.parameters:
                one.grad = None

        @torch.no_grad()
        def step(self) -> None:
            for one in self.parameters:
                one -= 1e-5 * one.grad

    fields: dict[str, Any] = {"optimizer": ByHand, "has_model": False}
    row, _ = check(of(**fields), **fields)

    assert row.status == "no power"
    assert "no torch optimizer steps, so that no mistake can be planted" in row.reason


def test_a_frozen_parameter_is_compared_by_what_it_does() -> None:
    row, missing = check(of(optimizer=freeze(1.0)), optimizer=freeze(1.0))
    assert (row.status, row.power, missing) == ("equivalent", "5/5", {})

    row, _ = check(of(optimizer=freeze(1.0)), optimizer=freeze(1.001))
    assert row.status == "mismatch"


class Masked(nn.Module):
    """Leaves some features out, and counts its batches."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.register_buffer("mask", torch.arange(4) >= least)
        self.register_buffer("unused", torch.full((2,), float(least)))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("first", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 0.5
        self.first = None
        return inputs * self.mask


def test_a_buffer_that_the_ranks_do_not_change_is_compared_by_what_it_does() -> None:
    row, missing = check(of(layers=lambda: (Masked(1),)), layers=lambda: (Masked(1),))
    assert (row.status, [*missing]) == ("equivalent", ["buffers"])

    row, _ = check(of(layers=lambda: (Masked(0),)), layers=lambda: (Masked(1),))
    assert row.status == "mismatch"
    cause = (
        "'3.mask', '3.unused' of the ranks and of the reference differ: drawn or loaded otherwise"
    )
    assert f"likeliest cause: {cause}" in row.reason


def test_weights_that_begin_otherwise_than_the_references_are_told() -> None:
    def begin_otherwise(parameters: Any) -> torch.optim.Optimizer:
        first, *others = parameters
        with torch.no_grad():
            first *= 1.5
        return sgd([first, *others])

    row, missing = check(optimizer=begin_otherwise)

    assert row.status == "equivalent"
    why = "'0.weight' began with other values on the ranks, and the reference took those"
    assert missing == {"initial weights": why}


def test_wrappers_are_no_part_of_a_name_unless_names_would_clash() -> None:
    wrapped = {"module._orig_mod.head.weight": 1, "module._orig_mod.module.bias": 2}
    inside = {"net.module.weight": 1, "net.module.layer._orig_mod.bias": 2}
    assert without_wrappers(inside) == {"net.weight": 1, "net.layer.bias": 2}
    assert without_wrappers(wrapped) == {"head.weight": 1, "bias": 2}
    assert without_wrappers({"module.weight": 1, "weight": 2}) == {"module.weight": 1, "weight": 2}
