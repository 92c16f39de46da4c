from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from perfsuite.errors import DeviceError
from perfsuite.experiments.rank_session import Session
from perfsuite.ranks.messages import GroupPolicy
from perfsuite.system import gpus
from perfsuite.system.gpus import (
    GpuFacts,
    driver_version,
    open_clocks,
    read_energy,
    visible_gpus,
)


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("has_devices", [True, False])
def test_gpus_that_nvml_cannot_show_are_refused_and_do_not_become_a_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_there: bool, has_devices: bool
) -> None:
    fake = FakeNvml(is_there)
    fake.gpus = []
    monkeypatch.setattr(gpus, "pynvml", fake)
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path / ("" if has_devices else "none"))

    if has_devices and not is_there:
        with pytest.raises(DeviceError, match=r"cannot show them: NVML Shared .*perf-device=cpu"):
            Session(GroupPolicy(device="auto"), say=print)
    else:
        assert Session(GroupPolicy(device="auto"), say=print).hardware.device == "cpu"
    assert Session(GroupPolicy(device="cpu"), say=print).hardware.device == "cpu"
    assert fake.num_open == 0


class FakeNvml:
    """NVML with GPUs that are dicts; the last one has a MIG instance."""

    NVML_DEVICE_MIG_ENABLE = 1
    NVML_CLOCK_SM = 1
    NVML_NVLINK_MAX_LINKS = 18

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
        pass

    class NVMLError_NoPermission(NVMLError):  # noqa: N801, N818
        pass

    def __init__(self, is_there=True):
        self.is_there = is_there
        self.num_open = 0
        self.gpus = [
            {"uuid": "GPU-aa11", "name": "NVIDIA A100", "memory": 40, "capability": (8, 0)},
            {"uuid": "GPU-aa22", "name": "NVIDIA H100", "memory": 80, "capability": (9, 0)},
            {"uuid": "GPU-bb33", "name": "NVIDIA T4", "memory": 15, "capability": (7, 5)},
        ]
        self.gpus[0] |= {"limit_mw": 400_000, "mig": (0, 0), "clocks": (1410, 1410)}
        self.gpus[0] |= {"affinity": (1 << 63 | 1, 0b10), "ecc": [1, 1], "pcie": (5, 8)}
        self.gpus[0] |= {"links": [1, 1, 0], "vbios": "92.00.45.00.03"}
        self.gpus[1] |= {"limit_mw": 700_000, "mig": (0, 0), "clocks": (1200, 1980)}
        parent = self.gpus[1]
        self.instance = {"uuid": "MIG-cc44", "name": "NVIDIA H100 MIG 1g.10gb", "memory": 10}
        self.instance["parent"] = parent

    def nvmlInit(self):  # noqa: N802
        if not self.is_there:
            raise self.NVMLError("NVML Shared Library Not Found")
        self.num_open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.num_open -= 1

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "580.65"

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid != self.instance["uuid"]:
            raise self.NVMLError("Not Found")
        return self.instance

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle):  # noqa: N802
        return handle["parent"]

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return handle["uuid"]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        return self._supported(handle, "energy_mj")

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return handle["name"]

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return SimpleNamespace(total=self._supported(handle, "memory"))

    def nvmlDeviceGetCudaComputeCapability(self, handle):  # noqa: N802
        return handle["capability"]

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):  # noqa: N802
        return self._supported(handle, "limit_mw")

    def nvmlDeviceGetMigMode(self, handle):  # noqa: N802
        return self._supported(handle, "mig")

    def nvmlDeviceGetApplicationsClock(self, handle, clock):  # noqa: N802
        assert clock == self.NVML_CLOCK_SM
        return self._supported(handle, "clocks")[0]

    def nvmlDeviceGetDefaultApplicationsClock(self, handle, clock):  # noqa: N802
        return self._supported(handle, "clocks")[1]

    def nvmlDeviceGetCpuAffinity(self, handle, num_words):  # noqa: N802
        return self._supported(handle, "affinity")[:num_words]

    def nvmlDeviceGetEccMode(self, handle):  # noqa: N802
        return self._supported(handle, "ecc")

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle):  # noqa: N802
        return self._supported(handle, "pcie")[0]

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle):  # noqa: N802
        return self._supported(handle, "pcie")[1]

    def nvmlDeviceGetVbiosVersion(self, handle):  # noqa: N802
        return self._supported(handle, "vbios")

    def nvmlDeviceGetNvLinkState(self, handle, link):  # noqa: N802
        states = self._supported(handle, "links")
        if link >= len(states):
            raise self.NVMLError("Invalid Argument")
        return states[link]

    def nvmlDeviceGetClockInfo(self, handle, clock):  # noqa: N802
        assert clock == self.NVML_CLOCK_SM
        return self._supported(handle, "clocks")[1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):  # noqa: N802
        if (handle, index) != (self.instance["parent"], self.instance.get("index", 0)):
            raise self.NVMLError("Not Found")
        return self.instance

    def cut(self):
        """Cut the second GPU into MIG instances, the first of which is known."""
        self.gpus[1]["mig"] = (1, 1)

    def _supported(self, handle, key):
        if key not in handle:
            raise self.NVMLError_NotSupported("Not Supported")
        return handle[key]


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setattr(gpus, "pynvml", fake)
    return fake


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, ["GPU-aa11", "GPU-aa22", "GPU-bb33"]),
        ("", []),
        ("-1", []),
        ("2,0", ["GPU-bb33", "GPU-aa11"]),
        (" 1 , 0", ["GPU-aa22", "GPU-aa11"]),
        ("0,-1,1", ["GPU-aa11"]),
        ("0,7,1", ["GPU-aa11"]),
        ("1,1", []),
        ("GPU-aa22,GPU-bb33", ["GPU-aa22", "GPU-bb33"]),
        ("GPU-b", ["GPU-bb33"]),
        ("GPU-aa", []),
        ("gpu0", []),
        ("MIG-none", []),
    ],
)
def test_the_visible_gpus_are_those_that_cuda_would_show(nvml, chosen, expected):
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}

    assert [gpu.uuid for gpu in visible_gpus(environ)] == expected
    assert nvml.num_open == 0


def test_a_gpu_is_described_by_what_nvml_knows_of_it(nvml):
    first, second, third = visible_gpus({})

    assert first == GpuFacts(
        name="NVIDIA A100",
        uuid="GPU-aa11",
        memory_bytes=40,
        compute_capability=(8, 0),
        power_limit_w=400.0,
        is_mig=False,
        cores=(0, 63, 65),
        has_ecc=True,
        pcie=(5, 8),
        num_nvlinks=2,
        vbios="92.00.45.00.03",
    )
    assert second.cores == ()
    assert (third.power_limit_w, third.is_mig) == (None, None)


def test_a_gpu_whose_clocks_were_set_says_so(nvml):
    assert [gpu.clock_mhz for gpu in visible_gpus({})] == [None, 1200, None]


def test_a_mig_instance_takes_from_its_gpu_what_it_has_not_itself(nvml):
    nvml.cut()
    [instance] = visible_gpus({"CUDA_VISIBLE_DEVICES": "MIG-cc44"})

    assert instance == GpuFacts(
        name="NVIDIA H100 MIG 1g.10gb",
        uuid="MIG-cc44",
        memory_bytes=10,
        compute_capability=(9, 0),
        power_limit_w=700.0,
        is_mig=True,
        clock_mhz=1200,
    )


@pytest.mark.parametrize("chosen", [None, "1", "0,1", "GPU-aa22"])
def test_of_a_gpu_that_is_cut_cuda_shows_one_instance_and_nothing_beside_it(nvml, chosen):
    nvml.cut()
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}

    assert [gpu.uuid for gpu in visible_gpus(environ)] == ["MIG-cc44"]
    assert [gpu.uuid for gpu in visible_gpus({"CUDA_VISIBLE_DEVICES": "0"})] == ["GPU-aa11"]


def test_of_two_instances_that_are_named_cuda_shows_the_first(nvml, monkeypatch):
    nvml.cut()
    other = nvml.instance | {"uuid": "MIG-dd55"}
    named = {"MIG-cc44": nvml.instance, "MIG-dd55": other}
    monkeypatch.setattr(nvml, "nvmlDeviceGetHandleByUUID", named.__getitem__)

    found = visible_gpus({"CUDA_VISIBLE_DEVICES": "MIG-dd55,MIG-cc44"})

    assert [gpu.uuid for gpu in found] == ["MIG-dd55"]


def test_the_first_instance_of_a_gpu_need_not_have_the_first_index(nvml):
    nvml.cut()
    nvml.instance["index"] = 3

    assert [gpu.uuid for gpu in visible_gpus({})] == ["MIG-cc44"]


def test_a_gpu_that_is_to_be_cut_and_has_no_instance_is_not_there(nvml):
    nvml.cut()
    nvml.instance["parent"] = None

    assert [gpu.uuid for gpu in visible_gpus({})] == ["GPU-aa11", "GPU-bb33"]


def test_a_gpu_without_memory_of_its_own_has_that_of_its_machine(nvml):
    del nvml.gpus[0]["memory"]

    assert visible_gpus({})[0].memory_bytes == psutil.virtual_memory().total


@pytest.mark.parametrize("chosen", ["1,2", "GPU-aa22,GPU-bb33"])
def test_a_lost_gpu_that_is_hidden_stops_nothing(nvml, monkeypatch, chosen):
    def lose_the_first(index):
        if index == 0:
            raise nvml.NVMLError("GPU is lost")
        return nvml.gpus[index]

    monkeypatch.setattr(nvml, "nvmlDeviceGetHandleByIndex", lose_the_first)

    visible = visible_gpus({"CUDA_VISIBLE_DEVICES": chosen})

    assert [gpu.uuid for gpu in visible] == ["GPU-aa22", "GPU-bb33"]
    with pytest.raises(DeviceError):
        visible_gpus({"CUDA_VISIBLE_DEVICES": "0"})


def test_a_machine_without_nvml_has_no_gpus(nvml):
    nvml.is_there = False

    assert visible_gpus({}) == []
    assert driver_version() is None


def test_a_gpu_that_fell_off_the_bus_is_told_and_nvml_let_go(nvml, monkeypatch):
    def lose(_):
        raise nvml.NVMLError("GPU is lost")

    monkeypatch.setattr(nvml, "nvmlDeviceGetHandleByIndex", lose)

    with pytest.raises(DeviceError) as lost:
        visible_gpus({})

    assert str(lost.value) == (
        "a GPU does not answer: GPU is lost (NVML); look for Xid in the kernel's log (dmesg), and "
        "reset the GPU or restart the machine"
    )
    assert nvml.num_open == 0


def test_the_clocks_of_the_visible_gpus_are_read_or_nothing(nvml, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with open_clocks() as read:
        assert read() == [1980, 1410]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")  # of the third none is told
    with open_clocks() as read:
        assert read() == []
    nvml.is_there = False
    with open_clocks() as read:
        assert read() == []
    assert nvml.num_open == 0


def test_the_joules_are_those_of_a_visible_gpu_that_counts_them(nvml, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    nvml.gpus[0]["energy_mj"] = 7_001_500

    assert (read_energy(1), read_energy(0)) == (("GPU-aa11", 7001.5), None)


def test_where_variables_have_changed_since_an_unknown_gpu_has_no_joules(nvml, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # by a training, once CUDA had begun
    nvml.gpus[0]["energy_mj"] = 7_001_500

    assert read_energy(1) is None


def test_a_machine_without_gpus_has_no_joules(nvml):
    nvml.is_there = False

    assert read_energy(0) is None


def test_the_driver_is_named(nvml):
    assert driver_version() == "580.65"
    assert nvml.num_open == 0
