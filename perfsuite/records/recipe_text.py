"""Recipes as a command line spells them: `precision=amp-bf16 num_workers=2`."""

import dataclasses
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from perfsuite.errors import SettingError
from perfsuite.records.recipe import Recipe

_BOOLEANS = {"true": True, "false": False}
# How a field's type reads its text, and what to say where it cannot.
_READERS: dict[type, tuple[Callable[[str], Any], str]] = {
    bool: (lambda text: _BOOLEANS[text.lower()], "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    str: (str, "a text"),
}
_NONE = "none"


class RecipeField(NamedTuple):
    """The type of a field, such as `int | None`, and its default."""

    annotation: Any
    default: Any


def fields_of(kind: type[Recipe]) -> dict[str, RecipeField]:
    """Return the fields of a recipe by name.

    >>> fields_of(Recipe)["prefetch_factor"]
    RecipeField(annotation=int | None, default=None)
    """
    types = get_type_hints(kind)
    return {
        field.name: RecipeField(types[field.name], field.default)
        for field in dataclasses.fields(kind)
    }


def parse_recipe(option: str, pairs: Sequence[str], *, of: Recipe | None = None) -> Recipe:
    """Return the recipe that `FIELD=VALUE` texts describe; `option` is for messages.

    `of` has the fields that are not named; the default recipe unless given. Raises a SettingError
    for a text that is no such pair, and a RecipeError for a recipe that is not allowed.

    >>> recipe = parse_recipe("--a", ["num_workers=2", "persistent_workers=true"])
    >>> recipe.num_workers, recipe.persistent_workers, recipe.precision
    (2, True, 'fp32')
    """
    fields = fields_of(Recipe)
    values: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise SettingError(f"{option} is {pair!r}; use FIELD=VALUE, such as precision=amp-bf16")
        if name not in fields:
            raise SettingError(
                f"{option} names {name!r}, which is no field of a recipe; use one of "
                f"{', '.join(fields)}"
            )
        if name in values:
            raise SettingError(f"{option} gives {name} twice; give it once")
        values[name] = _read(option, name, fields[name].annotation, text)
    return dataclasses.replace(of or Recipe(), **values)


def describe_recipe(recipe: Recipe) -> str:
    """Return the fields that differ from their defaults, as a command line spells them.

    >>> describe_recipe(Recipe(precision="amp-bf16", num_workers=2)), describe_recipe(Recipe())
    ('num_workers=2 precision=amp-bf16', 'the default recipe')
    """
    changed = [
        f"{field.name}={_spell(getattr(recipe, field.name))}"
        for field in dataclasses.fields(recipe)
        if getattr(recipe, field.name) != field.default
    ]
    return " ".join(changed) or "the default recipe"


def _read(option: str, name: str, annotation: Any, text: str) -> Any:
    kinds = set(get_args(annotation) or [annotation])
    is_optional = NoneType in kinds
    if is_optional and text.lower() == _NONE:
        return None
    (kind,) = kinds - {NoneType}
    read, allowed = _READERS[kind]
    try:
        return read(text)
    except (KeyError, ValueError) as error:
        allowed += f" or {_NONE}" if is_optional else ""
        raise SettingError(f"{option} gives {name} as {text!r}; use {allowed}") from error


def _spell(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
