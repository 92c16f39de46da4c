"""The base's tree in real repositories: what is in it, what it leaves alone, and that it goes."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from full_disk import files_of_at_most
from git_checkouts import git

from perfsuite.errors import SettingError, WriteError
from perfsuite.gate.git.find_base import find_base
from perfsuite.gate.git.overlay import Head
from perfsuite.gate.git.repository import Base
from perfsuite.gate.git.worktree import (
    base_tree,
    directory_tree,
    lay_benchmarks,
    missing_files,
    sweep_stale_trees,
    why_elsewhere,
)
from perfsuite.system.environment import PID_NAMESPACE

_FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where trees are made."""
    folder = tmp_path.resolve() / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def commit_all(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "more")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a base commit, a head commit and uncommitted changes in code and bench."""
    folder = tmp_path.resolve() / "project"
    folder.mkdir()
    git(folder, "init", "--quiet")
    write(folder, pkg__code_py="base", bench__test_a_py="base", bench__gone_py="base")
    (folder / ".gitignore").write_text("*.log\n")
    commit_all(folder)
    write(folder, pkg__code_py="head", bench__test_a_py="head")
    (folder / "bench" / "gone.py").unlink()
    commit_all(folder)
    write(folder, pkg__code_py="changed", bench__test_a_py="changed", bench__models_py="new")
    (folder / "bench" / "noise.log").touch()
    return folder


def trees_beside(repository: Path) -> list[Path]:
    return sorted(repository.parent.glob("perfsuite-*"))


def base_of(repository: Path) -> Base:
    base = find_base(repository, "HEAD~1")
    assert isinstance(base, Base)
    return base


@contextmanager
def laid_tree(root: Path, base: Base | Path, paths: Sequence[Path]) -> Iterator[Path]:
    """A tree of the base, a commit or a folder, with head's benchmarks."""
    is_commit = isinstance(base, Base)
    top = Path(git(root, "rev-parse", "--show-toplevel")) if is_commit else root
    head = Head(top=top.resolve(), root=root.resolve(), python_files=("test_*.py",))
    with base_tree(root, base) if isinstance(base, Base) else directory_tree(head, base) as tree:
        lay_benchmarks(tree, head, paths)
        yield tree


def texts_below(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {".git", ".gitignore"}.intersection(path.parts)
    }


def state(repository: Path) -> tuple[object, ...]:
    """All of a repository that a user would notice, and that git keeps about it."""
    index = repository / ".git" / "index"
    kept = {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((repository / ".git").rglob("*"))
        if path.is_file()
    }
    seen = index.stat().st_mtime_ns, kept, texts_below(repository), sorted(repository.rglob("*"))
    asked = [
        git(repository, "--no-optional-locks", *command.split())
        for command in ("status --porcelain", "stash list", "worktree list", "branch --all")
    ]
    return *seen, *asked


# --- what is in it ---


def test_the_bases_code_is_under_heads_benchmarks_as_they_are(repository: Path) -> None:
    with laid_tree(repository, base_of(repository), [repository / "bench"]) as tree:
        found = texts_below(tree)

    assert found == {"pkg/code.py": "base", "bench/test_a.py": "changed", "bench/models.py": "new"}


def test_every_file_that_differs_is_told_but_for_documentation(repository: Path) -> None:
    folder, data = repository / "bench", b"a\r\nb"
    for name in ("same.yaml", "more.yaml", "README.md", "gone.bin"):
        (folder / name).write_bytes(data)
    commit_all(repository)
    base = find_base(repository, "HEAD")
    assert isinstance(base, Base)
    write(repository, bench__test_a_py="now", bench__more_py="new")
    for name in ("more.yaml", "README.md", "new.yaml"):
        (folder / name).write_text("now")
    (folder / "gone.bin").unlink()
    head = Head(top=repository, root=repository, python_files=("test_*.py",))

    with base_tree(repository, base) as tree:
        changed, own = lay_benchmarks(tree, head, [folder])

    names = ("more.py", "more.yaml", "new.yaml", "test_a.py")
    assert changed == [Path("bench", name) for name in names]
    assert own == {Path("bench/test_a.py"): b"changed", Path("bench/models.py"): b"new"}


def test_what_was_compiled_of_the_bases_own_file_is_not_taken_for_heads(
    repository: Path, tmp_path: Path
) -> None:
    def run(tree: Path) -> str:
        return subprocess.run(
            [sys.executable, "-c", "import models"],
            cwd=tree / "bench",
            env={
                **os.environ,
                "PYTHONPYCACHEPREFIX": str(tmp_path / "compiled"),
                "PYTHONDONTWRITEBYTECODE": "",
            },
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    write(repository, bench__models_py="print(1)")
    commit_all(repository)
    base = find_base(repository, "HEAD")
    assert isinstance(base, Base)
    write(repository, bench__models_py="print(2)")
    head = Head(top=repository, root=repository, python_files=("test_*.py",))

    with base_tree(repository, base) as tree:
        before = run(tree)
        at_ns = (tree / "bench" / "models.py").stat().st_mtime_ns
        os.utime(repository / "bench" / "models.py", ns=(at_ns, at_ns))
        lay_benchmarks(tree, head, [repository / "bench"])

        assert (before, run(tree)) == ("1\n", "2\n")


def test_without_an_overlay_the_tree_is_the_bases_own(repository: Path) -> None:
    with base_tree(repository, base_of(repository)) as tree:
        found = texts_below(tree)
        revision = git(tree, "rev-parse", "HEAD")
        branch = git(tree, "branch", "--show-current")

    assert found == {"pkg/code.py": "base", "bench/test_a.py": "base", "bench/gone.py": "base"}
    assert revision == git(repository, "rev-parse", "HEAD~1")
    assert branch == ""


def test_the_tree_is_named_by_its_process_and_lies_apart(repository: Path) -> None:
    with base_tree(repository, base_of(repository)) as tree:
        assert tree.parent == repository.parent
        assert tree.name.startswith(f"perfsuite-{os.getpid()}-base-{PID_NAMESPACE}-")
        assert tree.stat().st_mode & 0o777 == 0o700


def test_a_root_below_the_top_has_its_counterpart_even_where_the_base_lacks_it(
    repository: Path,
) -> None:
    write(repository, apps__new__test_b_py="new", apps__new__code_py="new")
    root = repository / "apps" / "new"

    with laid_tree(root, base_of(repository), [root, repository / "bench"]) as tree:
        found = texts_below(tree)
        above = texts_below(tree.parent.parent)

    assert found == {"test_b.py": "new"}
    assert above["bench/test_a.py"] == "changed"
    assert above["pkg/code.py"] == "base"


def test_a_root_below_the_top_exists_without_an_overlay(repository: Path) -> None:
    (repository / "apps").mkdir()

    with base_tree(repository / "apps", base_of(repository)) as tree:
        assert list(tree.iterdir()) == []


def test_a_linked_worktree_has_trees_as_well(repository: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git(repository, "worktree", "add", "--quiet", "--detach", str(linked))
    listed = git(repository, "worktree", "list")
    write(linked, bench__test_a_py="linked")

    with laid_tree(linked, base_of(linked), [linked / "bench"]) as tree:
        found = texts_below(tree)

    assert found == {"pkg/code.py": "base", "bench/test_a.py": "linked"}
    assert git(repository, "worktree", "list") == listed


def test_a_sparse_checkout_has_a_tree_as_sparse(repository: Path) -> None:
    git(repository, "stash")
    git(repository, "sparse-checkout", "set", "bench")

    with base_tree(repository, base_of(repository)) as tree:
        found = texts_below(tree)

    assert found == {"bench/test_a.py": "base", "bench/gone.py": "base"}


def test_a_root_outside_git_is_refused(repository: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(SettingError) as refused,
        base_tree(tmp_path, base_of(repository)),
    ):
        pass

    assert (
        str(refused.value)
        == f"{tmp_path} is not in a git checkout; use --base-dir=DIR (pytest: --perf-base-dir)"
    )


def test_a_path_that_cannot_be_laid_over_is_refused_and_no_tree_stays(repository: Path) -> None:
    with (
        pytest.raises(SettingError, match="does not exist"),
        laid_tree(repository, base_of(repository), [repository / "nowhere"]),
    ):
        pass

    assert trees_beside(repository) == []


# --- what it leaves alone ---


def test_the_users_repository_is_the_same_during_and_after(repository: Path) -> None:
    git(repository, "stash", "push", "--include-untracked")
    git(repository, "stash", "apply")
    before = state(repository)

    with laid_tree(repository, base_of(repository), [repository]):
        during = git(repository, "--no-optional-locks", "status", "--porcelain")

    assert state(repository) == before
    assert during == " M bench/test_a.py\n M pkg/code.py\n?? bench/models.py".strip()


def test_the_users_other_worktrees_stay_even_where_they_are_gone(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "worktree", "add", "--quiet", "--detach", str(tmp_path / "on-a-stick"))
    (tmp_path / "on-a-stick").rename(tmp_path / "unplugged")
    listed = git(repository, "worktree", "list")

    with base_tree(repository, base_of(repository)):
        pass
    sweep_stale_trees(repository)

    assert git(repository, "worktree", "list") == listed


def test_no_hook_runs(repository: Path, tmp_path: Path) -> None:
    for name in ("post-checkout", "post-index-change", "reference-transaction"):
        hook = repository / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran-{name}\n")
        hook.chmod(0o755)

    with laid_tree(repository, base_of(repository), [repository / "bench"]):
        pass

    assert list(tmp_path.glob("ran-*")) == []


def test_settings_for_relative_worktrees_do_not_reach_the_users_configuration(
    repository: Path,
) -> None:
    git(repository, "config", "worktree.useRelativePaths", "true")
    before = (repository / ".git" / "config").read_text()

    with base_tree(repository, base_of(repository)):
        pass

    assert (repository / ".git" / "config").read_text() == before


def test_git_lfs_is_not_run_and_its_pointers_are_told(repository: Path, tmp_path: Path) -> None:
    git(repository, "stash", "--include-untracked")
    (repository / ".gitattributes").write_text("*.bin filter=lfs\n")
    (repository / "a.bin").write_text("version https://git-lfs.github.com/spec/v1\noid x\n")
    (repository / "b.bin").write_text("content")
    commit_all(repository)
    for kind in ("smudge", "process"):
        git(repository, "config", f"filter.lfs.{kind}", f"touch {tmp_path}/ran; false")
    git(repository, "config", "filter.lfs.required", "true")
    base = find_base(repository, "HEAD")
    assert isinstance(base, Base)

    with base_tree(repository, base) as tree:
        missing = missing_files(tree)

    assert not (tmp_path / "ran").exists()
    assert missing == [Path("a.bin")]


# Of a file with the text "content".
LFS_POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    f"oid sha256:{hashlib.sha256(b'content').hexdigest()}\n"
)


def test_git_lfs_files_that_head_has_are_copied(repository: Path) -> None:
    git(repository, "stash", "--include-untracked")
    (repository / ".gitattributes").write_text("*.bin filter=lfs\n")
    for name in ("same.bin", "changed.bin", "pointer.bin"):
        (repository / name).write_text(LFS_POINTER)
    commit_all(repository)
    (repository / "same.bin").write_text("content")
    (repository / "changed.bin").write_text("more content")
    base = find_base(repository, "HEAD")
    assert isinstance(base, Base)

    with base_tree(repository, base) as tree:
        missing = missing_files(tree)
        assert (tree / "same.bin").read_text() == "content"

    assert missing == [Path("changed.bin"), Path("pointer.bin")]


def test_a_submodule_is_as_the_base_has_committed_it_and_nothing_is_fetched(
    repository: Path, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "--quiet", str(repository), "part")
    (tmp_path / "part/pkg/code.py").write_text("a part")
    commit_all(tmp_path / "part")
    git(repository, "submodule", "--quiet", "add", f"file://{tmp_path}/part", "libs/part")
    git(repository, "config", "submodule.recurse", "true")
    commit_all(repository)
    base = find_base(repository, "HEAD")
    assert isinstance(base, Base)

    with base_tree(repository, base) as tree:
        same = texts_below(tree / "libs" / "part")
        lacks_nothing = missing_files(tree)
    (repository / "libs/part/pkg/code.py").write_text("another")
    (repository / "libs/part/new.py").write_text("new")
    with base_tree(repository, base) as tree:
        unchanged = texts_below(tree / "libs" / "part")
    shutil.rmtree(repository / "libs/part")
    (repository / "libs/part").mkdir()
    with base_tree(repository, base) as tree:
        missing = missing_files(tree)
        inside = list((tree / "libs" / "part").iterdir())

    assert same == unchanged
    assert same == {"pkg/code.py": "a part", "bench/test_a.py": "head"}
    assert lacks_nothing == []
    assert inside == []
    assert missing == [Path("libs/part")]


@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.parametrize("replaced", ["removed", "by a folder"])
def test_a_submodule_that_head_has_removed_is_that_of_the_base(
    repository: Path, tmp_path: Path, replaced: str, is_linked: bool
) -> None:
    base = add_nested_submodule(repository, tmp_path)
    if is_linked:
        git(repository, "worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"))
        repository = tmp_path / "linked"
    git(repository, *FROM_FILES, "update", "--init", "--recursive")
    git(repository, "rm", "--quiet", "part")
    if replaced == "by a folder":
        (repository / "part/inner/pkg").mkdir(parents=True)
        (repository / "part/inner/pkg/code.py").write_text("of head")
    commit_all(repository)

    with base_tree(repository, base) as tree:
        missing = missing_files(tree)
        copied = texts_below(tree / "part")

    assert missing == []
    assert copied["pkg/code.py"] == "part"
    assert copied["inner/pkg/code.py"] == "inner"


def test_a_submodule_may_name_its_commits_by_sha256(tmp_path: Path) -> None:
    for name in ("part", "whole"):
        (tmp_path / name).mkdir()
        git(tmp_path / name, "init", "--quiet", "--object-format=sha256")
        (tmp_path / name / "code.py").write_text(name)
        commit_all(tmp_path / name)
    git(tmp_path / "whole", *FROM_FILES, "add", f"file://{tmp_path}/part", "part")
    commit_all(tmp_path / "whole")
    base = find_base(tmp_path / "whole", "HEAD")
    assert isinstance(base, Base)

    with base_tree(tmp_path / "whole", base) as tree:
        assert (tree / "part/code.py").read_text() == "part"


FROM_FILES = ("-c", "protocol.file.allow=always", "submodule", "--quiet")


def add_nested_submodule(repository: Path, tmp_path: Path) -> Base:
    """Commit "part" as a submodule, and in it "inner", which head does not fetch."""
    for name in ("inner", "part"):
        git(tmp_path, "clone", "--quiet", str(repository), name)
        (tmp_path / name / "pkg/code.py").write_text(name)
        commit_all(tmp_path / name)
    git(tmp_path / "part", *FROM_FILES, "add", f"file://{tmp_path}/inner", "inner")
    commit_all(tmp_path / "part")
    git(repository, *FROM_FILES, "add", f"file://{tmp_path}/part", "part")
    commit_all(repository)
    base = find_base(repository, "HEAD")
    assert isinstance(base, Base)
    return base


def test_a_submodule_is_copied_without_what_head_has_not_fetched_in_it(
    repository: Path, tmp_path: Path
) -> None:
    base = add_nested_submodule(repository, tmp_path)

    with base_tree(repository, base) as tree:
        copied = texts_below(tree / "part")

    assert list((repository / "part" / "inner").iterdir()) == []
    assert copied.keys() == {".gitmodules", "pkg/code.py", "bench/test_a.py"}


def test_a_submodule_is_lacked_where_head_has_other_files_for_one_inside_of_it(
    repository: Path, tmp_path: Path
) -> None:
    base = add_nested_submodule(repository, tmp_path)
    git(repository / "part", "rm", "--quiet", "--cached", "inner")
    (repository / "part/inner/code.py").write_text("of head")  # what was a submodule is a folder

    with base_tree(repository, base) as tree:
        missing = missing_files(tree)
        inside = list((tree / "part").iterdir())

    assert (missing, inside) == ([Path("part")], [])


@pytest.mark.parametrize(
    ("in_head", "in_base"),
    [("content", "content"), ("more content", None), (LFS_POINTER, LFS_POINTER)],
)
def test_a_submodule_is_lacked_where_head_has_another_version_of_a_git_lfs_file_in_it(
    repository: Path, tmp_path: Path, in_head: str, in_base: str | None
) -> None:
    git(tmp_path, "clone", "--quiet", str(repository), "part")
    (tmp_path / "part/.gitattributes").write_text("*.bin filter=lfs\n")
    (tmp_path / "part/large.bin").write_text(LFS_POINTER)
    commit_all(tmp_path / "part")
    git(repository, *FROM_FILES, "add", f"file://{tmp_path}/part", "part")
    commit_all(repository)
    (repository / "part/large.bin").write_text(in_head)
    base = find_base(repository, "HEAD")
    assert isinstance(base, Base)

    with base_tree(repository, base) as tree:
        missing = missing_files(tree)
        large = tree / "part/large.bin"
        found = large.read_text() if large.exists() else None

    assert found == in_base
    assert missing == ([] if found else [Path("part")])


def test_a_whole_tree_lacks_nothing(repository: Path, tmp_path: Path) -> None:
    with base_tree(repository, base_of(repository)) as tree:
        assert missing_files(tree) == []
    assert missing_files(tmp_path) == []


# --- that it goes ---


@pytest.mark.parametrize("ending", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_the_tree_goes_however_the_context_ends(
    repository: Path, ending: type[BaseException] | None
) -> None:
    before = state(repository)

    def use() -> None:
        with laid_tree(repository, base_of(repository), [repository / "bench"]) as tree:
            locked = tree / "cache"
            locked.mkdir()
            (locked / "file").touch(0o400)
            locked.chmod(0o500)
            (tree / "outside").symlink_to(repository)
            if ending is not None:
                raise ending

    if ending is None:
        use()
    else:
        with pytest.raises(ending):
            use()

    assert trees_beside(repository) == []
    assert state(repository) == before


def test_an_error_of_the_user_of_a_tree_is_not_taken_for_ones_of_making_it(
    repository: Path,
) -> None:
    with (
        pytest.raises(FileNotFoundError),
        base_tree(repository, base_of(repository)) as tree,
    ):
        (tree / "nowhere").read_text()


def test_ctrl_c_during_the_removal_waits_until_it_is_done(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_walk = os.walk
    # A shell starts what it runs in the background with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted_walk(*arguments: str) -> Iterator[tuple[str, list[str], list[str]]]:
        os.kill(os.getpid(), signal.SIGINT)
        return real_walk(*arguments)

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with base_tree(repository, base_of(repository)):
            monkeypatch.setattr(os, "walk", interrupted_walk)
        signal.pause()  # never reached: the signal was delivered when the removal was over

    assert trees_beside(repository) == []
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def test_a_disk_that_is_full_while_git_writes_leaves_nothing(repository: Path) -> None:
    (repository / "large.bin").write_bytes(b"x" * 100_000)
    commit_all(repository)
    before = state(repository)
    base = find_base(repository, "HEAD")
    assert isinstance(base, Base)

    with (
        files_of_at_most(50_000),
        pytest.raises(WriteError) as failure,
        base_tree(repository, base),
    ):
        pass

    assert re.fullmatch(
        rf"cannot check out the base, {base.revision[:7]}, in {repository.parent}/perfsuite-\S+ "
        r"\(\S+ \w+ free there\): git was ended by signal 25",
        str(failure.value),
    )
    assert trees_beside(repository) == []
    assert state(repository) == before


def test_a_disk_that_is_full_while_files_are_laid_over_leaves_nothing(repository: Path) -> None:
    (repository / "bench" / "large.bin").write_bytes(b"x" * 100_000)
    before = state(repository)

    with (
        files_of_at_most(50_000),
        pytest.raises(WriteError) as failure,
        laid_tree(repository, base_of(repository), [repository / "bench"]),
    ):
        pass

    assert re.fullmatch(
        rf"cannot make the base's tree in {repository.parent}/perfsuite-\S+: "
        r"File too large \(\S+\)",
        str(failure.value),
    )
    assert trees_beside(repository) == []
    assert state(repository) == before


def test_where_nothing_can_be_made_beside_the_checkout_the_tree_is_temporary(
    repository: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tempfile.mkdtemp

    def make_elsewhere(*, prefix: str, dir: Path | None) -> str:
        if dir is not None:
            raise PermissionError(errno.EACCES, "Permission denied", str(dir))
        return make(prefix=prefix)

    monkeypatch.setattr(tempfile, "mkdtemp", make_elsewhere)

    with base_tree(repository, base_of(repository)) as tree:
        assert tree.parent == temporary
        assert why_elsewhere(tree, repository) is None
    assert "another file system than the checkout" in str(why_elsewhere(Path("/proc"), repository))


def test_a_machine_without_a_temporary_folder_is_told(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_none(**_: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(tempfile, "mkdtemp", make_none)

    with (
        pytest.raises(WriteError) as failure,
        base_tree(repository, base_of(repository)),
    ):
        pass

    assert str(failure.value) == (
        "cannot make a temporary folder for the base's tree: No such file or directory"
    )


# --- what a killed session left ---


def hold_a_tree(repository: Path, pipe: Connection) -> None:
    with base_tree(repository, base_of(repository)) as tree:
        pipe.send(tree)
        signal.pause()


def killed_sessions_tree(repository: Path) -> Path:
    ours, theirs = _FORK.Pipe()
    process = _FORK.Process(target=hold_a_tree, args=(repository, theirs))
    process.start()
    assert ours.poll(30)
    tree = ours.recv()
    process.kill()
    process.join()
    assert isinstance(tree, Path)
    return tree


def test_the_tree_of_a_killed_session_is_swept(repository: Path) -> None:
    before = state(repository)
    tree = killed_sessions_tree(repository)
    assert (tree / "pkg" / "code.py").exists()

    sweep_stale_trees(repository)

    assert trees_beside(repository) == []
    assert state(repository) == before


def test_the_tree_of_a_killed_session_is_swept_where_only_the_folder_or_the_record_is_left(
    repository: Path,
) -> None:
    before = state(repository)
    first = killed_sessions_tree(repository)
    second = killed_sessions_tree(repository)
    for path in (first, repository / ".git" / "worktrees" / second.name):
        path.rename(path.with_name("moved"))
        subprocess.run(["rm", "-r", path.with_name("moved")], check=True)
    (repository / ".git" / "worktrees" / first.name / "gitdir").unlink()

    sweep_stale_trees(repository)

    assert trees_beside(repository) == []
    assert state(repository) == before


def test_the_tree_of_a_killed_session_with_another_temporary_folder_is_swept(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_sessions_tree(repository)
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "other"))

    sweep_stale_trees(repository)

    assert trees_beside(repository) == []


def test_living_and_foreign_folders_are_not_swept(repository: Path) -> None:
    gone = _FORK.Process(target=int)
    gone.start()
    gone.join()
    (repository.parent / f"perfsuite-{gone.pid}-pair-{PID_NAMESPACE}-abc").mkdir()
    kept = {
        f"perfsuite-{gone.pid}-ranks",
        f"perfsuite-{gone.pid}-base-{PID_NAMESPACE}x-abc",
        f"perfsuite-{gone.pid}-pair-abc",
        "perfsuite-notes",
    }
    for name in kept:
        (repository.parent / name).mkdir()
    (repository.parent / f"perfsuite-{gone.pid}-base-{PID_NAMESPACE}-file").touch()

    with base_tree(repository, base_of(repository)) as tree:
        sweep_stale_trees(repository)

        assert (tree / "pkg" / "code.py").exists()
        assert git(tree, "rev-parse", "HEAD") == base_of(repository).revision

    assert {path.name for path in trees_beside(repository)} == {
        *kept,
        f"perfsuite-{gone.pid}-base-{PID_NAMESPACE}-file",
    }


def test_sweeping_outside_git_looks_beside_the_folder(repository: Path, tmp_path: Path) -> None:
    killed_sessions_tree(repository)
    (tmp_path / "elsewhere").mkdir()

    sweep_stale_trees(tmp_path / "elsewhere")

    assert trees_beside(repository) == []


# --- --base-dir ---


def test_a_folder_is_copied_with_what_git_ignores_and_without_environments(
    repository: Path, tmp_path: Path
) -> None:
    base_dir = tmp_path / "base"
    write(base_dir, pkg__code_py="dir", bench__test_a_py="dir", venv__a_py="dir")
    (base_dir / "venv" / "pyvenv.cfg").touch()
    (base_dir / "pkg" / "ext.so").write_text("built")
    (base_dir / ".gitignore").write_text("*.so\n")
    before = texts_below(base_dir)

    with laid_tree(repository, base_dir, [repository / "bench"]) as tree:
        found = texts_below(tree)
        (tree / "pkg" / "code.py").write_text("spoilt")

    assert found == {
        "pkg/code.py": "dir",
        "pkg/ext.so": "built",
        "bench/test_a.py": "changed",
        "bench/models.py": "new",
    }
    assert texts_below(base_dir) == before
    assert trees_beside(repository) == []


def test_a_folder_that_holds_the_temporary_folder_is_copied_once(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "tmp").mkdir()
    for number in range(20):  # a folder is read in no known order
        write(repository, **{f"folder{number}__a_py": "head"})
    monkeypatch.setattr(tempfile, "tempdir", str(repository / "tmp"))

    head = Head(top=repository, root=repository, python_files=())
    with directory_tree(head, repository) as tree:
        found = texts_below(tree)

    assert found["pkg/code.py"] == "changed"
    assert not any(name.startswith("tmp") for name in found)


def test_a_folder_is_copied_with_the_rest_of_its_checkout(tmp_path: Path) -> None:
    write(tmp_path, head__code_py="head", old__code_py="old", old__bench__test_a_py="old")
    head = Head(top=tmp_path / "head", root=tmp_path / "head" / "bench", python_files=())

    with directory_tree(head, tmp_path / "old" / "bench") as tree:
        assert tree.name == "bench"
        assert texts_below(tree.parent) == {"code.py": "old", "bench/test_a.py": "old"}


def test_a_head_outside_git_is_laid_over_a_folder(tmp_path: Path) -> None:
    write(tmp_path, head__bench__test_a_py="head", base__bench__test_a_py="base", base__code_py="b")

    with laid_tree(tmp_path / "head", tmp_path / "base", [tmp_path / "head/bench"]) as tree:
        found = texts_below(tree)

    assert found == {"bench/test_a.py": "head", "code.py": "b"}
