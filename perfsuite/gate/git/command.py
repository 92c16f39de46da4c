"""How git is asked: without a shell, a hook, a prompt, a pager or a lock.

Never on another repository than the folder's own: what a hook's environment says about that is not
passed on. Must not know what is asked.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from perfsuite.errors import PerfsuiteError, SettingError

# `git rev-parse --local-env-vars` (git 2.39), without the two that carry configuration: continuous
# integration sets safe.directory by them. Each would answer for another repository or index.
_OF_ANOTHER_REPOSITORY = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_CONFIG",
        "GIT_DIR",
        "GIT_GRAFT_FILE",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_INTERNAL_SUPER_PREFIX",
        "GIT_NAMESPACE",
        "GIT_NO_REPLACE_OBJECTS",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
    }
)
# LC_ALL: what git says is read here and quoted to the user.
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
# core.fsmonitor would leave a daemon behind.
_OPTIONS = ("--no-pager", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")


def run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder, and return how it ended and what it wrote."""
    # The environment is passed on to git, not read: only what names another repository is not.
    environment = {
        name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_REPOSITORY
    }
    return subprocess.run(
        ["git", "-C", os.fspath(folder), *_OPTIONS, *arguments],
        env=environment | _ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        # Away from the terminal: Ctrl-C must not reach git half-way, nor ssh ask for a password.
        start_new_session=True,
    )


def answer(root: Path, *arguments: str) -> str | None:
    """Return git's answer of one line; None where it has none."""
    asked = run_git(root, *arguments)
    return os.fsdecode(asked.stdout).removesuffix("\n") if asked.returncode == 0 else None


def output(root: Path, *arguments: str) -> bytes:
    """Return all that git answers.

    Raises:
        PerfsuiteError: It does not; quotes it.
    """
    asked = run_git(root, *arguments)
    if asked.returncode != 0:
        raise PerfsuiteError(f"'git {arguments[0]}' failed in {root}: {complaint_of(asked)}")
    return asked.stdout


def complaint_of(ended: subprocess.CompletedProcess[bytes]) -> str:
    """Return what git complained of first, which is the cause of the rest, or how it ended."""
    for line in os.fsdecode(ended.stderr).splitlines():
        if line.startswith(("fatal: ", "error: ")):
            return line.partition(": ")[2]
    if ended.returncode < 0:
        return f"git was ended by signal {-ended.returncode}"
    return f"git ended with exit code {ended.returncode}"


def find_commit(root: Path, name: str) -> str | None:
    """Return the full name of the commit that a branch, a tag or a commit's name is; None if none.

    Raises:
        SettingError: The name begins as an option does: git could neither show it nor be told of it
            in any advice.
    """
    if name.startswith("-"):
        raise SettingError(
            f"the revision {name!r} begins with '-', as options do; name the commit by its digits, "
            f"or a branch of that name as 'refs/heads/{name}'"
        )
    found = answer(
        *(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    )
    # "^main" is all but main: one revision to git, and no commit.
    return None if found is None or found.startswith("^") else found
