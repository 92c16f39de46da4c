from __future__ import annotations

import itertools
import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from perfsuite import Workload
from perfsuite.records.workload import Split, find_workload, load_workload

# All but MNIST, whose files are not here; its own tests write some.
NAMES = [
    "toy-mlp",
    "lenet-digits",
    "lenet-digits-affine",
    "transformer-tiny",
    "transformer-tiny-lora",
    "resnet18",
]
NUM_CLASSES = {"transformer-tiny": 4, "transformer-tiny-lora": 4}


@pytest.fixture(params=NAMES)
def workload(request: pytest.FixtureRequest) -> Workload:
    return load_workload(find_workload(request.param))


def first_batch(workload: Workload, split: Split = "train") -> list[Any]:
    dataset: Any = workload.build_dataset(split)
    torch.manual_seed(5)
    return default_collate([dataset[index] for index in range(4)])


@pytest.mark.parametrize("name", [*NAMES, "lenet-mnist", "lenet-mnist-affine"])
def test_a_name_leads_to_the_workload_of_this_name(name: str) -> None:
    assert load_workload(find_workload(name)).name == name


def test_the_model_scores_every_class_for_a_batch_and_its_loss_reaches_all_that_trains(
    workload: Workload,
) -> None:
    inputs, targets = first_batch(workload)
    model = workload.build_model()

    outputs = model(inputs)
    loss = workload.loss(outputs, targets)
    loss.backward()

    assert outputs.shape == (4, NUM_CLASSES.get(workload.name, 10))
    assert loss.shape == ()
    assert loss.isfinite()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_the_blocks_are_a_chain_each_taking_only_what_the_one_before_returned(
    workload: Workload,
) -> None:
    inputs, _ = first_batch(workload)
    model = workload.build_model()
    assert workload.blocks is not None
    blocks = workload.blocks(model)
    calls: list[tuple[torch.nn.Module, tuple[Any, ...], Any]] = []
    for block in blocks:
        block.register_forward_hook(lambda *call: calls.append(call))

    model(inputs)

    assert [block for block, _, _ in calls] == blocks
    assert len(blocks) == (8 if workload.name == "resnet18" else 4)
    for (_, _, output), (_, arguments, _) in itertools.pairwise(calls):
        assert len(arguments) == 1
        assert arguments[0] is output


def test_the_same_seed_builds_the_same_weights_and_another_seed_builds_others(
    workload: Workload,
) -> None:
    weights = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        weights.append(torch.cat([p.flatten() for p in workload.build_model().parameters()]))

    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_data_depend_on_no_seed_and_use_up_no_random_numbers(
    workload: Workload, split: Split
) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    dataset: Any = workload.build_dataset(split)
    state_after = torch.get_rng_state()
    batch = first_batch(workload, split)
    torch.manual_seed(2)
    same_batch = first_batch(workload, split)

    assert torch.equal(state, state_after)
    assert len(dataset) > 0
    assert torch.equal(batch[0], same_batch[0])
    assert torch.equal(batch[1], same_batch[1])


def test_the_workload_and_its_datasets_survive_pickling(workload: Workload) -> None:
    copy = pickle.loads(pickle.dumps(workload))
    dataset: Any = workload.build_dataset("train")
    dataset_copy = pickle.loads(pickle.dumps(dataset))

    torch.manual_seed(5)
    inputs, target = dataset[7]
    torch.manual_seed(5)
    inputs_copy, target_copy = dataset_copy[7]

    assert copy.name == workload.name
    assert len(dataset_copy) == len(dataset)
    assert torch.equal(inputs, inputs_copy)
    assert torch.equal(target, target_copy)
