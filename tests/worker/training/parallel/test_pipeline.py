from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from perfsuite import Recipe, RecipeError, Workload, WorkloadError
from perfsuite.records.stages import untimed
from perfsuite.worker.training.parallel.pipeline import Pipeline
from perfsuite.worker.training.step import eval_mode
from perfsuite.worker.training.trainer import build_trainer

CPU = torch.device("cpu")
SCHEDULES = ["pp:2:gpipe", "pp:2:1f1b", "pp:2:interleaved"]
NUM_CHUNKS = {"pp:2:gpipe": 4, "pp:2:1f1b": 4, "pp:2:interleaved": 4, "pp:4": 8, "mp:2": 1}


class Counted(nn.Linear):
    calls: ClassVar[Counter[str]] = Counter()

    def forward(self, input: Tensor) -> Tensor:
        self.calls["forward"] += 1
        return super().forward(input)


def marks_and_calls(workload: Workload, recipe: Recipe) -> tuple[list[str], int]:
    """A rank's stage marks in one micro-batch after the first, and how often its blocks run."""
    marks: list[str] = []

    @contextmanager
    def stage(name: str) -> Any:
        marks.append(name)
        yield

    trainer = build_trainer(workload, recipe, device=CPU, seed=1)
    batch = (torch.randn(8, 1, 4, 4), torch.arange(8) % 4)
    for _ in range(2):
        marks.clear()
        Counted.calls.clear()
        trainer.strategy.run_micro_batch(trainer, *batch, is_last=True, stage=stage)
    return marks, Counted.calls["forward"]


def names_of_parameters(workload: Workload, recipe: Recipe) -> list[str]:
    trainer = build_trainer(workload, recipe, device=CPU, seed=1)
    return [name for name, _ in trainer.module.named_parameters()]


def refusal_of_segments(workload: Workload, recipe: Recipe) -> str:
    with pytest.raises(RecipeError) as raised:
        build_trainer(workload, recipe, device=CPU, seed=1)
    return str(raised.value)


def losses_of_two_lengths(workload: Workload) -> list[float]:
    trainer = build_trainer(workload, Recipe(parallel="pp:2"), device=CPU, seed=1)
    losses = []
    for length in (6, 4, 6):
        inputs = {"tokens": torch.ones(8, length, dtype=torch.long)}
        inputs["mask"] = torch.ones_like(inputs["tokens"])
        target = torch.arange(8) % 4
        loss = trainer.strategy.run_micro_batch(
            trainer, inputs, target, is_last=True, stage=untimed
        )
        losses.append(None if loss is None else float(loss))
    return losses


class Dropping(nn.Module):
    """Has dropout between its blocks, as a function with the argument `training`."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 4)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](x.flatten(1))
        return self.blocks[1](nn.functional.dropout(x, 0.5, self.training))


class Branching(Dropping):
    """Branches on values in eval mode, which cannot be recorded."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training or x.sum() > 0:
            return super().forward(x)
        return x


def evaluated(workload: Workload, recipe: Recipe) -> Any:
    """A rank's outputs of a batch of five, and whether it speaks for its shard."""
    torch.set_num_threads(1)
    trainer = build_trainer(workload, recipe, device=CPU, seed=1)
    dataset: Any = workload.build_dataset("train")
    inputs, _ = default_collate([dataset[index] for index in range(5)])
    with eval_mode(trainer.model), torch.no_grad():
        outputs = trainer.strategy.evaluate(trainer, inputs)
    return outputs, trainer.strategy.speaks_for_shard


def why_not_evaluated(workload: Workload) -> str | None:
    recipe = Recipe(parallel="mp:2")
    return build_trainer(workload, recipe, device=CPU, seed=1).strategy.why_not_evaluated


def linear_chain(num_layers: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), *(Counted(16, 16) for _ in range(num_layers)))


def merged(runs: list[Any]) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
    """Gradients of each step, and final parameters, of all stages together."""
    steps = zip(*(run.gradients for run in runs), strict=True)
    gradients = [{name: g for part in step for name, g in part.items()} for step in steps]
    return gradients, {name: p for run in runs for name, p in run.parameters.items()}


@pytest.mark.parametrize("parallel", [*SCHEDULES, "mp:2"])
@pytest.mark.parametrize(
    ("precision", "checkpointing"),
    [("fp32", "none"), ("amp-bf16", "every-block"), ("O2", "segments:2"), ("bf16", "selective")],
)
def test_stages_compute_bitwise_what_one_process_computes_of_the_same_chunks(
    train_on_ranks: Any,
    reference: Any,
    worst_error: Any,
    make_text: Any,
    parallel: str,
    precision: str,
    checkpointing: str,
) -> None:
    workload = make_text()
    recipe = Recipe(parallel=parallel, precision=precision, checkpointing=checkpointing)

    first, last = train_on_ranks(workload, recipe)

    expected = reference(workload, recipe, num_chunks=NUM_CHUNKS[parallel])
    gradients, parameters = merged([first, last])
    assert worst_error(gradients, expected.gradients) == 0.0
    assert worst_error([parameters], [expected.parameters]) == 0.0
    assert first.losses == [None, None]
    torch.testing.assert_close(last.losses, expected.losses)


@pytest.mark.parametrize("parallel", ["pp:2:gpipe", "pp:4"])
def test_statistics_of_batchnorm_and_accumulated_gradients_are_those_of_the_chunks(
    train_on_ranks: Any, reference: Any, worst_error: Any, make_image: Any, parallel: str
) -> None:
    recipe = Recipe(parallel=parallel, precision="fp64", grad_accumulation_steps=2)

    runs = train_on_ranks(make_image(), recipe)

    expected = reference(make_image(), recipe, num_chunks=NUM_CHUNKS[parallel])
    gradients, _ = merged(runs)
    assert worst_error(gradients, expected.gradients) < 1e-14
    buffers = {name: buffer for run in runs for name, buffer in run.buffers.items()}
    torch.testing.assert_close(buffers, expected.buffers, rtol=1e-14, atol=0)


def test_clipping_scales_by_the_norm_of_all_stages(
    train_on_ranks: Any, reference: Any, worst_error: Any, make_image: Any
) -> None:
    recipe = Recipe(parallel="mp:2", precision="fp64", clip_grad_norm=0.01)

    runs = train_on_ranks(make_image(), recipe)

    expected = reference(make_image(), recipe)
    _, parameters = merged(runs)
    assert worst_error([parameters], [expected.parameters]) < 1e-14


def test_a_rank_keeps_only_its_stages_and_the_names_of_the_model(
    rank_group: Any, make_image: Any
) -> None:
    recipe = Recipe(parallel="mp:2")

    first, second = rank_group(2, names_of_parameters, make_image(), recipe)

    assert {name.split(".")[0] for name in first} == {"first", "second"}
    assert {name.split(".")[0] for name in second} == {"third", "fourth"}


def test_interleaved_ranks_keep_every_other_stage(rank_group: Any, make_image: Any) -> None:
    recipe = Recipe(parallel="pp:2:interleaved")

    first, second = rank_group(2, names_of_parameters, make_image(), recipe)

    assert {name.split(".")[0] for name in first} == {"first", "third"}
    assert {name.split(".")[0] for name in second} == {"second", "fourth"}


@pytest.mark.parametrize(
    ("checkpointing", "calls_of_a_chunk"), [("none", 2), ("every-block", 4), ("segments:1", 4)]
)
def test_stages_mark_what_they_compute_and_recompute_what_they_do_not_keep(
    rank_group: Any, make_image: Any, checkpointing: str, calls_of_a_chunk: int
) -> None:
    workload = make_image(
        build_model=linear_chain,
        blocks=lambda model: [m for m in model if type(m) is not nn.Flatten],
    )
    recipe = Recipe(parallel="pp:2:gpipe", checkpointing=checkpointing)

    (first, first_calls), (last, last_calls) = rank_group(2, marks_and_calls, workload, recipe)

    assert first == ["forward"] * 4 + ["backward"] * 4
    # The loss counts as backward.
    assert last == ["forward", "backward"] * 4 + ["backward"] * 4
    assert first_calls == last_calls == 4 * calls_of_a_chunk


def test_batches_of_another_length_get_a_schedule_of_their_own(
    rank_group: Any, make_text: Any
) -> None:
    first, last = rank_group(2, losses_of_two_lengths, make_text())

    assert first == [None, None, None]
    assert last[0] == last[2] != last[1]


@pytest.mark.parametrize("parallel", ["pp:2:gpipe", "pp:2:interleaved", "mp:2"])
@pytest.mark.parametrize("model", ["text", "image", "dropping"])
def test_an_evaluation_gives_bitwise_the_outputs_of_one_process_on_the_last_stages_rank(
    rank_group: Any, make_text: Any, make_image: Any, parallel: str, model: str
) -> None:
    if model == "dropping":
        if parallel == "pp:2:interleaved":
            pytest.skip("two blocks are no four stages")
        workload = make_image(build_model=Dropping, blocks=lambda model: list(model.blocks))
    else:
        workload = make_text(dropout=0.5) if model == "text" else make_image()

    first, last = rank_group(2, evaluated, workload, Recipe(parallel=parallel))

    expected, _ = evaluated(workload, Recipe())
    assert first == (None, False)
    assert last[1]
    torch.testing.assert_close(last[0], expected, rtol=0, atol=0)


def test_a_model_that_cannot_be_recorded_in_eval_mode_trains_and_is_not_evaluated(
    rank_group: Any, make_image: Any
) -> None:
    workload = make_image(build_model=Branching, blocks=lambda model: list(model.blocks))

    reasons = rank_group(2, why_not_evaluated, workload)

    assert reasons[0] == reasons[1]
    assert reasons[0].startswith(
        "parallel 'mp:2' cannot cut the model of workload 'image' in eval mode: "
    )


def test_segments_over_two_stages_of_a_rank_are_refused(rank_group: Any, make_image: Any) -> None:
    recipe = Recipe(parallel="pp:2:interleaved", checkpointing="segments:1")

    messages = rank_group(2, refusal_of_segments, make_image(), recipe)

    assert messages[0] == (
        "checkpointing 'segments:1' would recompute blocks of two stages together under parallel "
        "'pp:2:interleaved'; use segments:2 or checkpointing='every-block'"
    )


def test_a_batch_that_cannot_be_chunked_is_refused(make_image: Any) -> None:
    expected = (
        "parallel 'pp:2' divides each batch into 4 chunks, and micro_batch_size is 6; "
        "use micro_batch_size=8"
    )
    with pytest.raises(RecipeError, match=f"^{re.escape(expected)}$"):
        Pipeline(make_image(micro_batch_size=6), Recipe(parallel="pp:2"), CPU)


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        (
            {"blocks": None},
            RecipeError,
            "parallel 'pp:3' needs the blocks of workload 'text', which names none; add "
            "blocks=lambda model: [...] with the modules to cut between to its Workload",
        ),
        (
            {"blocks": lambda model: list(model.layers)[:2]},
            RecipeError,
            "parallel 'pp:3' cannot cut the model of workload 'text': there are 2 blocks for 3 "
            "stages; use fewer stages, or name smaller blocks",
        ),
        (
            {"build_dataset": lambda split: None},
            WorkloadError,
            "workload 'text' has no train dataset: build_dataset('train') returned None; "
            "return a dataset for it, or ask for another split",
        ),
    ],
    ids=["no blocks", "few blocks", "no data"],
)
def test_a_workload_that_cannot_be_cut_is_refused(
    make_text: Any, fields: dict[str, Any], kind: type[Exception], message: str
) -> None:
    workload = make_text(micro_batch_size=12, **fields)

    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        Pipeline(workload, Recipe(parallel="pp:3"), CPU).split(workload.build_model())
