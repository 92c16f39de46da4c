"""The base's own interpreter, and its own build, which runs before anything is imported."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from perfsuite.gate.arms.launch import NUM_LOG_LINES
from perfsuite.system import background
from perfsuite.system.apart import end_all, start_apart


def find_interpreter(name: str) -> str:
    """Return the absolute path of a program; raises a ValueError where there is none."""
    if (found := shutil.which(name)) is None:
        raise ValueError(name)
    return str(Path(found).absolute())  # a resolved link would lead out of a virtual environment


def build_base(
    command: str, tree: Path, *, site: Path, root: Path, python: str, environment: Mapping[str, str]
) -> str | None:
    """Build in `tree` or into `site`, a new folder; return why it failed, None where it did not.

    A shell runs `command`, and finds the base's interpreter as `python`. The build also fails where
    it changes the packages of this interpreter, because head, in `root`, runs with them too.
    """
    site.mkdir()
    paths = str(Path(python).parent), environment.get("PATH", os.defpath)
    variables = {**environment, "PATH": os.pathsep.join(paths), background.LOG: f"{site}.log"}
    variables |= dict.fromkeys(("PERFSUITE_SITE", "PIP_TARGET"), str(site))
    before, mark, said = _installed(), f"{background.LOG}={site}.log", Path(f"{site}.said")
    watched = sys.executable, "-IS", background.__file__, str(os.getpid()), mark, "sh", "-c"
    process = start_apart([*watched, command], folder=tree, variables=variables, output=said)
    try:
        process.wait()
    finally:
        end_all(process, mark)
    if changed := sorted({*before.items()} ^ {*_installed().items()}):
        names = dict.fromkeys(name.partition("-")[0] for name, _ in changed)
        place = sysconfig.get_path("purelib")
        return (
            f"the build of the base, '{command}', changed {', '.join(names)} in {place}, and "
            f"head runs with that too; repair it with 'pip install --no-deps --editable {root}', "
            "and have the build install into the folder that PERFSUITE_SITE names"
        )
    if process.returncode != 0:
        lines = said.read_text(errors="replace").splitlines()
        last = "".join(f"\n  | {line}" for line in lines[-NUM_LOG_LINES:])
        return f"the build of the base, '{command}', ended with code {process.returncode}{last}"
    return None


def _installed() -> dict[str, int]:
    """When each distribution of this interpreter was installed, by the folder of its record."""
    return {
        path.name: path.stat().st_mtime_ns
        for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        for path in Path(folder).glob("*")
        if path.suffix in (".dist-info", ".egg-info", ".egg-link", ".egg")
    }
