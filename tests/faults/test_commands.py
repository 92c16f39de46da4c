"""A user's command through an inner pytest session: real launchers, records, faults."""

from __future__ import annotations

import json

# As in test_hooks: torch can be imported only once per process.
import multiprocessing.forkserver  # noqa: F401
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch  # noqa: F401
from json_schemas import assert_results_valid

from perfsuite.ranks.command.group import CommandGroup
from perfsuite.ranks.group import RankGroup
from perfsuite.ranks.messages import Reply

# Trains as it is told by its arguments, and knows nothing of perfsuite.
TRAIN = """
    import os
    import signal
    import sys
    import threading
    import time
    import traceback

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def end_at_border():
        main = threading.main_thread().ident
        while True:
            frames = traceback.walk_stack(sys._current_frames()[main])
            if any("perfsuite/worker/store" in frame.f_code.co_filename for frame, _ in frames):
                os.kill(os.getpid(), signal.SIGKILL if "kill" in what else signal.SIGSTOP)
            time.sleep(0.001)

    rank = int(os.environ.get("RANK", 0))
    what = sys.argv[1] if len(sys.argv) > 1 else "train"
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    if "RANK" in os.environ and what != "uneven-alone":
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if what == "ten-of-its-own":
        class Mine(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)

        optimizer = Mine(model.parameters(), lr=0.01)
    if what == "never":
        sys.exit()
    if what == "broken":
        print("no such file", file=sys.stderr)
        sys.exit(3)
    if what == "clock":
        time.perf_counter = time.process_time
    num_steps = {"ten": 10, "ten-of-its-own": 10, "endless": 10**9}.get(what, 1_000)
    if what.startswith("uneven") and rank == 1:
        num_steps = 8
    for number in range(num_steps):
        if number == 7 and what == "raise" and rank == 1:
            raise ZeroDivisionError("no more data")
        if number == 7 and what == "kill" and rank == int(os.environ.get("WORLD_SIZE", 1)) - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 7 and what == "stop" and rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        if number == 7 and what == "hang":
            time.sleep(600)
        loss = model(torch.ones(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if what.endswith("at-border") and number > 3:
            if rank == 1:
                time.sleep(0.3)  # the other waits for it at the border
            elif number == 7:
                threading.Thread(target=end_at_border, daemon=True).start()
        optimizer.step()
    print("ended after", number + 1)
    if what == "ten-and-fail":
        sys.exit(4)
"""
MARKED = """
    import perfsuite

    for number in range(1_000):
        with perfsuite.stage("forward"):
            sum(range(1_000))
        perfsuite.log_loss(float(number))
        perfsuite.step_done()
"""
# Rank 0 starts rank 1 itself, as Lightning does.
PAIR = """
    import os
    import subprocess
    import sys

    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    subprocess.Popen([sys.executable, "train.py"], env={**os.environ, "RANK": "1"})
    os.environ["RANK"] = "0"
    import train
"""
TORCHRUN = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node=2", "train.py"]


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with a script that trains."""
    pytester.makepyfile(train=TRAIN, marked=MARKED, pair=PAIR)
    pytester.mkdir("pkg").joinpath("job.py").write_text(
        "import runpy\nrunpy.run_path('train.py')\n"
    )
    (pytester.path / "run.sh").write_text(
        "#!/bin/sh\ncd .. && python -m torch.distributed.run --nproc-per-node=2 train.py\n"
    )
    (pytester.path / "run.sh").chmod(0o755)
    pytester.makeini("[pytest]\nperf_device = cpu\nperf_timeout = 60\n")
    return pytester


def run(
    project: pytest.Pytester, calls: dict[str, str], *arguments: str, before: str = ""
) -> pytest.RunResult:
    """Run a test for each call."""
    tests = "\n".join(
        f"def test_{name}(command_benchmark):\n    command_benchmark({call})"
        for name, call in calls.items()
    )
    project.makepyfile(test_inner=f"import sys\nTORCHRUN = {TORCHRUN!r}\n{before}\n{tests}")
    return project.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def records_of(project: pytest.Pytester) -> dict[str, Any]:
    assert_results_valid(project.path / "results")
    found = json.loads((project.path / "results" / "run.json").read_text())["benchmarks"]
    return {one["name"]: one["extra_info"]["perfsuite"] for one in found}


def assert_nothing_is_left() -> None:
    left = [one.cmdline() for one in psutil.Process().children(recursive=True)]
    assert not [words for words in left if "train.py" in " ".join(words)]


@pytest.fixture(autouse=True)
def python_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))


def test_a_command_is_a_cell_like_others_whatever_launches_it(project: pytest.Pytester) -> None:
    (project.path / "inner").mkdir()
    calls = {
        "torchrun": "TORCHRUN, steps=20, warmup=3, samples_per_step=8, optimizer='SGD'",
        "module": '["python", "-m", "pkg.job"], steps=20, warmup=3',
        "shell": '["./../run.sh"], steps=20, warmup=3, cwd="inner", name="ours"',
        "marked": '["python", "marked.py"], steps=20, warmup=3',
        "pair": '["python", "pair.py"], steps=20, warmup=3',
    }

    result = run(project, calls, "--capture=no")

    assert result.ret == 0, result.stdout.str()
    assert "ended after" not in result.stdout.str()  # it was ended, and said nothing
    assert "StopLoop" not in result.stdout.str()
    found = {
        name: (one["workload"], one["world_size"], one["counts"]["collectives"])
        for name, one in records_of(project).items()
    }
    assert found == {
        "test_torchrun": ("train", 2, 1),
        "test_module": ("pkg.job", 1, 0),
        "test_shell": ("ours", 2, 1),
        "test_marked": ("marked", 1, 0),
        "test_pair": ("pair", 2, 1),
    }
    for record in records_of(project).values():
        assert (record["recipe"], record["numerics"], record["device"]) == (None, None, "cpu")
    marked = records_of(project)["test_marked"]
    assert marked["losses"] == [float(number) for number in range(10)]
    assert marked["stages_s"]["forward"] > 0
    assert records_of(project)["test_torchrun"]["memory"]["peak_bytes"] > 0
    assert_nothing_is_left()


KILLED = "was killed by SIGKILL (by a user, or by the kernel because memory ran out), in phase"
FAULTS = {
    "not_found": (
        '["trane", "train.py"], steps=20',
        "SettingError: the command begins with 'trane', which is no program in {root} or on PATH; "
        "name one that can be run",
    ),
    "never": (
        '["python", "train.py", "never"], steps=20',
        "WorkloadError: train: the command ended with exit code 0, and no torch optimizer stepped "
        "in it; call perfsuite.step_done() at the end of each step",
    ),
    "without_hook": (
        '["python", "-I", "train.py", "ten"], steps=20',
        "WorkloadError: train: the command ended with exit code 0, and no process of it loaded "
        "torch.optim with perfsuite's hook; start Python without -I, -E and -S, with the "
        "PYTHONPATH that the command is given, and on this machine, outside of a container; or "
        "name what it logs (metrics=)",
    ),
    "broken": (
        '["python", "train.py", "broken"], steps=20',
        "WorkloadError: train: the command ended with exit code 3 before its first optimizer step: "
        "no such file",
    ),
    "no_module": (
        '["python", "-c", "import nothing"], steps=20, name="ours"',
        "WorkloadError: ours: the command ended with exit code 1 before its first optimizer step: "
        "ModuleNotFoundError: No module named 'nothing'",
    ),
    "clock": (
        '["python", "train.py", "clock"], steps=20',
        "WorkloadError: time.perf_counter, which times each step, is <built-in function "
        "process_time> here; let nothing replace it before the first step",
    ),
    "raise": (
        'TORCHRUN + ["raise"], steps=20, warmup=3',
        "RankFailureError: rank 1 of 2 raised ZeroDivisionError: no more data, in phase 'measure', "
        "step *",
    ),
    "killed": (
        'TORCHRUN + ["kill"], steps=20, warmup=3',
        f"RankFailureError: rank 1 of 2 {KILLED} 'measure', step *",
    ),
    "killed_at_a_border": (
        'TORCHRUN + ["kill-at-border"], steps=20, warmup=3',
        f"RankFailureError: rank 0 of 2 {KILLED} *, step *",
    ),
    "killed_in_a_shell": (
        '["sh", "-c", "python train.py kill; exit $?"], steps=20, warmup=3',
        f"RankFailureError: rank 0 of 1 {KILLED} 'measure', step 7",
    ),
    "fails_at_its_end": (
        '["python", "train.py", "ten-and-fail"], steps=1_200, warmup=3',
        "WorkloadError: train: the command ended with exit code 4 after 1000 steps: ended after "
        "1000",
    ),
    "super": (
        '["python", "train.py", "ten-of-its-own"], steps=20, warmup=9',
        "WorkloadError: train: the command ended by itself after 10 steps, too few for two rounds "
        "after 9 to warm up; let it take more, also when resumed, or ask for fewer (warmup=, "
        "steps=)",
    ),
    "daemon": (
        '["sh", "-c", "python train.py endless >/dev/null 2>&1 &"], steps=9, name="in-background"',
        "WorkloadError: in-background: the command ended with exit code 0 and left 1 process "
        "running (process *), ended by now; keep it in the foreground: in a shell script, end "
        "with 'wait'",
    ),
    "two_alone": (
        '["sh", "-c", "python train.py endless & python train.py endless & wait"], steps=10**6, '
        'name="two"',
        "WorkloadError: two: processes * and * both take steps as rank 0 of 1; start the ranks "
        "with torchrun, or set RANK and WORLD_SIZE in each",
    ),
    "uneven": (
        'TORCHRUN + ["uneven-alone"], steps=20, warmup=3',
        "*train: when one rank had taken * steps, another had taken only 8 and waited or ended; "
        "give all ranks equally many steps*",
    ),
}


def test_commands_that_go_wrong_fail_in_one_sentence_and_leave_nothing(
    project: pytest.Pytester,
) -> None:
    calls = {name: call for name, (call, _) in FAULTS.items()}
    calls["ten"] = '["python", "train.py", "ten"], steps=6, warmup=3'

    result = run(project, calls)

    assert result.ret == 1
    result.assert_outcomes(failed=len(FAULTS), passed=1)
    result.stdout.fnmatch_lines(
        [error.replace("{root}", str(project.path)) for _, error in FAULTS.values()]
    )
    assert "perfsuite/ranks" not in result.stdout.str()  # in a traceback of ours
    assert_nothing_is_left()


@pytest.fixture
def polls_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a command ends before its replies are read."""

    def poll_late(group: CommandGroup, timeout_s: float) -> list[Reply] | None:
        group._process.wait()
        return RankGroup.poll(group, timeout_s)

    monkeypatch.setattr(CommandGroup, "poll", poll_late)


def test_a_command_that_has_taken_its_steps_may_end_as_it_likes(
    project: pytest.Pytester, polls_late: None
) -> None:
    # As torch does where gloo's threads live longer than Python.
    project.makepyfile(aborts="import atexit, os\natexit.register(os.abort)\nimport train")
    calls = {"stopped": '["python", "aborts.py"], steps=20, warmup=3, name="stopped"'}

    result = run(project, calls)

    result.assert_outcomes(passed=1)
    assert records_of(project)["test_stopped"]["world_size"] == 1


_UNEVEN = (
    "WorkloadError: train: rank 1 ended by itself after * steps, and rank 0, which had taken *, "
    "went on; give all ranks equally many steps"
)
WAITING = {
    "hang": (
        '["python", "train.py", "hang"], steps=20, warmup=3',
        "RankFailureError: rank 0 of 1 made no progress for 4 s (--perf-timeout), in phase "
        "'measure', step 7",
    ),
    "hang_on_ranks": (
        'TORCHRUN + ["hang"], steps=20, warmup=3',
        "RankFailureError: rank 0 of 2 made no progress for 4 s (--perf-timeout), in phase "
        "'measure', step 7; rank 0, rank 1 are there, and any may be late",
    ),
    "stopped": (
        'TORCHRUN + ["stop"], steps=20, warmup=3',
        "RankFailureError: rank 0 of 2 made no progress for 4 s (--perf-timeout), in phase "
        "'measure', step 7",
    ),
    "stopped_at_a_border": (
        'TORCHRUN + ["stop-at-border"], steps=20, warmup=3',
        "RankFailureError: rank 0 of 2 * in phase *, step *",  # of the first border that waits
    ),
    "uneven": ('TORCHRUN + ["uneven"], steps=20, warmup=3', _UNEVEN),
}


def test_a_command_that_waits_for_ever_is_ended_with_the_rank_that_it_waits_for(
    project: pytest.Pytester,
) -> None:
    calls = {name: call for name, (call, _) in WAITING.items()}

    result = run(project, calls, "--perf-timeout=4", "--perf-collective-timeout=2")

    result.assert_outcomes(failed=len(WAITING))
    hang, on_ranks, stopped, at_border, uneven = (error for _, error in WAITING.values())
    stop = ["  where it is:", "    it is stopped: process * was sent SIGSTOP, as a debugger does"]
    result.stdout.fnmatch_lines([hang, on_ranks, stopped, *stop, at_border, *stop, uneven])
    assert_nothing_is_left()


def test_a_rank_that_ended_by_itself_is_named_however_late_its_controller_looks(
    project: pytest.Pytester, polls_late: None
) -> None:
    limits = "--perf-timeout=4", "--perf-collective-timeout=2"

    result = run(project, {"uneven": WAITING["uneven"][0]}, *limits)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([_UNEVEN])


LOGS = """
    import json
    import os
    import pathlib
    import sys

    assert "torch" not in sys.modules
    seconds = [0.5, 0.25, 0.001, 0.002, 0.003]
    if sys.argv[1] == "file":
        with open(os.path.expandvars(sys.argv[2]), "a") as log:
            for number, one in enumerate(seconds):
                print(json.dumps({"step": number, "step_time_s": one}), file=log)
                print(json.dumps({"evaluation": 1.0}), file=log)
    elif sys.argv[1] == "events":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(sys.argv[2])
        for number, one in enumerate(seconds):
            writer.add_scalar("perf/step_time", one, number)
        writer.close()
    elif sys.argv[1] == "print":
        for one in seconds:
            print(f"step time: {1000 * one} ms")
    else:
        sys.exit(f"no {sys.argv[1]}")
"""


def test_a_command_that_is_not_touched_is_timed_by_what_it_logs(project: pytest.Pytester) -> None:
    project.makepyfile(logs=LOGS)
    (project.path / "times.jsonl").write_text('{"step_time_s": 9.0}\n')  # of an earlier launch
    metrics = {
        "file": '"file", "times.jsonl"], metrics="jsonl:times.jsonl:step_time_s"',
        "out": '"file", "{out}/times.jsonl"], metrics="jsonl:times.jsonl:step_time_s"',
        "variable": '"file", "$PERFSUITE_OUT/a"], metrics="jsonl:{out}/a:step_time_s"',
        "events": '"events", "{out}/runs"], metrics="tensorboard:runs:perf/step_time"',
        "printed": '"print"], metrics="regex:step time: ([0-9.]+) ms*0.001"',
    }
    faults = {
        "missing": (
            '"print"], metrics="jsonl:none.jsonl:time"',
            "WorkloadError: logs: none.jsonl cannot be read: No such file or directory "
            "(metrics='jsonl:none.jsonl:time')",
        ),
        "too_few": (
            '"print"], metrics="regex:loss: (.*)"',
            "WorkloadError: logs: the command logged 0 step times (metrics='regex:loss: (.*)'); "
            "each is a positive number of seconds, and at least two follow 2 to warm up",
        ),
        "another_key": (
            '"file", "{out}/times.jsonl"], metrics="jsonl:times.jsonl:step_time"',
            "WorkloadError: logs: the command logged 0 step times beside evaluation, step, "
            "step_time_s (metrics='jsonl:times.jsonl:step_time'); *",
        ),
        "another_tag": (
            '"events", "{out}/runs"], metrics="tensorboard:runs:step_time"',
            "WorkloadError: logs: the command logged 0 step times beside perf/step_time "
            "(metrics='tensorboard:runs:step_time'); *",
        ),
        "failed": (
            '"nothing"], metrics="regex:step time: (.*) s"',
            "WorkloadError: logs: the command ended with exit code 1: no nothing",
        ),
    }
    every = metrics | {name: call for name, (call, _) in faults.items()}
    calls = {
        name: f'["python", "logs.py", {call}, steps=3, warmup=2, samples_per_step=8'
        for name, call in every.items()
    }

    result = run(project, calls)

    result.assert_outcomes(passed=len(metrics), failed=len(faults))
    result.stdout.fnmatch_lines([error for _, error in faults.values()])
    stored = json.loads((project.path / "results" / "run.json").read_text())["benchmarks"]
    for one in stored:
        assert one["stats"]["data"] == pytest.approx([0.001, 0.002, 0.003])
        record = one["extra_info"]["perfsuite"]
        assert (record["workload"], record["memory"], record["counts"]["flops"]) == (
            "logs",
            None,
            None,
        )
        assert record["samples_per_s"] == pytest.approx(4000.0)
