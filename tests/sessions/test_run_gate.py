"""Whole gate sessions over real repositories: from two trees to the verdict of every cell."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from gated_repository import CLOCK
from git_checkouts import git
from made_up_machine import Machine
from made_up_runs import stamp, write_run
from tiny_suites import FEW_PLUGINS

from perfsuite.errors import SettingError, StorageError, WorkloadError
from perfsuite.gate import run_gate as run_gate_module
from perfsuite.gate.arms.command import Command
from perfsuite.gate.calibrate import calibrate
from perfsuite.gate.judge.trial import Budget, CellPolicy, Judgement
from perfsuite.gate.noise import Calibration, CellNoise, write_calibration
from perfsuite.gate.request import GateRequest
from perfsuite.gate.run_gate import HELD, GateResult, run_gate
from perfsuite.records.verdict import CellVerdict, exit_code
from perfsuite.stats.sequential import Prior

CALL = ("bench", *FEW_PLUGINS)

# Measured with a clock that only the code under test moves: no verdict depends on the machine.
CODE = """
def spin(n):
    total = 0
    for i in range(n):
        total += i

def same(clock):
    clock.work(0.001)

def slow(clock):
    spin(10 * {slow})
    clock.work({slow} * 1e-8)
"""
BENCH = """
import pytest
from pkg import code
from work_clock import CLOCK

pytestmark = pytest.mark.benchmark(timer=CLOCK)

def test_same(benchmark): benchmark.pedantic(code.same, (CLOCK,), rounds=5)
def test_slow(benchmark): benchmark.pedantic(code.slow, (CLOCK,), rounds=5)
"""
PYTHONPATH = os.environ.get("PYTHONPATH", "").split(os.pathsep)
INI = "[pytest]\naddopts = --strict-config --ff\ncache_dir = .cache\n"
WORK_CLOCK = {"bench/work_clock.py": textwrap.dedent(CLOCK)}


@pytest.fixture(scope="module", autouse=True)
def _no_configuration_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("home")
    (folder / "gitconfig").write_text(
        "[user]\nname = A\nemail = a@example.org\n[init]\ndefaultBranch = main\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", str(folder / "gitconfig"))
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        yield


@pytest.fixture(autouse=True)
def _nothing_stays(tmp_path: Path) -> Iterator[None]:
    """Fails if a temporary folder of a session stays, or a tree beside its checkout."""
    yield
    assert traces() == []
    assert list(tmp_path.rglob(f"perfsuite-{os.getpid()}-*")) == []


def traces() -> list[str]:
    folders = Path(tempfile.gettempdir()).glob(f"perfsuite-{os.getpid()}-*")
    return sorted(map(str, folders))


def write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "more")


def make_project(folder: Path, base: dict[str, str], head: dict[str, str]) -> Path:
    """A repository with two commits; what head gives replaces, and "" removes, a file."""
    folder = folder.resolve()
    folder.mkdir(exist_ok=True)
    git(folder, "init", "--quiet")
    write(folder, {"pkg/__init__.py": "", "pytest.ini": INI, **WORK_CLOCK, **base})
    commit(folder)
    write(folder, head)
    for name, text in head.items():
        if not text:
            (folder / name).unlink()
    commit(folder)
    return folder


def gate(folder: Path, **changes: Any) -> GateResult:
    """One session, as short as it can be."""
    arguments: dict[str, Any] = {
        "command": Command(folder=folder, arguments=changes.pop("arguments", CALL)),
        "base": "HEAD~1" if "base_dir" not in changes else None,
        "budget": Budget(max_pairs=3, max_s=300.0, timeout_s=60.0),
        "seed": 3,
    }
    say = changes.pop("say", lambda text: None)
    machine = changes.pop("machine", HELD)
    return run_gate(GateRequest(**(arguments | changes)), say=say, machine=machine)


def words(result: GateResult) -> dict[str, str]:
    return {cell.name.rpartition("::")[2]: cell.word for cell in result.cells}


def cell(result: GateResult, name: str) -> CellVerdict:
    (found,) = (cell for cell in result.cells if cell.name.endswith(f"::{name}"))
    return found


# --- one session with every kind of cell ---


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    added = (
        "def test_new(benchmark): benchmark.pedantic(int)\n"
        "def test_new_ends(benchmark): __import__('os')._exit(3)\n"
        "def test_new_fails(benchmark): benchmark(code.unknown)\n"
    )
    fails = "def test_fails(benchmark): benchmark.pedantic(code.broken, (CLOCK,))\n"
    return make_project(
        tmp_path_factory.mktemp("project"),
        {
            "pkg/code.py": CODE.format(slow=50_000) + "def broken(clock): pass\n",
            "bench/test_a.py": BENCH + fails,
            "bench/test_gone.py": "def test_gone(benchmark): benchmark(int)\n",
        },
        {
            # Explained by one profile a side, by this machine's clock: it outweighs a pause.
            "pkg/code.py": CODE.format(slow=100_000).replace("spin(10 *", "spin(60 *")
            + "def broken(clock): raise OSError('disk full')\n",
            "bench/test_a.py": BENCH + fails + added,
            "bench/test_gone.py": "",
        },
    )


def state(project: Path) -> tuple[str, ...]:
    """What a user would notice of a repository."""
    asked = ("status --porcelain --ignored", "worktree list", "stash list", "branch --all")
    return tuple(git(project, *command.split()) for command in asked)


@pytest.fixture(scope="module")
def result(project: Path) -> GateResult:
    before = state(project)
    result = gate(project)
    assert state(project) == before
    return result


def test_every_cell_of_either_side_has_its_verdict(project: Path, result: GateResult) -> None:
    assert result.refusal is None
    assert result.root == project
    assert words(result) == {
        "test_same": "PASS",
        "test_slow": "FAIL",
        "test_fails": "ERROR",
        "test_new": "NEW",
        "test_new_ends": "ERROR",
        "test_new_fails": "ERROR",
        "test_gone": "VANISHED",
    }
    assert exit_code(words(result).values()) == 1


def test_what_was_not_compared_says_why(result: GateResult) -> None:
    assert cell(result, "test_new") == CellVerdict(
        name="bench/test_a.py::test_new",
        word="NEW",
        by="collection",
        reason="the base has no such cell",
    )
    assert cell(result, "test_gone") == CellVerdict(
        name="bench/test_gone.py::test_gone",
        word="VANISHED",
        by="collection",
        reason=("head has no such cell; if that is meant, say so with 'perfsuite baseline accept'"),
    )
    assert cell(result, "test_new_fails").reason == (
        "the base has no such cell; head failed: AttributeError: module 'pkg.code' has no "
        "attribute 'unknown'"
    )
    failed = cell(result, "test_fails").reason
    assert failed is not None
    assert failed.startswith(
        "the head arm failed: OSError: disk full; where it passes in a session "
    )


def test_a_judged_cell_keeps_its_raw_pairs_and_numbers(result: GateResult) -> None:
    slow = cell(result, "test_slow")

    assert slow.by == "pairs"
    assert slow.num_pairs == 3
    assert [base_s for base_s, _ in slow.raw] == pytest.approx([0.0005] * 3, rel=1e-4)
    assert [head_s for _, head_s in slow.raw] == pytest.approx([0.001] * 3, rel=1e-4)
    assert slow.ratio == pytest.approx(2.0)
    assert slow.interval is not None
    assert 1.9 < slow.interval[0] < 2 < slow.interval[1] < 2.1
    assert (slow.tolerance, slow.limit) == (0.02, 0.05)
    assert result.judgement is not None
    assert result.judgement.num_pairs == 3
    assert result.seed == 3


def test_a_failed_cell_alone_is_explained_by_the_function_that_moved(result: GateResult) -> None:
    explained = [cell.name for cell in result.cells if cell.explanation is not None]
    explanation = cell(result, "test_slow").explanation

    assert explained == ["bench/test_a.py::test_slow"]
    assert explanation is not None
    assert explanation.operators[0]["name"] == "code.py:spin"
    assert explanation.moved_stage is None


def test_the_arms_are_named_by_their_commits_and_what_head_laid_over_the_base(
    project: Path, result: GateResult
) -> None:
    head, base = (
        git(project, "rev-parse", "--short=7", revision) for revision in ("HEAD", "HEAD~1")
    )

    assert result.differs == {
        "head": f"main at {head}",
        "base": f"HEAD~1, {base}",
        "benchmark files": "head's run on both sides: bench/test_a.py",
    }


# --- other bases ---


def test_a_base_may_be_a_folder_an_interpreter_and_an_environment(tmp_path: Path) -> None:
    code = CODE.format(slow=100_000) + (
        "import os\ndef env(clock): clock.work(float(os.environ.get('SECONDS', '0.001')))\n"
    )
    bench = BENCH + "def test_env(benchmark): benchmark.pedantic(code.env, (CLOCK,), rounds=5)\n"
    for name in ("old", "new"):
        write(
            tmp_path / name,
            {"pkg/__init__.py": "", "pkg/code.py": code, "bench/test_a.py": bench, **WORK_CLOCK},
        )
    old = tmp_path / "old"

    result = gate(
        tmp_path / "new",
        arguments=("bench/test_a.py::test_env", *FEW_PLUGINS),
        base_dir=old,
        base_python=sys.executable,
        base_environment={"SECONDS": "0.002"},
    )

    assert words(result) == {"test_env": "IMPROVED"}
    assert exit_code(words(result).values()) == 0
    assert result.differs == {
        "head": "a folder outside git",
        "base": str(old),
        "base interpreter": sys.executable,
        "base SECONDS": "0.002",
    }
    assert sorted(path.name for path in old.rglob("*") if path.is_file()) == [
        *("__init__.py", "code.py", "test_a.py", "work_clock.py"),
    ]


def test_where_pytests_root_is_a_part_of_its_checkout_the_rest_is_compared_too(
    tmp_path: Path,
) -> None:
    bench = {"bench/pytest.ini": f"{INI}pythonpath = ..\n", "bench/test_a.py": BENCH}
    old = make_project(tmp_path / "old", {"pkg/code.py": CODE.format(slow=50_000), **bench}, {})
    new = make_project(tmp_path / "new", {"pkg/code.py": CODE.format(slow=100_000), **bench}, {})
    (new / "baselines").mkdir()
    (new / "baselines/accepted.toml").touch()

    result = gate(new, base_dir=old / "bench", arguments=("-c", "bench/pytest.ini", *CALL))

    assert words(result) == {"test_same": "PASS", "test_slow": "FAIL"}
    read, beside = (f"{new}/{inner}baselines/accepted.toml" for inner in ("bench/", ""))
    assert result.differs["not read"] == (
        f"{beside}; exceptions are read from {read}, in pytest's root"
    )
    for elsewhere in (old, new / "pkg"):
        with pytest.raises(SettingError) as refused:
            gate(new, base_dir=elsewhere, arguments=("-c", "bench/pytest.ini", *CALL))
        assert str(refused.value) == (
            f"pytest's root is bench in the checkout {new}, and {elsewhere} is not bench in "
            "another one, so that the rest would not be compared; name bench of another "
            "checkout, as 'git worktree add' makes one, or a revision"
        )


def test_a_cell_is_identical_to_that_of_a_folder_whose_root_is_a_part_of_its_checkout(
    tmp_path: Path,
) -> None:
    alone = "def test_alone(benchmark): benchmark(int)\n"
    bench = {"bench/pytest.ini": f"{INI}pythonpath = ..\n", "bench/test_b.py": alone}
    old = make_project(tmp_path / "old", {"pkg/code.py": "SLOW = 1\n", **bench}, {})
    new = make_project(tmp_path / "new", {"pkg/code.py": "SLOW = 2\n", **bench}, {})

    result = gate(new, base_dir=old / "bench", arguments=("-c", "bench/pytest.ini", "bench"))

    assert [(one.word, one.by) for one in result.cells] == [("PASS", "identical")]


def test_uncommitted_changes_are_part_of_head(tmp_path: Path) -> None:
    folder = make_project(
        tmp_path, {"pkg/code.py": CODE.format(slow=50_000), "bench/test_a.py": BENCH}, {}
    )
    write(folder, {"pkg/code.py": CODE.format(slow=100_000)})

    result = gate(folder, base=None, num_cells=40, arguments=(*CALL, "-k", "slow"))

    assert words(result) == {"test_slow": "FAIL"}
    assert cell(result, "test_slow").rule["num_cells"] == 40
    assert result.differs["head"].endswith("with uncommitted changes")


@pytest.mark.parametrize(
    ("is_repository", "advice"),
    [
        (False, "use --base-dir=DIR (pytest: --perf-base-dir)"),
        (True, "name a base with --base or --base-dir (pytest: --perf-base, --perf-base-dir)"),
    ],
)
def test_without_any_base_nothing_is_run(tmp_path: Path, is_repository: bool, advice: str) -> None:
    folder = tmp_path.resolve()
    write(folder, {"bench/test_a.py": BENCH})
    if is_repository:
        git(folder, "init", "--quiet")
        commit(folder)

    result = gate(folder, base=None)

    assert (result.cells, result.judgement) == ((), None)
    assert result.refusal is not None
    assert advice in result.refusal


@pytest.mark.parametrize("is_repository", [True, False])
def test_tests_of_another_checkout_than_the_folders_are_refused_before_any_base_is_made(
    tmp_path: Path, is_repository: bool
) -> None:
    folder = tmp_path.resolve()
    if is_repository:
        write(folder, {"code.py": ""})
        git(folder, "init", "--quiet")
        commit(folder)
    part = make_project(folder / "part", {"bench/test_a.py": BENCH}, {})

    result = gate(folder, base=None, arguments=("part/bench", *FEW_PLUGINS))

    assert (result.cells, result.judgement) == ((), None)
    assert result.refusal == (
        f"pytest's root, {part}, and {folder}, where it was called, are not in one git checkout: "
        f"call it in {part}, or use --base-dir=DIR (pytest: --perf-base-dir)"
    )


def test_a_configuration_above_the_checkout_is_no_place_to_call_it_in(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    write(folder, {"pytest.ini": "[pytest]\n"})
    project = make_project(folder / "project", {"bench/test_a.py": BENCH}, {})
    (project / "pytest.ini").unlink(missing_ok=True)

    result = gate(project, base=None, arguments=("bench", f"--rootdir={folder}", *FEW_PLUGINS))

    assert result.refusal == (
        f"pytest's root, {folder}, and {project}, where it was called, are not in one git "
        "checkout: use --base-dir=DIR (pytest: --perf-base-dir)"
    )


def test_an_unknown_base_is_a_users_mistake(project: Path) -> None:
    with pytest.raises(SettingError, match="no-such-branch"):
        gate(project, base="no-such-branch")


# --- what cannot be compared ---


def test_where_heads_tests_cannot_be_collected_nothing_is_compared(tmp_path: Path) -> None:
    folder = make_project(
        tmp_path, {"bench/test_a.py": BENCH}, {"bench/test_a.py": "import no_such_module\n"}
    )

    result = gate(folder)

    assert result.cells == ()
    assert result.refusal is not None
    assert result.refusal.startswith("head's tests cannot be collected: ")
    assert "No module named 'no_such_module'" in result.refusal


def test_where_the_bases_tests_cannot_be_collected_no_cell_passes(tmp_path: Path) -> None:
    folder = make_project(
        tmp_path,
        {"pkg/code.py": CODE.format(slow=1), "bench/test_a.py": BENCH, "bench/conftest.py": "1/0"},
        {"bench/conftest.py": ""},
    )

    result = gate(folder)

    assert words(result) == {"test_same": "NO-BASELINE", "test_slow": "NO-BASELINE"}
    reason = cell(result, "test_same").reason
    assert reason is not None
    assert reason.startswith(
        "the base's tests cannot be collected; if its own commit is broken, name an older one with "
        "--base (pytest: --perf-base): "
    )
    assert "ZeroDivisionError" in reason
    assert exit_code(words(result).values()) == 12


def test_a_change_that_repairs_a_benchmark_of_the_base_is_judged(tmp_path: Path) -> None:
    folder = make_project(
        tmp_path,
        {"pkg/code.py": CODE.format(slow=50_000), "bench/test_a.py": "import no_such_module\n"},
        {"pkg/code.py": CODE.format(slow=100_000), "bench/test_a.py": BENCH},
    )

    result = gate(folder)

    assert words(result) == {"test_same": "PASS", "test_slow": "FAIL"}
    assert exit_code(words(result).values()) == 10


def test_options_that_the_bases_pytest_refuses_are_left_out(tmp_path: Path) -> None:
    folder = make_project(
        tmp_path,
        {
            "pkg/code.py": CODE.format(slow=1),
            "bench/test_a.py": BENCH,
            "pytest.ini": "[pytest]\naddopts = --option-of-a-plugin-that-is-gone\n",
        },
        {"pytest.ini": INI, "bench/test_a.py": BENCH.partition("def test_slow")[0]},
    )

    result = gate(folder)

    assert words(result) == {"test_same": "PASS", "test_slow": "VANISHED"}
    assert exit_code(words(result).values()) == 12


def test_a_skip_is_not_believed_where_the_base_cannot_be_asked(tmp_path: Path) -> None:
    old = {"bench/test_a.py": BENCH, "pkg/code.py": CODE.format(slow=1)}
    gone = {"pytest.ini": "[pytest]\naddopts = --option-of-a-plugin-that-is-gone\n"}
    skips = BENCH.replace("def test_slow", "@pytest.mark.skip('flaky')\ndef test_slow")
    folder = make_project(tmp_path, old | gone, {"pytest.ini": INI, "bench/test_a.py": skips})

    # What helps a re-run cannot be written, which costs no verdict.
    result = gate(folder, pairs_file=folder / "pytest.ini" / "pairs.json")

    assert words(result) == {"test_same": "PASS", "test_slow": "INVALID"}
    assert str(cell(result, "test_slow").reason).startswith(
        "the base launch did not measure it: its pytest ended"
    )


def test_a_base_that_cannot_import_heads_conftest_runs_its_own(tmp_path: Path) -> None:
    folder = make_project(
        tmp_path,
        {"pkg/code.py": CODE.format(slow=1), "bench/test_a.py": BENCH},
        {"pkg/new.py": "# new\n", "conftest.py": "import pkg.new\n"},
    )

    result = gate(folder)

    assert words(result) == {"test_same": "PASS", "test_slow": "PASS"}
    assert result.differs["benchmark files"] == "each side runs its own Python files"
    assert str(cell(result, "test_same").reason).startswith(
        "the base runs its own conftest.py, as it cannot import head's: ModuleNotFoundError: No "
        "module named 'pkg.new'"
    )


def test_a_setting_that_needs_what_head_alone_has_is_told(tmp_path: Path) -> None:
    ini = "[pytest]\npythonpath = .\n"
    folder = make_project(
        tmp_path,
        {"pkg/code.py": CODE.format(slow=1), "bench/test_a.py": BENCH, "pytest.ini": ini},
        {"pkg/new.py": "# new\n", "pytest.ini": f"{ini}addopts = -p pkg.new\n"},
    )

    result = gate(folder)

    assert words(result) == {"test_same": "INVALID", "test_slow": "INVALID"}
    reason = str(cell(result, "test_same").reason)
    assert reason.startswith(
        "the base launch, which runs head's conftest.py and settings, did not measure it: its "
        "pytest ended early with exit code 4"
    )
    assert "No module named 'pkg.new'" in reason


def test_a_base_whose_perfsuite_cannot_take_turns_is_no_baseline(tmp_path: Path) -> None:
    folder = make_project(
        tmp_path,
        {
            "perfsuite/__init__.py": "",
            "perfsuite/plugin/hooks.py": "TAKES_TURNS = True\n",
            "bench/test_a.py": BENCH,
        }
        | {"pkg/code.py": CODE.format(slow=1)},
        {"perfsuite/plugin/hooks.py": "TAKES_TURNS = 2\n"},
    )

    result = gate(folder, arguments=("bench", *FEW_PLUGINS[2:]))

    assert words(result) == {"test_same": "NO-BASELINE", "test_slow": "NO-BASELINE"}
    assert cell(result, "test_slow").reason == "the base's perfsuite is too old to take turns"
    assert result.judgement is None


def test_an_arm_that_imports_the_others_code_makes_every_cell_invalid(tmp_path: Path) -> None:
    folder = make_project(tmp_path, {"pkg/code.py": CODE.format(slow=1)}, {})
    first = f"import sys\nsys.path.insert(0, {str(folder)!r})\n"
    write(folder, {"bench/test_a.py": first + BENCH})
    commit(folder)
    write(folder, {"pkg/code.py": CODE.format(slow=100_000)})

    result = gate(folder, base="HEAD")

    assert words(result) == {"test_same": "INVALID", "test_slow": "INVALID"}
    assert exit_code(words(result).values()) == 12
    assert cell(result, "test_slow").reason == (
        f"the base arm loaded {folder}/pkg/code.py, which is head's; is it installed in editable "
        "mode, or behind a link with an absolute path? "
        "Name its folder in pytest's pythonpath or in PYTHONPATH, or have the code find it "
        "beside itself"
    )
    assert result.judgement is not None
    assert result.judgement.num_pairs == 1


def test_arms_that_import_one_installed_copy_make_every_cell_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = {
        "lib/calc.py": CODE.format(slow=1),
        "bench/test_a.py": BENCH.replace("from pkg import code", "import calc as code"),
    }
    folder = make_project(tmp_path / "project", code, {"lib/calc.py": CODE.format(slow=100_000)})
    installed = tmp_path.resolve() / "site-packages"
    write(installed, {"calc.py": CODE.format(slow=1)})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(installed), *PYTHONPATH])))

    result = gate(folder)

    assert words(result) == {"test_same": "INVALID", "test_slow": "INVALID"}
    assert exit_code(words(result).values()) == 12
    assert cell(result, "test_slow").reason == (
        f"both arms loaded {installed}/calc.py, although the tree has lib/calc.py; name its folder "
        "in pytest's pythonpath, uninstall that copy, or give the base an interpreter of its own "
        "with --base-python (pytest: --perf-base-python)"
    )


@pytest.mark.parametrize(
    ("marked", "told"),
    [
        (
            "limit='much'",
            "the perf marker has {'limit': 'much'}: 'much' is not a ratio; write '2%' or '0.02'",
        ),
        (
            "limit=0.1",
            "the perf marker has {'limit': 0.1}: use values such as limit='5%', floor='50us', "
            "counts={'flops': 'exact'}",
        ),
        ("matrix='ful'", "matrix is 'ful' (perf marker); use one of smoke, default, full"),
    ],
)
def test_a_marker_that_says_nothing_sensible_is_a_users_mistake(
    tmp_path: Path, marked: str, told: str
) -> None:
    bench = f"import pytest\n@pytest.mark.perf({marked})\ndef test_a(benchmark): benchmark(int)\n"
    folder = make_project(tmp_path, {"bench/test_a.py": bench}, {"pkg/code.py": "x = 1\n"})

    with pytest.raises(SettingError) as raised:
        gate(folder)

    assert str(raised.value) == f"bench/test_a.py::test_a: {told}"


# --- surroundings ---


def test_temporary_folders_in_heads_tree_are_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = {"pkg/code.py": CODE.format(slow=50_000), "bench/test_a.py": BENCH}
    folder = make_project(tmp_path, code, {"pytest.ini": ""})
    # What the base has not, and would take from the folders above it.
    write(folder, {"pytest.ini": INI, "conftest.py": "", "pkg/code.py": CODE.format(slow=100_000)})
    (folder / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))

    result = gate(folder, base="HEAD", arguments=FEW_PLUGINS)

    assert words(result) == {"test_same": "PASS", "test_slow": "FAIL"}


def test_the_line_ends_of_a_checkout_change_no_benchmark_file(tmp_path: Path) -> None:
    code = {"pkg/code.py": CODE.format(slow=1), "bench/test_a.py": BENCH}
    folder = make_project(tmp_path, code, {})
    git(folder, "config", "core.autocrlf", "true")

    result = gate(folder, arguments=(*CALL, "-k", "nothing"))

    assert result.refusal is None
    assert result.differs.keys() == {"head", "base"}


# --- what was not selected, and what cannot be seen ---


def test_where_nothing_is_selected_that_is_said(tmp_path: Path) -> None:
    code = CODE.format(slow=1000)
    folder = make_project(tmp_path, {"bench/test_a.py": BENCH, "pkg/code.py": code}, {})
    said: list[str] = []

    result = gate(folder, arguments=(*CALL, "-k", "nothing"), say=said.append)

    assert result.cells == ()
    assert said == ["nothing to compare: no test with the benchmark fixture is selected"]


def test_stored_runs_that_cannot_be_listed_cost_a_forecast_alone(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StorageError("s3://bucket/runs: cannot be listed: Access Denied")

    monkeypatch.setattr("perfsuite.gate.run_gate.read_durations", refuse)

    assert words(gate(project, arguments=(*CALL, "-k", "slow"))) == {"test_slow": "FAIL"}


def test_a_cell_that_hides_is_invalid_in_words(tmp_path: Path) -> None:
    hidden = """
import pytest

@pytest.fixture
def timed(request):
    return request.getfixturevalue("benchmark")

@pytest.fixture(autouse=True)
def annotate(request):
    if "benchmark" in request.fixturenames:
        request.getfixturevalue("benchmark").extra_info["machine"] = "mine"

@pytest.fixture(params=["benchmark"])
def named(request):
    return request.getfixturevalue(request.param)

TIMER = "benchmark"

def helper(request): return request.getfixturevalue("benchmark")
def by_default(request, name="benchmark"): return request.getfixturevalue(name)

def test_by_parameter(named): named(sum, [1])
def test_by_constant(request): request.getfixturevalue(TIMER)(sum, [1])
def test_by_default(request): by_default(request)(sum, [1])
def test_by_fixture(timed): timed(sum, [1])
def test_by_helper(request): helper(request)(sum, [1])
def test_by_body(request): request.getfixturevalue("benchmark")(sum, [1])
def test_of_perfsuite(request): request.getfixturevalue("step_benchmark")(int)

@pytest.mark.perf(matrix="full")
def test_of_another_matrix(request): request.getfixturevalue("benchmark")(sum, [1])

@pytest.mark.perf(matrix="full", tier=1)
def test_marked_by_another_plugin(request): request.getfixturevalue("benchmark")(sum, [1])

def test_no_cell(request): request.getfixturevalue("tmp_path")

class Timing:
    def time(self, request): return request.getfixturevalue("benchmark")

class TestClass(Timing):
    def test_by_method(self, request): self.time(request)(sum, [1])
"""
    folder = make_project(tmp_path, {"bench/test_hidden.py": hidden}, {})

    result = gate(folder)

    hiding = (
        *("test_by_parameter[benchmark]", "test_by_constant", "test_by_default"),
        *("test_by_fixture", "test_by_helper", "test_by_body", "test_by_method"),
        *("test_of_perfsuite", "test_marked_by_another_plugin"),
    )
    assert words(result) == dict.fromkeys(hiding, "INVALID")
    assert {cell.reason for cell in result.cells} == {
        "it takes its benchmark fixture from request.getfixturevalue, which cannot be seen before "
        "it runs, so it is not compared; name the fixture among its arguments"
    }


READS_A_PART = """
from pathlib import Path

part = Path(__file__).parents[1] / "part/numbers.txt"
print(part.read_text() if part.exists() else "without it")
"""


def test_a_submodule_is_that_of_the_base_where_its_commit_was_fetched(tmp_path: Path) -> None:
    part = make_project(tmp_path / "part", {"numbers.txt": "1"}, {"numbers.txt": "2"})
    old = git(part, "rev-parse", "HEAD~1")
    code = {"pkg/code.py": READS_A_PART + CODE.format(slow=1)}
    folder = make_project(tmp_path / "project", {"bench/test_a.py": BENCH, **code}, {})
    add = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add")
    git(folder, *add, str(part), "part")
    git(folder / "part", "checkout", "--quiet", old)
    commit(folder)
    git(folder / "part", "checkout", "--quiet", "main")
    commit(folder)
    git(folder / "part", "fetch", "--quiet", "--depth=1", f"file://{part}", "main")
    git(folder / "part", "reflog", "expire", "--expire=now", "--all")
    git(folder / "part", "gc", "--quiet", "--prune=now")

    result = gate(folder)

    assert words(result) == {"test_same": "INVALID", "test_slow": "INVALID"}
    assert exit_code(words(result).values()) == 12
    assert result.differs["base's tree"] == (
        "lacks submodules or git-lfs files, part; where a cell needs them, fetch them here, or "
        "name a checkout with them (--base-dir)"
    )
    assert str(cell(result, "test_same").reason).startswith(
        "part/numbers.txt was loaded, but the base's tree lacks part, which differs between"
    )

    git(folder / "part", "fetch", "--quiet", "--depth=1", f"file://{part}", old)

    result = gate(folder)

    assert words(result) == {"test_same": "PASS", "test_slow": "PASS"}
    assert "base's tree" not in result.differs


MEASURES = "def test_{0}(benchmark): benchmark.pedantic(code.same, (CLOCK,), rounds=5)\n"
RETURNS = "def test_{0}(benchmark): return\n"
MARKED = f"@pytest.mark.skip('flaky')\n{MEASURES}"
FAILS = "@pytest.mark.xfail(reason='flaky')\ndef test_{0}(benchmark): assert 0\n"


def test_a_cell_that_head_alone_skips_has_vanished_though_both_run_heads_file(
    tmp_path: Path,
) -> None:
    both = RETURNS.format("returns_in_both") + MARKED.format("marked_in_both")
    skipping = {"marked": MARKED, "fails": FAILS, "returns": RETURNS}
    base = both + "".join(map(MEASURES.format, skipping))
    head = both + "".join(test.format(name) for name, test in skipping.items())
    code = {"pkg/code.py": CODE.format(slow=1000)}
    before, after = ({"bench/test_a.py": BENCH + tests} for tests in (base, head))
    folder = make_project(tmp_path, {**code, **before}, after)

    result = gate(folder)

    assert words(result) == {
        **dict.fromkeys(("test_same", "test_slow"), "PASS"),
        **dict.fromkeys(("test_marked", "test_fails", "test_returns"), "VANISHED"),
        **dict.fromkeys(("test_marked_in_both", "test_returns_in_both"), "SKIPPED"),
    }
    why = {
        "marked": "Skipped: flaky",
        "fails": "xfail: flaky",
        "returns": "it passes and times nothing",
    }
    assert {name: cell(result, f"test_{name}").reason for name in why} == {
        name: f"head skips what the base measures: {reason}; "
        "if that is meant, say so with 'perfsuite baseline accept'"
        for name, reason in why.items()
    }


# --- what is checked before the machine is held ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"base": "v9"},
            "the base 'v9' is no commit of the repository {0}; use a branch, a tag or a commit "
            "that 'git log -1 v9' shows",
        ),
        ({"base_dir": Path("nowhere")}, "the base 'nowhere' is not a folder; name one"),
        (
            {"arguments": ("bench/none.py",)},
            "pytest refuses the call: file or directory not found: bench/none.py",
        ),
        (
            {"arguments": ("bench", "-k", "a and")},
            "pytest refuses the call: Wrong expression passed to '-k': a and: at column 6: "
            "expected not OR left parenthesis OR identifier; got end of input",
        ),
    ],
)
def test_a_call_that_is_wrong_is_refused_without_waiting_for_the_machine(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = make_project(tmp_path, {}, {"bench/test_a.py": BENCH})
    machine = Machine()

    with pytest.raises(SettingError) as refused:
        gate(folder, machine=machine, **changes)

    assert str(refused.value) == message.format(folder)
    assert not machine.was_held


def test_a_change_of_documentation_alone_does_not_wait_for_the_machine(tmp_path: Path) -> None:
    base = {"pkg/code.py": CODE.format(slow=1), "bench/test_a.py": BENCH}
    folder = make_project(tmp_path, base, {"README.md": "more"})
    machine = Machine()

    result = gate(folder, machine=machine)

    assert {cell.by for cell in result.cells} == {"identical"}
    assert not machine.was_held


def test_a_budget_that_is_known_to_be_too_small_is_refused_before_the_first_pair(
    project: Path, tmp_path: Path
) -> None:
    known = stamp(durations_s={"bench/test_a.py::test_slow": 3600.0})
    stored = write_run(tmp_path / "0001_main.json", perfsuite=known)

    asked = {"arguments": (*CALL, "-k", "slow"), "judges_identical": True}
    result = gate(project, stored=stored, **asked)

    assert (result.judgement, words(result)) == (None, {"test_slow": "INCONCLUSIVE"})
    assert exit_code(words(result).values()) == 11
    assert re.fullmatch(
        r"2 pairs are the fewest that decide, one takes about 72(\.\d)? min, and they may "
        r"take 5 min; allow more with --max-minutes \(pytest: --perf-max-minutes\)",
        cell(result, "test_slow").reason or "",
    )


@pytest.mark.parametrize(("heeds", "allowed"), [(True, 1.5), (False, 1.0)])
def test_exceptions_in_a_linked_file_count_only_where_they_are_heeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heeds: bool, allowed: float
) -> None:
    code = {"pkg/code.py": CODE.format(slow=1), "bench/test_a.py": BENCH}
    folder = make_project(tmp_path / "project", code, {})
    (tmp_path / "accepted.toml").write_text(
        '[[accepted]]\ncell = "bench/test_a.py::test_same"\nkind = "slowdown"\nratio = 1.5\n'
        'reason = "r"\nexpires = 2999-01-01\n'
    )
    (folder / "baselines").mkdir()
    (folder / "baselines" / "accepted.toml").symlink_to(tmp_path / "accepted.toml")
    asked: dict[str, CellPolicy] = {}

    def judge(*arguments: Any, **_: Any) -> Judgement:
        policies: Mapping[str, CellPolicy] = arguments[2]
        asked.update(policies)
        return Judgement(trials=(), num_pairs=0, wall_s=0.0)

    monkeypatch.setattr(run_gate_module, "judge", judge)
    machine = Machine()

    gate(folder, heeds_exceptions=heeds, machine=machine, judges_identical=True)

    assert asked["bench/test_a.py::test_same"].accepted_slowdown == allowed
    assert machine.was_held


# --- calibration ---


def test_a_calibration_compares_head_with_fresh_checkouts_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    monkeypatch.setenv("SEEN", str(seen))
    code = CODE.format(slow=1) + (
        "import os, tempfile\n"
        "with tempfile.NamedTemporaryFile('w', dir=os.environ['SEEN'], delete=False) as file:\n"
        "    file.write(__file__)\n"
    )
    folder = make_project(tmp_path / "project", {"pkg/code.py": code, "bench/test_a.py": BENCH}, {})
    request = GateRequest(
        command=Command(folder=folder, arguments=(*CALL, "-k", "same")),
        budget=Budget(max_pairs=3, max_s=300.0, timeout_s=60.0),
        seed=3,
    )

    result = calibrate(request, num_identical=2, num_sessions=0, plants=[], say=lambda text: None)

    assert (result.identical.num_red, result.identical.verdicts) == (0, {"PASS": 2})
    assert result.noise["bench/test_a.py::test_same"].session_sd == pytest.approx(0.0, abs=1e-3)
    imported = {Path(file.read_text()).parents[1] for file in seen.iterdir()}
    assert folder in imported
    assert len(imported - {folder}) >= 2  # another one in each session
    write(folder, {"pkg/code.py": CODE.format(slow=2)})
    with pytest.raises(WorkloadError, match="there are uncommitted changes"):
        calibrate(request, num_identical=1, num_sessions=0, plants=[], say=lambda text: None)


def test_a_calibration_that_the_change_brings_is_not_the_bases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"pkg/code.py": CODE.format(slow=1), "bench/test_a.py": BENCH}
    folder = make_project(tmp_path / "project", files, {})
    noise = {"bench/test_a.py::test_same": CellNoise(sd=0.03, num_pairs=9)}
    path = folder / "baselines" / "calibration.json"
    asked: list[Mapping[str, Prior]] = []

    def judge(*arguments: Any, **given: Any) -> Judgement:
        asked.append(given["priors"])
        return Judgement(trials=(), num_pairs=0, wall_s=0.0)

    monkeypatch.setattr(run_gate_module, "judge", judge)
    path.parent.mkdir()
    write_calibration(path, Calibration(fingerprint="here", cells=noise))
    commit(folder)
    judged = {"judges_identical": True}
    gate(folder, fingerprint="here", **judged)
    gate(folder, base="HEAD", fingerprint="here", **judged)
    gate(folder, base="HEAD", fingerprint="elsewhere", **judged)
    path.write_text("no JSON")
    commit(folder)
    result = gate(folder, base="HEAD", fingerprint="here", **judged)

    assert [set(priors) for priors in asked] == [set(), set(noise), set(), set()]
    assert result.differs["calibration"].startswith("the base's cannot be read: ")
