"""Questions to git: what a checkout holds, and what its commits are. Only `add_worktree` writes."""

import os
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from perfsuite.errors import WriteError
from perfsuite.gate.git.command import answer, complaint_of, output, run_git
from perfsuite.system.untrusted import printable
from perfsuite.units import format_bytes, short_commit

# git-lfs would fetch its files over the network; without its filters they stay pointers.
# worktree.useRelativePaths would write an extension into the user's configuration (git 2.48).
_WORKTREE_OPTIONS = (
    *("-c", "filter.lfs.process=", "-c", "filter.lfs.smudge=", "-c", "filter.lfs.required=false"),
    *("-c", "worktree.useRelativePaths=false", "-c", "submodule.recurse=false"),
)
_CHECK_OUT = ("reset", "--quiet", "--hard", "--no-recurse-submodules")

USE_FOLDER = "use --base-dir=DIR (pytest: --perf-base-dir)"


class Base(NamedTuple):
    """The commit that head is compared with: how it was found, and why another may be meant.

    `instead` is the base where no cell loads what head has and this commit has not.
    """

    revision: str
    described: str
    warning: str | None = None
    instead: "Base | None" = None


def is_in_history(root: Path, commit: str, revision: str) -> bool:
    """Whether `commit` is `revision` or an ancestor of it; an unknown commit is not."""
    return run_git(root, "merge-base", "--is-ancestor", commit, revision).returncode == 0


def changed_files(root: Path, old: str, new: str) -> frozenset[Path]:
    """Return the files that differ between two commits; absolute paths."""
    options = ("--name-only", "--no-renames", "--no-ext-diff", "-z")
    changed = output(root, "diff", *options, "--end-of-options", old, new, "--")
    top = find_top(root)
    assert top is not None
    return frozenset(top / os.fsdecode(name) for name in changed.split(b"\0") if name)


def find_top(folder: Path) -> Path | None:
    """Return the top of the checkout that `folder` is in, without symbolic links; None outside."""
    if shutil.which("git") is None:
        return None
    # Inside a git directory git may know a top all the same.
    answered = run_git(folder, "rev-parse", "--is-inside-work-tree", "--show-toplevel")
    is_inside, _, top = answered.stdout.removesuffix(b"\n").partition(b"\n")
    return Path(os.fsdecode(top)) if answered.returncode == 0 and is_inside == b"true" else None


def worktree_records(root: Path) -> Path | None:
    """Return where git records linked worktrees (gitrepository-layout(5)); None outside git."""
    common = answer(root, "rev-parse", "--git-common-dir") if find_top(root) else None
    return None if common is None else (root / common).resolve() / "worktrees"


def add_worktree(root: Path, base: Base, folder: Path) -> None:
    """Check the base out in `folder`, an empty one, as a worktree that is on no branch.

    Filters of the user run, but git-lfs does not: its files stay pointers. Submodules stay empty. A
    sparse checkout is as sparse as the user's. A partial clone fetches what it lacks.
    """
    add = ("worktree", "add", "--quiet", "--detach", "--no-checkout", "--")
    made = run_git(root, *_WORKTREE_OPTIONS, *add, os.fspath(folder), base.revision)
    # Two steps, because a worktree that is added with its files runs the hook post-checkout, and
    # hooks that newer versions read from the configuration know no core.hooksPath.
    if made.returncode == 0:
        made = run_git(folder, *_WORKTREE_OPTIONS, *_CHECK_OUT)
    if made.returncode != 0:
        free = format_bytes(shutil.disk_usage(folder).free)  # git does not say that a disk is full
        failed = f"cannot check out the base, {short_commit(base.revision)}, in {folder}"
        raise WriteError(f"{failed} ({free} free there): {complaint_of(made)}")


def read_log(root: Path, revision: str) -> dict[str, datetime]:
    """Return when each commit up to a revision was made, parents before their children.

    A commit without a time has that of the one before it, or at the beginning of the one after.
    """
    options = ("--topo-order", "--reverse", "--no-show-signature", "--format=%H %ct")
    lines = output(root, "log", *options, revision).decode().splitlines()
    commits = [line.partition(" ") for line in lines]
    made_at = {name: _moment_of(seconds) for name, _, seconds in commits}
    latest = next(filter(None, made_at.values()), datetime.fromtimestamp(0, UTC))
    return {name: (latest := moment or latest) for name, moment in made_at.items()}


def _moment_of(seconds: str) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):  # none, or one that no calendar has
        return None


def count_commits(root: Path, old: str, new: str, other: str | None = None) -> int:
    """Return how many commits `new` has that `old` has not, nor `other`."""
    return int(output(root, "rev-list", "--count", f"{old}..{new}", *([f"^{other}"] * bool(other))))


def subject_of(root: Path, commit: str) -> str:
    """Return the first line of a commit's message, without control characters."""
    subject = output(root, "log", "-1", "--no-show-signature", "--format=%s", commit)
    return printable(os.fsdecode(subject).removesuffix("\n"))


def working_files(folder: Path) -> list[Path]:
    """Return the files below `folder` that git has or would add, links and nested checkouts too.

    A submodule that was copied has no git of its own: of that, all files.
    """
    files: list[Path] = []
    for path in dict.fromkeys(listed_files(folder, "--cached", "--others", "--exclude-standard")):
        if is_file_or_link(folder / path):
            files.append(path)
        elif (folder / path / ".git").exists():
            files.extend(path / inner for inner in working_files(folder / path))
        else:
            inside = (folder / path).rglob("*")
            files.extend(one.relative_to(folder) for one in inside if is_file_or_link(one))
    return files


def is_file_or_link(path: Path) -> bool:
    """Whether there is a file or a link, which may lead nowhere."""
    return path.is_symlink() or path.is_file()


def listed_files(folder: Path, *arguments: str) -> list[Path]:
    """Return what `git ls-files` lists with these arguments, relative to the folder."""
    listed = output(folder, "ls-files", "-z", *arguments)
    return [Path(os.fsdecode(name)) for name in listed.split(b"\0") if name]


def tracked_files(top: Path, paths: Iterable[Path], *options: str) -> set[Path]:
    """Return those of the paths, relative to the top, that git tracks: none outside of it."""
    if find_top(top) is None:
        return set()
    return {*listed_files(top, *options, "--cached", "--", *(f":(literal){it}" for it in paths))}


def is_ignored(top: Path, path: Path) -> bool:
    """Whether git ignores a path, relative to the top; it ignores nothing outside of a checkout."""
    asked = ("check-ignore", "--quiet", "--", os.fspath(path))
    return find_top(top) is not None and run_git(top, *asked).returncode == 0


def submodules(tree: Path) -> dict[Path, str]:
    """Return the commits of the submodules of a checkout, by their path from `tree`, its top."""
    return {
        Path(os.fsdecode(entry.partition(b"\t")[2])): entry.split()[1].decode()
        for entry in output(tree, "ls-files", "-z", "--stage").split(b"\0")
        if entry.startswith(b"160000")  # the mode of a submodule, gitformat-index(5)
    }


def submodule_stores(top: Path) -> list[Path]:
    """Return where git keeps the objects of submodules, of those that were removed too."""
    # A linked worktree has submodules of its own.
    found = {answer(top, "rev-parse", f"--git-{kind}dir") for kind in ("", "common-")}
    folders = ((top / one).resolve() for one in found if one is not None)
    return [store for folder in folders for store in folder.glob("modules/**/objects")]


def check_out_from(checkout: Path, stores: list[Path], commit: str, folder: Path) -> bool:
    """Check out, in an empty folder, a commit that a checkout or a store has; say whether one has.

    A clone would lack what no branch leads to, as a shallow one fetches it.
    """
    objects = answer(checkout, "rev-parse", "--git-path", "objects")
    kind = "sha256" if len(commit) == 64 else "sha1"  # by the digits of its name
    if run_git(folder, "init", "--quiet", f"--object-format={kind}").returncode != 0:
        return False
    shared = [*stores, *([] if objects is None else [(checkout / objects).resolve()])]
    listed = folder / ".git" / "objects" / "info" / "alternates"
    listed.write_text("".join(f"{store}\n" for store in shared))
    return run_git(folder, *_WORKTREE_OPTIONS, *_CHECK_OUT, commit).returncode == 0


def why_not_a_checkout(root: Path) -> str | None:
    """Return why git knows no working tree at a folder, and what to do; None where it does."""
    if shutil.which("git") is None:
        return f"git is not installed (no 'git' on the PATH); install it, or {USE_FOLDER}"
    answered = run_git(root, "rev-parse", "--is-inside-work-tree")
    if answered.returncode == 0:
        if answered.stdout == b"true\n":
            return None
        return f"{root} is in a git repository, but not in a working tree of it"
    complaint = complaint_of(answered)
    if complaint.startswith("not a git repository"):
        return f"{root} is not in a git checkout; {USE_FOLDER}"
    return f"git refuses {root}: {complaint}; see what 'git status' says there"


def is_shallow(root: Path) -> bool:
    """Whether a clone lacks the beginning of its history."""
    return answer(root, "rev-parse", "--is-shallow-repository") == "true"
