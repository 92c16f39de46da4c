"""What an arm reports about the tests that it has collected; copied beside the arm's plugin."""

import contextlib
import os
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import pytest

# How many calls away from a test a helper may request its fixture and still be seen.
_MOST_CALLS = 2
CLOCK = "time.perf_counter"  # pytest-benchmark's, where a suite names none
MATRICES = ("smoke", "default", "full")
# What a perf marker may say; one that says more is another plugin's.
MARKED = ("tolerance", "limit", "floor", "counts", "matrix")
# perfsuite's fixtures that measure.
_FIXTURES = (
    *("train_benchmark", "loader_benchmark", "evaluation_benchmark", "all_reduce_benchmark"),
    *("step_benchmark", "loop_benchmark", "command_benchmark"),
)


def policy_of(item: pytest.Item) -> dict[str, Any]:
    """Return what the test's markers set, unparsed, the closest first, and perfsuite's fixture."""
    names = getattr(item, "fixturenames", ())
    policy: dict[str, Any] = {"fixture": next((one for one in _FIXTURES if one in names), None)}
    for marker in item.iter_markers("perf"):
        for name in MARKED:
            if name in marker.kwargs:
                policy.setdefault(name, marker.kwargs[name])
    timer = _timer_of(item)
    if policy["fixture"] is None and timer != CLOCK:
        policy["timer"] = timer
    # What one of the user's own made for an earlier test, with processes that are gone, is used.
    if any(one.scope != "function" and not _is_tool(one.func) for one in _fixtures_of(item)):
        policy["outlives"] = True
    return policy


def _timer_of(item: pytest.Item) -> str:
    marker = item.get_closest_marker("benchmark")  # as pytest-benchmark, which merges none
    timer = None if marker is None else marker.kwargs.get("timer")
    if timer is None:
        return str(item.config.getoption("benchmark_timer"))
    name = getattr(timer, "__qualname__", type(timer).__qualname__)
    return f"{getattr(timer, '__module__', type(timer).__module__)}.{name}"


def _fixtures_of(item: Any) -> list[Any]:
    found = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return [definition for definitions in found.values() for definition in definitions]


def _is_tool(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith(("_pytest.", "perfsuite."))


def is_foreign(marker: pytest.Mark) -> bool:
    """Whether a perf marker is another plugin's."""
    return bool(marker.args) or not marker.kwargs.keys() <= {*MARKED}


def is_in_matrix(markers: Iterable[pytest.Mark], matrix: str) -> bool:
    """Whether a test belongs to a matrix: the largest `matrix` of its perf markers decides."""
    larger = MATRICES[MATRICES.index(matrix) + 1 :]
    return not any(marker.kwargs.get("matrix") in larger for marker in markers)


def of_own_matrix(config: pytest.Config, cells: list[Any]) -> list[Any]:
    """Return the cells of this side's matrix; those of one side alone have vanished, or are new."""
    if (matrix := _setting(config, "perf_matrix") or MATRICES[1]) not in MATRICES:
        raise pytest.UsageError(f"perf_matrix is {matrix!r}; use one of {', '.join(MATRICES)}")
    return [one for one in cells if is_in_matrix(one.iter_markers("perf"), matrix)]


def find_hidden(config: pytest.Config, others: list[Any]) -> list[Any]:
    """Return the tests of this side's matrix that request a benchmark fixture at run time."""
    read = [one for one in others if not any(map(is_foreign, one.iter_markers("perf")))]
    outside = {*read} - {*of_own_matrix(config, read)}
    return [one for one in others if one not in outside and _hides_benchmark(one)]


def settings_of(config: pytest.Config) -> dict[str, str]:
    """Return what this side's own configuration says about how cells are judged, unparsed."""
    names = ("perf_limit", "perf_tolerance", "perf_numerics_change", "perf_policy")
    found = {name: _setting(config, name) for name in names}
    return {name: str(value) for name, value in found.items() if value is not None}


def _setting(config: pytest.Config, name: str) -> Any:
    with contextlib.suppress(KeyError, ValueError):  # an arm without perfsuite has none
        return getattr(config.option, name, None) or config.getini(name)
    return None


def _hides_benchmark(item: Any) -> bool:
    """Whether a test, a fixture of it, or what these call, requests the fixture at run time."""
    functions = [definition.func for definition in _fixtures_of(item)]
    functions.append(getattr(item, "function", None))
    parameters = [one for definition in _fixtures_of(item) for one in definition.params or ()]
    own = getattr(item, "cls", None)
    found = (_requests_benchmark(function, own, _MOST_CALLS) for function in functions)
    return _has_name(parameters) or any(found)


def _has_name(values: Any) -> bool:
    return any(isinstance(one, str) and one in ("benchmark", *_FIXTURES) for one in values)


def _requests_benchmark(function: Any, own: type | None, num_calls: int) -> bool:
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        return False
    names = function.__code__.co_names
    # One that looks in `fixturenames` first takes what the test itself names.
    is_asked = "getfixturevalue" in names and "fixturenames" not in names
    called = [function.__globals__.get(name) for name in names]
    given = (*function.__code__.co_consts, *(function.__defaults__ or ()), *called)
    if is_asked and _has_name(given):
        return True
    for module in [one for one in called if isinstance(one, ModuleType)]:
        called += [vars(module).get(name) for name in names]
    called += [getattr(own, name, None) for name in names]  # methods of the test's class
    return num_calls > 0 and any(_requests_benchmark(one, own, num_calls - 1) for one in called)


def from_root(config: pytest.Config, arguments: list[str]) -> list[str]:
    """Return arguments that name tests, from pytest's root and not from where it was called."""
    folder, root = config.invocation_params.dir, config.rootpath
    parts = (argument.partition("::") for argument in arguments)
    return [os.path.relpath(folder / file, root) + colons + name for file, colons, name in parts]
