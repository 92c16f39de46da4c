"""Whether a workload computes the same under one recipe, or under every one of a table."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from perfsuite.errors import ExitCode, RecipeError, SettingError, WorkloadError
from perfsuite.experiments import results
from perfsuite.experiments.rank_session import Session
from perfsuite.records.equivalence import EquivalenceReport, NumericsStatus, combine_statuses
from perfsuite.records.parallel import PARALLEL_MODES, PIPELINE_SCHEDULES
from perfsuite.records.recipe import PRECISIONS, Recipe

EXIT_CODES: dict[NumericsStatus, ExitCode] = {
    "equivalent": ExitCode.OK,
    "mismatch": ExitCode.MISMATCH,
    "no power": ExitCode.NO_POWER,
    "not exercised": ExitCode.NOT_EXERCISED,
}


def verify_every(
    session: Session, workload: str, recipes: Sequence[Recipe], num_steps: int
) -> Iterator[tuple[EquivalenceReport, bool]]:
    """Yield the report of each recipe, and whether its training failed."""
    outcomes = session.verify_each(workload, recipes, num_steps=num_steps)
    for recipe, outcome in zip(recipes, outcomes, strict=True):
        if isinstance(outcome, SettingError):  # of this installation, and so of every recipe
            raise outcome
        if isinstance(outcome, EquivalenceReport):
            yield outcome, False
            continue
        fails = not isinstance(outcome, RecipeError | WorkloadError)  # combinations that cannot be
        reason = f"failed: {outcome}" if fails else str(outcome)
        yield results.not_exercised(workload, recipe, reason), fails


def exit_code(reports: Sequence[EquivalenceReport], *, of_table: bool) -> ExitCode:
    """Return the worst report's code; a table counts rows not exercised only if all are so."""
    statuses = [report.status for report in reports]
    if of_table:
        statuses = [one for one in statuses if one != "not exercised"] or ["not exercised"]
    return EXIT_CODES[combine_statuses(statuses)]


_WORLD_SIZES = (2, 3, 4)
_CHECKPOINTINGS = ("every-block", "segments:2", "selective")

# Divisible into the chunks of 2, 3 and 4 pipeline ranks, two for each.
_PIPELINE_BATCH_SIZE = 24
# Small enough that every workload's gradients fill several buckets.
_SMALL_BUCKET_MB = 0.01
_DDP_OPTIONS: tuple[dict[str, Any], ...] = (
    *({"comm_hook": hook} for hook in ("fp16", "bf16", "powersgd")),
    {"bucket_cap_mb": _SMALL_BUCKET_MB},
    *({one: True} for one in ("static_graph", "gradient_as_bucket_view", "find_unused_parameters")),
)


def every_recipe() -> list[Recipe]:
    """Return all recipes of the table in its order, none twice."""
    return list(dict.fromkeys(_rows()))


def _rows() -> Iterator[Recipe]:
    yield Recipe()
    yield Recipe(parallel="dp:2")
    for size in _WORLD_SIZES:
        for name, mode in PARALLEL_MODES.items():
            if mode.form == f"{name}:N" and not mode.runs_threads:
                yield Recipe(parallel=f"{name}:{size}")
        for schedule in PIPELINE_SCHEDULES:
            yield Recipe(parallel=f"pp:{size}:{schedule}", micro_batch_size=_PIPELINE_BATCH_SIZE)
    for mesh in ("1x2", "2x2"):
        yield Recipe(parallel=f"hsdp:{mesh}")
    for size, option in itertools.product(_WORLD_SIZES, _DDP_OPTIONS):
        yield Recipe(parallel=f"ddp:{size}", **option)
    for precision in PRECISIONS:
        of_fsdp = precision == "mp-bf16"
        for parallel in ("fsdp:2", "hsdp:2x2") if of_fsdp else ("single", "ddp:2", "ddp:3"):
            yield Recipe(parallel=parallel, precision=precision)
    for parallel in ("fsdp:2", "tp:2", "pp:2:1f1b"):
        yield Recipe(parallel=parallel, precision="amp-bf16", micro_batch_size=_PIPELINE_BATCH_SIZE)
    for checkpointing in _CHECKPOINTINGS:
        for parallel, precision in itertools.product(("single", "ddp:2"), ("fp32", "amp-bf16")):
            yield Recipe(parallel=parallel, precision=precision, checkpointing=checkpointing)
        yield Recipe(parallel="fsdp:2", checkpointing=checkpointing)
    # Accumulation makes the batch of one step no larger than the usual one.
    for parallel in ("single", "ddp:2", "ddp:3", "fsdp:2"):
        yield Recipe(parallel=parallel, micro_batch_size=8, grad_accumulation_steps=3)
    for parallel in ("single", "ddp:2", "fsdp:2"):
        for precision in ("fp32", "amp-fp16"):
            yield Recipe(parallel=parallel, precision=precision, clip_grad_norm=0.1)
