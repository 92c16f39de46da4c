"""A profile as a terminal shows it, with the digits of its JSON."""

from perfsuite.records.profile import Profile
from perfsuite.report.rows import NOT_AVAILABLE
from perfsuite.report.terminal.tables import text_table
from perfsuite.system.untrusted import printable
from perfsuite.units import format_bytes, format_ratio, format_seconds, listed


def profile_text(profile: Profile) -> str:
    """Return what the terminal shows: stages, epochs, accuracy, operators, and what is missing."""
    # Each reason once, with the first field that it explains.
    reasons: dict[str, str] = {}
    for name, reason in profile.missing.items():
        reasons.setdefault(reason, name)
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
        *(f"{name}: not available: {reason}" for reason, name in reasons.items()),
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
    rows = (
        (name, format_seconds(seconds), format_ratio(seconds / profile.wall_s))
        for name, seconds in profile.stages_s.as_rows()
    )
    return text_table([("stage", False), ("time", True), ("share", True)], rows)


def _epoch_table(profile: Profile) -> str:
    rows = (
        (
            str(number),
            NOT_AVAILABLE if epoch.loss is None else f"{epoch.loss:.4f}",
            format_seconds(epoch.duration_s),
            NOT_AVAILABLE if epoch.accuracy is None else format_ratio(epoch.accuracy),
        )
        for number, epoch in enumerate(profile.epochs, start=1)
    )
    return text_table([(title, True) for title in ("epoch", "loss", "time", "accuracy")], rows)


def _accuracy_lines(profile: Profile) -> list[str]:
    if profile.accuracy is None or profile.accuracy_per_class is None:
        return []
    accuracies = profile.accuracy_per_class.items()
    by_class = [f"{label}: {format_ratio(accuracy)}" for label, accuracy in accuracies]
    return [
        f"accuracy on the {profile.evaluated_split} split: {format_ratio(profile.accuracy)}",
        f"by class: {listed(by_class, most=20)}",
    ]


def _metric_lines(profile: Profile) -> list[str]:
    shown = ", ".join(
        f"{printable(name)} {NOT_AVAILABLE if value is None else f'{value:.6g}'}"
        for name, value in profile.metrics.items()
    )
    return [f"on the {profile.evaluated_split} split: {shown}"] if shown else []


def _operator_table(profile: Profile) -> str:
    if not profile.operators:
        return ""
    rows = (
        (
            operator.name,
            f"{operator.calls / profile.num_profiled_steps:.4g}",
            format_seconds(operator.self_s / profile.num_profiled_steps),
        )
        for operator in profile.operators
    )
    columns = [("operator", False), ("calls a step", True), ("own time a step", True)]
    return text_table(columns, rows)


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
