"""The job of measuring a cell: warm-up, timed rounds, then untimed counting. Runs in a rank."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist

from perfsuite.ranks import messages
from perfsuite.ranks.progress import BoardWriter
from perfsuite.records.cell import Counts, Operator
from perfsuite.records.stages import Stage
from perfsuite.worker.jobs.activities import Activity, start_activity
from perfsuite.worker.jobs.faults import inject_fault
from perfsuite.worker.jobs.loader_workers import resume_loader_workers, stop_loader_workers
from perfsuite.worker.jobs.turns import Agreed, Turns
from perfsuite.worker.measure.clock import start_together
from perfsuite.worker.measure.counters import count_garbage, count_iteration, count_kernel_launches
from perfsuite.worker.measure.environment import describe_environment
from perfsuite.worker.measure.memory import measure_peak
from perfsuite.worker.measure.operators import costliest_operators, profile_iterations
from perfsuite.worker.measure.rounds import ROUND_S, choose_num_iterations, measure_rounds
from perfsuite.worker.measure.stages import StageClock

# DDP's first step uses one bucket and rebuilds its buckets after it; optimizers make their state
# in the first step. The third is the first that is like all later ones.
_NUM_WARMUP_ITERATIONS = 3
# Of rounds that take turns with the other arm: a disturbance of the machine lasts for longer, and
# so happens to both. Over 240 LeNet steps a launch, turns of 2 had two thirds of the error of 8.
_TURN_S = 0.010


def run_cell(
    job: messages.RunCell, start: messages.RankStart, device: torch.device, board: BoardWriter
) -> messages.CellMeasured:
    """Return what this rank measured of the cell."""
    board.enter_phase("build")
    # Before the recipe's precision changes settings that the fingerprint holds.
    environment = describe_environment(start.request.policy.device)
    with start_activity(job, start, device) as activity:
        measurement = _Measurement(activity, device, board, start)
        board.enter_phase("warm-up")
        iteration_s = measurement.warm_up()
        board.enter_phase("measure")
        try:
            agreed = measurement.agree(iteration_s, job.plan)
            rounds = measurement.measure(agreed.rounds, agreed.iterations)
        finally:
            resume_loader_workers()  # a stopped one could not be ended
        board.enter_phase("count")
        counts, peak, operators, missing = measurement.count(agreed)
        return messages.CellMeasured(
            rounds=rounds,
            num_iterations=agreed.iterations,
            losses=activity.first_losses(),
            global_batch_size=activity.global_batch_size,
            counts=counts,
            peak=peak,
            operators=operators,
            environment=environment,
            missing=missing,
        )


class _Measurement:
    """One activity on its way through warm-up, rounds and counting."""

    def __init__(
        self,
        activity: Activity,
        device: torch.device,
        board: BoardWriter,
        start: messages.RankStart,
    ) -> None:
        self._activity = activity
        self._device = device
        self._board = board
        self._stages = StageClock(device, on_enter=board.enter_stage)
        channel = start.request.policy.turns
        self._has_turns = channel is not None
        self._iterate = inject_fault(activity.iterate, channel, device)
        self._turns = Turns(channel) if channel is not None and start.rank == 0 else None

    def warm_up(self) -> float:
        """Run the untimed first iterations, checked one by one; return the shortest's seconds."""
        shortest_s = float("inf")
        for _ in range(_NUM_WARMUP_ITERATIONS):
            self._synchronize()
            began_s = time.perf_counter()
            self._iterate_once(self._stages)
            self._synchronize()
            shortest_s = min(shortest_s, time.perf_counter() - began_s)
            self._activity.check()
        self._stages.collect()
        return shortest_s

    def agree(self, iteration_s: float, plan: messages.MeasurePlan) -> Agreed:
        """Return what all ranks of both arms run."""
        stop_loader_workers()  # the other arm may be long in coming
        if dist.is_initialized():
            slowest = torch.tensor([iteration_s], dtype=torch.float64, device=self._device)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            iteration_s = float(slowest.item())
        num_iterations = plan.num_iterations or choose_num_iterations(
            iteration_s,
            steps_per_epoch=self._activity.steps_per_epoch,
            round_s=_TURN_S if self._has_turns else plan.round_s or ROUND_S,
        )
        if not self._has_turns:
            assert plan.num_rounds is not None  # only a gate chooses rounds
            return Agreed(num_iterations, plan.num_rounds)
        told = torch.zeros(len(Agreed._fields), dtype=torch.int64, device=self._device)
        if self._turns is not None:
            told += torch.tensor(self._turns.agree(num_iterations, iteration_s))
        if dist.is_initialized():
            dist.broadcast(told, src=0)
        agreed = Agreed(*told.tolist())
        return agreed._replace(rounds=plan.num_rounds or agreed.rounds)

    def measure(self, num_rounds: int, num_iterations: int) -> tuple[messages.RoundTimes, ...]:
        """Return the timed rounds; losses are checked between them, outside of the time."""
        rounds = measure_rounds(
            self._iterate_once,
            num_rounds=num_rounds,
            num_iterations=num_iterations,
            stages=self._stages,
            start_together=self._start_with_workers,
            synchronize=self._synchronize,
            after_round=self._end_round,
            take_turn=self._take_turn,
        )
        return tuple(rounds)

    @contextmanager
    def _take_turn(self) -> Iterator[None]:
        if not self._has_turns:
            yield
            return
        with nullcontext() if self._turns is None else self._turns.take():
            # No rank is at work before the first has the turn, or after the other arm may begin.
            start_together()
            yield
            start_together()

    def _start_with_workers(self) -> None:
        """Begin a round on all ranks; between rounds loader workers would fill their queues."""
        start_together()
        resume_loader_workers()

    def _end_round(self, _: int) -> None:
        stop_loader_workers()
        self._activity.check()

    def count(
        self, agreed: Agreed
    ) -> tuple[Counts, messages.PeakMemory | None, tuple[Operator, ...] | None, dict[str, str]]:
        """Return counts, memory, the costliest operators, and why any of them is missing."""
        missing = dict(self._activity.missing)
        if not self._activity.is_counted or not agreed.counts:
            return Counts(**dict.fromkeys(Counts.__struct_fields__)), None, None, missing
        counted = count_iteration(self._iterate)
        peak = measure_peak(
            self._iterate,
            self._activity.held_tensors(),
            self._device,
            follow_resizes=self._activity.has_resized_storages,
        )
        launches = count_kernel_launches(self._iterate, self._device)
        if launches is None:
            missing["kernel_launches"] = "kernels are launched on CUDA devices only"
        found = dataclasses.asdict(counted) | {
            "saved_activation_bytes": peak.saved_activation_bytes,
            "kernel_launches": launches,
            "collected_objects": count_garbage(self._iterate),
        }
        counts = Counts(**{name: None if name in missing else found[name] for name in found})
        operators = None
        if agreed.profiles:
            profiler = profile_iterations(self._iterate, self._device, num_iterations=1)
            operators = costliest_operators(profiler.key_averages(), self._device)
        return counts, None if "memory" in missing else peak, operators, missing

    def _iterate_once(self, stage: Stage) -> None:
        self._board.begin_step()
        self._iterate(stage)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
