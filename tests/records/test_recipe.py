"""Recipes and plans: what is accepted, and the full text of every refusal."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfsuite import PerfsuiteError, Recipe, RecipeError
from perfsuite.ranks.messages import MeasurePlan
from perfsuite.records.parallel import (
    PARALLEL_FORMS,
    PIPELINE_SCHEDULES,
    ParallelPlan,
    parse_parallel,
)
from perfsuite.records.recipe import COMM_HOOKS, PRECISIONS

# --- parallel modes ---


@pytest.mark.parametrize(
    ("text", "world_size", "data_parallel_size"),
    [
        ("single", 1, 1),
        ("dp:4", 1, 1),
        ("ddp:1", 1, 1),
        ("ddp:2", 2, 2),
        ("fsdp:3", 3, 3),
        ("hsdp:2x3", 6, 6),
        ("zero1:2", 2, 2),
        ("zero2:2", 2, 2),
        ("tp:4", 4, 1),
        ("pp:2", 2, 1),
        ("mp:2", 2, 1),
        ("horovod-like:2", 2, 2),
        ("horovod:2", 2, 2),
        ("mesh:fsdp=2,tp=3", 6, 2),
        ("mesh:dp_replicate=2,dp_shard=2,cp=2", 8, 4),
        ("mesh:tp=2", 2, 1),
    ],
)
def test_a_mode_says_how_many_processes_and_shards_of_data_it_has(
    text: str, world_size: int, data_parallel_size: int
) -> None:
    plan = parse_parallel(text)

    assert plan.mode == text.partition(":")[0]
    assert (plan.world_size, plan.data_parallel_size) == (world_size, data_parallel_size)


def test_a_hybrid_mesh_knows_its_shards() -> None:
    assert parse_parallel("hsdp:2x3") == ParallelPlan(mode="hsdp", size=6, num_shards=3)


def test_a_rank_of_a_mesh_has_a_place_and_shares_its_shard_with_the_axes_of_the_model() -> None:
    plan = parse_parallel("mesh:dp=2,tp=2,fsdp=2")

    places = [tuple(plan.coordinates(rank).values()) for rank in range(8)]

    assert places == list(itertools.product(range(2), repeat=3))
    assert [plan.shard_of(rank) for rank in range(8)] == [0, 1, 0, 1, 2, 3, 2, 3]


def test_a_gradient_is_a_sum_over_ranks_only_where_every_axis_divides_the_batch() -> None:
    assert parse_parallel("mesh:dp=2,fsdp=2,tp=1").properties.why_no_reduction is None
    assert parse_parallel("mesh:fsdp=2,tp=2").properties.why_no_reduction == (
        "the ranks of axis 'tp' share a batch, and no gradient is their sum"
    )


@pytest.mark.parametrize("schedule", PIPELINE_SCHEDULES)
def test_a_pipeline_has_the_named_schedule(schedule: str) -> None:
    assert parse_parallel(f"pp:2:{schedule}").schedule == schedule


def test_only_a_pipeline_has_a_schedule_and_1f1b_by_default() -> None:
    assert parse_parallel("pp:2").schedule == "1f1b"
    assert parse_parallel("ddp:2").schedule is None


@pytest.mark.parametrize(
    ("text", "num_chunks"),
    [("pp:2", 4), ("pp:3:interleaved", 6), ("mp:3", 1), ("single", 1), ("ddp:2", 1)],
)
def test_only_a_pipeline_divides_a_batch_into_chunks(text: str, num_chunks: int) -> None:
    assert parse_parallel(text).num_chunks == num_chunks


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ddp:",
        "ddp:-1",
        "ddp:two",
        "ddp:1.5",
        "DDP:2",
        "ddp:2:gpipe",
        "ddp:2 ",
        "ddp:2\n",
        "ddp:٢",
        "ddp:" + "9" * 5000,
        "single:1",
        "hsdp:2",
        "hsdp:2x",
        "ring:2",
    ],
)
def test_an_unknown_mode_is_refused_with_all_forms(text: str) -> None:
    with pytest.raises(RecipeError) as refused:
        parse_parallel(text)

    assert str(refused.value) == (
        f"parallel {text!r} is not a known mode; use one of single, dp:N, ddp:N, fsdp:N, hsdp:RxS, "
        "zero1:N, zero2:N, tp:N, pp:N[:gpipe|1f1b|interleaved], mp:N, horovod-like:N, horovod:N, "
        "mesh:AXIS=N[,AXIS=N]"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hsdp", "parallel 'hsdp' does not say how many ranks; use hsdp:RxS"),
        (
            "ddp:0",
            "parallel 'ddp:0' has a size of 0, and ddp needs at least 1; use ddp:2",
        ),
        ("tp:1", "parallel 'tp:1' has a size of 1, and tp needs at least 2; use tp:2"),
        ("dp:1", "parallel 'dp:1' has a size of 1, and dp needs at least 2; use dp:2"),
        (
            "hsdp:0x2",
            "parallel 'hsdp:0x2' has a size of 0, and hsdp needs at least 1; use hsdp:2x2",
        ),
        (
            "pp:2:zigzag",
            "parallel 'pp:2:zigzag' names the pipeline schedule 'zigzag'; "
            "use one of gpipe, 1f1b, interleaved",
        ),
        (
            "mesh:fsdp=2,2",
            "parallel 'mesh:fsdp=2,2' has '2' where an axis is to be; use mesh:AXIS=N[,AXIS=N] "
            "with the names and sizes of a DeviceMesh's axes, such as mesh:fsdp=2,tp=2",
        ),
        (
            "mesh:fsdp=2,tp=0",
            "parallel 'mesh:fsdp=2,tp=0' has 'tp=0' where an axis is to be; use "
            "mesh:AXIS=N[,AXIS=N] with the names and sizes of a DeviceMesh's axes, such as "
            "mesh:fsdp=2,tp=2",
        ),
        (
            "mesh:dp=2,dp=2",
            "parallel 'mesh:dp=2,dp=2' names axis 'dp' twice; give each a name of its own, such as "
            "dp_replicate and dp_shard",
        ),
        (
            "mesh:rows=2",
            "parallel 'mesh:rows=2' does not say whether the ranks of axis 'rows' share a batch; "
            "begin its name with dp, ddp, fsdp, hsdp, data, replicate, shard where it divides the "
            "batch, or with tp, cp, sp, ep, tensor, context, sequence, expert, model where its "
            "ranks share one, such as dp_rows",
        ),
    ],
)
def test_an_impossible_size_or_schedule_is_refused(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as refused:
        parse_parallel(text)

    assert str(refused.value) == message


near_modes = st.from_regex(
    r"(single|[a-z0-9-]{1,12}:[0-9x]{0,4}(:[a-z0-9]{0,11})?|mesh:([dt]p_?[a-z]?=?[0-9],?){0,4})",
    fullmatch=True,
)


@given(st.text() | near_modes)
def test_any_text_is_a_plan_or_a_recipe_error(text: str) -> None:
    try:
        plan = parse_parallel(text)
    except RecipeError as error:
        message = str(error)
    else:
        assert plan.size >= 1
        assert plan.world_size % plan.data_parallel_size == 0
        return

    assert message.startswith(f"parallel {text!r} ")


# --- recipes ---


def test_a_recipe_without_a_word_is_plain_training() -> None:
    recipe = Recipe()

    assert (recipe.parallel, recipe.precision, recipe.checkpointing) == ("single", "fp32", "none")
    assert recipe.num_workers == 0


def test_a_recipe_is_refused_as_an_error_of_ours_and_as_a_value_error() -> None:
    with pytest.raises(PerfsuiteError):
        Recipe(num_workers=-1)
    with pytest.raises(ValueError, match="num_workers is -1"):
        Recipe(num_workers=-1)


_ALLOWED = {
    "persistent_workers": "True or False",
    "pin_memory": "True or False",
    "non_blocking": "True or False",
    "compile": "True or False",
    "static_graph": "True or False",
    "gradient_as_bucket_view": "True or False",
    "find_unused_parameters": "True or False",
    "loader": "one of own, cached",
    "num_workers": "a whole number from 0",
    "grad_accumulation_steps": "a whole number from 1",
    "prefetch_factor": "None or a whole number from 1",
    "micro_batch_size": "None or a whole number from 1",
    "clip_grad_norm": "None or a number above 0",
    "bucket_cap_mb": "None or a number of MiB above 0",
    "precision": "one of fp64, fp32, tf32, bf16, amp-bf16, amp-fp16, mp-bf16, "
    "fp8-tensorwise, fp8-rowwise, O0, O1, O2, O3",
    "comm_hook": "one of none, fp16, bf16, powersgd",
    "checkpointing": "none, every-block, segments:C with C from 1, or selective",
    "parallel": f"one of {PARALLEL_FORMS}",
}


def test_every_field_of_a_recipe_has_its_refusals_tested() -> None:
    assert {field.name for field in dataclasses.fields(Recipe)} == set(_ALLOWED)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 1) for name, allowed in _ALLOWED.items() if allowed == "True or False"),
        ("loader", "free"),
        ("num_workers", -1),
        ("num_workers", True),
        ("num_workers", 1.0),
        ("grad_accumulation_steps", 0),
        ("prefetch_factor", 0),
        ("micro_batch_size", 0),
        ("micro_batch_size", "32"),
        ("clip_grad_norm", 0),
        ("clip_grad_norm", math.nan),
        ("clip_grad_norm", math.inf),
        ("clip_grad_norm", True),
        ("bucket_cap_mb", -25),
        ("precision", "fp8"),
        ("precision", None),
        ("comm_hook", "int8"),
        ("checkpointing", "some"),
        ("checkpointing", "segments:0"),
        ("checkpointing", "segments:"),
        ("checkpointing", "segments:" + "9" * 5000),
        ("checkpointing", 2),
        ("parallel", 2),
        ("parallel", None),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RecipeError) as refused:
        Recipe(**{name: value})

    assert str(refused.value) == f"{name} is {value!r}; use {_ALLOWED[name]}"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"persistent_workers": True},
            "persistent_workers=True needs loader workers, and num_workers is 0; "
            "set num_workers to 1 or more, or leave persistent_workers out",
        ),
        (
            {"prefetch_factor": 4},
            "prefetch_factor=4 needs loader workers, and num_workers is 0; "
            "set num_workers to 1 or more, or leave prefetch_factor out",
        ),
        (
            {"bucket_cap_mb": 1.5},
            "bucket_cap_mb=1.5 is an option of DistributedDataParallel, and parallel is 'single'; "
            "use parallel='ddp:2' or leave bucket_cap_mb out",
        ),
        (
            {"parallel": "fsdp:2", "comm_hook": "bf16"},
            "comm_hook='bf16' is an option of DistributedDataParallel, and parallel is 'fsdp:2'; "
            "use parallel='ddp:2' or leave comm_hook out",
        ),
        (
            {"parallel": "tp:2", "precision": "fp8-rowwise"},
            "precision 'fp8-rowwise' cannot be combined with parallel 'tp:2': torchao's linear "
            "layers are not split; use precision='amp-bf16', or another mode",
        ),
        *(
            (
                {"parallel": parallel, "precision": "mp-bf16"},
                f"precision 'mp-bf16' cannot be combined with parallel {parallel!r}: FSDP casts "
                "the parameters as it gathers them; use parallel='fsdp:2' or 'hsdp:2x2', or "
                "precision='amp-bf16'",
            )
            for parallel in ("single", "ddp:2", "zero2:2", "mesh:fsdp=2")
        ),
        (
            {"parallel": "pp:2", "compile": True},
            "compile=True cannot be combined with parallel 'pp:2': the model is cut into stages; "
            "use compile=False",
        ),
        (
            {"parallel": "dp:2", "compile": True},
            "compile=True cannot be combined with parallel 'dp:2': the replicas of nn.DataParallel "
            "would all call the compiled first one; use compile=False",
        ),
        (
            {"parallel": "mp:2", "compile": True},
            "compile=True cannot be combined with parallel 'mp:2': the model is cut into stages; "
            "use compile=False",
        ),
    ],
)
def test_fields_that_exclude_each_other_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as refused:
        Recipe(**fields)

    assert str(refused.value) == message


def test_zero1_takes_the_options_of_ddp() -> None:
    assert Recipe(parallel="zero1:2", static_graph=True, bucket_cap_mb=1).plan.world_size == 2


@pytest.mark.parametrize(
    ("checkpointing", "num_segments"),
    [("segments:3", 3), ("none", None), ("every-block", None), ("selective", None)],
)
def test_only_segments_have_a_number(checkpointing: str, num_segments: int | None) -> None:
    assert Recipe(checkpointing=checkpointing).num_segments == num_segments


def test_a_recipe_cannot_be_changed() -> None:
    recipe = Recipe()

    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.num_workers = 2  # type: ignore[misc]


SIZED_MODES = ("dp", "ddp", "fsdp", "zero1", "tp", "pp", "mp", "horovod-like", "horovod")
sizes = st.integers(0, 4).map(str)
modes = st.one_of(
    st.just("single"),
    st.builds("{}:{}".format, st.sampled_from(SIZED_MODES), sizes),
    st.builds("hsdp:{}x{}".format, sizes, sizes),
    st.builds("mesh:dp={},tp={}".format, sizes, sizes),
    st.builds("pp:{}:{}".format, sizes, st.sampled_from(PIPELINE_SCHEDULES)),
)
positive = st.none() | st.floats(min_value=1e-3, max_value=1e3)
recipe_fields = st.fixed_dictionaries(
    {},
    optional={
        "num_workers": st.integers(-1, 4),
        "persistent_workers": st.booleans(),
        "pin_memory": st.booleans(),
        "prefetch_factor": st.none() | st.integers(0, 4),
        "non_blocking": st.booleans(),
        "parallel": modes,
        "precision": st.sampled_from(PRECISIONS),
        "checkpointing": st.sampled_from(["none", "every-block", "segments:2", "selective"]),
        "micro_batch_size": st.none() | st.integers(0, 64),
        "grad_accumulation_steps": st.integers(0, 4),
        "clip_grad_norm": positive,
        "compile": st.booleans(),
        "bucket_cap_mb": positive,
        "static_graph": st.booleans(),
        "comm_hook": st.sampled_from(COMM_HOOKS),
    },
)


@given(recipe_fields)
def test_any_accepted_recipe_survives_its_journeys(fields: dict[str, Any]) -> None:
    try:
        recipe = Recipe(**fields)
    except RecipeError:
        assume(False)

    assert Recipe(**recipe.as_dict()) == recipe
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert recipe.plan == parse_parallel(recipe.parallel)


# --- measuring ---


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_rounds": 0}, "rounds is 0; use None or a whole number from 1"),
        ({"num_rounds": 2.5}, "rounds is 2.5; use None or a whole number from 1"),
        ({"num_iterations": 0}, "iterations is 0; use None or a whole number from 1"),
        ({"num_iterations": "9"}, "iterations is '9'; use None or a whole number from 1"),
    ],
)
def test_a_plan_without_rounds_or_iterations_is_refused(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        MeasurePlan(**fields)

    assert str(refused.value) == message
