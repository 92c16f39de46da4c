"""How fast one optimizer step is, over the four axes that decide it.

pytest benchmarks                        measures, and proves each recipe against one process
pytest benchmarks --benchmark-compare    the gate: compares with the merge base
"""

import pytest

from perfsuite import Recipe

# A name, "my_package.module:attribute" of a perfsuite.Workload, or such an object.
WORKLOAD = "lenet-digits"


@pytest.mark.parametrize("checkpointing", ["none", "every-block"])
@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
@pytest.mark.parametrize("parallel", ["single", "ddp:2"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_step(train_benchmark, num_workers, parallel, precision, checkpointing):
    recipe = Recipe(
        num_workers=num_workers, parallel=parallel, precision=precision, checkpointing=checkpointing
    )
    outcome = train_benchmark(WORKLOAD, recipe)
    assert outcome.losses_are_finite
