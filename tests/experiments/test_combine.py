from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from made_up_cells import NO_COUNTS

from perfsuite import Recipe
from perfsuite.experiments.results import combine, combine_stages, slowest_rank_times
from perfsuite.ranks.messages import CellMeasured, MeasurePlan, RoundTimes, RunCell
from perfsuite.records.cell import Outcome, StageTimes
from perfsuite.records.equivalence import Numerics
from perfsuite.system.environment import Environment


def times(duration_s: float, **stages_s: float) -> RoundTimes:
    return RoundTimes(duration_s=duration_s, stages_s=stages_s)


def test_a_round_takes_as_long_as_its_slowest_rank():
    rounds_by_rank = [[times(1.0), times(4.0)], [times(2.0), times(3.0)]]

    assert slowest_rank_times(rounds_by_rank, num_iterations=2) == [1.0, 2.0]


def test_ranks_with_different_numbers_of_rounds_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        slowest_rank_times([[times(1.0), times(1.0)], [times(1.0)]], num_iterations=1)


def test_a_stage_is_the_greatest_mean_of_a_rank_and_not_the_mean_of_the_greatest():
    rounds_by_rank = [
        [times(8.0, forward=1.0, load=4.0), times(8.0, forward=5.0, load=0.0)],
        [times(8.0, forward=4.0, load=1.0), times(8.0, forward=3.0, load=1.0)],
    ]

    combined = combine_stages(rounds_by_rank, num_iterations=2)

    # Per rank: forward 6 / 4 and 7 / 4, load 4 / 4 and 2 / 4, other 6 / 4 and 7 / 4.
    assert combined == StageTimes(
        load=1.0, forward=1.75, backward=None, optimizer=None, evaluation=None, other=1.75
    )


def test_beside_an_accelerator_loading_is_exposed_as_far_as_the_device_did_nothing_else():
    waits, overlaps = times(8.0, forward=5.0, load=2.0), times(8.0, forward=7.0, load=4.0)

    combined = combine_stages([[waits], [overlaps]], num_iterations=1, overlaps_loading=True)

    assert (combined.load, combined.other, combined.load_exposed) == (4.0, 3.0, 2.0)


def test_a_stage_that_only_one_rank_enters_is_that_ranks():
    rounds_by_rank = [[times(2.0, load=0.5)], [times(2.0, backward=1.5)]]

    combined = combine_stages(rounds_by_rank, num_iterations=1)

    assert (combined.load, combined.backward, combined.other) == (0.5, 1.5, 1.5)


def test_a_stage_of_some_rounds_is_spread_over_all():
    rounds = [times(4.0, evaluation=2.0), times(2.0)]

    combined = combine_stages([rounds], num_iterations=1)

    assert (combined.evaluation, combined.other) == (1.0, 2.0)


def test_on_an_accelerator_the_rest_is_what_the_device_idles_and_loading_is_the_hosts():
    rounds = [[times(10.0, load=6.0, forward=9.5)]]

    combined = combine_stages(rounds, num_iterations=1, overlaps_loading=True)

    assert (combined.load, combined.forward, combined.other) == (6.0, 9.5, 0.5)


def test_loading_that_overlaps_with_the_device_leaves_no_negative_rest():
    combined = combine_stages([[times(1.0, load=0.75, forward=0.5)]], num_iterations=1)

    assert combined.other == 0.0


def measured(model_flops: int | None, *accelerators: str) -> CellMeasured:
    environment = Environment(
        accelerators=accelerators,
        **dict.fromkeys(("driver", "cuda", "cudnn", "nccl")),
        torch="2.15.0",
        cpu="Xeon",
        num_cores=2,
        python="3.11",
        knobs={},
    )
    flops = None if model_flops is None else model_flops * 4 // 3
    return CellMeasured(
        rounds=(times(0.5), times(0.5)),
        num_iterations=1,
        losses={1: 1.0},
        global_batch_size=8,
        counts=msgspec.structs.replace(NO_COUNTS, flops=flops, model_flops=model_flops),
        peak=None,
        operators=None,
        environment=environment,
        missing={},
    )


def combined(precision: str, *ranks: CellMeasured, parallel: str = "ddp:2") -> Outcome:
    plan = MeasurePlan(num_rounds=2, num_iterations=1)
    recipe = Recipe(parallel=parallel, precision=precision)
    job = RunCell(activity="train", plan=plan, recipe=recipe)
    device = "cuda" if ranks[0].environment.accelerators else "cpu"
    return combine(job, "toy-mlp", device, ranks, None)


H200 = "NVIDIA H200, 140 GiB, 700 W, MIG off, clocks set to 1200 MHz"


def test_mfu_is_the_model_flops_of_the_mean_rank_over_the_dense_peak_of_its_gpu():
    record = combined(
        "amp-bf16",
        measured(3 * 10**14, H200, H200),
        measured(10**14 * 45 // 10, H200, H200),
    ).record

    # 3.75e14 FLOP in half a second, of 989.5 TFLOP/s.
    assert record.counts.model_flops == 45 * 10**13
    assert record.tflops == 750
    assert record.mfu == pytest.approx(750 / 989.5)
    assert record.hfu == pytest.approx(1000 / 989.5)


@pytest.mark.parametrize(
    ("precision", "accelerators", "reason"),
    [
        ("fp32", (), "the table of peaks has none of cpu in fp32"),
        ("fp64", (H200,), "the table of peaks has none of NVIDIA H200 in fp64"),
        ("fp32", ("NVIDIA A10G, 22.5 GiB, 300 W, no MIG",), "... of NVIDIA A10G in fp32"),
        (
            "tf32",
            (H200, "NVIDIA L4, 22.5 GiB, 72 W, no MIG"),
            "... of NVIDIA H200 and NVIDIA L4 in tf32",
        ),
        (
            "bf16",
            ("NVIDIA H200, 140 GiB, 700 W, MIG on",),
            "... of NVIDIA H200, 140 GiB, 700 W, MIG on in bf16",
        ),
    ],
)
def test_there_is_no_mfu_without_a_known_peak(precision, accelerators, reason):
    outcome = combined(precision, measured(3 * 10**12, *accelerators))

    assert outcome.record.tflops == 6
    assert (outcome.record.mfu, outcome.record.hfu) == (None, None)
    expected = reason.replace("...", "the table of peaks has none")
    assert outcome.missing["mfu"] == expected


def test_why_a_number_is_missing_may_be_known_to_a_later_rank_alone():
    first, second = measured(3), measured(None)
    second.missing["model_flops"] = "torch has no formula for the FLOPs of aten._cudnn_rnn"

    outcome = combined("fp32", first, second, parallel="pp:2")

    assert outcome.record.counts.model_flops is None
    assert outcome.missing["model_flops"] == second.missing["model_flops"]


def test_joules_are_of_all_devices_and_each_counts_once():
    shared = [measured(None) for _ in range(3)]
    for rank, (gpu, energy_j) in zip(shared, [("a", 2.0), ("a", 2.0), ("b", 3.0)], strict=True):
        rank.energy_j = gpu, energy_j

    assert combined("fp32", *shared).record.energy_j == 5.0
    assert combined("fp32", *shared, measured(None)).record.energy_j is None


def test_joules_of_several_devices_of_one_process_are_missing():
    reasons = {}
    for accelerators in ([H200], [H200] * 2):
        process = measured(None, *accelerators)
        process.energy_j = "a", 2.0
        outcome = combined("fp32", process, parallel="dp:2")
        reasons[outcome.record.energy_j] = outcome.missing.get("energy_j")

    assert reasons == {
        2.0: None,
        None: "of the 2 devices of one process one alone is read",
    }


def test_the_slowest_rank_says_how_long_compiling_took():
    ranks = [measured(None) for _ in range(3)]
    ranks[0].compile_s, ranks[1].compile_s = 1.0, 4.0

    assert combined("fp32", *ranks).record.compile_s == 4.0
    assert combined("fp32", ranks[2]).record.compile_s is None


def test_a_rank_without_model_flops_leaves_no_speed_in_them():
    record = combined("bf16", measured(3 * 10**12, H200), measured(None, H200)).record

    assert (record.counts.model_flops, record.tflops, record.mfu) == (None, None, None)


def test_the_replicas_of_one_process_say_over_how_many_devices_they_are_spread():
    def num_devices(parallel: str, *accelerators: str) -> int | None:
        return combined("fp32", measured(None, *accelerators), parallel=parallel).record.num_devices

    assert num_devices("dp:2", H200, H200) == 2
    assert num_devices("dp:2", *[H200] * 8) == 2
    assert num_devices("dp:2", H200) == 1
    assert num_devices("ddp:1", H200) is None


def test_the_controllers_part_of_measuring_imports_no_torch():
    script = (
        "import sys, perfsuite.experiments.results, perfsuite.system.gpus\n"
        "print(*sorted({'torch', 'numpy'} & set(sys.modules)))"
    )

    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)

    assert completed.stdout.split() == []


@pytest.mark.parametrize(
    ("missing", "status"), [({}, "equivalent"), ({"numerics": "ran uncompiled"}, "not exercised")]
)
def test_what_was_proven_uncompiled_and_timed_compiled_is_not_proven(
    missing: dict[str, str], status: str
) -> None:
    rank = measured(None)
    rank.missing = missing
    plan = MeasurePlan(num_rounds=1, num_iterations=1)
    job = RunCell(activity="train", plan=plan, recipe=Recipe())
    proven = Numerics(status="equivalent", check="T1", error=1e-7, limit=1e-6, power="10/10")

    outcome = combine(job, "net", "cpu", [rank], proven)

    assert outcome.record.numerics is not None
    assert outcome.record.numerics.status == status
    assert outcome.missing.get("numerics") == missing.get("numerics")

    unproven = combine(job, "net", "cpu", [rank], None)
    assert unproven.record.numerics is None
    assert "numerics" not in unproven.missing
