"""The jobs of a verification: record a run, then check it in one process. Run in ranks."""

import dataclasses
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from perfsuite.ranks import messages
from perfsuite.ranks.pickling import unpack
from perfsuite.ranks.progress import BoardWriter
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import load_workload
from perfsuite.worker.equivalence.checks.own_reference import OwnCase, check_own_steps
from perfsuite.worker.equivalence.proof import Case
from perfsuite.worker.equivalence.run_checks import check_run
from perfsuite.worker.equivalence.trace import trace as traces
from perfsuite.worker.equivalence.trace.own_steps import OwnSteps, record_steps
from perfsuite.worker.equivalence.trace.recording import read_epochs, record_run
from perfsuite.worker.jobs.loader_workers import open_batches
from perfsuite.worker.jobs.user_code import UserStep, load_function
from perfsuite.worker.training.trainer import build_trainer

# The run that is compared; its files have this name.
_TESTED = "tested"


def record_rank(
    job: messages.RecordRun, start: messages.RankStart, device: torch.device, board: BoardWriter
) -> messages.RunRecorded:
    """Train, and write what this rank saw to its file."""
    board.enter_phase("build")
    workload = load_workload(unpack(job.workload))
    trainer = build_trainer(workload, job.recipe, device=device, seed=start.seed)
    board.enter_phase("record")
    shard = trainer.strategy.shard
    with open_batches(workload, job.recipe, shard, device, start, "train") as batches:
        trace = record_run(trainer, batches, num_steps=job.num_steps, on_step=board.begin_step)
        trace = dataclasses.replace(trace, indices=read_epochs(batches))
        if workload.build_loader is not None:  # another epoch may deal samples out anew
            trace = dataclasses.replace(trace, batches=trace.batches[: batches.steps_per_epoch])
    return _keep(trace, job.name, start, device, board)


def record_own_rank(
    job: messages.RecordSteps, start: messages.RankStart, device: torch.device, board: BoardWriter
) -> messages.RunRecorded:
    """Take the first steps of a user's own, and write what this rank saw to its file."""
    board.enter_phase("build")
    steps = _build_steps(job.user_code, start)
    board.enter_phase("record")
    trace = record_steps(steps, rank=start.rank, num_steps=job.num_steps, on_step=board.begin_step)
    return _keep(trace, _TESTED, start, device, board)


def _build_steps(code: messages.UserCode, start: messages.RankStart) -> OwnSteps:
    step = UserStep(code, load_function(code, start))
    return OwnSteps(step.model, step.take)


def _keep(
    trace: traces.RankTrace,
    name: str,
    start: messages.RankStart,
    device: torch.device,
    board: BoardWriter,
) -> messages.RunRecorded:
    traces.save_trace(traces.share_trace(trace), _trace_path(start, name, start.rank))
    for rank in () if start.assignment.rendezvous is None else range(1, start.request.world_size):
        board.begin_step()
        path = _trace_path(start, name, rank)
        if start.rank == rank:
            dist.send_object_list([path.read_bytes()], dst=0, device=device)
        elif start.rank == 0:
            received = [b""]
            dist.recv_object_list(received, src=rank, device=device)
            path.write_bytes(received[0])
    return messages.RunRecorded()


def check_recorded(
    job: messages.CheckRun, start: messages.RankStart, device: torch.device, board: BoardWriter
) -> messages.RunChecked:
    """Compare what the ranks have recorded with references computed here."""
    board.enter_phase("check")
    case = Case(
        workload=load_workload(unpack(job.workload)),
        recipe=job.recipe,
        device=device,
        seed=start.seed,
        num_steps=job.num_steps,
        trace=_load(start, _TESTED, job.recipe),
        twin=None if job.recipe.checkpointing == "none" else _load(start, "twin", job.recipe),
        on_step=board.begin_step,
    )
    return messages.RunChecked(*check_run(case))


def check_own_recorded(
    job: messages.CheckSteps, start: messages.RankStart, device: torch.device, board: BoardWriter
) -> messages.RunChecked:
    """Compare the steps that the ranks have recorded with the user's reference."""
    board.enter_phase("check")
    world_size = job.tested.world_size
    parallel = "single" if world_size == 1 else f"ddp:{world_size}"
    recipe = Recipe(parallel=parallel, precision=job.tested.precision)
    trace = _load(start, _TESTED, recipe)
    recipe = dataclasses.replace(recipe, grad_accumulation_steps=trace.num_accumulated)
    build = partial(_build_steps, job.reference, start)
    case = OwnCase(recipe=recipe, trace=trace, build=build, device=device, on_step=board.begin_step)
    row, missing = check_own_steps(case)
    return messages.RunChecked(rows=(row,), inapplicable=missing)


def _load(start: messages.RankStart, name: str, recipe: Recipe) -> traces.Trace:
    return traces.load_traces([_trace_path(start, name, r) for r in range(recipe.plan.world_size)])


def _trace_path(start: messages.RankStart, name: str, rank: int) -> Path:
    return Path(start.request.policy.proof) / f"{name}-{rank}.pt"
