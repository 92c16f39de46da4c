"""A user's step and loop through an inner pytest session: real ranks, records, arguments."""

from __future__ import annotations

import json

# As in test_hooks: torch can be imported only once per process.
import multiprocessing.forkserver  # noqa: F401
import subprocess
import sys
from typing import Any

import pytest
import torch  # noqa: F401
from command_line import call_verb
from json_schemas import assert_results_valid

TRAINING = """
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import perfsuite


    class Points(torch.utils.data.Dataset):
        def __len__(self):
            return 10_000

        def __getitem__(self, index):
            with perfsuite.stage("load"):  # in a worker process nobody measures
                return torch.full((4,), float(index % 7))


    def steps(num_workers=0):
        model = torch.nn.Linear(4, 2)
        if dist.is_initialized():
            model = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = iter(torch.utils.data.DataLoader(Points(), 8, num_workers=num_workers))

        def step():
            batch = next(loader)
            with perfsuite.stage("forward"):
                loss = model(batch).square().mean()
            with perfsuite.stage("backward"):
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            return loss

        return step


    def train():
        seen = {name: os.environ.get(name) for name in (
            "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID")}
        assert not dist.is_initialized()
        if seen["WORLD_SIZE"] is None:
            assert set(seen.values()) == {None}
        else:
            assert seen == {"RANK": seen["RANK"], "LOCAL_RANK": seen["RANK"], "WORLD_SIZE": "2",
                            "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "perfsuite"}
            assert int(os.environ["MASTER_PORT"]) > 0
            dist.init_process_group("gloo")
            assert str(dist.get_rank()) == seen["RANK"]
        step = steps(num_workers=1)
        try:
            for number in range(1_000):
                loss = step()
                if number < 4 or seen["RANK"] != "1":  # not all ranks tell as much
                    perfsuite.log_loss(loss)
        finally:
            print("ended after", number + 1)
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with a training of its own."""
    pytester.makepyfile(training=TRAINING)
    pytester.makeini("[pytest]\nperf_device = cpu\nperf_timeout = 60\npythonpath = .\n")
    return pytester


def run(project: pytest.Pytester, test: str, *arguments: str) -> pytest.RunResult:
    project.makepyfile(test_inner=test)
    return project.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def benchmarks_of(project: pytest.Pytester) -> dict[str, Any]:
    assert_results_valid(project.path / "results")
    found = json.loads((project.path / "results" / "run.json").read_text())["benchmarks"]
    return {one["name"]: one for one in found}


def test_a_step_whose_data_has_ended_has_no_time(project: pytest.Pytester) -> None:
    test = """
        import torch

        def steps(batches, every=1, lr=0.01):
            model = torch.nn.Linear(4, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=lr)
            loss, num_taken = None, 0

            def step():
                nonlocal loss, num_taken
                for batch in batches:
                    loss = model(batch).square().mean()
                    loss.backward()
                    num_taken += 1
                    if num_taken % every == 0:
                        optimizer.step()
                        optimizer.zero_grad()
                    break
                return loss

            return step

        def ended():
            return steps(iter([torch.full((8, 4), float(number)) for number in range(1, 6)]))

        def accumulating():
            return steps([torch.ones(8, 4)], every=12)

        def still():
            return steps([torch.ones(8, 4)], lr=0.0)

        def silent():
            step = steps([torch.ones(8, 4)])
            return lambda: step() and None

        def ended_silent():
            step = ended()
            return lambda: step() and None

        def test_ended(step_benchmark):
            step_benchmark(ended, rounds=2, iterations=4)

        def test_ended_silent(step_benchmark):
            step_benchmark(ended_silent, rounds=2, iterations=4)

        def test_accumulating(step_benchmark):
            step_benchmark(accumulating, rounds=2, iterations=4)

        def test_still(step_benchmark):
            step_benchmark(still, rounds=2, iterations=4)

        def test_silent(step_benchmark):
            assert not step_benchmark(silent, rounds=2, iterations=4).losses_are_finite
    """

    result = run(project, test)

    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            "WorkloadError: ended: after step 5 of * no optimizer stepped, the loss stayed *, "
            "so what is timed trains nothing; does its data end? begin it again",
            "WorkloadError: ended_silent: after step 5 of * no optimizer stepped, so what is timed "
            "trains nothing; does its data end? begin it again",
            "NO LOSS *::test_silent: its step returns none; return it, or call perfsuite.log_loss",
        ]
    )
    (with_loss,) = [line for line in result.outlines if line.startswith("NO LOSS")]
    assert "test_silent" in with_loss


def test_a_step_whose_optimizer_never_steps_has_no_time(
    project: pytest.Pytester,
) -> None:
    test = """
        import torch
        import perfsuite

        class ByData(torch.optim.Optimizer):
            def step(self):
                for weight in self.param_groups[0]["params"]:
                    weight.data.sub_(0.01 * weight.grad.data)  # no version of the weight moves

        def steps(takes, compiles=False, by_data=False):
            model = torch.nn.Linear(4, 2)
            kind = ByData if by_data else torch.optim.SGD
            optimizer = kind(model.parameters(), {"lr": 0.01} if by_data else 0.01)
            update = torch.compile(optimizer.step) if compiles else optimizer.step

            def step():
                loss = model(torch.rand(8, 4)).square().mean()  # another loss each time
                loss.backward()
                if takes:
                    update()
                optimizer.zero_grad()
                return loss

            return perfsuite.Step(step, model, optimizer)

        def test_never(step_benchmark):
            step_benchmark(lambda: steps(False), rounds=40, iterations=8)

        def test_always(step_benchmark):
            step_benchmark(lambda: steps(True), rounds=40, iterations=8)

        def test_accumulating(step_benchmark):
            step_benchmark(lambda: steps(False), rounds=2, iterations=4)  # so far

        def test_compiled(step_benchmark):
            step_benchmark(lambda: steps(True, compiles=True), rounds=40, iterations=8)

        def test_by_data(step_benchmark):
            step_benchmark(lambda: steps(True, by_data=True), rounds=40, iterations=8)
    """

    result = run(project, test)

    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        [
            "WorkloadError: *: in * steps Step.optimizer has not stepped, so what is timed trains "
            "nothing",
        ]
    )


def test_what_a_step_computes_in_threads_of_its_own_has_no_count(
    project: pytest.Pytester,
) -> None:
    test = """
        import threading
        from concurrent.futures import ThreadPoolExecutor

        from training import steps

        def build():
            step, pool = steps(), ThreadPoolExecutor(1)
            return lambda: pool.submit(step).result()

        def train():
            import torch
            model = torch.nn.Linear(8, 8)
            update, pool = torch.optim.SGD(model.parameters(), lr=0.1), ThreadPoolExecutor(1)
            while True:
                pool.submit(model, torch.ones(4, 8)).result().sum().backward()
                update.step()

        def check(outcome):
            counts, reason = outcome.record.counts, outcome.missing["ops"]
            assert reason == "it computes in threads of its own, which cannot be watched"
            assert counts.ops is counts.flops is counts.collectives is None
            assert outcome.record.memory is None

        def test_step(step_benchmark):
            check(step_benchmark(build, rounds=2, iterations=2))

        def test_loop(loop_benchmark):
            check(loop_benchmark(train, steps=10, warmup=3))
    """

    result = run(project, test)

    assert result.ret == 0, result.stdout.str()


def test_steps_and_loops_are_cells_like_others(project: pytest.Pytester) -> None:
    test = """
        import perfsuite
        from training import steps, train

        def build_alone():
            return perfsuite.Step(steps())

        def test_step(step_benchmark):
            outcome = step_benchmark(
                build_alone, rounds=3, iterations=2, samples_per_step=8, tokens_per_step=32
            )
            assert outcome.losses_are_finite

        def test_step_of_two(step_benchmark):
            step_benchmark(steps, ranks=2, rounds=3, iterations=2)

        def test_loop(loop_benchmark):
            loop_benchmark(train, steps=20, warmup=3, samples_per_step=8)

        def test_loop_of_two(loop_benchmark):
            loop_benchmark(train, ranks=2, steps=20, warmup=3, optimizer="SGD")
    """

    result = run(project, test, "--capture=no")

    assert result.ret == 0, result.stdout.str()
    assert "ended after 25" in result.stdout.str()  # 3, 20, and two that are counted
    records = {name: one["extra_info"]["perfsuite"] for name, one in benchmarks_of(project).items()}
    found = {
        name: (one["workload"], one["world_size"], one["counts"]["collectives"])
        for name, one in records.items()
    }
    assert found == {
        "test_step": ("build_alone", 1, 1),
        "test_step_of_two": ("steps", 2, 1),
        "test_loop": ("train", 1, 0),
        "test_loop_of_two": ("train", 2, 1),
    }
    for name, record in records.items():
        assert record["recipe"] is None
        assert (record["numerics"] is None) == name.startswith("test_loop")
        stages = {stage for stage, seconds in record["stages_s"].items() if seconds is not None}
        has_load = name.startswith("test_step")  # whose loader has no process of its own
        assert stages == {"forward", "backward", "other"} | ({"load"} if has_load else set())
        assert record["memory"]["peak_bytes"] > record["counts"]["saved_activation_bytes"] > 0
        assert len(record["losses"]) == (4 if name == "test_loop_of_two" else 10)
    # One seed: a step and a loop compute the same.
    assert records["test_step"]["losses"] == records["test_loop"]["losses"]
    result.stdout.fnmatch_lines(["*workload * tokens/s *", "*build_alone * not exercised *"])
    run_file = str(project.path / "results" / "run.json")
    assert call_verb("report", run_file, "--html", "page", "--markdown", "cells.md") == 0
    assert "tokens/s" in (project.path / "cells.md").read_text()
    times = benchmarks_of(project)["test_step"]["stats"]
    assert len(times["data"]) == 3
    assert records["test_step"]["tokens_per_s"] == 32 / times["median"]
    assert records["test_step"]["samples_per_s"] == 8 / times["median"]


ARGUMENTS = [
    ("step", "ranks=0", "ranks is 0; use a whole number from 1"),
    ("step", "ranks='2'", "ranks is '2'; use a whole number from 1"),
    ("step", "rounds=0", "rounds is 0; use None or a whole number from 1"),
    ("step", "iterations=1.5", "iterations is 1.5; use None or a whole number from 1"),
    ("step", "samples_per_step=0", "samples_per_step is 0; use None or a whole number from 1"),
    ("step", "tokens_per_step=-1", "tokens_per_step is -1; use None or a whole number from 1"),
    ("step", "reference=3", "reference is 3; use a function without arguments"),
    (
        "step",
        "reference=lambda config: None",
        "reference cannot be called without arguments (missing a required argument: 'config'); use "
        "a function without arguments",
    ),
    (
        "step",
        "precision='fp8'",
        "precision is 'fp8'; use one of fp64, fp32, bf16, amp-bf16, amp-fp16",
    ),
    ("loop", "steps=1", "steps is 1; use a whole number from 2"),
    ("loop", "steps=None", "steps is None; use a whole number from 2"),
    ("loop", "steps=9, warmup=1", "warmup is 1; use a whole number from 2"),
    ("loop", "steps=9, ranks=True", "ranks is True; use a whole number from 1"),
    (
        "loop",
        "steps=9, optimizer=int",
        "optimizer is <class 'int'>; use the name of its class, such as 'AdamW'",
    ),
    (
        "loop",
        "steps=9, samples_per_step='8'",
        "samples_per_step is '8'; use None or a whole number from 1",
    ),
]
FUNCTIONS = [
    ("step", "3", "build_step is 3; use a function without arguments"),
    ("loop", "'train.py'", "train is 'train.py'; use a function without arguments"),
    (
        "loop",
        "lambda config: None",
        "train cannot be called without arguments (missing a required argument: 'config'); use a "
        "function without arguments",
    ),
]


def test_a_wrong_argument_fails_its_own_cell_in_one_sentence(project: pytest.Pytester) -> None:
    calls = [(kind, f"print, {arguments}", error) for kind, arguments, error in ARGUMENTS]
    calls += [
        (kind, f"{function}{', steps=9' if kind == 'loop' else ''}", error)
        for kind, function, error in FUNCTIONS
    ]
    tests = "\n".join(
        f"def test_{number}({kind}_benchmark): {kind}_benchmark({call})"
        for number, (kind, call, _) in enumerate(calls)
    )

    result = run(project, tests)

    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*Error: {error}" for *_, error in calls])


def test_loops_that_go_wrong_fail_in_one_sentence(project: pytest.Pytester) -> None:
    test = """
        import argparse
        import os
        import signal
        import sys
        import threading
        import time
        import pytest
        import torch.distributed as dist
        from training import steps

        def never():
            steps()

        def short():
            step = steps()
            for _ in range(4):
                step()

        def broken():
            step = steps()
            for number in range(50):
                if number == 7:
                    raise ZeroDivisionError("no more data")
                step()

        def uneven():
            step = steps()
            for _ in range(8 if os.environ["RANK"] == "1" else 50):
                step()

        def ten():
            argparse.ArgumentParser().parse_args()  # as a script without arguments
            step = steps()
            for _ in range(10):
                step()

        def deaf():
            step = steps()
            while True:
                try:
                    step()
                except:
                    pass

        def endless():
            while True:
                time.sleep(0.01)

        def leaving():
            steps()()
            sys.exit("no GPU")

        def asking():
            parser = argparse.ArgumentParser()
            parser.add_argument("--epochs", required=True)
            parser.parse_args()

        def exiting():
            step = steps()
            for number in range(50):
                if number == 3:
                    sys.exit(0)
                step()

        def build_and_exit():
            sys.exit(0)

        def exit_in_step():
            return lambda: sys.exit(2)

        def late():
            dist.init_process_group("gloo")
            step = steps()
            for number in range(50):
                if number == 7 and os.environ["RANK"] == "1":
                    threading.Event().wait()
                step()

        def killed():
            dist.init_process_group("gloo")
            step = steps()
            for number in range(50):
                if number == 7 and os.environ["RANK"] == "1":
                    os.kill(os.getpid(), signal.SIGKILL)
                step()

        @pytest.mark.parametrize("build_step", [build_and_exit, exit_in_step])
        def test_step(step_benchmark, build_step):
            step_benchmark(build_step)

        ended = [leaving, asking, exiting]

        @pytest.mark.parametrize("train", [never, short, broken, *ended, deaf, endless])
        def test_loop(loop_benchmark, train):
            loop_benchmark(train, steps=20, warmup=3)

        @pytest.mark.parametrize("train", [uneven, killed, late])
        def test_ranks(loop_benchmark, train):
            loop_benchmark(train, ranks=2, steps=20, warmup=3)

        def test_last(loop_benchmark):
            outcome = loop_benchmark(ten, steps=6, warmup=3)
            assert outcome.record.memory is None
            assert outcome.missing["flops"] == (
                "the loop ended by itself after 10 steps, before the two that are counted"
            )
    """

    result = run(project, test, "--perf-timeout=6")

    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "WorkloadError: build_and_exit ended by sys.exit(0) at *test_inner.py:*; have it *",
            "WorkloadError: the step of exit_in_step ended by sys.exit(2) at *test_inner.py:*; have"
            " it return",
            "WorkloadError: never: no torch optimizer stepped in the loop; call "
            "perfsuite.step_done() at the end of each step",
            "WorkloadError: short: the loop ended by itself after 4 steps, too few for two rounds "
            "after 3 to warm up; let it take more, also when resumed, or ask for fewer (warmup=, "
            "steps=)",
            "RankFailureError: rank 0 of 1 raised ZeroDivisionError: no more data, in phase *",
            "WorkloadError: leaving: the loop ended by sys.exit('no GPU') at *test_inner.py:*",
            "WorkloadError: asking: the loop ended by sys.exit(2) at *argparse.py:* for its "
            "arguments: sys.argv has none here; set it, or have a function take them",
            "WorkloadError: exiting: the loop ended by sys.exit(0) at *test_inner.py:* after 3 "
            "steps, too few for two rounds after 3 to warm up; let it take more, also when "
            "resumed, or ask for fewer (warmup=, steps=)",
            "RankFailureError: rank 0 of 1 made no progress for 6 s (--perf-timeout), in phase "
            "'stop by perfsuite.StopLoop (does a bare except catch it[?])', step *",
            "*in deaf*",
            "RankFailureError: rank 0 of 1 made no progress for 6 s (--perf-timeout), in phase "
            "'first step'; a step ends where a torch optimizer steps or perfsuite.step_done() is "
            "called",
            "*in endless*",
            "*uneven: when one rank had taken * steps, another had taken only 8 and waited or "
            "ended; give all ranks equally many steps*",
            "RankFailureError: rank 1 of 2 was killed by SIGKILL (by a user, or by the kernel "
            "because memory ran out), in phase *",
            "RankFailureError: rank 1 of 2 made no progress for 6 s (--perf-timeout), in phase *",
            "*in late*",
            "NO COUNTS *::test_last: the loop ended by itself after 10 steps, before the two that "
            "are counted",
        ]
    )
    result.assert_outcomes(failed=13, passed=1)


def test_ranks_that_run_different_collectives_are_told_so(project: pytest.Pytester) -> None:
    test = """
        import contextlib
        import os

        import torch
        import torch.distributed as dist

        def build():
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def step():
                optimizer.zero_grad()
                for is_last in (False, True)[: 1 if dist.get_rank() else 2]:  # one lacks a batch
                    with contextlib.nullcontext() if is_last else model.no_sync():
                        model(torch.randn(4, 8)).square().mean().backward()
                optimizer.step()

            return step

        def train():
            dist.init_process_group("gloo")
            step = build()
            for _ in range(50):
                step()

        def test_step(step_benchmark):
            step_benchmark(build, ranks=2)

        def test_loop(loop_benchmark):
            loop_benchmark(train, ranks=2, steps=20, warmup=3)
    """

    result = run(project, test, "--perf-collective-timeout=3")

    result.assert_outcomes(failed=2)
    different = "; the ranks ran different collectives, as where one has fewer backward passes"
    result.stdout.fnmatch_lines(
        [
            "RankFailureError: rank ? of 2 was killed by SIGABRT, in phase 'measure', step "
            f"*{different}",
            "RankFailureError: rank 0 of 2 did not come to a collective within 3 s "
            "(--perf-collective-timeout): it is in phase 'first step', and rank 1 waited in "
            f"phase 'measure', step *{different}",
        ]
    )


def test_the_names_for_user_code_need_nothing_but_python() -> None:
    script = (
        "import sys; before = set(sys.modules); import perfsuite\n"
        "perfsuite.stage, perfsuite.step_done, perfsuite.log_loss, perfsuite.Step, "
        "perfsuite.StopLoop\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - sys.stdlib_module_names))"
    )

    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (ended.stdout, ended.stderr) == ("['perfsuite']\n", "")
