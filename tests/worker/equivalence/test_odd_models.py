"""Models that are no chain of layers from one tensor to one: verified, or refused with a reason."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from perfsuite import Recipe, Workload
from perfsuite.errors import RankFailureError, RecipeError, SettingError, WorkloadError
from perfsuite.records.equivalence import EquivalenceReport
from perfsuite.records.workload import no_dataset
from perfsuite.worker.equivalence import limits
from perfsuite.worker.training.parallel import data_parallel

Check = Callable[..., EquivalenceReport]
cross_entropy = nn.functional.cross_entropy

NUM_SAMPLES = 96
# Every mode, and every mode that keeps a model whole.
MODES = ("single", "ddp:2", "zero1:2", "fsdp:2", "horovod-like:2", "tp:2", "pp:2", "mp:2")
SHARED_DATA = ("ddp:2", "zero1:2", "fsdp:2", "horovod-like:2")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


INPUTS = numbers(NUM_SAMPLES, 6)
CLASSES = torch.arange(NUM_SAMPLES) % 4
WORDS = torch.randint(0, 10, (NUM_SAMPLES, 5), generator=torch.Generator().manual_seed(0))


class Samples(Dataset[Any]):
    def __init__(self, inputs: Sequence[Any] | Tensor, targets: Sequence[Any] | Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], self.targets[index]


def make_workload(build_model: Callable[[], nn.Module], **fields: Any) -> Workload:
    """A classifier of six numbers; `inputs` and `targets` are the samples, the rest its fields."""
    samples = Samples(fields.pop("inputs", INPUTS), fields.pop("targets", CLASSES))
    defaults: dict[str, Any] = {
        "name": "odd",
        "build_model": build_model,
        "build_dataset": lambda split: samples if split == "train" else None,
        "loss": cross_entropy,
        "build_optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "micro_batch_size": 8,
        "metric": "none",
    }
    return Workload(**{**defaults, **fields})


def make_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def statuses(report: EquivalenceReport) -> dict[str, str]:
    return {row.check: row.status for row in report.rows}


def reason(report: EquivalenceReport, check: str) -> str:
    return next(row.reason for row in report.rows if row.check == check)


class Dicts(nn.Module):
    """Takes keyword arguments and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, image: Tensor, weight: Tensor) -> dict[str, Tensor]:
        hidden = self.layers(image)
        return {"logits": self.head(hidden) * weight, "size": hidden.square().mean()}


class Tuples(nn.Module):
    """Takes two arguments and returns nested containers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, list[Any]]:
        hidden = self.layers(left + right)
        return self.head(hidden), [hidden, {"mean": hidden.mean(dim=1)}]


class Named(OrderedDict[str, Tensor]):
    """As transformers' ModelOutput: a dict whose items are attributes too."""

    def __setitem__(self, name: str, value: Tensor) -> None:
        super().__setitem__(name, value)
        setattr(self, name, value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("You cannot use ``update`` on a ModelOutput instance.")


class Attributes(nn.Module):
    """Returns what transformers' models return."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_layers()

    def forward(self, inputs: Tensor) -> Named:
        outputs = Named()
        outputs["logits"] = self.layers(inputs)
        return outputs


def nested_loss(outputs: Any, target: Any) -> Tensor:
    logits, (hidden, summary) = outputs
    corner, (height,) = target["box"]
    mse = nn.functional.mse_loss
    return (
        cross_entropy(logits, target["label"])
        + mse(hidden[:, :2], corner)
        + mse(summary["mean"], height)
    )


@pytest.mark.parametrize("parallel", MODES)
def test_a_model_from_dicts_to_dicts_is_equivalent(check_equivalence: Check, parallel: str) -> None:
    weights = numbers(NUM_SAMPLES, 1, seed=1)
    workload = make_workload(
        Dicts,
        inputs=[{"image": image, "weight": w} for image, w in zip(INPUTS, weights, strict=True)],
        loss=lambda outputs, target: cross_entropy(outputs["logits"], target) + outputs["size"],
        blocks=lambda model: list(model.layers),
    )

    report = check_equivalence(workload, Recipe(parallel=parallel))

    assert report.is_equivalent, report
    assert "T1" in statuses(report)


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(precision="bf16"), Recipe(precision="O2")])
def test_a_dict_with_attributes_keeps_them_where_outputs_are_cast(
    check_equivalence: Check, recipe: Recipe
) -> None:
    workload = make_workload(
        Attributes, loss=lambda outputs, target: cross_entropy(outputs.logits, target)
    )

    report = check_equivalence(workload, recipe, num_steps=1)

    assert report.is_equivalent, report


def test_clipping_is_equivalent_where_only_a_layer_trains_that_is_not_split(
    check_equivalence: Check,
) -> None:
    def build_model() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 8), nn.Softmax(dim=1), nn.Linear(8, 5))
        model[0].requires_grad_(False)
        return model

    recipe = Recipe(parallel="tp:2", clip_grad_norm=0.01)
    report = check_equivalence(make_workload(build_model), recipe)

    assert report.is_equivalent, report


def test_weights_in_another_memory_format_are_equivalent_under_checkpointing(
    check_equivalence: Check,
) -> None:
    def build_model() -> nn.Module:
        convolutions = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 2))
        return nn.Sequential(convolutions, nn.Flatten()).to(memory_format=torch.channels_last)

    images = numbers(NUM_SAMPLES, 2, 4, 4)
    workload = make_workload(build_model, inputs=images, blocks=lambda model: [model[0]])

    report = check_equivalence(workload, Recipe(checkpointing="every-block"), num_steps=1)

    assert report.is_equivalent, report


class Packed(nn.Module):
    """Drops out of the words that are no padding, as models of packed sequences do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 8), nn.Linear(8, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, words: Tensor) -> Tensor:
        is_word = words > 0
        embedded = self.embed(words)
        packed = torch.zeros_like(embedded)
        packed[is_word] = self.dropout(embedded[is_word])
        return self.head(packed).sum(1)


def test_draws_for_as_many_words_as_each_batch_has_are_joined(check_equivalence: Check) -> None:
    # Four samples have 12 words, and the two of a rank 5, 6 or 7.
    lengths = torch.tensor([[4], [3], [2], [3]])
    words = torch.where(torch.arange(5) < lengths, WORDS[:4].clamp(min=1), 0)
    workload = make_workload(Packed, inputs=words, targets=CLASSES[:4], micro_batch_size=2)

    report = check_equivalence(workload, Recipe(parallel="ddp:2"))

    assert report.is_equivalent, report


class Types(nn.Module):
    """An embedding of few rows, each of which comes very often."""

    def __init__(self) -> None:
        super().__init__()
        self.types = nn.Embedding(3, 16, sparse=True)
        self.head = nn.Linear(16, 4)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.types(words).mean(1))


@pytest.mark.parametrize("fields", [{}, {"precision": "amp-bf16"}, {"parallel": "ddp:2"}])
def test_rows_of_a_sparse_gradient_that_come_often_round_often(
    check_equivalence: Check, fields: Any
) -> None:
    words = torch.randint(0, 3, (256, 32), generator=torch.Generator().manual_seed(0))
    workload = make_workload(
        Types, inputs=words, targets=torch.arange(256) % 4, micro_batch_size=64
    )

    report = check_equivalence(workload, Recipe(**fields))

    assert "mismatch" not in statuses(report).values(), report


class Bounded(nn.Module):
    """Its forward pass shortens the embeddings that it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 8, max_norm=1.0), nn.Linear(8, 4)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.embed(words).mean(1))


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(grad_accumulation_steps=2),
        Recipe(precision="amp-bf16"),
        Recipe(precision="O2"),
        Recipe(parallel="mp:2"),
    ],
)
def test_a_forward_pass_that_changes_weights_is_equivalent(
    check_equivalence: Check, recipe: Recipe
) -> None:
    workload = make_workload(Bounded, inputs=WORDS, blocks=lambda model: [model.embed, model.head])

    report = check_equivalence(workload, recipe)

    assert report.is_equivalent, report


@pytest.mark.parametrize("parallel", ["ddp:2", "fsdp:2"])
def test_weights_that_a_forward_pass_changes_otherwise_than_in_one_process_are_a_mismatch(
    check_equivalence: Check, parallel: str
) -> None:
    # A rank shortens what its own samples use, and fsdp drops what it has shortened.
    words = WORDS.where(torch.arange(5) < 1, WORDS[:, :1])
    report = check_equivalence(make_workload(Bounded, inputs=words), Recipe(parallel=parallel))

    assert report.status == "mismatch", report


class Scaling(nn.Module):
    """Its forward pass shrinks its weights on ranks, and not in one process."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_layers()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        if torch.distributed.is_initialized():
            with torch.no_grad():
                self.layers[4].bias.mul_(0.9)
        return outputs


def test_weights_that_a_forward_pass_changes_on_ranks_alone_are_a_mismatch(
    expect_mismatch: Callable[..., dict[str, str]],
) -> None:
    found = expect_mismatch(
        make_workload(Scaling),
        Recipe(parallel="ddp:2"),
        "T1",
        "the buffer of 'layers.4.bias' differs at step 1",
        "the forward pass changes a buffer",
    )

    assert found["T0"] == "mismatch"


class FixedSize(nn.Module):
    """Its buffer has the size of one micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_layers()
        self.register_buffer("state", torch.zeros(8, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs) + self.state


@pytest.mark.parametrize("fields", [{}, {"parallel": "ddp:2"}])
def test_a_model_of_one_batch_size_has_no_reference_of_several_micro_batches(
    check_equivalence: Check, fields: dict[str, Any]
) -> None:
    recipe = Recipe(grad_accumulation_steps=2, **fields)
    report = check_equivalence(make_workload(FixedSize), recipe, num_steps=1)

    why = reason(report, "T1")
    assert "the model does not take the whole batch: The size of tensor a " in why


class WithoutRepeatableKernel(nn.Module):
    """Does as torch does where an operator of the whole batch has no repeatable kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_layers()

    def forward(self, inputs: Tensor) -> Tensor:
        if len(inputs) > 8:
            raise RuntimeError("nll_loss2d does not have a deterministic implementation, but you")
        return self.layers(inputs)


def test_an_operator_without_a_repeatable_kernel_is_no_refusal_of_the_whole_batch(
    check_equivalence: Check,
) -> None:
    # So the rank begins again with what is there, as it does where the recording meets it.
    with pytest.raises(Exception, match="nll_loss2d does not have a deterministic"):
        check_equivalence(
            make_workload(WithoutRepeatableKernel),
            Recipe(grad_accumulation_steps=2),
            num_steps=1,
        )


def test_a_model_of_one_batch_size_is_compared_without_bugs_of_smaller_batches(
    check_equivalence: Check,
) -> None:
    report = check_equivalence(make_workload(FixedSize), Recipe(), num_steps=1)

    assert report.is_equivalent, report


@pytest.mark.parametrize("container", [OrderedDict, UserDict])
def test_targets_of_a_mapping_class_keep_it_where_parts_are_joined(
    check_equivalence: Check, container: Any
) -> None:
    def loss(outputs: Tensor, target: Any) -> Tensor:
        assert type(target) is container
        return cross_entropy(outputs, target["label"])

    targets = [container() for _ in CLASSES]
    for target, label in zip(targets, CLASSES, strict=True):
        target["label"] = label
    workload = make_workload(make_layers, targets=targets, loss=loss)

    report = check_equivalence(workload, Recipe(parallel="ddp:2"), num_steps=1)

    assert report.is_equivalent, report


@pytest.mark.parametrize("parallel", MODES)
def test_a_model_of_tuples_with_nested_outputs_and_targets_is_equivalent(
    check_equivalence: Check, parallel: str
) -> None:
    workload = make_workload(
        Tuples,
        inputs=list(zip(INPUTS, INPUTS.roll(1, 0), strict=True)),
        targets=[
            {"label": label, "box": (image[:2], [image[2]])}
            for label, image in zip(CLASSES, INPUTS, strict=True)
        ],
        loss=nested_loss,
        blocks=lambda model: list(model.layers),
    )

    report = check_equivalence(workload, Recipe(parallel=parallel))

    assert report.is_equivalent, report
    assert "T1" in statuses(report)


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.layers = layers
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(self.embed(words)))
        return logits.flatten(0, 1)


def make_tied_workload(*layers: Callable[[], nn.Module]) -> Workload:
    return make_workload(
        lambda: Tied(nn.Sequential(*(build() for build in layers))),
        inputs=WORDS,
        targets=WORDS.roll(1, 1),
        loss=lambda outputs, target: cross_entropy(outputs, target.flatten()),
        blocks=lambda model: list(model.layers),
    )


@pytest.mark.parametrize("parallel", ["single", *SHARED_DATA, "tp:2"])
def test_tied_weights_are_equivalent(check_equivalence: Check, parallel: str) -> None:
    workload = make_tied_workload(lambda: nn.Linear(8, 8), nn.Tanh, lambda: nn.Linear(8, 8))

    report = check_equivalence(workload, Recipe(parallel=parallel))

    assert report.is_equivalent, report


@pytest.mark.parametrize("parallel", ["pp:2", "mp:2"])
def test_a_pipeline_that_would_tear_a_tied_weight_apart_is_refused(
    check_equivalence: Check, parallel: str
) -> None:
    workload = make_tied_workload(lambda: nn.Linear(8, 8), nn.Tanh)

    with pytest.raises(RecipeError) as refusal:
        check_equivalence(workload, Recipe(parallel=parallel))

    assert str(refusal.value) == (
        f"parallel {parallel!r} cannot cut the model of workload 'odd': two stages share the "
        "weight 'embed.weight' (as 'head.weight'), and no one would add up its gradients; do not "
        "tie it, or name blocks that keep its uses together"
    )


def test_tensor_parallelism_of_a_tied_layer_alone_is_refused(check_equivalence: Check) -> None:
    workload = make_tied_workload(nn.Tanh)

    with pytest.raises(RecipeError) as refusal:
        check_equivalence(workload, Recipe(parallel="tp:2"))

    assert str(refusal.value) == (
        "parallel 'tp:2' needs an nn.Linear whose out_features are divisible by 2 and whose weight "
        "no other module shares; workload 'odd' has widths 10; use ddp:2"
    )


def make_frozen() -> nn.Sequential:
    layers = make_layers()
    layers[0].bias.requires_grad_(False)
    layers[2].requires_grad_(False)
    return layers


@pytest.mark.parametrize("parallel", MODES)
def test_frozen_parameters_are_equivalent(check_equivalence: Check, parallel: str) -> None:
    workload = make_workload(make_frozen, blocks=lambda model: list(model))

    report = check_equivalence(workload, Recipe(parallel=parallel))

    assert report.is_equivalent, report


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = make_layers()
        self.unused = nn.Linear(6, 6)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.used(image)
        return logits


UNUSED = make_workload(Unused, blocks=lambda model: list(model.used))


@pytest.mark.parametrize(
    "fields",
    [
        {"parallel": "single"},
        {"parallel": "ddp:2", "find_unused_parameters": True},
        {"parallel": "ddp:2", "static_graph": True},
        {"parallel": "zero1:2", "find_unused_parameters": True},
        {"parallel": "fsdp:2"},
        {"parallel": "horovod-like:2"},
        {"parallel": "tp:2"},
        {"parallel": "pp:2"},
    ],
)
def test_unused_parameters_are_equivalent(check_equivalence: Check, fields: Any) -> None:
    report = check_equivalence(UNUSED, Recipe(**fields))

    assert report.is_equivalent, report


@pytest.mark.parametrize("parallel", ["ddp:2", "zero1:2"])
def test_ddp_that_does_not_look_for_unused_parameters_says_which_option_does(
    check_equivalence: Check, parallel: str
) -> None:
    with pytest.raises(RankFailureError) as failure:
        check_equivalence(UNUSED, Recipe(parallel=parallel))

    # The rest of the sentence is torch's own; parameters 6 and 7 are `unused.weight` and its bias.
    message = str(failure.value)
    assert message.startswith(
        f"rank {failure.value.rank} of 2 raised RuntimeError: Expected to have finished reduction "
        "in the prior iteration before starting a new one."
    )
    assert "find_unused_parameters=True" in message
    assert f"did not receive grad for rank {failure.value.rank}: 6 7" in message


def test_the_bucket_that_waits_for_an_unused_parameter_is_a_mismatch_in_the_first_step(
    check_equivalence: Check,
) -> None:
    report = check_equivalence(UNUSED, Recipe(parallel="ddp:2"), num_steps=1)

    assert statuses(report)["T0"] == "mismatch"
    assert reason(report, "T0").startswith("the gradient of 'used.0.weight' differs at step 1 by ")


class Counting(nn.Module):
    """Counts its calls, and lets a second buffer decay: both the same on all ranks."""

    calls: Tensor
    decay: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("decay", torch.ones(6))

    def forward(self, image: Tensor) -> Tensor:
        self.calls += 1
        self.decay.mul_(0.5)
        return image * (1 + self.decay)


COUNTING = make_workload(
    lambda: nn.Sequential(Counting(), *make_layers()), blocks=lambda model: list(model)
)


@pytest.mark.parametrize("parallel", ["single", *SHARED_DATA, "tp:2", "mp:2"])
def test_buffers_that_follow_the_calls_are_equivalent(
    check_equivalence: Check, parallel: str
) -> None:
    report = check_equivalence(COUNTING, Recipe(parallel=parallel))

    assert report.is_equivalent, report


def test_a_counter_of_calls_is_another_one_under_a_pipeline_of_chunks(
    check_equivalence: Check,
) -> None:
    report = check_equivalence(COUNTING, Recipe(parallel="pp:2"))

    assert statuses(report) == {"T0": "equivalent", "T1": "mismatch", "data": "equivalent"}


class Averaging(nn.Module):
    """Keeps a moving average of its inputs, which differs between ranks."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(6))

    @torch.no_grad()
    def forward(self, image: Tensor) -> Tensor:
        self.average.lerp_(image.mean(dim=0), 0.1)
        return image


AVERAGING = make_workload(
    lambda: nn.Sequential(Averaging(), *make_layers()), blocks=lambda model: list(model)
)


@pytest.mark.parametrize("parallel", ["single", "tp:2", "mp:2"])
def test_a_moving_average_of_the_whole_batch_is_equivalent(
    check_equivalence: Check, parallel: str
) -> None:
    report = check_equivalence(AVERAGING, Recipe(parallel=parallel))

    assert report.is_equivalent, report


@pytest.mark.parametrize("parallel", ["ddp:2", "fsdp:2", "horovod-like:2"])
def test_a_moving_average_of_each_ranks_own_data_is_a_semantic_difference(
    check_equivalence: Check, parallel: str
) -> None:
    report = check_equivalence(AVERAGING, Recipe(parallel=parallel))

    assert statuses(report) == {"T0": "equivalent", "T1": "mismatch", "data": "equivalent"}
    assert reason(report, "T1").startswith("the buffer of '0.average' differs at step 1 by ")
    assert reason(report, "T1").endswith(
        "; likeliest cause: the forward pass changes a buffer by the data that it sees, and no "
        "process sees the whole batch"
    )


def test_segments_that_fsdp_shards_by_are_seen_to_be_recomputed(check_equivalence: Check) -> None:
    # In fewer, larger pieces than blocks: FSDP calls fewer operators than are recomputed.
    report = check_equivalence(
        "lenet-digits", Recipe(parallel="fsdp:2", checkpointing="segments:2")
    )

    assert report.is_equivalent, str(report)


@pytest.mark.parametrize("checkpointing", ["every-block", "segments:2", "selective"])
def test_checkpointing_of_a_model_without_blocks_is_refused(
    check_equivalence: Check, checkpointing: str
) -> None:
    with pytest.raises(RecipeError) as refusal:
        check_equivalence(make_workload(make_layers), Recipe(checkpointing=checkpointing))

    assert str(refusal.value) == (
        f"checkpointing {checkpointing!r} needs the blocks of workload 'odd', which names none; "
        "add blocks=lambda model: [...] with the modules to recompute to its Workload, or use "
        "checkpointing='none'"
    )


@pytest.mark.parametrize("parallel", ["pp:2", "mp:2"])
def test_a_pipeline_of_a_model_without_blocks_is_refused(
    check_equivalence: Check, parallel: str
) -> None:
    with pytest.raises(RecipeError) as refusal:
        check_equivalence(make_workload(make_layers), Recipe(parallel=parallel))

    assert str(refusal.value) == (
        f"parallel {parallel!r} needs the blocks of workload 'odd', which names none; add "
        "blocks=lambda model: [...] with the modules to cut between to its Workload"
    )


@pytest.mark.parametrize("parallel", ["single", *SHARED_DATA, "tp:2"])
def test_a_model_without_blocks_is_equivalent_where_none_are_needed(
    check_equivalence: Check, parallel: str
) -> None:
    report = check_equivalence(make_workload(make_layers), Recipe(parallel=parallel))

    assert report.is_equivalent, report


DROPPING = make_workload(
    lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 8), nn.Linear(8, 4)),
    blocks=lambda model: list(model),
)


@pytest.mark.parametrize("parallel", MODES)
def test_dropout_is_held_to_one_batch_like_any_layer(
    check_equivalence: Check, parallel: str
) -> None:
    report = check_equivalence(DROPPING, Recipe(parallel=parallel, checkpointing="every-block"))

    assert report.is_equivalent, report
    assert {"T1", "checkpointing"} <= statuses(report).keys()
    assert reason(report, "checkpointing") == "equal bit for bit"


class Branching(nn.Module):
    """Uses its float32 input twice: autocast casts it twice, or once where it is a leaf."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.left(hidden).tanh() * self.right(hidden)


@pytest.mark.parametrize("parallel", ["pp:2", "mp:2"])
def test_a_stage_that_casts_once_what_it_is_handed_is_equivalent(
    check_equivalence: Check, parallel: str
) -> None:
    workload = make_workload(
        lambda: nn.Sequential(*(Branching() for _ in range(4)), nn.Linear(6, 4)),
        blocks=lambda model: list(model)[:-1],
    )

    report = check_equivalence(workload, Recipe(parallel=parallel, precision="amp-bf16"))

    assert report.is_equivalent, report
    assert "u 7.8e-03" in reason(report, "T0")


class NoDoubles(nn.Module):
    """A kernel that has no float64."""

    def forward(self, image: Tensor) -> Tensor:
        if image.dtype == torch.float64:
            raise RuntimeError("this kernel has no float64\n(a second line)")
        return image


@pytest.mark.parametrize(
    "parallel", ["single", "ddp:2", "fsdp:2", "horovod-like:2", "tp:2", "pp:2"]
)
def test_a_model_that_refuses_float64_is_held_to_float32_and_says_so(
    check_equivalence: Check, parallel: str
) -> None:
    workload = make_workload(
        lambda: nn.Sequential(NoDoubles(), *make_layers()), blocks=lambda model: list(model)
    )

    report = check_equivalence(workload, Recipe(parallel=parallel))

    assert report.is_equivalent, report
    assert reason(report, "T1").endswith(
        "; float32 is the truth, because float64 is refused (this kernel has no float64)"
    )


def deal(split: str, shard_index: int, num_shards: int) -> Any:
    """A loader as users write it, of eight samples: an epoch of two shards has four batches."""
    if split != "train":
        return None
    samples = Samples(INPUTS[:8], CLASSES[:8])
    sampler = DistributedSampler(samples, num_shards, shard_index)
    return DataLoader(samples, batch_size=1, sampler=sampler)


def test_shards_of_a_loader_of_ones_own_are_compared_within_an_epoch(
    check_equivalence: Check,
) -> None:
    workload = make_workload(
        make_layers, build_dataset=no_dataset, build_loader=deal, micro_batch_size=1
    )

    report = check_equivalence(workload, Recipe(parallel="ddp:2", grad_accumulation_steps=2))

    data = next(row for row in report.rows if row.check == "data")
    assert data.status == "not exercised", data.reason
    assert data.reason.startswith("the first 4 batches of 2 shards are all different")


def test_a_model_that_takes_no_half_of_its_batch_is_checked_without(
    check_equivalence: Check,
) -> None:
    workload = make_workload(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)),
        micro_batch_size=3,
    )

    report = check_equivalence(workload, Recipe())

    assert statuses(report)["T1"] == "equivalent", reason(report, "T1")
    assert "no lost samples of a batch were planted" in reason(report, "T1")


def test_a_gradient_that_cancels_is_held_to_the_error_of_plain_training(
    check_equivalence: Check,
) -> None:
    # Of two samples a BatchNorm makes two signs, whatever the weights before it are.
    workload = make_workload(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)),
        micro_batch_size=2,
    )

    report = check_equivalence(workload, Recipe())

    assert statuses(report)["T1"] == "equivalent", reason(report, "T1")


class Asserting(nn.Module):
    """Takes float32 alone, and says so by an assertion."""

    def forward(self, image: Tensor) -> Tensor:
        assert image.dtype == torch.float32, "float32 is due"
        return image


def test_a_model_that_asserts_its_precision_is_held_to_float32(check_equivalence: Check) -> None:
    workload = make_workload(lambda: nn.Sequential(Asserting(), *make_layers()))

    report = check_equivalence(workload, Recipe(grad_accumulation_steps=2))

    assert report.is_equivalent, report
    assert "float64 is refused (float32 is due)" in reason(report, "T1")


def in_strict_rounding() -> nn.Module:
    """Built in a rank, where no sum of two parts is within the smallest limit any more."""
    limits.SEMANTIC_FACTOR = 0.01
    return nn.Sequential(Asserting(), *make_layers())


def test_where_float64_is_refused_weights_off_by_a_rounding_show_how_far_rounding_goes(
    check_equivalence: Check,
) -> None:
    report = check_equivalence(make_workload(in_strict_rounding), Recipe(grad_accumulation_steps=4))

    assert statuses(report)["T1"] == "equivalent", reason(report, "T1")
    assert "2 times the error" in reason(report, "T1")


class Pooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = make_layers()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images.mean(dim=1))
        return logits


LENGTHS = make_workload(
    Pooling,
    inputs=[numbers(3 + index % 3, 6, seed=index) for index in range(NUM_SAMPLES)],
    micro_batch_size=1,
)


@pytest.mark.parametrize("parallel", ["single", "tp:2"])
def test_batches_that_change_their_shape_from_step_to_step_are_equivalent(
    check_equivalence: Check, parallel: str
) -> None:
    report = check_equivalence(LENGTHS, Recipe(parallel=parallel))

    assert statuses(report) == {"T1": "equivalent", "data": "equivalent"}


class Temperature:
    """A loss with a parameter of its own, which the optimizer has and the model does not."""

    def __init__(self) -> None:
        self.scale = nn.Parameter(torch.ones(()))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs * self.scale, targets)

    def build_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([*parameters, self.scale], lr=0.1)


def test_a_parameter_of_the_loss_alone_is_named_in_one_process_and_a_mismatch_over_ranks(
    check_equivalence: Check,
) -> None:
    own = Temperature()
    fields = {"loss": own.loss, "build_optimizer": own.build_optimizer}
    workload = make_workload(lambda: nn.Linear(6, 4), **fields)

    alone = check_equivalence(workload, Recipe())

    assert statuses(alone)["T1"] == "not exercised"
    assert reason(alone, "T1") == (
        "its optimizer updates parameters that the model does not have: put them into it"
    )
    over_ranks = check_equivalence(workload, Recipe(parallel="ddp:2"))
    assert (statuses(over_ranks)["T0"], statuses(over_ranks)["T1"]) == ("mismatch", "mismatch")


@pytest.mark.parametrize("parallel", SHARED_DATA)
def test_batches_of_another_shape_on_each_rank_are_reduced_bit_for_bit_and_are_no_single_batch(
    check_equivalence: Check, parallel: str
) -> None:
    report = check_equivalence(LENGTHS, Recipe(parallel=parallel))

    assert statuses(report) == {
        "T0": "equivalent",
        "T1": "not exercised",
        "data": "equivalent",
    }
    assert reason(report, "T1") == "batches of shapes (1, 4, 6), (1, 3, 6) do not make one"
    assert not report.is_equivalent


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8, sparse=True)
        self.head = nn.Linear(8, 4)

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(words).mean(dim=1))
        return logits


SPARSE = make_workload(Embedding, inputs=WORDS, blocks=lambda model: [model.embed, model.head])


@pytest.mark.parametrize(
    "fields",
    [
        {"parallel": "single"},
        {"parallel": "ddp:2"},
        {"parallel": "ddp:3"},
        {"parallel": "ddp:2", "precision": "amp-bf16"},
        {"parallel": "ddp:2", "grad_accumulation_steps": 2},
        {"parallel": "tp:2"},
        {"parallel": "pp:2"},
        {"parallel": "mp:2", "precision": "amp-fp16"},
    ],
)
def test_a_sparse_embedding_is_equivalent(check_equivalence: Check, fields: Any) -> None:
    report = check_equivalence(SPARSE, Recipe(**fields))

    assert report.is_equivalent, report


@pytest.mark.parametrize("parallel", ["fsdp:2", "horovod-like:2"])
def test_a_sparse_embedding_is_refused_where_dense_gradients_are_reduced_alone(
    check_equivalence: Check, parallel: str
) -> None:
    with pytest.raises(RecipeError) as refusal:
        check_equivalence(SPARSE, Recipe(parallel=parallel))

    assert str(refusal.value) == (
        f"parallel {parallel!r} reduces dense gradients alone, and those of layer 'embed' are "
        "sparse; use sparse=False, or parallel='ddp:2'"
    )


@pytest.mark.parametrize("hook", ["fp16", "powersgd"])
def test_a_sparse_embedding_is_refused_under_some_hooks(
    check_equivalence: Check, hook: str
) -> None:
    with pytest.raises(RecipeError) as refusal:
        check_equivalence(SPARSE, Recipe(parallel="ddp:2", comm_hook=hook))

    assert str(refusal.value) == (
        f"comm_hook {hook!r} reduces dense gradients alone, and those of layer 'embed' are "
        "sparse; use sparse=False, or comm_hook='none'"
    )


def mean_of_the_kept(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the samples that are not of class 0; batches hold unequal numbers of them."""
    kept = (targets > 0).to(outputs.dtype)
    losses = cross_entropy(outputs, targets, reduction="none")
    mean: Tensor = (losses * kept).sum() / kept.sum().clamp(min=1)
    return mean


UNEQUAL = make_workload(
    make_layers,
    loss=mean_of_the_kept,
    targets=torch.randint(0, 4, (NUM_SAMPLES,), generator=torch.Generator().manual_seed(2)),
    blocks=list,
)


@pytest.mark.parametrize("comm_hook", ["none", "bf16", "powersgd"])
def test_compression_does_not_hide_a_mean_of_means(
    check_equivalence: Check, comm_hook: str
) -> None:
    report = check_equivalence(UNEQUAL, Recipe(parallel="ddp:2", comm_hook=comm_hook))

    assert statuses(report) == {"T0": "equivalent", "T1": "mismatch", "data": "equivalent"}
    assert "likeliest cause: the mean over the batch is a mean of means" in reason(report, "T1")
    assert ("before comm_hook" in reason(report, "T1")) == (comm_hook != "none")


def nearly_a_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    """A weighted mean, whose weights differ by less than bfloat16 rounds a gradient."""
    weights = 1 - 0.03 * (targets == 0).to(outputs.dtype)
    losses = cross_entropy(outputs, targets, reduction="none")
    mean: Tensor = (losses * weights).sum() / weights.sum()
    return mean


@pytest.mark.parametrize("fields", [{"parallel": "ddp:2"}, {"grad_accumulation_steps": 2}])
@pytest.mark.parametrize("precision", ["amp-bf16", "bf16"])
def test_a_low_precision_does_not_hide_a_mean_of_means(
    check_equivalence: Check, precision: str, fields: dict[str, Any]
) -> None:
    unequal = dataclasses.replace(UNEQUAL, loss=nearly_a_mean)

    report = check_equivalence(unequal, Recipe(precision=precision, **fields))

    assert statuses(report)["T2"] == "mismatch", str(report)
    said = reason(report, "T2")
    assert "2**-13, of the whole batch and the mean of its parts in full precision" in said
    assert "likeliest cause: the mean over the batch is a mean of means" in said


def test_parts_that_a_synchronised_layer_may_mix_are_not_put_together(
    check_equivalence: Check,
) -> None:
    def make_synchronised() -> nn.Module:
        model = make_layers()
        model[1].add_module("of_gpus", nn.SyncBatchNorm(4))  # never called here
        return model

    unequal = dataclasses.replace(
        UNEQUAL,
        loss=nearly_a_mean,
        build_model=make_synchronised,
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    recipe = Recipe(precision="amp-bf16", grad_accumulation_steps=2)

    assert statuses(check_equivalence(unequal, recipe))["T2"] == "equivalent"


def test_recomputation_does_not_hide_a_mean_of_means(check_equivalence: Check) -> None:
    recipe = Recipe(checkpointing="every-block", grad_accumulation_steps=3)

    report = check_equivalence(UNEQUAL, recipe)

    assert statuses(report) == {
        "T1": "mismatch",
        "checkpointing": "equivalent",
        "data": "equivalent",
    }


class Masked(nn.Module):
    """Causal attention over the six numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.register_buffer("mask", torch.full((6, 6), -torch.inf).triu(1))

    def forward(self, numbers: Tensor) -> Tensor:
        scores = numbers[:, :, None] * numbers[:, None, :] + self.mask
        logits: Tensor = self.head((scores.softmax(-1) @ numbers[:, :, None])[:, :, 0])
        return logits


@pytest.mark.parametrize("parallel", ["single", "ddp:2", "fsdp:2"])
def test_a_mask_of_minus_infinity_is_a_buffer_like_any_other(
    check_equivalence: Check, parallel: str
) -> None:
    report = check_equivalence(make_workload(Masked), Recipe(parallel=parallel))

    assert report.is_equivalent, report


class Waves(nn.Module):
    """A complex parameter, whose imaginary part alone sees the statistics of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.waves = nn.Parameter(torch.randn(6, 4, dtype=torch.complex64))

    def forward(self, numbers: Tensor) -> Tensor:
        imaginary = numbers @ self.waves.imag.to(numbers.dtype)
        return numbers @ self.waves.real.to(numbers.dtype) + imaginary - self.offset(imaginary)

    def offset(self, imaginary: Tensor) -> Tensor:
        return imaginary.mean(0).tanh()


class PlainWaves(Waves):
    def offset(self, imaginary: Tensor) -> Tensor:
        return imaginary.tanh()


@pytest.mark.parametrize(("waves", "t1"), [(Waves, "mismatch"), (PlainWaves, "equivalent")])
def test_the_imaginary_part_of_a_parameter_is_compared(
    check_equivalence: Check, waves: type[nn.Module], t1: str
) -> None:
    report = check_equivalence(make_workload(waves), Recipe(parallel="ddp:2"))

    assert statuses(report) == {"T0": "equivalent", "T1": t1, "data": "equivalent"}


def make_odd_widths() -> nn.Sequential:
    """Two shards of the first weight hold 3 rows and 2, of 16 numbers each."""
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5), nn.Linear(5, 4))


ODD_WIDTHS = make_workload(
    make_odd_widths,
    build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
)


@pytest.mark.parametrize("precision", ["bf16", "O3"])
def test_parts_of_16_bit_parameters_may_round_otherwise_than_the_whole(
    check_equivalence: Check, precision: str
) -> None:
    report = check_equivalence(ODD_WIDTHS, Recipe(parallel="fsdp:2", precision=precision))

    assert report.is_equivalent, report


def test_a_stage_without_anything_to_train_is_refused(check_equivalence: Check) -> None:
    def build() -> nn.Sequential:
        frozen = nn.Linear(6, 8).requires_grad_(False)
        return nn.Sequential(frozen, nn.Linear(8, 4))

    workload = make_workload(build, blocks=list)

    with pytest.raises(WorkloadError) as refusal:
        check_equivalence(workload, Recipe(parallel="pp:2"))

    assert str(refusal.value) == (
        "workload 'odd': no parameter of one rank's part of its model requires a gradient; "
        "leave requires_grad on for the parameters to train"
    )


class LayerwiseRate(torch.optim.SGD):
    """A step of SGD whose length in each tensor follows from the tensor's norm, as LARS does it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for one in self.param_groups[0]["params"]:
            one.sub_(one.grad * (0.01 * one.norm() / one.grad.norm()))


@pytest.mark.parametrize("parallel", ["ddp:2", "fsdp:2", "tp:2"])
def test_an_optimizer_may_step_by_the_norm_of_each_tensor(
    check_equivalence: Check, parallel: str
) -> None:
    workload = make_workload(make_layers, build_optimizer=LayerwiseRate)

    report = check_equivalence(workload, Recipe(parallel=parallel))

    assert report.status == "equivalent", str(report)
    # Whole tensors are held to equal bits as ever.
    is_whole = parallel == "ddp:2"
    assert (report.rows[0].limit == 0.0) == is_whole


def make_matrices() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False))


@pytest.mark.parametrize(("parallel", "status"), [("ddp:2", "equivalent"), ("fsdp:2", "no power")])
def test_muon_is_proven_where_ranks_hold_whole_parameters(
    check_equivalence: Check, parallel: str, status: str
) -> None:
    workload = make_workload(
        make_matrices, build_optimizer=lambda parameters: torch.optim.Muon(parameters, lr=0.01)
    )

    report = check_equivalence(workload, Recipe(parallel=parallel))

    assert report.status == status, str(report)
    assert ("Muon's iteration in bfloat16" in str(report)) == (status == "no power")


class Muon(torch.optim.SGD):
    """Another optimizer of this name, which may scale its step by the ranks' own part."""

    def __init__(self, parameters: Any, *, by_part: bool) -> None:
        super().__init__(parameters, lr=0.01)
        self.by_part = by_part

    def step(self, closure: Any = None) -> Any:
        for one in self.param_groups[0]["params"]:
            own = getattr(one.grad, "_local_tensor", one.grad)
            one.grad = one.grad / own.norm() if self.by_part else one.grad
        return super().step(closure)


@pytest.mark.parametrize(("by_part", "status"), [(False, "equivalent"), (True, "mismatch")])
def test_another_optimizer_named_muon_is_proven(
    check_equivalence: Check, by_part: bool, status: str
) -> None:
    workload = make_workload(
        make_matrices, build_optimizer=lambda parameters: Muon(parameters, by_part=by_part)
    )

    report = check_equivalence(workload, Recipe(parallel="fsdp:2"))

    assert report.status == status, str(report)


def test_an_optimizer_may_leave_parameters_alone(check_equivalence: Check) -> None:
    """Fine-tuning the head: the other gradients are computed and reduced, but not used."""
    workload = make_workload(
        make_layers,
        build_optimizer=lambda parameters: torch.optim.SGD(list(parameters)[-2:], lr=0.1),
    )

    report = check_equivalence(workload, Recipe(parallel="ddp:2"))

    assert report.is_equivalent, report


class Graph(nn.Module):
    """Adds to each node what its neighbours say."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_layers()

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        logits: Tensor = self.layers(nodes)
        return logits.index_add(0, edges[1], logits[edges[0]])


def deal_graphs(split: str, index: int, num_shards: int) -> list[Any]:
    """Graphs of 8 nodes with their edges, each of which numbers its own nodes."""
    drawn = torch.Generator().manual_seed(index)
    edges = torch.randint(8, (2, 12), generator=drawn)
    nodes = [INPUTS[8 * n : 8 * n + 8] for n in range(index, 6, num_shards)]
    return [((one, edges), CLASSES[:8]) for one in nodes]


def deal_counted(split: str, index: int, num_shards: int) -> list[Any]:
    """Batches whose targets hold by how many samples to divide."""
    found = range(index, 6, num_shards)
    return [(INPUTS[8 * n : 8 * n + 8], (CLASSES[8 * n : 8 * n + 8], 8)) for n in found]


def per_counted(outputs: Tensor, target: tuple[Tensor, int]) -> Tensor:
    labels, number = target
    return cross_entropy(outputs, labels, reduction="sum") / number


class PackedByStep(nn.Module):
    """Drops out of packed sequences, step by step of all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 8, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, numbers: Tensor) -> Tensor:
        lengths = 1 + (numbers[:, 0] > 0).long() + (numbers[:, 1] > 0).long()
        pack = nn.utils.rnn.pack_padded_sequence
        packed = pack(numbers[..., None], lengths, batch_first=True, enforce_sorted=False)
        _, (last, _) = self.lstm(packed)
        logits: Tensor = self.head(last[-1])
        return logits


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        (
            {"build_model": Graph, "build_loader": deal_graphs},
            "a part of a batch, of shape (2, 12), does not have its 8 samples in the first "
            "dimension, so that several batches do not make one",
        ),
        (
            {"build_model": make_layers, "build_loader": deal_counted, "loss": per_counted},
            "a batch holds the number 8, which may be another one for the whole of several; give "
            "each sample its own, in a tensor",
        ),
        (
            {"build_model": PackedByStep},
            "random numbers are drawn for packed samples, whose order in one batch is unknown",
        ),
    ],
    ids=["graph", "number", "packed"],
)
def test_what_does_not_make_one_batch_is_not_called_wrong(
    check_equivalence: Check, workload: dict[str, Any], why: str
) -> None:
    if "build_loader" in workload:
        workload = {"build_dataset": no_dataset, **workload}

    report = check_equivalence(make_workload(**workload), Recipe(parallel="ddp:2"))

    assert (statuses(report)["T0"], statuses(report)["T1"]) == ("equivalent", "not exercised")
    assert reason(report, "T1") == why


class WarmingUp(nn.Module):
    """Warms up by a counter that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_layers()
        self.num_calls = 0

    def forward(self, numbers: Tensor) -> Tensor:
        self.num_calls += 1
        logits: Tensor = self.layers(numbers) * min(1.0, self.num_calls / 100)
        return logits


def test_a_counter_that_is_no_buffer_is_named(check_equivalence: Check) -> None:
    report = check_equivalence(make_workload(WarmingUp), Recipe(parallel="ddp:2"))

    assert statuses(report)["T0"] == "not exercised"
    assert reason(report, "T0") == (
        "the forward pass gives another result each time: the model or the loss keeps a state that "
        "is no buffer, such as a counter; keep it in a buffer"
    )


def keep_own(_, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations as strings
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def make_apart() -> nn.Module:
    """A model whose ranks do not reduce."""
    if dist.is_initialized():
        data_parallel._register_comm_hook = lambda model, *_: model.register_comm_hook(
            None, keep_own
        )
    return WarmingUp()


def test_a_counter_excuses_no_ranks_that_differ(check_equivalence: Check) -> None:
    report = check_equivalence(make_workload(make_apart), Recipe(parallel="ddp:2"))

    assert statuses(report)["T0"] == "mismatch", str(report)


class Growing(nn.Module):
    """A buffer that grows with all inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_layers()
        self.register_buffer("seen", torch.zeros(0, 6))

    def forward(self, numbers: Tensor) -> Tensor:
        self.seen = torch.cat([self.seen, numbers.detach()])
        logits: Tensor = self.layers(numbers)
        return logits


def test_a_buffer_may_grow(check_equivalence: Check) -> None:
    alone = check_equivalence(make_workload(Growing), Recipe())
    together = check_equivalence(make_workload(Growing), Recipe(parallel="fsdp:2"))

    assert alone.is_equivalent, alone
    assert statuses(together) == {"T0": "equivalent", "T1": "mismatch", "data": "equivalent"}
    assert "the buffer of 'seen' differs at step 1 by inf" in reason(together, "T1")


def test_a_loss_that_sums_is_named(check_equivalence: Check) -> None:
    workload = make_workload(
        make_layers, loss=lambda outputs, targets: cross_entropy(outputs, targets, reduction="sum")
    )

    report = check_equivalence(workload, Recipe(parallel="ddp:2"))

    assert statuses(report)["T1"] == "mismatch"
    assert "likeliest cause: the loss sums over the batch; return the mean" in reason(report, "T1")


def test_a_loss_that_is_not_finite_is_named(check_equivalence: Check) -> None:
    workload = make_workload(
        make_layers, loss=lambda outputs, targets: cross_entropy(outputs, targets) * torch.nan
    )

    report = check_equivalence(workload, Recipe())

    assert not report
    assert reason(report, "T1").startswith(
        "the loss at step 1 is not finite in plain training either; likeliest cause: a loss is not "
        "finite: look at the data and the model, or lower the learning rate"
    )


class Sharpened(torch.optim.SGD):
    """Has an option, `power`, that is not among its defaults."""

    def __init__(self, parameters: Any, lr: float, power: float) -> None:
        super().__init__(parameters, lr=lr)
        self.power = power


def test_zero1_refuses_an_optimizer_that_it_would_cut_short(check_equivalence: Check) -> None:
    workload = make_workload(
        make_layers,
        build_optimizer=lambda parameters: Sharpened(parameters, lr=0.1, power=2.0),
    )

    assert check_equivalence(workload, Recipe(parallel="ddp:2"))
    with pytest.raises((RecipeError, RankFailureError)) as refusal:
        check_equivalence(workload, Recipe(parallel="zero1:2"))
    assert "power" in str(refusal.value)


def test_zero1_refuses_an_optimizer_with_step_hooks(check_equivalence: Check) -> None:
    def build(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        optimizer.register_step_post_hook(lambda *_: None)
        return optimizer

    with pytest.raises(RecipeError) as refusal:
        check_equivalence(
            make_workload(make_layers, build_optimizer=build), Recipe(parallel="zero1:2")
        )

    assert str(refusal.value) == (
        "zero1 makes the optimizer again on each rank from its defaults, and would lose the step "
        "hooks of this SGD; use defaults alone, or ddp:N"
    )


@pytest.mark.parametrize("num_steps", [0, 11, "3"])
def test_a_number_of_steps_that_cannot_be_compared_is_refused(
    check_equivalence: Check, num_steps: Any
) -> None:
    with pytest.raises(SettingError) as refusal:
        check_equivalence(make_workload(make_layers), Recipe(), num_steps=num_steps)

    assert str(refusal.value) == f"num_steps is {num_steps!r}; use a whole number from 1 to 10"


def make_deep(num_layers: int) -> Callable[[], nn.Module]:
    """Each of its layers magnifies the rounding of the one before."""

    def build() -> nn.Module:
        layers = [
            layer
            for _ in range(num_layers)
            for layer in (nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh())
        ]
        return nn.Sequential(*layers, nn.Linear(6, 4))

    return build


def test_rounding_may_grow_with_the_depth_of_a_model(check_equivalence: Check) -> None:
    # Which of its limits a row shows is the processor's.
    for num_layers in range(25, 40, 2):
        report = check_equivalence(make_workload(make_deep(num_layers)), Recipe())
        semantics = report.rows[0]
        assert (semantics.check, semantics.status, semantics.power) == ("T1", "equivalent", "8/8")
        if "of plain training here" in semantics.reason:
            return
    pytest.fail(f"rounding was not seen to grow: {semantics.reason}")


def test_a_bug_in_a_deep_model_is_found_all_the_same(check_equivalence: Check) -> None:
    report = check_equivalence(make_workload(make_deep(31)), Recipe(parallel="ddp:2"))

    assert statuses(report)["T1"] == "mismatch"
    assert "BatchNorm" in reason(report, "T1")


def test_where_rounding_is_all_that_can_be_seen_nothing_is_proven(check_equivalence: Check) -> None:
    report = check_equivalence(make_workload(make_deep(80)), Recipe())

    assert statuses(report)["T1"] == "no power"
    assert "here: a coarser kernel, or a model that magnifies rounding" in reason(report, "T1")


def make_spectral() -> nn.Module:
    """Each forward pass goes on with its power iteration, from the vectors of the last one."""
    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
    return nn.Sequential(normed, nn.Tanh(), nn.Linear(8, 4))


def test_each_shard_before_compression_starts_from_the_recorded_state(
    check_equivalence: Check,
) -> None:
    report = check_equivalence(
        make_workload(make_spectral), Recipe(parallel="ddp:2", comm_hook="fp16")
    )

    assert report.is_equivalent, report


class LayerDrop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.first(inputs).tanh()
        if torch.rand(()) < 0.5:
            outputs = outputs + self.inner(outputs)
        return self.last(outputs)


def test_a_layer_that_is_dropped_by_chance_is_not_exercised(check_equivalence: Check) -> None:
    recipe = Recipe(parallel="ddp:2", find_unused_parameters=True)

    report = check_equivalence(make_workload(LayerDrop), recipe, num_steps=3)

    assert statuses(report)["T1"] == "not exercised", report


class Compiling(nn.Module):
    """Compiles itself where there are ranks, and may then compute something else."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.layers, self._factor = make_layers(), factor
        if dist.is_initialized():
            self.compile(backend="eager")

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs) * (self._factor if torch.compiler.is_compiling() else 1.0)


@pytest.mark.parametrize(
    ("factor", "status"), [(1.0, "equivalent"), (0.5, "mismatch")], ids=["right", "wrong"]
)
def test_a_model_that_compiles_itself_is_proven_as_it_runs(
    check_equivalence: Check,
    perceptron_workload: Callable[..., Workload],
    factor: float,
    status: str,
) -> None:
    workload = perceptron_workload(build_model=lambda: Compiling(factor), blocks=None)

    report = check_equivalence(workload, Recipe(parallel="ddp:2"), num_steps=1)

    assert report.status == status, str(report)
    assert "torch.compile fuses operators" in report.inapplicable["T0"]


class Penalized(nn.Module):
    """Returns a penalty beside its outputs, whose gradient in float16 is the scale of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(inputs), self.layer.weight.half().float().mean()


def test_a_penalty_that_only_one_whole_batch_makes_too_large_for_float16_is_compared(
    check_equivalence: Check,
) -> None:
    workload = make_workload(
        Penalized,
        loss=lambda outputs, targets: (
            nn.functional.cross_entropy(outputs[0].float(), targets) + 24 * outputs[1]
        ),
    )

    report = check_equivalence(workload, Recipe(precision="amp-fp16", grad_accumulation_steps=2))

    assert report.status == "equivalent", str(report)
