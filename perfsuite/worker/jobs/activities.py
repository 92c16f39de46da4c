"""What one iteration of a cell is: a step, a loaded or evaluated batch, a reduction."""

import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from perfsuite.errors import PerfsuiteError, WorkloadError
from perfsuite.ranks.messages import COUNTED, RankStart, RunCell
from perfsuite.ranks.pickling import unpack
from perfsuite.records.cell import NUM_FIRST_LOSSES, TensorDigest
from perfsuite.records.stages import Stage
from perfsuite.records.workload import Split, load_workload
from perfsuite.worker.jobs.loader_workers import open_batches
from perfsuite.worker.measure.clock import largest_over_ranks, start_together
from perfsuite.worker.measure.counters import compiles_itself, read_compilation
from perfsuite.worker.measure.dispatch import tensors_in
from perfsuite.worker.measure.iterations import Iterations, run_iterations
from perfsuite.worker.training.loaders import EpochBatches
from perfsuite.worker.training.nonfinite import check_finite
from perfsuite.worker.training.step import evaluate_batch, train_step
from perfsuite.worker.training.trainer import Trainer, build_trainer

# Counts that threads hide from the dispatcher.
HIDDEN_IN_THREADS = (
    *("flops", "model_flops", "ops", "saved_activation_bytes", "collectives", "collective_bytes"),
)


class Losses:
    """The first ones, later ones whose number is a power of two, and the last, by their step."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._kept: dict[int, Any] = {}
        self._last: dict[int, Any] = {}
        self._num_told = 0

    def add(self, losses: Iterable[Any]) -> None:
        """Hear of the next steps; of one that tells no loss it is None."""
        for loss in losses:
            self.num_steps += 1
            if loss is not None:
                self._num_told += 1
                self._last = {self.num_steps: loss}
                if self._num_told <= NUM_FIRST_LOSSES or self._num_told.bit_count() == 1:
                    self._kept |= self._last

    def by_step(self) -> dict[int, float] | None:
        """Return what is kept; None where no loss was told."""
        return {step: float(loss) for step, loss in (self._kept | self._last).items()} or None


class Activity(ABC):
    """One kind of iteration; `missing` says why numbers of the record are None, by name."""

    steps_per_epoch: Fraction | None = None  # None if the loader never starts again
    global_batch_size: int | None = None  # over all ranks; None without samples
    is_counted = True  # it runs operators that are worth counting
    frees_late = False  # its collectives have streams that use what it has given back
    model: Any = None  # whose buffers the loss of no training step need show
    # DDP's first step uses one bucket and rebuilds its buckets after it; optimizers make their
    # state in the first step. The third is the first that is like all later ones.
    num_warmup = 3
    others_per_step = 0.0  # steps of optimizers that end none
    num_steps: int | None = None  # to time, after which there are two more; None for any number

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        self.losses = Losses()

    @abstractmethod
    def run(self, asked: Iterations[None], begin_step: Callable[[], None]) -> None:
        """Do the iterations that a measurement asks for; `begin_step` is called before each."""

    def check(self) -> None:  # noqa: B027  # most have nothing to check
        """Raise if an iteration since the last check went wrong; never called in a timed round."""

    def start_together(self) -> None:
        """Return when all ranks have called this."""
        start_together()

    def largest_over_ranks(self, values: Sequence[float], device: torch.device) -> list[float]:
        """Return the largest of each value over all ranks, which all call this."""
        return largest_over_ranks(values, device)

    def end(self, num_rounds: int) -> dict[str, str]:
        """Return further numbers that are missing, and why; raises after too few rounds."""
        return {}

    def state(self) -> object:
        """Return what stays equal from one iteration to the next once they are alike."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])

    def digests(self) -> dict[int, tuple[TensorDigest, ...]]:
        """Return those of this rank's weights after some steps, by step; none if not asked."""
        return {}

    def held_tensors(self) -> Iterator[Tensor]:
        """Return the tensors that live before, during and after an iteration."""
        return iter(())


class Repeatable(Activity):
    """An iteration that can be repeated at will."""

    @abstractmethod
    def iterate(self, stage: Stage) -> None:
        """Do one iteration, handing its stages to `stage`."""

    def run(self, asked: Iterations[None], begin_step: Callable[[], None]) -> None:
        """Repeat the iteration as often as is asked for."""

        def iterate(stage: Stage) -> None:
            begin_step()
            self.iterate(stage)

        run_iterations(asked, iterate)


def held_by(model: Any, optimizer: Any) -> Iterator[Tensor]:
    """Yield the tensors of a model and its optimizer, None of either included."""
    if model is not None:
        for parameter in model.parameters():
            yield from tensors_in(parameter, parameter.grad)
        yield from tensors_in(list(model.buffers()))
    while optimizer is not None:
        yield from tensors_in([group["params"] for group in optimizer.param_groups])
        yield from tensors_in(list(optimizer.state.values()))
        inner = getattr(optimizer, "optim", None)  # has the state of a ZeroRedundancyOptimizer
        optimizer = inner if isinstance(inner, Optimizer) else None


@contextmanager
def start_activity(job: RunCell, start: RankStart, device: torch.device) -> Iterator[Activity]:
    """Build the activity of a job without a user's code; its loader workers are gone afterwards."""
    if job.activity == "all_reduce":
        assert job.message_bytes is not None
        yield _AllReduce(job.message_bytes, device)
        return
    recipe = job.recipe
    assert job.workload is not None
    assert recipe is not None
    workload = load_workload(unpack(job.workload))
    trainer = None
    if job.activity != "load":
        trainer = build_trainer(workload, recipe, device=device, seed=start.seed)
    split: Split = "train"
    if job.activity == "evaluate":
        split = "test" if workload.has_split("test") else "validation"
    shard = recipe.plan.shard_of(start.rank), recipe.plan.data_parallel_size
    # A smaller batch would be timed, and counted, as a full one.
    with open_batches(workload, recipe, shard, device, start, split, drops_last=True) as batches:
        if trainer is None:
            yield _Load(batches)
        else:
            yield _OnModel(trainer, batches, trains=job.activity == "train")


class _OnModel(Repeatable):
    """A training step, or a batch that is evaluated."""

    def __init__(self, trainer: Trainer, batches: EpochBatches, *, trains: bool) -> None:
        super().__init__()
        num_micro_batches = trainer.recipe.grad_accumulation_steps if trains else 1
        self._take = train_step if trains else evaluate_batch
        self._unchecked: list[Tensor] = []
        self.trainer, self.model = trainer, trainer.module
        self.batches = batches
        self.steps_per_epoch = Fraction(batches.steps_per_epoch, num_micro_batches)
        self.global_batch_size = batches.step_size * num_micro_batches
        self.frees_late = trainer.recipe.comm_hook != "none"
        if trainer.recipe.plan.properties.runs_threads:
            reason = "DataParallel's replicas run in threads of their own"
            self.missing = dict.fromkeys(HIDDEN_IN_THREADS, reason)
        if not trains:
            self.missing["saved_activation_bytes"] = "an evaluation has no backward pass"

    def iterate(self, stage: Stage) -> None:
        if (loss := self._take(self.trainer, self.batches, stage)) is not None:
            self._unchecked.append(loss)

    def state(self) -> object:
        # A step whose gradients overflow is skipped, and lowers the scale.
        return super().state(), self.trainer.scaler.get_scale()

    def held_tensors(self) -> Iterator[Tensor]:
        return held_by(self.trainer.module, self.trainer.optimizer)

    def check(self) -> None:
        check_finite(self.trainer, self._unchecked, first_step=self.losses.num_steps + 1)
        self.losses.add(self._unchecked)
        self._unchecked.clear()

    def end(self, num_rounds: int) -> dict[str, str]:
        if read_compilation() is None or compiles_itself(self.model):
            return {}
        return {"numerics": "the training calls compiled functions, which its proof ran uncompiled"}


class _Load(Repeatable):
    """A batch out of the loader, and nothing done with it; a failing loader raises by itself."""

    is_counted = False

    def __init__(self, batches: EpochBatches) -> None:
        super().__init__()
        self._batches = batches
        self.steps_per_epoch = Fraction(batches.steps_per_epoch)
        self.global_batch_size = batches.step_size
        self.missing = dict.fromkeys(COUNTED, "loading alone runs no training step")

    def iterate(self, stage: Stage) -> None:
        with stage("load"):
            next(self._batches)


class _AllReduce(Repeatable):
    """One sum over all ranks of a float32 tensor of a given size, proven once at the start."""

    def __init__(self, message_bytes: int, device: torch.device) -> None:
        super().__init__()
        num_elements = max(1, message_bytes // torch.float32.itemsize)
        self._tensor = torch.full((num_elements,), dist.get_rank() + 1.0, device=device)
        self.missing = {"saved_activation_bytes": "an all_reduce has no forward pass"}
        world_size = dist.get_world_size()
        expected = world_size * (world_size + 1) / 2
        dist.all_reduce(self._tensor)
        if not bool((self._tensor == expected).all()):
            found = float(self._tensor[0])
            raise PerfsuiteError(f"all_reduce of 1..{world_size} gave {found}, not {expected}")
        self._tensor.zero_()  # sums stay finite however often they are repeated

    def iterate(self, stage: Stage) -> None:
        dist.all_reduce(self._tensor)

    def held_tensors(self) -> Iterator[Tensor]:
        return iter((self._tensor,))


def keep_loss(loss: Tensor) -> float | Tensor:
    """Return what a loss is now: the user may go on with the tensor, as with a running sum."""
    # Within a step of 5 ms a copy takes 30 to 50 us longer than a value, which is there on a CPU.
    is_there = loss.is_cpu and type(loss) is Tensor and not torch.compiler.is_compiling()
    return loss.item() if is_there else loss.detach().clone()


@contextmanager
def staying(what: str) -> Iterator[None]:
    """Refuse a step that would end the rank."""
    try:
        yield
    except SystemExit as ended:
        raise WorkloadError(f"{what} ended by {describe_exit(ended)}; have it return") from ended


def describe_exit(ended: SystemExit) -> str:
    """Return what a SystemExit says, and where it was raised."""
    place = traceback.extract_tb(ended.__traceback__)[-1]
    told = f"sys.exit({ended.code!r}) at {place.filename}:{place.lineno}"
    if place.filename.endswith("argparse.py"):
        told += " for its arguments: sys.argv has none here; set it, or have a function take them"
    return told
