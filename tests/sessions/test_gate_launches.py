"""What the launches of a gate are given: the user's own call, in each arm's tree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gated_repository import ONE_CELL, SHOP, SLOW_SHOP, TWO_CELLS, Repository, make_shop

PRICE = "benchmarks/test_steps.py::test_price"
STOCK = "benchmarks/test_steps.py::test_stock"


@pytest.fixture
def shop(tmp_path: Path) -> Repository:
    """A repository whose first commit has one cell, and whose second changes nothing."""
    return make_shop(tmp_path / "shop")


BY_VARIABLE = """
    import os

    def price(clock):
        clock.work(float(os.environ.get("SECONDS", "0.001")))
"""


def test_a_variable_that_heads_code_writes_reaches_no_launch_of_the_base(shop: Repository) -> None:
    shop.write(shop=BY_VARIABLE)
    shop.commit()
    shop.write(shop=BY_VARIABLE.replace("def", 'os.environ["SECONDS"] = "0.003"\n\n    def'))

    gated = shop.gate()

    gated.expect(10, "environment: head's code sets SECONDS", f"{PRICE} FAIL +200.0 % *")


def test_a_conftest_that_is_heads_on_both_sides_is_told_of_its_cells(shop: Repository) -> None:
    setting = "import os\nos.environ.setdefault('SECONDS', '{}')\n"
    shop.write(shop=BY_VARIABLE, conftest=setting.format(0.001))
    shop.commit()
    shop.write(conftest=setting.format(0.003))

    gated = shop.gate()

    gated.expect(
        0, f"{PRICE} PASS *", f"{PRICE}: *what this cell runs is head's on both sides: conftest.py*"
    )


def test_what_a_test_keeps_under_the_name_of_a_record_is_no_record(shop: Repository) -> None:
    keeps = '        benchmark.extra_info["perfsuite"] = ["v1"]\n'
    shop.write(shop=SLOW_SHOP, benchmarks__test_steps=f"{ONE_CELL}{keeps}")

    gated = shop.gate()

    gated.expect(10, "FAIL: +200.0 % against the base, *", f"{PRICE} FAIL +200.0 % *")
    assert gated.output.count("FAIL: +200.0 % against the base, between") == 1
    (cell,) = json.loads((shop.path / "results" / "run.json").read_text())["benchmarks"]
    assert cell["extra_info"]["perfsuite"]["verdict"]["word"] == "FAIL"


IN_FUNCTION = """
    import pytest
    from work_clock import CLOCK

    @pytest.mark.benchmark(timer=CLOCK)
    def test_price(benchmark):
        from shop import price
        benchmark.pedantic(price, args=(CLOCK,), rounds=5)
"""


def test_a_module_that_a_benchmark_imports_as_it_runs_may_be_renamed(shop: Repository) -> None:
    shop.write(benchmarks__test_steps=IN_FUNCTION)
    shop.commit()
    (shop.path / "shop.py").unlink()
    shop.write(store=SLOW_SHOP, benchmarks__test_steps=IN_FUNCTION.replace("shop", "store"))

    gated = shop.gate()

    gated.expect(
        10,
        f"{PRICE} FAIL +200.0 % *",
        f"{PRICE}: *the base runs its own benchmarks/test_steps.py, as it cannot import head's: it "
        "lacks store.py*",
    )


def test_a_renamed_module_whose_benchmark_now_asks_for_less_is_no_pass(shop: Repository) -> None:
    asking = IN_FUNCTION.replace("args=(CLOCK,)", "args=(CLOCK, 3)")
    shop.write(
        shop="def price(clock, number):\n    clock.work(0.001 * number)\n",
        benchmarks__test_steps=asking,
    )
    shop.commit()
    (shop.path / "shop.py").unlink()
    shop.write(
        store="def price(clock, number):\n    clock.work(0.002 * number)\n",
        benchmarks__test_steps=asking.replace("shop", "store").replace("CLOCK, 3", "CLOCK, 1"),
    )

    gated = shop.gate()

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: the base runs its own benchmarks/test_steps.py, as it cannot import head's, and "
        "one alone of the two tests has 1, 3, so that their times may not compare; rename the *",
    )


EDITED = """
    import os
    from pathlib import Path

    Path(os.environ["HEAD"], "depot.py").touch()  # as an editor, or git checkout
    SECONDS = 0.001

    def price(clock):
        clock.work(SECONDS)
"""


def test_an_edit_while_head_is_judged_voids_the_session_and_nothing_of_it_is_kept(
    shop: Repository,
) -> None:
    shop.write(shop=EDITED, depot=SHOP)
    shop.commit()
    shop.write(shop=EDITED.replace("0.001", "0.003"))

    gated = shop.gate(HEAD=str(shop.path))

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: depot.py changed while head was judged, by an edit or by a test, so its *",
    )
    assert not (shop.path / "results" / "pairs.json").exists()


def test_where_data_is_edited_while_head_is_judged_nothing_is_kept_under_the_trees_name(
    shop: Repository,
) -> None:
    data = shop.path / "prices.json"
    data.write_text("1\n")
    edited = EDITED.replace('"depot.py").touch()', '"prices.json").open("a").write("0")')
    shop.write(shop=edited)
    shop.commit()
    shop.write(shop=edited.replace("0.001", "0.003"))

    shop.gate(HEAD=str(shop.path)).expect(10, f"{PRICE} FAIL *")

    assert data.read_text() != "1\n"
    assert not (shop.path / "results" / "pairs.json").exists()


def test_a_file_that_holds_code_and_its_benchmark_proves_nothing(shop: Repository) -> None:
    mixed = ONE_CELL.replace("import shop", "").replace("shop.price", "price")
    (shop.path / "pytest.ini").write_text(
        "[pytest]\npythonpath = . benchmarks\npython_files = *.py\n"
    )
    shop.write(algo=f"{mixed}{SHOP}")
    shop.commit()
    shop.write(algo=f"{mixed}{SLOW_SHOP}")

    gated = shop.pytest("algo.py", "--benchmark-compare", "-o", "perf_gate=on")

    gated.expect(
        12,
        "algo.py::test_price INVALID",
        "algo.py::test_price: its file holds code too, by its name, and head has changed it: *",
    )


RUN_SLOW = """
    import pytest

    def pytest_addoption(parser):
        parser.addoption("--runslow", action="store_true")

    def pytest_collection_modifyitems(config, items):
        for item in items:
            if not config.getoption("--runslow"):
                item.add_marker(pytest.mark.skip("slow"))
"""


TELLS_MODULES = """
    import os
    import sys

    def price(clock):
        if "PERFSUITE_LAUNCH" in os.environ:
            with open(os.environ["LOADED"], "a") as file:
                print(*(name for name in sys.modules if "perfsuite" in name), file=file)
        clock.work(0.001)
"""


def test_a_launch_of_plain_benchmarks_imports_the_hooks_alone(
    shop: Repository, tmp_path: Path
) -> None:
    shop.write(shop=TELLS_MODULES)

    gated = shop.gate(LOADED=str(tmp_path / "loaded"))

    gated.expect(0, f"{PRICE} PASS *")
    loaded = set((tmp_path / "loaded").read_text().split())
    assert "perfsuite.plugin.hooks" in loaded
    assert [name for name in loaded if name.startswith(("perfsuite.plugin.s", "perfsuite.g"))] == []


def test_a_launch_leaves_no_run_where_a_conftest_has_each_saved(shop: Repository) -> None:
    saves = "def pytest_configure(config):\n    config.option.benchmark_autosave = 'auto'\n"
    shop.write(conftest=saves)
    shop.commit()
    shop.write(shop=SLOW_SHOP)

    gated = shop.gate()

    gated.expect(10, f"{PRICE} FAIL +200.0 % *")
    assert [path.parent.parent.name for path in shop.path.rglob("0*_auto.json")] == ["baselines"]


def test_a_matrix_that_does_not_exist_is_one_line_where_the_base_asks_for_it(
    shop: Repository,
) -> None:
    ini = shop.path / "pytest.ini"
    right = ini.read_text()
    ini.write_text(f"{right}perf_matrix = all\n")
    shop.commit()
    ini.write_text(right)

    gated = shop.gate()

    gated.expect(
        12, f"{PRICE} NO-BASELINE", "*perf_matrix is 'all'; use one of smoke, default, full*"
    )
    assert "INTERNALERROR" not in gated.output


def test_an_option_of_the_suite_reaches_the_launches(shop: Repository) -> None:
    shop.write(conftest=RUN_SLOW)
    shop.commit()
    shop.write(shop=SLOW_SHOP)

    gated = shop.gate("--runslow")

    gated.expect(10, f"{PRICE} FAIL +200.0 % *")


FROM_HERE = """
    import sys
    from pathlib import Path

    def price(clock):
        clock.work(float(Path("seconds.txt").read_text()) * int(sys._xoptions["times"]))
"""


def test_a_launch_is_called_as_the_user_calls_pytest(shop: Repository) -> None:
    """In a folder of the tree, with an option of the interpreter and a path that is absolute."""
    shop.folder = shop.path / "tools"
    shop.python_options = ("-X", "times=1")
    shop.folder.mkdir()
    (shop.folder / "seconds.txt").write_text("0.001")
    shop.write(shop=FROM_HERE)
    shop.commit()
    (shop.folder / "seconds.txt").write_text("0.003")

    gated = shop.pytest(f"{shop.path}/benchmarks", "--benchmark-compare")

    gated.expect(10, f"{PRICE} FAIL +200.0 % *")


@pytest.mark.parametrize(
    "narrowed",
    ["addopts = -k 'not stock'", "testpaths = benchmarks/test_steps.py"],
)
def test_what_a_change_leaves_out_by_configuration_has_vanished(
    shop: Repository, narrowed: str
) -> None:
    more = ONE_CELL.replace("price", "stock")
    shop.write(benchmarks__test_more=more)
    shop.commit()
    with (shop.path / "pytest.ini").open("a") as ini:
        ini.write(f"{narrowed}\n")

    gated = shop.pytest("--benchmark-compare")

    gated.expect(12, "benchmarks/test_more.py::test_stock VANISHED", f"{PRICE} PASS*")


SKIPS = """
    import json
    from pathlib import Path

    import pytest

    def pytest_collection_modifyitems(items):
        skipped = json.loads(Path(__file__).with_name("skips.json").read_text())
        for item in items:
            if item.name in skipped:
                item.add_marker(pytest.mark.skip("listed"))
"""


def test_a_cell_that_a_file_of_data_skips_has_vanished(shop: Repository) -> None:
    shop.write(benchmarks__test_steps=TWO_CELLS, benchmarks__conftest=SKIPS)
    (shop.path / "benchmarks" / "skips.json").write_text("[]")
    shop.commit()
    (shop.path / "benchmarks" / "skips.json").write_text('["test_stock"]')

    gated = shop.gate()

    gated.expect(12, f"{PRICE} PASS*", f"{STOCK} VANISHED")


DISCOUNT = """
    import pytest
    from shop import discount
    from work_clock import CLOCK

    @pytest.mark.benchmark(timer=CLOCK)
    def test_discount(benchmark):
        benchmark.pedantic(discount, args=(CLOCK,), rounds=5)
"""


def test_a_new_function_with_its_benchmark_is_new_and_no_other_cell_minds(
    shop: Repository,
) -> None:
    shop.write(shop=f"{SHOP}\n    discount = price", benchmarks__test_discount=DISCOUNT)

    gated = shop.gate()

    gated.expect(0, "benchmarks/test_discount.py::test_discount NEW", f"{PRICE} PASS*")


def test_the_base_runs_its_own_file_where_it_cannot_import_heads(shop: Repository) -> None:
    more = ONE_CELL.replace("import shop", "import shop\n    from shop import discount")
    shop.write(shop=f"{SLOW_SHOP}\n    discount = price", benchmarks__test_steps=more)

    gated = shop.gate()

    gated.expect(
        10,
        f"{PRICE} FAIL +200.0 % *",
        f"{PRICE}: *the base runs its own benchmarks/test_steps.py, as it cannot import head's: *"
        "cannot import name 'discount'*",
    )


FIXTURE = """
    import pytest
    from shop import discount

    @pytest.fixture(autouse=True)
    def _open_shop():
        yield discount
"""
HELPER = """
    from shop import price
    from work_clock import CLOCK
"""
WITH_HELPER = """
    import pytest
    from helper import CLOCK, price

    @pytest.mark.benchmark(timer=CLOCK)
    def test_price(benchmark):
        benchmark.pedantic(price, args=(CLOCK,), rounds=5)
"""


@pytest.mark.parametrize(
    ("bases", "heads", "own"),
    [
        ({}, {"benchmarks__conftest": FIXTURE}, "benchmarks/conftest.py"),
        ({"conftest": ""}, {"conftest": FIXTURE}, "conftest.py"),
        (
            {"benchmarks__test_steps": WITH_HELPER, "benchmarks__helper": HELPER},
            {"benchmarks__helper": HELPER.replace("import price", "import discount, price")},
            "benchmarks/helper.py",
        ),
        # What only the base has comes back too.
        (
            {"benchmarks__conftest": "import old_helper", "benchmarks__old_helper": ""},
            {"benchmarks__conftest": FIXTURE, "benchmarks__old_helper": None},
            "benchmarks/conftest.py",
        ),
    ],
    ids=["conftest", "conftest of a folder above", "helper", "conftest, and a removed helper"],
)
def test_the_base_runs_its_own_files_where_it_cannot_import_heads_conftest_or_helpers(
    shop: Repository, bases: dict[str, str], heads: dict[str, str | None], own: str
) -> None:
    shop.write(**bases)
    shop.commit()
    shop.write(shop=f"{SLOW_SHOP}\n    discount = price")
    for name, text in heads.items():
        file = shop.path / f"{name.replace('__', '/')}.py"
        file.unlink() if text is None else shop.write(**{name: text})

    gated = shop.gate()

    gated.expect(
        10,
        "benchmark files: each side runs its own Python files",
        f"{PRICE} FAIL +200.0 % *",
        f"{PRICE}: *the base runs its own {own}, as it cannot import head's: *",
    )
    assert "cannot import name 'discount'" in gated.output


EXCLUSIVE = """
    import fcntl
    import os

    import pytest

    @pytest.fixture(autouse=True)
    def _licence():
        with open(os.environ["LOCK"], "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
"""


def test_arms_that_want_what_one_alone_can_have_run_launch_after_launch(
    shop: Repository, tmp_path: Path
) -> None:
    shop.write(benchmarks__conftest=EXCLUSIVE)
    shop.commit()

    gated = shop.gate(LOCK=str(tmp_path / "lock"))

    gated.expect(0, f"{PRICE} PASS *", f"{PRICE}: *launch after launch, not round by round*")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("perf_gate = off", "perf_gate"),
        ("addopts = --perf-gate=off", "perf_gate"),
        ("perf_numerics = off", "perf_numerics"),
        ("perf_base = HEAD", "perf_base"),
        ("perf_base_dir = .", "perf_base_dir"),
        ("perf_shard = 2/2", "perf_shard"),
        ("perf_device = cpu", "perf_device"),
    ],
)
def test_a_change_that_switches_off_what_judges_it_or_names_its_base_is_refused(
    shop: Repository, line: str, name: str
) -> None:
    (shop.path / "pytest.ini").write_text(f"[pytest]\npythonpath = .\n{line}\n")
    # As if the user had typed it.
    typed = f"import os\n\nos.environ['PYTEST_ADDOPTS'] += ' --{name.replace('_', '-')}=x'\n"
    shop.write(shop=SLOW_SHOP, benchmarks__conftest=typed)
    shop.commit()

    gated = shop.gate("--perf-limit=6%")

    gated.expect(4, f"ERROR: {name} is '*' (*pytest.ini) and was not in the base, *")


def test_such_a_setting_is_refused_through_a_link_too(shop: Repository, tmp_path: Path) -> None:
    (shop.path / "pytest.ini").write_text("[pytest]\npythonpath = .\nperf_numerics = off\n")
    shop.commit()
    (tmp_path / "link").symlink_to(shop.path)

    gated = shop.pytest(f"{tmp_path}/link/benchmarks", "--benchmark-compare", "-o", "perf_gate=on")

    gated.expect(4, "ERROR: perf_numerics is 'off' (*pytest.ini) and was not in the base, *")


def test_what_is_typed_as_a_setting_is_the_users_own_word(shop: Repository) -> None:
    shop.write(shop=SLOW_SHOP)
    shop.commit()

    gated = shop.gate("-o", "perf_gate=off")

    gated.expect(0, "*1 passed*")


@pytest.mark.parametrize("why", ["so is the base's", "it is reviewed"])
def test_a_gate_that_may_be_off_stays_so(shop: Repository, why: str) -> None:
    (shop.path / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = --perf-gate=off\n")
    if why == "it is reviewed":
        shop.accept("*", kind="limit", gate="off")
    else:
        shop.commit()
    shop.write(shop=SLOW_SHOP)

    gated = shop.gate("--perf-limit=6%")

    gated.expect(0, "*1 passed*")
    assert PRICE not in gated.output


def test_a_change_that_leaves_the_plugin_out_is_refused_where_the_gate_is_asked_for(
    shop: Repository,
) -> None:
    (shop.path / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = -p no:perfsuite\n")

    # As an installed plugin is loaded.
    gated = shop.gate("--perf-gate=on", PYTEST_ADDOPTS="", PYTEST_DISABLE_PLUGIN_AUTOLOAD="")

    gated.expect(4, "*unrecognized arguments: --perf-gate=on")


# Each checkout has a path of its own, and names its test by it.
NAMED_BY_PATH = """
    import pytest
    import shop
    from work_clock import CLOCK

    @pytest.mark.benchmark(timer=CLOCK)
    @pytest.mark.parametrize("file", [__file__], ids=str)
    def test_price(benchmark, file):
        benchmark.pedantic(shop.price, args=(CLOCK,), rounds=5)
"""


def test_a_cell_that_has_a_path_of_its_checkout_in_its_name_is_one_cell(shop: Repository) -> None:
    shop.write(benchmarks__test_steps=NAMED_BY_PATH)
    shop.commit()
    shop.write(shop=SLOW_SHOP)

    gated = shop.gate()

    gated.expect(10, f"*::test_price[{shop.path}/benchmarks/test_steps.py] FAIL +200.0 %*")
