"""Options, ini values and marker arguments, resolved once into `Settings`.

Command line before ini before default; every message says where a value came from. Below this
module nothing reads an option, an ini value or the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from perfsuite.errors import SettingError
from perfsuite.ranks.turns import TurnChannel
from perfsuite.session import DEVICES, MAX_SEED, Device, Settings
from perfsuite.units import parse_ratio, parse_seconds

MATRICES = ("smoke", "default", "full")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One `--perf-*` option and its ini twin.

    Attributes:
        name: Without prefix, with hyphens: "collective-timeout".
        metavar: What stands for the value in the help.
        parse: Text -> value; ValueError for what is not allowed.
        default: As text, where neither command line nor ini gives one.
        allowed: What a value may be, for messages.
        help: One line for --help.
    """

    name: str
    metavar: str
    parse: Callable[[str], Any]
    default: str
    allowed: str
    help: str

    @property
    def flag(self) -> str:
        """As on the command line."""
        return f"--perf-{self.name}"

    @property
    def ini(self) -> str:
        """As in an ini file."""
        return f"perf_{self.name.replace('-', '_')}"


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(text)
        return text

    return parse


def _int_from(smallest: int, largest: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < smallest or (largest is not None and value > largest):
            raise ValueError(text)
        return value

    return parse


def _positive_seconds(text: str) -> float:
    if (value := parse_seconds(text)) <= 0:
        raise ValueError(text)
    return value


OPTIONS = (
    Option(
        name="device",
        metavar="DEVICE",
        parse=_one_of(*DEVICES),
        default="auto",
        allowed=f"one of {', '.join(DEVICES)}",
        help="where cells run; auto is cuda where a GPU is visible",
    ),
    Option(
        name="require-gpus",
        metavar="N",
        parse=_int_from(0),
        default="0",
        allowed="a whole number from 0",
        help="refuse to run (exit 12) with fewer visible GPUs",
    ),
    Option(
        name="rounds",
        metavar="N",
        parse=_int_from(1),
        default="10",
        allowed="a whole number from 1",
        help="timed rounds of each cell",
    ),
    Option(
        name="matrix",
        metavar="SIZE",
        parse=_one_of(*MATRICES),
        default="default",
        allowed=f"one of {', '.join(MATRICES)}",
        help="how many of the cells run: smoke, default or full",
    ),
    Option(
        name="numerics",
        metavar="on|off",
        parse=_one_of("on", "off"),
        default="on",
        allowed="on or off",
        help="check that a cell computes the same as one process before it is timed",
    ),
    Option(
        name="seed",
        metavar="N",
        parse=_int_from(0, MAX_SEED),
        default="0",
        allowed=f"a whole number from 0 to {MAX_SEED}",
        help="seed of weights, data order and random numbers",
    ),
    Option(
        name="timeout",
        metavar="SECONDS",
        parse=_positive_seconds,
        default="120",
        allowed="a duration above 0, such as 120 or 2min",
        help="a cell without progress for so long fails",
    ),
    Option(
        name="collective-timeout",
        metavar="SECONDS",
        parse=_positive_seconds,
        default="30",
        allowed="a duration above 0, such as 30 or 500ms",
        help="a rank that waits for another for so long fails",
    ),
    Option(
        name="wait",
        metavar="SECONDS",
        parse=parse_seconds,
        default="86400",
        allowed="a duration from 0",
        help="how long to wait for another timing session on this machine; 0 refuses (exit 12)",
    ),
    Option(
        name="report",
        metavar="DIR",
        parse=str,
        default="results",
        allowed="a folder",
        help="where run.json and cells.jsonl are written, relative to the rootdir",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Everything the plugin was asked for.

    Attributes:
        settings: What the session runs cells with.
        matrix: The size of the matrix, one of `MATRICES`.
        require_gpus: GPUs without which nothing runs.
        results: Folder of run.json and cells.jsonl.
        checks_numerics: Whether cells are checked before they are timed.
    """

    settings: Settings
    matrix: str
    require_gpus: int
    results: Path
    checks_numerics: bool


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and its ini twin."""
    group = parser.getgroup("perfsuite", "performance of PyTorch training")
    for option in OPTIONS:
        text = f"{option.help} (ini: {option.ini}; default: {option.default})"
        group.addoption(option.flag, metavar=option.metavar, default=None, help=text)
        parser.addini(option.ini, help=f"{option.help}; see {option.flag}", default=None)


def resolve(config: pytest.Config) -> Choices:
    """Return the choices that command line, ini file and defaults make.

    Raises:
        SettingError: A value is not allowed; names the value, its source and what is.
    """
    value = {option.name: _value(config, option) for option in OPTIONS}
    return Choices(
        settings=Settings(
            device=cast(Device, value["device"]),
            num_rounds=value["rounds"],
            seed=value["seed"],
            timeout_s=value["timeout"],
            collective_timeout_s=value["collective-timeout"],
            wait_s=value["wait"],
            import_roots=(Path.cwd(), config.rootpath),
            turns=_turn_channel(),
        ),
        matrix=value["matrix"],
        require_gpus=value["require-gpus"],
        results=config.rootpath / value["report"],
        checks_numerics=value["numerics"] == "on",
    )


def _turn_channel() -> TurnChannel | None:
    """Where a gate gives turns to the launch of an arm that this session is."""
    path = os.environ.get("PERFSUITE_ARM_CHANNEL")
    return None if path is None else TurnChannel(path=path, arm=os.environ["PERFSUITE_ARM_NAME"])


def _value(config: pytest.Config, option: Option) -> Any:
    text: str | None = config.getoption(option.flag)
    source, name = "command line", option.flag
    if text is None:
        text = config.getini(option.ini)
        source, name = f"ini file {config.inipath}", option.ini
    if text is None:
        text, source = option.default, "default"
    try:
        return option.parse(str(text))
    except ValueError as error:
        raise SettingError(f"{name} is {text!r} ({source}); use {option.allowed}") from error


_MARKER_PARSERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "tolerance": (parse_ratio, "a ratio such as '2%'"),
    "limit": (parse_ratio, "a ratio such as '5%'"),
    "floor": (parse_seconds, "a duration such as '50us'"),
    "counts": (dict, "a dict such as {'flops': 'exact'}"),
    "matrix": (_one_of(*MATRICES), f"one of {', '.join(MATRICES)}"),
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
