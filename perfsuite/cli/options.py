"""The options that verbs share, those of each field of `Recipe`, and what they open with them."""

import copy
import functools
import inspect
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer

import perfsuite
from perfsuite.cli.output import say
from perfsuite.errors import SettingError
from perfsuite.experiments.rank_session import DEVICES, MAX_SEED, Session
from perfsuite.experiments.user_code import plan_command, plan_launch
from perfsuite.gate.arms.command import Command
from perfsuite.gate.git.repository import find_top, tracked_files
from perfsuite.gate.judge.trial import draw_seed
from perfsuite.ranks.messages import GroupPolicy
from perfsuite.records.parallel import PARALLEL_FORMS
from perfsuite.records.recipe import COMM_HOOKS, PRECISIONS, Recipe
from perfsuite.stats.sequential import LEAST_MAX_PAIRS
from perfsuite.system.environment import Environment, describe_host
from perfsuite.system.timing_lock import WAIT_S, TimingLock

Verb = TypeVar("Verb", bound=Callable[..., None])
WorkloadName = Annotated[str, typer.Argument(help='Name, or "package.module:attribute" from here.')]
DeviceName = Annotated[str, typer.Option(help=f"One of {', '.join(DEVICES)}.")]
Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Of weights, data order and dropout.")]
Paths = Annotated[
    list[str] | None, typer.Argument(help="Benchmark files and folders, as pytest takes them.")
]
Selection = Annotated[
    str | None, typer.Option("-k", metavar="EXPR", help="Only cells that match, as in pytest.")
]
Storage = Annotated[
    str, typer.Option("--storage", metavar="DIR|URL", help="What --benchmark-storage names.")
]
AcceptedFile = Annotated[
    Path, typer.Option("--file", metavar="FILE", help="The list of accepted exceptions.")
]
STORAGE = "baselines"
ACCEPTED = Path(STORAGE, "accepted.toml")
Tolerance = Annotated[str | None, typer.Option(help="Accepted slowdown; else 0.4 of the limit.")]
Limit = Annotated[str, typer.Option(help="Slowdown that must not pass.")]
MaxPairs = Annotated[int, typer.Option(min=LEAST_MAX_PAIRS, help="Launches of each side, at most.")]
MaxMinutes = Annotated[float, typer.Option(min=0, help="Start no pair that would end after this.")]
_OF_SEED = "Of the order of launches; drawn, and shown, unless given."
DrawnSeed = Annotated[
    int, typer.Option(min=0, default_factory=draw_seed, show_default=False, help=_OF_SEED)
]

# Of the session of a command; its plugin lies beside it.
_INIFILE = str(Path(perfsuite.__file__).parent / "plugin" / "command_cell.ini")
_HELP = {
    "parallel": f"One of {PARALLEL_FORMS}.",
    "precision": f"One of {', '.join(PRECISIONS)}.",
    "checkpointing": "none, every-block, segments:C or selective.",
    "loader": "own, or cached: as if loading were free (compare and sweep).",
    "num_workers": "Loader processes of each rank.",
    "persistent_workers": "Keep the loader processes from epoch to epoch.",
    "pin_memory": "Load into page-locked memory.",
    "prefetch_factor": "Batches that each loader process loads ahead.",
    "non_blocking": "Copy to the device without waiting.",
    "micro_batch_size": "Samples of a batch; the workload's unless given.",
    "grad_accumulation_steps": "Micro-batches of one optimizer step.",
    "clip_grad_norm": "Greatest norm of all gradients.",
    "compile": "Run the model through torch.compile.",
    "bucket_cap_mb": "DDP's bucket size in MiB.",
    "static_graph": "DDP's.",
    "gradient_as_bucket_view": "DDP's.",
    "find_unused_parameters": "DDP's.",
    "comm_hook": f"DDP's, one of {', '.join(COMM_HOOKS)}.",
}


def explained(**texts: str) -> Callable[[Verb], Verb]:
    """Return a decorator of a verb that gives its options, by name, their help."""

    def explain(verb: Verb) -> Verb:
        for name, text in texts.items():
            annotation = verb.__annotations__[name]
            if not hasattr(annotation, "__metadata__"):
                annotation = Annotated[annotation, typer.Option()]
            kind, option = get_args(annotation)
            option = copy.copy(option)
            option.help = text
            verb.__annotations__[name] = Annotated[kind, option]
        return verb

    return explain


def takes_recipe(
    verb: Callable[..., None], *, fixed: Mapping[str, Any] = {}
) -> Callable[..., None]:
    """Return a verb that takes a `recipe`, with an option for each field in its place.

    `fixed` fields get no option: the verb sets them itself, and begins with these values.
    """
    options = {option.name: option for option in _recipe_options() if option.name not in fixed}

    @functools.wraps(verb)
    def with_options(**values: Any) -> None:
        verb(recipe=Recipe(**fixed, **{name: values.pop(name) for name in options}), **values)

    signature = inspect.signature(verb, eval_str=True)
    others = (one for name, one in signature.parameters.items() if name != "recipe")
    own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in others]
    # The argument, then the recipe, then how the verb goes about it.
    parameters = [*own[:1], *options.values(), *own[1:]]
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    return with_options


def _recipe_options() -> Iterator[inspect.Parameter]:
    kind, types = inspect.Parameter.KEYWORD_ONLY, get_type_hints(Recipe)
    for name, text in _HELP.items():
        # Named in full, or typer would add a --no-... to each switch.
        option = typer.Option(f"--{name.replace('_', '-')}", help=text)
        default, annotation = getattr(Recipe, name), Annotated[types[name], option]
        yield inspect.Parameter(name, kind, default=default, annotation=annotation)


def open_session(
    device: str, seed: int = 0, *, round_s: float | None = None, shows_output: bool = True
) -> Session:
    """Return a session that finds workloads here; an unknown device raises a SettingError."""
    if device not in DEVICES:
        raise SettingError(f"--device is {device!r}; use one of {', '.join(DEVICES)}")
    roots = (str(Path.cwd()),)
    policy = GroupPolicy(device=device, seed=seed, import_roots=roots, shows_output=shows_output)
    return Session(policy, say=say, round_s=round_s)


def pytest_command(paths: Sequence[str] | None, select: str | None) -> Command:
    """Return the call of pytest that a verb stands for, with its paths and its -k."""
    for path in paths or ():
        if not Path(path.partition("::")[0]).exists():
            raise SettingError(f"{path} does not exist; name files or folders with benchmarks")
    selection = () if select is None else ("-k", select)
    return Command.of_this_process(Path.cwd(), (*(paths or ()), *selection), os.environ)


def command_call(words: Sequence[str], given: Mapping[str, Any]) -> Command:
    """Return the call of pytest whose only cell is a command, in this folder.

    `given` are arguments of `command_benchmark`; a SettingError says which is wrong.
    """
    folder = Path.cwd()
    launch = plan_launch(words, root=folder, name=given.get("name"))
    cell = {"steps": 40, "warmup": 10, **given, "command": [*words], "name": launch.name}
    counts = {f"num_{name}": cell[name] for name in ("steps", "warmup")}
    others = {name: cell[name] for name in cell.keys() & {"samples_per_step", "tokens_per_step"}}
    plan_command(launch, metrics=cell.get("metrics"), **counts, **others)
    # Nothing of the user's configuration of pytest concerns it.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment |= {"PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""}
    program, top = Path(launch.program(os.environ)), find_top(folder)
    if top and program.is_relative_to(top) and not tracked_files(top, [program.relative_to(top)]):
        # As in a virtual environment, which is in no other tree.
        cell["command"][0] = program.name
        paths = str(program.parent), environment.get("PATH", os.defpath)
        environment["PATH"] = os.pathsep.join(paths)
    shared, text = f"perf_share={shlex.join(_shared_files(folder))}", json.dumps(cell)
    arguments = "-c", _INIFILE, f"--rootdir={folder}", "-o", shared, f"--command-cell={text}"
    return Command(folder=folder, arguments=arguments, environment=environment)


def _shared_files(here: Path) -> list[str]:
    """What `perf_share` names inside of a folder, where its pytest has a configuration."""
    import pytest  # here, because most verbs need none of it
    from _pytest.config.findpaths import locate_config

    try:
        root, _, settings, *_ = locate_config(here, [here])
        named: Any = getattr(it := settings.get("perf_share", ()), "value", it)  # since pytest 9
        named = shlex.split(named) if isinstance(named, str) else named
        paths = [(root or here) / name for name in named]
    except (pytest.UsageError, TypeError, ValueError) as error:
        raise SettingError(f"perf_share of pytest's configuration: {error}") from error
    return [str(path.relative_to(here)) for path in paths if path.is_relative_to(here)]


def wait_for_machine() -> TimingLock:
    """Return the lock of a session that waits for a day until another one has ended."""
    return TimingLock(wait_s=WAIT_S, say=say)


def environment_here() -> Environment:
    """Return the environment that a session would find here."""
    return describe_host(os.environ, len(os.sched_getaffinity(0)))
