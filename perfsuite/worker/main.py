"""What each rank runs: one job in its process group, answered with one message."""

import contextlib
import functools
import gc
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel

from perfsuite import errors
from perfsuite.errors import DeviceError, PerfsuiteError
from perfsuite.ranks import messages
from perfsuite.ranks.failures import blamed_peer
from perfsuite.ranks.pickling import pack, unpack
from perfsuite.ranks.progress import Board, BoardWriter
from perfsuite.units import counted
from perfsuite.worker.jobs import verify
from perfsuite.worker.jobs.cell import run_cell
from perfsuite.worker.jobs.profile import take_profile
from perfsuite.worker.measure.clock import freeze_loaded
from perfsuite.worker.store import group_store, patience, prefer_loopback

_PROOFS = (messages.RecordRun, messages.CheckRun, messages.RecordSteps, messages.CheckSteps)
_JOBS: dict[type, Callable[..., messages.Reply]] = {
    messages.RunCell: run_cell,
    messages.RunProfile: take_profile,
    messages.RecordRun: verify.record_rank,
    messages.CheckRun: verify.check_recorded,
    messages.RecordSteps: verify.record_own_rank,
    messages.CheckSteps: verify.check_own_recorded,
}
_NOT_THE_USERS = (str(Path(__file__).parent.parent), str(Path(torch.__file__).parent))


def serve(start: messages.RankStart, pipe: Connection) -> None:
    """Do the job, send the reply, and leave when the controller has it."""
    freeze_loaded()
    del sys.argv[1:]  # of pytest or a verb: a script's main() is to see none
    board = Board(Path(start.folder) / "progress", start.request.world_size).writer(start.rank)
    try:
        device = _set_up_torch(start)
        with _process_group(start, device):
            reply = _run(start.request.job, start, device, board)
            board.enter_phase("finish")
            _send(pipe, reply)
    except Exception as error:  # noqa: BLE001  # the controller raises it
        _send(pipe, failed(error))
    else:
        return
    # Skip every exit handler: after an error a process group may hang in its own.
    os._exit(0)


def _send(pipe: Connection, reply: messages.Reply) -> None:
    """Send the reply, and return when the controller has closed its end: it has all replies."""
    for stream in (sys.stdout, sys.stderr):  # the user's code may have put anything there
        if hasattr(stream, "flush") and not getattr(stream, "closed", False):
            stream.flush()
    pipe.send(reply)
    with contextlib.suppress(EOFError, ConnectionResetError):
        pipe.recv()


def failed(error: Exception) -> messages.Failed:
    """Return what the controller raises for an error of this rank."""
    message = str(error)
    frames = traceback.extract_tb(error.__traceback__)
    # The user's frames, and the one that raised.
    shown = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    if frames[-1] not in shown:
        shown.append(frames[-1])
    return messages.Failed(
        error=type(error).__name__,
        is_ours=isinstance(error, PerfsuiteError) and type(error).__module__ == errors.__name__,
        message=message,
        peer=blamed_peer(message),
        at_s=time.monotonic(),
        lines=tuple("".join(traceback.format_list(shown)).splitlines()),
    )


def _set_up_torch(start: messages.RankStart) -> torch.device:
    """Return the rank's device, which is also torch's current one."""
    policy = start.request.policy
    # Two are bimodal by 22 % on small machines, and of a fixed number the losses repeat exactly.
    torch.set_num_threads(1)
    random.seed(start.seed)
    torch.manual_seed(start.seed)
    if policy.device != "cuda":
        # Some of torch asks whether there are GPUs, not where a tensor is; a user's may use both.
        if not isinstance(start.request.job, messages.CallFunction):
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        gpus = counted(policy.num_gpus, "GPU")
        found = f"NVML shows {gpus}, and torch {torch.__version__} ({built}) can use none"
        advice = "install a torch build with CUDA, or a newer driver, or give --perf-device=cpu"
        raise DeviceError(f"{found}: {advice}")
    if isinstance(start.request.job, _PROOFS):
        _choose_repeatable_kernels()
    device = torch.device("cuda", start.assignment.gpu % torch.cuda.device_count())
    torch.cuda.set_device(device)
    if isinstance(start.request.job, messages.CheckRun):
        # It compares on the CPU what was computed on the device: nothing here depends on threads.
        torch.set_num_threads(len(start.cores))
    return device


def _choose_repeatable_kernels() -> None:
    """Have a device compute the same bits each time, as far as it can; CUDA has not begun yet."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS, "Results reproducibility"
    os.environ.setdefault("NCCL_ALGO", "Ring")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    backends: Any = torch.backends
    backends.cudnn.benchmark, backends.cudnn.deterministic = False, True
    # Sums in 16 bits of parts of a product.
    backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True)
    functional: Any = torch.nn.functional
    attend = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = _showing_its_mask(attend)


def _showing_its_mask(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Return an attention with a dropout that a recording sees: fused kernels keep the mask."""

    @functools.wraps(attention)
    def attend(*args: Any, **kwargs: Any) -> Any:
        has_dropout = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0) > 0
        with sdpa_kernel(SDPBackend.MATH) if has_dropout else contextlib.nullcontext():
            return attention(*args, **kwargs)

    return attend


@contextlib.contextmanager
def _process_group(start: messages.RankStart, device: torch.device) -> Iterator[None]:
    if not start.request.needs_group:
        yield
        return
    if (backend := start.assignment.backend) == "gloo":
        prefer_loopback(start)
    dist.init_process_group(
        backend,
        store=group_store(start),
        rank=start.rank,
        world_size=start.request.world_size,
        timeout=patience(start),
        # Otherwise NCCL guesses the device of a barrier from the rank.
        device_id=device if backend == "nccl" else None,
    )
    yield
    dist.destroy_process_group()


def _run(
    job: messages.Job, start: messages.RankStart, device: torch.device, board: BoardWriter
) -> messages.Reply:
    if isinstance(job, messages.CallFunction):
        board.enter_phase("call")
        function, args = unpack(job.call)
        return messages.FunctionReturned(value=pack(function(*args)))
    run: Callable[..., messages.Reply] = _JOBS[type(job)]
    try:
        return run(job, start, device, board)
    except RuntimeError as error:
        lacks_kernel = "does not have a deterministic implementation" in str(error)
        # Ranks with other stages of the model go on, and would wait for one that starts again.
        is_alone = isinstance(job, messages.RecordRun) and job.recipe.plan.properties.cuts_model
        if not (lacks_kernel and isinstance(job, _PROOFS)) or is_alone:
            raise
    # Out of the handler, whose traceback holds the model that raised, and its activations.
    gc.collect()
    torch.use_deterministic_algorithms(True, warn_only=True)
    return run(job, start, device, board)
