"""A user's own parallel step against the user's reference in one process, on real ranks."""

from __future__ import annotations

import json

# As in test_hooks: torch can be imported only once per process.
import multiprocessing.forkserver  # noqa: F401
from typing import Any

import pytest
import torch  # noqa: F401

TRAINING = """
    import contextlib
    import itertools

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import perfsuite

    DRAWN = torch.Generator().manual_seed(1)
    INPUTS = torch.randn(96, 8, generator=DRAWN)
    TARGETS = torch.randint(4, (96,), generator=DRAWN)


    def build(
        wrap=lambda model: model,
        reduce=lambda model, ranks: None,
        casts=contextlib.nullcontext,
        samples_of=lambda rank: rank,
        keep=lambda step, model: perfsuite.Step(step, model),
        optimizer=torch.optim.SGD,
        lr=0.1,
        hidden=16,
        layers=(),
    ):
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 4), *layers
        )
        model = wrap(model) if dist.is_initialized() else model
        update = optimizer(model.parameters(), lr=lr)
        numbers = itertools.count()

        def step():
            size = 24 // ranks
            begin = next(numbers) % 4 * 24 + samples_of(rank) * size
            with casts():
                outputs = model(INPUTS[begin : begin + size])
            loss = torch.nn.functional.cross_entropy(
                outputs.float(), TARGETS[begin : begin + size]
            )
            update.zero_grad()
            loss.backward()
            if dist.is_initialized():
                reduce(model, ranks)
            update.step()
            return loss

        return keep(step, model)


    def mean(model, ranks):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks


    def shard(model):
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            fully_shard(layer)
        return fully_shard(model)


    def autocast():
        return torch.autocast("cpu", torch.bfloat16)


    def alone(step, model):
        return step


    def single():
        return build()

    def single_alone():
        return build(keep=alone)

    def ddp():
        return build(wrap=DistributedDataParallel)

    def inside(step, model):
        return perfsuite.Step(step, torch.nn.ModuleDict({"net": model}))

    def ddp_inside():
        return build(wrap=DistributedDataParallel, keep=inside)

    def single_inside():
        return build(keep=inside)

    def by_hand():
        return build(reduce=mean, optimizer=torch.optim.AdamW)

    def single_adam():
        return build(optimizer=torch.optim.AdamW)

    def fsdp():
        return build(wrap=shard)

    def amp():
        return build(wrap=DistributedDataParallel, casts=autocast)

    def single_amp():
        return build(casts=autocast)

    def losses_alone():
        return build(wrap=DistributedDataParallel, keep=alone)

    class AveragingSGD(torch.optim.SGD):
        # As Horovod's, which reduces the gradients in its step.
        def step(self, closure=None):
            if dist.is_initialized():
                for parameter in self.param_groups[0]["params"]:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
            return super().step(closure)

    def averaging():
        return build(optimizer=AveragingSGD)

    class Clipping(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                torch.nn.utils.clip_grad_norm_(group["params"], 0.1)
            return super().step(closure)

    def clipping():
        return build(wrap=DistributedDataParallel, optimizer=Clipping)

    def several(reduce, epochs=3):
        # As PPO does: several updates from what one step has collected.
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
        update = torch.optim.Adam(model.parameters(), lr=1e-3)
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        own = slice(rank, None, ranks)

        def step():
            for epoch in range(epochs):
                update.zero_grad()
                outputs = model(INPUTS[own])
                loss = torch.nn.functional.cross_entropy(outputs, TARGETS[own])
                loss.backward()
                reduce(model, epoch, ranks)
                update.step()
            return loss

        return perfsuite.Step(step, model)

    def reduce_all(model, epoch, ranks):
        if ranks > 1:
            mean(model, ranks)

    def several_updates():
        return several(reduce_all)

    def mixed():
        def optimizer(parameters, lr):
            first, *others = parameters
            both = AveragingSGD([first], lr=lr), torch.optim.SGD(others, lr=lr)
            class Both:
                zero_grad = lambda self: [one.zero_grad() for one in both]
                step = lambda self: [one.step() for one in both]
            return Both()
        return build(reduce=mean, optimizer=optimizer)

    def hooked():
        def optimizer(parameters, lr):
            update = torch.optim.SGD(parameters, lr)
            update.register_step_pre_hook(lambda *_: mean(layer, 2))
            return update
        layer = torch.nn.Module()
        def wrap(model):
            layer.inner = model
            return model
        return build(wrap=wrap, optimizer=optimizer)

    def part(step, model):
        return perfsuite.Step(step, model[0])

    def part_reduced():
        return build(reduce=lambda model, ranks: mean(model[0], ranks), keep=part, lr=1e-6)

    def part_alone():
        return build(keep=part, lr=1e-6)

    def adam_alone():
        return build(reduce=mean, optimizer=torch.optim.AdamW, keep=alone)
"""
MISTAKES = """
    import torch
    import torch.distributed as dist

    import perfsuite
    import training
    from training import DistributedDataParallel, alone, build, mean


    def summed():
        def reduce(model, ranks):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        return build(reduce=reduce)

    def forgotten():
        def reduce(model, ranks):
            own = model[2].bias.grad.clone()
            mean(model, ranks)
            model[2].bias.grad = own
        return build(reduce=reduce)

    def unsynced():
        return build()

    def spoilt_and_clipped():
        def spoil(model, ranks):
            mean(model, ranks)
            model[2].bias.grad *= 1.5
        return build(reduce=spoil, optimizer=training.Clipping)

    def last_of_several():
        def reduce(model, epoch, ranks):
            mean(model, ranks)
            if epoch == 2:
                model[2].bias.grad *= 1.5
        return training.several(reduce)

    def same_data():
        return build(wrap=DistributedDataParallel, samples_of=lambda rank: 0)

    def scaled_rate():
        return build(wrap=DistributedDataParallel, lr=0.2)

    def summed_alone():
        def reduce(model, ranks):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        return build(reduce=reduce, keep=alone)

    def normed():
        return build(wrap=DistributedDataParallel, layers=[torch.nn.BatchNorm1d(4)])

    def dropped():
        return build(wrap=DistributedDataParallel, layers=[torch.nn.Dropout(0.5)])

    def wide():
        return build(wrap=DistributedDataParallel, layers=[torch.nn.Linear(4, 4, bias=False)])

    def narrow():
        return build(wrap=DistributedDataParallel, hidden=8)

    def silent():
        return perfsuite.Step(lambda: None)

    def no_module():
        return build(keep=lambda step, model: perfsuite.Step(step, [model]))

    def nothing():
        return None
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with a training of its own."""
    pytester.makepyfile(training=TRAINING, mistakes=MISTAKES)
    pytester.makeini("[pytest]\nperf_device = cpu\nperf_timeout = 60\npythonpath = .\n")
    return pytester


def run(project: pytest.Pytester, test: str) -> pytest.RunResult:
    project.makepyfile(test_inner=test)
    return project.runpytest_inprocess("-p", "no:cacheprovider")


def cells_of(project: pytest.Pytester) -> dict[str, Any]:
    lines = (project.path / "results" / "cells.jsonl").read_text().splitlines()
    return {one["fullname"].rpartition("::")[2]: one for one in map(json.loads, lines)}


def test_a_parallel_step_of_ones_own_is_equivalent_to_one_process(
    project: pytest.Pytester,
) -> None:
    result = run(
        project,
        """
        import pytest
        import training

        @pytest.mark.parametrize(
            ("ours", "reference", "precision"),
            [
                ("ddp", "single", "fp32"),
                ("ddp_inside", "single_inside", "fp32"),
                ("by_hand", "single_adam", "fp32"),
                ("fsdp", "single", "fp32"),
                ("amp", "single_amp", "amp-bf16"),
                ("losses_alone", "single_alone", "fp32"),
                ("ddp", "single_alone", "fp32"),
                ("adam_alone", "single_adam", "fp32"),
                ("averaging", "single", "fp32"),
                ("averaging", "averaging", "fp32"),
                ("mixed", "mixed", "fp32"),
                ("hooked", "single", "fp32"),
                ("part_reduced", "part_alone", "fp32"),
                ("clipping", "clipping", "fp32"),
                ("several_updates", "several_updates", "fp32"),
            ],
        )
        def test_own(step_benchmark, ours, reference, precision):
            step_benchmark(
                getattr(training, ours), ranks=2, reference=getattr(training, reference),
                precision=precision, rounds=2, iterations=1,
            )

        def test_alone(step_benchmark):
            step_benchmark(training.single, rounds=2, iterations=1)
        """,
    )

    assert result.ret == 0, result.stdout.str()
    cells = cells_of(project)
    found = {}
    for name, cell in cells.items():
        numerics = cell["perfsuite"]["numerics"]
        found[name] = numerics["status"], numerics["check"], numerics["power"]
        assert (
            len(cell["perfsuite"]["losses"]) == 10
        )  # three to warm up, two rounds, and counted ones
    assert found == {
        "test_own[ddp-single-fp32]": ("equivalent", "T1", "5/5"),
        "test_own[ddp_inside-single_inside-fp32]": ("equivalent", "T1", "5/5"),
        "test_own[by_hand-single_adam-fp32]": ("equivalent", "T1", "5/5"),
        "test_own[fsdp-single-fp32]": ("equivalent", "T1", "5/5"),
        "test_own[amp-single_amp-amp-bf16]": ("equivalent", "T2", "4/4"),
        "test_own[losses_alone-single_alone-fp32]": ("equivalent", "T1", "4/4"),
        "test_own[ddp-single_alone-fp32]": ("equivalent", "T1", "4/4"),
        "test_own[adam_alone-single_adam-fp32]": ("no power", "T1", "2/4"),
        "test_own[averaging-single-fp32]": ("equivalent", "T1", "5/5"),
        "test_own[averaging-averaging-fp32]": ("equivalent", "T1", "5/5"),
        "test_own[mixed-mixed-fp32]": ("equivalent", "T1", "5/5"),
        "test_own[hooked-single-fp32]": ("equivalent", "T1", "5/5"),
        "test_own[part_reduced-part_alone-fp32]": ("no power", "T1", "5/5"),
        "test_own[clipping-clipping-fp32]": ("equivalent", "T1", "5/5"),
        "test_own[several_updates-several_updates-fp32]": ("equivalent", "T1", "5/5"),
        "test_alone": ("not exercised", "T1", None),
    }
    reasons = {name: cell["reason"] for name, cell in cells.items()}
    assert not [name for name, reason in reasons.items() if "several times" in (reason or "")]
    for name, reason in (
        ("test_alone", "no numerics: no reference= is given"),
        (
            "test_own[losses_alone-single_alone-fp32]",
            "no numerics of gradients and weights: build_step returns no Step.model",
        ),
        (
            "test_own[ddp-single_alone-fp32]",
            "no numerics of gradients and weights: the reference returns no Step.model",
        ),
        (
            "test_own[adam_alone-single_adam-fp32]",
            "no numerics: it does not find a planted bug: all gradients are doubled; all gradients "
            "are 1.0625 times too large; gradients and weights were not compared: build_step "
            "returns no Step.model",
        ),
        (
            "test_own[part_reduced-part_alone-fp32]",
            "no numerics: 2 parameters that an optimizer updates and Step.model does not have: "
            "nothing compares what is not in it",
        ),
    ):
        assert reason in reasons[name]
    result.stdout.fnmatch_lines(
        [
            "*workload*numerics*",
            "*ddp[[]ddp-single-fp32] * equivalent *",
            "*single * not exercised *",
            "NO POWER *[[]adam_alone-single_adam-fp32]: it does not find a planted bug: all "
            "gradients are doubled; *; gradients and weights were not compared: build_step returns "
            "no Step.model",
        ]
    )


LIMIT = "over the limit of *"
WRONG = {
    "summed": (
        "T1 mismatch: the gradient of '0.weight' differs at step 1 by 1.0e+00, over the limit of "
        "4.3e-05 (of one parameter, from 16 u sqrt(ws A), u 1.2e-07, ws 2, A 1); likeliest cause: "
        "gradients are summed over the 2 ranks and not divided by their number"
    ),
    "forgotten": (
        "T1 mismatch: the gradient of '2.bias' differs at step 1 on rank 1 by *, where equal bits "
        "are due (on all ranks); likeliest cause: the gradient of 2.bias is not reduced over the "
        "ranks"
    ),
    "unsynced": (
        "T1 mismatch: the gradient of '0.weight' differs at step 1 on rank 1 by *, where equal "
        "bits are due (on all ranks); likeliest cause: the gradients are not reduced over the ranks"
    ),
    "same_data": (
        "T1 mismatch: the gradient of * differs at step 1 by *; likeliest cause: the sampler gives "
        "all ranks the same data, unless the step reduces the loss itself"
    ),
    "scaled_rate": (
        "T1 mismatch: the update of * differs at step 1 by 1.0e+00, over the limit of *; likeliest "
        "cause: of the same gradients the reference makes other weights: another learning rate or "
        "optimizer, or weights that something else changes"
    ),
    "summed_alone": (
        "T1 mismatch: the loss differs at step 2 by *; likeliest cause: the loss before it agrees, "
        "so that the update in between does not; gradients and weights were not compared: "
        "build_step returns no Step.model"
    ),
    "spoilt_and_clipped": "T1 mismatch: the gradient of * differs at step 1 by *",
    "last_of_several": "T1 mismatch: the gradient of '2.bias (update 3)' differs at step 1 by *",
    "normed": "T1 mismatch: *; likeliest cause: BatchNorm: each rank, micro-batch or chunk is *",
}
REFUSED = {
    "wide": (
        "WorkloadError: Step.model trains 5 parameters in build_step and 4 in the reference, which "
        "are matched by name: only build_step's has 3.weight; build the same model in both, "
        "wrapped or not, its weights tied and frozen alike, or leave Step.model out"
    ),
    "no_module": "WorkloadError: no_module: Step.model is of the type list; *",
}


def test_a_step_that_computes_something_else_is_not_timed_and_its_mistake_is_named(
    project: pytest.Pytester,
) -> None:
    result = run(
        project,
        f"""
        import pytest
        import mistakes
        import training

        REFERENCES = {{
            "normed": lambda: training.build(layers=[training.torch.nn.BatchNorm1d(4)]),
            "spoilt_and_clipped": training.clipping,
            "last_of_several": training.several_updates,
        }}

        @pytest.mark.parametrize("ours", {[*WRONG, *REFUSED]})
        def test_wrong(step_benchmark, ours):
            step_benchmark(
                getattr(mistakes, ours), ranks=2, reference=REFERENCES.get(ours, training.single)
            )
        """,
    )

    assert result.ret == 1
    said = [
        line
        for name, text in WRONG.items()
        for line in (
            "EquivalenceError: not timed, because its numerics check fails: "
            f"{name} under 2 ranks, fp32: mismatch",
            text,
        )
    ]
    result.stdout.fnmatch_lines([*said, *REFUSED.values()])
    result.assert_outcomes(failed=len(WRONG) + len(REFUSED))


def test_what_cannot_be_compared_is_not_exercised_with_its_reason(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import mistakes
        import training

        def check(step_benchmark, ours, reference):
            outcome = step_benchmark(ours, ranks=2, reference=reference, rounds=1, iterations=1)
            assert outcome.record.numerics.status == "not exercised"
            return outcome.missing["numerics"]

        def test_dropout(step_benchmark):
            reference = lambda: training.build(layers=[training.torch.nn.Dropout(0.5)])
            assert check(step_benchmark, mistakes.dropped, reference) == (
                "the model has dropout (3), and ranks and reference draw different masks; build "
                "both with p=0"
            )

        def test_silent(step_benchmark):
            assert check(step_benchmark, mistakes.silent, training.single) == (
                "gradients and weights were not compared: build_step returns no Step.model; losses "
                "were not compared: build_step or the reference tells none"
            )

        def test_narrow(step_benchmark):
            outcome = step_benchmark(
                mistakes.narrow, reference=training.single, ranks=2, rounds=1, iterations=1
            )
        """,
    )

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "T1 mismatch: the loss differs at step 1 by *; likeliest cause: a loss is not the "
            "mean over the samples, or weights or samples are others; gradients and weights were "
            "not compared: '0.weight' has the shape (8, 8) on the ranks and (16, 8) in the "
            "reference: parts that are no DTensor cannot be put together",
        ]
    )
