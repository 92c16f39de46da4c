"""The job of measuring a cell: warm-up, timed rounds, then untimed counting. Runs in a rank."""

import os
import signal
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from perfsuite.errors import WorkloadError
from perfsuite.ranks import messages
from perfsuite.ranks.progress import FIRST_STEP, BoardWriter
from perfsuite.ranks.turns import Agreed
from perfsuite.system.background import Waits
from perfsuite.system.environment import Environment
from perfsuite.system.gpus import read_energy
from perfsuite.worker.jobs import loader_workers
from perfsuite.worker.jobs.activities import HIDDEN_IN_THREADS, Activity, start_activity
from perfsuite.worker.jobs.arm_turns import ArmTurns
from perfsuite.worker.jobs.user_code import start_user_code
from perfsuite.worker.measure import counters, operators, rounds
from perfsuite.worker.measure.clock import require_clock
from perfsuite.worker.measure.device import is_accelerator, memory_stats, synchronize
from perfsuite.worker.measure.environment import describe_environment
from perfsuite.worker.measure.iterations import Iterations
from perfsuite.worker.measure.memory import Storages, measure_peak, with_kept_bytes
from perfsuite.worker.measure.rounds import measure_rounds
from perfsuite.worker.measure.stages import StageClock, StageMarks
from perfsuite.worker.measure.weights_digest import BufferDigests
from perfsuite.worker.store import shorten_patience

# Of rounds that take turns with the other arm: a disturbance of the machine lasts for longer, and
# so happens to both. Over 240 LeNet steps a launch, turns of 2 had two thirds of the error of 8.
_TURN_S = 0.010
# Of each rank, to find which one the others wait for: more than a thousand steps of training.
_MOST_SPANS = 10_000
# Of a loop: with fewer an outlier moves any location.
_LEAST_ROUNDS = 5
# More than the exact gate leaves to any peak: 16 MiB to one of `max_memory_allocated`.
LEAKED_BYTES = 17 * 2**20
# Stages explain a time and gate nothing, so the mean of a few rounds will do.
_NUM_STAGE_ROUNDS = 3
_OF_OPERATORS = ("flops", "model_flops", "ops")
# Off a CUDA device, and on one.
_NO_LAUNCHES = (
    "kernels are launched on CUDA devices only",
    "the profiler (CUPTI) saw none: another tool uses it, or a container forbids it",
)


def run_cell(
    job: messages.RunCell, start: messages.RankStart, device: torch.device, board: BoardWriter
) -> messages.CellMeasured:
    """Return what this rank measured of the cell."""
    board.enter_phase("build")
    # Before the recipe's precision changes settings that the fingerprint holds.
    environment = describe_environment(start.request.policy.device)
    turns = ArmTurns(start, on_wait=board.mark)
    preparing = ExitStack()
    with ExitStack() as stack:
        if is_accelerator(device):
            # What is chosen by its time, as a kernel is, must not be chosen beside the other arm.
            stack.push(preparing)
            preparing.enter_context(turns.take())
        if job.user_code is None:
            activity = stack.enter_context(start_activity(job, start, device))
        else:
            activity = start_user_code(job.user_code, start)
            if job.user_code.kind == "loop":
                board.enter_phase(FIRST_STEP)
        measurement = Measurement(
            activity, job.plan, environment, device, board, start, turns, preparing.close
        )
        activity.run(measurement.asked(), board.begin_step)
        return measurement.result()


class Measurement:
    """One activity on its way through warm-up, rounds and counting, and what was found so far."""

    def __init__(
        self,
        activity: Activity,
        plan: messages.MeasurePlan,
        environment: Environment,
        device: torch.device,
        board: BoardWriter,
        start: messages.RankStart,
        turns: ArmTurns | None = None,
        after_warm_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._activity, self._plan = activity, plan
        self._device, self._board = device, board
        self._start, self._channel = start, start.request.policy.turns
        self._has_peers = start.request.world_size > 1
        self._turns = turns or ArmTurns(start, on_wait=board.mark)
        self._after_warm_up = after_warm_up
        self._waits, self._buffers = Waits(), BufferDigests()
        self._takes_turns = False  # from round to round
        self._stages = StageClock(device, on_enter=board.enter_stage)
        self._marks = StageMarks(device, on_enter=board.enter_stage)
        self._on_accelerator = is_accelerator(device)
        self._largest = partial(activity.largest_over_ranks, device=device)
        # A loop takes as many steps as its user says, and has no more for anything else.
        self._is_loop = activity.num_steps is not None
        self._found = messages.CellMeasured(
            environment=environment,
            missing=activity.missing,
            global_batch_size=activity.global_batch_size,
        )

    def asked(self) -> Iterations[None]:
        """Return all iterations of the cell, with the fault that a calibration injects."""
        return inject_fault(self._whole(), self._channel, self._device)

    def result(self) -> messages.CellMeasured:
        """Return what was found; raises where the iterations were too few."""
        found, activity = self._found, self._activity
        activity.check()
        found.missing = found.missing | activity.end(len(found.rounds))
        found.losses, found.weights = activity.losses.by_step(), activity.digests()
        found.buffers = self._buffers.moved()
        return found

    def _whole(self) -> Iterations[None]:
        self._board.enter_phase("warm-up")
        require_clock()
        iteration_s = yield from self._warm_up()
        self._board.enter_phase("measure")
        loader_workers.stop()  # the other arm may be long in coming
        try:
            self._after_warm_up()
            agreed = self._agree(iteration_s)
            self._found.num_iterations = agreed.iterations
            yield from self._measure(agreed)
            if (compiled := counters.read_compilation()) is not None:
                counts, self._found.compile_s = compiled
                self._note(**counts)
                # Nothing is compiled while operators are counted, so eager ones would be. An
                # accelerator's memory is its allocator's, its kernels are chosen by their time.
                others = ["saved_activation_bytes", "memory"]
                hidden = ["kernel_launches"] if self._on_accelerator else others
                reason = "a compiled model cannot be watched"
                self._found.missing |= dict.fromkeys([*_OF_OPERATORS, *hidden], reason)
            if self._waits.are_hidden:
                self._turns.tell(hides_waits=True)
            if self._start.rank == 0:
                num_threads = min(torch.get_num_threads(), len(os.sched_getaffinity(0)))
                self._turns.tell(num_threads=num_threads)
            if rate := self._activity.others_per_step:
                self._turns.tell(others_per_step=rate)
        finally:
            loader_workers.resume()  # a stopped one could not be ended
            self._turns.signal_daemons(signal.SIGCONT)
        self._board.enter_phase("count")
        if self._activity.is_counted and agreed.counts:
            yield from self._count(profiles=agreed.profiles)
        self._digest_buffers()
        if self._is_loop:
            self._board.enter_phase("stop by perfsuite.StopLoop (does a bare except catch it?)")

    def _digest_buffers(self) -> None:
        if self._channel is not None:
            self._activity.check()  # counts the steps so far
            self._buffers.end_step(self._activity.model, self._activity.losses.num_steps)

    def _warm_up(self) -> Iterations[float]:
        """Run the untimed first iterations, checked one by one; return the seconds of one more."""
        durations_s: list[float] = []
        states: list[object] = []
        is_warm = False
        while not is_warm:
            synchronize(self._device)
            began_s = time.perf_counter()
            yield self._stages
            synchronize(self._device)
            durations_s.append(time.perf_counter() - began_s)
            self._activity.check()
            is_warm = len(durations_s) >= self._activity.num_warmup
            if len(durations_s) in (1, self._activity.num_warmup):
                self._digest_buffers()
            if self._on_accelerator and not self._is_loop:
                states.append(self._activity.state())
                is_cold = not is_warm or not rounds.has_warmed_up(durations_s, states)
                is_warm = not any(self._largest([is_cold]))  # on any rank: all take the next one
        self._stages.collect()
        if self._on_accelerator:  # workers may have loaded the batches of the last few ahead
            return statistics.fmean(durations_s[len(durations_s) // 2 :])
        return min(durations_s[-self._activity.num_warmup :])

    def _agree(self, iteration_s: float) -> Agreed:
        plan, turns = self._plan, self._turns
        least, num_run_up = (rounds.LEAST_ON_ACCELERATOR, 1) if self._on_accelerator else (1, 0)
        (iteration_s,) = turns.largest([iteration_s], self._largest)
        num_iterations = plan.num_iterations or rounds.choose_num_iterations(
            iteration_s,
            steps_per_epoch=self._activity.steps_per_epoch,
            round_s=_TURN_S if turns.are_needed else plan.round_s or rounds.ROUND_S,
            least=least,
        )
        if (num_steps := self._activity.num_steps) is not None:
            most = num_steps // _LEAST_ROUNDS - num_run_up
            num_iterations = min(num_iterations, max(least, most))
        agreed, num_rounds = Agreed(num_iterations, 0), plan.num_rounds
        if turns.are_needed:
            agreed = turns.agree(num_iterations, iteration_s, self._largest)
            num_rounds = num_rounds or agreed.rounds
        if num_steps is not None:
            num_rounds = num_steps // (agreed.iterations + num_run_up)
            if num_rounds < 2:  # on a CPU rounds are as short as it takes
                each = f"{agreed.iterations} steps each on an accelerator, after an untimed one"
                found = f"{num_steps} timed steps are too few for two rounds, which have {each}"
                advice = f"ask for {2 * (agreed.iterations + num_run_up)} or more (steps=)"
                raise WorkloadError(f"{found}; {advice}")
        assert num_rounds is not None  # only a gate chooses rounds
        shorten_patience(self._start, (agreed.iterations + num_run_up) * iteration_s)
        return agreed._replace(rounds=num_rounds)

    def _measure(self, agreed: Agreed) -> Iterations[None]:
        if not self._on_accelerator:
            yield from self._take_rounds(self._found.rounds, agreed, self._stages)
            return
        before = memory_stats(self._device).get("num_alloc_retries")
        # In a gate the other arm uses the same devices meanwhile.
        energy = None if self._turns.are_needed else read_energy(self._device.index or 0)
        # Stages have rounds of their own: their events make a small step slower.
        stages = self._stages if self._is_loop else self._marks
        yield from self._take_rounds(self._found.rounds, agreed, stages)
        if before is not None:
            self._note(allocator_retries=memory_stats(self._device)["num_alloc_retries"] - before)
        if energy is not None and (now := read_energy(self._device.index or 0)) is not None:
            num_iterations = agreed.rounds * (agreed.iterations + 1)  # with each run-up
            self._found.energy_j = now[0], (now[1] - energy[1]) / num_iterations
        if not self._is_loop:
            agreed = agreed._replace(rounds=_NUM_STAGE_ROUNDS)
            yield from self._take_rounds(self._found.stage_rounds, agreed, self._stages)

    def _take_rounds(
        self, found: list[messages.RoundTimes], agreed: Agreed, stages: StageClock
    ) -> Iterations[None]:
        take = partial(self._turns.take, self._activity.start_together)
        self._takes_turns = self._turns.are_needed and not agreed.alone
        with take() if agreed.alone else nullcontext():
            yield from measure_rounds(
                found,
                num_rounds=agreed.rounds,
                num_iterations=agreed.iterations,
                stages=stages,
                start_together=self._start_with_workers,
                synchronize=partial(synchronize, self._device),
                after_round=self._end_round,
                take_turn=nullcontext if agreed.alone else take,
                most_spans=_MOST_SPANS if self._has_peers and stages is self._stages else 0,
                run_up=self._marks if self._on_accelerator else None,
                collecting=agreed.collecting,
                slowdown=0.0 if self._channel is None else self._channel.planted_ratio,
            )

    def _start_with_workers(self) -> None:
        """Begin a round on all ranks; between rounds loader workers would fill their queues."""
        self._activity.start_together()
        if self._takes_turns and self._found.rounds:  # until then it may have been in its warm-up
            self._waits.begin_turn()
        loader_workers.resume()

    def _end_round(self) -> None:
        if self._takes_turns:
            self._waits.end_turn(loader_workers.find())
        loader_workers.stop()
        if self._takes_turns:
            self._waits.settle()
        elif self._turns.are_needed:
            self._turns.end_round()
        self._activity.check()

    def _count(self, *, profiles: bool) -> Iterations[None]:
        activity, device = self._activity, self._device
        counted = yield from counters.count_iteration(made := Storages())
        if counted.in_threads:
            hidden = (*HIDDEN_IN_THREADS, *(() if self._on_accelerator else ("memory",)))
            reason = "it computes in threads of its own, which cannot be watched"
            self._found.missing = dict.fromkeys(hidden, reason) | self._found.missing
        elif counted.ops == 0:
            reason = "no operator ran outside of the stage 'load'"
            self._found.missing |= dict.fromkeys(_OF_OPERATORS, reason)
        if self._has_peers and device.type == "cpu":
            self._found.watched_s.append(counted.watched_s)
            if not self._is_loop:
                self._found.watched_s.append((yield from counters.count_iteration()).watched_s)
        frees_late = counted.frees_late or activity.frees_late
        asked = measure_peak(activity.held_tensors(), device, frees_late=frees_late)
        # Not of the counted iteration, which all ranks must begin together: its waits are told.
        peak, kept = yield from with_kept_bytes(asked, made)
        if peak is None:
            reason = "the accelerator's allocator is the user's own, and counts no memory"
            self._found.missing |= dict.fromkeys(("memory", "saved_activation_bytes"), reason)
        self._found.peak = None if "memory" in self._found.missing else peak
        saved_bytes = None if peak is None else peak.saved_activation_bytes
        if saved_bytes is None:
            reason = "no stage 'backward' followed a stage 'forward'"
            self._found.missing.setdefault("saved_activation_bytes", reason)
        found: dict[str, Any] = {**vars(counted)}
        del found["watched_s"], found["frees_late"], found["in_threads"]
        if (operator := found.pop("without_formula")) is not None:
            reason = f"torch has no formula for the FLOPs of {operator}"
            self._found.missing.setdefault("model_flops", reason)
        found["saved_activation_bytes"] = saved_bytes
        found["kept_bytes"] = max(0, kept)
        if not self._is_loop:
            found |= yield from counters.count_device_calls(device)
            if "kernel_launches" not in found:
                self._found.missing["kernel_launches"] = _NO_LAUNCHES[device.type == "cuda"]
            found["collected_objects"] = yield from counters.count_garbage()
        self._note(**{name: None if name in self._found.missing else found[name] for name in found})
        # A loop takes a third step for it, and a fourth, only where a gate explains what moved.
        if profiles and (not self._is_loop or self._channel is not None):
            profiler = yield from operators.profile_iterations(device, num_iterations=1)
            self._found.operators = operators.costliest_operators(profiler.key_averages(), device)
            self._found.missing.pop("operators", None)
            if self._channel is not None:
                self._found.operators += yield from operators.profile_functions()

    def _note(self, **counts: int | None) -> None:
        self._found.counts = msgspec.structs.replace(self._found.counts, **counts)


def inject_fault(
    asked: Iterations[None], channel: messages.TurnChannel | None, device: torch.device
) -> Iterations[None]:
    """Ask for the same iterations, each with the fault that the arm's channel names, if any."""
    fault = None if channel is None else channel.planted_fault
    wait = _synchronization(device) if fault == "synchronization" else None
    leaked: list[torch.Tensor] = []
    for stage in asked:
        if fault == "leak":
            leaked.clear()  # the machine would run out of more than one iteration's
            leaked.append(torch.empty(LEAKED_BYTES, dtype=torch.uint8, device=device))
        yield stage
        if wait is not None:
            wait()


def _synchronization(device: torch.device) -> Callable[[], None]:
    has_ranks = dist.is_initialized() and dist.get_world_size() > 1
    if not is_accelerator(device) and not has_ranks:
        found = "a synchronization cannot be planted in one process on a CPU"
        advice = "use a cell of several ranks, such as ddp:2"
        raise WorkloadError(f"{found}, where nothing is asynchronous; {advice}")
    token = torch.zeros(1, device=device)

    def wait() -> None:
        if has_ranks:
            dist.all_reduce(token)
        synchronize(device)

    return wait
