"""The checks of gpu_acceptance.py of whole trainings: compiled, loading, large, on other cores."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gpu_numerics import open_session
from gpu_surroundings import MIB, call_in_ranks
from torch import Tensor, nn

from perfsuite.records.cell import Outcome
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload


def _step_s(outcome: Outcome) -> float:
    return statistics.median(outcome.step_times_s)


# --- compiled ---


def compile(figures: Any) -> None:
    session = open_session(figures.device)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for workload in ("resnet18", "transformer-tiny"):
            for state in ("cold", "warm"):
                cell = session.measure_cell(workload, Recipe(compile=True), num_rounds=5).record
                name = f"{workload}, {state}"
                figures.told(f"{name}: s to compile", f"{cell.compile_s:.1f}")
                figures.must(
                    f"{name}: compiled anew",
                    (cell.counts.recompiles, cell.counts.graph_breaks),
                    (cell.counts.recompiles, cell.counts.graph_breaks) == (0, 0),
                )
                figures.must(f"{name}: memory", cell.memory, cell.memory is not None)
    session.close()


# --- loading ---


class Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Images that a processor must make from bytes."""

    def __len__(self) -> int:
        return 2048

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        random = torch.Generator().manual_seed(index)
        image = torch.randint(256, (3, 224, 224), generator=random, dtype=torch.uint8)
        return image.float().div_(255.0), index % 10


def images_workload() -> Workload:
    """Return ResNet-18 on images of 224 pixels."""
    import torchvision

    return Workload(
        name="images",
        build_model=lambda: torchvision.models.resnet18(num_classes=10),
        build_dataset=lambda split: Images(),
        loss=nn.functional.cross_entropy,
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        micro_batch_size=32,
    )


def loader(figures: Any) -> None:
    session = open_session(figures.device)
    measure = partial(session.measure_cell, images_workload(), num_rounds=3)
    times_s = {}
    for num_workers in (0, 4, 8):
        recipe = Recipe(num_workers=num_workers, persistent_workers=num_workers > 0)
        outcome = measure(recipe)
        times_s[num_workers] = _step_s(outcome)
        exposed_s = outcome.record.stages_s.load_exposed
        figures.told(
            f"{num_workers} workers",
            f"{1e3 * times_s[num_workers]:.1f} ms a step, of loading {1e3 * (exposed_s or 0):.1f}",
        )
    share = times_s[8] / times_s[0]
    figures.must("8 workers over none", f"{share:.2f}", share < 0.7)
    pageable, pinned = (
        measure(Recipe(num_workers=4, pin_memory=pins, non_blocking=pins), num_iterations=8)
        for pins in (False, True)
    )
    waits = [outcome.record.counts.host_syncs or 0 for outcome in (pageable, pinned)]
    figures.must("waits of a step, pageable and pinned", waits, waits[1] < waits[0])
    session.close()


# --- large ---


def encoder(width: int, num_layers: int) -> Workload:
    """Return a classifier of sentences of 64 tokens, of 50,000."""
    tokens = torch.randint(50_000, (64, 64), generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(tokens, tokens[:, 0] % 4)
    return Workload(
        name=f"encoder-{width}-{num_layers}",
        build_model=partial(_build_encoder, width, num_layers),
        build_dataset=lambda split: data if split == "train" else None,
        loss=nn.functional.cross_entropy,
        build_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
        blocks=lambda model: list(model[1].layers),
        micro_batch_size=8,
    )


class _First(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        """Return the first token's."""
        return hidden[:, 0]


def _build_encoder(width: int, num_layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(50_000, width), layers, _First(), nn.Linear(width, 4))


# Of about 120 and 350 million parameters.
_LARGE = ((768, 12), (1024, 24))
_MOST_S = 120.0


def scale(figures: Any) -> None:
    session = open_session(figures.device)
    for width, num_layers in _LARGE:
        for precision in ("fp32", "amp-bf16"):
            workload = encoder(width, num_layers)
            began_s = time.monotonic()
            report = session.verify(workload, Recipe(precision=precision))
            took_s = time.monotonic() - began_s
            is_right = report.status == "equivalent" and took_s < _MOST_S
            figures.must(
                f"{workload.name}, {precision}: {report.status}", f"{took_s:.0f} s", is_right
            )


# --- on other cores ---


def _time_host(cores: set[int]) -> tuple[float, float]:
    """Return seconds of a launch, and of a byte to the device, from these cores."""
    os.sched_setaffinity(0, cores)
    ones = torch.ones(1, device="cuda")
    pinned = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(pinned, device="cuda")

    def seconds(work: Callable[[], object], number: int) -> float:
        for _ in range(number):
            work()
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for _ in range(number):
            work()
        torch.cuda.synchronize()
        return (time.perf_counter() - began_s) / number

    return seconds(ones.zero_, 5000), seconds(lambda: device.copy_(pinned), 10) / (256 * MIB)


def affinity(figures: Any) -> None:
    cores = sorted(os.sched_getaffinity(0))
    sets = {"all": cores, "the first": cores[:1], "the last": cores[-1:]}
    for name, chosen in sets.items():
        ((launch_s, byte_s),) = call_in_ranks(1, _time_host, set(chosen), device="cuda")
        figures.told(f"{name}", f"a launch {1e6 * launch_s:.2f} us, {1e-9 / byte_s:.1f} GB/s")
