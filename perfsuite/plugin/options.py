"""Options, ini values and marker arguments, resolved once into `Settings`.

Command line before ini before default; every message says where a value came from. Below this
module nothing reads an option, an ini value or the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from perfsuite.errors import SettingError
from perfsuite.experiments.settings import DEVICES, MAX_SEED, Device, Settings
from perfsuite.gate.judge.trial import LAUNCH_TIMEOUT_S, Budget
from perfsuite.ranks.messages import INJECTABLE_FAULTS, TurnChannel
from perfsuite.ranks.torchrun.membership import Membership, read_membership
from perfsuite.records.shard import Shard, parse_shard
from perfsuite.stats.sequential import FIRST_LOOK
from perfsuite.system.timing_lock import WAIT_S
from perfsuite.system.urls import mask
from perfsuite.units import parse_ratio, parse_seconds

MATRICES = ("smoke", "default", "full")

# What decides which cells there are, and what is run in them.
_PASSED_TO_ARMS = ("device", "matrix", "rounds", "seed", "timeout", "collective-timeout")


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


def one_of(*allowed: str) -> Callable[[str], str]:
    """Return what parses one of these words, and raises ValueError for any other."""

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
        parse=one_of(*DEVICES),
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
        parse=one_of(*MATRICES),
        default="default",
        allowed=f"one of {', '.join(MATRICES)}",
        help="how many of the cells run: smoke, default or full",
    ),
    Option(
        name="numerics",
        metavar="on|off",
        parse=one_of("on", "off"),
        default="on",
        allowed="on or off",
        help="check that a cell computes the same as one process before it is timed",
    ),
    Option(
        name="gate",
        metavar="on|off",
        parse=one_of("on", "off"),
        default="on",
        allowed="on or off",
        help="judge cells under --benchmark-compare; off leaves it to pytest-benchmark",
    ),
    Option(
        name="tolerance",
        metavar="RATIO",
        parse=parse_ratio,
        default="2%",
        allowed="a ratio such as 2%",
        help="slowdown that is accepted",
    ),
    Option(
        name="limit",
        metavar="RATIO",
        parse=parse_ratio,
        default="5%",
        allowed="a ratio such as 5%",
        help="slowdown that must not pass",
    ),
    Option(
        name="base",
        metavar="REV",
        parse=str,
        default="",
        allowed="a revision",
        help="what cells are compared with; the merge base unless given",
    ),
    Option(
        name="base-dir",
        metavar="DIR",
        parse=str,
        default="",
        allowed="a folder",
        help="a folder to compare with, instead of a revision",
    ),
    Option(
        name="max-pairs",
        metavar="N",
        parse=_int_from(FIRST_LOOK),
        default="16",
        allowed=f"a whole number from {FIRST_LOOK}",
        help="launches of each side, at most",
    ),
    Option(
        name="max-minutes",
        metavar="TIME",
        parse=parse_seconds,
        default="30min",
        allowed="a duration such as 30min",
        help="no pair of launches begins that would end later",
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
        default=f"{WAIT_S:g}",
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
    Option(
        name="shard",
        metavar="I/N",
        parse=parse_shard,
        default="1/1",
        allowed="I/N for the I-th of N shards, such as 2/4, with I from 1 to N and N up to 99999",
        help="measure only one of N shares of the cells, balanced by how long they took",
    ),
    Option(
        name="durations",
        metavar="PATH",
        parse=str,
        default="",
        allowed="a file, a folder or a URL",
        help="run, or folder of them, that tells how long cells took; the stored ones else",
    ),
)


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
    turns = _turn_channel()
    if turns is None:
        _refuse_unused_durations(config)
    return Choices(
        settings=Settings(
            device=cast(Device, value["device"]),
            num_rounds=None if turns and not _is_given(config, "rounds") else value["rounds"],
            seed=value["seed"],
            timeout_s=value["timeout"],
            collective_timeout_s=value["collective-timeout"],
            wait_s=value["wait"],
            import_roots=(Path.cwd(), config.rootpath),
            turns=turns,
        ),
        matrix=value["matrix"],
        require_gpus=value["require-gpus"],
        results=config.rootpath / value["report"],
        checks_numerics=value["numerics"] == "on",
        # The launches of a gate have all cells, and are told which of them to run.
        shard=value["shard"] if turns is None else Shard(number=1, num_shards=1),
        durations=value["durations"] or None,
        gate=_gate_choices(config, value),
        # A launch of a gate is alone, though the shell may have the variables of some torchrun.
        membership=read_membership(os.environ) if turns is None else None,
    )


def _refuse_unused_durations(config: pytest.Config) -> None:
    """An ini file may name durations for those sessions that are cut; a command line is one's own.

    Raises:
        SettingError: They are named there, and the session is not cut.
    """
    named = config.getoption("--perf-durations")
    if named is not None and not _is_given(config, "shard"):
        raise SettingError(
            f"--perf-durations is {mask(named)!r}, and only --perf-shard=I/N looks at it; add "
            "--perf-shard, or leave it out"
        )


def _gate_choices(config: pytest.Config, value: dict[str, Any]) -> GateChoices:
    if value["tolerance"] >= 1:
        raise SettingError(f"--perf-tolerance is {value['tolerance']:.3g}; use less than 1 (100%)")
    if value["limit"] < value["tolerance"]:
        raise SettingError(
            f"--perf-limit is {value['limit']:.3g}, below the tolerance of "
            f"{value['tolerance']:.3g} (--perf-tolerance); use a larger limit"
        )
    given = [
        f"{option.flag}={config.getoption(option.flag)}"
        for option in OPTIONS
        if option.name in _PASSED_TO_ARMS and config.getoption(option.flag) is not None
    ]
    return GateChoices(
        is_on=value["gate"] == "on",
        tolerance=value["tolerance"],
        limit=value["limit"],
        base=value["base"] or None,
        base_dir=Path(value["base-dir"]) if value["base-dir"] else None,
        budget=Budget(
            max_pairs=value["max-pairs"],
            max_s=value["max-minutes"],
            timeout_s=max(value["timeout"], LAUNCH_TIMEOUT_S),
        ),
        pytest_arguments=tuple(given),
        outputs=(config.rootpath / value["report"],),
    )


def _turn_channel() -> TurnChannel | None:
    """Where a gate gives turns to the launch of an arm that this session is."""
    path = os.environ.get("PERFSUITE_ARM_CHANNEL")
    if path is None:
        return None
    planted = os.environ.get("PERFSUITE_ARM_PLANTED", "0")
    channel = TurnChannel(path=path, arm=os.environ["PERFSUITE_ARM_NAME"])
    if planted in INJECTABLE_FAULTS:
        return replace(channel, planted_fault=planted)
    if "=" in planted:
        return replace(channel, planted_recipe=(planted,))
    return replace(channel, planted_ratio=float(planted))


def _is_given(config: pytest.Config, name: str) -> bool:
    """Whether command line or ini file have a value of the option."""
    option = next(option for option in OPTIONS if option.name == name)
    given = config.getoption(option.flag), config.getini(option.ini)
    return any(value is not None for value in given)


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


@dataclass(frozen=True, kw_only=True)
class GateChoices:
    """How cells are judged.

    Attributes:
        is_on: Whether `--benchmark-compare` is the gate.
        tolerance: The slowdown that is accepted unless a marker says otherwise, 0.02 = 2 %.
        limit: The slowdown that must not pass.
        base: A revision; None finds the merge base.
        base_dir: A folder instead of a revision.
        budget: What it may cost.
        pytest_arguments: What both arms are called with beside paths and selection.
        outputs: Files and folders that the session itself writes.
    """

    is_on: bool
    tolerance: float
    limit: float
    base: str | None
    base_dir: Path | None
    budget: Budget
    pytest_arguments: tuple[str, ...]
    outputs: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Everything the plugin was asked for.

    Attributes:
        settings: What the session runs cells with.
        matrix: The size of the matrix, one of `MATRICES`.
        require_gpus: GPUs without which nothing runs.
        results: Folder of run.json and cells.jsonl.
        checks_numerics: Whether cells are checked before they are timed.
        shard: The part of the cells that is measured.
        durations: What is said to tell how long cells took; None for the stored runs.
        gate: How cells are judged.
        membership: This process's place among those that torchrun started; None where it is alone.
    """

    settings: Settings
    matrix: str
    require_gpus: int
    results: Path
    checks_numerics: bool
    shard: Shard
    durations: str | None
    gate: GateChoices
    membership: Membership | None
