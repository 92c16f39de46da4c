"""The recipe's fields as options of a verb, and what else all verbs that train have in common.

One option for each field of `Recipe`, made from the field itself, so that no verb names them again.
Must not know what a verb does with the recipe.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from perfsuite.errors import SettingError
from perfsuite.experiments.rank_session import Session
from perfsuite.experiments.settings import DEVICES, MAX_SEED, Settings
from perfsuite.records.parallel import PARALLEL_FORMS
from perfsuite.records.recipe import COMM_HOOKS, PRECISIONS, Recipe
from perfsuite.stats.sequential import FIRST_LOOK

WorkloadName = Annotated[
    str, typer.Argument(help='A name, or "package.module:attribute" from here.')
]
DeviceName = Annotated[str, typer.Option(help=f"One of {', '.join(DEVICES)}.")]
Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Of weights, data order and dropout.")]

_HELP = {
    "parallel": f"One of {PARALLEL_FORMS}.",
    "precision": f"One of {', '.join(PRECISIONS)}.",
    "checkpointing": "none, every-block, segments:C or selective.",
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


def takes_recipe(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb's command line an option for each field of `Recipe`.

    Args:
        verb: Takes a keyword argument `recipe`, which the options replace on the command line.

    Returns:
        The verb as typer should see it. A recipe that is none is a `RecipeError` when it is called.
    """
    options = _recipe_options()

    @functools.wraps(verb)
    def with_options(**values: Any) -> None:
        recipe = Recipe(**{name: values.pop(name) for name in options})
        verb(**values, recipe=recipe)

    signature = inspect.signature(verb, eval_str=True)
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name != "recipe"
    ]
    # The argument, then the recipe, then how the verb goes about it.
    parameters = [*own[:1], *options.values(), *own[1:]]
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {
        parameter.name: parameter.annotation for parameter in parameters
    }
    return with_options


def open_session(
    device: str, seed: int, *, shows_output: bool = True, round_s: float | None = None
) -> Session:
    """Return a session that finds workloads in the current directory and tells of waiting.

    Args:
        device: One of `DEVICES`.
        seed: Of weights, data order and random numbers.
        shows_output: Print what ranks printed when all went well.
        round_s: What a round should take at least; None is 50 ms.

    Raises:
        SettingError: There is no such device.
    """
    chosen = next((known for known in DEVICES if known == device), None)
    if chosen is None:
        raise SettingError(f"--device is {device!r}; use one of {', '.join(DEVICES)}")
    settings = Settings(
        device=chosen,
        seed=seed,
        import_roots=(Path.cwd(),),
        shows_output=shows_output,
        round_s=round_s,
    )
    return Session(settings, say=lambda text: typer.echo(text, err=True))


def _recipe_options() -> dict[str, inspect.Parameter]:
    types = get_type_hints(Recipe)
    fields = {field.name: field for field in dataclasses.fields(Recipe)}
    return {
        name: inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=fields[name].default,
            # Named in full, or typer would add a --no-... to each switch.
            annotation=Annotated[
                types[name], typer.Option(f"--{name.replace('_', '-')}", help=text)
            ],
        )
        for name, text in _HELP.items()
    }


Paths = Annotated[
    list[str] | None, typer.Argument(help="Benchmark files and folders, as pytest takes them.")
]
Selection = Annotated[
    str | None, typer.Option("-k", metavar="EXPR", help="Only cells that match, as in pytest.")
]
Tolerance = Annotated[str, typer.Option(help="Slowdown that is accepted.")]
Limit = Annotated[str, typer.Option(help="Slowdown that must not pass.")]
MaxPairs = Annotated[int, typer.Option(min=FIRST_LOOK, help="Launches of each side, at most.")]
MaxMinutes = Annotated[float, typer.Option(min=0, help="No pair begins that would end later.")]
DrawnSeed = Annotated[int | None, typer.Option(min=0, help="Drawn, and told, unless given.")]
