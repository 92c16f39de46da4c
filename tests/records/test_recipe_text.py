"""Recipes as a command line spells them: fields, types, and what is said of mistakes."""

from __future__ import annotations

import dataclasses

import pytest

from perfsuite.errors import RecipeError, SettingError
from perfsuite.records.recipe import Recipe, describe_recipe, parse_recipe


def test_every_type_of_field_is_read() -> None:
    recipe = parse_recipe(
        "--a",
        [
            *("num_workers=2", "persistent_workers=TRUE", "prefetch_factor=none"),
            *("clip_grad_norm=0.5", "parallel=ddp:2", "compile=false"),
        ],
    )

    assert recipe == Recipe(
        num_workers=2, persistent_workers=True, clip_grad_norm=0.5, parallel="ddp:2"
    )


def test_every_field_of_a_recipe_can_be_named() -> None:
    spelled = {"num_workers": "1", "prefetch_factor": "2", "parallel": "ddp:2"}
    others = {
        field.name: str(field.default)
        for field in dataclasses.fields(Recipe)
        if field.name not in spelled
    }

    recipe = parse_recipe("--a", [f"{name}={text}" for name, text in (others | spelled).items()])

    assert recipe == Recipe(num_workers=1, prefetch_factor=2, parallel="ddp:2")


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["precision"], "--b is 'precision'; use FIELD=VALUE, such as precision=amp-bf16"),
        (["num_workers=1", "num_workers=2"], "--b gives num_workers twice; give it once"),
        (["num_workers=two"], "--b gives num_workers as 'two'; use a whole number from 0"),
        (["compile=yes"], "--b gives compile as 'yes'; use True or False"),
        (
            ["clip_grad_norm=x"],
            "--b gives clip_grad_norm as 'x'; use None or a number above 0",
        ),
        (
            ["num_workers=none"],
            "--b gives num_workers as 'none'; use a whole number from 0",
        ),
    ],
)
def test_a_text_that_is_no_field_with_a_value_is_a_setting_error(
    pairs: list[str], message: str
) -> None:
    with pytest.raises(SettingError) as refused:
        parse_recipe("--b", pairs)

    assert str(refused.value) == message


def test_an_unknown_field_is_answered_with_all_fields() -> None:
    with pytest.raises(SettingError) as refused:
        parse_recipe("--a", ["workers=2"])

    names = ", ".join(field.name for field in dataclasses.fields(Recipe))
    assert str(refused.value) == (
        f"--a names 'workers', which is no field of a recipe; use one of {names}"
    )


def test_a_value_that_no_recipe_takes_is_the_recipes_error() -> None:
    with pytest.raises(RecipeError) as refused:
        parse_recipe("--a", ["num_workers=-1"])

    assert str(refused.value) == "num_workers is -1; use a whole number from 0"


def test_a_recipe_is_described_as_it_would_be_given() -> None:
    recipe = Recipe(num_workers=2, persistent_workers=True, precision="bf16")

    text = describe_recipe(recipe)

    assert text == "num_workers=2 persistent_workers=true precision=bf16"
    assert parse_recipe("--a", text.split()) == recipe
