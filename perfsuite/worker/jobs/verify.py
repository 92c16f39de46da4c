"""The jobs of a verification: record a run, then check it in one process. Run in ranks."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from perfsuite.ranks.messages import CheckRun, RankStart, RecordRun, RunChecked, RunRecorded
from perfsuite.ranks.pickling import unpack
from perfsuite.ranks.progress import BoardWriter
from perfsuite.records.workload import load_workload
from perfsuite.worker.equivalence.proof import Case
from perfsuite.worker.equivalence.run_checks import check_run
from perfsuite.worker.equivalence.trace.recording import record_run
from perfsuite.worker.equivalence.trace.sharing import share_trace
from perfsuite.worker.equivalence.trace.trace import Trace, load_traces, save_trace
from perfsuite.worker.jobs.loader_workers import open_batches
from perfsuite.worker.training.build import build_trainer


def record_rank(
    job: RecordRun, start: RankStart, device: torch.device, board: BoardWriter
) -> RunRecorded:
    """Train, and write what this rank saw to its file."""
    board.enter_phase("build")
    workload = load_workload(unpack(job.workload))
    trainer = build_trainer(workload, job.recipe, device=device, seed=job.seed)
    board.enter_phase("record")
    shard = trainer.strategy.shard
    with open_batches(workload, job.recipe, shard, job.seed, device, start, "train") as batches:
        trace = record_run(
            trainer,
            batches,
            indices=batches.indices(0),
            num_steps=job.num_steps,
            counts_work=job.counts_work,
            on_step=board.begin_step,
        )
    save_trace(share_trace(trace, device), _trace_path(job.folder, job.name, start.rank))
    if start.assignment.rendezvous is not None:
        _copy_to_first(job, start, device, board)
    return RunRecorded()


def _copy_to_first(
    job: RecordRun, start: RankStart, device: torch.device, board: BoardWriter
) -> None:
    for rank in range(1, start.request.world_size):
        board.begin_step()
        path = _trace_path(job.folder, job.name, rank)
        if start.rank == rank:
            dist.send_object_list([path.read_bytes()], dst=0, device=device)
        elif start.rank == 0:
            received = [b""]
            dist.recv_object_list(received, src=rank, device=device)
            path.write_bytes(received[0])


def check_recorded(job: CheckRun, device: torch.device, board: BoardWriter) -> RunChecked:
    """Compare what the ranks have recorded with references computed here."""
    board.enter_phase("check")
    rows, inapplicable = check_run(
        Case(
            workload=load_workload(unpack(job.workload)),
            recipe=job.recipe,
            device=device,
            seed=job.seed,
            num_steps=job.num_steps,
            trace=_load(job, "tested"),
            twin=_load(job, "twin") if job.has_twin else None,
            on_step=board.begin_step,
        )
    )
    return RunChecked(rows=rows, inapplicable=inapplicable)


def _load(job: CheckRun, name: str) -> Trace:
    ranks = range(job.recipe.plan.world_size)
    return load_traces([_trace_path(job.folder, name, rank) for rank in ranks])


def _trace_path(folder: str, name: str, rank: int) -> Path:
    return Path(folder) / f"{name}-{rank}.pt"
