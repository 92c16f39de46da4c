"""torch as a rank finds it, which loads it by name, as this process must not."""

import contextlib
import importlib
import io
import ipaddress
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from perfsuite import errors
from perfsuite.cli.doctor.findings import Finding, Status
from perfsuite.experiments.rank_session import Session
from perfsuite.ranks.messages import GroupPolicy
from perfsuite.system.gpus import visible_gpus
from perfsuite.units import counted

# Two ranks load torch in 4 s and have their sum 0.1 s later (on 2 cores): later ones are stuck.
_POLICY = GroupPolicy(timeout_s=20.0, collective_timeout_s=5.0)
# Eight GPUs without persistence mode take up to 20 s to wake.
_WAKING_S = 60.0


def examine_torch(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Yield what fresh ranks find about torch, torchvision, gloo and NCCL; none without torch."""
    try:
        errors.require_torch()
    except errors.SettingError as error:
        status: Status = "ok" if isinstance(error, errors.MissingPackageError) else "fail"
        yield Finding("torch", status, str(error), "only cells that train need it")
        return
    try:
        num_gpus = len(visible_gpus())
    except errors.DeviceError as error:
        yield Finding("ranks", "fail", f"cannot be started: {error}", "see nvidia-smi")
        return
    session = Session(_POLICY, say=print)
    yield finding_of_ranks(
        lambda: session.run_function(1, read_torch),
        "torch",
        lambda facts: torch_finding(facts[0], num_gpus),
        advice="see what `python -c 'import torch'` says, and install torch again",
    )
    yield finding_of_ranks(
        lambda: session.run_function(1, read_torchvision),
        "torchvision",
        lambda versions: Finding("torchvision", "ok", versions[0]),
        advice="install torch and torchvision together, from one index",
    )
    advice = "see that the loopback interface is up: ip link set lo up"
    yield finding_of_ranks(
        lambda: session.run_function(2, sum_over_ranks), "gloo", sum_finding, advice=advice
    )
    if num_gpus:
        on_gpus = Session(_POLICY._replace(device="cuda", timeout_s=_WAKING_S), say=print)
        yield finding_of_ranks(
            lambda: on_gpus.run_function(num_gpus, sum_over_ranks),
            "NCCL",
            lambda sums: sum_finding(sums, "NCCL"),
            advice="see what NCCL says with NCCL_DEBUG=INFO",
        )
    host, address = socket.gethostname(), None
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(host)
    yield interface_finding(host, address, environ.get("GLOO_SOCKET_IFNAME"))


def finding_of_ranks(
    ask: Callable[[], list[Any]], subject: str, judge: Callable[[list[Any]], Finding], advice: str
) -> Finding:
    """Return `judge` of what `ask()` returned of each rank, or why it failed, with the advice."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the ranks' logs
            answers = ask()
    except errors.MissingPackageError as error:
        return Finding(subject, "ok", str(error))
    except (errors.PerfsuiteError, OSError, EOFError) as error:
        # EOFError: the server that ranks are forked from ended, as torch does where it cannot load.
        reason = str(error).partition("\n")[0] or type(error).__name__
        return Finding(subject, "fail", reason, advice)
    return judge(answers)


def read_torch() -> dict[str, Any]:
    """Return what torch was built with, None without, and what it finds. Runs in a rank."""
    torch = importlib.import_module("torch")
    cudnn = torch.backends.cudnn.version()
    has_nccl = torch.distributed.is_nccl_available()
    return {
        "version": torch.__version__,
        "CUDA": torch.version.cuda,
        "cuDNN": None if cudnn is None else str(cudnn),
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None,
        "num_gpus": torch.cuda.device_count(),
        "num_threads": torch.get_num_threads(),  # within one operator
    }


def read_torchvision() -> str:
    """Return the version of torchvision, which fails beside a torch of another build."""
    return str(errors.import_extra("torchvision", "workloads").__version__)


def sum_over_ranks() -> float:
    """Return the sum over ranks of their numbers from 1, by a real all_reduce. Runs in ranks."""
    torch = importlib.import_module("torch")
    has_gpus = torch.distributed.get_backend() == "nccl"
    device = torch.accelerator.current_accelerator() if has_gpus else None
    number = torch.tensor(float(torch.distributed.get_rank() + 1), device=device)
    torch.distributed.all_reduce(number)
    return float(number)


def torch_finding(facts: Mapping[str, Any], num_gpus: int) -> Finding:
    """Judge the torch build against the GPUs that NVML shows."""
    built_with = (f"{name} {facts[name]}" for name in ("CUDA", "cuDNN", "NCCL") if facts[name])
    threads, gpus = counted(facts["num_threads"], "thread"), counted(facts["num_gpus"], "GPU")
    text = f"{facts['version']} ({', '.join(built_with) or 'no CUDA'}), {threads} a rank, {gpus}"
    if facts["num_gpus"] == num_gpus:
        return Finding("torch", "ok", text)
    if facts["CUDA"] is None:
        advice = "install a torch build with CUDA: https://pytorch.org/get-started"
    else:
        advice = f"use a driver that supports CUDA {facts['CUDA']} or newer, or an older torch"
    return Finding("torch", "fail", f"{text}, where NVML shows {num_gpus}", advice)


def sum_finding(sums: list[float], backend: str = "gloo") -> Finding:
    """Judge the sums of 1, 2, ... that the ranks got."""
    expected = float(sum(range(1, len(sums) + 1)))
    if sums == [expected] * len(sums):
        where = "over the loopback interface" if backend == "gloo" else "on a GPU each"
        return Finding(backend, "ok", f"{counted(len(sums), 'rank')} summed {where}")
    text = f"{len(sums)} ranks summed to {', '.join(f'{one:g}' for one in sums)}, not {expected:g}"
    advice = "install torch again: no result of several ranks can be trusted"
    return Finding(backend, "fail", text, advice)


def interface_finding(host: str, address: str | None, chosen: str | None) -> Finding:
    """Judge gloo's interface between hosts: that of the host's address, unless one is chosen."""
    subject = "gloo between hosts"
    if chosen:
        return Finding(subject, "ok", f"GLOO_SOCKET_IFNAME={chosen}")
    advice = "for torchrun over several hosts, set GLOO_SOCKET_IFNAME (see: ip address), "
    advice += "and give --master-addr an address of the first host"
    if address is None:
        return Finding(subject, "warn", f"host name {host!r} does not resolve", advice)
    if ipaddress.ip_address(address).is_loopback:
        text = f"host name {host!r} is {address}, where no other host can connect"
        return Finding(subject, "warn", text, advice)
    return Finding(subject, "ok", f"host name {host!r} is {address}")
