"""What a command is launched with, before anything of it runs."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from perfsuite.errors import SettingError, WorkloadError
from perfsuite.experiments.user_code import name_of
from perfsuite.ranks.command import group as group_module
from perfsuite.ranks.command.group import CommandGroup, CommandLaunch
from perfsuite.ranks.messages import (
    CallFunction,
    GroupPolicy,
    GroupRequest,
    MeasurePlan,
    RunCell,
    TurnChannel,
    UserCode,
)


def launch(**fields: object) -> CommandLaunch:
    given: dict[str, object] = {"name": "a", "words": ("sh",), "folder": Path("/"), "inherited": {}}
    return CommandLaunch(**given | fields)  # type: ignore[arg-type]


def test_what_the_users_environment_names_goes_before_what_a_launch_sets() -> None:
    out = Path("/tmp/out")

    alone = launch().variables(out)
    given = launch(
        inherited={"MASTER_PORT": "1", "PERFSUITE_LAUNCH": "base-3", "PERFSUITE_OUT": "/old"},
        environment={"WANDB_MODE": "online", "LOGS": "{out}/logs"},
    ).variables(out)

    assert alone["MASTER_PORT"] != alone["PET_MASTER_PORT"]
    assert (alone["WANDB_MODE"], alone["PERFSUITE_LAUNCH"]) == ("disabled", "head-0")
    assert given | {"PET_MASTER_PORT": ""} == {
        "MASTER_PORT": "1",
        "PET_MASTER_PORT": "",
        "PERFSUITE_LAUNCH": "base-3",
        "PERFSUITE_OUT": "/tmp/out",
        "WANDB_MODE": "online",
        "LOGS": "/tmp/out/logs",
    }


def test_a_program_is_looked_for_where_the_command_runs_and_on_its_own_path(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(SettingError):
        launch(words=("./run.sh",), folder=tmp_path).program({})
    script.chmod(0o755)

    here = launch(words=("./run.sh",), folder=tmp_path).program({})
    on_path = launch(words=("run.sh",)).program({"PATH": str(tmp_path)})

    assert (here, on_path) == (str(script), str(script))


def test_a_gate_hears_again_and_again_of_a_command_that_waits_quietly(tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    heard: list[str] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "gate"))
    listener.listen()

    def hear_twice() -> None:
        with listener.accept()[0].makefile() as lines:
            heard.extend([next(lines), next(lines)])
            go.write_text("on")
            lines.read()

    threading.Thread(target=hear_twice, daemon=True).start()
    channel = TurnChannel(path=str(tmp_path / "gate"), arm="head")
    policy = GroupPolicy(turns=channel, timeout_s=3.0)
    request = GroupRequest(job=CallFunction(call=b""), world_size=1, policy=policy)
    quiet = launch(words=("sh", "-c", "cat go"), folder=tmp_path, inherited=dict(os.environ))

    with listener, CommandGroup(request, quiet, has_hook=False) as group:
        assert group.run_to_end() == "on"

    assert heard == ['{"kind": "hello", "arm": "head"}\n'] * 2


def request_of(**policy: Any) -> GroupRequest:
    code = UserCode(name="a", function=b"", kind="command", num_steps=2)
    job = RunCell(activity="command", plan=MeasurePlan(), user_code=code)
    return GroupRequest(job=job, world_size=1, policy=GroupPolicy(**policy))


def test_a_command_ignores_no_signal_that_python_does(tmp_path: Path) -> None:
    words = ("sh", "-c", "grep SigIgn /proc/self/status")
    telling = launch(words=words, folder=tmp_path, inherited=dict(os.environ))

    with CommandGroup(request_of(), telling, has_hook=False) as group:
        ignored = int(group.run_to_end().split()[1], base=16)

    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


@pytest.mark.parametrize(
    ("own", "path"),
    [
        ({"PYTHONPATH": "scripts:{out}"}, "scripts:$PERFSUITE_OUT:/log:/tree"),
        ({"PYTHONPATH": ""}, "/log:/tree"),
        ({}, "/log:/tree"),
    ],
)
def test_a_commands_own_path_goes_before_that_of_its_launch_and_hides_none_of_it(
    tmp_path: Path, own: dict[str, str], path: str
) -> None:
    words = ("sh", "-c", f'echo "$PYTHONPATH" = "{path}"')
    inherited = {**os.environ, "PYTHONPATH": "/log:/tree"}
    telling = launch(words=words, folder=tmp_path, inherited=inherited, environment=own)

    with CommandGroup(request_of(), telling, has_hook=False) as group:
        found, expected = group.run_to_end().split(" = ")

    assert found == expected.strip()


def test_a_process_that_connects_and_says_nothing_costs_the_patience_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "_PATIENCE", 1)
    silent = "import os, socket, time; one = socket.socket(socket.AF_UNIX); "
    silent += "one.connect(os.environ['PERFSUITE_COMMAND']); time.sleep(600)"
    words = (sys.executable, "-S", "-c", silent)
    started = launch(words=words, folder=tmp_path, inherited=dict(os.environ))

    refused = pytest.raises(WorkloadError)
    with CommandGroup(request_of(timeout_s=1.0), started) as group, refused as raised:
        group.run()

    assert str(raised.value).startswith(
        "a: a rank has connected and not said which it is, and it printed nothing, for 1 s"
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import time, torch; time.sleep(600)", "a: process * computes with torch and without "),
        (
            "sum(range(10**8))",
            "a: the command ended with exit code 0, and no process of it loaded ",
        ),
    ],
)
def test_a_command_that_computes_with_torch_and_without_the_hook_is_not_waited_for(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "_UNHOOKED_S", 0.1)
    monkeypatch.setattr(group_module, "_LOOK_S", 0.1)
    words = (sys.executable, "-E", "-c", code)
    started = launch(words=words, folder=tmp_path, inherited=dict(os.environ))

    refused = pytest.raises(WorkloadError)
    with CommandGroup(request_of(), started) as group, refused as raised:
        group.run()

    advice = "perfsuite's hook; start Python without -I, -E and -S, *"
    assert fnmatchcase(str(raised.value), f"{message}*{advice}")


def test_a_command_is_named_after_its_first_file_its_module_or_its_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "small.yaml").touch()
    outside = tmp_path.with_name("outside.py")
    outside.touch()

    names = [
        name_of(words.split(), tmp_path)
        for words in (
            "torchrun --nproc-per-node=2 train.py --config small.yaml",
            "python -m torch.distributed.run train.py",
            "python -m pkg.train",
            "./bin/run.sh fast",
            f"python {tmp_path}/train.py",
            f"python {outside}",
            f"bash -c {'x' * 300}",
        )
    ]

    assert names == ["train", "train", "pkg.train", "run", "train", "outside", "bash"]


def test_a_command_runs_where_the_temporary_folder_is_too_long_for_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / ("x" * 90)
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    script = "import os; from pathlib import Path; place = Path(os.environ['PERFSUITE_COMMAND'])\n"
    script += "print(place.is_socket(), place.parent.samefile(Path.cwd().parent))"
    words = ("sh", "-c", 'cd "$PERFSUITE_OUT" && exec "$0" -c "$1"', sys.executable, script)

    with CommandGroup(request_of(), launch(words=words), has_hook=False) as group:
        output = group.run_to_end()

    assert output == "True True\n"
    assert list(temporary.iterdir()) == []
