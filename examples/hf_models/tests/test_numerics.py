import pytest

from perfsuite import Recipe

RECIPES = {
    "ddp": Recipe(parallel="ddp:2"),
    "fsdp": Recipe(parallel="fsdp:2"),
    "amp": Recipe(precision="amp-bf16"),
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("model", ["bert", "gpt2"])
def test_a_model_with_dropout_computes_the_same(check_equivalence, model, name):
    assert check_equivalence(f"hf_models:{model}", RECIPES[name])
