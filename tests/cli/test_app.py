"""The command line: what reaches pytest, what the doctor prints and writes, how mistakes end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from made_up_runs import benchmark, write_run
from typer.testing import CliRunner

from perfsuite.cli import app
from perfsuite.cli.doctor.findings import Finding
from perfsuite.errors import SettingError

FIT = [Finding("cores", "ok", "2"), Finding("load", "warn", "2.00 [busy]", "end them (see top)")]
UNFIT = [*FIT, Finding("shared memory", "fail", "4.00 MiB free", "docker run --shm-size=1g")]


def perfsuite(
    *arguments: str, cwd: Path, encoding: str = "utf-8"
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, whose streams have the encoding."""
    return subprocess.run(
        [sys.executable, "-m", "perfsuite", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        encoding=encoding,
        check=False,
    )


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_an_output_that_is_full_is_one_line_and_12(argument: str) -> None:
    command = [sys.executable, "-m", "perfsuite", argument]

    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    line = "perfsuite: cannot write to the standard output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (12, line)


@pytest.mark.parametrize("argument", ["--help", "schemas"])
def test_an_output_that_nobody_reads_is_told_as_a_shell_tells_of_sigpipe(
    tmp_path: Path, argument: str
) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "perfsuite",
            argument,
            *([str(tmp_path)] if argument != "--help" else []),
        ],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)

    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


def test_ctrl_c_before_a_verb_begins_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt  # as typer builds its commands

    monkeypatch.setattr(typer.main, "get_command", interrupt)

    with pytest.raises(SystemExit) as ended:
        app.main()

    assert ended.value.code == 128 + signal.SIGINT
    assert capfd.readouterr().err == "perfsuite: ended by SIGINT\n"


# --- run ---


@pytest.mark.parametrize(
    "arguments", [[], ["tests::test_a[b::c]", "-x"], ["-k", "", "-n0"], ["tests", "--version"]]
)
def test_run_becomes_pytest_with_every_argument_as_it_was(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    replaced: list[str] = []
    monkeypatch.setattr(os, "execv", lambda program, argv: replaced.extend([program, *argv]))

    CliRunner().invoke(app.app, ["run", *arguments])

    command = [sys.executable, "-m", "pytest", "-p", "perfsuite.plugin.report"]
    assert replaced == [sys.executable, *command, *arguments]


def test_the_json_of_run_is_the_one_that_pytest_benchmark_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[str] = []
    monkeypatch.setattr(os, "execv", lambda program, argv: replaced.extend(argv))
    file = tmp_path / "bench.json"

    CliRunner().invoke(app.app, ["run", "tests", "--json", str(file), "-x"])

    assert replaced[5:] == ["tests", "-x", f"--benchmark-json={file}"]


@pytest.mark.parametrize("arguments", [["-"], ["own.json", "--benchmark-json=other.json"]])
def test_run_refuses_a_json_that_pytest_could_not_write_as_it_is_asked(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "execv", lambda program, argv: pytest.fail("pytest was started"))

    ended = CliRunner().invoke(app.app, ["run", "tests", "--json", *arguments])

    assert (
        str(ended.exception)
        == "--json is pytest's --benchmark-json: name one file, by one of the two"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [(["-k", "passes"], 0), (["-k", "fails"], 1), (["--no-such-option"], 4), (["-k", "none"], 5)],
)
def test_the_exit_code_of_run_is_pytests(
    tmp_path: Path, arguments: list[str], exit_code: int
) -> None:
    (tmp_path / "test_two.py").write_text(
        "def test_passes(): pass\ndef test_fails(): assert False\n"
    )

    ended = perfsuite("run", "test_two.py", "-p", "no:perfsuite", *arguments, cwd=tmp_path)

    assert ended.returncode == exit_code, ended.stdout + ended.stderr


# --- doctor ---


def test_a_fit_machine_ends_in_0_with_a_line_for_each_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perfsuite.cli.doctor.verb.examine", lambda: FIT)

    ended = CliRunner().invoke(app.app, ["doctor"])

    assert ended.exit_code == 0
    assert ended.stdout.splitlines() == [
        "ok   cores: 2",
        "warn load: 2.00 [busy]",
        "     -> end them (see top)",
    ]


def test_an_unfit_machine_ends_in_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfsuite.cli.doctor.verb.examine", lambda: UNFIT)

    ended = CliRunner().invoke(app.app, ["doctor"])

    assert ended.exit_code == 1
    assert "fail shared memory: 4.00 MiB free" in ended.stdout.splitlines()


def test_the_doctors_json_has_a_schema_and_every_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfsuite.cli.doctor.verb.examine", lambda: UNFIT)
    path = tmp_path / "results" / "doctor.json"

    CliRunner().invoke(app.app, ["doctor", "--json", str(path)])

    assert json.loads(path.read_text()) == {
        "schema": 1,
        "findings": [
            {"subject": "cores", "status": "ok", "text": "2", "advice": None},
            {
                "subject": "load",
                "status": "warn",
                "text": "2.00 [busy]",
                "advice": "end them (see top)",
            },
            {
                "subject": "shared memory",
                "status": "fail",
                "text": "4.00 MiB free",
                "advice": "docker run --shm-size=1g",
            },
        ],
    }


def test_json_that_cannot_be_written_ends_in_12_with_the_path_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("perfsuite.cli.doctor.verb.examine", lambda: FIT)
    path = tmp_path / "file" / "doctor.json"
    path.parent.write_text("")

    monkeypatch.setattr("sys.argv", ["perfsuite", "doctor", "--json", str(path)])

    with pytest.raises(SystemExit) as ended:
        app.main()

    assert ended.value.code == 12
    assert capsys.readouterr().err == f"perfsuite: cannot write {path}: Not a directory\n"


# --- mistakes ---


def test_the_version_is_that_of_the_distribution(tmp_path: Path) -> None:
    ended = perfsuite("--version", cwd=tmp_path)

    assert (ended.returncode, ended.stdout) == (0, f"perfsuite {version('perfsuite')}\n")


def test_a_working_directory_that_is_gone_is_one_line_and_2(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    perfsuite = [sys.executable, "-P", "-m", "perfsuite", "baseline", "list"]

    ended = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *perfsuite],
        cwd=gone,
        capture_output=True,
        text=True,
        check=False,
    )

    said = "perfsuite: the working directory is gone; change to another one\n"
    assert (ended.returncode, ended.stderr) == (2, said)


def test_a_terminal_that_lacks_a_character_gets_its_number(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.json", benchmark("test_\N{SNOWMAN}"))

    ended = perfsuite("report", str(path), cwd=tmp_path, encoding="latin-1")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "test_\\u2603   2.00 ms   ± 74.1 %" in ended.stdout


def test_an_unknown_verb_ends_in_2(tmp_path: Path) -> None:
    ended = perfsuite("mesure", cwd=tmp_path)

    assert ended.returncode == 2
    assert "No such command 'mesure'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_mistake_of_the_user_is_one_line_and_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> list[Finding]:
        raise SettingError("rounds is 0; use a whole number from 1")

    monkeypatch.setattr("perfsuite.cli.doctor.verb.examine", refuse)
    monkeypatch.setattr(sys, "argv", ["perfsuite", "doctor"])

    with pytest.raises(SystemExit) as ended:
        app.main()

    assert ended.value.code == 2
    assert capsys.readouterr().err == "perfsuite: rounds is 0; use a whole number from 1\n"


@pytest.mark.parametrize("verb", typer.main.get_group(app.app).commands)
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    ended = CliRunner().invoke(app.app, [verb, "--help"])

    assert ended.exit_code == 0
    assert f"Example: perfsuite {verb}" in ended.stdout


# --- verify ---

OWN_MODEL = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

import perfsuite


class Model(nn.Linear):
    def forward(self, inputs):
        # On the ranks alone, so that the reference is right.
        wrong = WRONG and torch.distributed.is_initialized()
        return super().forward(inputs) * (1.5 if wrong else 1.0)


def points(split):
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(64, 4, generator=generator), torch.arange(64) % 3)


workload = perfsuite.Workload(
    name="own",
    build_model=lambda: Model(4, 3),
    build_dataset=points,
    loss=nn.functional.cross_entropy,
    build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    micro_batch_size=8,
)
"""


@pytest.mark.slow
def test_verify_proves_a_model_of_ones_own_and_writes_the_rows(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_MODEL.replace("WRONG", "False"))

    result = perfsuite(
        *("verify", "own:workload", "--parallel", "ddp:2", "--json", "rows.json"), cwd=tmp_path
    )

    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    document = json.loads((tmp_path / "rows.json").read_text())
    assert document["schema"] == 1
    assert [row["check"] for row in document["rows"]] == ["T0", "T1", "data"]
    first = document["rows"][0]
    assert list(first) == [
        "parallel",
        "precision",
        "checkpointing",
        "world_size",
        "check",
        "status",
        "error",
        "limit",
        "power",
        "reason",
    ]
    assert (first["status"], first["error"], first["limit"]) == ("equivalent", 0.0, 0.0)
    assert first["reason"] == "equal bit for bit"
    assert "T0 equivalent (ddp:2, fp32): equal bit for bit" in result.stdout


@pytest.mark.slow
def test_verify_ends_in_20_where_the_model_computes_something_else(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_MODEL.replace("WRONG", "True"))

    result = perfsuite("verify", "own:workload", "--parallel", "ddp:2", cwd=tmp_path)

    assert result.returncode == 20
    assert "T0 mismatch (ddp:2, fp32): the " in result.stdout


@pytest.mark.slow
def test_verify_ends_in_22_with_the_reason_where_nothing_could_be_exercised(
    tmp_path: Path,
) -> None:
    result = perfsuite(
        *("verify", "lenet-digits", "--parallel", "dp:2", "--device", "cpu"), cwd=tmp_path
    )

    assert result.returncode == 22
    assert (
        "T1 not exercised (dp:2, fp32): parallel 'dp:2': nn.DataParallel silently runs the plain "
        "module on cpu; it needs a CUDA device" in result.stdout
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["nothing"],
            "workload 'nothing' is not known; use one of lenet-digits, ",
        ),
        (
            ["lenet-digits", "--precision", "fp8"],
            "precision is 'fp8'; use one of fp64, fp32, ",
        ),
        (
            ["lenet-digits", "--device", "tpu"],
            "--device is 'tpu'; use one of auto, cpu, cuda",
        ),
        (
            ["lenet-digits", "--all", "--parallel", "ddp:2"],
            "--all tries every recipe; leave the options of one recipe out",
        ),
    ],
)
def test_a_mistake_in_verify_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = perfsuite("verify", *arguments, cwd=tmp_path)

    assert result.returncode == 2
    assert result.stderr.startswith(f"perfsuite: {message}")
    assert result.stderr.count("\n") == 1
