"""Learning curves of profiled trainings: loss and accuracy of each epoch, one line a precision."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from perfsuite.errors import RecipeError, SettingError
from perfsuite.records.profile import Profile
from perfsuite.records.recipe import Recipe
from perfsuite.report.charts.line_chart import draw_lines, line_of_values, write_number
from perfsuite.report.charts.sections import Picture, Section
from perfsuite.system.json_files import read_json_as
from perfsuite.system.untrusted import printable, why_unreadable
from perfsuite.units import format_ratio

_TITLE = "Learning curves"
_WHAT_TO_DO = "name a file that 'perfsuite profile --json' wrote"


class Training:
    """One profiled training; its recipe is the profile's, checked."""

    def __init__(self, path: Path) -> None:
        self.path, self.profile = path, read_json_as(path, Profile)
        self.recipe = Recipe(**self.profile.recipe)

    @property
    def described(self) -> str:
        """File, workload, recipe and device in one line."""
        cell = f"{self.profile.workload} ({self.recipe.parallel}, {self.recipe.precision})"
        return f"{self.path}, a profile of {cell} on {self.profile.device}"


def read_trainings(paths: Sequence[Path]) -> tuple[Training, ...]:
    """Return the trainings of files; raises a SettingError for one without a valid profile."""
    trainings = []
    for path in paths:
        try:
            trainings.append(Training(path))
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
    return (Section(title=_TITLE, charts=charts, num_left_out=0),) if charts else ()


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
            yield draw_lines(drawn, _TITLE, title, ("epoch", name), write)
