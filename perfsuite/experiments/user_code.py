"""What a user gives of a training of one's own, checked: a function, a command, a reference."""

import contextlib
import inspect
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from perfsuite.errors import EquivalenceError, SettingError
from perfsuite.experiments.results import not_exercised
from perfsuite.ranks import messages
from perfsuite.ranks.chains import prove, run_chain
from perfsuite.ranks.command.group import CommandLaunch, run_command
from perfsuite.ranks.command.metrics import Metrics, run_logged
from perfsuite.ranks.messages import GroupPolicy, GroupRequest, Reply, UserCode
from perfsuite.ranks.pickling import pack
from perfsuite.records.equivalence import NO_REFERENCE, EquivalenceReport, Numerics
from perfsuite.records.recipe import Recipe
from perfsuite.units import counted

# As `verify` takes where it is not told otherwise.
_NUM_STEPS = 3
# Runs a group of ranks.
Run = Callable[[GroupRequest], list[Reply]]


def plan_function(argument: str, function: Any, **code: Any) -> UserCode:
    """Return the code of a function that an argument of a test gives; raises a SettingError."""
    if not callable(function):
        raise SettingError(f"{argument} is {function!r}; use a function without arguments")
    try:
        with contextlib.suppress(ValueError):  # some builtins have no signature
            inspect.signature(function).bind()
    except TypeError as error:
        refusal = f"{argument} cannot be called without arguments ({error})"
        raise SettingError(f"{refusal}; use a function without arguments") from error
    name = getattr(function, "__name__", type(function).__name__)
    return UserCode(name=name, function=pack(function), **code)


def plan_launch(
    command: Any, *, root: Path, cwd: Any = None, env: Any = None, name: Any = None
) -> CommandLaunch:
    """Return how a command is launched below a root; a SettingError for a wrong argument."""
    words = command if isinstance(command, Sequence) and not isinstance(command, str) else ()
    if not words or not all(isinstance(word, str) and word for word in words):
        found = f"command is {command!r}; use a list of words, such as ['torchrun', 'train.py']"
        raise SettingError(found)
    if not (cwd is None or isinstance(cwd, str | Path)) or not (root / (cwd or "")).is_dir():
        raise SettingError(f"cwd is {cwd!r}; use a folder, which counts from {root}")
    given = {} if env is None else env
    if not isinstance(given, Mapping) or not all(
        isinstance(text, str) for pair in given.items() for text in pair
    ):
        raise SettingError(f"env is {env!r}; use a dict of strings, such as {{'SEED': '0'}}")
    if not (name is None or (isinstance(name, str) and name.strip())):
        raise SettingError(f"name is {name!r}; use a text, or None for the name of a file")
    folder = root / (cwd or "")
    name = name or name_of(words, folder)
    return CommandLaunch(name=name, words=tuple(words), folder=folder, environment=dict(given))


def name_of(words: Sequence[str], folder: Path) -> str:
    """Return a command's name: of its first file without the suffix, its module or its program."""
    # Of a long word, as of a script in it, `Path.is_file` raises an error.
    files = [word for word in words[1:] if os.path.isfile(folder / word)]  # noqa: PTH113
    modules = [after for word, after in itertools.pairwise(words) if word == "-m"]
    if modules and not files:
        return modules[-1]
    path = Path((files or [Path(words[0]).name])[0])
    # A file of the folder is named from there: each arm of a gate has a folder of its own.
    if path.is_absolute():
        path, top = path.resolve(), folder.resolve()
        path = path.relative_to(top) if path.is_relative_to(top) else Path(path.name)
    return str(path.with_suffix(""))


def plan_command(launch: CommandLaunch, *, metrics: Any = None, **how: Any) -> tuple[UserCode, Run]:
    """Return the code of a command, and what runs it; `metrics` say where it logs its steps."""
    user_code = UserCode(name=launch.name, function=b"", kind="command", **how)
    if metrics is None:
        return user_code, partial(run_command, launch=launch)
    return user_code, partial(run_logged, launch=launch, metrics=Metrics(metrics))


def compare_with_reference(
    code: UserCode, reference: object, policy: GroupPolicy, run: Run
) -> tuple[Numerics, dict[str, str]]:
    """Return what the first steps of both show, and by name why something was not compared."""
    missing: dict[str, str] = {}
    if reference is None:
        rows = not_exercised(code.name, Recipe(precision=code.precision), NO_REFERENCE).rows
    else:
        plan = plan_function("reference", reference, kind="step", precision=code.precision)
        record = messages.RecordSteps(user_code=code, num_steps=_NUM_STEPS)
        steps = GroupRequest(job=record, world_size=code.world_size, policy=policy)
        checked = run_chain(prove([steps], messages.CheckSteps(reference=plan, tested=code)), run)
        rows = checked.rows
        missing |= {f"numerics of {what}": why for what, why in checked.inapplicable.items()}
    ranks = counted(code.world_size, "rank")
    described = {"parallel": ranks, "precision": code.precision, "checkpointing": "none"}
    report = EquivalenceReport(workload=code.name, recipe=described, rows=rows, inapplicable={})
    if report.status == "mismatch":
        raise EquivalenceError(f"not timed, because its numerics check fails: {report}")
    if not report:
        missing["numerics"] = report.worst.reason
    return report.numerics, missing
