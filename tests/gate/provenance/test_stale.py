"""Compiled code of head's checkout that may be older than what head changes of its sources."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from git_checkouts import git

from perfsuite.gate.provenance.untracked import find_stale

ELF = b"\x7fELF and code"
LIBRARY = "pkg/price.cpython-311.so"
SOURCE = "src/price.c"


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """Head and base: a library of 20 s that git ignores, and a source that head changed at 30 s."""
    head, base = tmp_path / "head", tmp_path / "base"
    for tree in (head, base):
        write(tree, LIBRARY, ELF, 20)
        write(tree, SOURCE, tree.name.encode(), 30)
    git(head, "init", "--quiet")
    (head / ".gitignore").write_text("*.so\n*.o\n/target\n/bin\n")
    return head, base


def write(tree: Path, file: str, content: bytes, at_s: int) -> None:
    (tree / file).parent.mkdir(parents=True, exist_ok=True)
    (tree / file).write_bytes(content)
    os.utime(tree / file, (at_s, at_s))


def told(library: str = LIBRARY, source: str = SOURCE) -> str:
    return (
        f"the head arm ran with {library}, which git does not track, and nothing was compiled "
        f"since {source} was changed; build it anew, or touch {library} where it holds the change"
    )


def test_a_library_that_is_older_than_its_changed_source_is_named(trees: tuple[Path, Path]) -> None:
    assert find_stale(*trees, [Path(LIBRARY)]) == told()


@pytest.mark.parametrize(
    "source",
    ["k.h", "a/k.HH", "k.inl", "k.cu", "src/k.F90", "k.cxx", "k.pyx", "lib.rs", "k.c++", "k.hip"],
)
def test_a_source_is_known_by_the_end_of_its_name(trees: tuple[Path, Path], source: str) -> None:
    write(trees[0], SOURCE, b"base", 30)
    write(trees[0], source, b"new", 40)

    assert find_stale(*trees, [Path(LIBRARY)]) == told(source=source)


@pytest.mark.parametrize(
    ("file", "content", "at_s"),
    [
        (SOURCE, b"head", 10),  # written before the build
        (SOURCE, b"head", 21),  # as by a copy of the checkout
        (SOURCE, b"base", 30),  # as the base has it
        (LIBRARY, b"PK of Python", 20),
        ("pkg/other.so", ELF, 40),  # built since
        ("build/obj/price.o", ELF, 40),
        ("bin/price", ELF, 40),
    ],
)
def test_what_is_not_older_or_not_compiled_is_fine(
    trees: tuple[Path, Path], file: str, content: bytes, at_s: int
) -> None:
    write(trees[0], file, content, at_s)

    assert find_stale(*trees, [Path(LIBRARY), Path("pkg"), Path("gone.so")]) is None


def test_a_test_or_an_example_is_part_of_no_library(trees: tuple[Path, Path]) -> None:
    write(trees[0], SOURCE, b"base", 30)
    for place in ("tests/k.c", "pkg/examples/k.cu", "docs/k.h"):
        write(trees[0], place, b"new", 40)

    assert find_stale(*trees, [Path(LIBRARY)]) is None


def test_a_library_in_the_folder_of_a_build_that_marks_itself_is_code(
    trees: tuple[Path, Path],
) -> None:
    """As cargo's, which is left out elsewhere."""
    library = "target/release/libk.so"
    write(trees[0], "target/CACHEDIR.TAG", b"Signature", 1)
    write(trees[0], library, ELF, 20)

    assert find_stale(*trees, [Path(library)]) == told(library)
    write(trees[0], "target/release/libother.so", ELF, 40)
    assert find_stale(*trees, [Path(library)]) is None


def test_what_both_may_use_is_no_side_s_own(trees: tuple[Path, Path]) -> None:
    head, base = trees
    (base / LIBRARY).unlink()
    (base / LIBRARY).symlink_to(head / LIBRARY)

    assert find_stale(head, base, [Path(LIBRARY)]) is None
