"""What a change says of its own judging counts once, where it is reviewed, and is always shown."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from gated_repository import ONE_CELL, SHOP, SLOW_SHOP, TWO_CELLS, Gated, Repository, make_shop

from perfsuite.report.model import report_on_runs
from perfsuite.report.runs import read_runs

PRICE = "benchmarks/test_steps.py::test_price"
STOCK = "benchmarks/test_steps.py::test_stock"
SLOWER_SHOP = SHOP.replace("0.001", "0.0015")


@pytest.fixture
def shop(tmp_path: Path) -> Repository:
    """A repository with two cells."""
    shop = make_shop(tmp_path / "shop")
    shop.write(benchmarks__test_steps=TWO_CELLS)
    shop.commit()
    return shop


def test_the_merge_of_a_change_spends_its_exceptions(shop: Repository) -> None:
    shop.accept("*", kind="slowdown", ratio=3.5)
    shop.write(shop=SLOW_SHOP)
    shop.commit("slower, and reviewed")
    shop.write(shop=SLOW_SHOP.replace("0.003", "0.009"))

    gated = shop.gate()

    gated.expect(
        10,
        f"{PRICE} FAIL +200.0 % *",
        f"{PRICE}: what was accepted of it is spent: the base has the entry too; *",
    )
    assert "accepted: " not in gated.output


def test_a_change_loosens_what_judges_it_only_where_that_is_reviewed(shop: Repository) -> None:
    with (shop.path / "pytest.ini").open("a") as ini:
        ini.write("perf_tolerance = 60%\nperf_limit = 90%\n")
    marker = "@pytest.mark.perf(tolerance='70%', limit='90%', floor='1s')\n    @"
    shop.write(benchmarks__test_steps=TWO_CELLS.replace("@", marker, 1), shop=SLOWER_SHOP)

    gated = shop.gate()

    gated.expect(
        10,
        "limits: head's limit of 90.0 % is looser than 5.0 % (*test_price, *test_stock); head's "
        "tolerance of 70.0 % is looser than 2.0 % (*test_price); head's floor of 1.00 s is looser "
        "than 0 s (*test_price); head's tolerance of 60.0 % is looser than 2.0 % (*test_stock); "
        "the stricter holds; if that is meant, say so with 'perfsuite baseline accept'",
        f"{PRICE} FAIL +50.0 % *",
        f"{STOCK} FAIL +50.0 % *",
    )

    shop.accept("*", kind="limit", limit="90%", tolerance="65%")

    gated = shop.gate()

    gated.expect(
        0,
        "limits: head's tolerance of 70.0 % is looser than 65.0 % (*test_price); head's floor *",
        f"{PRICE} PASS +50.0 % *",
        f"{STOCK} PASS +50.0 % *",
        "accepted: every cell may be judged by limit 90%, tolerance 65% until 9999-12-31: reviewed",
    )


def test_a_limit_on_the_command_line_holds_for_both_sides(shop: Repository) -> None:
    shop.write(shop=SLOWER_SHOP)

    gated = shop.gate("--perf-limit=90%", "--perf-tolerance=60%")

    gated.expect(0, f"{PRICE} PASS +50.0 % *")
    assert "limits: " not in gated.output


def properties(junit: Path) -> dict[str, dict[str, str]]:
    """The properties of each test that did not fail, by its name."""
    tests = ElementTree.parse(junit).iter("testcase")
    return {
        test.attrib["name"]: {
            one.attrib["name"]: one.attrib["value"] for one in test.iter("property")
        }
        for test in tests
        if test.find("failure") is None
    }


def last_line(gated: Gated) -> str:
    return gated.output.splitlines()[-1]


def test_a_quarantined_cell_is_measured_and_shown_and_changes_no_exit_code(
    shop: Repository,
) -> None:
    shop.accept(PRICE, kind="quarantined")
    shop.commit("quarantined")
    shop.write(shop=SLOW_SHOP)
    # What head says of it counts later.
    shop.accept(STOCK, kind="removed")

    gated = shop.gate("--junitxml=junit.xml")

    gated.expect(
        0,
        f"{PRICE} FAIL quarantined +200.0 % *",
        f"{STOCK} PASS *",
        f"accepted: {PRICE} is quarantined until 9999-12-31: reviewed",
    )
    assert properties(shop.path / "junit.xml") == {
        "test_price": {"verdict": "FAIL", "policy": "quarantined"},
        "test_stock": {"verdict": "PASS"},
    }
    runs = read_runs([shop.path / "results" / "run.json"])
    summary = report_on_runs(runs).summary
    assert (summary.word, summary.text) == ("PASS", "2 cells: 1 FAIL quarantined, 1 PASS")


def test_where_every_cell_is_quarantined_nothing_is_compared(shop: Repository) -> None:
    shop.accept("*", kind="quarantined")
    shop.commit("quarantined")
    shop.write(shop=SLOW_SHOP)

    gated = shop.gate()

    gated.expect(
        13,
        f"{PRICE} FAIL quarantined +200.0 % *",
        f"{STOCK} PASS quarantined *",
        "nothing was judged: every cell is quarantined, so no verdict counts",
    )

    shop.commit("slower")

    identical = shop.gate("--perf-base=HEAD")

    identical.expect(13, f"{PRICE} PASS quarantined", f"{STOCK} PASS quarantined")


def test_a_quarantine_counts_from_the_bases_file_alone_and_until_it_expires(
    shop: Repository,
) -> None:
    readme = shop.path / "README.md"
    readme.touch()
    shop.accept(STOCK, kind="quarantined", expires="2020-02-29")
    shop.commit("quarantined")
    shop.accept(PRICE, kind="quarantined", adds=True)
    shop.write(shop=SLOWER_SHOP)
    shop.commit("slower, by its own word")
    # Nothing that a cell loads differs from HEAD, so that the base is its first parent after all.
    readme.write_text("more")

    gated = shop.gate()

    gated.expect(
        10,
        f"{PRICE} FAIL +50.0 % *",
        f"{STOCK} FAIL +50.0 % *",
        f"{PRICE}: *its quarantine counts once the base lists it*",
        f"{STOCK}: *its quarantine expired on 2020-02-29*",
    )
    assert "quarantined" not in gated.output


# As a cell whose recipe computes something else than one process: that is found in the session.
MISMATCH = """
    import os

    from perfsuite.errors import EquivalenceError

    @pytest.mark.benchmark(timer=CLOCK)
    def test_stock(benchmark):
        benchmark.pedantic(shop.stock, args=(CLOCK,), rounds=5)
        if "PERFSUITE_LAUNCH" not in os.environ:
            raise EquivalenceError("the gradients differ by 0.1")
"""


def test_neither_a_quarantine_nor_an_advisory_policy_hides_a_mismatch_or_a_failed_test(
    shop: Repository,
) -> None:
    shop.accept("*", kind="quarantined")
    shop.commit("quarantined")
    shop.write(benchmarks__test_steps=f"{ONE_CELL}{MISMATCH}", shop=SLOW_SHOP)

    gated = shop.gate("--perf-policy=advisory")

    gated.expect(
        1,
        f"{PRICE} FAIL quarantined *",
        f"{STOCK} ERROR",
        f"{STOCK}: head's test failed: EquivalenceError: the gradients differ by 0.1",
    )
    assert "advisory: " not in gated.output


CRASHING_SHOP = """
    import os

    def price(clock):
        clock.work(0.001)
        if os.environ.get("PERFSUITE_LAUNCH", "").startswith("head-"):
            os._exit(3)
"""


def test_a_quarantine_hides_no_cell_that_is_gone_or_that_ends_its_launch(
    shop: Repository,
) -> None:
    shop.accept("*", kind="quarantined")
    shop.commit("quarantined")
    shop.write(benchmarks__test_steps=ONE_CELL)
    shop.write(shop=CRASHING_SHOP)

    gated = shop.gate()

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{STOCK} VANISHED",
        f"{PRICE}: the head launch did not measure it: *",
        f"{STOCK}: head has no such cell; *",
    )


def test_an_advisory_gate_tells_what_it_would_have_ended_in_and_ends_in_0(
    shop: Repository,
) -> None:
    shop.write(shop=SLOW_SHOP)

    gated = shop.gate("--perf-policy=advisory", "--junitxml=junit.xml")

    gated.expect(0, f"{PRICE} FAIL advisory +200.0 % *", f"{STOCK} PASS advisory *", "*2 passed*")
    assert last_line(gated) == "advisory: would have ended in 10"
    assert properties(shop.path / "junit.xml") == {
        "test_price": {"verdict": "FAIL", "policy": "advisory"},
        "test_stock": {"verdict": "PASS", "policy": "advisory"},
    }


def test_a_change_that_brings_an_advisory_policy_is_held_to_the_bases_until_that_is_reviewed(
    shop: Repository,
) -> None:
    with (shop.path / "pytest.ini").open("a") as ini:
        ini.write("perf_policy = advisory\n")
    # As if the user had typed it.
    typed = "import os\n\nos.environ['PYTEST_ADDOPTS'] += ' --perf-policy=advisory'\n"
    shop.write(benchmarks__conftest=typed, shop=SLOWER_SHOP)

    held = shop.gate("-k=price")

    held.expect(
        10,
        "limits: head's perf_policy of advisory is looser than enforce, where "
        "--perf-policy=advisory would hold for both sides (every cell); the stricter holds; if "
        "that is meant, say so with 'perfsuite baseline accept'",
        f"{PRICE} FAIL +50.0 % *",
    )

    shop.accept("*", kind="limit", policy="advisory")

    gated = shop.gate("-k=price")

    gated.expect(
        0,
        f"{PRICE} FAIL advisory +50.0 % *",
        "accepted: every cell may be judged by policy advisory until 9999-12-31: reviewed",
    )
    assert last_line(gated) == "advisory: would have ended in 10"

    shop.commit("advisory, and reviewed")
    shop.write(shop=SLOW_SHOP)

    merged = shop.gate("-k=price")

    merged.expect(0, f"{PRICE} FAIL advisory +100.0 % *")
    assert last_line(merged) == "advisory: would have ended in 10"
    assert "limits: " not in merged.output


PLAIN = """
    import time

    import pytest

    def test_price(benchmark):
        benchmark.pedantic(time.sleep, args=(0.001,), rounds=5)

    @pytest.mark.benchmark(timer=time.process_time)
    def test_stock(benchmark):
        benchmark.pedantic(sum, args=([1],), rounds=5)
"""


@pytest.mark.parametrize("where", ["marker", "configuration"])
def test_no_change_chooses_the_clock_that_judges_it(tmp_path: Path, where: str) -> None:
    shop = make_shop(tmp_path / "shop", max_pairs=3)
    shop.write(benchmarks__test_steps=PLAIN)
    shop.commit()
    marker = "@pytest.mark.benchmark(timer=time.process_time)\n    def test_price"
    slower = PLAIN.replace("0.001", "0.004")
    if where == "marker":
        slower = slower.replace("def test_price", marker)
    else:
        with (shop.path / "pytest.ini").open("a") as ini:
            ini.write("addopts = --benchmark-timer=time.process_time\n")
    shop.write(benchmarks__test_steps=slower)

    gated = shop.gate()

    gated.expect(
        12,
        f"{PRICE} INVALID*",
        f"{PRICE}: it is timed by time.process_time, and in the base by time.perf_counter: no "
        "change may choose the clock that judges it*",
    )
    assert f"{STOCK}: it is timed" not in gated.output
