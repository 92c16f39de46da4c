"""What the `perf` markers of a test may say; another plugin may have a marker of that name."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from perfsuite.errors import SettingError
from perfsuite.gate.arms.launched.collected import MATRICES, is_foreign
from perfsuite.gate.judge.counts import parse_slacks
from perfsuite.plugin.fixtures import is_cell
from perfsuite.plugin.recorder import is_benchmark
from perfsuite.plugin.session.choices import one_of
from perfsuite.units import counted, parse_ratio, parse_seconds

_MARKER_PARSERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "tolerance": (parse_ratio, "a ratio such as '2%'"),
    "limit": (parse_ratio, "a ratio such as '5%'"),
    "floor": (parse_seconds, "a duration such as '50us'"),
    "counts": (lambda value: parse_slacks(dict(value)), "a dict such as {'flops': 'exact'}"),
    "matrix": one_of(*MATRICES),
}
# Nothing is counted in a plain benchmark, and what else its marker says is another plugin's.
_OF_PLAIN_BENCHMARKS = frozenset(_MARKER_PARSERS) - {"counts"}


def check_markers(item: pytest.Item) -> None:
    """Raise a SettingError for an unknown or a positional argument, or one with a wrong value."""
    is_ours = is_cell(item)
    for marker in own_markers(item):
        if is_ours and marker.args:
            found = f"{item.nodeid}: the perf marker has the positional argument {marker.args[0]!r}"
            raise SettingError(f"{found}; use {', '.join(f'{name}=' for name in _MARKER_PARSERS)}")
        for name, value in marker.kwargs.items():
            if not is_ours and name not in _OF_PLAIN_BENCHMARKS:
                continue
            if name not in _MARKER_PARSERS:
                unknown = f"the perf marker has no argument {name!r}"
                raise SettingError(f"{item.nodeid}: {unknown}; use {', '.join(_MARKER_PARSERS)}")
            parse, allowed = _MARKER_PARSERS[name]
            try:
                parse(value)
            except SettingError as error:
                raise SettingError(f"{item.nodeid}: {error}") from error
            except (TypeError, ValueError) as error:
                found = f"{item.nodeid}: {name} is {value!r} (perf marker); use {allowed}"
                raise SettingError(found) from error


def describe_foreign(items: Sequence[pytest.Item]) -> str | None:
    """Return one line on the markers that are another plugin's; None where there is none."""
    others = (item for item in items if not is_cell(item))
    marked = ((item, marker) for item in others for marker in item.iter_markers("perf"))
    foreign = {item: marker for item, marker in marked if is_foreign(marker)}
    if not foreign:
        return None
    item, marker = next(iter(foreign.items()))
    values = (*map(repr, marker.args), *(f"{k}={v!r}" for k, v in marker.kwargs.items()))
    of_tests = counted(len(foreign), "test")
    return (
        f"the perf markers of {of_tests} have arguments that are not perfsuite's and were not "
        f"read; the first: {item.nodeid} has perf({', '.join(values)})"
    )


def own_markers(item: pytest.Item) -> Iterator[pytest.Mark]:
    """The closest one first; of a test that measures nothing those without foreign arguments."""
    is_all = is_benchmark(item)
    return (one for one in item.iter_markers("perf") if is_all or not is_foreign(one))
