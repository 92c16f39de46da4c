"""Learning curves of profiled trainings: loss and accuracy of each epoch, one line a precision.

A file is untrusted: it ends in a valid `Profile`, or in one sentence that says what is wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perfsuite.errors import RecipeError, SettingError
from perfsuite.records.profile import Epoch, Profile
from perfsuite.records.recipe import Recipe
from perfsuite.report.charts.line_chart import Line, draw, write_number
from perfsuite.report.charts.pictures import Picture
from perfsuite.report.charts.sections import Section
from perfsuite.system.json_files import read_json_as
from perfsuite.system.untrusted import printable, why_unreadable
from perfsuite.units import format_ratio

_TITLE = "Learning curves"
_WHAT_TO_DO = "name a file that 'perfsuite profile --json' wrote"


@dataclass(frozen=True, kw_only=True)
class Training:
    """One profiled training.

    Attributes:
        path: The file that holds its profile.
        recipe: The profile's, checked.
    """

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
    """Return the trainings that files hold.

    Raises:
        SettingError: A file holds no profile, or one that cannot be; names the file and the reason.
    """
    return tuple(map(_read_training, paths))


def draw_curves(trainings: Sequence[Training]) -> tuple[Section, ...]:
    """Return loss and accuracy by epoch; trainings that differ in precision alone share a chart."""
    alike: dict[tuple[object, ...], list[Training]] = {}
    for training in trainings:
        alike.setdefault(_shared(training), []).append(training)
    charts = [chart for group in alike.values() for chart in _charts(group)]
    if not charts:
        return ()
    return (Section(title=_TITLE, charts=tuple(charts), num_left_out=0),)


def _read_training(path: Path) -> Training:
    try:
        profile = read_json_as(path, Profile)
        return Training(path=path, profile=profile, recipe=Recipe(**profile.recipe))
    except (msgspec.ValidationError, RecipeError, TypeError) as error:
        reason = printable(f"{path} is no profile: {error}")
        raise SettingError(f"{reason}; {_WHAT_TO_DO}") from error
    except (OSError, ValueError) as error:
        reason = printable(f"{path}: {why_unreadable(error)}")
        raise SettingError(f"{reason}; {_WHAT_TO_DO}") from error


def _shared(training: Training) -> tuple[object, ...]:
    fields = training.recipe.as_dict()
    del fields["precision"]
    return training.profile.workload, training.profile.device, *fields.values()


def _charts(group: Sequence[Training]) -> list[Picture]:
    first = group[0]
    title = ", ".join(
        [
            printable(first.profile.workload),
            first.recipe.parallel,
            *([f"num_workers={first.recipe.num_workers}"] if first.recipe.num_workers else []),
        ]
    )
    loss = _lines(group, lambda epoch: epoch.loss)
    accuracy = _lines(group, lambda epoch: epoch.accuracy)
    charts = []
    if loss:
        charts.append(draw(loss, _TITLE, title, ("epoch", "loss"), write_number))
    if accuracy:
        charts.append(draw(accuracy, _TITLE, title, ("epoch", "accuracy"), format_ratio))
    return charts


def _lines(group: Sequence[Training], value: Callable[[Epoch], float | None]) -> list[Line]:
    """A line for each training that has a point to draw."""
    precisions = Counter(training.recipe.precision for training in group)
    lines = []
    for training in group:
        name = training.recipe.precision
        if precisions[name] > 1:
            name += f", {printable(training.path.name)}"
        values = enumerate(map(value, training.profile.epochs), 1)
        points = tuple(
            (float(epoch), found)
            for epoch, found in values
            if found is not None and math.isfinite(found) and found >= 0
        )
        if points:
            lines.append(Line(name=name, points=points))
    return lines
