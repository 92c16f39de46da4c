"""The checks of gpu_acceptance.py that run on a GPU and on what stands in for one."""

from __future__ import annotations

import json
import socket
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_devices import Device

from perfsuite.experiments.results import combine_stages, slowest_rank_times
from perfsuite.ranks.assignments import all_assignments
from perfsuite.ranks.messages import (
    CellMeasured,
    GroupPolicy,
    GroupRequest,
    MeasurePlan,
    RankStart,
    RunCell,
    TurnChannel,
)
from perfsuite.ranks.progress import Board
from perfsuite.records.stages import Stage, untimed
from perfsuite.worker.jobs import cell
from perfsuite.worker.jobs.activities import Repeatable

NUM_STEPS = 200

Step = Callable[[Stage], None]


# --- a synthetic step, through the whole measurement of a cell ---


class Synthetic(Repeatable):
    """A step that is nothing but a function."""

    is_counted = False

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step = step

    def iterate(self, stage: Stage) -> None:
        self._step(stage)


def measure(
    device: Device, step: Step, *, num_rounds: int = 5, channel: TurnChannel | None = None
) -> CellMeasured:
    """Return what a cell of this step is measured as."""

    @contextmanager
    def start_activity(*_: Any) -> Iterator[Synthetic]:
        yield Synthetic(step)

    cell.start_activity = start_activity  # type: ignore[assignment]
    job = RunCell(activity="train", plan=MeasurePlan(num_rounds=num_rounds))
    kind = "cuda" if device.is_real else "cpu"
    request = GroupRequest(
        job=job,
        world_size=1,
        policy=GroupPolicy(device=kind, num_gpus=1, turns=channel),
        needs_group=False,
    )
    (assignment,) = all_assignments(1, device=kind, num_gpus=1)
    with tempfile.TemporaryDirectory() as folder:
        start = RankStart(
            request=request, assignment=assignment, folder=folder, core=None, cores=(0,)
        )
        board = Board(Path(folder) / "progress", 1).writer(0)
        return cell.run_cell(job, start, device.torch_device, board)


def step_s(measured: CellMeasured) -> float:
    """Return the median of the seconds of a step."""
    return statistics.median(slowest_rank_times([measured.rounds], measured.num_iterations))


def true_s(device: Device, step: Step) -> float:
    """Return the seconds of a step as training runs it: nothing waits for the device."""
    for _ in range(20):
        step(untimed)
    device.synchronize()
    began_s = device.clock()
    for _ in range(NUM_STEPS):
        step(untimed)
    device.synchronize()
    return (device.clock() - began_s) / NUM_STEPS


def _step(device: Device, host_s: float, device_s: float, *, waits: bool = False) -> Step:
    def step(stage: Stage) -> None:
        device.work_on_host(host_s)
        device.work(device_s)
        if waits:
            device.synchronize()

    return step


def overlap(figures: Any) -> None:
    device: Device = figures.device
    for host_s, device_s in ((0.006, 0.010), (0.010, 0.006), (0.060, 0.100)):
        step = _step(device, host_s, device_s)
        what = f"host {1e3 * host_s:.0f} ms, device {1e3 * device_s:.0f} ms"
        figures.near(what, step_s(measure(device, step)), true_s(device, step), 0.02)


def hidden_sync(figures: Any) -> None:
    device: Device = figures.device
    plain, waiting = (_step(device, 0.006, 0.010, waits=waits) for waits in (False, True))
    truth = true_s(device, waiting) / true_s(device, plain) - 1
    found = step_s(measure(device, waiting)) / step_s(measure(device, plain)) - 1
    figures.near("slowdown by a wait for the device in each step", found, truth, 0.2)


def stages(figures: Any) -> None:
    device: Device = figures.device
    planted = {"forward": 0.004, "backward": 0.008, "optimizer": 0.002}

    def step(stage: Stage) -> None:
        with stage("load"):
            device.work_on_host(0.003)
        device.work(0.001)  # the copy
        for name, seconds in planted.items():
            with stage(name):
                device.work(seconds)

    measured = measure(device, step)
    found = combine_stages(
        [measured.stage_rounds or measured.rounds], measured.num_iterations, overlaps_loading=True
    )
    for name, seconds in {"load": 0.003, **planted, "other": 0.001}.items():
        figures.near(name, getattr(found, name) or 0.0, seconds, 0.05 if name == "other" else 0.03)


def overhead(figures: Any) -> None:
    device: Device = figures.device
    if not device.is_real:
        device.event_s = 3e-6  # type: ignore[attr-defined]  # of the stand-in

    def step(stage: Stage) -> None:
        for name in ("forward", "backward", "optimizer"):
            with stage(name):
                device.work_on_host(100e-6)  # as a small step's, which launches bind
                device.work(20e-6)

    # A launch takes 6.4 us on one core and 10 us on another: each ratio is of the same second.
    ratios = [step_s(measure(device, step)) / true_s(device, step) for _ in range(9)]
    figures.told("ratios", ", ".join(f"{ratio:.3f}" for ratio in sorted(ratios)))
    figures.near("ratio", statistics.median(ratios), 1.0, 0.02)


def clocks(figures: Any) -> None:
    device: Device = figures.device
    if not device.is_real:
        device.cold_s = 0.3  # type: ignore[attr-defined]  # of the stand-in
    measured = measure(device, _step(device, 0.0, 0.001), num_rounds=20)
    times_s = slowest_rank_times([measured.rounds], measured.num_iterations)
    figures.near("the first round", times_s[0], statistics.median(times_s[10:]), 0.01)


# --- what a calibration plants ---


class OneArm:
    """A gate with one arm, which has every turn at once."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "gate")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        connection, _ = self._listener.accept()
        for line in connection.makefile("r"):
            message = json.loads(line)
            if message["kind"] == "shape":
                answer = {"iterations": message["iterations"], "rounds": 5}
                connection.sendall(json.dumps(answer).encode() + b"\n")
            elif message["kind"] == "turn":
                connection.sendall(b"{}\n")


def planted_speed(figures: Any) -> None:
    device: Device = figures.device
    step = _step(device, 0.006, 0.010)

    def planted(ratio: float) -> tuple[float, int]:
        before = getattr(device, "num_synchronized", 0)
        with tempfile.TemporaryDirectory() as folder:
            arm = OneArm(Path(folder))
            channel = TurnChannel(path=arm.path, arm="head", planted_ratio=ratio)
            found_s = step_s(measure(device, step, channel=channel))
        return found_s, getattr(device, "num_synchronized", 0) - before

    (plain_s, num_plain), (slower_s, num_slower) = planted(0.0), planted(0.05)
    figures.near("5 % planted", slower_s / plain_s, 1.05, 0.003)
    figures.must("waits for the device", num_slower, num_slower == num_plain)
