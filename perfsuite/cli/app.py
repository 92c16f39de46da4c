"""The command line: one console script, one verb a function, each with an example in its --help."""

import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from perfsuite import errors
from perfsuite.cli.doctor.verb import doctor
from perfsuite.cli.output import JsonFile
from perfsuite.cli.schemas import schemas
from perfsuite.cli.verbs.baseline import app as baseline
from perfsuite.cli.verbs.bisect import bisect_commits
from perfsuite.cli.verbs.calibrate import calibrate_machine
from perfsuite.cli.verbs.claims import claims
from perfsuite.cli.verbs.compare import compare_recipes
from perfsuite.cli.verbs.gate import CommandAfterDashes, explain, gate
from perfsuite.cli.verbs.history import history
from perfsuite.cli.verbs.init import init
from perfsuite.cli.verbs.profile import profile
from perfsuite.cli.verbs.report import report
from perfsuite.cli.verbs.sweep import sweep
from perfsuite.cli.verbs.verify import verify
from perfsuite.errors import ExitCode, PerfsuiteError, SettingError
from perfsuite.system.signals import SIGNALLED, ends_on_signals, exit_by
from perfsuite.system.untrusted import printable_lines

_JSON = "--benchmark-json"

app = typer.Typer(
    name="perfsuite",
    help="Measure PyTorch training, prove that it computes the same, gate merges on it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(baseline)


def main() -> None:
    """Run the command line; an error is its message, and the code for its kind."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr is
    try:
        with ends_on_signals():
            app()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer's 1 is that of a failed test
            sys.exit(SIGNALLED + signal.SIGPIPE)
        if ended.code == SIGNALLED + signal.SIGINT:  # as typer ends, without a word
            sys.stderr.write("perfsuite: ended by SIGINT\n")
        raise
    except KeyboardInterrupt:  # as typer builds its commands
        exit_by(signal.SIGINT)
    except PerfsuiteError as error:
        sys.stderr.write(f"perfsuite: {printable_lines(str(error))}\n")
        failures = errors.RankFailureError | errors.DataLoadError | errors.NonFiniteError
        if isinstance(error, failures):
            sys.exit(ExitCode.FAILED)
        is_refused = isinstance(error, errors.StorageError | errors.WriteError)
        sys.exit(ExitCode.REFUSED if is_refused else ExitCode.USAGE)
    except OSError as error:
        if error.errno == errno.ENOENT and not Path("/proc/self/cwd").readlink().exists():
            sys.stderr.write("perfsuite: the working directory is gone; change to another one\n")
            sys.exit(ExitCode.USAGE)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO) or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushed once more at exit
        sys.stderr.write(f"perfsuite: cannot write to the standard output: {error.strerror}\n")
        sys.exit(ExitCode.REFUSED)


def _show_version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"perfsuite {version('perfsuite')}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Options before any verb."""


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="[PATHS] [PYTEST OPTIONS]",
    epilog="Example: perfsuite run benchmarks/ --perf-matrix=smoke",
)
def run(context: typer.Context, json_file: JsonFile = None) -> None:
    """Run the benchmarks and report: `pytest PATHS` with any pytest options and its exit code."""
    # pytest replaces this process, so signals, terminal and exit code are its own.
    command = [sys.executable, "-m", "pytest", "-p", "perfsuite.plugin.report", *context.args]
    if json_file is not None:
        if str(json_file) == "-" or any(one.startswith(_JSON) for one in context.args):
            raise SettingError(f"--json is pytest's {_JSON}: name one file, by one of the two")
        command.append(f"{_JSON}={json_file}")
    os.execv(sys.executable, command)


_VERBS: dict[str, tuple[Callable[..., None], str]] = {
    "verify": (verify, "my_package.module:workload --parallel ddp:2 --precision amp-bf16"),
    "gate": (gate, "benchmarks/ --base origin/main; perfsuite gate -- torchrun train.py"),
    "profile": (profile, "lenet-digits --num-workers 2 --epochs 3"),
    "report": (report, "results/run.json --html results/report"),
    "init": (init, ""),
    "history": (history, "'benchmarks/test_step.py::test_step\\[ddp:2]' --json h.json"),
    "explain": (explain, "baselines/0001_a.json results/run.json"),
    "compare": (compare_recipes, "lenet-digits --a precision=fp32 --b precision=amp-bf16"),
    "sweep": (sweep, "lenet-digits --num-workers 0..10"),
    "claims": (claims, "--only C5 --json claims.json"),
    "bisect": (bisect_commits, "--good v1.2 'benchmarks/test_step.py::test_step\\[ddp:2]'"),
    "calibrate": (calibrate_machine, "benchmarks/ --sessions 20"),
    "doctor": (doctor, "--json doctor.json"),
    "schemas": (schemas, "schemas"),
}
for _name, (_verb, _example) in _VERBS.items():
    _class = CommandAfterDashes if _verb is gate else None
    _epilog = f"Example: perfsuite {_name} {_example}".rstrip()
    app.command(_name, cls=_class, epilog=_epilog)(_verb)
