"""Recipes as a command line spells them: `precision=amp-bf16 num_workers=2`."""

import dataclasses
from collections.abc import Sequence
from types import NoneType
from typing import Any, get_args, get_type_hints

import msgspec

from perfsuite.errors import SettingError
from perfsuite.records.recipe import ALLOWED, Recipe


def parse_recipe(option: str, pairs: Sequence[str], *, of: Recipe | None = None) -> Recipe:
    """Return the recipe that `FIELD=VALUE` texts describe; `option` is for messages.

    `of` has the fields that are not named; the default recipe unless given. Raises a SettingError
    for a text that is no such pair, and a RecipeError for a recipe that is not allowed.

    >>> recipe = parse_recipe("--a", ["num_workers=2", "persistent_workers=true"])
    >>> recipe.num_workers, recipe.persistent_workers, recipe.precision
    (2, True, 'fp32')
    """
    types = get_type_hints(Recipe)
    values: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise SettingError(f"{option} is {pair!r}; use FIELD=VALUE, such as precision=amp-bf16")
        if name not in types:
            raise SettingError(
                f"{option} names {name!r}, which is no field of a recipe; use one of "
                f"{', '.join(types)}"
            )
        if name in values:
            raise SettingError(f"{option} gives {name} twice; give it once")
        is_none = text.lower() == "none" and NoneType in get_args(types[name])
        try:
            values[name] = None if is_none else msgspec.convert(text, types[name], strict=False)
        except msgspec.ValidationError as error:
            allowed, _ = ALLOWED[name]
            raise SettingError(f"{option} gives {name} as {text!r}; use {allowed}") from error
    return dataclasses.replace(of or Recipe(), **values)


def describe_recipe(recipe: Recipe) -> str:
    """Return the fields that differ from their defaults, as a command line spells them.

    >>> describe_recipe(Recipe(precision="amp-bf16", num_workers=2)), describe_recipe(Recipe())
    ('num_workers=2 precision=amp-bf16', 'the default recipe')
    """
    changed = (
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in recipe.as_dict().items()
        if value != getattr(Recipe, name)
    )
    return " ".join(changed) or "the default recipe"
