"""The plugin through inner pytest sessions: cells, records, options, exit codes, messages."""

from __future__ import annotations

import json

# Inner sessions forget what they imported: torch can be imported only once per process, and
# a second forkserver would load torch again.
import multiprocessing.forkserver  # noqa: F401
import subprocess
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401
from json_schemas import assert_results_valid

from perfsuite.records.cell import CellLine, decode_line
from perfsuite.report.runs import read_runs, with_reasons
from perfsuite.system.timing_lock import TimingLock

WORKLOADS = """
    import torch
    from torch import nn
    from torch.utils.data import Dataset

    import perfsuite


    class Points(Dataset):
        def __init__(self, problem=None):
            self.problem = problem

        def __len__(self):
            return 64

        def __getitem__(self, index):
            if self.problem is not None:
                self.problem(index)
            generator = torch.Generator().manual_seed(index)
            return torch.randn(4, generator=generator), index % 3


    class Trap(nn.Module):
        def __init__(self, trap):
            super().__init__()
            self.trap = trap
            self.linear = nn.Linear(4, 3)
            self.num_calls = 0

        def forward(self, inputs):
            self.num_calls += 1
            return self.trap(self.linear(inputs), self.num_calls)


    def make(name="points", trap=lambda outputs, call: outputs, problem=None, **changes):
        return perfsuite.Workload(**{
            "name": name,
            "build_model": lambda: Trap(trap),
            "build_dataset": lambda split: Points(problem),
            "loss": nn.functional.cross_entropy,
            "build_optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            "micro_batch_size": 8,
            **changes,
        })
"""
ONE_CELL = """
    from perfsuite import Recipe
    from workloads import make

    def test_cell(train_benchmark):
        outcome = train_benchmark(make(), Recipe(), rounds=3, iterations=2)
        assert outcome.losses_are_finite
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project of somebody else: a module with workloads, and ini values of its own."""
    pytester.makepyfile(workloads=WORKLOADS)
    pytester.makeini("[pytest]\nperf_device = cpu\nperf_timeout = 20\npythonpath = .\n")
    return pytester


def run(project: pytest.Pytester, test: str, *args: str) -> pytest.RunResult:
    project.makepyfile(test_inner=test)
    return project.runpytest_inprocess("-p", "no:cacheprovider", *args)


def lines_of(project: pytest.Pytester) -> list[CellLine]:
    data = (project.path / "results" / "cells.jsonl").read_bytes()
    return [decode_line(line) for line in data.splitlines()]


def test_a_cell_is_stored_with_exactly_the_times_that_the_ranks_reported(
    project: pytest.Pytester,
) -> None:
    result = run(project, ONE_CELL, "--benchmark-json=own.json")

    assert result.ret == 0
    (line,) = lines_of(project)
    for path in ("results/run.json", "own.json"):
        (stored,) = json.loads((project.path / path).read_text())["benchmarks"]
        assert tuple(stored["stats"]["data"]) == line.step_times_s
        assert stored["options"]["timer"] == "rank_clock"
    assert len(line.step_times_s) == 3
    assert line.outcome == "passed"
    assert line.fullname == "test_inner.py::test_cell"


def test_a_cell_with_subtests_is_kept_once_as_its_test_ended(project: pytest.Pytester) -> None:
    test = """
        import pytest
        from perfsuite import Recipe
        from workloads import make

        def test_fine(train_benchmark, subtests):
            with subtests.test("before"):
                pytest.skip("not today")
            outcome = train_benchmark(make(), Recipe(), rounds=3, iterations=2)
            with subtests.test("after"):
                assert outcome.losses_are_finite

        def test_broken(train_benchmark, subtests):
            train_benchmark(make(), Recipe(), rounds=3, iterations=2)
            with subtests.test("after"):
                raise AssertionError("too warm")

        def test_without_times(train_benchmark, subtests):
            with subtests.test("measured"):
                train_benchmark("no-such-workload", Recipe())
    """

    result = run(project, test)

    assert result.ret == 1
    fine, broken, without_times = lines_of(project)
    assert fine.outcome == "passed"
    assert len(fine.step_times_s) == len(broken.step_times_s) == 3
    assert broken.outcome == without_times.outcome == "failed"
    assert (broken.reason or "").startswith("a subtest failed: ")
    assert "too warm" in (broken.reason or "")
    assert (without_times.reason or "").startswith("a subtest failed: WorkloadError: ")


def test_a_cell_that_runs_again_is_measured_again_and_counts_once(
    project: pytest.Pytester,
) -> None:
    project.makeconftest("""
        from _pytest.runner import runtestprotocol

        def pytest_runtest_protocol(item, nextitem):
            # As a plugin for flaky tests does.
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            if any(report.failed for report in reports):
                item._initrequest()
                reports = runtestprotocol(item, log=False, nextitem=nextitem)
            for report in reports:
                item.ihook.pytest_runtest_logreport(report=report)
            return True
    """)
    test = """
        from perfsuite import Recipe
        from workloads import make

        NUM_RUNS = []

        def test_flaky(loader_benchmark):
            outcome = loader_benchmark(make(), Recipe(), rounds=3)
            NUM_RUNS.append(outcome)
            assert len(NUM_RUNS) == 2
    """

    result = run(project, test, "--benchmark-json=own.json")

    assert result.ret == 0
    result.assert_outcomes(passed=1)
    assert len([line for line in result.outlines if line.startswith(" points")]) == 1
    first, last = lines_of(project)
    assert (first.outcome, last.outcome) == ("failed", "passed")
    for path in ("results/run.json", "own.json"):
        (stored,) = json.loads((project.path / path).read_text())["benchmarks"]
        assert tuple(stored["stats"]["data"]) == last.step_times_s


def test_the_record_has_exactly_the_keys_of_the_contract(project: pytest.Pytester) -> None:
    run(project, ONE_CELL)

    document = json.loads((project.path / "results" / "run.json").read_text())
    assert_results_valid(project.path / "results")
    record = document["benchmarks"][0]["extra_info"]["perfsuite"]
    assert list(record) == [
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
        "operators",
        "num_devices",
        "tokens_per_s",
        "tflops",
        "mfu",
        "hfu",
        "slow_ranks",
        "rank_stages_s",
        "step_s",
        "weights",
        "compile_s",
        "energy_j",
        "losses_by_step",
        "weights_steps",
        "buffers",
    ]
    assert list(record["stages_s"]) == [
        "load",
        "forward",
        "backward",
        "optimizer",
        "evaluation",
        "other",
        "load_exposed",
    ]
    assert list(record["counts"]) == [
        "flops",
        "ops",
        "collectives",
        "collective_bytes",
        "saved_activation_bytes",
        "kernel_launches",
        "collected_objects",
        "allocator_retries",
        "model_flops",
        "host_syncs",
        "device_copies",
        "device_copy_bytes",
        "graph_breaks",
        "recompiles",
        "kept_bytes",
    ]
    assert record["numerics"]["status"] == "equivalent"
    assert record["numerics"]["check"] == "T1"
    assert record["numerics"]["error"] <= record["numerics"]["limit"]
    assert record["stages_s"]["evaluation"] is None
    assert record["counts"]["kernel_launches"] is None
    assert record["counts"]["collectives"] == 0
    # Forward and two backward products of (8, 4) by (4, 3); the input needs no gradient.
    assert record["counts"]["flops"] == record["counts"]["model_flops"] == 2 * (2 * 8 * 4 * 3)
    step_s = document["benchmarks"][0]["stats"]["median"]
    assert record["tflops"] == pytest.approx(record["counts"]["flops"] / step_s / 1e12)
    assert (record["mfu"], record["hfu"]) == (None, None)  # of a CPU
    assert (record["slow_ranks"], record["rank_stages_s"]) == (None, None)  # of one rank
    assert 0 < record["step_s"]["p50"] <= record["step_s"]["p95"] <= record["step_s"]["p99"]
    assert record["memory"]["metric"] == "live_storage_peak"
    assert record["recipe"]["parallel"] == "single"


def test_the_terminal_shows_a_line_per_cell_and_one_table(project: pytest.Pytester) -> None:
    result = run(project, ONE_CELL)

    result.stdout.re_match_lines(
        [
            r"perfsuite: device cpu, matrix default, 10 rounds, seed 0",
            r"  test_inner.py::test_cell: \d.* a step, .* samples/s",
            r"=+ perfsuite =+",
            r" workload +parallel +precision +checkpointing +numerics +workers +step +spread .*",
            r" points +single +fp32 +none +equivalent +0 .*",
            r"written to .*results",
        ]
    )


def test_a_terminal_without_unicode_shows_the_table_in_ascii(project: pytest.Pytester) -> None:
    test = ONE_CELL.replace("train_benchmark", "loader_benchmark")
    project.makepyfile(test_inner=test.replace("assert outcome.losses_are_finite", ""))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONIOENCODING", "ascii")
        result = project.runpytest_subprocess("-p", "no:cacheprovider")

    assert result.ret == 0
    assert "\\u" not in result.stdout.str()
    assert "\\xb1" not in result.stdout.str()
    (row,) = [line for line in result.outlines if line.startswith(" points")]
    assert "+- " in row


def test_two_runs_give_identical_counts_memory_and_losses(project: pytest.Pytester) -> None:
    test = """
        import pytest
        from perfsuite import Recipe
        from workloads import make

        @pytest.mark.parametrize("parallel", ["single", "ddp:2"])
        @pytest.mark.parametrize("num_workers", [0, 2])
        def test_cell(train_benchmark, parallel, num_workers):
            recipe = Recipe(parallel=parallel, num_workers=num_workers)
            train_benchmark(make(), recipe, rounds=8, iterations=1)
    """

    run(project, test)
    first = [line.perfsuite for line in lines_of(project)]
    run(project, test)
    second = [line.perfsuite for line in lines_of(project)]

    assert len(first) == 4
    for one, other in zip(first, second, strict=True):
        assert one is not None
        assert other is not None
        assert one.counts == other.counts
        assert one.memory == other.memory
        assert one.losses == other.losses
        assert len(one.losses) == 10
        assert one.fingerprint == other.fingerprint
    # One process and a group of them are compared, so they must be of one environment.
    assert len({one.fingerprint for one in first if one is not None}) == 1
    # Neither does the number of loader workers change what is computed.
    assert first[0].losses == first[2].losses  # type: ignore[union-attr]


def test_what_cpu_cannot_exercise_is_skipped_with_the_reason_and_gets_no_number(
    project: pytest.Pytester,
) -> None:
    test = """
        import pytest
        from perfsuite import Recipe
        from workloads import make

        @pytest.mark.parametrize("fields", [
            {"parallel": "dp:2"}, {"precision": "tf32"}, {"pin_memory": True},
        ], ids=str)
        def test_cell(train_benchmark, fields):
            train_benchmark(make(), Recipe(**fields))
    """

    result = run(project, test, "-rs")

    result.assert_outcomes(skipped=3)
    reasons = [
        "parallel 'dp:2': nn.DataParallel silently runs the plain module on cpu; "
        "it needs a CUDA device",
        "precision 'tf32' needs an NVIDIA GPU of compute capability 8.0 or more; "
        "this cell runs on cpu",
        "pin_memory=True pins nothing without an accelerator; this cell runs on cpu",
    ]
    for reason in reasons:
        assert any(f"NOT EXERCISED: {reason}" in line for line in result.outlines)
    assert [line.reason for line in lines_of(project)] == reasons
    assert all(line.perfsuite is None for line in lines_of(project))
    assert not (project.path / "results" / "run.json").exists()


MISTAKES = {
    "unknown workload": (
        "train_benchmark('lenet-digit', Recipe())",
        "WorkloadError: workload 'lenet-digit' is not known; use one of lenet-digits, "
        "lenet-digits-affine, lenet-mnist, lenet-mnist-affine, resnet18, toy-mlp, "
        "transformer-tiny, transformer-tiny-lora, or 'package.module:attribute', "
        "or register it with @perfsuite.workload",
    ),
    "no such module": (
        "train_benchmark('no.such:thing', Recipe())",
        "WorkloadError: workload 'no.such:thing': there is no module 'no' in the current "
        "directory, pytest's rootdir or the installed packages",
    ),
    "impossible recipe": (
        "train_benchmark(make(), Recipe(parallel='ddp:0'))",
        "RecipeError: parallel 'ddp:0' has a size of 0, and ddp needs at least 1; use ddp:2",
    ),
    "no recipe": (
        "train_benchmark(make(), {'parallel': 'ddp:2'})",
        "RecipeError: recipe is {'parallel': 'ddp:2'}; use perfsuite.Recipe(parallel='ddp:2', ...)",
    ),
    "no rounds": (
        "train_benchmark(make(), Recipe(), rounds=0)",
        "RecipeError: rounds is 0; use None or a whole number from 1",
    ),
    "two cells": (
        "[train_benchmark(make(), Recipe(), rounds=1, iterations=1) for _ in range(2)]",
        "SettingError: test_inner.py::test_cell has measured a cell already, and a test has one "
        "place to store its times; parametrize the test, or write another",
    ),
    "no blocks": (
        "train_benchmark(make(), Recipe(checkpointing='every-block'))",
        "RecipeError: checkpointing 'every-block' needs the blocks of workload 'points', which "
        "names none; add blocks=lambda model: [...] with the modules to recompute to its "
        "Workload, or use checkpointing='none'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_message_without_a_traceback(
    project: pytest.Pytester, mistake: str
) -> None:
    call, message = MISTAKES[mistake]
    test = f"""
        from perfsuite import Recipe
        from workloads import make

        def test_cell(train_benchmark):
            {call}
    """

    result = run(project, test)

    assert result.ret == 1
    start = next(at for at, line in enumerate(result.outlines) if "test_cell ___" in line)
    assert result.outlines[start + 1] == message


WRONG_ON_RANKS = (
    WORKLOADS
    + """
    import torch.distributed as dist
    from perfsuite import Recipe

    def lose(outputs, call):
        # On the ranks alone, so that the reference is right.
        return outputs * 1.5 if dist.is_initialized() else outputs
"""
)


def test_a_cell_that_computes_something_else_fails_and_is_not_timed(
    project: pytest.Pytester,
) -> None:
    test = (
        WRONG_ON_RANKS
        + """
    def test_cell(train_benchmark):
        train_benchmark(make(trap=lose), Recipe(parallel="ddp:2"))
    """
    )

    result = run(project, test)

    result.assert_outcomes(failed=1)
    (line,) = lines_of(project)
    assert line.step_times_s == ()
    assert line.perfsuite is None
    assert line.reason is not None
    assert line.reason.startswith(
        "EquivalenceError: not timed, because its numerics check fails: points under ddp:2, "
        "fp32: mismatch\nT0 mismatch: the "
    )
    assert not (project.path / "results" / "run.json").exists()


def test_without_the_check_a_cell_is_timed_and_its_record_says_that_nobody_looked(
    project: pytest.Pytester,
) -> None:
    test = (
        WRONG_ON_RANKS
        + """
    def test_cell(train_benchmark):
        train_benchmark(make(trap=lose), Recipe(parallel="ddp:2"), rounds=1, iterations=1)
    """
    )

    result = run(project, test, "--perf-numerics=off")

    result.assert_outcomes(passed=1)
    (line,) = lines_of(project)
    assert line.perfsuite is not None
    assert line.perfsuite.numerics is None


def test_numerics_are_checked_once_for_all_numbers_of_loader_workers(
    project: pytest.Pytester,
) -> None:
    test = (
        WORKLOADS
        + """
    import pytest
    from perfsuite import Recipe
    from perfsuite.experiments.rank_session import Session

    checked = []
    verify = Session._verify
    workload = make()

    @pytest.mark.parametrize("num_workers", [0, 1])
    def test_cell(train_benchmark, monkeypatch, num_workers):
        def counting(self, workload, recipe, num_steps):
            checked.append(recipe)
            return verify(self, workload, recipe, num_steps)

        monkeypatch.setattr(Session, "_verify", counting)
        recipe = Recipe(num_workers=num_workers)
        train_benchmark(workload, recipe, rounds=1, iterations=1)
        assert checked == [Recipe()]
    """
    )

    result = run(project, test)

    result.assert_outcomes(passed=2)


def test_check_equivalence_returns_a_report_whatever_it_finds(project: pytest.Pytester) -> None:
    test = (
        WRONG_ON_RANKS
        + """
    def test_equivalent(check_equivalence):
        report = check_equivalence(make(), Recipe(parallel="ddp:2"))
        assert report.is_equivalent
        assert [row.check for row in report.rows] == ["T0", "T1", "data"]

    def test_mismatch(check_equivalence):
        report = check_equivalence(make(trap=lose), Recipe(parallel="ddp:2"))
        assert report.status == "mismatch"

    def test_not_exercised(check_equivalence):
        report = check_equivalence(make(), Recipe(parallel="dp:2"))
        assert report.status == "not exercised"
        assert "nn.DataParallel silently runs the plain module on cpu" in report.worst.reason
    """
    )

    result = run(project, test, "--perf-device=cpu")

    result.assert_outcomes(passed=3)


def test_a_test_that_measured_nothing_says_so_in_the_record(project: pytest.Pytester) -> None:
    run(project, "def test_cell(train_benchmark): pass")

    (line,) = lines_of(project)
    assert (line.outcome, line.perfsuite) == ("passed", None)
    assert line.reason == "the test measured nothing"


BROKEN_SETUP = """
    import pytest

    @pytest.fixture
    def broken():
        raise RuntimeError("no disk")

    def test_broken(broken, train_benchmark):
        train_benchmark(make(), Recipe())
"""


def test_a_cell_whose_setup_fails_has_a_line_that_says_why(project: pytest.Pytester) -> None:
    result = run(project, ONE_CELL + BROKEN_SETUP)

    assert "  test_inner.py::test_broken: failed: RuntimeError: no disk" in result.outlines
    _, line = lines_of(project)
    assert (line.outcome, line.reason) == ("failed", "RuntimeError: no disk")
    (found,) = map(with_reasons, read_runs([project.path / "results" / "run.json"]))
    assert found.missing == ("FAILED test_inner.py::test_broken: RuntimeError: no disk",)


UNMEASURED = """
    import pytest

    def test_later(train_benchmark):
        pytest.skip("no data yet")

    @pytest.mark.xfail(reason="issue 7")
    def test_known(train_benchmark):
        raise RuntimeError("boom")

    def test_here(train_benchmark):
        pytest.xfail("issue 8")
"""


def test_a_cell_that_is_skipped_or_fails_as_expected_is_not_said_to_be_beyond_the_machine(
    project: pytest.Pytester,
) -> None:
    result = run(project, ONE_CELL + UNMEASURED)

    result.assert_outcomes(passed=1, skipped=1, xfailed=2)
    said = [
        "SKIPPED test_inner.py::test_later: no data yet",
        "XFAIL test_inner.py::test_known: issue 7; RuntimeError: boom",
        "XFAIL test_inner.py::test_here: issue 8",
    ]
    assert [line for line in result.outlines if line.startswith(("SKIPPED", "XFAIL"))] == said
    result.stdout.no_fnmatch_line("*NOT EXERCISED*")
    (found,) = map(with_reasons, read_runs([project.path / "results" / "run.json"]))
    assert found.missing == tuple(said)


def test_a_failing_cell_says_what_failed_and_the_next_one_runs(project: pytest.Pytester) -> None:
    test = """
        import os, signal, time
        import pytest
        from perfsuite import Recipe
        from workloads import make

        def nan(outputs, call):
            return outputs * (float("nan") if call == 3 else 1.0)

        def kill(outputs, call):
            if call == 2:
                print("last words", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            return outputs

        def raise_(outputs, call):
            raise KeyError("gone")

        def bad_file(index):
            if index == 11:
                raise OSError("cannot read image 11")

        @pytest.mark.parametrize("case", ["nan", "kill", "raise", "file", "file-worker", "fine"])
        def test_cell(train_benchmark, case):
            workload = {
                "nan": lambda: make(trap=nan),
                "kill": lambda: make(trap=kill),
                "raise": lambda: make(trap=raise_),
                "file": lambda: make(problem=bad_file),
                "file-worker": lambda: make(problem=bad_file),
                "fine": make,
            }[case]()
            workers = 1 if case == "file-worker" else 0
            train_benchmark(workload, Recipe(num_workers=workers), rounds=2, iterations=8)
    """

    result = run(project, test, "--perf-numerics=off")

    result.assert_outcomes(passed=1, failed=5)
    reasons = [line.reason or "" for line in lines_of(project)]
    assert reasons[0] == (
        "NonFiniteError: the loss is nan at step 3; the first parameter that is not finite is "
        "'linear.weight' (gradient); lower the learning rate, clip gradients, or use a precision "
        "with more range"
    )
    assert reasons[1] == (
        "RankFailureError: rank 0 of 1 was killed by SIGKILL (by a user, or by the kernel "
        "because memory ran out), in phase 'warm-up', stage 'forward' of step 2\n"
        "  its last output:\n    last words"
    )
    assert reasons[2].startswith(
        "RankFailureError: rank 0 of 1 raised KeyError: 'gone', in phase 'warm-up', "
        "stage 'forward' of step 1\n  traceback:"
    )
    assert "in raise_" in reasons[2]
    for reason in reasons[3:5]:
        assert reason.startswith("DataLoadError: ")
        assert "OSError: cannot read image 11" in reason
        assert "in bad_file" in reason or "test_inner.py" in reason
    assert reasons[5] == (
        "no kernel_launches: kernels are launched on CUDA devices only; "
        "no mfu: the table of peaks has none of cpu in fp32"
    )
    run_json = json.loads((project.path / "results" / "run.json").read_text())
    assert [bench["name"] for bench in run_json["benchmarks"]] == ["test_cell[fine]"]


def test_a_stuck_loader_worker_fails_the_cell_and_is_named(project: pytest.Pytester) -> None:
    test = """
        import time
        from perfsuite import Recipe
        from workloads import make

        def stuck(index):
            time.sleep(600)

        def test_cell(train_benchmark):
            train_benchmark(make(problem=stuck), Recipe(num_workers=2))
    """

    result = run(project, test, "--perf-timeout=3", "--perf-numerics=off")

    result.assert_outcomes(failed=1)
    (line,) = lines_of(project)
    assert (line.reason or "").startswith(
        "RankFailureError: rank 0 of 1 made no progress for 3 s (--perf-timeout), in phase "
        "'warm-up', stage 'load' of step 1 (2 loader workers alive)\n  where it is:\n"
    )


def test_workloads_come_from_objects_registrations_and_modules(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfsuite.records.workload._REGISTERED", {})
    project.makeconftest(
        """
        import perfsuite

        @perfsuite.workload("registered")
        def registered():
            from workloads import make
            return make("registered")
        """
    )
    project.makepyfile(
        elsewhere="""
        from workloads import make

        by_name = make("elsewhere")
        def by_function():
            return make("elsewhere-function")
        """
    )
    test = """
        import pytest
        from perfsuite import Recipe

        @pytest.mark.parametrize("name", [
            "registered", "elsewhere:by_name", "elsewhere:by_function",
        ])
        def test_cell(train_benchmark, name):
            train_benchmark(name, Recipe(parallel="ddp:2"), rounds=1, iterations=1)
    """

    result = run(project, test)

    result.assert_outcomes(passed=3)


def test_loading_evaluating_and_reducing_are_cells_too(project: pytest.Pytester) -> None:
    test = """
        from perfsuite import Recipe
        from workloads import make

        def test_load(loader_benchmark):
            stages = loader_benchmark(make(), Recipe(num_workers=1), rounds=2).record.stages_s
            assert stages.load > 0
            assert stages.forward is None

        def test_evaluate(evaluation_benchmark):
            record = evaluation_benchmark(make(), Recipe(), rounds=2).record
            assert record.stages_s.evaluation > 0
            assert record.stages_s.backward is None
            assert record.counts.flops == 2 * 8 * 4 * 3

        def test_reduce(all_reduce_benchmark):
            record = all_reduce_benchmark("ddp:2", 4096).record
            assert record.counts.collectives == 1
            assert record.counts.collective_bytes == 4096
    """

    result = run(project, test)

    result.assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "--perf-device=tpu",
            "--perf-device is 'tpu' (command line); use one of auto, cpu, cuda",
        ),
        ("--perf-rounds=0", "--perf-rounds is '0' (command line); use a whole number from 1"),
        (
            "--perf-timeout=soon",
            "--perf-timeout is 'soon' (command line); use a duration above 0, such as 120 or 2min",
        ),
        (
            "--perf-matrix=big",
            "--perf-matrix is 'big' (command line); use one of smoke, default, full",
        ),
    ],
)
def test_a_wrong_option_ends_before_any_test_with_exit_code_4(
    project: pytest.Pytester, option: str, message: str
) -> None:
    result = run(project, "def test_anything(): raise AssertionError", option)

    assert result.ret == 4
    assert f"ERROR: {message}" in result.errlines


def test_a_wrong_ini_value_names_its_file(pytester: pytest.Pytester) -> None:
    ini = pytester.makeini("[pytest]\nperf_seed = lucky\n")

    result = run(pytester, "def test_anything(): pass")

    assert result.ret == 4
    assert (
        f"ERROR: perf_seed is 'lucky' (ini file {ini}); use a whole number from 0 to 4294967295"
        in (result.errlines)
    )


@pytest.mark.parametrize(
    ("addopts", "option", "source"),
    [
        ("", "-operf_seed=lucky", "perf_seed is 'lucky' (command line, -o)"),
        ("", "--override-ini=perf_seed=lucky", "perf_seed is 'lucky' (command line, -o)"),
        ("--perf-seed=lucky", "-q", "--perf-seed is 'lucky' (addopts or PYTEST_ADDOPTS)"),
    ],
)
def test_a_wrong_value_names_where_it_was_given(
    pytester: pytest.Pytester, addopts: str, option: str, source: str
) -> None:
    pytester.makeini(f"[pytest]\naddopts = {addopts}\nperf_rounds = 2\n")

    result = run(pytester, "def test_anything(): pass", option)

    assert result.ret == 4
    assert f"ERROR: {source}; use a whole number from 0 to 4294967295" in result.errlines


def test_the_command_line_comes_before_the_ini_file(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nperf_seed = 1\nperf_rounds = 2\n")

    result = run(project, "def test_anything(): pass", "--perf-seed=3")

    result.stdout.fnmatch_lines(["perfsuite: device auto, matrix default, 2 rounds, seed 3"])


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("limit='fast'", "limit is 'fast' (perf marker); use a ratio such as '5%'"),
        (
            "speed='5%'",
            "the perf marker has no argument 'speed'; use tolerance, limit, floor, counts, matrix",
        ),
        (
            "'5%'",
            "the perf marker has the positional argument '5%'; "
            "use tolerance=, limit=, floor=, counts=, matrix=",
        ),
        (
            "limit='5%', tolerance='9%'",
            "the limit is 5.0 % (perf marker), below the tolerance of 9.0 % (perf marker); give a "
            "larger limit, or a smaller tolerance",
        ),
    ],
)
def test_a_wrong_marker_argument_ends_before_any_test(
    project: pytest.Pytester, marker: str, message: str
) -> None:
    test = f"""
        import pytest

        @pytest.mark.perf({marker})
        def test_anything(loader_benchmark): pass
    """

    result = run(project, test)

    assert result.ret == 4
    assert f"ERROR: test_inner.py::test_anything: {message}" in result.errlines


def test_bounds_of_a_plain_benchmark_are_the_affair_of_the_gate(project: pytest.Pytester) -> None:
    test = """
        import pytest

        @pytest.mark.perf(tolerance="20%", baseline=1.2)  # another plugin's
        def test_plain(benchmark): benchmark.pedantic(int, rounds=2)
    """

    result = run(project, test, "--perf-rounds=2")

    assert result.ret == 0


def test_a_matrix_holds_the_cells_whose_values_all_belong_to_it(project: pytest.Pytester) -> None:
    test = """
        import pytest

        def only_in(matrix):
            return pytest.param(1, marks=pytest.mark.perf(matrix=matrix))

        @pytest.mark.parametrize("a", [0, only_in("full")])
        @pytest.mark.parametrize("b", [0, only_in("default")])
        def test_product(a, b): pass
    """

    for matrix, num_tests in (("smoke", 1), ("default", 2), ("full", 4)):
        result = run(project, test, f"--perf-matrix={matrix}")
        result.assert_outcomes(passed=num_tests, deselected=4 - num_tests)


def test_options_of_the_benchmark_marker_are_kept(project: pytest.Pytester) -> None:
    test = """
        import pytest
        from perfsuite import Recipe
        from workloads import make

        pytestmark = pytest.mark.benchmark(group="training")

        def test_cell(train_benchmark):
            train_benchmark(make(), Recipe(), rounds=1, iterations=1)
    """

    run(project, test)

    document = json.loads((project.path / "results" / "run.json").read_text())
    assert document["benchmarks"][0]["group"] == "training"


@pytest.mark.parametrize("option", ["--benchmark-disable", "--benchmark-skip"])
def test_where_benchmarks_are_off_nothing_is_recorded(
    project: pytest.Pytester, option: str
) -> None:
    result = run(project, ONE_CELL, option)

    assert result.ret == 0
    assert not (project.path / "results").exists()


def test_saved_runs_go_to_baselines_unless_another_place_is_named(
    project: pytest.Pytester,
) -> None:
    run(project, ONE_CELL, "--benchmark-save=base")
    for place in ("elsewhere", ".benchmarks"):  # the second is pytest-benchmark's own default
        run(project, ONE_CELL, "--benchmark-save=other", f"--benchmark-storage=file://./{place}")

    assert len(list(project.path.glob("baselines/*/*.json"))) == 1
    assert len(list(project.path.glob("elsewhere/*/0001_other.json"))) == 1
    assert len(list(project.path.glob(".benchmarks/*/0001_other.json"))) == 1


def test_comparing_outside_of_git_is_not_a_success(project: pytest.Pytester) -> None:
    run(project, ONE_CELL, "--benchmark-save=base")

    result = run(project, ONE_CELL, "--benchmark-compare=0001")

    assert result.ret == 12
    result.stdout.fnmatch_lines(["*not compared: *"])
    assert "NO-BASELINE" in str(result.stdout)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--perf-limit=3%",), ["limit"]),
        (("--perf-base=HEAD", "--perf-policy=enforce"), ["base"]),
        (("--perf-rounds=3",), []),
    ],
)
def test_an_option_of_the_gate_is_said_to_compare_nothing_in_a_session_that_only_measures(
    project: pytest.Pytester, options: tuple[str, ...], told: list[str]
) -> None:
    result = run(project, "def test_anything(): pass", *options)

    lines = [line for line in result.outlines if line.startswith("perfsuite: --perf-")]
    assert lines == [
        f"perfsuite: --perf-{name} compares nothing without --benchmark-compare" for name in told
    ]
    assert result.ret == 0


def test_too_few_gpus_refuse_the_machine_before_the_first_test(project: pytest.Pytester) -> None:
    result = run(project, "def test_anything(): raise AssertionError", "--perf-require-gpus=64")

    assert result.ret == 12
    assert any(
        "perfsuite: --perf-require-gpus is 64, and the number of visible GPUs is" in line
        for line in result.outlines + result.errlines
    )


def test_a_busy_machine_is_refused_at_once_where_waiting_is_not_wanted(
    project: pytest.Pytester,
) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from perfsuite.system.timing_lock import TimingLock\n"
            "lock = TimingLock(wait_s=60, say=print)\n"
            "lock.acquire()\n"
            "print('held', flush=True)\n"
            "input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    while holder.stdout.readline() != "held\n":
        assert holder.poll() is None

    result = run(project, ONE_CELL, "--perf-wait=0")
    holder.communicate("\n")

    assert result.ret == 12
    assert any(
        f"perfsuite: another timing session (process {holder.pid}) holds this machine, and "
        "--perf-wait=0 does not wait; run again later" in line
        for line in result.outlines + result.errlines
    )
    TimingLock(wait_s=60, say=print).acquire()


@pytest.mark.parametrize("test", [ONE_CELL, "def test_cell(benchmark): benchmark(sum, [1])"])
def test_run_reports_on_what_its_session_wrote(project: pytest.Pytester, test: str) -> None:
    result = run(project, test, ".", "-p", "perfsuite.plugin.report", "--perf-report=there")

    assert result.ret == 0
    folder = project.path / "there" / "report"
    assert f"report: {folder}/index.html" in result.outlines
    assert "`test_inner.py::test_cell`" in (folder / "report.md").read_text()


def test_a_plain_benchmark_of_a_session_of_ours_is_a_cell_like_others(
    project: pytest.Pytester,
) -> None:
    run(project, ONE_CELL)
    test = """
        import pytest

        def test_cell(benchmark):
            benchmark.pedantic(sum, args=([1],), rounds=3, iterations=2)

        def test_broken(benchmark):
            benchmark(sum)

        def test_skipped(benchmark):
            pytest.skip("not here")

        def test_else():
            pass
    """

    result = run(project, test)

    cell, broken, skipped = lines_of(project)  # none is left of the session before
    assert [one.outcome for one in (cell, broken, skipped)] == ["passed", "failed", "skipped"]
    (stored,) = json.loads((project.path / "results" / "run.json").read_text())["benchmarks"]
    assert cell.step_times_s == tuple(stored["stats"]["data"])
    assert len(cell.step_times_s) == 3
    assert cell.reason is cell.perfsuite is None
    assert broken.reason is not None
    assert "TypeError" in broken.reason
    assert (broken.step_times_s, skipped.step_times_s) == ((), ())
    assert skipped.reason == "Skipped: not here"
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    assert "MEASURED" not in result.stdout.str()


@pytest.mark.parametrize("name", ["cells.jsonl", "run.json"])
def test_results_that_cannot_be_written_end_in_12_with_one_line(
    project: pytest.Pytester, name: str
) -> None:
    (project.path / "results" / name).mkdir(parents=True)

    result = run(project, ONE_CELL)

    assert result.ret == 12
    path = project.path / "results" / name
    said = [line for line in result.outlines if line.startswith("perfsuite: cannot")]
    assert len(said) == 1
    assert str(path) in said[0]
    assert "Is a directory" in said[0]
    result.stdout.no_fnmatch_line("written to *")


@pytest.mark.slow
def test_collecting_benchmarks_imports_no_torch(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent.parent
    script = (
        "import sys, pytest\n"
        f"code = pytest.main(['--collect-only', '-q', {str(root / 'benchmarks')!r},"
        f" '--rootdir={root}', '-p', 'no:cacheprovider'])\n"
        "assert code == 0\n"
        "assert not {'torch', 'numpy', 'torchvision'} & set(sys.modules)\n"
    )

    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, capture_output=True)


def test_the_session_starts_its_record_anew(project: pytest.Pytester) -> None:
    run(project, ONE_CELL)
    run(project, ONE_CELL)

    assert len(lines_of(project)) == 1
