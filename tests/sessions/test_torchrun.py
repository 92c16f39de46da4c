"""Sessions of several ranks: by torchrun's agents on loopback, and by its variables alone."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from json_schemas import assert_results_valid

from perfsuite.plugin.session.torchrun import first_difference
from perfsuite.records.cell import CellLine, decode_line

ROOT = Path(__file__).parent.parent.parent
# Every rank leaves its exit code; torchrun itself ends in 1 whatever failed.
CONFTEST = """
    import os
    from pathlib import Path

    def pytest_unconfigure(config):
        session = config.pluginmanager.get_plugin("session")
        if session is not None:
            folder = Path(config.rootpath, "exits")
            folder.mkdir(exist_ok=True)
            Path(folder, os.environ["RANK"]).write_text(str(int(session.exitstatus)))
"""
WORKLOADS = """
    import os
    import signal
    import time
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import TensorDataset

    import perfsuite

    def make(name, build_model=lambda: nn.Linear(4, 3)):
        return perfsuite.Workload(
            name=name,
            build_model=build_model,
            build_dataset=lambda split: TensorDataset(torch.randn(64, 4), torch.arange(64) % 3),
            loss=nn.functional.cross_entropy,
            build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            micro_batch_size=8,
        )

    POINTS = make("points")

    def die_on_rank_1():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.Linear(4, 3)

    def hang_on_rank_1():
        if dist.get_rank() == 1:
            time.sleep(600)
        return nn.Linear(4, 3)

    def leave_a_mark():
        with Path("builds").open("a") as file:
            file.write("built\\n")
        return nn.Linear(4, 3)
"""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What the ranks of one launch left.

    Attributes:
        exits: Exit codes by rank.
        outputs: Of each process that was started.
        lines: Of cells.jsonl, by test.
    """

    exits: list[int]
    outputs: list[str]
    lines: dict[str, CellLine]


def start(folder: Path, command: Sequence[str], **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(folder: Path, processes: Sequence[subprocess.Popen[str]]) -> Ended:
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    cells = folder / "results" / "cells.jsonl"
    lines = (
        [decode_line(data) for data in cells.read_bytes().splitlines()] if cells.exists() else []
    )
    return Ended(
        exits=[int(path.read_text()) for path in sorted((folder / "exits").iterdir())],
        outputs=outputs,
        lines={line.fullname.partition("::")[2]: line for line in lines},
    )


def run_two_agents(folder: Path, *arguments: str, **variables: str) -> Ended:
    """Start one rank under each of two agents, as two hosts would have them."""
    port = free_port()
    agents = [
        [
            "torch.distributed.run",
            "--nnodes=2",
            "--nproc-per-node=1",
            f"--node-rank={node}",
            "--master-addr=127.0.0.1",
            f"--master-port={port}",
            *arguments,
        ]
        for node in (0, 1)
    ]
    return wait_for(folder, [start(folder, agent, **variables) for agent in agents])


def write_project(folder: Path, test: str) -> None:
    files = {"conftest.py": CONFTEST, "workloads.py": WORKLOADS, "test_inner.py": test}
    for name, text in files.items():
        (folder / name).write_text(textwrap.dedent(text))
    (folder / "pytest.ini").write_text(
        "[pytest]\nperf_device = cpu\nperf_timeout = 20\nperf_collective_timeout = 10\n"
        "perf_rounds = 3\npythonpath = .\naddopts = -p no:cacheprovider\n"
    )


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


TWO_AGENTS = """
    import os

    import pytest
    from perfsuite import Recipe
    from workloads import POINTS, die_on_rank_1, make

    def test_two_ranks(train_benchmark):
        outcome = train_benchmark(POINTS, Recipe(parallel="ddp:2"))
        assert outcome.record.world_size == 2

    def test_one_rank(train_benchmark):
        outcome = train_benchmark(POINTS, Recipe(), iterations=2)
        assert outcome.record.world_size == 1

    def test_a_loop(loop_benchmark):
        def train():
            import torch
            import torch.distributed as dist

            dist.init_process_group("gloo")
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            while True:
                model(torch.ones(4)).sum().backward()
                optimizer.step()

        outcome = loop_benchmark(train, ranks=2, steps=4, warmup=2)
        assert outcome.record.counts.collectives == 1

    def test_too_many_ranks(train_benchmark):
        train_benchmark(POINTS, Recipe(parallel="ddp:4"))

    def test_a_killed_rank(train_benchmark):
        train_benchmark(make("deadly", die_on_rank_1), Recipe(parallel="ddp:2"))

    def test_a_mistake_of_rank_1(train_benchmark):
        name = "points" if os.environ["RANK"] == "1" else POINTS
        train_benchmark(name, Recipe(parallel="ddp:2"))

    def test_rank_1_disagrees(all_reduce_benchmark):
        all_reduce_benchmark("ddp:2", 1024)
        assert os.environ["RANK"] == "0"

    @pytest.mark.skipif(os.environ["RANK"] == "1", reason="no such hardware")
    def test_rank_1_skips_in_setup(all_reduce_benchmark):
        all_reduce_benchmark("ddp:2", 1024)

    def test_rank_0_skips_in_the_call(all_reduce_benchmark):
        if os.environ["RANK"] == "0":
            pytest.skip("not today")
        all_reduce_benchmark("ddp:2", 1024)

    def test_rank_1_skips_in_the_call(all_reduce_benchmark):
        if os.environ["RANK"] == "1":
            pytest.skip("not tomorrow")
        all_reduce_benchmark("ddp:2", 1024)

    def test_a_function(rank_group):
        import torch.distributed as dist

        assert rank_group(2, lambda: dist.get_rank()) == [0, 1]

    def test_rank_1_has_a_subtest_more_that_fails(all_reduce_benchmark, subtests):
        all_reduce_benchmark("ddp:2", 1024)
        if os.environ["RANK"] == "1":
            with subtests.test("here alone"):
                raise AssertionError("too warm")

    def test_the_last(all_reduce_benchmark):
        outcome = all_reduce_benchmark("ddp:2", 1024)
        assert outcome.record.counts.collectives == 1
"""


@pytest.fixture(scope="module")
def two_agents(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A launch by two agents with cells that fail."""
    folder = tmp_path_factory.mktemp("two_agents")
    write_project(folder, TWO_AGENTS)
    return run_two_agents(folder, "-m", "pytest", "-rs", "--junitxml=junit.xml")


def test_cells_run_on_the_ranks_of_two_agents(two_agents: Ended) -> None:
    lines = two_agents.lines

    assert {name: line.outcome for name, line in lines.items()} == {
        "test_two_ranks": "passed",
        "test_one_rank": "passed",
        "test_a_loop": "passed",
        "test_too_many_ranks": "skipped",
        "test_a_killed_rank": "failed",
        "test_a_mistake_of_rank_1": "failed",
        "test_rank_1_disagrees": "failed",
        "test_rank_0_skips_in_the_call": "skipped",
        "test_rank_1_skips_in_the_call": "skipped",
        "test_rank_1_has_a_subtest_more_that_fails": "failed",
        "test_the_last": "passed",
    }, two_agents.outputs[0]
    record = lines["test_two_ranks"].perfsuite
    assert record is not None
    assert record.numerics is not None
    assert record.numerics.status == "equivalent"
    assert len(lines["test_two_ranks"].step_times_s) == 3


def test_a_cell_with_too_many_ranks_is_not_exercised(two_agents: Ended) -> None:
    assert two_agents.lines["test_too_many_ranks"].reason == (
        "parallel 'ddp:4' needs 4 ranks, and torchrun started 2"
    )


def test_a_failure_on_one_rank_is_the_same_failure_on_all(two_agents: Ended) -> None:
    lines = two_agents.lines
    reasons = {name: line.reason or "" for name, line in lines.items()}

    assert reasons["test_a_killed_rank"].startswith(
        "RankFailureError: rank 1 of 2 was killed by SIGKILL (by a user, or by the kernel "
        "because memory ran out), in phase 'build'"
    )
    assert reasons["test_a_mistake_of_rank_1"].startswith(
        "rank 1 of 2 failed: WorkloadError: workload 'points'"
    )
    assert reasons["test_rank_1_disagrees"].startswith("rank 1 of 2 failed: ")
    assert "assert '1' == '0'" in reasons["test_rank_1_disagrees"]
    of_subtest = reasons["test_rank_1_has_a_subtest_more_that_fails"]
    assert of_subtest.startswith("rank 1 of 2 failed: a subtest failed: ")
    assert "too warm" in of_subtest


def test_what_one_rank_skips_is_skipped_on_all(two_agents: Ended) -> None:
    reasons = re.findall(r"SKIPPED \[1\] test_inner.py:\d+: (.*)", two_agents.outputs[0])

    assert reasons == [
        "NOT EXERCISED: parallel 'ddp:4' needs 4 ranks, and torchrun started 2",
        "rank 1 of 2 skipped: no such hardware",
        "rank 0 of 2 skipped: not today",
        "rank 1 of 2 skipped: not tomorrow",
    ]
    assert two_agents.lines["test_rank_1_skips_in_the_call"].reason == (
        "rank 1 of 2 skipped: not tomorrow"
    )


def test_rank_0_alone_prints(two_agents: Ended) -> None:
    first, second = two_agents.outputs

    assert "4 failed, 5 passed, 4 skipped" in first
    assert "torchrun: 2 ranks, meeting at 127.0.0.1:" in first
    assert "test_inner.py" not in second
    assert "pytest" not in second.partition("torch.distributed.elastic")[0]


def test_all_ranks_end_with_the_same_exit_code(two_agents: Ended) -> None:
    assert two_agents.exits == [1, 1]


RESTARTED = """
    import os
    import signal

    from perfsuite import Recipe
    from workloads import POINTS, leave_a_mark, make

    def test_finished(train_benchmark):
        train_benchmark(make("marked", leave_a_mark), Recipe(parallel="ddp:2"))

    def test_in_which_rank_1_dies_once(all_reduce_benchmark):
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        all_reduce_benchmark("ddp:2", 1024)
"""


def test_a_restart_goes_on_after_the_last_finished_cell(tmp_path: Path) -> None:
    write_project(tmp_path, RESTARTED)

    ended = wait_for(
        tmp_path,
        [
            start(
                tmp_path,
                [
                    "torch.distributed.run",
                    "--nproc-per-node=2",
                    "--max-restarts=1",
                    f"--master-port={free_port()}",
                    "-m",
                    "pytest",
                    "--perf-numerics=off",
                ],
            )
        ],
    )

    assert "2 passed" in ended.outputs[0], ended.outputs[0]
    assert "restart 1" in ended.outputs[0]
    assert ended.exits == [0, 0]
    assert (tmp_path / "builds").read_text() == "built\n" * 2  # once on each rank
    assert_results_valid(tmp_path / "results")
    run = json.loads((tmp_path / "results" / "run.json").read_text())
    assert {
        benchmark["name"]: tuple(benchmark["stats"]["data"]) for benchmark in run["benchmarks"]
    } == {name: line.step_times_s for name, line in ended.lines.items()}
    assert len(ended.lines) == 2


KILLED_OR_HUNG = """
    import os
    import signal

    from perfsuite import Recipe
    from workloads import hang_on_rank_1, make

    def test_finished(all_reduce_benchmark):
        all_reduce_benchmark("ddp:2", 1024)

    def test_in_which_a_pytest_dies_once(all_reduce_benchmark):
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first and os.environ["RANK"] == os.environ["KILLED"]:
            os.kill(os.getpid(), signal.SIGKILL)
        all_reduce_benchmark("ddp:2", 2048)

    def test_a_hung_rank(train_benchmark):
        train_benchmark(make("hung", hang_on_rank_1), Recipe(parallel="ddp:2"))

    def test_the_last(all_reduce_benchmark):
        all_reduce_benchmark("ddp:2", 4096)
"""


@pytest.mark.soak
@pytest.mark.parametrize("killed", ["0", "1"])
def test_a_killed_pytest_on_another_host_is_noticed_and_all_begin_again(
    tmp_path: Path, killed: str
) -> None:
    write_project(tmp_path, KILLED_OR_HUNG)

    ended = run_two_agents(
        tmp_path, "--max-restarts=1", "-m", "pytest", "--perf-numerics=off", KILLED=killed
    )

    assert ended.exits == [1, 1]
    assert {name: line.outcome for name, line in ended.lines.items()} == {
        "test_finished": "passed",
        "test_in_which_a_pytest_dies_once": "passed",
        "test_a_hung_rank": "failed",
        "test_the_last": "passed",
    }, ended.outputs[0]
    reason = ended.lines["test_a_hung_rank"].reason or ""
    assert reason.startswith(
        "RankFailureError: rank 1 of 2 did not come to a collective within 10 s "
        "(--perf-collective-timeout): it is in phase 'build', and rank 0 waited in phase 'build'"
    )
    assert "in hang_on_rank_1" in reason


def test_ranks_that_collect_different_tests_name_the_first_and_end_in_4(tmp_path: Path) -> None:
    write_project(
        tmp_path,
        """
        import os
        import pytest

        @pytest.mark.parametrize("size", [1, 2 + int(os.environ["RANK"]), 5])
        def test_cell(train_benchmark, size):
            raise AssertionError("no cell may begin")
        """,
    )
    port = str(free_port())

    ended = wait_for(
        tmp_path,
        [
            start(
                tmp_path,
                ["pytest"],
                RANK=rank,
                WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            )
            for rank in ("0", "1")
        ],
    )

    assert ended.exits == [4, 4]
    assert (
        "ERROR: the ranks collected different tests: number 2 is 'test_inner.py::test_cell[2]' on "
        "rank 0 and 'test_inner.py::test_cell[3]' on rank 1; give all ranks the same files, "
        "options and pytest plugins\n"
    ) in ended.outputs[0]
    assert ended.outputs[1] == ""


def test_a_rank_that_waits_for_the_others_says_so(tmp_path: Path) -> None:
    write_project(tmp_path, "def test_nothing(): pass")
    port = str(free_port())
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    first = start(tmp_path, ["pytest"], RANK="0", **place)
    assert first.stdout is not None
    said = first.stdout.readline()
    while not said.endswith(f"torchrun: 2 ranks, meeting at 127.0.0.1:{port}\n"):
        line = first.stdout.readline()
        assert line, said
        said += line

    # Only now is there a rank that the first one can meet.
    ended = wait_for(tmp_path, [first, start(tmp_path, ["pytest"], RANK="1", **place)])

    assert ended.exits == [0, 0]
    assert "1 passed" in ended.outputs[0]


def test_the_first_difference_over_all_ranks_is_named() -> None:
    text = first_difference([("a", "b"), ("a", "b", "c"), ("a", "d")])

    assert text == (
        "the ranks collected different tests: number 2 is 'b' on rank 0 and 'd' on rank 2; give "
        "all ranks the same files, options and pytest plugins"
    )


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "--benchmark-compare",
            "--benchmark-compare is the gate, which starts the ranks of both sides on one machine, "
            "and torchrun has started this session; gate without torchrun, or add "
            "--perf-gate=off",
        ),
        (
            "-n2",
            "torchrun has started one pytest for each rank, and xdist's -n would start more of "
            "each; use -n0, or leave it out",
        ),
    ],
)
def test_what_has_no_meaning_with_several_ranks_is_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, argument: str, message: str
) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)

    result = pytester.runpytest_inprocess(argument, "--perf-gate=on")

    assert result.ret == 4
    assert result.stderr.lines == [f"ERROR: {message}", ""]


def test_a_launch_of_a_gate_is_alone_whatever_a_torchrun_left_in_the_shell(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}
    arm = {"PERFSUITE_ARM_CHANNEL": "nowhere", "PERFSUITE_ARM_NAME": "base"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    in_torchrun = pytester.runpytest_inprocess("--collect-only", "--perf-seed=1")
    for name, value in arm.items():
        monkeypatch.setenv(name, value)

    in_launch = pytester.runpytest_inprocess("--collect-only", "--perf-seed=1")

    in_torchrun.stdout.fnmatch_lines(["torchrun: 1 ranks, meeting at here:29500"])
    in_launch.stdout.no_fnmatch_line("torchrun:*")
    assert in_launch.ret == 0


def test_under_torchrun_a_session_that_is_not_ours_prints_and_writes_on_every_rank(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)

    plain = pytester.runpytest_subprocess("--junitxml=plain.xml")
    ours = pytester.runpytest_subprocess("--junitxml=ours.xml", "--perf-seed=1", "--collect-only")

    assert [plain.ret, ours.ret] == [0, 0]
    plain.stdout.fnmatch_lines(["=* test session starts *=", "collected 1 item", "=* 1 passed *="])
    plain.stdout.no_fnmatch_line("torchrun:*")
    assert (ours.outlines, ours.errlines) == ([], [])
    assert (pytester.path / "plain.xml").exists()
    assert not (pytester.path / "ours.xml").exists()
