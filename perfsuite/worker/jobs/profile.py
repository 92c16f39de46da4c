"""How a training is profiled on one rank: epochs under the clock, then some steps under a profiler.

Runs in a rank, with torch. Must not know how ranks are combined, nor what a report shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from perfsuite.ranks.bootstrap import loader_worker_entry
from perfsuite.ranks.messages import (
    EpochProfiled,
    ProfilerOutput,
    ProfileTaken,
    RankStart,
    RunProfile,
)
from perfsuite.ranks.pickling import unpack
from perfsuite.ranks.progress import BoardWriter
from perfsuite.records.profile import Communication, RankUsage
from perfsuite.records.stages import Stage
from perfsuite.records.workload import Split, load_workload
from perfsuite.system.usage import UsageLog, open_meter
from perfsuite.worker.jobs.process import own_device
from perfsuite.worker.measure.clock import DeviceClock
from perfsuite.worker.measure.operators import (
    costliest_operators,
    describe_memory,
    describe_operators,
    measure_communication,
    profile_iterations,
    read_trace,
)
from perfsuite.worker.measure.stages import StageClock
from perfsuite.worker.training.build import build_trainer, seed_random_numbers
from perfsuite.worker.training.evaluation import MetricSums, Tally, evaluate_split
from perfsuite.worker.training.loaders import EpochBatches, build_batches
from perfsuite.worker.training.nonfinite import gradients_are_finite
from perfsuite.worker.training.step import train_step
from perfsuite.worker.training.trainer import Trainer

# A trace of more is hard to look at; the first of them may still start loader workers.
_NUM_PROFILED_STEPS = 3

EvaluatedSplit = Literal["validation", "test"]


def take_profile(job: RunProfile, start: RankStart, board: BoardWriter) -> ProfileTaken:
    """Return where this rank's time went.

    On a GPU the device is waited for at the border of every stage, so that work counts where it
    was asked for, and the stages are disjoint; loading then overlaps with nothing but loader
    workers, and the whole takes a little longer than it would unwatched. The watch for infinite
    gradients is in no time at all.
    """
    board.enter_phase("build")
    device = own_device(start)
    workload = load_workload(unpack(job.workload))
    trainer = build_trainer(workload, job.recipe, device=device, seed=job.seed)
    split, why_not = _evaluated_split(trainer)
    with ExitStack() as stack:
        training = stack.enter_context(_batches(trainer, "train", job, start))
        evaluated = (
            None if split is None else stack.enter_context(_batches(trainer, split, job, start))
        )
        seed_random_numbers(job.seed + trainer.strategy.shard_index)
        course = _Course(trainer, training, evaluated, board)
        meter = stack.enter_context(open_meter(_gpu_uuid(device)))
        board.enter_phase("measure")
        _start_together()
        usage = None if meter is None else UsageLog(meter)
        epochs = course.run(job.num_epochs)
        samples = () if usage is None else usage.stop()
        board.enter_phase("count")
        # All ranks, for they wait for each other; one of them has something to say.
        profiler = course.profile_steps()
        output = course.describe(profiler, Path(start.folder)) if start.rank == 0 else None
    return ProfileTaken(
        wall_s=sum(epoch.duration_s for epoch in epochs),
        epochs=epochs,
        evaluated_split=split,
        usage=RankUsage(rank=start.rank, device=str(device), samples=samples),
        output=output,
        missing=_missing(why_not, course, usage),
    )


class _Course:
    """One rank's training on its way through epochs and profiled steps."""

    def __init__(
        self,
        trainer: Trainer,
        training: EpochBatches,
        evaluated: EpochBatches | None,
        board: BoardWriter,
    ) -> None:
        self.why_no_accuracy: str | None = None
        self.why_no_communication: str | None = None
        self._trainer = trainer
        self._training = training
        self._evaluated = evaluated
        self._board = board
        self._clock = DeviceClock(trainer.device)
        # The host's clock everywhere: it waits for the device before it is read.
        self._stages = StageClock(
            torch.device("cpu"), on_enter=board.enter_stage, clock=self._clock
        )
        self._num_steps = max(1, training.steps_per_epoch // trainer.recipe.grad_accumulation_steps)

    def run(self, num_epochs: int) -> tuple[EpochProfiled, ...]:
        """Train and evaluate, epoch after epoch."""
        began_s = self._clock()
        epochs = []
        for _ in range(num_epochs):
            losses, finite_gradients = self._train()
            score = self._evaluate()
            # Read inside of the epoch, because a training that shows its loss waits for it too.
            values = tuple(torch.stack(losses).tolist()) if losses else ()
            are_finite = torch.stack(finite_gradients).tolist()
            counts = score.take() if isinstance(score, Tally) else None
            sums, num_scored = score.take() if isinstance(score, MetricSums) else ({}, 0)
            ended_s = self._clock()
            epochs.append(
                EpochProfiled(
                    duration_s=ended_s - began_s,
                    stages_s=self._stages.collect(),
                    losses=values,
                    first_bad_loss=_first_false([value - value == 0.0 for value in values]),
                    first_bad_gradient=_first_false(are_finite),
                    num_right=None if counts is None else counts[0],
                    num_there=None if counts is None else counts[1],
                    metric_sums=sums,
                    num_scored=num_scored,
                )
            )
            began_s = ended_s
        return tuple(epochs)

    def profile_steps(self) -> torch.profiler.profile:
        """Run a few more steps under `torch.profiler`."""
        return profile_iterations(
            self._step, self._trainer.device, num_iterations=_NUM_PROFILED_STEPS, with_memory=True
        )

    def describe(self, profiler: torch.profiler.profile, folder: Path) -> ProfilerOutput:
        """Say what the profiler saw; `folder` is for a file on the way."""
        device = self._trainer.device
        averages = profiler.key_averages()
        return ProfilerOutput(
            operators=costliest_operators(averages, device),
            num_steps=_NUM_PROFILED_STEPS,
            communication=self._communication(profiler),
            trace=read_trace(profiler, folder),
            operator_table=describe_operators(averages, device),
            memory_summary=describe_memory(averages, device),
        )

    def _communication(self, profiler: torch.profiler.profile) -> Communication | None:
        recipe = self._trainer.recipe
        if not recipe.plan.needs_group:
            self.why_no_communication = "one process communicates with nobody"
            return None
        # A rank receives what another still computes: its wait is no communication.
        if recipe.plan.properties.cuts_model:
            self.why_no_communication = (
                f"parallel {recipe.parallel!r}: a stage that waits for another's computation "
                "cannot be told from one that communicates"
            )
            return None
        events = profiler.events() or ()  # type: ignore[no-untyped-call]
        found = measure_communication(events, self._trainer.device)
        self.why_no_communication = "no collective was seen" if found is None else None
        return found

    def _step(self, stage: Stage) -> None:
        self._board.begin_step()
        train_step(self._trainer, self._training, stage)

    def _train(self) -> tuple[list[Tensor], list[Tensor]]:
        losses, finite_gradients = [], []
        for _ in range(self._num_steps):
            self._board.begin_step()
            loss = train_step(self._trainer, self._training, self._stages)
            if loss is not None:
                losses.append(loss)
            # On small models it would take as long as the optimizer.
            with self._clock.held():
                finite_gradients.append(gradients_are_finite(self._trainer))
        return losses, finite_gradients

    def _evaluate(self) -> Tally | MetricSums | None:
        """What the epoch came to; None where nobody asks, or another rank knows."""
        if self._evaluated is None:
            return None
        score = _start_score(self._trainer)
        with self._stages("evaluation"):
            evaluate_split(
                self._trainer,
                self._evaluated,
                score,
                before_batch=lambda: self._board.enter_stage("evaluation"),
            )
        if isinstance(score, Tally):
            self.why_no_accuracy = score.why_none
        else:
            self.why_no_accuracy = "accuracy is not the workload's metric"
        return score if self._trainer.strategy.speaks_for_shard else None


def _start_score(trainer: Trainer) -> Tally | MetricSums | None:
    metric = trainer.workload.metric
    if callable(metric):
        return MetricSums(trainer.workload.name, metric)
    return Tally() if metric == "accuracy" else None


def _evaluated_split(trainer: Trainer) -> tuple[EvaluatedSplit | None, str | None]:
    """The split to evaluate, or why there is none."""
    if (reason := trainer.strategy.why_not_evaluated) is not None:
        return None, reason
    splits: tuple[EvaluatedSplit, ...] = ("validation", "test")
    for split in splits:
        if trainer.workload.build_dataset(split) is not None:
            return split, None
    name = trainer.workload.name
    return None, f"workload {name!r} has neither a validation nor a test dataset"


@contextmanager
def _batches(
    trainer: Trainer, split: Split, job: RunProfile, start: RankStart
) -> Iterator[EpochBatches]:
    # The dataset is the same on every rank; what it and the model draw later is not.
    seed_random_numbers(job.seed)
    with build_batches(
        trainer.workload,
        job.recipe,
        split,
        shard_index=trainer.strategy.shard_index,
        num_shards=trainer.strategy.num_shards,
        seed=job.seed,
        device=trainer.device,
        on_worker_start=loader_worker_entry(start.folder, start.cores),
    ) as batches:
        yield batches


def _missing(
    why_not_evaluated: str | None, course: _Course, usage: UsageLog | None
) -> dict[str, str]:
    missing = {}
    if why_not_evaluated is not None:
        missing["stages_s.evaluation"] = missing["evaluated_split"] = why_not_evaluated
    if (reason := why_not_evaluated or course.why_no_accuracy) is not None:
        missing["accuracy"] = missing["accuracy_per_class"] = reason
    if course.why_no_communication is not None:
        missing["communication"] = course.why_no_communication
    if usage is None:
        missing["usage"] = "NVML, which knows how busy the GPU is, is not installed"
    return missing


def _gpu_uuid(device: torch.device) -> str | None:
    if device.type != "cuda":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _first_false(facts: list[bool]) -> int | None:
    """The place of the first False, from 1."""
    return facts.index(False) + 1 if False in facts else None


def _start_together() -> None:
    if dist.is_initialized():
        dist.barrier()
