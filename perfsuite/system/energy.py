"""The energy that a GPU uses, by its own counter."""

from collections.abc import Callable

import pynvml

from perfsuite.system.gpus import if_shown, nvml, visible_gpus


def watch_energy(index: int) -> Callable[[], tuple[str, float] | None]:
    """Return a function that returns a visible GPU's UUID, and the joules since this call.

    It returns None where the GPU does not count them: one before Volta (NVML API reference,
    nvmlDeviceGetTotalEnergyConsumption), or a MIG instance, which has no counter of its own.
    """
    gpus = visible_gpus()
    uuid = gpus[index].uuid if gpus else ""
    before_j = _read_j(uuid)

    def read() -> tuple[str, float] | None:
        now_j = _read_j(uuid)
        return None if before_j is None or now_j is None else (uuid, now_j - before_j)

    return read


def _read_j(uuid: str) -> float | None:
    with nvml() as is_there:
        handle = if_shown(pynvml.nvmlDeviceGetHandleByUUID, uuid) if is_there and uuid else None
        used_mj = handle and if_shown(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    return None if used_mj is None else used_mj / 1e3
