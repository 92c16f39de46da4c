"""Runs git on a folder's own repository: without a shell, a hook, a prompt, a pager or a lock."""

import os
import subprocess
from pathlib import Path

from perfsuite.errors import PerfsuiteError, SettingError

# `git rev-parse --local-env-vars` (git 2.39), without the two that carry configuration: continuous
# integration sets safe.directory by them. Each would answer for another repository or index.
_OF_ANOTHER_REPOSITORY = (
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_CONFIG", "GIT_DIR"),
    *("GIT_GRAFT_FILE", "GIT_IMPLICIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_NAMESPACE"),
    *("GIT_INTERNAL_SUPER_PREFIX", "GIT_NO_REPLACE_OBJECTS", "GIT_OBJECT_DIRECTORY"),
    *("GIT_PREFIX", "GIT_REPLACE_REF_BASE", "GIT_SHALLOW_FILE", "GIT_WORK_TREE"),
)
# LC_ALL: git's messages are read here and quoted to the user.
_QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
# core.fsmonitor would leave a daemon behind.
_SETTINGS = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "diff.relative=false")
_OPTIONS = ("--no-pager", *(word for setting in _SETTINGS for word in ("-c", setting)))


def run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder, and return how it ended and what it wrote."""
    # The environment is passed on to git and not read, but for the names of other repositories.
    environment = {key: it for key, it in os.environ.items() if key not in _OF_ANOTHER_REPOSITORY}
    return subprocess.run(
        ["git", "-C", os.fspath(folder), *_OPTIONS, *arguments],
        env=environment | _QUIET,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        # Away from the terminal: Ctrl-C must not reach git half-way, nor ssh ask for a password.
        start_new_session=True,
    )


def answer(root: Path, *arguments: str) -> str | None:
    """Return git's answer of one line; None where it fails."""
    ended = run_git(root, *arguments)
    return os.fsdecode(ended.stdout).removesuffix("\n") if ended.returncode == 0 else None


def output(root: Path, *arguments: str) -> bytes:
    """Return git's whole output; raises a PerfsuiteError that quotes git where it fails."""
    ended = run_git(root, *arguments)
    if ended.returncode != 0:
        raise PerfsuiteError(f"'git {arguments[0]}' failed in {root}: {complaint_of(ended)}")
    return ended.stdout


def complaint_of(ended: subprocess.CompletedProcess[bytes]) -> str:
    """Return git's first complaint, which is the cause of the rest, or how it ended."""
    for line in os.fsdecode(ended.stderr).splitlines():
        if line.startswith(("fatal: ", "error: ")):
            return line.partition(": ")[2]
    if ended.returncode < 0:
        return f"git was ended by signal {-ended.returncode}"
    return f"git ended with exit code {ended.returncode}"


def find_commit(root: Path, name: str) -> str | None:
    """Return the full name of the commit of a branch, a tag or a commit's name; None if none."""
    if name.startswith("-"):
        advice = f"name the commit by its digits, or a branch of that name as 'refs/heads/{name}'"
        raise SettingError(f"the revision {name!r} begins with '-', as options do; {advice}")
    found = answer(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    # "^main" is all but main: one revision to git, and no commit.
    return None if found is None or found.startswith("^") else found


def file_at(folder: Path, commit: str, path: Path) -> bytes | None:
    """Return a file as it is at a commit, or where a link leads; None where there is none."""
    if not output(folder, "ls-tree", "-z", commit, "--", os.fspath(path)):
        return None
    return output(folder, "cat-file", "blob", f"{commit}:./{path}")
