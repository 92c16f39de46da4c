"""Records: strict, versioned, and the same after a round trip."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsuite.records.cell import (
    CellLine,
    CellRecord,
    Counts,
    Memory,
    Operator,
    Outcome,
    StageTimes,
    StepPercentiles,
    TensorDigest,
    decode_line,
    encode_line,
)
from perfsuite.records.equivalence import (
    EquivalenceReport,
    EquivalenceRow,
    Numerics,
    NumericsStatus,
    combine_statuses,
)
from perfsuite.records.recipe import Recipe
from perfsuite.records.verdict import Verdict
from perfsuite.system.environment import Environment

STAGES = StageTimes(
    load=1e-4, forward=2e-4, backward=3e-4, optimizer=1e-4, evaluation=None, other=0.0
)
COUNTS = Counts(
    flops=10,
    ops=2,
    collectives=1,
    collective_bytes=27_168,
    saved_activation_bytes=4096,
    kernel_launches=None,
)
RECORD = CellRecord(
    workload="lenet-digits",
    recipe=Recipe(parallel="ddp:2").as_dict(),
    device="cpu",
    world_size=2,
    exercised=True,
    fingerprint="0123456789ab",
    numerics=Numerics(status="equivalent", check="T0", error=0.0, limit=3.4e-7, power="5/5"),
    stages_s=STAGES,
    counts=COUNTS,
    memory=Memory(metric="live_storage_peak", peak_bytes=8, per_rank=(8, 4)),
    samples_per_s=15_800.2,
    losses=(2.3, 2.2),
    verdict=Verdict(
        word="PASS", by="pairs", ratio=1.01, interval=(0.99, 1.02), num_pairs=4, detectable=0.01
    ),
)
LINE = CellLine(
    fullname="benchmarks/test_step.py::test_step[ddp]",
    outcome="passed",
    reason=None,
    step_times_s=(0.002, 0.0021),
    perfsuite=RECORD,
)
ENVIRONMENT = Environment(
    accelerators=("NVIDIA H100, 80.0 GiB, 700 W, MIG off",),
    driver="580.1",
    cuda="13.2",
    cudnn="92600",
    nccl="2.30.7",
    torch="2.15.0 (abc)",
    cpu="Xeon",
    num_cores=2,
    python="3.11",
    knobs={"num_threads": "1", "OMP_NUM_THREADS": "1"},
)


LATER_KEYS = (
    *("operators", "num_devices", "tokens_per_s", "tflops", "mfu", "hfu"),
    *("slow_ranks", "rank_stages_s", "step_s", "weights", "compile_s"),
    *("energy_j", "losses_by_step", "weights_steps", "buffers"),
)


def test_a_record_from_before_later_keys_were_kept_is_still_read() -> None:
    plain = json.loads(encode_line(LINE))
    for name in LATER_KEYS:
        del plain["perfsuite"][name]
    del plain["perfsuite"]["counts"]["model_flops"]

    assert decode_line(json.dumps(plain).encode()) == LINE


def test_a_record_from_before_a_verdict_kept_its_bounds_is_still_read() -> None:
    plain = json.loads(encode_line(LINE))
    del plain["perfsuite"]["verdict"]["tolerance"], plain["perfsuite"]["verdict"]["limit"]

    assert decode_line(json.dumps(plain).encode()) == LINE


def test_operators_survive_a_round_trip() -> None:
    record = msgspec.structs.replace(
        RECORD, operators=(Operator(name="aten::mm", calls=3, self_s=0.001),)
    )
    line = msgspec.structs.replace(LINE, perfsuite=record)

    assert decode_line(encode_line(line)) == line
    assert list(msgspec.to_builtins(record)["operators"]) == [
        {"name": "aten::mm", "calls": 3, "self_s": 0.001}
    ]


def test_a_line_survives_its_journey() -> None:
    own_code = msgspec.structs.replace(
        RECORD,
        recipe=None,
        tokens_per_s=9.5,
        slow_ranks={"load": 1},
        rank_stages_s={"load": (0.1, 0.2)},
        step_s=StepPercentiles(p50=0.1, p95=0.2, p99=0.3),
        weights=((TensorDigest(2, 3.0, 5.0),), (TensorDigest(2, 1.0, 0.5),)),
    )
    line = msgspec.structs.replace(LINE, perfsuite=own_code)

    assert decode_line(encode_line(LINE)) == LINE
    assert decode_line(encode_line(line)) == line


def test_a_line_is_one_line_of_json_with_the_contracts_names() -> None:
    encoded = encode_line(LINE)
    document = json.loads(encoded)

    assert b"\n" not in encoded
    assert list(document) == ["fullname", "outcome", "reason", "step_times_s", "perfsuite"]
    assert set(document["perfsuite"]) == {
        "schema",
        "workload",
        "recipe",
        "device",
        "world_size",
        "exercised",
        "fingerprint",
        "numerics",
        "stages_s",
        "counts",
        "memory",
        "samples_per_s",
        "losses",
        "verdict",
        *LATER_KEYS,
    }
    assert document["perfsuite"]["schema"] == 1


def test_a_plain_record_is_what_json_would_read() -> None:
    assert json.loads(json.dumps(msgspec.to_builtins(RECORD))) == json.loads(
        msgspec.json.encode(RECORD)
    )


def planted_at(path: tuple[str, ...], name: str, value: Any) -> bytes:
    document = json.loads(encode_line(LINE))
    place = document
    for step in path:
        place = place[step]
    place[name] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "path",
    [
        (),
        ("perfsuite",),
        ("perfsuite", "numerics"),
        ("perfsuite", "stages_s"),
        ("perfsuite", "counts"),
        ("perfsuite", "memory"),
        ("perfsuite", "verdict"),
    ],
)
def test_an_unknown_field_is_refused_at_every_depth(path: tuple[str, ...]) -> None:
    where = "".join(f".{step}" for step in path)

    with pytest.raises(msgspec.ValidationError) as refused:
        decode_line(planted_at(path, "speed", 1))

    assert str(refused.value) == "Object contains unknown field `speed`" + (
        f" - at `${where}`" if where else ""
    )


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ((), "outcome", "xfailed"),
        (("perfsuite",), "world_size", "two"),
        (("perfsuite",), "samples_per_s", "fast"),
        (("perfsuite", "numerics"), "status", "fine"),
        (("perfsuite", "memory"), "metric", "rss"),
        (("perfsuite", "verdict"), "word", "FINE"),
        (("perfsuite", "counts"), "flops", 1.5),
    ],
)
def test_a_value_of_another_kind_is_refused(
    path: tuple[str, ...], name: str, value: object
) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_line(planted_at(path, name, value))


def test_a_missing_field_is_refused() -> None:
    document = json.loads(encode_line(LINE))
    del document["perfsuite"]["losses"]

    with pytest.raises(msgspec.ValidationError) as refused:
        decode_line(json.dumps(document).encode())

    assert str(refused.value) == "Object missing required field `losses` - at `$.perfsuite`"


def test_a_record_of_another_version_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        decode_line(planted_at(("perfsuite",), "schema", 2))

    assert str(refused.value) == "Invalid enum value 2 - at `$.perfsuite.schema`"


amounts = st.floats(min_value=0, max_value=2.0**63)
numbers = st.none() | amounts
whole = st.none() | st.integers(min_value=0, max_value=2**62)
stage_times = st.builds(StageTimes, **dict.fromkeys(StageTimes.__struct_fields__, numbers))
counts = st.builds(Counts, **dict.fromkeys(Counts.__struct_fields__, whole))
finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(max_size=20)
records = st.builds(
    CellRecord,
    workload=names,
    recipe=st.just(Recipe().as_dict()),
    device=st.sampled_from(["cpu", "cuda"]),
    world_size=st.integers(1, 64),
    exercised=st.booleans(),
    fingerprint=st.none() | st.from_regex(r"[0-9a-f]{12}", fullmatch=True),
    numerics=st.none() | st.just(RECORD.numerics),
    stages_s=stage_times,
    counts=counts,
    memory=st.none()
    | st.builds(
        Memory,
        metric=st.sampled_from(["live_storage_peak", "max_memory_allocated"]),
        peak_bytes=st.integers(0, 2**50),
        per_rank=st.lists(st.integers(0, 2**50)).map(tuple),
    ),
    samples_per_s=numbers,
    losses=st.lists(finite, max_size=5).map(tuple),
    verdict=st.none() | st.just(RECORD.verdict),
)
lines = st.builds(
    CellLine,
    fullname=names,
    outcome=st.sampled_from(["passed", "failed", "skipped"]),
    reason=st.none() | names,
    step_times_s=st.lists(amounts, max_size=5).map(tuple),
    perfsuite=st.none() | records,
)


@given(lines)
def test_any_line_reads_back_as_it_was_bit_for_bit(line: CellLine) -> None:
    assert decode_line(encode_line(line)) == line


@pytest.mark.parametrize("name", Environment.__struct_fields__)
def test_the_fingerprint_differs_with_any_field(name: str) -> None:
    other: dict[str, Any] = {
        "accelerators": (),
        "num_cores": 3,
        "knobs": {"num_threads": "2", "OMP_NUM_THREADS": "1"},
    }

    changed = msgspec.structs.replace(ENVIRONMENT, **{name: other.get(name, "other")})

    assert changed.fingerprint != ENVIRONMENT.fingerprint


def test_the_fingerprint_does_not_depend_on_the_order_of_knobs() -> None:
    reordered = msgspec.structs.replace(
        ENVIRONMENT, knobs=dict(reversed(list(ENVIRONMENT.knobs.items())))
    )

    assert reordered.fingerprint == ENVIRONMENT.fingerprint


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    assert ENVIRONMENT.fingerprint == "cca0ba80c56f"


def outcome_with(*losses: float) -> Outcome:
    return Outcome(
        step_times_s=(0.1,),
        num_iterations=1,
        record=msgspec.structs.replace(RECORD, losses=losses),
        missing={},
    )


def test_losses_are_finite_only_if_there_are_some_and_all_are() -> None:
    assert outcome_with(2.3, 2.2).losses_are_finite
    assert not outcome_with().losses_are_finite
    assert not outcome_with(2.3, math.nan).losses_are_finite
    assert not outcome_with(math.inf).losses_are_finite


STATUSES: tuple[NumericsStatus, ...] = ("mismatch", "no power", "not exercised", "equivalent")


def row_with(status: NumericsStatus, **fields: Any) -> EquivalenceRow:
    defaults: dict[str, Any] = {
        "parallel": "ddp:2",
        "precision": "fp32",
        "checkpointing": "none",
        "world_size": 2,
        "check": "T0",
        "error": 0.0,
        "limit": 3.4e-7,
        "power": "5/5",
        "reason": "equal bit for bit",
    }
    return EquivalenceRow(status=status, **{**defaults, **fields})


def report_of(*rows: EquivalenceRow, **fields: Any) -> EquivalenceReport:
    defaults: dict[str, Any] = {
        "workload": "lenet-digits",
        "recipe": Recipe(parallel="ddp:2").as_dict(),
        "inapplicable": {},
    }
    return EquivalenceReport(rows=rows, **{**defaults, **fields})


@pytest.mark.parametrize("other", STATUSES)
@pytest.mark.parametrize("status", STATUSES)
def test_of_two_rows_the_worse_decides_in_any_order(
    status: NumericsStatus, other: NumericsStatus
) -> None:
    worse = STATUSES[min(STATUSES.index(status), STATUSES.index(other))]

    report = report_of(row_with(status), row_with(other))

    assert report.status == worse
    assert report.worst.status == worse
    assert report.is_equivalent == (status == other == "equivalent")


@settings(derandomize=True)
@given(st.lists(st.sampled_from(STATUSES), min_size=1, max_size=5))
def test_the_worst_status_depends_on_no_order(statuses: list[NumericsStatus]) -> None:
    worst = combine_statuses(statuses)

    assert worst in statuses
    assert combine_statuses(reversed(statuses)) == worst
    assert combine_statuses([worst, *statuses]) == worst
    assert combine_statuses(["equivalent", *statuses]) == worst
    assert combine_statuses(["mismatch", *statuses]) == "mismatch"


def test_of_equally_bad_rows_the_first_decides() -> None:
    report = report_of(
        row_with("equivalent"), row_with("mismatch", check="T1"), row_with("mismatch", check="data")
    )

    assert report.worst.check == "T1"


def test_the_numerics_of_a_cell_are_those_of_its_worst_row() -> None:
    report = report_of(
        row_with("equivalent"),
        row_with("no power", check="T1", error=1e-8, limit=2e-6, power="4/5", reason="one missed"),
    )

    assert report.numerics == Numerics(
        status="no power", check="T1", error=1e-8, limit=2e-6, power="4/5"
    )


def test_a_report_reads_as_one_line_for_each_check() -> None:
    report = report_of(
        row_with("equivalent"),
        row_with("mismatch", check="T1", reason="the loss differs"),
        inapplicable={"checkpointing": "the recipe recomputes nothing"},
    )

    assert str(report) == (
        "lenet-digits under ddp:2, fp32: mismatch\n"
        "T0 equivalent: equal bit for bit\n"
        "T1 mismatch: the loss differs\n"
        "checkpointing does not apply: the recipe recomputes nothing"
    )


def test_a_report_names_checkpointing_where_there_is_some() -> None:
    recipe = Recipe(precision="amp-bf16", checkpointing="segments:2")

    report = report_of(row_with("equivalent"), recipe=recipe.as_dict())

    assert str(report).splitlines()[0] == (
        "lenet-digits under single, amp-bf16, checkpointing segments:2: equivalent"
    )


def test_a_row_is_what_the_contract_says_in_json() -> None:
    row = row_with("equivalent", error=None, limit=None, power=None)

    assert json.loads(msgspec.json.encode(row)) == {
        "parallel": "ddp:2",
        "precision": "fp32",
        "checkpointing": "none",
        "world_size": 2,
        "check": "T0",
        "status": "equivalent",
        "error": None,
        "limit": None,
        "power": None,
        "reason": "equal bit for bit",
    }
    assert msgspec.json.decode(msgspec.json.encode(row), type=EquivalenceRow) == row


def test_a_row_of_another_status_is_refused() -> None:
    document = {**msgspec.to_builtins(row_with("equivalent")), "status": "fine"}

    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(document, type=EquivalenceRow)

    assert str(refused.value) == "Invalid enum value 'fine' - at `$.status`"


@pytest.mark.parametrize(
    ("kept", "field"),
    [
        (RECORD, "losses"),
        (RECORD.stages_s, "forward"),
        (LINE, "outcome"),
        (Operator(name="aten::mm", calls=1, self_s=0.1), "calls"),
        (row_with("equivalent"), "status"),
        (report_of(row_with("equivalent")), "rows"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_was_measured_cannot_be_changed(kept: Any, field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(kept, field, None)


def test_a_row_with_an_unknown_field_is_refused() -> None:
    plain = msgspec.to_builtins(row_with("equivalent")) | {"planted": 5}

    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(plain, EquivalenceRow)
