"""What the `perf` markers of a test say, parsed. Must not know what is done with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perfsuite.errors import SettingError
from perfsuite.plugin.options import MATRICES, one_of
from perfsuite.units import parse_ratio, parse_seconds

_MARKER_PARSERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "tolerance": (parse_ratio, "a ratio such as '2%'"),
    "limit": (parse_ratio, "a ratio such as '5%'"),
    "floor": (parse_seconds, "a duration such as '50us'"),
    "counts": (dict, "a dict such as {'flops': 'exact'}"),
    "matrix": (one_of(*MATRICES), f"one of {', '.join(MATRICES)}"),
}


def marker_arguments(item: pytest.Item) -> dict[str, Any]:
    """Return the parsed arguments of a test's `perf` markers, the closest one first.

    Raises:
        SettingError: An argument is unknown, positional, or has a value that is not allowed.
    """
    arguments: dict[str, Any] = {}
    for marker in item.iter_markers("perf"):
        if marker.args:
            raise SettingError(
                f"{item.nodeid}: the perf marker has the positional argument {marker.args[0]!r}; "
                f"use {', '.join(f'{name}=' for name in _MARKER_PARSERS)}"
            )
        for name, value in marker.kwargs.items():
            if name not in _MARKER_PARSERS:
                raise SettingError(
                    f"{item.nodeid}: the perf marker has no argument {name!r}; "
                    f"use {', '.join(_MARKER_PARSERS)}"
                )
            parse, allowed = _MARKER_PARSERS[name]
            try:
                arguments.setdefault(name, parse(value))
            except (TypeError, ValueError) as error:
                raise SettingError(
                    f"{item.nodeid}: {name} is {value!r} (perf marker); use {allowed}"
                ) from error
    return arguments


def is_in_matrix(item: pytest.Item, matrix: str) -> bool:
    """Whether a test belongs to a matrix: the largest `matrix` of its perf markers decides."""
    sizes = [
        MATRICES.index(marker.kwargs["matrix"])
        for marker in item.iter_markers("perf")
        if "matrix" in marker.kwargs
    ]
    return max(sizes, default=0) <= MATRICES.index(matrix)
