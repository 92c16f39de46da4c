"""Which commit is the base, in real repositories in temporary folders."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from git_checkouts import clone, commit, git, head_of

from perfsuite.errors import SettingError
from perfsuite.gate.git.changes import is_dirty
from perfsuite.gate.git.find_base import (
    describe_head,
    find_base,
    find_trunk,
    target_branch,
)
from perfsuite.gate.git.repository import Base, find_top

# --- a base that the user names ---


@pytest.mark.parametrize("name", ["v1", "main~1", "HEAD^"])
def test_a_named_base_is_the_commit_of_that_name(repository: Path, name: str) -> None:
    first = head_of(repository)
    git(repository, "tag", "-a", "-m", "one", "v1")
    commit(repository, "more.py")

    base = find_base(repository, name)

    assert base == Base(revision=first, described=f"{name}, {first[:7]}")


def test_a_base_named_by_its_hash_is_described_once(repository: Path) -> None:
    first = head_of(repository)

    assert find_base(repository, first[:10]) == Base(revision=first, described=first[:7])


@pytest.mark.parametrize(
    "name",
    [
        "nowhere",
        "",
        "HEAD:code.py",
        "HEAD..HEAD",
        "^HEAD",
        "f" * 40,
        "a b",
    ],
)
def test_a_base_that_is_no_commit_is_refused(repository: Path, name: str) -> None:
    with pytest.raises(SettingError) as refused:
        find_base(repository, name)

    assert str(refused.value) == (
        f"the base {name!r} is no commit of the repository {repository}; "
        f"use a branch, a tag or a commit that 'git log -1 {name}' shows"
    )


def test_a_base_that_a_shallow_clone_lacks_is_to_be_fetched(repository: Path) -> None:
    first = head_of(repository)
    commit(repository, "more.py")
    shallow = clone(repository, "--depth=1")

    with pytest.raises(SettingError) as refused:
        find_base(shallow, first)

    assert str(refused.value) == (
        f"the base {first!r} is no commit of the repository {shallow}; "
        "this clone is shallow: fetch it first, or all with 'git fetch --unshallow'"
    )


# --- the base that is found ---


@pytest.mark.parametrize("branch", ["main", "master"])
def test_a_feature_branch_is_compared_with_where_it_left_the_local_branch(
    repository: Path, branch: str
) -> None:
    git(repository, "branch", "--move", branch)
    fork = head_of(repository)
    git(repository, "switch", "--quiet", "--create", "feature")
    commit(repository, "feature.py")
    git(repository, "switch", "--quiet", branch)
    commit(repository, "later.py")
    git(repository, "switch", "--quiet", "feature")

    base = find_base(repository, None)

    assert base == Base(revision=fork, described=f"the merge base with {branch}, {fork[:7]}")


def test_uncommitted_changes_do_not_move_a_merge_base(repository: Path) -> None:
    fork = head_of(repository)
    git(repository, "switch", "--quiet", "--create", "feature")
    commit(repository, "feature.py")
    (repository / "code.py").write_text("changed")

    base = find_base(repository, None)

    assert base == Base(revision=fork, described=f"the merge base with main, {fork[:7]}")


def test_the_upstreams_default_branch_comes_before_a_local_one(repository: Path) -> None:
    git(repository, "branch", "--move", "trunk")
    cloned = clone(repository)
    upstream = head_of(cloned)
    commit(cloned, "mine.py")
    git(cloned, "branch", "main")
    commit(cloned, "more.py")

    base = find_base(cloned, None)

    assert base == Base(
        revision=upstream, described=f"the merge base with origin/trunk, {upstream[:7]}"
    )


def test_an_upstream_head_that_leads_nowhere_is_passed_over(repository: Path) -> None:
    cloned = clone(repository)
    fork = head_of(cloned)
    git(cloned, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/gone")
    git(cloned, "switch", "--quiet", "--create", "feature")
    commit(cloned, "mine.py")

    base = find_base(cloned, None)

    assert base == Base(revision=fork, described=f"the merge base with main, {fork[:7]}")


def test_a_checkout_of_continuous_integration_finds_the_upstreams_main(repository: Path) -> None:
    cloned = clone(repository)
    fork = head_of(cloned)
    commit(cloned, "one.py")
    commit(cloned, "two.py")
    git(cloned, "checkout", "--quiet", "--detach")
    git(cloned, "branch", "--delete", "--force", "main")
    git(cloned, "remote", "set-head", "origin", "--delete")

    base = find_base(cloned, None)

    assert base == Base(revision=fork, described=f"the merge base with origin/main, {fork[:7]}")


def test_a_clean_default_branch_is_compared_with_its_parent(repository: Path) -> None:
    parent = head_of(repository)
    commit(repository, "more.py")

    base = find_base(repository, None)

    assert base == Base(revision=parent, described=f"the first parent of HEAD, {parent[:7]}")


def test_a_merge_on_the_default_branch_is_compared_with_its_first_parent(repository: Path) -> None:
    git(repository, "switch", "--quiet", "--create", "feature")
    commit(repository, "feature.py")
    git(repository, "switch", "--quiet", "main")
    first_parent = commit(repository, "mine.py")
    git(repository, "merge", "--quiet", "--no-edit", "feature")

    base = find_base(repository, None)

    assert isinstance(base, Base)
    assert base.revision == first_parent


def test_a_dirty_default_branch_is_compared_with_head(repository: Path) -> None:
    parent = head_of(repository)
    head = commit(repository, "more.py")
    (repository / "code.py").write_text("changed")

    base = find_base(repository, None)

    instead = f"the first parent of HEAD, {parent[:7]}; nothing that a cell loads differs from HEAD"
    assert base == Base(
        revision=head,
        described=f"HEAD, {head[:7]}, without the uncommitted changes",
        instead=Base(revision=parent, described=instead),
    )


def test_a_detached_head_is_compared_with_the_merge_base(repository: Path) -> None:
    fork = head_of(repository)
    git(repository, "checkout", "--quiet", "--detach")
    commit(repository, "more.py")

    base = find_base(repository, None)

    assert base == Base(revision=fork, described=f"the merge base with main, {fork[:7]}")


def test_of_the_only_branch_the_parent_is_the_base_and_that_is_said(repository: Path) -> None:
    git(repository, "branch", "--move", "trunk")
    parent = head_of(repository)
    commit(repository, "more.py")

    base = find_base(repository, None)

    assert base == Base(
        revision=parent,
        described=f"the first parent of HEAD, {parent[:7]}: "
        "there is no other branch to take the merge base with",
    )


def test_on_the_only_branch_a_dirty_tree_is_compared_with_head(repository: Path) -> None:
    git(repository, "branch", "--move", "trunk")
    head = head_of(repository)
    (repository / "new.py").touch()

    base = find_base(repository, None)

    assert base == Base(
        revision=head,
        described=f"HEAD, {head[:7]}, without the uncommitted changes: "
        "there is no other branch to take the merge base with",
    )


@pytest.mark.parametrize("is_built_upon", [False, True])
def test_the_only_other_branch_is_the_default_one_whatever_its_name(
    repository: Path, is_built_upon: bool
) -> None:
    git(repository, "branch", "--move", "trunk")
    fork = head_of(repository)
    git(repository, "switch", "--quiet", "--create", "feature")
    commit(repository, "slow.py")
    commit(repository, "README.md")
    if is_built_upon:
        git(repository, "branch", "upon")

    base = find_base(repository, None)

    assert base == Base(revision=fork, described=f"the merge base with trunk, {fork[:7]}")
    assert find_trunk(repository) == fork


UNKNOWN = (
    "the default branch is not known: there is no origin/HEAD, main or master; run 'git remote "
    "set-head origin --auto', or name a base with --base or --base-dir (pytest: --perf-base, "
    "--perf-base-dir)"
)


def test_which_of_several_other_branches_is_the_default_one_is_not_guessed(
    repository: Path,
) -> None:
    git(repository, "branch", "--move", "trunk")
    git(repository, "branch", "release")
    git(repository, "switch", "--quiet", "--create", "feature")
    commit(repository, "slow.py")

    assert find_base(repository, None) == UNKNOWN


def test_a_clone_that_has_fetched_its_own_branch_alone_has_no_base(repository: Path) -> None:
    git(repository, "switch", "--quiet", "--create", "feature")
    commit(repository, "slow.py")
    commit(repository, "README.md")
    cloned = clone(repository, "--single-branch", "--branch=feature")
    git(cloned, "remote", "set-head", "origin", "--delete")
    git(cloned, "checkout", "--quiet", "--detach")

    assert find_base(cloned, None) == UNKNOWN


def test_a_folder_of_the_checkout_and_a_linked_worktree_find_the_same_base(
    repository: Path, tmp_path: Path
) -> None:
    first = head_of(repository)
    git(repository, "worktree", "add", "--quiet", "-b", "feature", str(tmp_path / "linked"))
    (tmp_path / "linked" / "deep").mkdir()
    commit(tmp_path / "linked", "feature.py")

    base = find_base(tmp_path / "linked" / "deep", None)

    assert base == Base(revision=first, described=f"the merge base with main, {first[:7]}")


@pytest.mark.parametrize("is_fetched", [True, False])
def test_the_branch_that_a_change_goes_to_comes_before_the_default_one(
    repository: Path, is_fetched: bool
) -> None:
    git(repository, "switch", "--quiet", "--create", "release/1.x")
    fork = commit(repository, "release.py")
    git(repository, "switch", "--quiet", "main")
    commit(repository, "later.py")
    cloned = clone(repository)
    git(cloned, "switch", "--quiet", "--create", "fix", "origin/release/1.x")
    commit(cloned, "fix.py")
    if not is_fetched:
        git(cloned, "branch", "--remotes", "--delete", "origin/release/1.x")

    base = find_base(cloned, None, target="release/1.x")

    if is_fetched:
        described = f"the merge base with origin/release/1.x, {fork[:7]}"
        assert base == Base(revision=fork, described=described)
    else:
        assert base == (
            "this change goes to the branch 'release/1.x', as the continuous integration "
            "says, and this clone has no origin/release/1.x; run 'git fetch origin "
            "release/1.x:refs/remotes/origin/release/1.x', or name a base with --base or "
            "--base-dir (pytest: --perf-base, --perf-base-dir)"
        )


@pytest.mark.parametrize("name", ["GITHUB_BASE_REF", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME"])
def test_the_branch_that_a_change_goes_to_is_a_variable_of_github_and_of_gitlab(name: str) -> None:
    given = {"GITHUB_BASE_REF": "", "CI_DEFAULT_BRANCH": "develop", name: "release/1.x"}

    assert target_branch(given) == "release/1.x"


def test_a_push_without_a_merge_request_goes_to_the_default_branch(tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    event.write_text('{"repository": {"default_branch": "develop"}}')

    assert target_branch({"GITHUB_EVENT_PATH": str(event)}) == "develop"
    assert target_branch({"CI_DEFAULT_BRANCH": "develop"}) == "develop"


@pytest.mark.parametrize("event", [None, "", "[]", "{}", '{"repository": null}', "\xff"])
def test_an_event_of_another_form_names_no_branch(tmp_path: Path, event: str | None) -> None:
    file = tmp_path / "event.json"
    if event is not None:
        file.write_text(event, encoding="latin-1")

    assert target_branch({"GITHUB_EVENT_PATH": str(file)}) is None


@pytest.mark.parametrize(("num_commits", "is_warned"), [(50, False), (51, True)])
def test_a_base_far_behind_another_remote_branch_is_warned_of(
    repository: Path, num_commits: int, is_warned: bool
) -> None:
    git(repository, "switch", "--quiet", "--create", "develop")
    for _ in range(num_commits):
        git(repository, "commit", "--quiet", "--allow-empty", "--message", "more")
    git(repository, "switch", "--quiet", "main")
    cloned = clone(repository)
    git(cloned, "remote", "set-head", "origin", "--delete")
    git(cloned, "switch", "--quiet", "--create", "feature", "origin/develop")
    commit(cloned, "mine.py")
    git(cloned, "update-ref", "refs/remotes/origin/feature", "HEAD")  # the change itself
    commit(cloned, "more.py")

    base = find_base(cloned, None)

    assert isinstance(base, Base)
    assert base.revision == head_of(repository)
    assert base.warning == (
        "the base is 51 commits older than the merge base with origin/develop; if this change "
        "goes there, say so: --base origin/develop (pytest: --perf-base)"
        if is_warned
        else None
    )


# --- no base ---


def test_the_first_commit_has_no_base(repository: Path) -> None:
    head = head_of(repository)

    assert find_base(repository, None) == (
        f"HEAD, {head[:7]}, is the first commit and nothing is uncommitted: the "
        "next change is the first that can be judged; else name a base with --base or --base-dir "
        "(pytest: --perf-base, --perf-base-dir)"
    )


def test_a_repository_without_a_commit_has_no_base(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")

    assert find_base(tmp_path, None) == (
        f"the repository of {tmp_path} has no commit yet; commit, then try again"
    )


@pytest.mark.parametrize("revision", [None, "main"])
def test_a_folder_outside_git_has_no_base(tmp_path: Path, revision: str | None) -> None:
    assert find_base(tmp_path, revision) == (
        f"{tmp_path} is not in a git checkout; use --base-dir=DIR (pytest: --perf-base-dir)"
    )


def test_a_machine_without_git_has_no_base(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(repository))

    assert find_base(repository, None) == (
        "git is not installed (no 'git' on the PATH); install it, or use --base-dir=DIR "
        "(pytest: --perf-base-dir)"
    )
    assert find_top(repository) is None
    assert describe_head(repository) == "a folder outside git"


def test_a_bare_repository_has_no_base(repository: Path, tmp_path: Path) -> None:
    bare = clone(repository, "--bare")

    assert find_base(bare, None) == (
        f"{bare} is in a git repository, but not in a working tree of it"
    )


def test_what_git_refuses_is_quoted(repository: Path) -> None:
    (repository / ".git" / "config").write_text("[core\n")
    asked = subprocess.run(["git", "status"], cwd=repository, capture_output=True, text=True)

    assert find_base(repository, None) == (
        f"git refuses {repository}: {asked.stderr.strip().removeprefix('fatal: ')}; "
        "see what 'git status' says there"
    )


def test_histories_without_a_common_commit_have_no_base(repository: Path) -> None:
    git(repository, "switch", "--quiet", "--orphan", "island")
    commit(repository, "island.py")

    assert find_base(repository, None) == (
        "HEAD and main have no commit in common; "
        "name a base with --base or --base-dir (pytest: --perf-base, --perf-base-dir)"
    )


def test_a_shallow_clone_of_the_default_branch_lacks_the_parent(repository: Path) -> None:
    head = commit(repository, "more.py")
    shallow = clone(repository, "--depth=1")

    assert find_base(shallow, None) == (
        f"this clone is shallow and lacks the parent of HEAD, {head[:7]}; "
        "run 'git fetch --deepen=1' or 'git fetch --unshallow'"
    )


def test_a_shallow_clone_of_a_feature_branch_lacks_the_merge_base(repository: Path) -> None:
    git(repository, "switch", "--quiet", "--create", "feature")
    commit(repository, "feature.py")
    git(repository, "switch", "--quiet", "main")
    commit(repository, "later.py")
    shallow = clone(repository, "--depth=1", "--no-single-branch", "--branch=feature")

    assert find_base(shallow, None) == (
        "this clone is shallow and ends before the merge base with origin/main; "
        "run 'git fetch --deepen=100' or 'git fetch --unshallow'"
    )


def test_a_deepened_clone_finds_its_base(repository: Path) -> None:
    parent = head_of(repository)
    commit(repository, "more.py")
    shallow = clone(repository, "--depth=1")
    git(shallow, "fetch", "--quiet", "--deepen=1")

    base = find_base(shallow, None)

    assert base == Base(revision=parent, described=f"the first parent of HEAD, {parent[:7]}")


# --- dirty ---


def test_a_clean_tree_is_not_dirty(repository: Path) -> None:
    assert not is_dirty(repository)


@pytest.mark.parametrize("name", ["code.py", "new.py", "deep/er/new é.py", "-x.so"])
def test_a_changed_and_an_unknown_module_make_a_tree_dirty(repository: Path, name: str) -> None:
    (repository / name).parent.mkdir(parents=True, exist_ok=True)
    (repository / name).write_text("changed")

    assert is_dirty(repository)


def test_a_deleted_and_a_staged_file_make_a_tree_dirty(repository: Path) -> None:
    (repository / "code.py").unlink()
    deleted = is_dirty(repository)
    git(repository, "add", "--all")

    assert deleted
    assert is_dirty(repository)


def test_a_name_that_is_no_text_makes_a_tree_dirty(repository: Path) -> None:
    (repository / "latin-\udce9.py").touch()

    assert is_dirty(repository)


def test_what_git_ignores_and_what_runs_leave_do_not_make_a_tree_dirty(repository: Path) -> None:
    commit(repository, ".gitignore", "ignored/\n")
    for name in ("ignored/a", "pkg/__pycache__/a.pyc", "results/run.json", "baselines/L/1.json"):
        (repository / name).parent.mkdir(parents=True)
        (repository / name).touch()
    (repository / "gate.py").touch()

    assert not is_dirty(repository, outputs=[repository / "gate.py"])
    assert is_dirty(repository)


def test_a_changed_file_among_results_makes_a_tree_dirty(repository: Path) -> None:
    (repository / "results").mkdir()
    commit(repository, "results/kept.json")
    (repository / "results" / "kept.json").write_text("changed")

    assert is_dirty(repository)


@pytest.mark.parametrize(
    "name",
    [
        *("junit.xml", "uv.lock", "wandb/run-1/files/model.pt", "notes.md"),
        *("build/lib/code.py", ".nox/tests/code.py", "env/lib/code.py", "shop.egg-info/SOURCES"),
    ],
)
def test_what_sessions_and_installers_leave_compares_no_commit_with_itself(
    repository: Path, name: str
) -> None:
    parent = head_of(repository)
    commit(repository, "more.py")
    (repository / name).parent.mkdir(parents=True, exist_ok=True)
    (repository / name).touch()
    if name.startswith("env/"):
        (repository / "env" / "pyvenv.cfg").touch()
    if name.startswith("build/"):
        commit(repository, "setup.py")
        parent = git(repository, "rev-parse", "HEAD^")

    base = find_base(repository, None)

    assert base == Base(
        revision=parent,
        described=f"the first parent of HEAD, {parent[:7]}; "
        "nothing that a cell loads differs from HEAD",
    )


def test_changed_documentation_and_records_compare_no_commit_with_itself(
    repository: Path,
) -> None:
    for name in ("README.md", "docs/index.txt", "baselines/accepted.toml", "LICENSE"):
        (repository / name).parent.mkdir(exist_ok=True)
        parent = head_of(repository)
        commit(repository, name)
    for name in ("README.md", "docs/index.txt", "baselines/accepted.toml", "LICENSE"):
        (repository / name).write_text("changed")

    base = find_base(repository, None)

    assert isinstance(base, Base)
    assert base.revision == parent


def test_a_module_beside_the_folders_that_are_measured_compares_no_commit_with_itself(
    repository: Path,
) -> None:
    (repository / "one").mkdir()
    parent = head_of(repository)
    commit(repository, "one/more.py")
    (repository / "two").mkdir()
    (repository / "two" / "new.py").touch()

    beside = find_base(repository / "one", None)
    inside = find_base(repository / "one", None, folders=[repository / "two"])

    assert isinstance(beside, Base)
    assert isinstance(inside, Base)
    assert (beside.revision, inside.revision) == (parent, head_of(repository))


def test_outputs_are_overlooked_when_the_base_is_found(repository: Path) -> None:
    parent = head_of(repository)
    commit(repository, "more.py")
    (repository / "gate.py").touch()

    base = find_base(repository, None, outputs=[repository / "gate.py"])

    assert isinstance(base, Base)
    assert base.revision == parent


def test_head_is_described_for_people(repository: Path, tmp_path: Path) -> None:
    short = head_of(repository)[:7]
    on_branch = describe_head(repository)
    (repository / "code.py").write_text("changed")
    dirty = describe_head(repository)
    git(repository, "checkout", "--quiet", "--detach")
    (tmp_path / "fresh").mkdir()
    git(tmp_path / "fresh", "init", "--quiet")

    assert on_branch == f"main at {short}"
    assert dirty == f"main at {short} with uncommitted changes"
    assert describe_head(repository) == f"a detached HEAD at {short} with uncommitted changes"
    assert describe_head(tmp_path / "fresh") == "a repository without a commit"


# --- the history that baselines belong to ---


def test_the_trunk_is_where_head_left_the_default_branch(repository: Path) -> None:
    fork = head_of(repository)
    git(repository, "checkout", "--quiet", "-b", "feature")
    commit(repository, "feature.py")
    git(repository, "checkout", "--quiet", "main")
    commit(repository, "later.py")
    git(repository, "checkout", "--quiet", "feature")

    assert find_trunk(repository) == fork


def test_the_trunk_of_a_branch_that_the_continuous_integration_names_is_that(
    repository: Path,
) -> None:
    git(repository, "checkout", "--quiet", "-b", "develop")
    commit(repository, "later.py")

    assert find_trunk(repository, "develop") == head_of(repository)
    assert find_trunk(repository, "gone") == git(repository, "rev-parse", "main")


def test_on_the_default_branch_and_without_one_the_trunk_is_head(repository: Path) -> None:
    assert find_trunk(repository) == head_of(repository)

    git(repository, "branch", "--quiet", "--move", "trunk")

    assert find_trunk(repository) == head_of(repository)


def test_without_a_common_commit_there_is_no_trunk(repository: Path, tmp_path: Path) -> None:
    git(repository, "checkout", "--quiet", "--orphan", "unrelated")
    commit(repository, "other.py")

    assert find_trunk(repository) is None
    assert find_trunk(tmp_path) is None
