"""A profile as people read it: text for a terminal, LaTeX for a paper, CSV for a spreadsheet.

Sees the profile only. Every form shows the same digits as the JSON: the stages are rounded once,
where ranks are combined.
"""

from __future__ import annotations

from rich import box
from rich.table import Table

from perfsuite.records.profile import Profile
from perfsuite.report.terminal.tables import render
from perfsuite.system.untrusted import printable
from perfsuite.units import format_bytes, format_ratio, format_seconds

_NOTHING = "-"
_NUM_CLASSES_SHOWN = 20


def profile_text(profile: Profile) -> str:
    """Return what the terminal shows: stages, epochs, accuracy, operators, and what is missing."""
    parts = [
        f"{profile_title(profile)}: {format_seconds(profile.wall_s)} on {profile.device}",
        _stage_table(profile),
        _epoch_table(profile),
        *_accuracy_lines(profile),
        *_metric_lines(profile),
        *non_finite_lines(profile),
        _operator_table(profile),
        *_communication_lines(profile),
        *_usage_lines(profile),
        *(f"{name}: not available: {reason}" for name, reason in _reasons(profile)),
    ]
    return "\n".join(part for part in parts if part)


def non_finite_lines(profile: Profile) -> list[str]:
    """Return a line for the first loss and for the first gradient that was NaN or infinite."""
    return [
        f"NaN or infinity: the first {found.what} that is not finite is of epoch {found.epoch}, "
        f"step {found.step}"
        for found in profile.non_finite
    ]


def profile_title(profile: Profile) -> str:
    """Return what was profiled, in a few words."""
    recipe = profile.recipe
    return (
        f"{profile.workload} ({recipe['parallel']}, {recipe['precision']}, "
        f"{recipe['num_workers']} loader workers)"
    )


def _stage_table(profile: Profile) -> str:
    table = _table(("stage", "left"), ("time", "right"), ("share", "right"))
    for name, seconds in profile.stages_s.as_rows():
        table.add_row(name, format_seconds(seconds), format_ratio(seconds / profile.wall_s))
    return render(table)


def _epoch_table(profile: Profile) -> str:
    table = _table(("epoch", "right"), ("loss", "right"), ("time", "right"), ("accuracy", "right"))
    for number, epoch in enumerate(profile.epochs, start=1):
        table.add_row(
            str(number),
            _NOTHING if epoch.loss is None else f"{epoch.loss:.4f}",
            format_seconds(epoch.duration_s),
            _NOTHING if epoch.accuracy is None else format_ratio(epoch.accuracy),
        )
    return render(table)


def _accuracy_lines(profile: Profile) -> list[str]:
    if profile.accuracy is None or profile.accuracy_per_class is None:
        return []
    by_class = [
        f"{label}: {format_ratio(accuracy)}"
        for label, accuracy in profile.accuracy_per_class.items()
    ]
    more = len(by_class) - _NUM_CLASSES_SHOWN
    shown = ", ".join(by_class[:_NUM_CLASSES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    overall = format_ratio(profile.accuracy)
    return [f"accuracy on the {profile.evaluated_split} split: {overall}", f"by class: {shown}"]


def _metric_lines(profile: Profile) -> list[str]:
    shown = ", ".join(
        f"{printable(name)} {_NOTHING if value is None else f'{value:.6g}'}"
        for name, value in profile.metrics.items()
    )
    return [f"on the {profile.evaluated_split} split: {shown}"] if shown else []


def _operator_table(profile: Profile) -> str:
    if not profile.operators:
        return ""
    table = _table(("operator", "left"), ("calls a step", "right"), ("own time a step", "right"))
    for operator in profile.operators:
        table.add_row(
            operator.name,
            f"{operator.calls / profile.num_profiled_steps:.4g}",
            format_seconds(operator.self_s / profile.num_profiled_steps),
        )
    return render(table)


def _communication_lines(profile: Profile) -> list[str]:
    found = profile.communication
    if found is None:
        return []
    per_step_s = found.total_s / profile.num_profiled_steps
    exposed = format_ratio(found.exposed_s / found.total_s)
    return [
        f"communication: {format_seconds(per_step_s)} a step, {exposed} of it exposed "
        "(nothing computed meanwhile)"
    ]


def _usage_lines(profile: Profile) -> list[str]:
    lines = []
    for usage in profile.usage:
        if not usage.samples:
            continue
        ratios = [
            sample.utilization_ratio
            for sample in usage.samples
            if sample.utilization_ratio is not None
        ]
        busy = f"{format_ratio(sum(ratios) / len(ratios))} busy, " if ratios else ""
        most = format_bytes(max(sample.memory_bytes for sample in usage.samples))
        lines.append(f"rank {usage.rank} on {usage.device}: {busy}at most {most} in use")
    return lines


def _reasons(profile: Profile) -> list[tuple[str, str]]:
    """Each reason once, with the first field that it is about."""
    first: dict[str, str] = {}
    for name, reason in profile.missing.items():
        first.setdefault(reason, name)
    return [(name, reason) for reason, name in first.items()]


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title, justify in columns:
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    return table
