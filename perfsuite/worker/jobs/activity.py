"""What a measurement needs of what it measures: iterations, one by one. Runs in a rank."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from perfsuite.records.cell import TensorDigest
from perfsuite.records.stages import Stage
from perfsuite.worker.measure.clock import largest_over_ranks, start_together
from perfsuite.worker.measure.dispatch import tensors_in
from perfsuite.worker.measure.iterations import Iterations, run_iterations

# Enough to see a loss fall; every cell runs at least as many steps with the default rounds.
NUM_RECORDED_LOSSES = 10


class Activity(ABC):
    """One kind of iteration.

    Attributes:
        steps_per_epoch: Iterations until the loader starts again; None if it never does.
        global_batch_size: Samples of one iteration over all ranks; None without samples.
        is_counted: Whether the iteration runs operators that are worth counting.
        num_warmup: Untimed iterations before the first round.
        num_steps: Iterations to time, after which there are two more; None for any number.
        missing: Why numbers of the record are None, by name; more may be found while it runs.
    """

    steps_per_epoch: int | None = None
    global_batch_size: int | None = None
    is_counted = True
    # DDP's first step uses one bucket and rebuilds its buckets after it; optimizers make their
    # state in the first step. The third is the first that is like all later ones.
    num_warmup = 3
    num_steps: int | None = None
    missing: dict[str, str]

    @abstractmethod
    def run(self, asked: Iterations[None], begin_step: Callable[[], None]) -> None:
        """Do the iterations that a measurement asks for; `begin_step` is called before each."""

    def check(self) -> None:  # noqa: B027  # most have nothing to check
        """Raise if an iteration since the last check went wrong; never called in a timed round."""

    def start_together(self) -> None:
        """Return when all ranks have called this."""
        start_together()

    def largest_over_ranks(self, values: list[float], device: torch.device) -> list[float]:
        """Return the largest of each value over all ranks, which all call this."""
        return largest_over_ranks(values, device)

    def end(self, num_rounds: int) -> dict[str, str]:
        """Return further numbers that are missing, and why; raises after too few rounds."""
        return {}

    def state(self) -> object:
        """Return what stays equal from one iteration to the next once they are alike."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])

    def first_losses(self) -> tuple[float, ...] | None:
        """Return the losses of the first steps; None where this rank holds none."""
        return None

    def first_weights(self) -> tuple[tuple[TensorDigest, ...], ...]:
        """Return the digests of this rank's weights after its first steps; none if not asked."""
        return ()

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


def hidden_by_compile() -> dict[str, str]:
    """Return what cannot be counted of a compiled model, with the reason."""
    # torch.compile is off under a dispatch mode, so eager operators would be counted. The memory of
    # an accelerator is its allocator's to count, and its kernels are chosen by their time.
    on_accelerator = torch.accelerator.is_available()
    others = ("kernel_launches",) if on_accelerator else ("saved_activation_bytes", "memory")
    return dict.fromkeys(
        ("flops", "model_flops", "ops", *others), "a compiled model cannot be watched"
    )


def held_by(model: Any, optimizer: Any) -> Iterator[Tensor]:
    """Yield the tensors of a model and its optimizer, None of either included."""
    if model is not None:
        for parameter in model.parameters():
            yield from tensors_in(parameter, parameter.grad)
        yield from tensors_in(list(model.buffers()))
    if optimizer is not None:
        yield from tensors_in([group["params"] for group in optimizer.param_groups])
        yield from tensors_in(list(optimizer.state.values()))
