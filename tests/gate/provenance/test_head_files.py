"""What git ignores in a checkout, which only that checkout has."""

from __future__ import annotations

import errno
import functools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from git_checkouts import git

from perfsuite.gate.arms.arm import Arm, Launch, Suite
from perfsuite.gate.provenance import head_files
from perfsuite.gate.provenance.head_files import (
    code_times,
    give_back,
    kept_files,
    why_edited,
    why_unlike,
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository that ignores caches and checkpoints, and has some."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("cache\nvenv\n*.pt\nlink\n")
    for file in ("cache/a/x", "cache/y", "pkg/last.pt", "pkg/code.py", "venv/pyvenv.cfg"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "link").symlink_to("/usr")
    for file in ("new.txt", "pytest.ini", "pkg/pyproject.toml"):
        (tmp_path / file).touch()
    git(tmp_path, "add", ".gitignore")
    return tmp_path.resolve()


def test_what_git_does_not_know_is_kept_but_for_environments_new_code_and_settings(
    checkout: Path,
) -> None:
    expected = {
        checkout / name for name in ("cache/a/x", "cache/y", "pkg/last.pt", "link", "new.txt")
    }

    assert kept_files(checkout / "pkg") == expected


def test_a_folder_of_many_files_stands_for_them_all(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_files, "_MOST_FILES", 2)

    assert kept_files(checkout) == {
        checkout / name for name in ("cache", "pkg/last.pt", "link", "new.txt")
    }


def test_sources_and_the_configurations_that_git_tracks_are_edited_and_no_other_file(
    checkout: Path,
) -> None:
    names = ("conf/model.yaml", "kernel.cuh", "run.yaml", "data.bin")
    files = [checkout / name for name in names]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("1")
    git(checkout, "add", "conf")
    before = code_times(checkout)

    for file in files:
        os.utime(file, (1, 1))

    assert str(why_edited(checkout, before)).startswith("conf/model.yaml, kernel.cuh changed ")


def test_a_test_that_code_imports_is_not_judged_where_its_sides_have_it_otherwise(
    tmp_path: Path,
) -> None:
    head, base = tmp_path / "head", tmp_path / "base"
    for tree, text in ((head, "light"), (base, "heavy")):
        tree.mkdir()
        (tree / "test_speed.py").write_text(text)
        (tree / "test_same.py").write_text("same")
    suite = Suite(cells={}, root=head, inifile=None, pythonpath=(), python_files=("test_*.py",))

    why = head_files.why_mixed("test_speed.py::test_a", suite, base, ())

    assert why == (
        "its file holds code too, which other code imports, and head has changed it: each side "
        "would run its own; move the benchmark into a file of its own, such as bench_NAME.py"
    )
    assert head_files.why_mixed("test_same.py::test_a", suite, base, ()) is None


def test_outside_of_git_nothing_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "last.pt").touch()

    assert kept_files(tmp_path) == frozenset()


def test_an_ignored_folder_that_nobody_may_look_into_has_no_files(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = checkout / "pkg" / "cache"
    closed.mkdir()
    stat = os.stat

    def refuse_inside(path: Any, **options: Any) -> os.stat_result:
        # As for a mode of 0700, which keeps no root out.
        if not isinstance(path, int) and closed in Path(path).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse_inside)

    assert checkout / "pkg/last.pt" in kept_files(checkout)


def test_a_benchmark_is_given_back_in_place_of_a_link_and_not_through_it(tmp_path: Path) -> None:
    own, tree = tmp_path / "bench.py", tmp_path / "tree"
    own.write_text("the user's")
    tree.mkdir()
    (tree / "test_a.py").symlink_to(own)
    laid = Suite(
        cells={},
        root=tree,
        inifile=None,
        pythonpath=(),
        python_files=(),
        broken={"test_a.py": "no module"},
    )

    arm = Arm(name="base", tree=tree, import_roots=(), pytest_arguments=())
    head = replace(arm, name="head", tree=own.parent)
    launches = [Launch(arm=arm, suite=laid), Launch(arm=arm, suite=replace(laid, broken={}))]
    replaced, stays = give_back(
        (arm, head),
        functools.partial(launches.pop, 0),
        [Path("test_a.py")],
        {Path("test_a.py"): b"the base's"},
        ["test_a.py::test_a"],
    )

    assert ([*replaced], stays) == (["test_a.py::test_a"], [])
    assert (tree / "test_a.py").read_bytes() == b"the base's"
    assert own.read_text() == "the user's"


@pytest.mark.parametrize(
    ("imported", "lacks"),
    [
        ("from shop.prices import price", "it lacks src/shop/prices.py"),
        ("import shop.prices as prices", "it lacks src/shop/prices.py"),
        ("from shop import prices", "it lacks src/shop/prices.py"),
        ("import rates.today", "it lacks rates/__init__.py"),
        ("from ..rates import today", "it lacks rates/__init__.py"),
        ("from shop.stock import count", None),  # a file in the base, a folder in head
        ("import shop.stock, json, numpy.linalg", None),
        ("import wandb", None),  # a folder of its runs has its name
    ],
)
def test_a_module_that_a_function_imports_and_the_base_lacks_gives_the_file_back(
    tmp_path: Path, imported: str, lacks: str | None
) -> None:
    base, head, file = tmp_path / "base", tmp_path / "head", Path("bench/test_a.py")
    both = ("src/shop/__init__.py", str(file))
    in_head = ("src/shop/prices.py", "src/shop/stock/__init__.py", "rates/__init__.py", "wandb/run")
    for path in (
        *(base / one for one in (*both, "src/shop/stock.py")),
        *(head / one for one in (*both, *in_head)),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for tree in (base, head):  # head's, which is laid over the base's
        (tree / file).write_text(f"def test_a(benchmark):\n    {imported}\n")
    arms = [
        Arm(name=tree.name, tree=tree, import_roots=(tree / "src", tree), pytest_arguments=())
        for tree in (base, head)
    ]
    suite = Suite(cells={}, root=base, inifile=None, pythonpath=(), python_files=())

    replaced, stays = give_back(
        (arms[0], arms[1]),
        lambda: Launch(arm=arms[0], suite=suite),
        [file],
        {file: b"the base's"},
        [f"{file}::test_a"],
    )

    told = f"the base runs its own {file}, as it cannot import head's: {lacks}"
    assert replaced == ({} if lacks is None else {f"{file}::test_a": told})
    assert stays == ([file] if lacks is None else [])
    assert ((base / file).read_bytes() == b"the base's") == (lacks is not None)


OWN = """
import pytest
from shop import price

SIZE: int = 64

class TestPrices:
    @pytest.mark.parametrize("many", [1, 2])
    def test_price(self, benchmark, basket, many):
        benchmark(price, basket * many, limit=SIZE)

    def test_other(self, benchmark): benchmark(price, 9)

@pytest.fixture
def basket(): return "x" * 100
"""


@pytest.mark.parametrize(
    ("before", "after", "differing"),
    [
        ("from shop import price", "from store.prices import price as p", None),
        ("benchmark(price, 9)", "benchmark(price, 8)", None),  # another test's
        ("(price, basket", "(price.of, basket", None),
        ("[1, 2]", "[1]", "2"),
        ("SIZE: int = 64", "SIZE = 32", "32, 64"),
        ('"x" * 100', '"x" * 10', "10, 100"),
        ("basket * many", "basket", None),
        ("from shop import price", "from shop import (", "1, 100, 2 and 1 more"),
    ],
)
def test_tests_of_each_side_are_unlike_by_the_numbers_in_them(
    tmp_path: Path, before: str, after: str, differing: str | None
) -> None:
    for name, source in (("base", OWN), ("head", OWN.replace(before, after))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test_a.py").write_text(source)

    why = why_unlike("test_a.py::TestPrices::test_price[1]", tmp_path / "base", tmp_path / "head")

    assert why == (
        differing
        and "the base runs its own test_a.py, as it cannot import head's, and one alone of the two "
        f"tests has {differing}, so that their times may not compare; rename the test if that is "
        "intended"
    )
