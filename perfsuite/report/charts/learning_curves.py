"""Learning curves of profiled trainings: loss and accuracy of each epoch, one line a precision."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perfsuite.errors import RecipeError, SettingError
from perfsuite.records.profile import Epoch, Profile
from perfsuite.records.recipe import Recipe
from perfsuite.report.charts.line_chart import draw_lines, line_of_values, write_number
from perfsuite.report.charts.sections import Picture, Section
from perfsuite.system.json_files import read_json_as
from perfsuite.system.untrusted import printable, why_unreadable
from perfsuite.units import format_ratio

_TITLE = "Learning curves"
_WHAT_TO_DO = "name a file that 'perfsuite profile --json' wrote"


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
    return tuple(map(_read_training, paths))


def draw_learning_curves(trainings: Sequence[Training]) -> tuple[Section, ...]:
    """Return loss and accuracy by epoch; trainings that differ in precision alone share a chart."""
    groups: dict[tuple[object, ...], list[Training]] = {}
    for training in trainings:
        shared = training.recipe.as_dict()
        del shared["precision"]
        key = training.profile.workload, training.profile.device, *shared.values()
        groups.setdefault(key, []).append(training)
    charts = tuple(chart for group in groups.values() for chart in _charts(group))
    return (Section(title=_TITLE, charts=charts, num_left_out=0),) if charts else ()


def _read_training(path: Path) -> Training:
    try:
        profile = read_json_as(path, Profile)
        return Training(path=path, profile=profile, recipe=Recipe(**profile.recipe))
    except (OSError, TypeError, ValueError) as error:
        is_another = isinstance(error, msgspec.ValidationError | RecipeError | TypeError)
        reason = f" is no profile: {error}" if is_another else f": {why_unreadable(error)}"
        raise SettingError(f"{printable(f'{path}{reason}')}; {_WHAT_TO_DO}") from error


def _charts(group: Sequence[Training]) -> list[Picture]:
    first = group[0]
    parts = [printable(first.profile.workload), first.recipe.parallel]
    if first.recipe.num_workers:
        parts.append(f"num_workers={first.recipe.num_workers}")
    curves: tuple[tuple[str, Callable[[Epoch], float | None], Callable[[float], str]], ...] = (
        ("loss", lambda epoch: epoch.loss, write_number),
        ("accuracy", lambda epoch: epoch.accuracy, format_ratio),
    )
    charts = []
    for name, value_of, write in curves:
        lines = [
            line_of_values(label, map(value_of, training.profile.epochs))
            for label, training in zip(_labels(group), group, strict=True)
        ]
        lines = [line for line in lines if line.points]
        if lines:
            charts.append(draw_lines(lines, _TITLE, ", ".join(parts), ("epoch", name), write))
    return charts


def _labels(group: Sequence[Training]) -> list[str]:
    """The precisions, with the file's name where several trainings have one."""
    names = [training.recipe.precision for training in group]
    return [
        name if names.count(name) == 1 else f"{name}, {printable(training.path.name)}"
        for name, training in zip(names, group, strict=True)
    ]
