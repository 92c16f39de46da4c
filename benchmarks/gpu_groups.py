"""The checks of gpu_acceptance.py of groups of ranks: what they leave, and two on one GPU."""

from __future__ import annotations

import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from gpu_numerics import describe, open_session
from torch import nn

from perfsuite.errors import PerfsuiteError
from perfsuite.experiments.launcher import LocalLauncher
from perfsuite.records.recipe import COMM_HOOKS, Recipe
from perfsuite.records.workload import Workload

# --- what a group leaves behind ---


def nccl_one(figures: Any) -> None:
    session = open_session(figures.device)
    cells = {
        **{f"ddp:1, {hook}": Recipe(parallel="ddp:1", comm_hook=hook) for hook in COMM_HOOKS},
        **{mode: Recipe(parallel=mode) for mode in ("fsdp:1", "hsdp:1x1", "zero1:1", "zero2:1")},
    }
    # The first group starts the server, its helpers and their files, which stay for the session.
    session.measure_cell("lenet-digits", Recipe(), is_timed=False)
    before = what_is_there()
    for name, recipe in cells.items():
        began_s = time.monotonic()
        try:
            outcome = session.measure_cell("lenet-digits", recipe, is_timed=False)
        except PerfsuiteError as error:
            figures.must(name, str(error).partition("\n")[0], False)
            continue
        figures.must(name, f"{time.monotonic() - began_s:.1f} s", outcome.losses_are_finite)
    session.close()
    time.sleep(1.0)  # the reaper takes what a group left
    left = what_is_there() - before
    figures.must("left behind", sorted(left), not left)


def what_is_there() -> set[str]:
    """Return the processes below this one, and temporary files and shared memory.

    Without what other sessions have named after themselves, and without multiprocessing's sockets.
    """
    others = re.compile(rf"pymp-|perfsuite-(?:server-)?(?!{os.getpid()}-)\d+-")
    processes = set()
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            processes.add(f"process {one.pid} {one.name()}")
    folders = (Path("/dev/shm"), Path(tempfile.gettempdir()))
    return processes | {
        str(path)
        for folder in folders
        if folder.is_dir()
        for path in folder.iterdir()
        if not others.match(path.name)
    }


# --- two ranks on one GPU ---


def gloo_shared_gpu(figures: Any) -> None:
    session = open_session(figures.device)
    if figures.device.is_real:
        # Ranks that see one GPU share it, through gloo; a user's cell would not be exercised.
        hardware = session.hardware._replace(num_gpus=2)
        session._launcher = LocalLauncher(hardware, session._lock)
    for mode in ("ddp:2", "zero1:2", "horovod-like:2", "fsdp:2", "tp:2", "pp:2", "mp:2"):
        recipe = Recipe(parallel=mode)
        (report,) = session.verify_each("transformer-tiny", [recipe])
        if isinstance(report, PerfsuiteError):
            figures.told(mode, f"{type(report).__name__}: {str(report).partition(chr(10))[0]}")
        else:
            figures.must(mode, describe(report), report.status == "equivalent")
    if figures.device.is_real:  # on a CPU torch refuses it
        report = session.verify(synchronised_workload(), Recipe(parallel="ddp:2"))
        figures.must("SyncBatchNorm, ddp:2", describe(report), report.status == "equivalent")


def synchronised_workload() -> Workload:
    """Return a training that is the whole batch's where ranks share their statistics."""
    images = torch.randn(512, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(images, torch.arange(512) % 4)
    return Workload(
        name="synchronised",
        build_model=_build_synchronised,
        build_dataset=lambda split: data if split == "train" else None,
        loss=nn.functional.cross_entropy,
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
        micro_batch_size=16,
    )


def _build_synchronised() -> nn.Module:
    layers = (
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 36, 4),
    )
    whole: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(*layers))
    return whole
