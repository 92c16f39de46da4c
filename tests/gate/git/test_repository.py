"""What git is asked, of real repositories in temporary folders."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import pytest

from perfsuite.errors import SettingError, WriteError
from perfsuite.gate.git.repository import (
    Base,
    NoBase,
    add_worktree,
    describe_head,
    find_base,
    find_top,
    find_trunk,
    is_dirty,
    is_in_history,
    lfs_files,
    submodules,
    working_files,
    worktree_records,
)


@pytest.fixture(autouse=True)
def _no_configuration_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "gitconfig").write_text(
        "[user]\nname = A\nemail = a@example.org\n[init]\ndefaultBranch = main\n"
        '[protocol "file"]\nallow = always\n'
    )


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, name: str = "code.py", text: str = "") -> str:
    (folder / name).write_text(text or f"{name} {len(list(folder.iterdir()))}\n")
    git(folder, "add", "--", name)
    git(folder, "commit", "--quiet", "--allow-empty", "--message", name)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clean repository with one commit on main."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def head_of(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD")


def clone(repository: Path, *options: str) -> Path:
    folder = repository.with_name("clone")
    git(repository.parent, "clone", "--quiet", *options, f"file://{repository}", str(folder))
    return folder


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
    head = commit(repository, "more.py")
    (repository / "code.py").write_text("changed")

    base = find_base(repository, None)

    assert base == Base(
        revision=head, described=f"HEAD, {head[:7]}, without the uncommitted changes"
    )


def test_a_detached_head_is_compared_with_the_merge_base(repository: Path) -> None:
    fork = head_of(repository)
    git(repository, "checkout", "--quiet", "--detach")
    commit(repository, "more.py")

    base = find_base(repository, None)

    assert base == Base(revision=fork, described=f"the merge base with main, {fork[:7]}")


def test_without_a_default_branch_the_parent_stands_in_and_that_is_said(repository: Path) -> None:
    git(repository, "branch", "--move", "trunk")
    parent = head_of(repository)
    commit(repository, "more.py")

    base = find_base(repository, None)

    assert base == Base(
        revision=parent,
        described=f"the first parent of HEAD, {parent[:7]}: "
        "there is no origin/HEAD, main or master to take the merge base with",
    )


def test_without_a_default_branch_a_dirty_tree_is_compared_with_head(repository: Path) -> None:
    git(repository, "branch", "--move", "trunk")
    head = head_of(repository)
    (repository / "new.py").touch()

    base = find_base(repository, None)

    assert base == Base(
        revision=head,
        described=f"HEAD, {head[:7]}, without the uncommitted changes: "
        "there is no origin/HEAD, main or master to take the merge base with",
    )


def test_a_folder_of_the_checkout_and_a_linked_worktree_find_the_same_base(
    repository: Path, tmp_path: Path
) -> None:
    first = head_of(repository)
    git(repository, "worktree", "add", "--quiet", "-b", "feature", str(tmp_path / "linked"))
    (tmp_path / "linked" / "deep").mkdir()
    commit(tmp_path / "linked", "feature.py")

    base = find_base(tmp_path / "linked" / "deep", None)

    assert base == Base(revision=first, described=f"the merge base with main, {first[:7]}")


# --- no base ---


def test_the_first_commit_has_no_base(repository: Path) -> None:
    head = head_of(repository)

    assert find_base(repository, None) == NoBase(
        reason=f"HEAD, {head[:7]}, is the first commit and nothing is uncommitted; "
        "name a base with --base or --base-dir (pytest: --perf-base, --perf-base-dir)"
    )


def test_a_repository_without_a_commit_has_no_base(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")

    assert find_base(tmp_path, None) == NoBase(
        reason=f"the repository of {tmp_path} has no commit yet; commit, then try again"
    )


@pytest.mark.parametrize("revision", [None, "main"])
def test_a_folder_outside_git_has_no_base(tmp_path: Path, revision: str | None) -> None:
    assert find_base(tmp_path, revision) == NoBase(
        reason=f"{tmp_path} is not in a git checkout; use --base-dir=DIR (pytest: --perf-base-dir)"
    )


def test_a_machine_without_git_has_no_base(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(repository))

    assert find_base(repository, None) == NoBase(
        reason="git is not installed (no 'git' on the PATH); install it, or use --base-dir=DIR "
        "(pytest: --perf-base-dir)"
    )
    assert find_top(repository) is None
    assert describe_head(repository) == "a folder outside git"


def test_a_bare_repository_has_no_base(repository: Path, tmp_path: Path) -> None:
    bare = clone(repository, "--bare")

    assert find_base(bare, None) == NoBase(
        reason=f"{bare} is in a git repository, but not in a working tree of it"
    )


def test_what_git_refuses_is_quoted(repository: Path) -> None:
    (repository / ".git" / "config").write_text("[core\n")
    asked = subprocess.run(["git", "status"], cwd=repository, capture_output=True, text=True)

    assert find_base(repository, None) == NoBase(
        reason=f"git refuses {repository}: {asked.stderr.strip().removeprefix('fatal: ')}; "
        "see what 'git status' says there"
    )


def test_histories_without_a_common_commit_have_no_base(repository: Path) -> None:
    git(repository, "switch", "--quiet", "--orphan", "island")
    commit(repository, "island.py")

    assert find_base(repository, None) == NoBase(
        reason="HEAD and main have no commit in common; "
        "name a base with --base or --base-dir (pytest: --perf-base, --perf-base-dir)"
    )


def test_a_shallow_clone_of_the_default_branch_lacks_the_parent(repository: Path) -> None:
    head = commit(repository, "more.py")
    shallow = clone(repository, "--depth=1")

    assert find_base(shallow, None) == NoBase(
        reason=f"this clone is shallow and lacks the parent of HEAD, {head[:7]}; "
        "run 'git fetch --deepen=1' or 'git fetch --unshallow'"
    )


def test_a_shallow_clone_of_a_feature_branch_lacks_the_merge_base(repository: Path) -> None:
    git(repository, "switch", "--quiet", "--create", "feature")
    commit(repository, "feature.py")
    git(repository, "switch", "--quiet", "main")
    commit(repository, "later.py")
    shallow = clone(repository, "--depth=1", "--no-single-branch", "--branch=feature")

    assert find_base(shallow, None) == NoBase(
        reason="this clone is shallow and ends before the merge base with origin/main; "
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


@pytest.mark.parametrize("name", ["code.py", "new.py", "deep/er/new é.txt", "-x"])
def test_a_changed_and_an_unknown_file_make_a_tree_dirty(repository: Path, name: str) -> None:
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
    (repository / "gate.json").touch()

    assert not is_dirty(repository, outputs=[repository / "gate.json"])
    assert is_dirty(repository)


def test_a_changed_file_among_results_makes_a_tree_dirty(repository: Path) -> None:
    (repository / "results").mkdir()
    commit(repository, "results/kept.json")
    (repository / "results" / "kept.json").write_text("changed")

    assert is_dirty(repository)


def test_outputs_are_overlooked_when_the_base_is_found(repository: Path) -> None:
    parent = head_of(repository)
    commit(repository, "more.py")
    (repository / "gate.json").touch()

    base = find_base(repository, None, outputs=[repository / "gate.json"])

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


# --- how git is run ---


def test_the_environment_of_a_hook_does_not_mislead(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    git(tmp_path / "other", "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))

    assert find_top(repository) == repository.resolve()
    assert not is_dirty(repository)


def test_asking_writes_nothing_to_the_repository(repository: Path) -> None:
    index = repository / ".git" / "index"
    (repository / "code.py").touch()  # git status would note the new time in the index
    before = hashlib.sha256(index.read_bytes()).hexdigest(), index.stat().st_mtime_ns

    find_base(repository, None)
    is_dirty(repository)
    working_files(repository)

    assert (hashlib.sha256(index.read_bytes()).hexdigest(), index.stat().st_mtime_ns) == before


# --- files ---


def test_the_files_of_a_folder_are_those_tracked_and_those_that_git_would_add(
    repository: Path,
) -> None:
    bench = repository / "bench"
    bench.mkdir()
    for name in ("kept.py", "deleted.py", "a b é.py"):
        commit(repository, f"bench/{name}")
    commit(repository, ".gitignore", "*.log\n")
    (bench / "deleted.py").unlink()
    (bench / "new.py").touch()
    (bench / "noise.log").touch()
    (bench / "latin-\udce9.py").touch()
    (bench / "link").symlink_to("nowhere")

    files = working_files(bench)

    assert sorted(map(str, files)) == ["a b é.py", "kept.py", "latin-\udce9.py", "link", "new.py"]


def test_the_files_of_submodules_and_nested_checkouts_are_included(
    repository: Path, tmp_path: Path
) -> None:
    part = clone(repository)
    git(repository, "submodule", "--quiet", "add", str(part), "part")
    git(repository, "commit", "--quiet", "--message", "part")
    (repository / "part" / "new.py").touch()
    (repository / "nested").mkdir()
    git(repository / "nested", "init", "--quiet")
    (repository / "nested" / "inner.py").touch()

    files = working_files(repository)

    assert sorted(map(str, files)) == [
        ".gitmodules",
        "code.py",
        "nested/inner.py",
        "part/code.py",
        "part/new.py",
    ]
    assert submodules(repository) == [Path("part")]


def test_a_submodule_that_was_not_fetched_has_no_files(repository: Path) -> None:
    (repository / "part").mkdir()
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{head_of(repository)},part")

    assert working_files(repository) == [Path("code.py")]
    assert working_files(repository / "part") == []
    assert submodules(repository) == [Path("part")]


def test_files_of_git_lfs_are_found_by_their_attribute(repository: Path) -> None:
    commit(repository, ".gitattributes", "*.bin filter=lfs\n")
    commit(repository, "weights.bin")

    assert lfs_files(repository) == [Path("weights.bin")]


# --- worktrees ---


def test_the_records_of_a_linked_worktree_are_its_repositorys(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "worktree", "add", "--quiet", str(tmp_path / "linked"))

    assert worktree_records(tmp_path / "linked") == repository.resolve() / ".git" / "worktrees"
    assert worktree_records(tmp_path) is None


def test_a_commit_that_cannot_be_checked_out_is_told_with_gits_reason(
    repository: Path, tmp_path: Path
) -> None:
    base = Base(revision="f" * 40, described="main, fffffff")
    (tmp_path / "tree").mkdir()

    with pytest.raises(WriteError) as failure:
        add_worktree(repository, base, tmp_path / "tree")

    assert re.fullmatch(
        rf"cannot check out the base, fffffff, in {tmp_path}/tree \(\S+ \w+ free there\): "
        rf"invalid reference: {'f' * 40}",
        str(failure.value),
    )


# --- the history that baselines belong to ---


def test_the_trunk_is_where_head_left_the_default_branch(repository: Path) -> None:
    fork = head_of(repository)
    git(repository, "checkout", "--quiet", "-b", "feature")
    commit(repository, "feature.py")
    git(repository, "checkout", "--quiet", "main")
    commit(repository, "later.py")
    git(repository, "checkout", "--quiet", "feature")

    assert find_trunk(repository) == fork


def test_on_the_default_branch_and_without_one_the_trunk_is_head(repository: Path) -> None:
    assert find_trunk(repository) == head_of(repository)

    git(repository, "branch", "--quiet", "--move", "trunk")

    assert find_trunk(repository) == head_of(repository)


def test_without_a_common_commit_there_is_no_trunk(repository: Path, tmp_path: Path) -> None:
    git(repository, "checkout", "--quiet", "--orphan", "unrelated")
    commit(repository, "other.py")

    assert find_trunk(repository) is None
    assert find_trunk(tmp_path) is None


def test_a_commit_belongs_to_the_history_of_itself_and_of_its_descendants(
    repository: Path,
) -> None:
    first = head_of(repository)
    second = commit(repository, "second.py")

    assert is_in_history(repository, first, second)
    assert is_in_history(repository, first[:10], second)
    assert is_in_history(repository, second, second)
    assert not is_in_history(repository, second, first)
    assert not is_in_history(repository, "0" * 40, second)
