"""What went wrong in a command, one sentence each, with the last words of its output."""

import itertools
import re
import signal
import subprocess

from perfsuite.errors import WorkloadError
from perfsuite.ranks.failures import Died, blamed_peer
from perfsuite.ranks.messages import Failed, Joined
from perfsuite.system.signals import SIGNALLED
from perfsuite.units import counted

# Torch begins each line of a rank's traceback so, and torchrun (--tee) each line of a rank.
_RANK = re.compile(r"^(?:\[[\w-]+\d\]: ?)+", re.MULTILINE)
# A progress bar may stand before it. Its lines are indented, up to what was raised.
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+(\S.*)$", re.M)
_OF_LAUNCHER, _LOG_OF_LAUNCHER = "torch.distributed.elastic", "torch/distributed/elastic/"
# What C++ says where torch's threads outlive Python: the exception that ended Python is the cause.
_ABORTED_AT_EXIT = "terminate called without an active exception"
# torchrun names the signal that ended a rank.
_SIGNAL = r"\((SIG\w+)\) received by PID {process}\b"
HOOK_ADVICE = (
    "perfsuite's hook; start Python without -I, -E and -S, with the PYTHONPATH that the command is "
    "given, and on this machine, outside of a container; or name what it logs (metrics=)"
)


def last_words(output: str) -> str:
    """Return what the last traceback says that tells of no other rank, else the last line."""
    lines = [line.strip() for line in output.splitlines() if any(map(str.isalnum, line))]
    own = list(itertools.takewhile(lambda line: _LOG_OF_LAUNCHER not in line, lines))
    return next(iter([*_tracebacks(output)[-1:], *own[-1:], *lines[-1:]]), "it printed nothing")


def _tracebacks(output: str) -> list[str]:
    """The last lines of all tracebacks, after those that only tell that another rank is gone."""
    found: list[str] = _TRACEBACK.findall(_RANK.sub("", output))
    own = [line for line in found if _OF_LAUNCHER not in line]
    return sorted(own, key=lambda line: blamed_peer(line) is None)


def read_end(
    rank: Joined, launcher: subprocess.Popen[bytes], output: str, *, at_s: float
) -> Died | Failed:
    """Return how a rank ended without a reply, as far as its launcher and its output tell."""
    exit_code: int | None = launcher.returncode
    if killed := re.findall(_SIGNAL.format(process=rank.process), output):
        exit_code = -signal.Signals[killed[0]]
    elif exit_code is not None and exit_code - SIGNALLED in {*signal.Signals}:
        exit_code = SIGNALLED - exit_code
    elif rank.process != launcher.pid:
        exit_code = None
    raised = _tracebacks(output)
    if raised and exit_code == -signal.SIGABRT and _ABORTED_AT_EXIT in output:
        exit_code = None
    if raised and (exit_code is None or exit_code >= 0):
        error, _, message = raised[-1].partition(": ")
        return Failed(error=error, message=message, peer=blamed_peer(message), at_s=at_s)
    return Died(exit_code=exit_code, peer=None, at_s=at_s)


def ended_error(
    name: str, exit_code: int | None, num_steps: int | None, output: str, has_hook: bool | None
) -> WorkloadError:
    """Return the error of a command whose launcher ended before its ranks had replied.

    `num_steps` is None where no rank was found, `has_hook` where none was looked for.
    """
    how = f"{name}: the command ended with exit code {exit_code}"
    if exit_code is None:
        how = f"{name}: the command lost a rank"
    elif exit_code < 0:
        how = f"{name}: the command was killed by {signal.Signals(-exit_code).name}"
    if num_steps is not None:
        return WorkloadError(f"{how} after {counted(num_steps, 'step')}: {last_words(output)}")
    if exit_code != 0:
        when = "" if has_hook is None else " before its first optimizer step"
        return WorkloadError(f"{how}{when}: {last_words(output)}")
    if has_hook:
        advice = "call perfsuite.step_done() at the end of each step"
        return WorkloadError(f"{how}, and no torch optimizer stepped in it; {advice}")
    return WorkloadError(f"{how}, and no process of it loaded torch.optim with {HOOK_ADVICE}")
