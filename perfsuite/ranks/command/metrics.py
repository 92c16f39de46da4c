"""The fallback for a command that must not be touched: the times of steps that it logs itself."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfsuite.errors import SettingError, WorkloadError, import_extra
from perfsuite.ranks.command.group import CommandGroup, CommandLaunch
from perfsuite.ranks.messages import CellMeasured, GroupRequest, RoundTimes, RunCell
from perfsuite.ranks.turns import Turns
from perfsuite.records.cell import Counts
from perfsuite.system.environment import describe_host
from perfsuite.units import counted

_SCALE = re.compile(r"(.+?)\*([0-9.]+(?:e-?[0-9]+)?)", re.DOTALL)
# A writer of torch begins a new one each time.
_EVENT_FILES = "*tfevents*"
_MISSING = "the times are those that the command logs (metrics=)"


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Where a command logs the time of each step.

    Attributes:
        kind: "jsonl", "tensorboard" or "regex".
        path: A file of lines, or a folder of event files; empty for what is printed.
        key: A field of each line, a tag, or a pattern with one group.
        scale: Seconds of one of its units.
    """

    text: str
    kind: str
    path: str
    key: str
    scale: float

    @classmethod
    def parse(cls, text: Any) -> Metrics:
        """Return what `metrics=` says; raises a SettingError."""
        kind, _, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
        scaled = _SCALE.fullmatch(rest)
        rest, scale = (scaled[1], float(scaled[2])) if scaled else (rest, 1.0)
        path, _, key = ("", "", rest) if kind == "regex" else rest.partition(":")
        is_known = kind == "regex" or (kind in ("jsonl", "tensorboard") and path)
        if not (is_known and key and scale > 0 and (kind != "regex" or _num_groups(key) == 1)):
            raise SettingError(
                f"metrics is {text!r}; use jsonl:FILE:KEY, tensorboard:FOLDER:TAG or regex:PATTERN "
                "with one group, and *0.001 after it where that is not in seconds"
            )
        return cls(text=text, kind=kind, path=path, key=key, scale=scale)

    def sizes(self, folder: Path) -> dict[Path, int]:
        """Return the sizes of the files that are there already."""
        place = folder / self.path
        files = place.rglob(_EVENT_FILES) if self.kind == "tensorboard" else [place]
        return {file: file.stat().st_size for file in files if file.is_file()}

    def values(self, folder: Path, output: str, before: Mapping[Path, int]) -> Iterator[float]:
        """Yield what a launch logged, in seconds; `before` has the sizes before it."""
        if self.kind == "regex":
            found: Iterator[Any] = iter(re.findall(self.key, output))
        elif self.kind == "jsonl":
            file = folder / self.path
            found = _read_lines(file, self.key, before.get(file, 0))
        else:
            files = {*(folder / self.path).rglob(_EVENT_FILES)}.difference(before)
            found = _read_events(sorted(files), self.key)
        for value in found:
            try:
                yield float(value) * self.scale
            except (TypeError, ValueError):
                yield math.nan


def _num_groups(pattern: str) -> int:
    try:
        return re.compile(pattern).groups
    except re.error:
        return 0


def _read_lines(file: Path, key: str, offset: int) -> Iterator[Any]:
    with file.open("rb") as lines:
        lines.seek(offset if file.stat().st_size >= offset else 0)
        for line in lines:
            try:
                value = json.loads(line)
            except ValueError:  # of another kind, or cut off
                continue
            if isinstance(value, dict) and key in value:
                yield value[key]


def _read_events(files: Sequence[Path], tag: str) -> Iterator[Any]:
    module = import_extra("tensorboard.backend.event_processing.event_accumulator", "tensorboard")
    for file in files:
        events = module.EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
        if tag in events.Tags()["scalars"]:
            yield from (one.value for one in events.Scalars(tag))


def run_logged(request: GroupRequest, launch: CommandLaunch, metrics: Metrics) -> list[Any]:
    """Run a command to its end, alone where the other arm of a gate is, and return its times.

    Raises a WorkloadError where it fails or logs too few, and what `run_command` raises.
    """
    job = request.job
    assert isinstance(job, RunCell)
    code = job.user_code
    assert code is not None
    assert code.num_steps is not None
    channel = request.policy.turns
    with (
        nullcontext() if channel is None else Turns(channel).take(),
        CommandGroup(request, launch, has_hook=False) as group,
    ):
        named = any("{out}" in word for word in (*launch.words, *launch.environment.values()))
        folder = group.out if named else launch.folder
        before = metrics.sizes(folder)
        output = group.run_to_end()
        try:
            values = [*metrics.values(folder, output, before)]
        except OSError as error:
            raise WorkloadError(
                f"{launch.name}: {metrics.path} cannot be read: {error.strerror or error} "
                f"(metrics={metrics.text!r})"
            ) from error
    times_s = values[code.num_warmup :][: code.num_steps]
    wrong = [value for value in times_s if not 0 < value < math.inf]
    if wrong or len(times_s) < 2:
        found = f"a step time of {wrong[0]}" if wrong else counted(len(values), "step time")
        raise WorkloadError(
            f"{launch.name}: the command logged {found} (metrics={metrics.text!r}); each is a "
            f"positive number of seconds, and at least two follow {code.num_warmup} to warm up"
        )
    measured = CellMeasured(
        rounds=tuple(RoundTimes(duration_s=one, stages_s={}) for one in times_s),
        num_iterations=1,
        losses=None,
        global_batch_size=code.samples_per_step,
        counts=Counts(**dict.fromkeys(Counts.__struct_fields__)),
        peak=None,
        operators=None,
        environment=describe_host(os.environ, len(os.sched_getaffinity(0))),
        missing=dict.fromkeys((*Counts.__struct_fields__, "memory", "operators"), _MISSING),
    )
    return [measured]
