"""The gate on a user's commands: launchers of two trees, whose ranks take turns at step borders.

Times may differ by any factor that a machine makes: what decides is ten times the work, or that
arms which do the same take less than ten times as long.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import venv
from pathlib import Path

import psutil
import pytest
from gated_repository import ENVIRONMENT, Gated, Repository
from json_schemas import assert_valid

from perfsuite.system.timing_lock import LOCK_DIR

pytestmark = pytest.mark.slow

MODEL = """
    import torch

    def build():
        return torch.nn.Linear(4, 4)

    def think():
        sum(range(100_000))
"""
# Not a line of it knows of perfsuite.
TRAIN = """
    import os
    import pathlib
    import socket
    import sys

    import torch
    import torch.distributed as dist

    import model

    if "--port" in sys.argv:
        held = socket.socket()
        held.bind(("127.0.0.1", PORT))
        held.listen()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = model.build()
    if dist.is_initialized():
        network = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    out = pathlib.Path(os.environ["PERFSUITE_OUT"])
    assert not any(out.iterdir()) or dist.is_initialized()
    (out / "checkpoint").touch()
    while True:
        model.think()
        loss = network(torch.ones(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
CELLS = """
    import os

    import pytest

    pytestmark = pytest.mark.perf(tolerance="99%", limit="1000%")

    def test_ranks(command_benchmark):
        assert os.environ.get("PERFSUITE_LAUNCH", "head-0")[:5] in ("base-", "head-")
        command = ["torchrun", "--nproc-per-node=2", "train.py", "--out={out}"]
        command_benchmark(command, steps=20, warmup=3)

    def test_port(command_benchmark):
        command_benchmark(["python", "train.py", "--port"], steps=20, warmup=3)
"""
NAMES = ("--tolerance=99%", "--limit=1000%", "--steps=20", "--warmup=3")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository whose second commit changes nothing that runs."""
    repository = Repository(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        train = TRAIN.replace("PORT", str(free.getsockname()[1]))
    repository.write(model=MODEL, train=train, benchmarks__test_commands=CELLS)
    (repository.path / "pytest.ini").write_text("[pytest]\nperf_gate = on\nperf_max_pairs = 12\n")
    repository.git("init", "--quiet", "--initial-branch=main")
    repository.commit()
    repository.write(model=f"{MODEL}\n    # the same\n")
    repository.commit()
    return repository


@pytest.fixture
def path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def gate_command(repository: Repository, path: str, *arguments: str) -> Gated:
    """Call the verb."""
    ended = subprocess.run(
        [sys.executable, "-c", "from perfsuite.cli.app import main; main()", "gate", *arguments],
        cwd=repository.path,
        env={**ENVIRONMENT, LOCK_DIR: os.environ[LOCK_DIR], "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return Gated(ended.returncode, ended.stdout)


def test_the_arms_of_a_command_take_turns_or_run_launch_after_launch(
    repository: Repository, path: str
) -> None:
    twin = repository.gate("--perf-base=HEAD~1", PATH=path)

    twin.expect(
        0,
        "*::test_port PASS *",
        "*::test_ranks PASS *",
        "*::test_port: *both arms want one port, file, device or daemon: launch after launch*",
    )


def test_the_verb_needs_no_benchmark_and_leaves_the_repository_as_it_is(
    repository: Repository, path: str
) -> None:
    slower = MODEL.replace("100_000", "4_000_000")
    repository.write(model=slower)
    repository.commit()
    result = repository.path.parent / "gate.json"

    failed = gate_command(
        repository,
        path,
        *(*NAMES, "--base=HEAD~1", "--max-pairs=3", f"--json={result}", "--"),
        *("python", "train.py"),
    )

    failed.expect(10, "train FAIL +*")
    assert "could say what it loaded" not in failed.output  # also where ours comes first
    assert_valid("gate", json.loads(result.read_text()))
    (cell,) = json.loads(result.read_text())["cells"]
    assert (cell["id"], cell["word"], cell["by"]) == ("train", "FAIL", "pairs")
    assert cell["numerics_change"] == "same bits"  # by the digest of its weights
    assert repository.git("status", "--porcelain", "--ignored") == ""


SPAWNS = """
    import os

    import logged_model
    import torch
    import torch.distributed as dist
    import torch.multiprocessing

    def train(rank, port):
        if logged_model.RANKS > 1:
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            dist.init_process_group("gloo", rank=rank, world_size=logged_model.RANKS)
        torch.manual_seed(0)
        network = torch.nn.Linear(4, 4)
        if dist.is_initialized():
            network = torch.nn.parallel.DistributedDataParallel(network)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(1000):
            loss = network(torch.ones(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    if __name__ == "__main__":
        store = dist.TCPStore("127.0.0.1", 0, is_master=True)
        port = store.port
        del store
        torch.multiprocessing.spawn(train, (port,), nprocs=logged_model.RANKS)
"""


def test_a_command_over_another_number_of_ranks_is_not_compared(
    repository: Repository, path: str
) -> None:
    for number in (2, 1):
        repository.write(logged_model=f"RANKS = {number}", spawns=SPAWNS)
        repository.commit()

    gated = gate_command(
        repository, path, *NAMES, "--max-pairs=3", "--name=ours", "--", "python", "spawns.py"
    )

    gated.expect(
        12,
        "ours INVALID*",
        "ours: training has 2 ranks in the base and 1 in head, so that neither times nor counts "
        "compare; *",
    )


LOGS = """
    import json
    import pathlib
    import sys

    import logged_model

    with pathlib.Path(sys.argv[1]).open("a") as log:
        for _ in range(30):
            print(json.dumps({"ms": logged_model.MILLISECONDS}), file=log)
"""


LOGGED = (
    *("--steps=20", "--warmup=3", "--metrics=jsonl:times.jsonl:ms*0.001", "--name=ours"),
    "--max-pairs=3",
)


def test_a_command_that_is_not_touched_is_judged_by_its_logs_and_what_it_leaves_is_named(
    repository: Repository, path: str
) -> None:
    reads = "import logged_model\n\n    pathlib.Path('shared.txt').read_text()"
    logs = LOGS.replace("import logged_model", reads)
    repository.write(logged_model="MILLISECONDS = 1.0", logs=logs)
    (repository.path / ".gitignore").write_text("shared.txt\n")
    (repository.path / "shared.txt").touch()
    # Of a user's configuration this alone holds for a command.
    ini = "[pytest]\nperf_share = shared.txt\naddopts = --of-a-plugin-that-is-not-here\n"
    (repository.path / "pytest.ini").write_text(ini)
    repository.commit()
    repository.write(logged_model="MILLISECONDS = 3.0")
    repository.commit()

    failed = gate_command(
        repository,
        path,
        *LOGGED,
        *("--", "python", "logs.py", "times.jsonl"),
    )

    failed.expect(10, "head's tree: new since, and left there: times.jsonl", "ours FAIL +200.0 %*")


def test_a_command_that_logs_an_evaluation_under_the_key_of_its_steps_is_invalid(
    repository: Repository, path: str
) -> None:
    """The first values are taken: of fast evaluations, each step of head could be slower."""
    both = 'print(json.dumps({"ms": 0.1}), file=log); print(json.dumps'
    repository.write(logged_model="MILLISECONDS = 1.0", logs=LOGS)
    repository.commit()
    repository.write(logged_model="MILLISECONDS = 1.3", logs=LOGS.replace("print(json.dumps", both))
    repository.commit()

    mixed = gate_command(repository, path, *LOGGED, "--", "python", "logs.py", "{out}/times.jsonl")

    told = (
        "ours: *the command logs 60 step times with head and 30 with the base, so that the first *"
    )
    mixed.expect(12, "ours INVALID *", told)


def test_what_a_command_does_beside_the_steps_that_it_logs_is_told(
    repository: Repository, path: str
) -> None:
    """Its log is its own word: a slower loader, which the log leaves out, is in no number."""
    slow = "log:\n        __import__('time').sleep(logged_model.BETWEEN)"
    logs = LOGS.replace("log:", slow).replace("logged_model.MILLISECONDS", "1.0")
    repository.write(logged_model="BETWEEN = 0", logs=logs)
    repository.commit()
    repository.write(logged_model="BETWEEN = 3")
    repository.commit()

    told = gate_command(repository, path, *LOGGED, "--", "python", "logs.py", "{out}/times.jsonl")

    told.expect(
        0,
        "ours PASS *",
        "ours: beside its timed steps, which alone are judged, the command took * with head and *",
    )


def test_a_command_that_trains_in_heads_checkout_with_its_path_is_invalid_by_its_logs_too(
    repository: Repository, path: str
) -> None:
    """Whose code it runs is in no log: the gate sees it while it trains, within the rounds."""
    works = LOGS.replace("with pathlib", "sum(range(200_000_000))\n\n    with pathlib")
    script = repository.path / "run.sh"
    script.write_text(
        f"cd {repository.path}\n"
        f"export PYTHONPATH={repository.path}/lib\n"
        'exec python logs.py "$PERFSUITE_OUT/times.jsonl"\n'
    )
    repository.write(lib__logged_model="MILLISECONDS = 1.0", logs=works)
    repository.commit()
    repository.write(lib__logged_model="MILLISECONDS = 3.0")
    repository.commit()

    blind = gate_command(repository, path, *LOGGED, *("--", "bash", "run.sh"))

    told = f"ours: the base arm started 'python logs.py *, in {repository.path}', which is head's*"
    blind.expect(12, "ours INVALID", told)


RUN_SH = """
test -f .env && . ./.env
export MILLISECONDS
exec python logs.py "$PERFSUITE_OUT/times.jsonl"
"""
MAKEFILE = """
-include .env
export MILLISECONDS
run:
\tpython logs.py $$PERFSUITE_OUT/times.jsonl
"""


@pytest.mark.parametrize(
    ("file", "text", "command"),
    [("run.sh", RUN_SH, ("sh", "run.sh")), ("Makefile", MAKEFILE, ("make", "run"))],
    ids=["sh", "make"],
)
def test_settings_that_a_shell_or_make_reads_from_heads_checkout_alone_are_no_improvement(
    repository: Repository, path: str, file: str, text: str, command: tuple[str, ...]
) -> None:
    by_variable = LOGS.replace("import logged_model", "import os").replace(
        "logged_model.MILLISECONDS", 'float(os.environ.get("MILLISECONDS") or 3.0)'
    )
    (repository.path / file).write_text(text)
    (repository.path / ".gitignore").write_text(".env\n")
    repository.write(logs=by_variable)
    repository.commit()
    repository.write(logs=by_variable + "# slower, as .env hides")
    repository.commit()
    (repository.path / ".env").write_text("MILLISECONDS=1.0\n")

    hidden = gate_command(repository, path, *LOGGED, "--", *command)

    told = "what an arm starts names .env, which git does not track, so the base's tree began *"
    hidden.expect(12, "ours INVALID", f"ours: {told}")


def test_a_virtual_environment_that_heads_checkout_alone_has_is_no_pass(
    repository: Repository, path: str
) -> None:
    """What is activated by a relative path is not there in the base's tree, and bash goes on."""
    venv.create(repository.path / ".venv", with_pip=False)
    (packages,) = (repository.path / ".venv").glob("lib/python*/site-packages")
    module = packages / "psutil" / "__init__.py"
    module.parent.mkdir()
    module.write_text("MILLISECONDS = 1.0\n")
    (repository.path / ".gitignore").write_text(".venv\n")
    (repository.path / "run.sh").write_text(
        'source .venv/bin/activate\npython logs.py "$PERFSUITE_OUT/times.jsonl"\n'
    )
    logs = LOGS.replace("logged_model.MILLISECONDS", "getattr(psutil, 'MILLISECONDS', 1.0)")
    repository.write(logs=logs.replace("logged_model", "psutil"))
    repository.commit()
    repository.write(logs=logs.replace("logged_model", "psutil") + "\n    # the same")
    repository.commit()

    blind = gate_command(repository, path, *LOGGED, *("--", "bash", "run.sh"))

    told = f"ours: the head arm loaded {module}, and the base arm {psutil.__file__}, so *"
    blind.expect(12, "ours INVALID", told)


def test_a_script_among_the_documentation_is_judged_beside_a_log_of_an_earlier_gate(
    repository: Repository, path: str
) -> None:
    script = LOGS.replace("import logged_model", "").replace("logged_model.MILLISECONDS", "{}")
    (repository.path / ".gitignore").write_text("times.jsonl\n")
    (repository.path / "times.jsonl").write_text('{"ms": 2.0}\n' * 30)
    repository.write(docs__logs=script.replace("{}", "1.0"))
    repository.commit()
    repository.write(docs__logs=script.replace("{}", "3.0"))
    repository.commit()

    failed = gate_command(
        repository,
        path,
        *LOGGED,
        *("--", "python", "docs/logs.py", "times.jsonl"),
    )

    failed.expect(10, "ours FAIL +200.0 %*")


def test_a_command_is_quarantined_by_its_name_and_its_gate_may_advise(
    repository: Repository, path: str
) -> None:
    repository.write(logged_model="MILLISECONDS = 1.0", logs=LOGS)
    repository.accept("ours", kind="quarantined")
    repository.commit()
    repository.write(logged_model="MILLISECONDS = 3.0")
    repository.commit()

    gated = gate_command(
        repository,
        path,
        *LOGGED,
        *("--policy=advisory", "--", "python", "logs.py", "times.jsonl"),
    )

    gated.expect(0, "ours FAIL quarantined +200.0 %*", "advisory: would have ended in 13")


def test_a_command_that_fails_is_the_base_without_a_baseline_or_a_failed_test_of_head(
    repository: Repository, path: str
) -> None:
    repository.write(model=f"{MODEL}\n    raise OSError('no such data')")
    repository.commit()
    call = (*NAMES, "--base=HEAD~1", "--", "python", "train.py")
    says = (
        "train: the command ended with exit code 1 before its first optimizer step: OSError: no "
        "such data*"
    )

    head = gate_command(repository, path, *call)
    repository.write(model=MODEL)
    (repository.path / "train.py").open("a").write("# left\n")
    repository.commit()
    base = gate_command(repository, path, *call)

    head.expect(1, "train ERROR*", f"*the head arm failed: WorkloadError: {says}")
    base.expect(12, "train NO-BASELINE*", f"*the base arm failed: WorkloadError: {says}")


MISTAKES = {
    ("-k", "a", "--", "python", "train.py"): (
        "perfsuite: -k stands before -- and a command, which is the only cell; leave it out\n"
    ),
    ("benchmarks", "--", "python", "train.py"): (
        "perfsuite: benchmarks stands before -- and a command, which is the only cell; leave it "
        "out\n"
    ),
    ("--", "trane", "train.py"): (
        "perfsuite: the command begins with 'trane', which is no program in {folder} or on PATH; "
        "name one that can be run\n"
    ),
    ("--",): ("perfsuite: no command stands after --; write one, such as torchrun train.py\n"),
    ("--steps=9", "benchmarks"): (
        "perfsuite: --steps is for a command; write the command at the end, after --\n"
    ),
    ("--steps=1", "--", "python"): "perfsuite: steps is 1; use a whole number from 2\n",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_beside_a_command_ends_in_one_line(
    tmp_path: Path, path: str, arguments: tuple[str, ...]
) -> None:
    ended = gate_command(Repository(tmp_path), path, *arguments)

    assert (ended.code, ended.output) == (2, MISTAKES[arguments].replace("{folder}", str(tmp_path)))
