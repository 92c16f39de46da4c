"""Charts of what differs in one field: cells by any, profiled trainings by their precision."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from perfsuite.errors import RecipeError, SettingError
from perfsuite.records.profile import Profile
from perfsuite.records.recipe import Recipe
from perfsuite.report.charts.line_chart import PlotLine, draw_lines, line_of_values, write_number
from perfsuite.report.charts.sections import Picture, Section, draw_each
from perfsuite.report.families import Family, families
from perfsuite.report.rows import Row
from perfsuite.stats import intervals
from perfsuite.system.json_files import read_json_as
from perfsuite.system.untrusted import printable, why_unreadable
from perfsuite.units import format_bytes, format_ratio, format_seconds

_WHAT_TO_DO = "name a file that 'perfsuite profile --json' wrote"
_LEARNING_CURVES = "Learning curves"


def draw_families(rows: Sequence[Row]) -> tuple[Section, ...]:
    """Return all charts that families of cells have points for, those of the first rows first."""
    kinds: tuple[tuple[str, Callable[[str, Family], Picture | None], Sequence[Family]], ...] = (
        ("Loader workers", _workers, families(rows, "num_workers")),
        ("Memory against recomputation", _checkpointing, families(rows, "checkpointing")),
        ("Losses by precision", _losses, families(rows, "precision")),
    )
    sections = []
    for title, draw_one, found in kinds:
        charts, num_left_out = draw_each(partial(draw_one, title), found)
        if charts:
            sections.append(Section(title=title, charts=charts, num_left_out=num_left_out))
    return tuple(sections)


def _workers(kind: str, family: Family) -> Picture:
    points, error_bars = [], []
    for member in family.members:
        step_s, spread_s = member.step_time_s, intervals.robust_sd(member.row.rounds_s)
        points.append((float(member.value), step_s))
        error_bars.append((max(step_s - spread_s, 0.0), step_s + spread_s))
    line = PlotLine(name="step, ± its spread over rounds", points=points, error_bars=error_bars)
    return draw_lines([line], kind, family.name, ("num_workers", "step"), format_seconds)


def _checkpointing(kind: str, family: Family) -> Picture | None:
    lines = [
        PlotLine(name=str(member.value), points=((member.step_time_s, float(memory.peak_bytes)),))
        for member in family.members
        if (memory := member.record.memory) is not None
    ]
    if len(lines) < 2:
        return None
    axes = "step", "peak memory"
    return draw_lines(lines, kind, family.name, axes, format_bytes, format_seconds)


def _losses(kind: str, family: Family) -> Picture | None:
    lines = []
    for member in family.members:
        line = line_of_values(str(member.value), member.record.losses)
        if num_left_out := len(member.record.losses) - len(line.points):
            name = f"{line.name}, without {num_left_out} that are not finite or below 0"
            line = replace(line, name=name)
        if len(line.points) > 1:
            lines.append(line)
    if len(lines) < 2:
        return None
    return draw_lines(lines, kind, family.name, ("step", "loss"), write_number)


@dataclass(frozen=True, kw_only=True)
class Training:
    """One profiled training; its recipe is the profile's, checked."""

    path: Path
    profile: Profile
    recipe: Recipe

    @property
    def described(self) -> str:
        """File, workload, recipe and device in one line."""
        return (
            f"{self.path}, a profile of {self.profile.workload} ({self.recipe.parallel}, "
            f"{self.recipe.precision}) on {self.profile.device}"
        )


def read_trainings(paths: Sequence[Path]) -> tuple[Training, ...]:
    """Return the trainings of files; raises a SettingError for one without a valid profile."""
    trainings = []
    for path in paths:
        try:
            profile = read_json_as(path, Profile)
            trainings.append(Training(path=path, profile=profile, recipe=Recipe(**profile.recipe)))
        except (OSError, TypeError, ValueError) as error:
            is_another = isinstance(error, msgspec.ValidationError | RecipeError | TypeError)
            reason = f" is no profile: {error}" if is_another else f": {why_unreadable(error)}"
            raise SettingError(f"{printable(f'{path}{reason}')}; {_WHAT_TO_DO}") from error
    return tuple(trainings)


def draw_learning_curves(trainings: Sequence[Training]) -> tuple[Section, ...]:
    """Return loss and accuracy by epoch; trainings that differ in precision alone share a chart."""
    groups: dict[tuple[object, ...], list[Training]] = {}
    for training in trainings:
        shared = training.recipe.as_dict()
        del shared["precision"]
        key = training.profile.workload, training.profile.device, *shared.values()
        groups.setdefault(key, []).append(training)
    charts = tuple(chart for group in groups.values() for chart in _charts(group))
    return (Section(title=_LEARNING_CURVES, charts=charts, num_left_out=0),) if charts else ()


def _charts(group: Sequence[Training]) -> Iterator[Picture]:
    recipe = group[0].recipe
    title = f"{printable(group[0].profile.workload)}, {recipe.parallel}"
    if recipe.num_workers:
        title += f", num_workers={recipe.num_workers}"
    precisions = [training.recipe.precision for training in group]
    for name, write in (("loss", write_number), ("accuracy", format_ratio)):
        lines = []
        for label, training in zip(precisions, group, strict=True):
            if precisions.count(label) > 1:
                label += f", {printable(training.path.name)}"
            values = (getattr(epoch, name) for epoch in training.profile.epochs)
            lines.append(line_of_values(label, values))
        if drawn := [line for line in lines if line.points]:
            yield draw_lines(drawn, _LEARNING_CURVES, title, ("epoch", name), write)
