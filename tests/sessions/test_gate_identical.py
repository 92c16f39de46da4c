"""Cells that no change touches pass without a pair, in whole sessions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gated_repository import ONE_CELL, SHOP, SLOW_SHOP, Repository, make_shop

PRICE = "benchmarks/test_steps.py::test_price"
STOCK = "benchmarks/test_stock.py::test_stock"
# Each process that imports it leaves a trace.
TRACED_SHOP = f"""
    import os
    import tempfile
    tempfile.mkdtemp(dir=os.environ["LAUNCHES"])
{SHOP}"""
# Takes what another process says, and loads what only many calls need.
ASKING_SHOP = """
    import subprocess
    SECONDS = float(subprocess.run(["./seconds"], capture_output=True, check=True).stdout)
    num_calls = 0

    def price(clock):
        global num_calls
        num_calls += 1
        clock.work(SECONDS)
        if num_calls >= 50:
            from late import SECONDS as late_s
            clock.work(late_s)
"""
MANY_ROUNDS = ONE_CELL.replace(
    "pedantic(shop.price, args=(CLOCK,), rounds=5)", "__call__(shop.price, CLOCK)"
)
# Each process that runs it leaves a trace.
TRACED_RUN = """
    import os
    from pathlib import Path

    def price(clock):
        Path(os.environ["RUNS"], str(os.getpid())).touch()
        clock.work(0.001)
"""
STOCK_CELL = ONE_CELL.replace("shop", "depot").replace("price", "stock")


@pytest.fixture
def shop(tmp_path: Path) -> Repository:
    """A repository on main with a cell."""
    return make_shop(tmp_path / "shop")


def test_a_change_of_documentation_alone_launches_nothing(shop: Repository, tmp_path: Path) -> None:
    (tmp_path / "launches").mkdir()
    environment = {"LAUNCHES": str(tmp_path / "launches")}
    shop.write(shop=TRACED_SHOP)
    shop.commit()
    (shop.path / "README.md").write_text("new")
    (shop.path / "docs").mkdir()
    (shop.path / "docs" / "index.txt").touch()
    shop.commit()

    gated = shop.gate(**environment)
    num_processes = len(list((tmp_path / "launches").iterdir()))
    judged = shop.gate("--perf-identical=judge", **environment)

    gated.expect(
        0,
        f"{PRICE} PASS",
        "1 cell: identical: only documentation differs from the base: README.md, docs/index.txt",
    )
    assert gated.output.count("only documentation differs") == 1
    # The session itself, and what asked head for its cells.
    assert num_processes == 2
    judged.expect(0, "pair 1: *", f"{PRICE} PASS *", "1 cell: pairs against the first parent *")


def test_a_changed_module_has_only_those_cells_judged_that_load_it(shop: Repository) -> None:
    shop.write(benchmarks__test_stock=STOCK_CELL, depot=SHOP)
    shop.commit()
    shop.write(shop=f"{SHOP}    # more")

    gated = shop.gate()

    gated.expect(
        0,
        f"{PRICE} PASS *",
        f"{STOCK} PASS",
        "1 cell: pairs against HEAD, *",
        "1 cell: identical: it loads none of the changed modules: shop.py",
    )


# Both cells may use what a process made that has ended when the second one runs.
PREPARED_CELLS = """
    import subprocess
    import sys

    import pytest
    from work_clock import CLOCK

    @pytest.fixture(scope="session")
    def prepared(tmp_path_factory):
        made = tmp_path_factory.mktemp("made") / "seconds"
        subprocess.run([sys.executable, "prepare.py", str(made)], check=True)
        return made

    @pytest.mark.benchmark(timer=CLOCK)
    @pytest.mark.parametrize("is_read", [False, True])
    def test_price(benchmark, prepared, is_read):
        seconds = float(prepared.read_text()) if is_read else 0.001
        benchmark.pedantic(CLOCK.work, args=(seconds,), rounds=5)
"""
PREPARE = """
    import sys
    from pathlib import Path

    Path(sys.argv[1]).write_text("{seconds}")
"""


def test_what_a_fixture_of_the_session_made_is_used_by_every_cell_that_has_it(
    shop: Repository,
) -> None:
    shop.write(benchmarks__test_steps=PREPARED_CELLS, prepare=PREPARE.format(seconds=0.001))
    shop.commit()
    shop.write(prepare=PREPARE.format(seconds=0.003))

    gated = shop.gate()

    gated.expect(10, "*::test_price[False] PASS *", "*::test_price[True] FAIL +200.0 %*")


def test_a_file_that_loads_the_changed_module_runs_its_cells_in_pairs_alone(
    shop: Repository, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    shop.write(benchmarks__test_stock=STOCK_CELL, depot=SHOP, shop=TRACED_RUN)
    shop.commit()
    shop.write(shop=f"{TRACED_RUN}    # more")

    gated = shop.gate(RUNS=str(tmp_path / "runs"))

    gated.expect(0, f"{PRICE} PASS *", f"{STOCK} PASS")
    # Both arms of each pair, and the session itself.
    num_pairs = gated.output.count("\npair ")
    assert len(list((tmp_path / "runs").iterdir())) == 2 * num_pairs + 1


def test_where_no_cell_loads_what_is_uncommitted_the_commit_itself_is_judged(
    shop: Repository,
) -> None:
    shop.write(shop=SLOW_SHOP)
    shop.commit()
    shop.write(release=SHOP)

    gated = shop.gate()

    gated.expect(
        10,
        "running 1 cell of head once: what loads no changed module needs no pair",
        "profiling what moved: 1 cell",
        # Its clock takes the microseconds of no function.
        "FAIL: +200.0 % *; no stage, count or function moved by itself",
        "base: the first parent of HEAD, *; nothing that a cell loads differs from HEAD",
        f"{PRICE} FAIL +200.0 % *",
    )


def test_a_new_benchmark_that_is_uncommitted_makes_no_older_commit_the_base(
    shop: Repository,
) -> None:
    shop.write(shop=SLOW_SHOP)
    shop.commit()
    shop.write(benchmarks__test_new=ONE_CELL.replace("test_price", "test_new"))

    gated = shop.gate()

    gated.expect(0, "base: HEAD, *", "*::test_new NEW*", f"{PRICE} PASS*")


def test_documentation_upon_a_slow_commit_hides_nothing_where_the_default_branch_is_trunk(
    shop: Repository,
) -> None:
    shop.git("branch", "--move", "trunk")
    shop.git("switch", "--quiet", "--create", "feature")
    shop.write(shop=SLOW_SHOP)
    shop.commit()
    (shop.path / "README.md").write_text("new")
    shop.commit()

    gated = shop.gate()

    gated.expect(10, "base: the merge base with trunk, *", f"{PRICE} FAIL +200.0 % *")


def test_a_change_that_is_no_module_reaches_every_cell(shop: Repository) -> None:
    seconds = SHOP.replace("0.001", "float(open('seconds.txt').read())")
    (shop.path / "seconds.txt").write_text("0.001")
    shop.write(shop=seconds)
    shop.commit()
    (shop.path / "seconds.txt").write_text("0.003")

    gated = shop.gate()

    gated.expect(10, f"{PRICE} FAIL +200.0 % *")


def test_a_package_called_baselines_holds_code_and_configurations_that_count(
    shop: Repository,
) -> None:
    configuration = shop.path / "baselines" / "configs" / "1024_hidden.json"
    configuration.parent.mkdir(parents=True)
    configuration.write_text("0.001")
    shop.write(
        shop="""
            from pathlib import Path
            try:
                from baselines.local_settings import MORE
            except ImportError:
                MORE = 0.0

            def price(clock):
                clock.work(float(Path("baselines/configs/1024_hidden.json").read_text()) + MORE)
        """
    )
    shop.commit()
    shop.write(baselines__local_settings="MORE = 0.002")
    code = shop.gate("--perf-base=HEAD")
    (shop.path / "baselines" / "local_settings.py").unlink()
    configuration.write_text("0.003")
    shop.commit()
    configured = shop.gate()

    code.expect(10, "head: * with uncommitted changes", f"{PRICE} FAIL +200.0 % *")
    configured.expect(10, f"{PRICE} FAIL +200.0 % *")


@pytest.mark.parametrize("changed", ["asked", "late"])
def test_a_module_that_a_short_look_does_not_see_is_judged(shop: Repository, changed: str) -> None:
    shop.write(
        shop=ASKING_SHOP,
        benchmarks__test_steps=MANY_ROUNDS,
        asked="S = 0.001",
        late="SECONDS = 0.0",
    )
    script = shop.path / "seconds"
    script.write_text(
        f"#!{sys.executable} -Es\n"
        "import runpy\nprint(runpy.run_path(__file__.replace('seconds', 'asked.py'))['S'])\n"
    )
    script.chmod(0o755)
    shop.commit()
    shop.write(**{changed: "S = SECONDS = 0.003"})
    shop.commit()

    gated = shop.gate()

    gated.expect(10, f"{PRICE} FAIL +* %*")


def test_a_text_in_a_package_and_a_package_named_dist_are_no_documentation(
    shop: Repository,
) -> None:
    (shop.path / "goods" / "dist").mkdir(parents=True)
    page = shop.path / "goods" / "seconds.md"
    page.write_text("0.001")
    shop.write(
        shop="""
            from pathlib import Path
            from goods.dist import more
            SECONDS = float(Path("goods/seconds.md").read_text()) + more.SECONDS

            def price(clock):
                clock.work(SECONDS)
        """,
        goods__dist__more="SECONDS = 0.0",
    )
    shop.commit()
    (shop.path / "README.md").write_text("new")
    shop.commit()
    shop.write(goods__dist__more="SECONDS = 0.002")
    code = shop.gate()
    shop.git("checkout", "--quiet", ".")
    page.write_text("0.003")
    text = shop.gate()

    code.expect(10, f"{PRICE} FAIL +200.0 % *")
    text.expect(10, f"{PRICE} FAIL +200.0 % *")


# A process that it starts loads the shop, and tells how long it takes.
PROCESS_CELL = """
    import multiprocessing
    import os
    import subprocess
    import sys
    from pathlib import Path

    import pytest
    from child import read_seconds
    from work_clock import CLOCK

    ROOT = Path(__file__).parent.parent

    def spawned():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(read_seconds)

    def started():
        roots = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        return float(subprocess.run(
            [sys.executable, ROOT / "child.py"], env={**os.environ, "PYTHONPATH": roots},
            capture_output=True, check=True,
        ).stdout)

    def made():
        command = ["make", "--silent", f"--directory={ROOT}", f"PYTHON={sys.executable}"]
        return float(subprocess.run(command, stdout=-1, check=True).stdout)

    @pytest.mark.benchmark(timer=CLOCK)
    def test_price(benchmark):
        benchmark.pedantic(lambda: CLOCK.work(WAY()), rounds=2)
"""
MAKEFILE = "export PYTHONPATH := tools\nall:\n\t$(PYTHON) child.py\n"
CHILD = """
    def read_seconds():
        from slow import SECONDS

        return SECONDS

    if __name__ == "__main__":
        print(read_seconds())
"""
SETS_PATH = """
    import os
    from pathlib import Path

    os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent)  # for child processes
"""


@pytest.mark.parametrize(
    ("way", "files"),
    [
        ("spawned", {"benchmarks__conftest": SETS_PATH}),
        # As coverage's manual has it.
        ("started", {"sitecustomize": "import os"}),
        ("made", {}),
    ],
)
def test_a_process_that_cannot_say_what_it_loads_is_not_taken_for_idle(
    shop: Repository, way: str, files: dict[str, str]
) -> None:
    cell = PROCESS_CELL.replace("WAY()", f"{way}()")
    (shop.path / "Makefile").write_text(MAKEFILE)
    shop.write(benchmarks__test_steps=cell, child=CHILD, slow="SECONDS = 0.001", **files)
    shop.commit()
    shop.write(slow="SECONDS = 0.003")
    shop.commit()

    shop.gate().expect(10, f"{PRICE} FAIL +200.0 % *")
