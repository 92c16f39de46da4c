"""Real ranks: what they return, how they fail, and that they leave nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from perfsuite import RankFailureError, WorkloadError
from perfsuite.experiments.rank_session import Session
from perfsuite.ranks import bootstrap
from perfsuite.ranks.messages import GroupPolicy
from perfsuite.ranks.pickling import packed_by_value

RunRanks = Callable[..., list[Any]]


@pytest.fixture
def impatient_ranks() -> RunRanks:
    """Ranks with a collective timeout of 2 s and a controller timeout of 4 s."""
    session = Session(GroupPolicy(timeout_s=4, collective_timeout_s=2), say=print)

    def run(num_ranks: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        with packed_by_value([sys.modules[__name__]]):
            return session.run_function(num_ranks, function, *args)

    return run


pytestmark = pytest.mark.usefixtures("nothing_left")


def rank_and_sum(offset: int) -> tuple[int, float]:
    import torch
    import torch.distributed as dist

    total = torch.tensor([float(dist.get_rank() + offset)])
    dist.all_reduce(total)
    return dist.get_rank(), float(total)


def test_results_come_back_in_rank_order(rank_group: RunRanks) -> None:
    assert rank_group(3, rank_and_sum, 10) == [(0, 33.0), (1, 33.0), (2, 33.0)]


def test_a_function_may_close_over_values_of_the_test(rank_group: RunRanks) -> None:
    words = ["closed", "over"]

    assert rank_group(1, lambda: list(reversed(words))) == [["over", "closed"]]


def test_no_thread_of_a_rank_computes_with_several(rank_group: RunRanks) -> None:
    def look() -> tuple[int, list[str]]:
        import ctypes
        from concurrent.futures import ThreadPoolExecutor

        mapped = Path("/proc/self/maps").read_text().split()
        openmp = ctypes.CDLL(next(path for path in mapped if "libgomp" in path))
        # In a backend's thread, such as runs what a hook of DDP appends to a collective, torch
        # tells OpenMP and MKL no number of threads before its own first loop over several.
        with ThreadPoolExecutor(1) as pool:
            num_threads = pool.submit(openmp.omp_get_max_threads).result()
        return num_threads, [name for name in os.environ if name.endswith("NUM_THREADS")]

    assert rank_group(1, look) == [(1, [])]


def test_each_rank_has_one_thread_a_seed_and_a_temporary_folder_of_its_own_group(
    rank_group: RunRanks,
) -> None:
    def look() -> tuple[int, float, str]:
        import torch

        return torch.get_num_threads(), float(torch.rand(())), tempfile.mkdtemp()

    (threads_0, random_0, folder_0), (threads_1, random_1, folder_1) = rank_group(2, look)

    assert (threads_0, threads_1) == (1, 1)
    assert random_0 == random_1
    assert Path(folder_0).parent == Path(folder_1).parent
    assert not Path(folder_0).exists()


def test_a_rank_collects_garbage_but_its_server_walks_nothing_as_it_loads_torch(
    rank_group: RunRanks,
) -> None:
    def look() -> tuple[bool, int]:
        import gc

        return gc.isenabled(), gc.get_stats()[2]["collections"]

    ((is_enabled, num_full_collections),) = rank_group(1, look)

    assert is_enabled
    assert num_full_collections <= 1


def test_ranks_are_pinned_to_cores_of_their_own_where_there_are_enough(
    rank_group: RunRanks,
) -> None:
    cores = sorted(os.sched_getaffinity(0))

    pinned = rank_group(len(cores), lambda: sorted(os.sched_getaffinity(0)))
    crowded = rank_group(len(cores) + 1, lambda: sorted(os.sched_getaffinity(0)))

    assert pinned == [[core] for core in cores]
    assert crowded == [cores] * (len(cores) + 1)


def fail_on_rank_1(how: str) -> None:
    import torch.distributed as dist

    if dist.get_rank() == 1:
        print(f"about to {how}", flush=True)
        if how == "raise":
            raise ValueError("boom")
        if how == "exit":
            os._exit(7)
        if how == "sys.exit":
            sys.exit(3)
        os.kill(os.getpid(), getattr(signal, how))
    dist.barrier()


def test_a_rank_that_raises_is_named_with_its_message_and_its_own_traceback(
    rank_group: RunRanks,
) -> None:
    with pytest.raises(RankFailureError) as caught:
        rank_group(2, fail_on_rank_1, "raise")

    message = str(caught.value)
    assert message.startswith("rank 1 of 2 raised ValueError: boom, in phase 'call'\n  traceback:")
    assert "in fail_on_rank_1" in message
    assert "worker/main.py" not in message
    assert message.endswith("\n  its last output:\n    about to raise")
    assert (caught.value.rank, caught.value.exit_code) == (1, None)


@pytest.mark.parametrize(("how", "exit_code"), [("exit", 7), ("sys.exit", 3)])
def test_a_rank_that_exits_is_named_with_its_exit_code_and_last_output(
    rank_group: RunRanks, how: str, exit_code: int
) -> None:
    with pytest.raises(RankFailureError) as caught:
        rank_group(2, fail_on_rank_1, how)

    assert str(caught.value) == (
        f"rank 1 of 2 ended with exit code {exit_code}, in phase 'call'\n"
        f"  its last output:\n    about to {how}"
    )
    assert caught.value.exit_code == exit_code


def test_a_killed_rank_is_named_with_its_signal(rank_group: RunRanks) -> None:
    with pytest.raises(RankFailureError) as caught:
        rank_group(2, fail_on_rank_1, "SIGKILL")

    assert str(caught.value) == (
        "rank 1 of 2 was killed by SIGKILL (by a user, or by the kernel because memory ran out), "
        "in phase 'call'\n  its last output:\n    about to SIGKILL"
    )
    assert caught.value.signal_name == "SIGKILL"


def test_a_crashed_rank_shows_where_it_crashed(rank_group: RunRanks) -> None:
    with pytest.raises(RankFailureError) as caught:
        rank_group(2, fail_on_rank_1, "SIGSEGV")

    assert caught.value.signal_name == "SIGSEGV"
    assert any("in fail_on_rank_1" in line for line in caught.value.log_lines)


def test_a_rank_that_asks_for_too_much_memory_is_named(rank_group: RunRanks) -> None:
    def ask() -> None:
        import torch

        torch.empty(2**60, dtype=torch.uint8)

    with pytest.raises(RankFailureError, match="rank 0 of 1 raised RuntimeError") as caught:
        rank_group(1, ask)

    assert "allocate" in str(caught.value)


def test_a_rank_that_stays_away_from_a_collective_is_blamed_not_the_one_that_waited(
    impatient_ranks: RunRanks,
) -> None:
    def stay_away() -> None:
        import torch.distributed as dist

        if dist.get_rank() == 1:
            time.sleep(60)
        dist.barrier()

    with pytest.raises(RankFailureError) as caught:
        impatient_ranks(2, stay_away)

    assert str(caught.value).startswith(
        "rank 1 of 2 did not come to a collective within 2 s (--perf-collective-timeout): "
        "it is in phase 'call', and rank 0 waited in phase 'call'\n  where it is:\n"
    )
    assert "in stay_away" in caught.value.log_lines[0]


def test_ranks_that_wait_for_each_other_ran_different_collectives(
    impatient_ranks: RunRanks,
) -> None:
    def wait_for_the_other() -> None:
        import torch.distributed as dist

        dist.barrier()
        # As gloo says; where one rank says it first, the other may read a closed connection.
        raise RuntimeError("Timed out waiting 2000ms for recv operation to complete")

    with pytest.raises(RankFailureError) as caught:
        impatient_ranks(2, wait_for_the_other)

    assert "in phase 'call'; the ranks ran different collectives, as where" in str(caught.value)


_OLD_WATCHDOG = (
    "[rank0]:[E1122 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=30000) ran for 30021 milliseconds"
)
_NEW_WATCHDOG = (
    "[E1122 nccl2/ProcessGroupNCCL.cpp:301] Aborting process on rank 0 due to timeout: NCCL "
    "operation timed out"
)


def abort_as_a_watchdog_does(words: str, is_here: Path, comes_later: bool = False) -> None:
    import torch.distributed as dist

    if dist.get_rank() == 0:
        while not is_here.exists():
            time.sleep(0.01)
        frames = [f"frame #{number}: <unknown function> + 0xd6df4" for number in range(40)]
        for _ in range(3):
            print(words, "Exception raised from checkTimeout:", *frames, sep="\n", file=sys.stderr)
            print("terminate called after throwing an instance of 'c10::DistBackendError'")
        sys.stdout.flush()
        os.abort()
    is_here.touch()
    if comes_later:
        dist.barrier()
    time.sleep(600)


@pytest.mark.parametrize(
    ("comes_later", "where"), [(False, "it is in phase"), (True, "it came later, in phase")]
)
@pytest.mark.parametrize("words", [_OLD_WATCHDOG, _NEW_WATCHDOG])
def test_a_rank_that_nccls_watchdog_ended_is_not_blamed_but_the_one_that_it_waited_for(
    rank_group: RunRanks, tmp_path: Path, words: str, comes_later: bool, where: str
) -> None:
    with pytest.raises(RankFailureError) as caught:
        rank_group(2, abort_as_a_watchdog_does, words, tmp_path / "is_here", comes_later)

    assert str(caught.value).startswith(
        f"rank 1 of 2 did not come to a collective within 30 s (--perf-collective-timeout): {where}"
    )
    assert "in abort_as_a_watchdog_does" in "".join(caught.value.log_lines)


def test_a_rank_whose_own_kernel_failed_is_blamed_though_a_watchdog_ended_it(
    rank_group: RunRanks, tmp_path: Path
) -> None:
    words = f"{_OLD_WATCHDOG}\nCUDA error: an illegal memory access was encountered"

    with pytest.raises(RankFailureError, match=r"^rank 0 of 2 was killed by SIGABRT"):
        rank_group(2, abort_as_a_watchdog_does, words, tmp_path / "is_here")


def test_what_nccls_flight_recorder_writes_goes_to_the_groups_own_folder(
    rank_group: RunRanks,
) -> None:
    def folders() -> list[str]:
        names = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TMPDIR"
        return [os.environ[name].removesuffix("/flight_recorder_") for name in names]

    ((first, second, own),) = rank_group(1, folders)

    assert first == second == own


def test_no_rank_has_asked_for_a_gpu_when_it_was_forked(rank_group: RunRanks) -> None:
    def has_bad_fork() -> bool:
        import torch

        return bool(torch._C._cuda_isInBadFork())

    assert rank_group(1, has_bad_fork) == [False]


def test_a_stopped_rank_is_ended_and_blamed(impatient_ranks: RunRanks) -> None:
    def stop() -> None:
        import torch.distributed as dist

        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()

    with pytest.raises(RankFailureError, match=r"^rank 1 of 2 did not come to a collective"):
        impatient_ranks(2, stop)


def test_a_group_without_progress_is_ended_with_the_stack_of_its_rank(
    impatient_ranks: RunRanks,
) -> None:
    def sleep_for_long() -> None:
        time.sleep(60)

    with pytest.raises(RankFailureError) as caught:
        impatient_ranks(1, sleep_for_long)

    assert str(caught.value).startswith(
        "rank 0 of 1 made no progress for 4 s (--perf-timeout), in phase 'call'\n  where it is:\n"
    )
    assert "in sleep_for_long" in caught.value.log_lines[0]


def ends(pid: int) -> bool:
    """Whether a process ends soon: one that was sent SIGKILL runs until it next gets a core."""
    deadline_s = time.monotonic() + 30
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline_s:
                return False
    return True


def test_processes_that_a_rank_leaves_behind_are_ended(rank_group: RunRanks) -> None:
    def leave_a_process() -> int:
        return subprocess.Popen(["sleep", "60"]).pid

    (pid,) = rank_group(1, leave_a_process)

    assert ends(pid)


@pytest.mark.slow
def test_ranks_start_where_python_or_the_kernel_has_no_pidfds(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\n\ndel os.pidfd_open\n")
    run = textwrap.dedent(
        """
        import math
        from perfsuite.experiments.rank_session import Session
        from perfsuite.ranks.messages import GroupPolicy

        print(Session(GroupPolicy(), say=print).run_function(1, math.sqrt, 16))
        """
    )

    ended = subprocess.run(
        [sys.executable, "-c", run],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.stdout, ended.returncode) == ("[4.0]\n", 0), ended.stderr


def test_processes_of_a_rank_that_was_killed_are_ended(rank_group: RunRanks) -> None:
    def leave_a_process_and_die() -> None:
        print(subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL).pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RankFailureError) as caught:
        rank_group(1, leave_a_process_and_die)

    left = int(caught.value.log_lines[-1])
    assert ends(left)


def test_a_value_that_cannot_be_pickled_is_refused_with_its_reason(rank_group: RunRanks) -> None:
    with pytest.raises(WorkloadError, match=r"^cannot send .* to another process: .*; build what"):
        rank_group(1, lambda value: value, (number for number in range(3)))


@pytest.mark.parametrize("kind", ["a tee", "open", "closed", "none"])
def test_a_rank_whose_code_replaces_its_output_is_answered_for(
    rank_group: RunRanks, kind: str
) -> None:
    def replace() -> str:
        class Tee:
            def write(self, text: str) -> None:
                """Write it nowhere."""

        class Open(Tee):
            closed = False

        with open(os.devnull, "w") as closed:  # noqa: PTH123
            pass
        outputs = {"a tee": Tee(), "open": Open(), "closed": closed, "none": None}
        sys.stdout = outputs[kind]  # type: ignore[assignment]
        return kind

    def fail() -> None:
        replace()
        raise ValueError("of the step")

    assert rank_group(1, replace) == [kind]
    with pytest.raises(RankFailureError, match="of the step"):
        rank_group(1, fail)


def test_what_a_rank_prints_reaches_the_test_output(
    rank_group: RunRanks, capsys: pytest.CaptureFixture[str]
) -> None:
    rank_group(2, lambda: print("hello"))

    assert capsys.readouterr().out == "[rank 0] hello\n[rank 1] hello\n"


CONTROLLER = """
    import os, subprocess, sys, time
    from perfsuite.experiments.rank_session import Session
    from perfsuite.ranks.messages import GroupPolicy

    def hold_the_interpreter_lock(folder):
        # A regular expression that backtracks for hours inside one C call.
        import re, pathlib, torch
        from torch.utils.data import DataLoader
        loader = DataLoader(Slow(), num_workers=1, worker_init_fn=entry())
        batches = iter(loader)
        subprocess.Popen(["sleep", "600"])
        pathlib.Path(folder, f"{os.getpid()}").touch()
        re.match(r"(a+)+$", "a" * 64 + "b")

    class Slow:
        def __len__(self):
            return 100
        def __getitem__(self, index):
            time.sleep(60)

    def entry():
        from perfsuite.ranks.bootstrap import loader_worker_entry
        import tempfile
        enter = loader_worker_entry(tempfile.gettempdir(), os.sched_getaffinity(0))
        return lambda worker: enter()

    if __name__ == "__main__":
        session = Session(GroupPolicy(), say=print)
        session.run_function(2, hold_the_interpreter_lock, sys.argv[1])
"""


def test_all_that_a_killed_controller_began_ends_and_is_cleared_up(tmp_path: Path) -> None:
    script = tmp_path / "controller.py"
    script.write_text(textwrap.dedent(CONTROLLER))
    started, temporary = tmp_path / "started", tmp_path / "t"
    started.mkdir()
    temporary.mkdir()
    controller = subprocess.Popen(
        [sys.executable, str(script), str(started)], env={**os.environ, "TMPDIR": str(temporary)}
    )
    wait_until(lambda: len(list(started.iterdir())) == 2)
    ranks = [psutil.Process(int(path.name)) for path in started.iterdir()]
    started_by_ranks = [child for rank in ranks for child in rank.children(recursive=True)]
    assert len(started_by_ranks) == 4  # a loader worker and a process of its own for each
    assert left_in(temporary) != []

    controller.kill()
    controller.wait()

    _, alive = psutil.wait_procs([*ranks, *started_by_ranks], timeout=3)
    assert alive == []
    wait_until(lambda: not left_in(temporary))


DYING = """
    import itertools, os, pkgutil, signal, sys
    from multiprocessing import util
    from perfsuite.experiments.rank_session import Session
    from perfsuite.ranks import forkserver
    from perfsuite.ranks.messages import GroupPolicy

    forkserver._PRELOADED = ("perfsuite.ranks.reaper",)
    module, name, number = sys.argv[1:]
    function = getattr(pkgutil.resolve_name(module), name)
    calls = itertools.count(1)

    def die_after(*arguments):
        returned = function(*arguments)
        if next(calls) == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return returned

    setattr(pkgutil.resolve_name(module), name, die_after)
    if __name__ == "__main__":
        Session(GroupPolicy(), say=print).run_function(1, print)
"""


@pytest.mark.parametrize(
    "step",
    [
        ("multiprocessing.util", "spawnv_passfds", 1),
        ("multiprocessing.util", "spawnv_passfds", 2),
        ("perfsuite.ranks.bootstrap", "make_group_folder", 2),
        ("perfsuite.ranks.group", "Board", 1),
    ],
    ids=["resource-tracker", "server", "folder-of-the-group", "board"],
)
def test_a_controller_that_is_killed_before_its_first_rank_leaves_nothing(
    tmp_path: Path, step: tuple[str, str, int]
) -> None:
    expect_killed_without_traces(tmp_path, DYING, *map(str, step))


WITHOUT_SERVER = """
    import os, signal
    from multiprocessing.forkserver import _forkserver
    from perfsuite.experiments.rank_session import Session
    from perfsuite.ranks import forkserver
    from perfsuite.ranks.messages import GroupPolicy

    forkserver._PRELOADED = ("perfsuite.ranks.reaper",)
    if __name__ == "__main__":
        Session(GroupPolicy(), say=print).run_function(1, print)
        os.kill(_forkserver._forkserver_pid, signal.SIGKILL)
        os.waitpid(_forkserver._forkserver_pid, 0)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_controller_that_is_killed_after_its_server_leaves_nothing(tmp_path: Path) -> None:
    expect_killed_without_traces(tmp_path, WITHOUT_SERVER)


def expect_killed_without_traces(folder: Path, code: str, *arguments: str) -> None:
    script = folder / "controller.py"
    script.write_text(textwrap.dedent(code))
    temporary = folder / "t"
    temporary.mkdir()

    ended = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "TMPDIR": str(temporary)},
        check=False,
    )

    assert ended.returncode == -signal.SIGKILL
    wait_until(lambda: not left_in(temporary))


def left_in(folder: Path) -> list[Path]:
    """Return what is left there, without torch's own cache, which later sessions read."""
    return [path for path in folder.iterdir() if not path.name.startswith("torchinductor_")]


def test_a_temporary_folder_whose_path_is_too_long_for_a_socket_does(tmp_path: Path) -> None:
    temporary = tmp_path / ("x" * 90)
    temporary.mkdir()

    ended = subprocess.run(
        [sys.executable, "-c", "from perfsuite.ranks import forkserver; forkserver.start_server()"],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    wait_until(lambda: not left_in(temporary))


def test_what_a_controller_and_its_server_left_is_swept_by_the_next_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(["true"]) as ended:
        pass
    sockets = tmp_path / "pymp-1"
    sockets.mkdir()
    begin = f"{ended.pid}-{bootstrap.PID_NAMESPACE}"
    of_server = tmp_path / f"perfsuite-server-{begin}-a"
    of_server.mkdir()
    (of_server / "sockets").symlink_to(sockets)
    (tmp_path / f"perfsuite-{begin}-b").mkdir()
    living = bootstrap.make_group_folder().name
    kept = [living, f"perfsuite-{ended.pid}-base-host-d", "perfsuite-x-e"]
    for name in kept:
        (tmp_path / name).mkdir(exist_ok=True)

    bootstrap.sweep_stale_folders()

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_a_session_in_another_container_sweeps_nothing_of_a_living_one(tmp_path: Path) -> None:
    own_processes = ["unshare", "-Urpf", "--mount-proc"]
    if subprocess.run([*own_processes, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a PID namespace of one's own is not allowed here")
    variables = {**os.environ, "TMPDIR": str(tmp_path)}
    begin = "from perfsuite.ranks import bootstrap; "
    living = subprocess.Popen(
        [sys.executable, "-c", f"{begin}print(bootstrap.make_group_folder(), flush=True); input()"],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert living.stdout is not None
    folder = Path(living.stdout.readline().strip())
    sweep = [sys.executable, "-c", f"{begin}bootstrap.sweep_stale_folders()"]

    subprocess.run([*own_processes, *sweep], env=variables, check=True)
    is_kept = folder.exists()
    living.communicate("\n")
    subprocess.run(sweep, env=variables, check=True)

    assert (is_kept, folder.exists()) == (True, False)


def test_ranks_whose_server_has_lost_its_socket_fail_in_one_sentence(
    rank_group: RunRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_no_socket(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("perfsuite.ranks.group.start_process", find_no_socket)

    with pytest.raises(RankFailureError) as caught:
        rank_group(1, print)

    assert str(caught.value) == (
        "rank 0 of 1 could not be started: the server that ranks are forked from has lost its "
        "socket, as if TMPDIR was cleared; start the session again"
    )


def test_a_controller_that_nobody_has_waited_for_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(["true"]) as zombie:
        wait_until(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_ZOMBIE)
        (tmp_path / f"perfsuite-{zombie.pid}-{bootstrap.PID_NAMESPACE}-a").mkdir()

        bootstrap.sweep_stale_folders()

    assert list(tmp_path.iterdir()) == []


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
