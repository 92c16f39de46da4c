"""The checks of gpu_acceptance.py of what a GPU computes: repetition, equivalence, mistakes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from gpu_surroundings import call_in_ranks
from torch import Tensor, nn

from perfsuite.errors import EquivalenceError, PerfsuiteError
from perfsuite.experiments.rank_session import Session
from perfsuite.ranks.messages import GroupPolicy
from perfsuite.records.equivalence import EquivalenceReport
from perfsuite.records.recipe import COMM_HOOKS, Recipe
from perfsuite.records.stages import Step
from perfsuite.worker.main import _choose_repeatable_kernels


def open_session(device: Any) -> Session:
    """Return a session on the GPU, or on the CPU of a stand-in."""
    policy = GroupPolicy(
        device="cuda" if device.is_real else "cpu", import_roots=(str(Path(__file__).parent),)
    )
    return Session(policy, say=print)


# --- does it repeat itself? ---

# Of a product of matrices with so many terms in each sum.
_PRODUCTS = (256, 4096, 16384)


def _repeat(device_name: str, repeatable: bool) -> dict[str, tuple[float, str]]:
    """Return by case how far a second pass is from the first, and the digest of the first."""
    if repeatable:
        _choose_repeatable_kernels()
    device = torch.device(device_name)
    found = {}
    for name, compute in _cases(device):
        first, second = compute(), compute()
        difference = max(
            float((one - other).norm() / one.norm().clamp_min(1e-30))
            for one, other in zip(first, second, strict=True)
        )
        data = b"".join(one.cpu().numpy().tobytes() for one in first)
        found[name] = difference, hashlib.sha256(data).hexdigest()[:12]
    return found


def _cases(device: torch.device) -> Iterator[tuple[str, Callable[[], list[Tensor]]]]:
    from perfsuite.worker.training.loaders import EpochBatches
    from perfsuite.worker.training.step import compute_loss, prepare_batch
    from perfsuite.worker.training.trainer import build_trainer
    from perfsuite.worker.workloads import lenet, resnet, transformer

    workloads = (lenet.lenet_digits(), resnet.resnet18(), transformer.transformer_tiny())
    for workload in workloads:
        for precision in ("fp32", "amp-bf16"):

            def gradients(workload: Any = workload, precision: str = precision) -> list[Tensor]:
                recipe = Recipe(precision=precision)
                trainer = build_trainer(workload, recipe, device=device, seed=0)
                with EpochBatches(workload, recipe, "train", (0, 1), seed=0) as batches:
                    inputs, target = prepare_batch(trainer, next(batches))
                    compute_loss(trainer, trainer.model(inputs), target).backward()
                return [
                    one.grad.double() for one in trainer.model.parameters() if one.grad is not None
                ]

            yield f"{workload.name}, {precision}", gradients
    for num_terms in _PRODUCTS:

        def product(num_terms: int = num_terms) -> list[Tensor]:
            random = torch.Generator(device).manual_seed(0)
            left, right = (
                torch.randn(256, num_terms, device=device, generator=random) for _ in range(2)
            )
            return [(left @ right.T).double()]

        yield f"product over {num_terms}", product

    def indexed() -> list[Tensor]:
        random = torch.Generator(device).manual_seed(0)
        rows = torch.randint(50, (20_000,), device=device, generator=random)
        values = torch.randn(20_000, 64, device=device, generator=random)
        table = torch.zeros(50, 64, device=device, requires_grad=True)
        nn.functional.embedding(rows, table).mul(values).sum().backward()
        assert table.grad is not None
        return [table.grad.double(), torch.zeros_like(table).detach().index_add(0, rows, values)]

    yield "embedding, index_add", indexed


def noise_floor(figures: Any) -> None:
    device = "cuda" if figures.device.is_real else "cpu"
    usual, first, second = (
        call_in_ranks(1, _repeat, device, repeatable, device=device)[0]
        for repeatable in (False, True, True)
    )
    for name, (difference, digest) in first.items():
        same = digest == second[name][1]
        what = f"{name}: again, and in another process"
        figures.must(what, f"{difference:.1e}, {same}", difference == 0 and same)
    noisy = {name: f"{difference:.1e}" for name, (difference, _) in usual.items() if difference}
    figures.told("with the usual kernels", noisy or "each repeats itself")


# --- is it what one process computes? ---


def _recipes() -> Iterator[tuple[str, Recipe]]:
    """Yield what one GPU can exercise, each value of a field at least once.

    The plain precisions, which an H100 has verified, come last.
    """
    convolutions, attention = "lenet-digits", "transformer-tiny"
    modes = ("ddp:1", "fsdp:1", "hsdp:1x1", "zero1:1", "zero2:1", "horovod-like:1", "dp:2")
    for number, mode in enumerate(modes):
        yield (convolutions, attention)[number % 2], Recipe(parallel=mode)
        yield attention, Recipe(parallel=mode, precision=("amp-bf16", "amp-fp16", "O2")[number % 3])
    for number, checkpointing in enumerate(("every-block", "segments:2", "selective")):
        yield attention, Recipe(checkpointing=checkpointing)
        precision = ("amp-fp16", "tf32", "bf16")[number]
        yield (
            convolutions if checkpointing != "selective" else attention,
            Recipe(checkpointing=checkpointing, precision=precision),
        )
    for hook in COMM_HOOKS[1:]:
        yield convolutions, Recipe(parallel="ddp:1", comm_hook=hook)
    yield attention, Recipe(parallel="fsdp:1", precision="mp-bf16")
    yield attention, Recipe(grad_accumulation_steps=4, clip_grad_norm=1.0, precision="amp-bf16")
    yield convolutions, Recipe(parallel="fsdp:1", grad_accumulation_steps=2, clip_grad_norm=1.0)
    yield convolutions, Recipe(parallel="ddp:1", gradient_as_bucket_view=True, bucket_cap_mb=0.05)
    yield attention, Recipe(compile=True)
    yield "transformer-tiny-lora", Recipe(precision="amp-bf16")
    yield "toy-mlp", Recipe(precision="tf32")
    yield convolutions, Recipe(num_workers=2, pin_memory=True, non_blocking=True)
    if find_spec("torchao") is not None:
        yield attention, Recipe(precision="fp8-tensorwise")
        yield attention, Recipe(precision="fp8-rowwise")
    precisions = ("fp32", "tf32", "amp-bf16", "amp-fp16", "bf16", "fp64", "O1", "O2", "O3")
    for workload in (convolutions, attention, "resnet18"):
        for precision in precisions if workload != "resnet18" else ("fp32", "amp-bf16", "tf32"):
            yield workload, Recipe(precision=precision)


_MOST_VERIFY_S = 140.0
# Each recipe that was judged, a line each. A second start in the folder judges the others; remove
# the file where the code has changed.
_JUDGED = Path("verified.jsonl")


def verify(figures: Any) -> None:
    lines = _JUDGED.read_text().splitlines() if _JUDGED.exists() else []
    judged: dict[str, dict[str, Any]] = {line["name"]: line for line in map(json.loads, lines)}
    for line in judged.values():
        _show_judged(figures, line)
    session = open_session(figures.device)
    began_s = time.monotonic()
    recipes = {_name_of(*each): each for each in _recipes()}
    for name, (workload, recipe) in recipes.items():
        if name in judged:
            continue
        if time.monotonic() - began_s > _MOST_VERIFY_S:
            break
        (report,) = session.verify_each(workload, [recipe])
        judged[name] = {"name": name, **_judged(report)}
        with _JUDGED.open("a") as file:
            file.write(json.dumps(judged[name]) + "\n")
        _show_judged(figures, judged[name])
    figures.told("verified", f"{len(judged)} of {len(recipes)}, {len(lines)} by an earlier start")
    # A limit of twice the error of plain training leaves correct code at about half of it.
    shares = sorted(((line["severity"], name) for name, line in judged.items()), reverse=True)[:3]
    figures.told("largest shares", "; ".join(f"{share:.2f}, {name}" for share, name in shares))


def _name_of(workload: str, recipe: Recipe) -> str:
    usual = Recipe().as_dict()
    changed = {name: value for name, value in recipe.as_dict().items() if value != usual[name]}
    return f"{workload} {changed or ''}".rstrip()


def _judged(report: EquivalenceReport | PerfsuiteError) -> dict[str, Any]:
    if isinstance(report, PerfsuiteError):
        found = f"{type(report).__name__}: {report}"
        return {"found": found, "status": "error", "severity": 0.0}
    return {"found": describe(report), "status": report.status, "severity": _severity(report)}


def _show_judged(figures: Any, line: dict[str, Any]) -> None:
    figures.must(line["name"], line["found"], line["status"] not in ("mismatch", "error"))
    if line["status"] in ("no power", "not exercised"):
        figures.told(line["name"], line["found"])


def _severity(report: EquivalenceReport) -> float:
    """Return the largest share of an error in its limit."""
    return max(
        (row.error / row.limit for row in report.rows if row.error is not None and row.limit),
        default=0.0,
    )


def describe(report: EquivalenceReport) -> str:
    if report:
        return f"equivalent, {_severity(report):.2f} of its limit"
    return f"{report.worst.check} {report.status}: {report.worst.reason}"


# --- are mistakes found? ---


class Network(nn.Module):
    """Convolutions and a product that are large enough for TensorFloat-32."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 64, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of 10 classes."""
        scores: Tensor = self.layers(images)
        return scores


def _build(mistake: str | None) -> Callable[[], Step]:
    """Return a `build_step` with a mistake in it."""

    def build_step() -> Step:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(0)
        model = Network().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        random = torch.Generator().manual_seed(1)
        # Shifted, so that each micro-batch and each sample has a gradient of its own.
        shifts = torch.arange(32).view(-1, 1, 1, 1) / 8
        images = torch.randn(32, 16, 8, 8, generator=random) + shifts
        classes = torch.randint(10, (32,), generator=random)
        images, classes = images.to(device), classes.to(device)
        if mistake == "TF32 left on":
            backends: Any = torch.backends
            for part in (backends, backends.cuda.matmul, backends.cudnn.conv):
                part.fp32_precision = "tf32"

        def step() -> Tensor:
            optimizer.zero_grad()
            total = torch.zeros((), device=device)
            for number in range(4):
                if mistake == "a lost micro-batch" and number == 3:
                    continue
                chosen = slice(8 * number, 8 * number + 8)
                lower = mistake == "autocast left on"
                with torch.autocast(device.type, torch.bfloat16, enabled=lower):
                    loss = nn.functional.cross_entropy(model(images[chosen]), classes[chosen]) / 4
                loss.backward()
                total += loss.detach()
            scale = {"doubled": 2.0, "an eighth too large": 1.125}.get(mistake or "", 1.0)
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(scale)
            if mistake == "a lost gradient":
                model.layers[0].weight.grad.zero_()  # type: ignore[union-attr, operator]
            optimizer.step()
            return total

        return Step(step, model, optimizer)

    return build_step


MISTAKES = (
    "doubled",
    "an eighth too large",
    "a lost micro-batch",
    "a lost gradient",
    "autocast left on",
    "TF32 left on",
)


def planted(figures: Any) -> None:
    session = open_session(figures.device)
    for mistake in (None, *MISTAKES):
        if mistake == "TF32 left on" and not figures.device.is_real:
            continue  # a CPU has none
        said = "equivalent"
        try:
            session.measure_user_code(
                _build(mistake), kind="step", reference=_build(None), is_timed=False
            )
        except EquivalenceError as error:
            said = str(error).partition("\n")[2].partition("\n")[0] or str(error)
        figures.must(mistake or "no mistake", said, (said == "equivalent") == (mistake is None))
