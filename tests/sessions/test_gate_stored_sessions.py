"""Stored runs that must not serve as a baseline, in whole sessions of `pytest --benchmark-compare`.

Each was saved by a session and then spoiled, or saved by one that proves nothing. The verdict comes
from pairs against the base.
"""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from gated_repository import (
    ENVIRONMENT,
    ONE_CELL,
    SHOP,
    SLOW_SHOP,
    TWO_CELLS,
    Gated,
    Repository,
    make_shop,
)

from perfsuite.gate.baselines.screen import MIN_SESSIONS

PRICE = "benchmarks/test_steps.py::test_price"
STOCK = "benchmarks/test_steps.py::test_stock"
WRONG_TEST = """
    def test_right():
        assert not "right"
"""


@pytest.fixture(scope="module")
def slow_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose only commit is as slow as the change that will be gated, and its run."""
    shop = make_shop(tmp_path_factory.mktemp("slow") / "shop")
    shop.write(shop=SLOW_SHOP)
    shop.commit()
    save(shop, 0)
    return shop.path


@pytest.fixture
def shop(slow_shop: Path, tmp_path: Path) -> Repository:
    """The repository, with enough good runs for a screen."""
    shop = Repository(tmp_path / "shop")
    shutil.copytree(slow_shop, shop.path)
    repeat(stored_run(shop))
    return shop


def save(shop: Repository, code: int, **environment: str) -> None:
    """Save a run in place of those that are stored, by a session that ends in the code."""
    shutil.rmtree(shop.path / "baselines", ignore_errors=True)
    saved = shop.pytest("benchmarks", "--benchmark-save=main", **environment)
    assert saved.code == code, saved.output


def stored_run(shop: Repository) -> Path:
    (path,) = (shop.path / "baselines").glob("*/0001_main.json")
    return path


def stored_runs(shop: Repository) -> list[Path]:
    return sorted((shop.path / "baselines").glob("*/*.json"))


def repeat(run: Path) -> None:
    """Store as many runs as a screen needs, each an hour after the one before it."""
    content = json.loads(run.read_text())
    # No verdict depends on the machine: five probes of the host would.
    content["perfsuite"]["probe_s"] = None
    for number in range(2, MIN_SESSIONS + 1):
        content["datetime"] = str(datetime.now(UTC) + timedelta(hours=number))
        run.with_name(f"{number:04}_main.json").write_text(json.dumps(content))


def store_as_of(shop: Repository, commit: str, name: str) -> None:
    """Store the runs once more, under another name, as if they were of another commit."""
    for run in stored_runs(shop):
        if run.name.endswith("_main.json"):
            content = json.loads(run.read_text())
            content["commit_info"]["id"] = commit
            run.with_name(run.name.replace("main", name)).write_text(json.dumps(content))


def commit_code(shop: Repository, text: str) -> str:
    """Commit the shop alone, and return the commit's full name."""
    shop.write(shop=text)
    shop.git("add", "*.py")
    shop.git("commit", "--quiet", "--message", "code")
    return shop.git("rev-parse", "HEAD")


def gate_the_slow_change(shop: Repository, *arguments: str) -> Gated:
    """Make the base fast and head slow, and gate head."""
    commit_code(shop, SHOP)
    shop.write(shop=SLOW_SHOP)
    return shop.gate(*arguments)


def expect_refusals(gated: Gated, shop: Repository, *reasons: str) -> None:
    """Fail unless each stored run was refused, and the verdict came without them."""
    runs = zip(stored_runs(shop), reasons, strict=True)
    refused = [f"not compared with {run}: {reason}" for run, reason in runs]
    gated.expect(
        10,
        *refused,
        "base: HEAD, *, without the uncommitted changes",
        f"{PRICE} FAIL +200.0 % *",
        f"FAILED {PRICE} - FAIL: +200.0 % *",
    )


def test_good_runs_of_any_other_commit_let_no_change_pass_that_is_slower_than_its_base(
    shop: Repository,
) -> None:
    """Of an older one, of a later one, and runs that the change brings as if of the base."""
    base = commit_code(shop, SHOP)
    later = commit_code(shop, SLOW_SHOP)
    store_as_of(shop, later, "later")
    store_as_of(shop, base, "brought")
    shop.git("add", "*_brought.json")
    shop.git("commit", "--quiet", "--message", "a change")

    gated = shop.gate(f"--perf-base={base}")

    why = {
        "brought": "comes with the commits that are judged; it counts once they are merged",
        "later": f"its commit {later[:12]} is not in the base's history (without a gate: the "
        "default branch's)",
    }
    refused = [
        f"not compared with {run}: {why[kind]}"
        for run in stored_runs(shop)
        if (kind := run.stem.partition("_")[2]) in why
    ]
    gated.expect(10, *refused, f"{PRICE} FAIL +200.0 % *")
    assert len(refused) == gated.output.count("not compared with") == 2 * MIN_SESSIONS


# Each iteration does the work twice.
TWICE = ONE_CELL.replace(
    "shop.price, args", "lambda clock: [shop.price(clock), shop.price(clock)], args"
)
SLOWER_SHOP = SLOW_SHOP.replace("0.003", "0.0048")


def test_runs_of_the_base_let_a_change_pass_without_a_pair_where_its_benchmark_is_the_same(
    shop: Repository,
) -> None:
    """Half of the work measured, and each part of it 60 % slower, looks faster by a fifth."""
    shop.write(benchmarks__test_steps=TWICE)
    shop.git("add", "benchmarks")
    shop.git("commit", "--quiet", "--message", "twice")
    save(shop, 0)
    repeat(stored_run(shop))
    shop.write(shop=f"{SLOW_SHOP}    # more")

    screened = shop.gate()
    shop.write(shop=SLOWER_SHOP, benchmarks__test_steps=ONE_CELL)
    judged = shop.gate()

    screened.expect(
        0, f"{PRICE} PASS *", f"1 cell: screen: {MIN_SESSIONS} runs, newest of the base itself"
    )
    assert "pair 1:" not in screened.output
    judged.expect(
        10,
        f"{PRICE} goes to the judge: has 0 of the {MIN_SESSIONS} stored sessions *",
        f"{PRICE} FAIL +60.0 % *",
    )


# As fast as the base, but for launches that are told otherwise.
MOODY_SHOP = """
    import os

    SECONDS = 0.006 if "MOOD" in os.environ else 0.003

    def price(clock):
        clock.work(SECONDS)
"""


def test_a_screen_overrules_no_failure_of_the_same_two_trees(shop: Repository) -> None:
    shop.write(shop=MOODY_SHOP)

    shop.gate(MOOD="slow").expect(10, f"{PRICE} FAIL +100.0 % *")
    shop.gate().expect(10, "1 cell goes on from what *", f"{PRICE} FAIL +100.0 % *")


def test_where_pairs_find_nothing_of_what_stored_runs_show_something_else_changed(
    shop: Repository,
) -> None:
    """As after an update of a package, or on a machine that became slower."""
    for run in stored_runs(shop):
        content = json.loads(run.read_text())
        stats = content["benchmarks"][0]["stats"]
        content["benchmarks"][0]["stats"] = stats | {"median": stats["median"] / 2}
        run.write_text(json.dumps(content))
    shop.write(shop=f"{SLOW_SHOP}    # more")

    gated = shop.gate()

    gated.expect(
        0,
        f"{PRICE} goes to the judge: 100.0 % slower than {MIN_SESSIONS} stored sessions *",
        f"{PRICE} PASS *",
        f"{PRICE}: 100.0 % slower than {MIN_SESSIONS} stored sessions and 100.0 % slower than the "
        "newest, and pairs find no slowdown: the machine or a dependency changed",
    )


def test_outside_of_git_no_stored_run_counts(shop: Repository) -> None:
    shop.forget_git()

    gated = shop.gate()

    gated.expect(
        12,
        "not compared with stored runs: without a base in git nothing says which of them are the "
        "base's",
        f"not compared: {shop.path} is not in a git checkout; use --base-dir=DIR (pytest: "
        "--perf-base-dir)",
        f"{PRICE} NO-BASELINE",
    )


FOREIGN: dict[str, Any] = {"tool": "another", "results": [0.001]}


def test_runs_of_no_use_are_refused_each_by_its_reason(shop: Repository) -> None:
    good = stored_run(shop).read_text()
    save(shop, 0, OMP_NUM_THREADS="77")
    elsewhere = stored_run(shop).read_text()
    shop.write(benchmarks__test_right=WRONG_TEST)
    save(shop, 1)
    (shop.path / "benchmarks" / "test_right.py").unlink()
    folder = stored_run(shop).parent
    stored_run(shop).rename(folder / "0005_failed.json")
    for name, text in {
        "0001_cut": (cut := good.partition('"benchmarks"')[0]),
        "0002_elsewhere": elsewhere,
        "0003_empty": "",
        "0004_foreign": json.dumps(FOREIGN),
    }.items():
        (folder / f"{name}.json").write_text(text)

    gated = gate_the_slow_change(shop)

    with pytest.raises(json.JSONDecodeError) as cut_off:
        json.loads(cut)
    threads = ENVIRONMENT.get("OMP_NUM_THREADS", "none")
    reasons = (
        f"is not JSON, or was cut off: {cut_off.value}",
        f"was made in another environment: OMP_NUM_THREADS 77 -> {threads}",
        "is empty",
        "is no run of pytest-benchmark: Object missing required field `datetime`",
        "1 of its tests failed",
    )
    expect_refusals(gated, shop, *reasons)


def test_a_regression_that_was_saved_fails_again_when_it_is_run_again(shop: Repository) -> None:
    shutil.rmtree(shop.path / "baselines")
    gate_the_slow_change(shop, "--benchmark-save=main").expect(10, f"{PRICE} FAIL *")
    repeat(stored_run(shop))

    gated = shop.gate()

    expect_refusals(gated, shop, *[f"the verdict of its cell {PRICE} is FAIL"] * MIN_SESSIONS)


def test_what_only_an_exception_let_through_is_stamped_so(tmp_path: Path) -> None:
    shop = make_shop(tmp_path / "shop")
    shop.write(benchmarks__test_steps=TWO_CELLS)
    shop.commit()
    shop.write(shop=SLOW_SHOP)
    shop.accept(PRICE, kind="slowdown", ratio=3.5)
    shop.accept(STOCK, kind="slowdown", ratio=1.5, adds=True)

    gated = shop.pytest("benchmarks", "--benchmark-compare", "--benchmark-json=run.json")

    gated.expect(0, "pair 1: *", f"{PRICE} PASS *", f"{STOCK} PASS *")
    stamp = json.loads((shop.path / "run.json").read_text())["perfsuite"]
    assert stamp["verdicts"] == {PRICE: "PASS", STOCK: "PASS"}
    assert stamp["accepted"] == [PRICE]
    used = f"{PRICE} may take up to 250.0 % more time until 9999-12-31: reviewed"
    assert stamp["exceptions"] == {PRICE: [used]}
    assert gated.output.count("accepted: ") == gated.output.count(f"accepted: {used}") > 0
