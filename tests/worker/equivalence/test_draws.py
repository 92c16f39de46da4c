"""Models that draw random numbers are held to every check, by the numbers that the run drew."""

from __future__ import annotations

import random
from collections.abc import Callable
from inspect import stack
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from perfsuite import Recipe, Workload
from perfsuite.records.equivalence import EquivalenceReport
from perfsuite.worker.jobs import loader_workers

Check = Callable[..., EquivalenceReport]
Build = Callable[..., Workload]
Expect = Callable[..., dict[str, str]]

PRECISIONS = ["fp64", "fp32", "bf16", "amp-bf16", "amp-fp16", "O1", "O2", "O3"]


class Drawing(nn.Module):
    """A perceptron whose hidden layer (B, 8) goes through a function that draws."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 8)
        self.draw = draw
        self.output = nn.Linear(8, 3)

    def forward(self, points: Tensor) -> Tensor:
        outputs: Tensor = self.output(self.draw(self.hidden(points)).tanh())
        return outputs


def attend(hidden: Tensor) -> Tensor:
    """Attention of four heads of one number to each other, with dropout."""
    heads = hidden.view(len(hidden), 2, 4, 1)
    mixed = functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.4)
    return mixed.reshape(len(hidden), 8)


def attend_by_bmm(hidden: Tensor) -> Tensor:
    """The same in nn.MultiheadAttention's way, where batch and heads are one dimension."""
    heads = hidden.view(len(hidden) * 2, 4, 1)
    weights = functional.dropout((heads @ heads.mT).softmax(-1), 0.4)
    return (weights @ heads).view(len(hidden), 8)


def attend_head_by_head(hidden: Tensor) -> Tensor:
    """The same in tensor2tensor's way, where all samples of the first head come first."""
    heads = torch.cat(hidden.view(len(hidden), 2, 4).unbind(1)).unsqueeze(2)
    weights = functional.dropout((heads @ heads.mT).softmax(-1), 0.4)
    return torch.cat((weights @ heads).squeeze(2).chunk(2), 1)


class OwnGenerator(nn.Module):
    """Adds noise of a generator that no seed of the run reaches, another one on each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()
        self.generator.manual_seed(dist.get_rank() if dist.is_initialized() else 9)

    def forward(self, hidden: Tensor) -> Tensor:
        noise = torch.randn(hidden.shape, generator=self.generator, dtype=hidden.dtype)
        return hidden + noise


# Each draws for every sample by itself, or the samples themselves.
BY_SAMPLE: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda h: functional.dropout(h, 0.3),
    "dropout in place": lambda h: functional.dropout(h + 0, 0.3, inplace=True),
    "alpha dropout": lambda h: functional.alpha_dropout(h, 0.3, training=True),
    "feature dropout": lambda h: functional.dropout1d(h[:, :, None], 0.3)[:, :, 0],
    "fused dropout": lambda h: torch.native_dropout(h, 0.3, True)[0],
    "time first": lambda h: (
        functional.dropout(h.view(len(h), 2, 4).transpose(0, 1), 0.3)
        .transpose(0, 1)
        .reshape(len(h), 8)
    ),
    "attention": attend,
    "attention by bmm": attend_by_bmm,
    "attention head by head": attend_head_by_head,
    "randn_like": lambda h: h + torch.randn_like(h),
    "normal_": lambda h: h + torch.empty_like(h).normal_(0.1, 0.5),
    "uniform_": lambda h: h * torch.empty_like(h).uniform_(0.5, 1.5),
    "rand": lambda h: h * torch.rand(h.shape, dtype=h.dtype),
    "stochastic depth": lambda h: h * (torch.rand(len(h), 1) < 0.5),
    "bernoulli": lambda h: h * torch.bernoulli(torch.sigmoid(h.detach())),
    "gumbel": lambda h: h * functional.gumbel_softmax(h),
    "gamma": lambda h: h * torch._standard_gamma(torch.exp(h)),
    "multinomial": lambda h: h.gather(1, torch.multinomial(h.detach().softmax(1), 8)),
    "randint": lambda h: h * torch.randint(0, 3, h.shape),
    "mixed with other samples": lambda h: 0.7 * h + 0.3 * h[torch.randperm(len(h))],
    "with any samples": lambda h: 0.7 * h + 0.3 * h[torch.randint(len(h), (len(h),))],
}


# Those that one model may have: the order of heads and samples is one for all of a model.
TOGETHER = {
    "dropouts": [name for name in BY_SAMPLE if "dropout" in name or name == "time first"],
    "attention": ["attention", "attention by bmm"],
    "attention head by head": ["attention head by head"],
    "noise": ["randn_like", "normal_", "uniform_", "rand", "gumbel", "gamma", "own generator"],
}
TOGETHER["choices"] = [
    name for name in BY_SAMPLE if not any(name in names for names in TOGETHER.values())
]


def of(report: EquivalenceReport, check: str) -> Any:
    return next(row for row in report.rows if row.check == check)


class SideBySide(nn.Module):
    """Perceptrons that draw in several ways, whose outputs (B, 3) are added.

    The gradients of each are compared by themselves, and a check costs the start of its ranks.
    """

    def __init__(self, *draws: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(map(Drawing, draws))

    def forward(self, points: Tensor) -> Tensor:
        return torch.stack([part(points) for part in self.parts]).sum(0)


@pytest.mark.parametrize("together", TOGETHER)
def test_what_is_drawn_for_each_sample_is_replayed_for_the_whole_batch(
    check_equivalence: Check, perceptron_workload: Build, together: str
) -> None:
    def build_model() -> nn.Module:
        names = TOGETHER[together]
        return SideBySide(*(BY_SAMPLE.get(name) or OwnGenerator() for name in names))

    workload = perceptron_workload(build_model=build_model, blocks=None)

    report = check_equivalence(
        workload, Recipe(parallel="ddp:2", grad_accumulation_steps=2), num_steps=2
    )

    assert {row.check: row.status for row in report.rows} == {
        "T0": "equivalent",
        "T1": "equivalent",
        "data": "equivalent",
    }, str(report)


def everything() -> nn.Module:
    """Draws in each of its blocks, in several ways, and between them."""
    parts = [nn.Dropout(0.3), Lambda(attend), Lambda(BY_SAMPLE["stochastic depth"])]
    blocks = [nn.Sequential(nn.Linear(6, 8), parts[0], Lambda(BY_SAMPLE["randn_like"]))]
    blocks += [nn.Sequential(nn.Linear(8, 8), part, nn.Tanh()) for part in parts]
    return nn.Sequential(*blocks, nn.Linear(8, 3))


class Lambda(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)


def noisy_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs + torch.randn_like(outputs), targets)


MODES = ["single", "ddp:2", "fsdp:2", "hsdp:1x2", "zero1:2", "zero2:2", "horovod-like:2", "tp:2"]
PIPELINES = ["pp:2", "pp:2:gpipe", "pp:2:interleaved", "mp:2"]


@pytest.mark.parametrize("checkpointing", ["none", "every-block"])
@pytest.mark.parametrize("parallel", [*MODES, *PIPELINES])
def test_a_model_and_a_loss_that_draw_are_held_to_all_checks_in_every_mode(
    check_equivalence: Check, perceptron_workload: Build, parallel: str, checkpointing: str
) -> None:
    workload = perceptron_workload(
        build_model=everything, blocks=lambda model: list(model)[:4], loss=noisy_loss
    )

    report = check_equivalence(workload, Recipe(parallel=parallel, checkpointing=checkpointing))

    assert report.is_equivalent, str(report)
    found = {row.check for row in report.rows}
    reduces = parallel.partition(":")[0] not in ("single", "tp")
    assert found == {"T1", "data"} | ({"T0"} if reduces else set()) | (
        set() if checkpointing == "none" else {"checkpointing"}
    )


@pytest.mark.parametrize("parallel", ["single", "ddp:2"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_model_that_draws_is_held_to_its_check_in_every_precision(
    check_equivalence: Check, perceptron_workload: Build, parallel: str, precision: str
) -> None:
    workload = perceptron_workload(build_model=everything, blocks=None)

    report = check_equivalence(workload, Recipe(parallel=parallel, precision=precision))

    assert report.is_equivalent, str(report)
    assert {"T1", "T2"} & {row.check for row in report.rows}


@pytest.mark.parametrize("parallel", ["ddp:2", "pp:2", "mp:2"])
def test_the_order_of_heads_and_samples_hides_no_mask_that_is_wrong(
    check_equivalence: Check, plant: Build, parallel: str
) -> None:
    def build_model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), Lambda(attend_head_by_head), nn.Linear(8, 3))

    broken = plant(drop_without_scale, build_model=build_model, blocks=list)

    report = check_equivalence(broken, Recipe(parallel=parallel), num_steps=1)

    assert of(report, "T1").status == "mismatch", str(report)


# For all samples together, and not the same on every rank.
NOT_BY_SAMPLE: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "one coin for all": (
        lambda h: h * (1 + torch.rand(())),
        "aten.rand draws (), () in the parts of the batch, other numbers in each, so its samples "
        "cannot be told apart",
    ),
    "pairs of samples": (
        lambda h: functional.dropout(h @ h.mT, 0.3) @ h,
        "aten.bernoulli_ draws (8, 8), (8, 8) in the parts of the batch and (16, 16) in the whole "
        "of it, so its samples cannot be told apart",
    ),
    "inside of an operator": (
        lambda h: functional.rrelu(h, 0.1, 0.9, training=True),
        "aten.rrelu_with_noise does not tell the random numbers that it draws",
    ),
    "outside of torch": (
        lambda h: h * (1 + random.random()),
        "random draws random numbers that cannot be told apart by sample",
    ),
}


@pytest.mark.parametrize("name", NOT_BY_SAMPLE)
def test_what_is_not_drawn_by_sample_is_not_exercised_and_named(
    check_equivalence: Check, perceptron_workload: Build, name: str
) -> None:
    draw, reason = NOT_BY_SAMPLE[name]
    workload = perceptron_workload(build_model=lambda: Drawing(draw), blocks=None)

    report = check_equivalence(workload, Recipe(parallel="ddp:2"), num_steps=1)

    assert of(report, "T0").status == "equivalent", str(report)
    assert (of(report, "T1").status, of(report, "T1").reason) == ("not exercised", reason)
    alone = check_equivalence(workload, Recipe(), num_steps=1)
    if name != "inside of an operator":
        assert alone.is_equivalent, str(alone)


def test_a_number_that_all_ranks_draw_alike_may_belong_to_all_samples(
    check_equivalence: Check, perceptron_workload: Build
) -> None:
    def draw(hidden: Tensor) -> Tensor:
        return hidden * torch.rand((), generator=torch.Generator().manual_seed(5))

    workload = perceptron_workload(build_model=lambda: Drawing(draw), blocks=None)

    assert check_equivalence(workload, Recipe(parallel="ddp:2"), num_steps=1)


def dropping() -> nn.Module:
    block = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5))
    return nn.Sequential(block, nn.Linear(8, 3))


def is_last_rank() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


def evaluate_on_last_rank(model: nn.Module) -> None:
    for part in model.children():  # a whole model in eval mode is refused
        part.train(not is_last_rank())


def drop_more_on_last_rank(model: nn.Module) -> None:
    if is_last_rank():
        model[0][1].p = 0.7


def seed_all_ranks_alike(model: nn.Module) -> None:
    loader_workers.seed_random_numbers = lambda seed: torch.manual_seed(5)


def drop_without_scale(model: nn.Module) -> None:
    def dropout(inputs: Tensor, p: float, training: bool = True, inplace: bool = False) -> Tensor:
        return inputs * torch.empty_like(inputs).bernoulli_(1 - p)

    functional.dropout = dropout


def switch_off(model: nn.Module) -> None:
    model.eval()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("bug", "check", "where", "cause"),
    [
        (
            evaluate_on_last_rank,
            "T0",
            "the random draw differs at step 1",
            "shard 1: a rank draws 0 times, and one process 1 times; is a rank in eval mode?",
        ),
        (
            drop_more_on_last_rank,
            "T0",
            "the random draw differs at step 1",
            "shard 1: a rank calls aten.bernoulli_ with 0.3, and one process with 0.5; has a rank "
            "another probability?",
        ),
        (
            seed_all_ranks_alike,
            "semantics",
            "the random draw differs at step 1",
            "parts 1 and 2 of the batch, which have other data, draw the same numbers; seed each "
            "rank by its number",
        ),
    ],
    ids=["eval", "probability", "seed"],
)
def test_a_rank_that_draws_otherwise_is_found(
    plant: Build,
    expect_mismatch: Expect,
    precision: str,
    bug: Any,
    check: str,
    where: str,
    cause: str,
) -> None:
    semantics = "T1" if precision in ("fp64", "fp32") else "T2"

    found = expect_mismatch(
        plant(bug, build_model=dropping),
        Recipe(parallel="ddp:2", precision=precision),
        semantics if check == "semantics" else check,
        where,
        cause,
    )

    assert found[semantics] == "mismatch"


@pytest.mark.parametrize("parallel", ["ddp:2", "tp:2", "pp:2", "mp:2"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_mask_without_its_scale_is_found(
    check_equivalence: Check, plant: Build, precision: str, parallel: str
) -> None:
    broken = plant(drop_without_scale, build_model=dropping, blocks=list)

    report = check_equivalence(broken, Recipe(parallel=parallel, precision=precision), num_steps=1)

    assert report.status == "mismatch", str(report)
    assert "the gradient of" in report.worst.reason


@pytest.mark.parametrize("parallel", ["single", "ddp:2", "tp:2", "pp:2", "mp:2"])
def test_draws_that_are_switched_off_in_the_reference_alone_are_found(
    check_equivalence: Check, perceptron_workload: Build, parallel: str
) -> None:
    def build_model() -> nn.Module:
        is_reference = any(frame.filename.endswith("single_process.py") for frame in stack())
        model = dropping()
        for part in model.children():
            part.train(not is_reference)
        return model

    workload = perceptron_workload(build_model=build_model, blocks=list)

    report = check_equivalence(workload, Recipe(parallel=parallel), num_steps=1)

    assert report.status == "mismatch", str(report)
    assert "a rank draws 1 times, and one process 0 times" in report.worst.reason
    assert of(report, "T1").status == "mismatch"


def test_ranks_that_share_a_batch_and_draw_other_numbers_are_found(
    plant: Build, expect_mismatch: Expect
) -> None:
    def seed_by_rank(model: nn.Module) -> None:
        loader_workers.seed_random_numbers = lambda seed: torch.manual_seed(dist.get_rank())

    expect_mismatch(
        plant(seed_by_rank, build_model=dropping),
        Recipe(parallel="tp:2"),
        "T1",
        "the random draw of 'aten.bernoulli_' differs at step 1 on rank 1",
        "ranks that share a batch draw other numbers: seed them alike",
    )
