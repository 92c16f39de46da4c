"""A profile as a terminal shows it, with the digits of its JSON."""

from collections.abc import Iterator

from perfsuite.records.profile import Epoch, Profile
from perfsuite.report.rows import NOT_AVAILABLE, Column
from perfsuite.report.terminal.tables import table_of, text_table
from perfsuite.system.untrusted import printable
from perfsuite.units import counted, format_bytes, format_ratio, format_seconds, listed

_EPOCHS: tuple[Column[tuple[int, Epoch]], ...] = (
    Column("", "epoch", lambda one: one[0]),
    Column("", "loss", lambda one: one[1].loss, "{:.4f}".format),
    Column("", "time", lambda one: one[1].duration_s, format_seconds),
    Column("", "accuracy", lambda one: one[1].accuracy, format_ratio),
)


def profile_title(profile: Profile) -> str:
    """Return what was profiled, in a few words."""
    recipe = "{parallel}, {precision}".format_map(profile.recipe)
    workers = counted(profile.recipe["num_workers"], "loader worker")
    return f"{profile.workload} ({recipe}, {workers})"


def profile_lines(profile: Profile) -> Iterator[str]:
    """Yield what the terminal shows: stages, epochs, accuracy, operators, and what is missing."""
    yield f"{profile_title(profile)}: {format_seconds(profile.wall_s)} on {profile.device}"
    stages = (
        (name, format_seconds(seconds), format_ratio(seconds / profile.wall_s))
        for name, seconds in profile.stages_s.as_rows()
    )
    yield text_table([("stage", False), ("time", True), ("share", True)], stages)
    yield table_of(_EPOCHS, enumerate(profile.epochs, start=1))
    yield from _quality_lines(profile)
    num_steps = profile.num_profiled_steps
    if profile.operators:
        operators = (
            (one.name, f"{one.calls / num_steps:.4g}", format_seconds(one.self_s / num_steps))
            for one in profile.operators
        )
        columns = [("operator", False), ("calls a step", True), ("own time a step", True)]
        yield text_table(columns, operators)
    if (found := profile.communication) is not None:
        per_step = f"{format_seconds(found.total_s / num_steps)} a step"
        exposed = f"{format_ratio(found.exposed_s / found.total_s)} of it exposed"
        yield f"communication: {per_step}, {exposed} (nothing computed meanwhile)"
    yield from _usage_lines(profile)
    # Each reason once, with the first field that it explains.
    reasons: dict[str, str] = {}
    for name, reason in profile.missing.items():
        reasons.setdefault(reason, name)
    for reason, name in reasons.items():
        yield f"{name}: not available: {reason}"


def _quality_lines(profile: Profile) -> Iterator[str]:
    split = profile.evaluated_split
    if profile.accuracy is not None and profile.accuracy_per_class is not None:
        accuracies = profile.accuracy_per_class.items()
        by_class = [f"{label}: {format_ratio(accuracy)}" for label, accuracy in accuracies]
        yield f"accuracy on the {split} split: {format_ratio(profile.accuracy)}"
        yield f"by class: {listed(by_class, most=20)}"
    if profile.metrics:
        shown = ", ".join(
            f"{printable(name)} {NOT_AVAILABLE if value is None else f'{value:.6g}'}"
            for name, value in profile.metrics.items()
        )
        yield f"on the {split} split: {shown}"
    for found in profile.non_finite:
        place = f"epoch {found.epoch}, step {found.step}"
        yield f"NaN or infinity: the first {found.what} that is not finite is of {place}"


def _usage_lines(profile: Profile) -> Iterator[str]:
    for usage in profile.usage:
        told = (sample.utilization_ratio for sample in usage.samples)
        ratios = [ratio for ratio in told if ratio is not None]
        busy = f"{format_ratio(sum(ratios) / len(ratios))} busy, " if ratios else ""
        if usage.samples:
            most = format_bytes(max(sample.memory_bytes for sample in usage.samples))
            yield f"rank {usage.rank} on {usage.device}: {busy}at most {most} in use"
