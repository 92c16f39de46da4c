"""What pytest-benchmark's own comparison passes in silence: each row has its exit code and line."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest
from gated_repository import (
    CLOCK,
    NOISY_SHOP,
    ONE_CELL,
    SHOP,
    SLOW_SHOP,
    TWO_CELLS,
    Repository,
    make_shop,
)

from perfsuite.records.cell import Counts
from perfsuite.report.runs import read_runs

PRICE = "benchmarks/test_steps.py::test_price"
STOCK = "benchmarks/test_steps.py::test_stock"


@pytest.fixture
def shop(tmp_path: Path) -> Repository:
    """A repository whose first commit has one cell, and whose second changes nothing."""
    return make_shop(tmp_path / "shop")


def test_xdist_without_workers_measures(shop: Repository) -> None:
    shop.write(shop=f"{SHOP}\n    # more")

    gated = shop.gate("-p", "xdist", "-n0")

    gated.expect(0, "pair 1: *", f"{PRICE} PASS *")


# Cells that only one side has, or that do not run.


SUBTESTS = (
    "pytest.skip('not today')",
    "pytest.xfail('not yet')",
    "from perfsuite.errors import NotExercisedError; raise NotExercisedError('no GPU')",
)


def test_a_subtest_that_does_not_run_hides_no_slowdown(shop: Repository) -> None:
    imports, cell = ONE_CELL.split("    @", 1)
    benchmark = "        benchmark.pedantic(shop.price, args=(CLOCK,), rounds=5)"
    texts = [imports]
    for number, subtest in enumerate(SUBTESTS):
        first = f"        with subtests.test('before'):\n            {subtest}\n{benchmark}"
        with_subtest = cell.replace("price(benchmark)", f"price_{number}(benchmark, subtests)")
        texts.append(f"    @{with_subtest.replace(benchmark, first)}\n")
    shop.write(benchmarks__test_steps="".join(texts))
    shop.commit()
    shop.write(shop=SLOW_SHOP)

    gated = shop.gate()

    gated.expect(10, *(f"{PRICE}_{number} FAIL +200.0 % *" for number in range(len(SUBTESTS))))


def test_a_renamed_cell_is_vanished_and_new_until_its_new_name_is_accepted(
    shop: Repository,
) -> None:
    shop.write(benchmarks__test_steps=ONE_CELL.replace("test_price", "test_cost"))

    gated = shop.gate()

    gated.expect(
        12,
        "benchmarks/test_steps.py::test_cost NEW",
        f"{PRICE} VANISHED",
        f"{PRICE}: head has no such cell; "
        "if that is meant, say so with 'perfsuite baseline accept'",
    )

    shop.accept(PRICE, kind="renamed", to="benchmarks/test_steps.py::test_cost")

    gated = shop.gate()

    gated.expect(
        0,
        "benchmarks/test_steps.py::test_cost PASS*",
        f"accepted: {PRICE} may be called benchmarks/test_steps.py::test_cost until 9999-12-31: "
        "reviewed",
    )
    assert "VANISHED" not in gated.output


def test_a_removed_cell_has_vanished_unless_its_removal_is_accepted(shop: Repository) -> None:
    shop.write(benchmarks__test_steps=TWO_CELLS, benchmarks__test_more=ONE_CELL)
    shop.commit()
    shop.write(benchmarks__test_steps=ONE_CELL)
    (shop.path / "benchmarks" / "test_more.py").unlink()
    shop.accept("benchmarks/test_more.py::test_price", kind="removed")

    gated = shop.gate()

    gated.expect(
        12,
        "benchmarks/test_more.py::test_price SKIPPED",
        f"{PRICE} PASS*",
        f"{STOCK} VANISHED",
        "accepted: benchmarks/test_more.py::test_price may be gone until 9999-12-31: reviewed",
    )


def test_an_exception_that_has_expired_accepts_nothing(shop: Repository) -> None:
    shop.write(benchmarks__test_steps=ONE_CELL.replace("test_price", "test_cost"))
    shop.accept(PRICE, kind="removed", expires="2020-02-29")

    gated = shop.gate()

    gated.expect(
        12, f"{PRICE}: head has no such cell, and what was accepted of it expired on 2020-02-29"
    )


def test_an_exception_for_a_cell_that_nobody_has_is_told(shop: Repository) -> None:
    shop.write(shop=SLOW_SHOP)
    shop.accept("benchmarks/test_steps.py::test_prize", kind="slowdown", ratio=4.0)

    gated = shop.gate()

    told = "exceptions: no cell of this session is called benchmarks/test_steps.py::test_prize"
    gated.expect(10, told, f"{PRICE} FAIL *")


def test_a_list_of_exceptions_that_cannot_be_read_is_a_usage_error(shop: Repository) -> None:
    shop.accept(PRICE, kind="forgotten")

    gated = shop.gate()

    gated.expect(4, "ERROR: *accepted.toml: entry 1 (line 1): Invalid value 'forgotten'*")


def test_new_cells_alone_compare_nothing(shop: Repository) -> None:
    shop.git("rm", "--quiet", "-r", "benchmarks")
    shop.commit("no cell")
    shop.write(benchmarks__work_clock=CLOCK, benchmarks__test_steps=ONE_CELL)

    gated = shop.gate()

    gated.expect(
        13,
        f"{PRICE} NEW",
        f"{PRICE}: the base has no such cell",
        "nothing to compare yet: commit these benchmarks, and the next change is judged",
    )
    (run,) = read_runs([shop.path / "results" / "run.json"])
    assert {row.verdict and row.verdict.word for row in run.rows} == {"NEW"}


def test_a_new_cell_that_is_named_by_its_id_compares_nothing(shop: Repository) -> None:
    shop.write(benchmarks__test_steps=TWO_CELLS)

    gated = shop.gate(STOCK)

    gated.expect(13, f"{STOCK} NEW")


def test_a_changed_parameter_id_is_a_cell_that_vanished_and_a_new_one(shop: Repository) -> None:
    cell = ONE_CELL.replace("@", "@pytest.mark.parametrize('size', [1])\n    @")
    shop.write(benchmarks__test_steps=cell.replace("(benchmark)", "(benchmark, size)"))
    shop.commit()
    cell = cell.replace("[1]", "[2]")
    shop.write(benchmarks__test_steps=cell.replace("(benchmark)", "(benchmark, size)"))

    gated = shop.gate()

    gated.expect(12, f"{PRICE}[1] VANISHED", f"{PRICE}[2] NEW")


XFAILED_CELL = f"""{ONE_CELL}
    @pytest.mark.xfail(reason="known")
    @pytest.mark.benchmark(timer=CLOCK)
    def test_known(benchmark):
        benchmark.pedantic(shop.price, args=(CLOCK,), rounds=5)
        assert False
"""


def test_a_failure_that_is_expected_on_both_sides_has_not_vanished(shop: Repository) -> None:
    shop.write(benchmarks__test_steps=XFAILED_CELL)
    shop.commit()
    shop.write(shop=f"{SHOP}\n    # more")

    gated = shop.gate()

    gated.expect(
        0,
        "*::test_known SKIPPED",
        f"{PRICE} PASS *",
        "*::test_known: both arms skipped: xfail: known",
    )


SKIPPED_CELL = ONE_CELL.replace("@", "@pytest.mark.skip('no GPU')\n    @")


def test_skipped_cells_alone_compare_nothing(shop: Repository) -> None:
    shop.write(benchmarks__test_steps=SKIPPED_CELL)
    shop.commit()
    shop.write(benchmarks__test_steps=f"{SKIPPED_CELL}\n    # more")

    gated = shop.gate()

    gated.expect(13, f"{PRICE} SKIPPED", f"{PRICE}: both arms skipped: Skipped: no GPU")


def test_a_cell_that_the_change_skips_has_vanished_unless_that_is_accepted(
    shop: Repository,
) -> None:
    shop.write(benchmarks__test_steps=SKIPPED_CELL)

    gated = shop.gate()

    gated.expect(
        12,
        f"{PRICE} VANISHED",
        f"{PRICE}: head skips what the base measures: Skipped: no GPU; "
        "if that is meant, say so with 'perfsuite baseline accept'",
    )

    shop.accept(PRICE, kind="removed")

    gated = shop.gate()

    gated.expect(13, f"{PRICE} SKIPPED")


def test_a_cell_that_the_change_moves_to_a_larger_matrix_has_vanished(shop: Repository) -> None:
    in_full = TWO_CELLS.replace(
        "def test_stock", "@pytest.mark.perf(matrix='full')\n    def test_stock"
    )
    shop.write(benchmarks__test_steps=TWO_CELLS)
    shop.commit()
    shop.write(benchmarks__test_steps=in_full)

    gated = shop.gate()

    gated.expect(12, f"{PRICE} PASS*", f"{STOCK} VANISHED")

    shop.commit()
    shop.write(benchmarks__test_steps=f"{in_full}\n    # more")

    gated = shop.gate()

    gated.expect(0, f"{PRICE} PASS*")
    assert "test_stock" not in gated.output


@pytest.mark.parametrize("option", ["-k=no_such_cell", f"--deselect={PRICE}"])
def test_where_every_cell_is_deselected_nothing_is_compared(shop: Repository, option: str) -> None:
    gated = shop.gate(option)

    gated.expect(13, "*1 deselected*")


def test_a_deselected_cell_has_not_vanished(shop: Repository) -> None:
    shop.write(benchmarks__test_steps=TWO_CELLS)
    shop.commit()

    gated = shop.gate(f"--deselect={STOCK}")

    gated.expect(0, f"{PRICE} PASS*")
    assert "test_stock" not in gated.output


def test_the_judge_uses_the_configuration_of_the_session(shop: Repository) -> None:
    (shop.path / "other.ini").write_text(
        "[pytest]\npythonpath = .\nperf_gate = on\npython_files = *_cells.py\n"
    )
    shop.write(benchmarks__more_cells=ONE_CELL)
    shop.commit()
    shop.write(benchmarks__more_cells=TWO_CELLS)

    gated = shop.gate("-c", "other.ini")

    gated.expect(
        0,
        "benchmarks/more_cells.py::test_price PASS*",
        "benchmarks/more_cells.py::test_stock NEW",
    )
    assert "test_steps" not in gated.output


def test_collecting_alone_judges_nothing(shop: Repository) -> None:
    gated = shop.gate("--collect-only", "-q")

    gated.expect(0, PRICE)
    assert "perfsuite gate" not in gated.output


# Counts.


def test_a_change_that_moves_the_environment_hides_no_count(shop: Repository) -> None:
    counts = dict.fromkeys(Counts.__struct_fields__)
    counted = (
        f"benchmark.extra_info['perfsuite'] = shop.KNOBS | {{'counts': {counts} | shop.FLOPS}}"
    )
    shop.write(benchmarks__test_steps=f"{ONE_CELL}        {counted}")
    shop.write(shop=f"{SHOP}\n    KNOBS = {{'fingerprint': 'a'}}\n    FLOPS = {{'flops': 100}}")
    shop.commit()
    shop.write(shop=f"{SHOP}\n    KNOBS = {{'fingerprint': 'b'}}\n    FLOPS = {{'flops': 200}}")

    gated = shop.gate()

    gated.expect(10, f"{PRICE} FAIL *", f"{PRICE}: flops 100 -> 200 (+100.0 %), allowed 0 %*")

    # The way out that the failure names.
    (shop.path / "baselines").mkdir(exist_ok=True)
    (shop.path / "baselines" / "accepted.toml").write_text(
        f'[[accepted]]\ncell = "{PRICE}"\nkind = "count"\ncount = "flops"\nratio = 3.0\n'
        'reason = "meant"\nexpires = 2999-01-31\n'
    )

    shop.gate().expect(0, "1 cell goes on from what *", f"{PRICE} PASS *")


# The base.


def test_outside_of_git_there_is_no_baseline(shop: Repository) -> None:
    shop.forget_git()

    gated = shop.gate()

    gated.expect(
        12,
        f"not compared: {shop.path} is not in a git checkout; use --base-dir=DIR (pytest: "
        "--perf-base-dir)",
    )


def test_a_clean_first_commit_has_no_baseline(shop: Repository) -> None:
    shop.git("checkout", "--quiet", "--orphan", "other")
    shop.git("branch", "--quiet", "-D", "main")
    name = shop.commit()

    gated = shop.gate()

    gated.expect(
        12,
        f"not compared: HEAD, {name}, is the first commit and nothing is uncommitted: the "
        "next change is the first that can be judged; else name a base with --base or --base-dir "
        "(pytest: --perf-base, --perf-base-dir)",
    )


def test_a_shallow_clone_without_the_base_tells_how_to_fetch_it(
    shop: Repository, tmp_path: Path
) -> None:
    shop.git("clone", "--quiet", "--depth=1", f"file://{shop.path}", str(tmp_path / "clone"))
    clone = Repository(tmp_path / "clone")

    gated = clone.gate()

    gated.expect(
        12,
        "not compared: this clone is shallow and lacks the parent of HEAD, *; "
        "run 'git fetch --deepen=1' or 'git fetch --unshallow'",
    )


def test_a_dirty_tree_is_compared_with_its_head(shop: Repository) -> None:
    shop.write(shop=SLOW_SHOP)

    gated = shop.gate()

    gated.expect(
        10,
        "base: HEAD, *, without the uncommitted changes",
        f"{PRICE} FAIL +200.0 % *",
        f"FAILED {PRICE} - FAIL: +200.0 % *",
    )
    assert shop.git("worktree", "list").count("\n") == 0


def test_a_detached_head_is_compared_with_the_default_branch(shop: Repository) -> None:
    shop.git("checkout", "--quiet", "--detach")
    shop.commit()

    gated = shop.gate()

    gated.expect(
        0,
        "head: a detached HEAD at *",
        "base: the merge base with main, *",
        f"{PRICE} PASS*",
    )


# Verdicts and what stands beside them.


def test_a_failing_test_says_more_than_a_regression(shop: Repository) -> None:
    shop.write(shop=SLOW_SHOP)
    shop.write(benchmarks__test_right="def test_right():\n    assert not 'right'")

    gated = shop.gate()

    gated.expect(1, f"{PRICE} FAIL *", "FAILED benchmarks/test_right.py::test_right*")


def test_a_cell_too_noisy_for_its_pairs_is_inconclusive(shop: Repository, tmp_path: Path) -> None:
    (tmp_path / "launches").mkdir()
    shop.write(shop=NOISY_SHOP)

    gated = shop.gate("--perf-max-pairs=3", LAUNCHES=str(tmp_path / "launches"))

    gated.expect(
        11,
        f"{PRICE} INCONCLUSIVE *",
        f"{PRICE}: *the smallest slowdown that it could have seen is +*",
    )


def test_warnings_as_errors_and_storage_elsewhere_do_not_matter(
    shop: Repository, tmp_path: Path
) -> None:
    storage = f"--benchmark-storage=file://{tmp_path}/elsewhere"

    shop.write(shop=f"{SHOP}\n    # more")

    gated = shop.gate("-W", "error", storage, "--benchmark-autosave")

    gated.expect(0, "pair 1: *", f"{PRICE} PASS *")
    assert len(list((tmp_path / "elsewhere").glob("*/*.json"))) == 1


def test_a_tolerance_counts_from_a_marker_and_from_the_ini_file(shop: Repository) -> None:
    with (shop.path / "pytest.ini").open("a") as ini:
        ini.write("perf_tolerance = 60%\nperf_limit = 90%\n")
    marker = "@pytest.mark.perf(tolerance='20%', limit='30%')\n    @"
    shop.write(benchmarks__test_steps=TWO_CELLS.replace("@", marker, 1))
    shop.commit()
    shop.write(shop=SHOP.replace("0.001", "0.0015"))

    gated = shop.gate("--benchmark-json=run.json")

    gated.expect(10, f"{PRICE} FAIL +50.0 % *", f"{STOCK} PASS +50.0 % *")
    (run,) = read_runs([shop.path / "run.json"])
    verdicts = [row.verdict for row in run.rows if row.verdict is not None]
    assert [(one.tolerance, one.limit) for one in verdicts] == [(0.2, 0.3), (0.6, 0.9)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 2), (signal.SIGTERM, 143)])
def test_a_session_that_is_interrupted_while_it_judges_leaves_its_pairs_alone(
    shop: Repository, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    (tmp_path / "launches").mkdir()
    shop.write(shop=NOISY_SHOP)
    process = shop.start(
        "benchmarks",
        "--benchmark-compare",
        "--perf-max-pairs=64",
        LAUNCHES=str(tmp_path / "launches"),
    )
    assert process.stdout is not None
    while not process.stdout.readline().startswith("pair 1:"):
        assert process.poll() is None

    process.send_signal(number)
    output, _ = process.communicate()

    assert process.returncode == code, output
    assert "no tests ran" in output
    assert "INTERNALERROR" not in output
    assert not processes_in(shop.path)
    assert shop.git("worktree", "list").count("\n") == 0
    assert not list(Path("/tmp").glob(f"perfsuite-{process.pid}-base-*"))
    (kept,) = json.loads((shop.path / "results" / "pairs.json").read_text())["comparisons"]
    assert kept["cells"][PRICE]["pairs"]


def processes_in(folder: Path) -> list[psutil.Process]:
    """Return what runs in a folder and does not end by itself."""
    found = [
        process
        for process in psutil.process_iter(["cwd"])
        if Path(process.info["cwd"] or "/").is_relative_to(folder)
    ]
    return psutil.wait_procs(found, timeout=3)[1]
