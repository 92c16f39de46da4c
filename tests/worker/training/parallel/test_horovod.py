from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode

from perfsuite import Recipe, RecipeError, Workload
from perfsuite.errors import NotExercisedError
from perfsuite.records.stages import untimed
from perfsuite.worker.training.step import train_step
from perfsuite.worker.training.trainer import build_trainer, choose_strategy

CPU = torch.device("cpu")
EPS = torch.finfo(torch.float32).eps


def weights_after_building_from_own_seeds(workload: Workload) -> dict[str, torch.Tensor]:
    """A rank's weights, where every rank was built from different random numbers."""
    recipe = Recipe(parallel="horovod-like:2")
    trainer = build_trainer(workload, recipe, device=CPU, seed=1 + dist.get_rank())
    return {name: tensor.detach() for name, tensor in trainer.module.state_dict().items()}


def collectives_of_each_micro_batch(workload: Workload) -> list[int]:
    recipe = Recipe(parallel="horovod-like:2", grad_accumulation_steps=3)
    trainer = build_trainer(workload, recipe, device=CPU, seed=1)
    inputs, target = torch.randn(8, 1, 4, 4), torch.arange(8) % 4
    counts = []
    for index in range(3):
        with CommDebugMode() as collectives:
            trainer.strategy.run_micro_batch(
                trainer, inputs, target, is_last=index == 2, stage=untimed
            )
        counts.append(collectives.get_total_counts())
    trainer.strategy.finish_gradients()
    return counts


def build_with_transposed_weights(workload: Workload) -> float:
    """Broadcast the weights as NCCL does, which refuses tensors with gaps or another order."""
    broadcast = dist.broadcast

    def as_nccl(tensor: torch.Tensor, **options: Any) -> None:
        if not tensor.is_contiguous():
            raise ValueError("Tensors must be contiguous")
        broadcast(tensor, **options)

    dist.broadcast = as_nccl
    strategy = choose_strategy(workload, Recipe(parallel="horovod-like:2"), device=CPU)
    model = nn.Linear(3, 4)
    with torch.no_grad():
        model.weight.set_(torch.full((3, 4), float(dist.get_rank())).t())
    strategy.wrap(model)
    assert not model.weight.is_contiguous()
    return float(model.weight.sum())


def test_weights_in_any_order_of_memory_are_rank_0s(rank_group: Any, make_image: Any) -> None:
    assert rank_group(2, build_with_transposed_weights, make_image()) == [0.0, 0.0]


class FakeOptimizer(torch.optim.SGD):
    """Logs the calls of `horovod.torch.DistributedOptimizer`."""

    def __init__(self, optimizer: Any, log: list[Any], **options: Any) -> None:
        super().__init__(optimizer.param_groups, lr=0.1)
        self.log = log
        self.is_skipping = False
        options["named_parameters"] = [name for name, _ in options["named_parameters"]]
        self.log.append(options)

    def synchronize(self) -> None:
        self.log.append("synchronize")

    @contextmanager
    def skip_synchronize(self) -> Any:
        self.is_skipping = True
        yield
        self.is_skipping = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert self.is_skipping
        self.log.append("step")
        super().step(closure)


class FakeServer:
    def start(self) -> int:
        return 4321

    def init(self, plan: Any) -> None:
        assert plan == ["localhost:1", 1]


def install_fake_horovod(num_ranks: int) -> list[Any]:
    """Let `import horovod.torch` find a package that logs its calls in the returned list."""
    log: list[Any] = []
    package = SimpleNamespace(
        init=lambda: log.append("init"),
        size=lambda: num_ranks,
        broadcast_parameters=lambda state, root_rank: log.append(["broadcast", *state]),
        DistributedOptimizer=lambda optimizer, **options: FakeOptimizer(optimizer, log, **options),
    )
    hosts = SimpleNamespace(
        parse_hosts=lambda text: text, get_host_assignments=lambda *arguments: list(arguments)
    )
    modules: dict[str, Any] = {
        "horovod.torch": package,
        "horovod.runner.common.util.hosts": hosts,
        "horovod.runner.http.http_server": SimpleNamespace(RendezvousServer=FakeServer),
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(vars(content))
        for end in range(1, name.count(".") + 1):
            parent = ".".join(name.split(".")[:end])
            sys.modules.setdefault(parent, ModuleType(parent))
        sys.modules[name] = module
    return log


def train_with_fake_horovod(workload: Workload) -> list[Any]:
    log = install_fake_horovod(num_ranks=1)
    recipe = Recipe(parallel="horovod:1", grad_accumulation_steps=2, clip_grad_norm=1.0)
    trainer = build_trainer(workload, recipe, device=CPU, seed=1)
    batches = [(torch.ones(8, 16), torch.arange(8) % 4)] * 2
    train_step(trainer, iter(batches), untimed)
    return log


def refusal_of_master_weights(workload: Workload) -> str:
    install_fake_horovod(num_ranks=1)
    recipe = Recipe(parallel="horovod:1", precision="O2")
    with pytest.raises(RecipeError) as raised:
        build_trainer(workload, recipe, device=CPU, seed=1)
    return str(raised.value)


def refusal_of_another_size(workload: Workload) -> str:
    install_fake_horovod(num_ranks=3)
    with pytest.raises(NotExercisedError) as raised:
        choose_strategy(workload, Recipe(parallel="horovod:1"), device=CPU)
    return str(raised.value)


def refusal_without_the_package(workload: Workload) -> str:
    with pytest.raises(NotExercisedError) as raised:
        choose_strategy(workload, Recipe(parallel="horovod:1"), device=CPU)
    return str(raised.value)


@pytest.fixture
def linear_workload(make_image: Any) -> Workload:
    return make_image(build_model=lambda: nn.Sequential(nn.Linear(16, 4)), blocks=None)


@pytest.mark.parametrize(
    ("precision", "checkpointing"),
    [("fp32", "none"), ("amp-bf16", "every-block"), ("O2", "segments:2"), ("bf16", "selective")],
)
def test_two_ranks_compute_bitwise_what_one_process_computes_of_their_shards(
    train_on_ranks: Any,
    reference: Any,
    worst_error: Any,
    make_text: Any,
    precision: str,
    checkpointing: str,
) -> None:
    workload = make_text(dropout=0.2)
    recipe = Recipe(
        parallel="horovod-like:2",
        precision=precision,
        checkpointing=checkpointing,
        grad_accumulation_steps=2,
    )

    runs = train_on_ranks(workload, recipe)

    expected = reference(workload, recipe)
    for run in runs:
        assert worst_error(run.gradients, expected.gradients) == 0.0
        assert worst_error([run.parameters], [expected.parameters]) == 0.0


def test_three_ranks_agree_to_rounding(
    train_on_ranks: Any, reference: Any, worst_error: Any, make_image: Any
) -> None:
    recipe = Recipe(parallel="horovod-like:3", clip_grad_norm=0.1)

    runs = train_on_ranks(make_image(), recipe)

    expected = reference(make_image(), recipe)
    for run in runs:
        assert worst_error(run.gradients, expected.gradients) < 2 * EPS * 3**0.5


def test_all_ranks_start_from_the_weights_of_the_first(rank_group: Any, make_image: Any) -> None:
    first, second = rank_group(2, weights_after_building_from_own_seeds, make_image())

    assert all(torch.equal(first[name], second[name]) for name in first)


def test_accumulation_reduces_in_the_last_micro_batch_alone(
    rank_group: Any, make_image: Any
) -> None:
    num_parameters = len(list(make_image().build_model().parameters()))

    counts = rank_group(2, collectives_of_each_micro_batch, make_image())

    assert counts == [[0, 0, num_parameters]] * 2


def test_gradients_in_another_memory_format_are_averaged(
    train_on_ranks: Any, reference: Any, worst_error: Any, make_image: Any
) -> None:
    model_class = type(make_image().build_model())
    workload = make_image(build_model=lambda: model_class().to(memory_format=torch.channels_last))
    recipe = Recipe(parallel="horovod-like:2")

    runs = train_on_ranks(workload, recipe)

    expected = reference(workload, recipe)
    assert worst_error(runs[0].gradients, expected.gradients) < 2 * EPS * 2**0.5


def test_the_package_is_called_as_its_manual_says(
    rank_group: Any, linear_workload: Workload
) -> None:
    (log,) = rank_group(1, train_with_fake_horovod, linear_workload)

    assert log == [
        "init",
        ["broadcast", "0.weight", "0.bias"],
        {"named_parameters": ["0.weight", "0.bias"], "backward_passes_per_step": 2},
        "synchronize",
        "step",
    ]


def test_master_weights_are_refused_under_the_package(
    rank_group: Any, linear_workload: Workload
) -> None:
    (message,) = rank_group(1, refusal_of_master_weights, linear_workload)

    assert message == (
        "precision 'O2' cannot be combined with parallel 'horovod:1': Horovod's hooks sit on the "
        "parameters that are stepped, and master weights are copies; use parallel='horovod-like:1'"
    )


def test_a_package_that_sees_other_ranks_is_refused(
    rank_group: Any, linear_workload: Workload
) -> None:
    (message,) = rank_group(1, refusal_of_another_size, linear_workload)

    assert message == (
        "parallel 'horovod:1': horovod sees 3 ranks instead of 1; is it built with gloo "
        "(`horovodrun --check-build`)?"
    )


@pytest.mark.skipif(
    importlib.util.find_spec("horovod") is not None, reason="the package horovod is installed"
)
def test_a_package_that_cannot_be_imported_is_not_exercised(
    rank_group: Any, linear_workload: Workload
) -> None:
    (message,) = rank_group(1, refusal_without_the_package, linear_workload)

    assert message == (
        "parallel 'horovod:1' needs the package horovod, which cannot be imported: No module named "
        "'horovod'"
    )
