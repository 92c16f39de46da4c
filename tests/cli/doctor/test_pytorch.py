"""What the doctor says of torch, and real ranks that tell it."""

from __future__ import annotations

import socket
from typing import Any

import pynvml
import pytest

from perfsuite.cli.doctor.findings import Finding
from perfsuite.cli.doctor.pytorch import (
    examine_torch,
    finding_of_ranks,
    interface_finding,
    sum_finding,
    torch_finding,
)
from perfsuite.errors import RankFailureError


def facts(**changed: Any) -> dict[str, Any]:
    return {
        "version": "2.15.0+cu132",
        "CUDA": "13.2",
        "cuDNN": "92600",
        "NCCL": "2.30.7",
        "num_gpus": 1,
        "num_threads": 1,
        **changed,
    }


def test_torch_that_sees_all_gpus_is_fine() -> None:
    assert torch_finding(facts(), 1) == Finding(
        "torch",
        "ok",
        "2.15.0+cu132 (CUDA 13.2, cuDNN 92600, NCCL 2.30.7), 1 thread a rank, 1 GPU",
    )


def test_torch_without_cuda_beside_a_gpu_is_a_failure() -> None:
    cpu_build = facts(version="2.15.0+cpu", CUDA=None, cuDNN=None, NCCL=None, num_gpus=0)

    assert torch_finding(cpu_build, 2) == Finding(
        "torch",
        "fail",
        "2.15.0+cpu (no CUDA), 1 thread a rank, 0 GPUs, where NVML shows 2",
        "install a torch build with CUDA: https://pytorch.org/get-started",
    )


def test_torch_that_is_too_new_for_the_driver_is_a_failure() -> None:
    finding = torch_finding(facts(num_gpus=0, NCCL=None, num_threads=2), 1)

    assert finding == Finding(
        "torch",
        "fail",
        "2.15.0+cu132 (CUDA 13.2, cuDNN 92600), 2 threads a rank, 0 GPUs, where NVML shows 1",
        "use a driver that supports CUDA 13.2 or newer, or an older torch",
    )


def test_a_wrong_sum_is_a_failure() -> None:
    assert sum_finding([3.0, 3.0]) == Finding(
        "gloo", "ok", "2 ranks summed over the loopback interface"
    )
    assert sum_finding([1.0], "NCCL") == Finding("NCCL", "ok", "1 rank summed on a GPU each")
    assert sum_finding([3.0, 1.0]) == Finding(
        "gloo",
        "fail",
        "2 ranks summed to 3, 1, not 3",
        "install torch again: no result of several ranks can be trusted",
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RankFailureError("rank 0 of 2 was killed\n  its log", rank=0), "rank 0 of 2 was killed"),
        (EOFError(), "EOFError"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
    ],
)
def test_ranks_that_do_not_answer_are_a_finding(error: Exception, text: str) -> None:
    def fail() -> list[Any]:
        raise error

    assert finding_of_ranks(fail, "gloo", sum_finding, advice="look") == Finding(
        "gloo", "fail", text, "look"
    )


def test_a_host_name_on_the_loopback_interface_is_a_warning() -> None:
    advice = (
        "for torchrun over several hosts, set GLOO_SOCKET_IFNAME (see: ip address), and give "
        "--master-addr an address of the first host"
    )

    assert interface_finding("box", "127.0.1.1", None) == Finding(
        "gloo between hosts",
        "warn",
        "host name 'box' is 127.0.1.1, where no other host can connect",
        advice,
    )
    assert interface_finding("box", None, None) == Finding(
        "gloo between hosts", "warn", "host name 'box' does not resolve", advice
    )


def test_an_address_of_its_own_or_a_chosen_interface_is_fine() -> None:
    assert interface_finding("box", "10.0.0.7", None) == Finding(
        "gloo between hosts", "ok", "host name 'box' is 10.0.0.7"
    )
    assert interface_finding("box", "127.0.0.1", "eth0") == Finding(
        "gloo between hosts", "ok", "GLOO_SOCKET_IFNAME=eth0"
    )


@pytest.mark.slow
def test_real_ranks_tell_about_torch_and_sum_over_gloo() -> None:
    torch, torchvision, gloo, between_hosts = examine_torch({"GLOO_SOCKET_IFNAME": "eth7"})

    assert (torch.subject, torch.status) == ("torch", "ok"), torch
    assert "1 thread a rank" in torch.text
    assert (torchvision.subject, torchvision.status) == ("torchvision", "ok"), torchvision
    assert gloo == Finding("gloo", "ok", "2 ranks summed over the loopback interface")
    assert between_hosts.text == "GLOO_SOCKET_IFNAME=eth7"


def test_broken_nvml_is_reported_in_place_of_the_ranks_findings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", broken)

    (found,) = examine_torch({})

    assert (found.subject, found.status, found.advice) == ("ranks", "fail", "see nvidia-smi")
    assert found.text.startswith("cannot be started: a GPU does not answer: GPU is lost (NVML); ")


def test_a_host_name_that_does_not_resolve_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    monkeypatch.setattr(
        "perfsuite.experiments.rank_session.Session.run_function", lambda *_: no_ranks()
    )

    assert [*examine_torch({})][-1].text == "host name 'box' does not resolve"


def no_ranks() -> list[Any]:
    raise RankFailureError("rank 0 of 1 was killed", rank=0)
