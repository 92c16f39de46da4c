"""What works with the core alone, and the one line of what needs an extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from absent_packages import hide_extras
from gated_repository import ENVIRONMENT, SLOW_SHOP, make_shop

from perfsuite.system.timing_lock import LOCK_DIR

pytestmark = pytest.mark.slow

NO_TORCH = "torch is not installed: pip install 'perfsuite[torch]'"
CALL_VERBS = """
import sys
from perfsuite.cli.app import main
for line in sys.argv[1:]:
    sys.argv = ["perfsuite", *line.split()]
    try:
        main()
    except SystemExit as ended:
        print(f"{line}: {ended.code or 0}", flush=True)
"""
CELLS = """
    from perfsuite import Recipe

    def test_train(train_benchmark):
        train_benchmark("toy-mlp", Recipe())

    def test_step(step_benchmark):
        step_benchmark(lambda: None)

    def test_loop(loop_benchmark):
        loop_benchmark(lambda: None, steps=40)

    def test_ranks(rank_group):
        rank_group(2, print)

    def test_numerics(check_equivalence):
        check_equivalence("toy-mlp", Recipe())

    def test_plain(benchmark):
        benchmark(sum, range(9))
"""


def call_verbs(folder: Path, environment: dict[str, str], *lines: str) -> str:
    """What the verbs print, and after each its exit code, in one interpreter."""
    return subprocess.run(
        [sys.executable, "-c", CALL_VERBS, *lines],
        cwd=folder,
        env=ENVIRONMENT | {LOCK_DIR: os.environ[LOCK_DIR]} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    ).stdout


def test_a_plain_suite_is_gated_stored_and_reported_by_the_core_alone(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    repository, core = make_shop(tmp_path / "shop"), hide_extras(tmp_path / "site")
    repository.pytest("benchmarks", "--benchmark-save=main", **core).expect(0)
    repository.write(shop=SLOW_SHOP)

    gated = repository.gate(**core)
    verbs = (
        "report results/run.json --html page --latex table.tex --csv table.csv",
        "explain results/run.json results/run.json",
        "baseline list",
        "history benchmarks/test_steps.py::test_price",
        "init",
        "doctor",
    )
    said = call_verbs(repository.path, core, *verbs)

    gated.expect(10, "*benchmarks/test_steps.py::test_price FAIL +200*")
    assert [line for line in said.splitlines() if line in {f"{verb}: 0" for verb in verbs}] == [
        f"{verb}: 0" for verb in verbs
    ], said
    assert f"ok   torch: {NO_TORCH}\n" in said
    assert "Traceback" not in said


def test_a_cell_that_trains_fails_in_one_line_and_a_plain_one_beside_it_passes(
    tmp_path: Path,
) -> None:
    (tmp_path / "shop").mkdir()
    repository, core = make_shop(tmp_path / "shop"), hide_extras(tmp_path / "site")
    repository.write(benchmarks__test_cells=CELLS)

    measured = repository.pytest("benchmarks/test_cells.py", **core)

    measured.expect(1, "*5 failed, 1 passed*")
    lines = [line for line in measured.output.splitlines() if "not installed" in line]
    assert lines.count(f"MissingPackageError: {NO_TORCH}") == 5
    assert all(line.endswith(f"MissingPackageError: {NO_TORCH}") for line in lines)


def test_a_verb_ends_in_2_and_one_line_names_the_extra(tmp_path: Path) -> None:
    missing = {
        "verify toy-mlp": "torch",
        "verify toy-mlp --all": "torch",
        "compare toy-mlp --a precision=fp32 --b precision=bf16": "torch",
        "sweep toy-mlp --num-workers 0..1": "torch",
        "claims --only C5": "torch",
        "profile toy-mlp": "plots",
        "baseline list --storage s3://bucket/runs": "s3",
        "baseline list --storage gs://bucket/runs": "gcs",
    }

    said = call_verbs(tmp_path, hide_extras(tmp_path / "site"), *missing)

    assert "Traceback" not in said
    for verb, extra in missing.items():
        before, is_there, said = said.partition(f"{verb}: 2\n")
        assert is_there, before
        (line,) = (line for line in before.splitlines() if "not installed" in line)
        assert line.startswith("perfsuite: ")
        assert line.endswith(f" is not installed: pip install 'perfsuite[{extra}]'")
