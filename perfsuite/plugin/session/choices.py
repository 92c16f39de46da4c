"""Options and ini values, resolved once: command line before ini file before default."""

import datetime
import os
import re
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perfsuite.errors import SettingError
from perfsuite.experiments.rank_session import MAX_SEED
from perfsuite.gate.arms.build import find_interpreter
from perfsuite.gate.arms.command import Command
from perfsuite.gate.baselines.accepted import EVERY_CELL, Loosening, read_brought
from perfsuite.gate.common_cells import ACCEPTED_FILE
from perfsuite.gate.git.command import answer
from perfsuite.gate.git.find_base import find_base, target_branch
from perfsuite.gate.git.repository import Base, find_top
from perfsuite.gate.judge.trial import LAUNCH_TIMEOUT_S, Budget, draw_seed
from perfsuite.gate.provenance.head_files import kept_files
from perfsuite.gate.request import BOUNDS, PAIRS_FILE, GateRequest
from perfsuite.plugin.options import OPTIONS, Option, given
from perfsuite.ranks.messages import INJECTABLE_FAULTS, GroupPolicy, TurnChannel
from perfsuite.ranks.torchrun.membership import Membership, read_membership
from perfsuite.records.shard import Shard, parse_shard
from perfsuite.stats.sequential import LEAST_MAX_PAIRS
from perfsuite.system.timing_lock import lock_folder
from perfsuite.system.urls import mask
from perfsuite.units import option_bounds, parse_ratio, parse_seconds

Environ = Mapping[str, str]
# Makes a launch's session ours, as this one is; a pytest without perfsuite knows no such option.
_OURS = ("-o", "perf_gate=on")


class Choices(NamedTuple):
    """Everything that the options say."""

    policy: GroupPolicy  # its device may be "auto"
    num_rounds: int | None  # of a cell that names no number; None where a gate chooses
    wait_s: float  # for another timing session
    matrix: str
    require_gpus: int
    results: Path  # the folder of run.json and cells.jsonl
    checks_numerics: bool
    shard: Shard
    durations: str | None  # where it is written how long cells took; None for the stored runs
    is_gate: bool  # under --benchmark-compare
    gate: GateRequest  # unless a marker says otherwise
    membership: Membership | None  # among the processes that torchrun started


def one_of(*allowed: str) -> tuple[Callable[[str], str], str]:
    """Return what parses one of these words, a ValueError for any other, and names them all."""
    told = " or ".join(allowed) if len(allowed) == 2 else f"one of {', '.join(allowed)}"
    return lambda text: allowed[allowed.index(text)], told


def _whole_number(smallest: int, largest: int | None = None) -> tuple[Callable[[str], int], str]:
    def parse(text: str) -> int:
        if (value := int(text)) < smallest or (largest is not None and value > largest):
            raise ValueError(text)
        return value

    up_to = "" if largest is None else f" to {largest}"
    return parse, f"a whole number from {smallest}{up_to}"


def _variables(text: str) -> dict[str, str]:
    lines = text.splitlines()
    if any(line.find("=") < 1 for line in lines):
        raise ValueError(text)
    return dict(line.split("=", 1) for line in lines)


def _positive_seconds(text: str) -> float:
    if (value := parse_seconds(text)) <= 0:
        raise ValueError(text)
    return value


_minutes = partial(parse_seconds, unit="min")
# What parses an option that is no text and none of a few words, and what a value may be.
_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "require-gpus": _whole_number(0),
    "rounds": _whole_number(1),
    "tolerance": (parse_ratio, "a ratio such as 2%"),
    "limit": (parse_ratio, "a ratio such as 5%"),
    "base-python": (find_interpreter, "the name or path of an interpreter"),
    "base-env": (_variables, "KEY=VALUE"),
    "max-pairs": _whole_number(LEAST_MAX_PAIRS),
    "max-minutes": (_minutes, "minutes such as 30, or a duration such as 90s"),
    "seed": _whole_number(0, MAX_SEED),
    "timeout": (_positive_seconds, "a duration above 0, such as 120 or 2min"),
    "collective-timeout": (_positive_seconds, "a duration above 0, such as 30 or 500ms"),
    "wait": (parse_seconds, "a duration from 0"),
    "shard": (parse_shard, "I/N for the I-th of N shards, such as 2/4; N may be 99999 at most"),
}


def resolve(
    config: pytest.Config, environ: Environ = os.environ, given_environ: Environ = os.environ
) -> Choices:
    """Return the choices that command line, ini file and defaults make.

    `given_environ` is what launches of the gate get, the environment before any conftest.
    """
    names = given(config)
    texts = {option.name: names.get(option.name, option.default) for option in OPTIONS}
    value = {option.name: _value(config, option, texts[option.name]) for option in OPTIONS}
    try:
        option_bounds(texts["tolerance"] or None, texts["limit"], prefix="--perf-")
    except SettingError as error:
        bounds = [option for option in OPTIONS if option.name in ("limit", "tolerance")]
        sources = [f"{one.name}: {_source_of(config, one)}" for one in bounds]
        raise SettingError(f"{error} ({'; '.join(sources)})") from error
    if (turns := _turn_channel(environ)) is None:
        lock_folder(environ)
        durations = config.getoption("--perf-durations")  # an ini file may name them in any case
        if durations is not None and "shard" not in names:
            why = "only --perf-shard=I/N looks at it; add --perf-shard, or leave it out"
            raise SettingError(f"--perf-durations is {mask(durations)!r}, and {why}")
    return Choices(
        policy=GroupPolicy(
            device=value["device"],
            seed=value["seed"],
            timeout_s=value["timeout"],
            collective_timeout_s=value["collective-timeout"],
            import_roots=(str(Path.cwd()), str(config.rootpath)),
            turns=turns,
        ),
        num_rounds=None if turns and "rounds" not in names else value["rounds"],
        wait_s=value["wait"],
        matrix=value["matrix"],
        require_gpus=value["require-gpus"],
        results=config.rootpath / value["report"],
        checks_numerics=value["numerics"] == "on",
        # The launches of a gate collect all cells, and the gate says which of them to run.
        shard=value["shard"] if turns is None else Shard(),
        durations=value["durations"],
        is_gate=value["gate"] == "on",
        gate=_gate_request(config, value, environ, given_environ),
        # A launch of a gate is alone, though the shell may have the variables of some torchrun.
        membership=read_membership(environ) if turns is None else None,
    )


def _value(config: pytest.Config, option: Option, text: str) -> Any:
    if text == option.default == "":
        return None
    parse, allowed = _PARSERS.get(option.name, (str, "a text"))
    if "|" in option.metavar:
        parse, allowed = one_of(*option.metavar.split("|"))
    try:
        return parse(text)
    except ValueError as error:
        name = option.ini if config.getoption(option.flag) is None else option.flag
        source = _source_of(config, option)
        raise SettingError(f"{name} is {text!r} ({source}); use {allowed}") from error


def _source_of(config: pytest.Config, option: Option) -> str:
    if config.getoption(option.flag) is not None:
        words = map(str, config.invocation_params.args)
        is_typed = any(word.startswith(option.flag) for word in words)
        return "command line" if is_typed else "addopts or PYTEST_ADDOPTS"
    if config.getini(option.ini) is None:
        return "default"
    overridden = [text.partition("=")[0] for text in config.option.override_ini or ()]
    return "command line, -o" if option.ini in overridden else f"ini file {config.inipath}"


def _gate_request(
    config: pytest.Config, value: dict[str, Any], environ: Environ, given_environ: Environ
) -> GateRequest:
    typed = _typed(config, given_environ)
    typed_words = map(str, config.invocation_params.args)
    command = Command.of_this_process(config.invocation_params.dir, typed_words, given_environ)
    typed_bases = typed & {"--perf-base", "--perf-base-dir"}
    if len(typed_bases) == 2:
        raise SettingError("--perf-base and --perf-base-dir name two bases; give one of them")
    base_dir = None if typed_bases == {"--perf-base"} else value["base-dir"]
    timeout_s = max(value["timeout"], LAUNCH_TIMEOUT_S)
    budget = Budget(max_pairs=value["max-pairs"], max_s=value["max-minutes"], timeout_s=timeout_s)
    return GateRequest(
        command=command.followed_by(*_OURS),
        seed=draw_seed(),
        tolerance=value["tolerance"],
        limit=value["limit"],
        refuses_numerics_change=value["numerics-change"] == "fail",
        is_advisory=value["policy"] == "advisory",
        typed=frozenset(name for name in BOUNDS if f"--perf-{name}" in typed),
        fixed=frozenset(name for name in GateRequest.fixed if f"--perf-{name}" in typed),
        base=value["base"],
        target=target_branch(environ),
        judges_identical=value["identical"] == "judge",
        base_dir=Path(base_dir) if base_dir else None,
        base_python=value["base-python"],
        base_build=value["base-build"],
        base_environment=value["base-env"] or {},
        budget=budget,
        outputs=(config.rootpath / value["report"],),
        pairs_file=config.rootpath / value["report"] / PAIRS_FILE,
        # Before the tests are imported, as far as an option or a setting says that this is a gate.
        kept=kept_files(config.rootpath) if config.getoption("benchmark_compare", None) else None,
    )


def _typed(config: pytest.Config, environ: Environ) -> set[str]:
    words = (*config.invocation_params.args, *shlex.split(environ.get("PYTEST_ADDOPTS", "")))
    return {str(word).partition("=")[0] for word in words}


def _turn_channel(environ: Environ) -> TurnChannel | None:
    if (path := environ.get("PERFSUITE_ARM_CHANNEL")) is None:
        return None
    planted = environ.get("PERFSUITE_ARM_PLANTED", "0")
    channel = TurnChannel(path=path, arm=environ["PERFSUITE_ARM_NAME"])
    if planted in INJECTABLE_FAULTS:
        return channel._replace(planted_fault=planted)
    if "=" in planted:
        return channel._replace(planted_recipe=(planted,))
    return channel._replace(planted_ratio=float(planted))


def _may_be_off(root: Path, top: Path, revision: str) -> bool:
    file = root.resolve() / ACCEPTED_FILE
    theirs = answer(top, "show", f"{revision}:{file.relative_to(top).as_posix()}") or ""
    brought = read_brought(file, theirs.encode(), datetime.date.today())
    return any(one.gate for one in brought.of(EVERY_CELL, Loosening))


# Settings by which a change would pass by its own word, and what comes of each.
_EFFECTS = {
    **dict.fromkeys(("base", "base-dir"), "the change would say what it is compared with"),
    "device": "cells would be timed on another device",
    "gate": "--benchmark-compare would gate nothing",
    "numerics": "no cell would be shown to compute as one process",
    "shard": "the cells of other shards would have no verdict",
}


def refuse_change(config: pytest.Config, environ: Environ, *, measures: bool) -> None:
    """Refuse such a setting in an ini file, unless the base's has it too or nothing is lost by it.

    `measures` says whether the session would be gated without any setting.
    """
    typed = _typed(config, environ)
    settings = given(config)
    if settings.get("gate") == "off":
        settings.pop("numerics", None)
    asked = [
        option
        for option in OPTIONS
        if option.name in _EFFECTS
        and settings.get(option.name, option.default) not in (option.default, "")
        and not typed & {option.flag, option.ini, f"-o{option.ini}"}
    ]
    top = find_top(config.rootpath) if asked else None
    inipath = config.inipath and config.inipath.parent.resolve() / config.inipath.name
    if top is None or inipath is None or not inipath.is_relative_to(top):
        return
    typed_base = settings.get("base") if "--perf-base" in typed else None
    base = find_base(config.rootpath, typed_base, target=target_branch(environ))
    if not isinstance(base, Base):
        return
    theirs = answer(top, "show", f"{base.revision}:{inipath.relative_to(top).as_posix()}") or ""
    for option in asked:
        name, ini = option.name, option.ini
        setting = rf"""^(?:\s*{ini}\s*=\s*|[^#\n]*{option.flag}[=\s])["']?([^\s"']+)"""
        found = re.search(setting, theirs, re.MULTILINE)
        is_new = measures if found is None else found[1] != settings[name]
        if is_new and not (name == "gate" and _may_be_off(config.rootpath, top, base.revision)):
            added = f"{ini} is {settings[name]!r} ({config.inipath}) and was not in the base"
            advice = f"leave it out, or add {option.flag}={settings[name]}"
            raise SettingError(f"{added}, {base.described}, so {_EFFECTS[name]}; {advice}")
