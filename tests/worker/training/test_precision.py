from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from perfsuite.records.recipe import PRECISIONS
from perfsuite.records.stages import untimed
from perfsuite.worker.training.mixed_precision import (
    PRECISION_POLICIES,
    PrecisionPolicy,
    autocast_forward,
    cast_for_loss,
    cast_inputs,
    cast_parameters,
    set_tf32,
)
from perfsuite.worker.training.step import train_step

CPU = torch.device("cpu")
HALF, SINGLE, BRAIN = torch.float16, torch.float32, torch.bfloat16


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4, affine=False),
        nn.Flatten(),
        nn.Linear(64, 3),
    )


def test_every_precision_of_a_recipe_has_a_policy() -> None:
    assert tuple(PRECISION_POLICIES) == PRECISIONS


# apex/amp/frontend.py: cast_model_type, patch_torch_functions (here autocast), keep_batchnorm_fp32,
# master_weights, loss_scale.
@pytest.mark.parametrize(
    ("level", "cast_model_type", "patched", "keeps_batchnorm", "masters", "loss_scale"),
    [
        ("O0", SINGLE, None, False, False, 1),
        ("O1", SINGLE, HALF, False, False, "dynamic"),
        ("O2", HALF, None, True, True, "dynamic"),
        ("O3", HALF, None, False, False, 1),
    ],
)
def test_the_o_levels_are_those_of_apex(
    level: str,
    cast_model_type: torch.dtype,
    patched: torch.dtype | None,
    keeps_batchnorm: bool,
    masters: bool,
    loss_scale: Any,
) -> None:
    assert PRECISION_POLICIES[level] == PrecisionPolicy(
        name=level,
        parameter_dtype=cast_model_type,
        autocast_dtype=patched,
        keeps_batchnorm_fp32=keeps_batchnorm,
        master_weights=masters,
        loss_scale=loss_scale,
    )


def test_o2_halves_all_but_the_batchnorm_that_has_weights() -> None:
    model = convolutional()

    cast_parameters(model, PRECISION_POLICIES["O2"])

    convolution, norm, norm_without_weights, _, linear = model
    assert convolution.weight.dtype == linear.bias.dtype == HALF
    assert norm.weight.dtype == norm.running_mean.dtype == SINGLE
    assert norm_without_weights.running_var.dtype == HALF
    assert norm_without_weights.num_batches_tracked.dtype == torch.int64


def test_o3_halves_every_parameter_and_floating_buffer() -> None:
    model = convolutional()

    cast_parameters(model, PRECISION_POLICIES["O3"])

    floating = [t for t in model.state_dict().values() if t.is_floating_point()]
    assert len(floating) == 10
    assert {tensor.dtype for tensor in floating} == {HALF}


def test_casting_keeps_tied_weights_tied() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight

    cast_parameters(model, PRECISION_POLICIES["bf16"])

    assert model[0].weight is model[1].weight
    assert model[0].weight.dtype == BRAIN


@pytest.mark.parametrize(
    ("precision", "parameters", "products", "outputs", "loss"),
    [
        ("fp64", torch.float64, torch.float64, torch.float64, torch.float64),
        ("fp32", SINGLE, SINGLE, SINGLE, SINGLE),
        ("bf16", BRAIN, BRAIN, BRAIN, SINGLE),
        ("amp-bf16", SINGLE, BRAIN, BRAIN, SINGLE),
        ("amp-fp16", SINGLE, HALF, HALF, SINGLE),
        ("O0", SINGLE, SINGLE, SINGLE, SINGLE),
        ("O1", SINGLE, HALF, HALF, SINGLE),
        ("O2", HALF, HALF, HALF, SINGLE),
        ("O3", HALF, HALF, HALF, SINGLE),
    ],
)
def test_each_precision_really_computes_in_its_dtypes(
    make_trainer: Any,
    precision: str,
    parameters: torch.dtype,
    products: torch.dtype,
    outputs: torch.dtype,
    loss: torch.dtype,
) -> None:
    trainer = make_trainer(precision=precision)
    seen = []
    trainer.module[0].register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    trainer.module.register_forward_hook(lambda module, args, out: seen.append(out.dtype))

    step_loss = train_step(trainer, iter([(torch.randn(4, 6), torch.arange(4) % 3)]), untimed)

    assert {parameter.dtype for parameter in trainer.module.parameters()} == {parameters}
    assert seen == [products, outputs]
    assert step_loss is not None
    assert step_loss.dtype == loss
    assert step_loss.isfinite()


def test_autocast_keeps_its_dtype_in_another_thread() -> None:
    model, seen = nn.Linear(3, 3), []
    autocast_forward(model, PRECISION_POLICIES["amp-fp16"], CPU)

    thread = threading.Thread(target=lambda: seen.append(model(torch.ones(1, 3)).dtype))
    thread.start()
    thread.join()

    assert seen == [HALF]


def test_a_precision_without_autocast_leaves_the_model_alone() -> None:
    model = nn.Linear(3, 3)

    autocast_forward(model, PRECISION_POLICIES["O2"], CPU)

    assert type(model) is nn.Linear


def test_inputs_take_the_dtype_of_the_parameters_and_outputs_that_of_the_loss() -> None:
    nest = {"x": torch.ones(2), "ids": torch.ones(2, dtype=torch.int64)}

    inputs = cast_inputs(nest, PRECISION_POLICIES["O2"])
    outputs = cast_for_loss((inputs["x"],), PRECISION_POLICIES["O2"])

    assert inputs["x"].dtype == HALF
    assert inputs["ids"] is nest["ids"]
    assert outputs[0].dtype == SINGLE
    assert cast_inputs(nest, PRECISION_POLICIES["amp-fp16"]) is nest


@pytest.fixture
def tf32_restored() -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    generic = torch.backends.fp32_precision
    yield
    torch.backends.fp32_precision = generic
    torch.set_float32_matmul_precision("highest")
    matmul.allow_tf32, cudnn.allow_tf32 = before


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.usefixtures("tf32_restored")
def test_tf32_is_on_for_tf32_alone(precision: str) -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "tf32"

    set_tf32(PRECISION_POLICIES[precision], torch.device("cuda"))

    assert matmul.allow_tf32 is (precision == "tf32")
    assert cudnn.allow_tf32 is (precision == "tf32")


@pytest.mark.usefixtures("tf32_restored")
def test_what_a_model_file_sets_for_all_of_torch_is_no_precision_of_a_recipe() -> None:
    cudnn: Any = torch.backends.cudnn
    torch.backends.fp32_precision = "tf32"

    for precision, expected in (("fp32", "ieee"), ("tf32", "tf32"), ("amp-bf16", "ieee")):
        set_tf32(PRECISION_POLICIES[precision], torch.device("cuda"))

        parts = cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul
        assert [part.fp32_precision for part in parts] == [expected] * 3


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("by_the_model_file", ["highest", "high", "medium", "fp32_precision"])
@pytest.mark.usefixtures("tf32_restored")
def test_torchs_own_question_has_an_answer_whatever_a_model_file_set(
    by_the_model_file: str, precision: str
) -> None:
    if by_the_model_file == "fp32_precision":
        torch.backends.fp32_precision = "tf32"
    else:
        torch.set_float32_matmul_precision(by_the_model_file)

    set_tf32(PRECISION_POLICIES[precision], torch.device("cuda"))

    # torch.compile asks it, and raises where the switches contradict each other.
    assert torch.get_float32_matmul_precision() == ("high" if precision == "tf32" else "highest")


@pytest.mark.usefixtures("tf32_restored")
def test_tf32_is_left_alone_on_the_cpu() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True

    set_tf32(PRECISION_POLICIES["fp32"], CPU)

    assert torch.backends.cuda.matmul.allow_tf32 is True
