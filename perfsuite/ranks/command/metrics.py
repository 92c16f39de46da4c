"""The fallback for a command that must not be touched: the times of steps that it logs itself."""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from perfsuite.errors import SettingError, WorkloadError, import_extra
from perfsuite.ranks.command.group import CommandGroup, CommandLaunch
from perfsuite.ranks.messages import COUNTED, CellMeasured, GroupRequest, RoundTimes, RunCell
from perfsuite.ranks.turns import Turns
from perfsuite.system.environment import describe_host
from perfsuite.system.untrusted import printable
from perfsuite.units import counted, listed

_FORM = re.compile(
    r"(?:(?P<kind>jsonl|tensorboard):(?P<path>[^:]+)|regex):(?P<key>.+?)"
    r"(?:\*(?P<scale>[0-9]*\.?[0-9]+(?:e-?[0-9]+)?))?",
    re.DOTALL,
)
# A writer of torch begins a new one each time.
_EVENT_FILES = "*tfevents*"
# What a file holds, and when it was written.
_Written = tuple[bytes, int]
_Files = Mapping[Path, _Written | None]


class Metrics:
    """Where a command logs the time of each step: in a file, a folder of events, or its output."""

    def __init__(self, text: Any) -> None:
        """Read what `metrics=` says; raises a SettingError."""
        found = _FORM.fullmatch(text) if isinstance(text, str) else None
        self._kind = (found and found["kind"]) or "regex"
        self._scale_s = float((found and found["scale"]) or 1.0)
        is_regex = self._kind == "regex"
        if not found or not self._scale_s or (is_regex and _num_groups(found["key"]) != 1):
            raise SettingError(
                f"metrics is {text!r}; use jsonl:FILE:KEY, tensorboard:FOLDER:TAG or regex:PATTERN "
                "with one group, and *0.001 after it where that is not in seconds"
            )
        self.text, self._key = text, found["key"]
        self.path = (found["path"] or "").removeprefix("{out}/")  # where it is looked for first
        self.others: set[str] = set()  # what else was logged there

    def files(self, folder: Path) -> _Files:
        """Return the files that are there, and what is in one that may be appended to."""
        place = folder / self.path
        if self._kind == "tensorboard":
            return dict.fromkeys(place.rglob(_EVENT_FILES))
        return {place: _read(place)} if place.is_file() else {}

    def values(self, folder: Path, output: str, before: _Files, unused: int = 0) -> Iterator[float]:
        """Yield what a launch logged, in seconds; `before` are the `files` before it.

        The first may be older ones, up to `unused`; raises a WorkloadError where more may be.
        """
        if self._kind == "regex":
            found: Iterable[Any] = ((self._key, one) for one in re.findall(self._key, output))
        elif self._kind == "jsonl":
            file = folder / self.path
            found = _read_lines(file, before.get(file) or (b"", 0), unused)
        else:
            found = _read_events(sorted(self.files(folder).keys() - before))
        for name, value in found:
            if name != self._key:
                self.others.add(name)
                continue
            try:
                yield float(value) * self._scale_s
            except (TypeError, ValueError, OverflowError):
                yield math.nan


def _num_groups(pattern: str) -> int:
    try:
        return re.compile(pattern).groups
    except re.error:
        return 0


def _read(file: Path) -> _Written:
    with open(file, "rb") as log:  # noqa: PTH123  # in this frame: the gate asks who reads
        return log.read(), file.stat().st_mtime_ns


def _read_lines(file: Path, before: _Written, unused: int) -> Iterator[tuple[str, Any]]:
    (log, at_ns), (earlier, earlier_ns) = _read(file), before
    if log.startswith(earlier):
        begin = 0 if log == earlier and at_ns != earlier_ns else len(earlier)  # or written anew
    else:
        begin = _end_of_earlier(log, earlier, unused)
    for line in log[begin:].splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):  # of another kind, or cut off
            continue
        if isinstance(value, dict):
            yield from value.items()


def _end_of_earlier(log: bytes, earlier: bytes, unused: int) -> int:
    """Return where what is new begins in a log that grows, and may have lost its front."""
    last = earlier[earlier[:-1].rfind(b"\n") + 1 :]
    found = (one.end() for one in re.finditer(re.escape(last), log))
    ends = [end for end in found if earlier.endswith(log[:end])]
    # One that is written anew may begin as the earlier one ended: by chance, or where lines repeat.
    if not ends or log.count(b"\n", 0, ends[-1]) <= unused:
        return 0
    if len(ends) > 1:
        raise WorkloadError(
            "the log (metrics=) begins with lines that end that of the launch before, and they "
            "repeat, so that which are new cannot be told; log each step's number too, or have it "
            "written to {out}"
        )
    return ends[0]


def _read_events(files: Sequence[Path]) -> Iterator[tuple[str, Any]]:
    module = import_extra("tensorboard.backend.event_processing.event_accumulator", "tensorboard")
    for file in files:
        events = module.EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            yield from ((tag, one.value) for one in events.Scalars(tag))


def run_logged(request: GroupRequest, launch: CommandLaunch, metrics: Metrics) -> list[Any]:
    """Run a command to its end, alone where the other arm of a gate is, and return its times.

    Raises a WorkloadError where it fails or logs too few, and what `run_command` raises.
    """
    assert isinstance(request.job, RunCell)
    code = request.job.user_code
    assert code is not None
    turns = None if request.policy.turns is None else Turns(request.policy.turns)
    with (
        nullcontext() if turns is None else turns.take(),
        CommandGroup(request, launch, has_hook=False) as group,
    ):
        try:
            before, output = metrics.files(launch.folder), group.run_to_end()
            folder = group.out if metrics.files(group.out) else launch.folder
            values = [*metrics.values(folder, output, before, code.num_warmup)]
        except OSError as error:
            why = f"{metrics.path} cannot be read: {error.strerror or error}"
            raise WorkloadError(f"{launch.name}: {why} (metrics={metrics.text!r})") from error
    times_s = values[code.num_warmup :][: code.num_steps]
    if (wrong := [value for value in times_s if not 0 < value < math.inf]) or len(times_s) < 2:
        found = f"a step time of {wrong[0]}" if wrong else counted(len(values), "step time")
        others = "" if values else printable(listed(sorted(metrics.others), most=20))
        found += others and f" beside {others}"
        raise WorkloadError(
            f"{launch.name}: the command logged {found} (metrics={metrics.text!r}); each "
            f"is a positive number of seconds, and at least two follow {code.num_warmup} to warm up"
        )
    if turns is not None:
        turns.tell(num_logged=len(values))
    told = f"the times are {len(times_s)} of the {len(values)} that the command logs (metrics=)"
    measured = CellMeasured(
        rounds=[RoundTimes(duration_s=one, stages_s={}, steps_s=(one,)) for one in times_s],
        num_iterations=1,
        global_batch_size=code.samples_per_step,
        environment=describe_host(os.environ, len(os.sched_getaffinity(0))),
        missing=dict.fromkeys(COUNTED, told),
    )
    return [measured]
