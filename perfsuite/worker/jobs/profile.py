"""The job of profiling a training: timed epochs, then profiled steps. Runs in a rank."""

from contextlib import ExitStack
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from perfsuite.ranks.messages import ProfileTaken, RankEpoch, RankStart, RunProfile
from perfsuite.ranks.pickling import unpack
from perfsuite.ranks.progress import BoardWriter
from perfsuite.records.profile import Communication, ProfilerOutput, RankUsage
from perfsuite.records.stages import Stage
from perfsuite.records.workload import load_workload
from perfsuite.system.gpus import visible_gpus
from perfsuite.system.usage import UsageLog, open_meter
from perfsuite.worker.jobs.loader_workers import open_batches
from perfsuite.worker.measure import clock, operators
from perfsuite.worker.measure.iterations import run_iterations
from perfsuite.worker.measure.stages import StageClock
from perfsuite.worker.training.evaluation import MetricSums, Tally, evaluate_split
from perfsuite.worker.training.loaders import EpochBatches
from perfsuite.worker.training.nonfinite import gradients_are_finite
from perfsuite.worker.training.step import train_step
from perfsuite.worker.training.trainer import Trainer, build_trainer

# A trace of more is hard to look at; the first of them may still start loader workers.
_NUM_PROFILED_STEPS = 3
_ACCURACIES = ("accuracy", "accuracy_per_class")
_OF_EVALUATION = ("stages_s.evaluation", "evaluated_split", *_ACCURACIES)

EvaluatedSplit = Literal["validation", "test"]


def take_profile(
    job: RunProfile, start: RankStart, device: torch.device, board: BoardWriter
) -> ProfileTaken:
    """Return where this rank's time went, without the check for infinite gradients.

    On a GPU the rank waits for the device at the end of every stage, so that work counts in the
    stage that launched it, and stages are disjoint.
    """
    board.enter_phase("build")
    workload = load_workload(unpack(job.workload))
    trainer = build_trainer(workload, job.recipe, device=device, seed=start.seed)
    split, why_not = _evaluated_split(trainer)
    batches_of = partial(open_batches, workload, job.recipe, trainer.strategy.shard, device, start)
    with ExitStack() as stack:
        training = stack.enter_context(batches_of("train"))
        evaluated = None if split is None else stack.enter_context(batches_of(split))
        profiled = _ProfiledTraining(trainer, training, evaluated, board)
        if why_not is not None:
            profiled.missing |= dict.fromkeys(_OF_EVALUATION, why_not)
        # By NVML's name: the runtime's own of a MIG instance is another.
        uuid = None if device.type == "cpu" else visible_gpus()[device.index or 0].uuid
        meter = stack.enter_context(open_meter(uuid))
        board.enter_phase("measure")
        if not clock.user_has_frozen():
            stack.enter_context(clock.whole_heap())
        clock.start_together()
        usage = None if meter is None else UsageLog(meter)
        epochs = profiled.run(job.num_epochs)
        samples = () if usage is None else usage.stop()
        board.enter_phase("count")
        output = profiled.profile_steps(is_kept=start.rank == 0)
        if usage is None:
            profiled.missing["usage"] = "NVML, which knows how busy the GPU is, is not installed"
    busy = RankUsage(rank=start.rank, device=str(device), samples=samples)
    return ProfileTaken(
        epochs=epochs, evaluated_split=split, usage=busy, output=output, missing=profiled.missing
    )


class _ProfiledTraining:
    def __init__(
        self,
        trainer: Trainer,
        training: EpochBatches,
        evaluated: EpochBatches | None,
        board: BoardWriter,
    ) -> None:
        self.missing: dict[str, str] = {}
        self._trainer, self._training = trainer, training
        self._evaluated, self._board = evaluated, board
        self._clock = clock.DeviceClock(trainer.device)
        # The host's clock everywhere: it waits for the device before it is read.
        cpu = torch.device("cpu")
        self._stages = StageClock(cpu, on_enter=board.enter_stage, clock=self._clock)
        self._num_steps = max(1, training.steps_per_epoch // trainer.recipe.grad_accumulation_steps)

    def run(self, num_epochs: int) -> tuple[RankEpoch, ...]:
        began_s, epochs = self._clock(), []
        for _ in range(num_epochs):
            losses, finite_gradients = self._train()
            score = self._evaluate()
            # Within the epoch's time, because a training that prints its loss waits for it too.
            values = tuple(torch.stack(losses).tolist()) if losses else ()
            are_finite = torch.stack(finite_gradients).tolist()
            counts = score.take() if isinstance(score, Tally) else None
            num_right, num_there = counts or (None, None)
            sums, num_scored = score.take() if isinstance(score, MetricSums) else ({}, 0)
            ended_s = self._clock()
            epochs.append(
                RankEpoch(
                    duration_s=ended_s - began_s,
                    stages_s=self._stages.collect(),
                    losses=values,
                    # Steps are counted from 1.
                    first_bad_gradient=are_finite.index(False) + 1 if False in are_finite else None,
                    num_right=num_right,
                    num_there=num_there,
                    metric_sums=sums,
                    num_scored=num_scored,
                )
            )
            began_s = ended_s
        return tuple(epochs)

    def profile_steps(self, *, is_kept: bool) -> ProfilerOutput | None:
        """On all ranks, because they wait for each other; the first one's output is kept."""
        device, num_steps = self._trainer.device, _NUM_PROFILED_STEPS
        asked = operators.profile_iterations(device, num_iterations=num_steps, with_memory=True)
        profiler = run_iterations(asked, self._step)
        if not is_kept:
            return None
        averages = profiler.key_averages()
        return ProfilerOutput(
            operators=operators.costliest_operators(averages, device),
            num_steps=num_steps,
            communication=self._communication(profiler),
            trace=operators.read_trace(profiler),
            operator_table=operators.describe_operators(averages, device),
            memory_summary=operators.describe_memory(averages, device),
        )

    def _communication(self, profiler: torch.profiler.profile) -> Communication | None:
        recipe, found = self._trainer.recipe, None
        if not recipe.plan.needs_group:
            reason = "a single process does not communicate"
        elif recipe.plan.properties.cuts_model:
            # A rank receives what another still computes: its wait is not communication.
            waits = f"parallel {recipe.parallel!r}: a stage that waits for another's computation"
            reason = f"{waits} cannot be told from one that communicates"
        else:
            events = profiler.events() or ()  # type: ignore[no-untyped-call]
            found = operators.measure_communication(events, self._trainer.device)
            reason = "no collective was seen"
        if found is None:
            self.missing["communication"] = reason
        return found

    def _step(self, stage: Stage) -> Tensor | None:
        self._board.begin_step()
        return train_step(self._trainer, self._training, stage)

    def _train(self) -> tuple[list[Tensor], list[Tensor]]:
        losses, finite_gradients = [], []
        for _ in range(self._num_steps):
            if (loss := self._step(self._stages)) is not None:
                losses.append(loss)
            # Untimed: on small models it takes as long as the optimizer.
            with self._clock.held():
                finite_gradients.append(gradients_are_finite(self._trainer))
        return losses, finite_gradients

    def _evaluate(self) -> Tally | MetricSums | None:
        if self._evaluated is None:
            return None
        workload = self._trainer.workload
        score: Tally | MetricSums | None = Tally() if workload.metric == "accuracy" else None
        if callable(workload.metric):
            score = MetricSums(workload.name, workload.metric)
        enter_batch = partial(self._board.enter_stage, "evaluation")
        with self._stages("evaluation"):
            evaluate_split(self._trainer, self._evaluated, score, enter_batch)
        not_accuracy = "accuracy is not the workload's metric"
        reason = score.why_none if isinstance(score, Tally) else not_accuracy
        if reason is not None:
            self.missing |= dict.fromkeys(_ACCURACIES, reason)
        return score if self._trainer.strategy.speaks_for_shard else None


def _evaluated_split(trainer: Trainer) -> tuple[EvaluatedSplit | None, str | None]:
    if (reason := trainer.strategy.why_not_evaluated) is not None:
        return None, reason
    for split in get_args(EvaluatedSplit):
        if trainer.workload.has_split(split):
            return split, None
    return None, f"workload {trainer.workload.name!r} has neither a validation nor a test dataset"
