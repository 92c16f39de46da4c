"""What head stops using, and only its checkout has."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsuite.gate.provenance.untracked import find_dropped

BASE = "from pkg._fast import work\nCACHE = 'cache/x.pt'\n"
HEAD = "def work(): pass\n"


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "head", tmp_path / "base"


def write(tree: Path, **files: str) -> None:
    for name, text in files.items():
        path = tree / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def find(
    trees: tuple[Path, Path], *kept: str, sources: str = "work.py"
) -> tuple[Path, Path] | None:
    return find_dropped(*trees, map(Path, kept), map(Path, sources.split()))


@pytest.mark.parametrize(
    ("base", "kept"),
    [
        ("from pkg._fast import work", "pkg/_fast.cpython-311-x86_64-linux-gnu.so"),
        ("from pkg._fast import work", "pkg/_fast.py"),
        ("import _fast", "_fast.pyd"),
        ("PATH = 'data/packed.bin'", "data/packed.bin"),
        ("PATH = HERE / 'packed.bin'", "data/packed.bin"),
        ("PATHS = HERE.glob('shards/*.bin')", "shards/0.bin"),
        ("open('.env')", ".env"),
        ("from dotenv import load_dotenv", ".env"),
    ],
)
def test_what_only_the_base_names_is_found(trees: tuple[Path, Path], base: str, kept: str) -> None:
    write(trees[0], work_DOT_py=HEAD)
    write(trees[1], work_DOT_py=base)

    assert find(trees, "a.bin", kept, "z.bin") == (Path(kept), Path("work.py"))


@pytest.mark.parametrize("name", ["config.yaml", "run.sh", "settings.json"])
def test_a_configuration_names_things_by_its_words(trees: tuple[Path, Path], name: str) -> None:
    write(trees[0], **{name: "data: data/raw.csv"})
    write(trees[1], **{name: "data: data/packed.bin"})

    assert find(trees, "data/packed.bin", sources=name) == (Path("data/packed.bin"), Path(name))


def test_a_module_that_head_has_removed_names_what_it_used(trees: tuple[Path, Path]) -> None:
    write(trees[0], work_DOT_py=HEAD)
    write(trees[1], work_DOT_py=HEAD, fast_DOT_py=BASE)

    found = find(trees, "_fast.so", sources="work.py fast.py")

    assert found == (Path("_fast.so"), Path("fast.py"))


@pytest.mark.parametrize(
    ("head", "base", "kept"),
    [
        (BASE, BASE, "_fast.so"),
        (f"{BASE}# faster", BASE, "_fast.so"),
        (HEAD, "# as in packed.bin", "packed.bin"),
        (HEAD, "fast = 1", "fast.so"),  # a name is no import
        (HEAD, "not Python: 'packed.bin", "packed.bin"),
        (HEAD, BASE, "other.pt"),
        (HEAD, "batch = sample['data']", "data/x.bin"),  # a key
        (HEAD, "import wandb", "wandb/run/x.bin"),  # a folder of its runs has its name
    ],
)
def test_what_both_or_none_name_is_nothing(
    trees: tuple[Path, Path], head: str, base: str, kept: str
) -> None:
    write(trees[0], work_DOT_py=head)
    write(trees[1], work_DOT_py=base)

    assert find(trees, kept) is None


def test_what_moves_to_another_module_of_head_is_still_used(trees: tuple[Path, Path]) -> None:
    write(trees[0], work_DOT_py=HEAD, fast_DOT_py=BASE)
    write(trees[1], work_DOT_py=BASE)

    assert find(trees, "_fast.so", sources="work.py fast.py") is None


def test_what_a_tool_keeps_in_a_folder_of_its_own_is_not_the_changes(
    trees: tuple[Path, Path],
) -> None:
    write(trees[0], work_DOT_py=HEAD, cache___DOT_gitignore="*\n")
    write(trees[1], work_DOT_py=BASE)

    assert find(trees, "cache/x.pt") is None


def test_a_folder_that_the_base_has_is_not_lacking(trees: tuple[Path, Path]) -> None:
    write(trees[0], work_DOT_py=HEAD)
    write(trees[1], work_DOT_py="PATHS = 'shards/'", shards__1_DOT_bin="1")

    assert find(trees, "shards/0.bin") is None
