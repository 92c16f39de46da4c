"""Record what a training run does on this rank, through the same step that is timed.

The recorder wraps the trainer's strategy and batches, so no part of the step is written a second
time. Tensors are copied during the run and compared between ranks only after it, so that no
collective of the recording can wait for one that the run forgot.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from perfsuite.errors import WorkloadError
from perfsuite.records.stages import untimed
from perfsuite.worker.dtensor import local_tensor
from perfsuite.worker.equivalence.comparison import Tensors
from perfsuite.worker.equivalence.trace import trace
from perfsuite.worker.equivalence.trace.draws import DrawRecorder, read_random_state
from perfsuite.worker.measure.clock import largest_over_ranks
from perfsuite.worker.measure.counters import compiles_itself
from perfsuite.worker.training.batches import map_tensors
from perfsuite.worker.training.loaders import EpochBatches
from perfsuite.worker.training.parallel.strategy import Strategy
from perfsuite.worker.training.step import train_step
from perfsuite.worker.training.trainer import Trainer

# A dynamic scale starts at 2**16 and each skipped step halves it; 2**8 is within the range of
# scales that Micikevicius et al. 2018, section 4, needed (8 to 32000).
_MAX_SKIPPED_STEPS = 8
# Two epochs of few samples may have the same order by chance: of 13 at least, once in 13! = 6e9. So
# many of fewer are equal once in 2**30, for there are two orders at least.
_FEW_SAMPLES = 12
_EPOCHS_OF_FEW_SAMPLES = 31


def record_run(
    trainer: Trainer, batches: Iterator[Any], *, num_steps: int, on_step: Callable[[], None]
) -> trace.RankTrace:
    """Train until `num_steps` optimizer steps were taken, and return what this rank saw of them.

    A collective. DTensors still hold this rank's shard; `share_trace` completes them. The trainer
    is freshly built and not used again; `batches` do not end. Fewer steps are recorded if the
    scaler skips too many. `on_step` is called before each step, to show progress.
    """
    recorder = _Recorder(trainer)
    trainer.strategy = cast(Strategy, recorder)
    start, scaler = recorder.weights, trainer.scaler
    steps: list[trace.RankStep] = []
    num_skipped, before = 0, None
    while len(steps) < num_steps and num_skipped < _MAX_SKIPPED_STEPS:
        on_step()
        scale = scaler.get_scale()
        recorder.micro_batches, recorder.gradients = [], {}
        loss = train_step(trainer, recorder.keep(batches), untimed)
        recorder.weights = weights = trace.read_weights(trainer.module)
        if not _agree(trainer, scaler.get_scale() >= scale):
            num_skipped, before = num_skipped + 1, weights
            continue
        # All if one changed, so that ranks with parts of them agree.
        new = weights.buffers
        is_same = all(
            name in new and torch.equal(local_tensor(old), local_tensor(new[name]))
            for name, old in recorder.buffers.items()
        )
        taken = trace.RankStep(
            micro_batches=recorder.micro_batches,
            loss=None if loss is None else float(loss),
            scale=scale,
            gradients=recorder.gradients,
            before=before,
            after=weights,
            unstepped={} if is_same else recorder.buffers,
        )
        steps.append(taken)
        before = None
    grads = ((name, one.grad) for name, one in trainer.module.named_parameters())
    sparse = {name: grad for name, grad in grads if grad is not None and grad.is_sparse}
    return trace.RankTrace(
        batches=recorder.batches,
        sparse={name: _most_pieces(grad) for name, grad in sparse.items()},
        shard_index=trainer.strategy.shard_index,
        start=start,
        steps=steps,
        num_skipped=num_skipped,
        num_calls=None if recorder.draws is None else recorder.draws.num_calls,
        communicating=frozenset(recorder.draws.communicating if recorder.draws else ()),
        bucket_layout=getattr(trainer.strategy, "bucket_layout", []),
    )


def _most_pieces(grad: torch.Tensor) -> int:
    """Into how many pieces a row of a sparse gradient is parted at most, as words come again."""
    indices = grad._indices()
    counts = torch.unique(indices, dim=1, return_counts=True)[1] if indices.numel() else indices
    return max(counts.flatten().tolist(), default=1)


def read_epochs(batches: EpochBatches) -> list[list[list[int]]]:
    """Return the indices of each batch of the epochs that were loaded, or of a few more.

    So many that a sampler which shuffles draws another order in one of them.
    """
    are_few = batches.steps_per_epoch * batches.step_size <= _FEW_SAMPLES
    num_epochs = max(batches.epoch + 1, _EPOCHS_OF_FEW_SAMPLES if are_few else 2)
    return [batches.indices(epoch) for epoch in range(num_epochs)]


class _Recorder:
    """The trainer's strategy, which also keeps what the last step saw, and all batches."""

    def __init__(self, trainer: Trainer) -> None:
        self.batches: list[Any] = []
        self.micro_batches: list[trace.MicroBatch] = []
        self.gradients: Tensors = {}
        self.buffers: Tensors = {}
        self.weights = trace.read_weights(trainer.module)  # after the last step
        self._trainer, self._inner = trainer, trainer.strategy
        mode = trainer.recipe.plan.properties
        self.draws: DrawRecorder | None = None
        # Neither a compiled model nor another thread shows its operators.
        if not (compiles_itself(trainer.module) or mode.runs_threads):
            entries = trainer.strategy.entry_modules(trainer.module)
            # Rank r of a pipeline has the stages r, r + world_size, ...
            first, step = (dist.get_rank(), dist.get_world_size()) if mode.cuts_model else (0, 0)
            stages = [first + n * step for n in range(len(entries))]
            self.draws = DrawRecorder(entries, stages, trainer.device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run_micro_batch(self, *args: Any, **kwargs: Any) -> Tensor | None:
        state = read_random_state(self._trainer.device)
        with nullcontext() if self.draws is None else self.draws.micro_batch() as draws:
            loss = self._inner.run_micro_batch(*args, **kwargs)
        taken = trace.MicroBatch(batch=self.batches[-1], random_state=state, draws=draws)
        self.micro_batches.append(taken)
        return loss

    def finish_gradients(self) -> None:
        self._inner.finish_gradients()
        self.gradients = trace.read_gradients(self._trainer.module)
        self.buffers = trace.read_left(self._trainer.module, self.weights.parameters)

    def keep(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self.batches.append(map_tensors(batch, _copy))
            yield batch


def _copy(tensor: Tensor) -> Tensor:
    if tensor.is_nested or tensor.layout is not torch.strided:
        raise WorkloadError(
            "a batch holds a sparse or nested tensor, which the proof cannot divide into samples; "
            "use dense tensors, or leave out the proof (--perf-numerics=off)"
        )
    return tensor.cpu().clone()  # a model may change its inputs in place


def _agree(trainer: Trainer, was_taken: bool) -> bool:
    """Whether all ranks took the step, so that every rank records the same number of steps."""
    if not trainer.scaler.is_enabled():
        return was_taken
    return not any(largest_over_ranks([not was_taken], trainer.device))
