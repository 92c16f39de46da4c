"""Pairs of launches: one fresh pytest of each arm, alive together, taking turns round by round."""

import collections
import contextlib
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfsuite.gate.arms.arm import Arm, Launch, PairPlan
from perfsuite.gate.arms.channel import Server
from perfsuite.gate.arms.launched import collected, load_log, turn_clock
from perfsuite.system import background
from perfsuite.system.apart import end_all, start_apart
from perfsuite.system.environment import PID_NAMESPACE
from perfsuite.system.files import explained
from perfsuite.system.signals import uninterrupted
from perfsuite.units import format_bytes

_PLUGIN_NAME = "perfsuite_arm"
# A launch's files, under names that no package has: it may have another perfsuite, or none.
_COPIED = {
    _PLUGIN_NAME: Path(load_log.__file__).with_name("arm_plugin.py"),
    "perfsuite_background": Path(background.__file__),
    "perfsuite_collected": Path(collected.__file__),
    "perfsuite_turn_clock": Path(turn_clock.__file__),
    "sitecustomize": Path(load_log.__file__),
}
# Lists the files that a launch collects, one a line; the arm's plugin reads it.
_FILES = "files"
_GRACE_S = 3.0
NUM_LOG_LINES = 20
_REFUSALS = re.compile(r"^(?:ERROR|.*pytest\S*: error): (?!usage)(.+)", re.MULTILINE)
# What pytest says of a test that is named in a file which cannot be imported, and why it cannot.
_NO_TEST = "ERROR: found no collectors for "
_WHY_BROKEN = re.compile(r"^E   (.+)", re.MULTILINE)
# A launch writes logs and results: less than this, hundreds of cells included.
_ROOM_BYTES = 16 * 2**20
_LONGEST_TEMPORARY_PATH = 40
# The variables that say where compiled code is kept. Two arms that shared such a folder would run
# one build where both use one name; a new folder for each launch would compile everything again.
_CACHES = {
    "PYTHONPYCACHEPREFIX": "python",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
    "NUMBA_CACHE_DIR": "numba",
    "CUPY_CACHE_DIR": "cupy",
}


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a temporary folder that is gone afterwards, or swept once this process is dead."""
    root = tempfile.gettempdir()
    # The path of a Unix socket, of the ranks' too, has 108 characters at most (unix(7)).
    fits = len(root) <= _LONGEST_TEMPORARY_PATH and os.pathsep not in root  # it is on PYTHONPATH
    with explained("make a temporary folder for the session"):
        prefix, place = f"perfsuite-{os.getpid()}-pair-{PID_NAMESPACE}-", None if fits else "/tmp"
        made = tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True)
    with made as folder:
        yield Path(folder)


def launch_pair(arms: Sequence[Arm], plan: PairPlan, names: Sequence[str]) -> dict[str, Launch]:
    """Run one pair over the named cells, in order; a WriteError if it cannot write its files.

    Without names the arms collect what the user's own call does, else the files of the cells.
    """
    files = dict.fromkeys(name.partition("::")[0] for name in sorted(names))
    plan = dataclasses.replace(plan, files=tuple(files), names=names)
    in_turn = [[arm] for arm in sorted(arms, key=lambda arm: arm.name != plan.first)]
    launches: dict[str, Launch] = {}
    place = f"{tempfile.gettempdir()}, or to TMPDIR where that is set"
    with explained("run a pair of launches", f"; its files go to {place}"):
        for together in in_turn if plan.is_apart else [arms]:
            agreed = collections.ChainMap(*(one.agreed for one in launches.values()))
            plan = dataclasses.replace(plan, agreed=agreed)
            with scratch_folder() as scratch:
                launches |= run_pair(together, plan, scratch=scratch)
        return {arm.name: launches[arm.name] for arm in arms}


def run_pair(arms: Sequence[Arm], plan: PairPlan, *, scratch: Path) -> dict[str, Launch]:
    """Run one launch of each arm, and return the launches by the arm's name; no process stays.

    The arm that runs the first round starts first: what a launch meets in memory and on the cores
    depends on what was started just before it. Socket, logs and temporary files go to `scratch`.
    """
    for name, source in _COPIED.items():
        shutil.copyfile(source, scratch / f"{name}.py")
    with (
        contextlib.ExitStack() as processes,
        # Closed before they are ended: an arm that waits for an answer then goes by itself.
        contextlib.closing(Server(arms, plan, scratch / "channel")) as server,
    ):
        for arm in sorted(arms, key=lambda arm: arm.name != plan.first):
            process = _process(server.launches[arm.name], plan, scratch)
            server.processes[arm.name] = processes.enter_context(process)
        server.serve()
    for name, launch in server.launches.items():
        if launch.failure is not None:
            text = (scratch / f"{name}.log").read_text(errors="replace")
            lines = text.splitlines()
            if launch.suite is None and server.processes[name].returncode == 4:  # a usage error
                launch.refusal = "; ".join(_REFUSALS.findall(text)) or None
                if _NO_TEST in text and (why := _WHY_BROKEN.findall(text)):
                    launch.refusal, launch.failure, lines = None, why[-1], []
            if launch.suite is None:
                lines += _what_hides_python(launch.arm, text)
            if (free_bytes := shutil.disk_usage(scratch).free) < _ROOM_BYTES:
                left = format_bytes(free_bytes)
                lines.append(f"the disk of {scratch.parent} is full: {left} left")
            launch.failure += "".join(f"\n  | {line}" for line in lines[-NUM_LOG_LINES:])
    return server.launches


def _what_hides_python(arm: Arm, text: str) -> list[str]:
    """What to say of modules that have the name of one of Python's which pytest's output has."""
    files = [path for root in arm.import_roots for path in sorted(root.glob("*.py"))]
    own = [one for one in files if one.stem in sys.stdlib_module_names]
    met = [one for one in own if re.search(rf"\b{one.stem}\.py\b|'{one.stem}'", text)]
    return [f"{path} hides Python's own module of that name; rename it" for path in met]


@contextlib.contextmanager
def _process(launch: Launch, plan: PairPlan, scratch: Path) -> Iterator[subprocess.Popen[bytes]]:
    arm, log_of_files = launch.arm, str(scratch / f"{launch.arm.name}.loaded")
    temporary = scratch / arm.name[0]  # short: a test's own sockets lie far below
    temporary.mkdir()
    (scratch / _FILES).write_bytes(os.fsencode("\n".join(plan.files)))
    variables = {**arm.inherited, **arm.environment}
    roots = [str(root) for root in (scratch, *arm.import_roots)]
    # An empty value is none: the variable may be the user's.
    caches = {"PYTHONDONTWRITEBYTECODE": "" if arm.caches else "1"}
    if arm.caches is not None:
        caches |= {name: str(arm.caches / arm.name / below) for name, below in _CACHES.items()}
    environment = {
        **variables,
        **caches,
        "PYTHONPATH": os.pathsep.join(filter(None, [*roots, variables.get("PYTHONPATH")])),
        "PYTHONHASHSEED": str(plan.hash_seed),
        "TMPDIR": str(temporary),
        "PERFSUITE_ARM_CHANNEL": str(scratch / "channel"),
        background.GATE: str(os.getpid()),
        background.LOG: log_of_files,
        load_log.WATCHED: os.pathsep.join(map(str, arm.watched)),
        load_log.OWN: f"{(arm.top or arm.tree).resolve()}/",
        load_log.BEGAN: str(temporary.stat().st_ctime),
        load_log.SESSION: str(background.read_start_s(os.getpid())),
        "PERFSUITE_ARM_NAME": arm.name,
        "PERFSUITE_LAUNCH": f"{arm.name}-{plan.number}",
        "PERFSUITE_ARM_CORE": str(plan.core),
        **({"PERFSUITE_ARM_PROFILES": "1"} if plan.profiles else {}),
    }
    command = [arm.python, *arm.python_options, "-m", "pytest", "-p", _PLUGIN_NAME]
    command += ["-o", f"cache_dir={temporary / 'cache'}", *arm.pytest_arguments]
    folder, log = arm.folder or arm.tree, scratch / f"{arm.name}.log"
    process = start_apart(command, folder=folder, variables=environment, output=log)
    try:
        yield process
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may be finishing
            process.wait(_GRACE_S)
    finally:
        with uninterrupted():
            launch.leaves_daemon = end_all(process, f"{background.LOG}={log_of_files}")
