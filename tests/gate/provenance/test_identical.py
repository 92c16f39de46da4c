"""Which cells a change touches, by what launches of head say that they load."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from perfsuite.gate.arms.arm import Arm, CellRun, Launch, Loaded, Suite
from perfsuite.gate.git.changes import Changes, compare_trees
from perfsuite.gate.provenance.identical import Comparison

ARM = Arm(name="head", tree=Path("/head"), import_roots=(), pytest_arguments=())
A, B = "test_a.py::test_a", "test_b.py::test_b"
ALPHA, BETA = "/head/alpha.py", "/head/beta.py"
COMPARED = ("alpha.py", "beta.py", "other.py", "other/calc.py", "docs/bench.py", "link")


def changes(*modules: str, documents: Sequence[str] = (), others: Sequence[str] = ()) -> Changes:
    return Changes(
        documents=tuple(map(Path, documents)),
        modules=tuple(map(Path, modules)),
        others=tuple(map(Path, others)),
    )


def run(
    *files: str, outcome: str = "passed", silent: Sequence[str] = (), shells: Sequence[str] = ()
) -> CellRun:
    loaded = Loaded(recent=frozenset(files), silent=frozenset(silent), shells=frozenset(shells))
    return CellRun(outcome=outcome, reason=None, rounds_s=(0.1,), record=None, loaded=loaded)


def comparison(
    found: Changes,
    runs: Mapping[str, CellRun],
    launched: list[Sequence[str]],
    *,
    collected: Sequence[str] = (),
    top: Path = Path("/head"),
) -> Comparison:
    suite = Suite(
        cells={name: {"fixture": "train_benchmark"} for name in runs},
        root=top,
        inifile=None,
        pythonpath=(),
        python_files=(),
        shared=("data",),
    )

    def launch(names: Sequence[str], is_enough: Callable[[Loaded], bool]) -> Launch:
        launched.append(names)
        assert not any(map(is_enough, (Loaded(), Loaded(recent=frozenset(["/head/other.py"])))))
        assert is_enough(Loaded(shells=frozenset(["sh"])))
        return Launch(arm=ARM, cells={name: runs[name] for name in names})

    loaded = Loaded(recent=frozenset(collected))
    return Comparison(
        top=top,
        changes=found,
        compared=frozenset(map(Path, COMPARED)),
        collected=Launch(arm=dataclasses.replace(ARM, tree=top), suite=suite, loaded=loaded),
        run=launch,
    )


def names(found: Comparison, *cells: str) -> list[str]:
    verdicts = found.find_identical(cells)
    assert {(verdict.word, verdict.by) for verdict in verdicts} <= {("PASS", "identical")}
    return [verdict.name for verdict in verdicts]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (changes(), "no file on disk that git knows differs from the base"),
        (
            changes(documents=["a.md", "b.md", "c.md", "d.md"]),
            "only documentation differs from the base: a.md, b.md, c.md and 1 more",
        ),
    ],
)
def test_documentation_touches_no_cell_and_nothing_is_launched(found: Changes, why: str) -> None:
    launched: list[Sequence[str]] = []

    (verdict,) = comparison(found, {}, launched).find_identical([A])

    assert (verdict.reason, verdict.compared_with) == (why, f"identical: {why}")
    assert launched == []


def test_documents_that_tests_load_touch_every_cell() -> None:
    found = comparison(
        changes(documents=["docs/bench.py"]), {A: run()}, [], collected=["/head/docs/bench.py"]
    )

    assert not found.reaches_no_cell
    assert names(found, A) == []


def test_what_is_no_module_touches_every_cell_and_nothing_is_launched() -> None:
    launched: list[Sequence[str]] = []

    assert names(comparison(changes("alpha.py", others=["x.json"]), {}, launched), A, B) == []
    assert launched == []


def test_where_collecting_loads_no_changed_module_one_launch_tells_all_cells() -> None:
    launched: list[Sequence[str]] = []
    runs = {A: run(ALPHA), B: run(BETA)}

    assert names(comparison(changes("alpha.py"), runs, launched), A, B) == [B]
    assert launched == [[A, B]]


@pytest.mark.parametrize(
    ("cell", "is_judged"),
    [
        ({"fixture": "train_benchmark"}, False),  # all its work is that of its ranks
        ({"fixture": "train_benchmark", "outlives": True}, True),
        ({"fixture": None}, True),  # as by a functools.cache
    ],
)
def test_a_cell_may_use_what_an_ended_process_made_for_an_earlier_one(
    cell: dict[str, Any], is_judged: bool
) -> None:
    loaded = Loaded(recent=frozenset([BETA]), files=frozenset([ALPHA, BETA]))
    found = comparison(changes("alpha.py"), {A: dataclasses.replace(run(BETA), loaded=loaded)}, [])
    assert found.collected.suite is not None
    found.collected.suite.cells[A] = cell

    assert (names(found, A) == []) == is_judged


@pytest.mark.parametrize("product", ["kernel.py", "alpha.py", "kernel.abi3.so"])
def test_what_a_project_of_the_tree_has_made_and_installed_may_be_of_any_change(
    tmp_path: Path, product: str
) -> None:
    top, site = tmp_path / "tree", tmp_path / "site-packages"
    for file, text in {
        top / "pyproject.toml": '[project]\nname = "kern"\nversion = "1"\n',
        top / "alpha.py": "",
        top / "generator.py": "",
        site / "kern-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: kern\nVersion: 1\n",
        site / "kern-1.dist-info/RECORD": f"{product},,\n",
        site / product: "",
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    runs = {A: run(str(site / product)), B: run(str(top / "alpha.py"))}

    found = names(comparison(changes("generator.py"), runs, [], top=top), A, B)

    assert found == ([A, B] if product == "alpha.py" else [B])


def test_where_collecting_loads_a_changed_module_each_file_is_launched_alone() -> None:
    launched: list[Sequence[str]] = []
    runs = {A: run(ALPHA), B: run(BETA)}
    found = comparison(changes("alpha.py"), runs, launched, collected=[ALPHA, BETA])

    assert names(found, A, B) == [B]
    assert launched == [[A], [B]]


def test_where_the_only_file_loads_a_changed_module_nothing_is_launched() -> None:
    launched: list[Sequence[str]] = []
    found = comparison(changes("alpha.py"), {A: run(ALPHA)}, launched, collected=[ALPHA])

    assert names(found, A) == []
    assert launched == []


@pytest.mark.parametrize(
    "of_a",
    [
        run(BETA, silent=["python -I run.py"]),
        run(BETA, shells=["./run.sh"]),
        run(BETA, outcome="failed"),
        run(BETA, outcome="skipped"),
        CellRun(outcome="passed", reason=None, rounds_s=(), record=None),
    ],
)
def test_a_cell_that_did_not_show_what_it_loads_is_judged(of_a: CellRun) -> None:
    assert names(comparison(changes("alpha.py"), {A: of_a}, []), A) == []


@pytest.mark.parametrize(
    ("file", "is_judged"),
    [
        ("cache/prepared.pt", True),
        ("generated.py", True),
        ("data/prepared.pt", False),  # pytest's perf_share names it
        ("link/prepared.pt", False),  # a link that git tracks
        ("shop.egg-info/entry_points.txt", False),
        (".hypothesis/unicode_data/charmap.json.gz", False),
        (".venv/lib/site-packages/numpy/version.py", False),
        (".git/HEAD", False),
        ("perfsuite-1-pair-x/head-tmp/left.pt", False),
    ],
)
def test_a_cell_that_loads_what_git_does_not_know_is_judged(file: str, is_judged: bool) -> None:
    found = comparison(changes("alpha.py"), {A: run(BETA, f"/head/{file}")}, [])

    assert (names(found, A) == []) == is_judged


@pytest.mark.parametrize(
    ("module", "file", "is_copy"),
    [
        ("lib/calc.py", "/x/site-packages/calc.py", True),
        ("lib/calc.py", "/head/.venv/lib/site-packages/calc.py", True),
        ("lib/calc.py", "/head/other/calc.py", False),
        ("src/shop/calc.py", "/x/site-packages/shop/calc.py", True),
        ("src/shop/calc.py", "/x/site-packages/calc.py", False),
        ("src/shop/calc.py", "/head/src/shop/calc.cpython-311-x86_64-linux-gnu.so", True),
        ("lib/calc.py", "/x/site-packages/torch/calc.py", False),
    ],
)
def test_an_installed_copy_of_a_changed_module_touches_a_cell(
    tmp_path: Path, module: str, file: str, is_copy: bool
) -> None:
    top = tmp_path / "head"
    place = Path(str(tmp_path) + file)
    for path in (top / module, place):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for package in ("src/shop", "../x/site-packages/torch"):
        if (top / package).is_dir():
            (top / package / "__init__.py").touch()

    found = comparison(changes(module), {A: run(str(place))}, [], top=top)

    assert (names(found, A) == []) == is_copy


def test_trees_are_compared_byte_by_byte(tmp_path: Path) -> None:
    head, base = tmp_path / "head", tmp_path / "base"
    for tree in (head, base):
        (tree / "pkg").mkdir(parents=True)
        (tree / "docs").mkdir()
        (tree / "pkg" / "same.py").write_text("same")
        (tree / "pkg" / "run.sh").write_text("same")
    (head / "pkg" / "changed.py").write_text("one")
    (base / "pkg" / "changed.py").write_text("two")
    (head / "pkg" / "new.py").write_text("")
    (base / "pkg" / "gone.py").write_text("")
    (head / "data.bin").write_text("one")
    (base / "data.bin").write_text("two")
    (head / "docs" / "index.md").write_text("new")
    (head / "docs" / "train.py").write_text("new")
    (head / "setup.py").write_text("new")
    (head / "pkg" / "run.sh").chmod(0o755)
    (head / "link.py").symlink_to("pkg/same.py")
    (base / "link.py").symlink_to("pkg/changed.py")
    files = [
        [path.relative_to(tree) for path in tree.rglob("*") if not path.is_dir()]
        for tree in (head, base)
    ]

    found = compare_trees(head, head, files[0], base, files[1])

    assert found == changes(
        "docs/train.py",
        "pkg/changed.py",
        "pkg/new.py",
        documents=["docs/index.md"],
        others=["data.bin", "link.py", "pkg/gone.py", "pkg/run.sh", "setup.py"],
    )
