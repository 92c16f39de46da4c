"""Stored runs that must not serve as a baseline, in whole sessions of `pytest --benchmark-compare`.

Each was saved by a session and then spoiled, or saved by one that proves nothing. In a checkout the
verdict comes from pairs against the base; without git there is none.
"""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from gated_repository import SHOP, SLOW_SHOP, Gated, Repository, make_shop

from perfsuite.gate.baselines.screen import MIN_SESSIONS

PRICE = "benchmarks/test_steps.py::test_price"
WRONG_TEST = """
    def test_right():
        assert not "right"
"""


@pytest.fixture(scope="module")
def slow_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose only commit is as slow as the change that will be gated.

    Its runs would let that change pass, where a run of them were used that must not be.
    """
    shop = make_shop(tmp_path_factory.mktemp("slow") / "shop")
    shop.write(shop=SLOW_SHOP)
    shop.commit()
    save(shop, 0)
    return shop.path


@pytest.fixture(params=["git", "no git"])
def shop(slow_shop: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Repository:
    """The repository, with and without git, and with enough good runs for a screen."""
    shop = Repository(tmp_path / "shop")
    shutil.copytree(slow_shop, shop.path)
    if request.param == "no git":
        shop.forget_git()
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
    for number in range(2, MIN_SESSIONS + 1):
        content["datetime"] = str(datetime.now(UTC) + timedelta(hours=number))
        run.with_name(f"{number:04}_main.json").write_text(json.dumps(content))


def gate_the_slow_change(shop: Repository, *arguments: str) -> Gated:
    """Make the base fast and head slow, and gate head."""
    if is_in_git(shop):
        shop.write(shop=SHOP)
        shop.git("add", "*.py")
        shop.git("commit", "--quiet", "--message", "fast")
    shop.write(shop=SLOW_SHOP)
    return shop.gate(*arguments)


def is_in_git(shop: Repository) -> bool:
    return (shop.path / ".git").exists()


def expect_refusal(gated: Gated, shop: Repository, reason: str) -> None:
    """Fail unless every stored run was refused for the reason, and the verdict came without it."""
    refused = [f"not compared with {run}: {reason}" for run in stored_runs(shop)]
    assert len(refused) == MIN_SESSIONS
    if is_in_git(shop):
        gated.expect(
            10,
            *refused,
            "base: HEAD, *, without the uncommitted changes",
            f"{PRICE} FAIL +200.0 % *",
            f"FAILED {PRICE} - FAIL: +200.0 % *",
        )
    else:
        gated.expect(
            12,
            *refused,
            f"not compared: {shop.path} is not in a git checkout; use --base-dir=DIR (pytest: "
            "--perf-base-dir)",
            f"{PRICE} NO-BASELINE",
        )


def test_good_runs_let_the_change_pass_without_a_pair(shop: Repository) -> None:
    """What the other tests of this file are measured against."""
    gated = gate_the_slow_change(shop)

    gated.expect(0, f"{PRICE} PASS *")
    assert "not compared with" not in gated.output
    assert "pair 1:" not in gated.output


def test_a_run_of_another_environment_is_not_compared_with(
    shop: Repository, tmp_path: Path
) -> None:
    save(shop, 0, OMP_NUM_THREADS="77")
    repeat(stored_run(shop))

    gated = gate_the_slow_change(shop, f"--benchmark-json={tmp_path}/own.json")

    theirs, ours = (
        json.loads(run.read_text())["perfsuite"]["fingerprint"]
        for run in (stored_run(shop), tmp_path / "own.json")
    )
    expect_refusal(gated, shop, f"was made in the environment {theirs}, and this one is {ours}")


def test_a_truncated_run_is_not_compared_with(shop: Repository) -> None:
    kept = stored_run(shop).read_text().partition('"benchmarks"')[0]
    for run in stored_runs(shop):
        run.write_text(kept)

    gated = gate_the_slow_change(shop)

    with pytest.raises(json.JSONDecodeError) as cut_off:
        json.loads(kept)
    expect_refusal(gated, shop, f"is not JSON, or was cut off: {cut_off.value}")


FOREIGN: dict[str, Any] = {"tool": "another", "results": [0.001]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        (
            json.dumps(FOREIGN),
            "is no run of pytest-benchmark: Object missing required field `datetime`",
        ),
    ],
    ids=["empty", "foreign"],
)
def test_a_file_that_holds_no_run_is_not_compared_with(
    shop: Repository, text: str, reason: str
) -> None:
    for run in stored_runs(shop):
        run.write_text(text)

    gated = gate_the_slow_change(shop)

    expect_refusal(gated, shop, reason)


def test_a_run_with_a_failure_is_not_compared_with_when_it_is_run_again(shop: Repository) -> None:
    shop.write(benchmarks__test_right=WRONG_TEST)
    save(shop, 1)
    repeat(stored_run(shop))
    (shop.path / "benchmarks" / "test_right.py").unlink()

    gated = gate_the_slow_change(shop)

    expect_refusal(gated, shop, "1 of its tests failed")


@pytest.mark.parametrize("shop", ["git"], indirect=True)
def test_a_regression_that_was_saved_fails_again_when_it_is_run_again(shop: Repository) -> None:
    shutil.rmtree(shop.path / "baselines")
    gate_the_slow_change(shop, "--benchmark-save=main").expect(10, f"{PRICE} FAIL *")
    repeat(stored_run(shop))

    gated = shop.gate()

    expect_refusal(gated, shop, f"the verdict of its cell {PRICE} is FAIL")


@pytest.mark.parametrize(("ratio", "accepted"), [(3.5, [PRICE]), (1.5, [])])
def test_what_only_an_exception_let_through_is_stamped_so(
    tmp_path: Path, ratio: float, accepted: list[str]
) -> None:
    shop = make_shop(tmp_path / "shop")
    if accepted:
        shop.write(shop=SLOW_SHOP)
    shop.accept(PRICE, kind="slowdown", ratio=ratio)

    gated = shop.pytest("benchmarks", "--benchmark-compare", "--benchmark-json=run.json")

    assert gated.code == 0, gated.output
    stamp = json.loads((shop.path / "run.json").read_text())["perfsuite"]
    assert (stamp["verdicts"], stamp["accepted"]) == ({PRICE: "PASS"}, accepted)
    used = f"{PRICE} may take up to 250.0 % more time until 9999-12-31: reviewed"
    assert stamp["exceptions"] == ({PRICE: [used]} if accepted else {})
    assert (f"accepted: {used}" in gated.output) == bool(accepted)
