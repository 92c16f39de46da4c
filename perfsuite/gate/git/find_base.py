"""Which commit a change is compared with: questions to git alone, nothing is fetched or written."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfsuite.errors import SettingError
from perfsuite.gate.git.changes import is_dirty, uncommitted_files
from perfsuite.gate.git.command import answer, find_commit, output
from perfsuite.gate.git.repository import Base, count_commits, is_shallow, why_not_a_checkout
from perfsuite.system.untrusted import printable
from perfsuite.units import short_commit

# The upstream's default branch, in this order, where the user names none. A checkout in CI often
# has neither origin/HEAD nor a local branch, only the last two.
_UPSTREAMS = (
    *("refs/remotes/origin/HEAD", "refs/heads/main", "refs/heads/master"),
    *("refs/remotes/origin/main", "refs/remotes/origin/master"),
)
# The variables of GitHub and GitLab that name the branch which a change goes to. Without a merge
# request GitLab names the default one, GitHub in the file of the event.
_TARGET_VARIABLES = ("GITHUB_BASE_REF", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "CI_DEFAULT_BRANCH")

# A base so many commits older than where HEAD left another remote branch is probably not meant.
_FAR_BEHIND = 50

_NAME_ONE = "name a base with --base or --base-dir (pytest: --perf-base, --perf-base-dir)"


def find_base(
    root: Path,
    revision: str | None,
    *,
    target: str | None = None,
    outputs: Sequence[Path] = (),
    folders: Sequence[Path] = (),
) -> Base | str:
    """Return the commit that head is to be compared with, or why there is none, with advice.

    `revision` where it is given; a SettingError where it names no commit. Else by the rules of
    docs/explanation/why-pairs.md, where a continuous integration names the branch `target`; nothing
    else is guessed. See `uncommitted_files` for `outputs` and `folders`.
    """
    if (refusal := why_not_a_checkout(root)) is not None:
        return refusal
    if revision is not None:
        named = commit_named(root, "the base", revision)
        before = "" if named.startswith(revision) else f"{revision}, "
        return Base(revision=named, described=before + short_commit(named))
    if (head := find_commit(root, "HEAD")) is None:
        return f"the repository of {root} has no commit yet; commit, then try again"
    upstream = _find_upstream(root, target)
    if upstream is None and target is not None:
        return (
            f"this change goes to the branch {target!r}, as the continuous integration "
            f"says, and this clone has no origin/{target}; run 'git fetch origin "
            f"{target}:refs/remotes/origin/{target}', or {_NAME_ONE}"
        )
    if upstream is None and (_other_branches(root) or output(root, "remote")):
        unknown = "the default branch is not known: there is no origin/HEAD, main or master"
        return f"{unknown}; run 'git remote set-head origin --auto', or {_NAME_ONE}"
    uncommitted = uncommitted_files(root, outputs=outputs, folders=folders)
    if upstream is None:
        why = ": there is no other branch to take the merge base with"
        return _base_on_trunk(root, head, uncommitted, why)
    branch = answer(root, "rev-parse", "--abbrev-ref", upstream) or upstream
    merge_base = answer(root, "merge-base", head, upstream)
    if merge_base is None and is_shallow(root):
        shallow = f"this clone is shallow and ends before the merge base with {branch}"
        return f"{shallow}; run 'git fetch --deepen=100' or 'git fetch --unshallow'"
    if merge_base is None:
        return f"HEAD and {branch} have no commit in common; {_NAME_ONE}"
    if merge_base == head:
        return _base_on_trunk(root, head, uncommitted, "")
    described = f"the merge base with {branch}, {short_commit(merge_base)}"
    warning = _find_nearer(root, merge_base, upstream) if target is None else None
    return Base(revision=merge_base, described=described, warning=warning)


def target_branch(environ: Mapping[str, str]) -> str | None:
    """Return the branch that a continuous integration says the change goes to, if it does."""
    named = next(filter(None, map(environ.get, _TARGET_VARIABLES)), None)
    if named is None and (event := environ.get("GITHUB_EVENT_PATH")):
        with contextlib.suppress(KeyError, TypeError, ValueError, OSError):
            return str(json.loads(Path(event).read_bytes())["repository"]["default_branch"])
    return named


def find_trunk(root: Path, target: str | None = None) -> str | None:
    """Return the newest commit of HEAD that the target or the default branch has, if any."""
    upstream = _find_upstream(root, target) or _find_upstream(root, None) or "HEAD"
    return answer(root, "merge-base", "HEAD", upstream)


def read_lineage(root: Path, revision: str) -> dict[str, int]:
    """Return how many commits each one on the first-parent line of a revision lies behind it."""
    lines = output(root, "rev-list", "--first-parent", "--end-of-options", revision).decode()
    return {commit: place for place, commit in enumerate(lines.split())}


def describe_head(root: Path) -> str:
    """Return what the tree is, for people: "feature at 1a2b3c4 with uncommitted changes"."""
    if why_not_a_checkout(root) is not None:
        return "a folder outside git"
    if (head := find_commit(root, "HEAD")) is None:
        return "a repository without a commit"
    branch = answer(root, "symbolic-ref", "--quiet", "--short", "HEAD") or "a detached HEAD"
    changes = " with uncommitted changes" if is_dirty(root) else ""
    return f"{branch} at {short_commit(head)}{changes}"


def _find_upstream(root: Path, target: str | None) -> str | None:
    named = (f"refs/remotes/origin/{target}", f"refs/heads/{target}")
    names = _UPSTREAMS if target is None else named
    found = next((name for name in names if find_commit(root, name) is not None), None)
    if found is None and target is None and len(others := _other_branches(root)) == 1:
        return others[0]
    return found


def _other_branches(root: Path) -> list[str]:
    """The branches that lack HEAD and are not its own, a local one before its namesake."""
    listed = ("for-each-ref", "--format=%(refname)", "--no-contains=HEAD")
    names = (answer(root, *listed, "refs/heads", "refs/remotes") or "").split()
    own = answer(root, "symbolic-ref", "--quiet", "--short", "HEAD")
    by_branch: dict[str, str] = {}
    for name in names:
        below = 2 if name.startswith("refs/heads/") else 3
        by_branch.setdefault(name.split("/", below)[-1], name)
    return [name for branch, name in by_branch.items() if branch not in (own, "HEAD")]


def _find_nearer(root: Path, base: str, upstream: str) -> str | None:
    """A warning where HEAD left another remote branch long after it left the upstream's."""
    if (num_commits := count_commits(root, base, "HEAD")) <= _FAR_BEHIND:
        return None
    # Branches that hold HEAD, or have its branch's name, are the change itself.
    listed = ("for-each-ref", "--format=%(refname)", f"--contains={base}", "--no-contains=HEAD")
    own = answer(root, "symbolic-ref", "--quiet", "--short", "HEAD")
    names = output(root, *listed, "refs/remotes").decode(errors="replace").split()
    others = [one for one in names if one != upstream and one.split("/", 3)[-1] != own]
    behind = {one: num_commits - count_commits(root, base, "HEAD", one) for one in others}
    farthest = max(behind, key=behind.__getitem__, default=None)
    if farthest is None or behind[farthest] <= _FAR_BEHIND:
        return None
    name = printable(farthest.removeprefix("refs/remotes/"))
    advice = f"if this change goes there, say so: --base {name} (pytest: --perf-base)"
    return f"the base is {behind[farthest]} commits older than the merge base with {name}; {advice}"


def commit_named(root: Path, what: str, revision: str) -> str:
    """Return the full name of a commit; a SettingError where `what`, as people say, names none."""
    if (found := find_commit(root, revision)) is None:
        hint = f"use a branch, a tag or a commit that 'git log -1 {revision}' shows"
        if is_shallow(root):
            hint = "this clone is shallow: fetch it first, or all with 'git fetch --unshallow'"
        raise SettingError(f"{what} {revision!r} is no commit of the repository {root}; {hint}")
    return found


def _base_on_trunk(root: Path, head: str, uncommitted: Mapping[Path, bool], why: str) -> Base | str:
    parent, instead = find_commit(root, "HEAD^1"), None
    if parent is not None:
        described = f"the first parent of HEAD, {short_commit(parent)}{why}"
        if uncommitted:
            described += "; nothing that a cell loads differs from HEAD"
        instead = Base(revision=parent, described=described)
    if any(uncommitted.values()):
        described = f"HEAD, {short_commit(head)}, without the uncommitted changes{why}"
        return Base(revision=head, described=described, instead=instead)
    if instead is not None:
        return instead
    if is_shallow(root):
        advice = "run 'git fetch --deepen=1' or 'git fetch --unshallow'"
        return f"this clone is shallow and lacks the parent of HEAD, {short_commit(head)}; {advice}"
    advice = f"the next change is the first that can be judged; else {_NAME_ONE}"
    return f"HEAD, {short_commit(head)}, is the first commit and nothing is uncommitted: {advice}"
