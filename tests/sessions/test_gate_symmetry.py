"""Code under test that both arms share, or that one of them lacks: compiled, ignored, generated."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from gated_repository import CLOCK, ONE_CELL, SHOP, SLOW_SHOP, Repository, make_shop

PRICE = "benchmarks/test_steps.py::test_price"

# The work that the clock counts is what the library says.
LIBRARY = "double price_s(void) {{ return {seconds}; }}\n"
BUILD = "cc -shared -fPIC -o libprice.so price.c"
BY_CTYPES = """
    import ctypes, os, pathlib

    OWN = pathlib.Path(__file__).with_name("libprice.so")
    LIBRARY = ctypes.CDLL(os.environ.get("SHOP_LIBRARY", OWN))
    LIBRARY.price_s.restype = ctypes.c_double

    def price(clock):
        clock.work(LIBRARY.price_s())
"""


@pytest.fixture
def shop(tmp_path: Path) -> Repository:
    return make_shop(tmp_path / "shop")


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter of its own that has all that this one has."""
    venv.create(tmp_path / "venv")
    (site_packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    ours = sysconfig.get_path("purelib")
    (site_packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return tmp_path / "venv" / "bin" / "python"


def write_library(shop: Repository, *, seconds: float) -> None:
    (shop.path / "price.c").write_text(LIBRARY.format(seconds=seconds))
    subprocess.run(BUILD.split(), cwd=shop.path, check=True)


def test_a_library_that_both_arms_load_from_head_proves_nothing(shop: Repository) -> None:
    shop.write(shop=BY_CTYPES)
    (shop.path / ".gitignore").write_text("*.so\n")
    write_library(shop, seconds=0.001)
    shop.commit()
    write_library(shop, seconds=0.0013)

    gated = shop.gate(SHOP_LIBRARY=str(shop.path / "libprice.so"))

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: the base arm loaded {shop.path}/libprice.so, which is head's; *",
    )


CACHES = (
    *("PYTHONPYCACHEPREFIX", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR"),
    *("TRITON_CACHE_DIR", "NUMBA_CACHE_DIR", "CUPY_CACHE_DIR"),
)
CACHED = f"""
    import os, runpy, shutil
    from pathlib import Path

    if "PERFSUITE_ARM_NAME" in os.environ:
        with open(os.environ["CACHES"], "a") as caches:
            for name in {CACHES}:
                print(os.environ["PERFSUITE_ARM_NAME"], name, os.environ[name], file=caches)
    BUILT = Path(os.environ["KERNELS"], "kernel_built.py")
    if not BUILT.exists():
        shutil.copyfile(Path(__file__).with_name("kernel.py"), BUILT)
    price = runpy.run_path(str(BUILT))["price"]
"""


def test_what_one_arm_builds_for_both_proves_nothing(shop: Repository, tmp_path: Path) -> None:
    """Compilers are told of a folder of each arm, which all launches of the arm have."""
    shop.write(shop=CACHED, kernel=SHOP)
    shop.commit()
    shop.write(kernel=SLOW_SHOP)
    shop.write(shop=f"{CACHED}    # it is loaded, and the kernel is not")
    (tmp_path / "kernels").mkdir()

    gated = shop.gate(KERNELS=str(tmp_path / "kernels"), CACHES=str(tmp_path / "caches"))

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: both arms loaded {tmp_path}/kernels/kernel_built.py, which was written during "
        "this session; gate again if *; else have the code build it in the tree, *",
    )
    lines = (tmp_path / "caches").read_text().splitlines()
    folders = {(arm, name): folder for arm, name, folder in map(str.split, lines)}
    assert len(lines) > len(folders) == len(set(folders.values())) == 2 * len(CACHES)
    assert {*map(tuple, map(str.split, lines))} == {(*key, folders[key]) for key in folders}


PREPARED = """
    import os, pathlib

    KEPT = pathlib.Path(os.environ["AT_HOME"], "prepared.json")
    if MAKES:
        from preprocess import SECONDS

        KEPT.write_text(str(SECONDS))
    SECONDS = float(KEPT.read_text())

    def price(clock):
        clock.work(SECONDS)
"""


@pytest.fixture(params=[None, "/dev/shm"], ids=["at home", "in memory"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=request.param or tmp_path) as folder:
        yield Path(folder)


def test_what_one_arm_prepares_for_both_at_home_proves_nothing(
    shop: Repository, home: Path
) -> None:
    kept = home / "prepared.json"
    gated = []
    for makes in ("not KEPT.exists()", "True"):  # the latter as a tool keeps its state
        shop.write(shop=PREPARED.replace("MAKES", makes), preprocess="SECONDS = 0.001\n")
        shop.commit()
        shop.write(preprocess="SECONDS = 0.003\n")
        gated.append(shop.gate(AT_HOME=str(kept.parent)))

    gated[0].expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: both arms loaded {kept}, which was written during this session; one may have "
        "made it for both: delete it, *",
    )
    assert kept.name not in gated[1].output


BY_DATA = """
    import os, pathlib

    PRICES = pathlib.Path(os.environ["SHOP_SETTINGS"]).read_text()
    SECONDS = float(pathlib.Path(PRICES).read_text())

    def price(clock):
        clock.work(SECONDS)
"""


def test_a_tracked_file_that_both_arms_read_from_head_proves_nothing(
    shop: Repository, tmp_path: Path
) -> None:
    shop.write(shop=BY_DATA)
    (shop.path / "prices.txt").write_text("0.001")
    shop.commit()
    (shop.path / "prices.txt").write_text("0.003")

    (tmp_path / "settings").write_text(str(shop.path / "prices.txt"))

    gated = shop.gate(SHOP_SETTINGS=str(tmp_path / "settings"))

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: the base arm loaded {shop.path}/prices.txt, which is head's; *",
    )


WAYS = {
    "a link that git tracks": "(OWN / 'link' / 'prices.txt').read_text()",
    "a link that is gone": """(
        os.symlink(OTHER / "prices.txt", link := tempfile.mktemp()),
        text := open(link).read(),
        os.unlink(link),
    )[1]""",
    "a path around its tree": "(OWN / '..' / OTHER.parent.name / 'prices/prices.txt').read_text()",
    "a database": "sqlite3.connect(OTHER / 'prices.db').execute('select * from a').fetchone()[0]",
    "a program": "subprocess.check_output(['cat', OTHER / 'prices.txt'])",
}
BY_WAY = """
    import os, pathlib, sqlite3, subprocess, tempfile

    OWN = pathlib.Path(__file__).parent
    OTHER = pathlib.Path(pathlib.Path(os.environ["SHOP_SETTINGS"]).read_text())

    def price(clock):
        clock.work(float({way}))
"""


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
def test_a_base_that_reads_head_s_files_in_any_way_proves_nothing(
    shop: Repository, tmp_path: Path, way: str
) -> None:
    prices = shop.path / "prices"
    prices.mkdir()
    (tmp_path / "settings").write_text(str(prices))
    (shop.path / "link").symlink_to(prices)
    shop.write(shop=BY_WAY.format(way=way))
    for seconds in ("0.001", "0.003"):
        (prices / "prices.txt").write_text(seconds)
        with contextlib.closing(sqlite3.connect(prices / "prices.db")) as database:
            database.executescript(f"drop table if exists a; create table a as select {seconds}")
        shop.commit()

    gated = shop.gate("--perf-base=HEAD~1", SHOP_SETTINGS=str(tmp_path / "settings"))

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: the base arm loaded {prices}/prices.*, which is head's; *",
    )


SPEEDUPS = """
    try:
        from _speedups import price
    except ImportError:
        def price(clock):
            clock.work(0.004)
"""


def test_a_module_that_git_ignores_and_head_alone_has_is_named(shop: Repository) -> None:
    shop.write(shop=SPEEDUPS, _speedups=SHOP)
    (shop.path / ".gitignore").write_text("_speedups*\n")
    shop.commit()
    (shop.path / "shop.py").write_text((shop.path / "shop.py").read_text() + "# changed\n")

    gated = shop.gate()

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: the head arm loaded _speedups.py, which git does not track, so the base's tree "
        "began without it; *--perf-base-build*perf_share*",
    )


def test_a_library_that_each_tree_builds_is_judged_whatever_git_says(shop: Repository) -> None:
    shop.write(shop=BY_CTYPES)
    (shop.path / ".gitignore").write_text("*.so\n")
    write_library(shop, seconds=0.001)
    shop.commit()
    shop.commit("no file differs")
    write_library(shop, seconds=0.0013)
    shop.git("restore", "price.c")

    gated = shop.gate(f"--perf-base-build={BUILD}")

    gated.expect(10, f"base build: {BUILD}", f"{PRICE} FAIL +30.0 % *")


def test_a_library_that_is_older_than_what_head_changes_of_its_sources_is_no_pass(
    shop: Repository,
) -> None:
    shop.write(shop=BY_CTYPES)
    (shop.path / ".gitignore").write_text("*.so\n")
    write_library(shop, seconds=0.001)
    shop.commit()
    os.utime(shop.path / "libprice.so", (0, 0))
    (shop.path / "price.c").write_text(LIBRARY.format(seconds=0.0013))
    shop.commit()

    stale = shop.gate("--perf-base=HEAD~1", f"--perf-base-build={BUILD}")
    subprocess.run(BUILD.split(), cwd=shop.path, check=True)
    built_anew = shop.gate("--perf-base=HEAD~1", f"--perf-base-build={BUILD}")

    told = "which git does not track, and nothing was compiled since price.c was changed; build *"
    stale.expect(12, f"{PRICE} INVALID", f"{PRICE}: the head arm ran with libprice.so, {told}")
    built_anew.expect(10, f"{PRICE} FAIL +30.0 % *")


def test_a_program_that_make_starts_may_be_older_than_its_sources_too(shop: Repository) -> None:
    shop.write(
        shop="""
        import subprocess

        def price(clock):
            clock.work(float(subprocess.run(["make", "-s"], capture_output=True).stdout))
        """
    )
    (shop.path / "Makefile").write_text("run:\n\t./price\n")
    (shop.path / ".gitignore").write_text("/price\n")
    program, build = '#include <stdio.h>\nint main(void) {{ puts("{}"); }}\n', "cc price.c -o price"
    (shop.path / "price.c").write_text(program.format(0.001))
    shop.commit()
    subprocess.run(build.split(), cwd=shop.path, check=True)
    os.utime(shop.path / "price", (0, 0))
    (shop.path / "price.c").write_text(program.format(0.0013))
    shop.commit()

    stale = shop.gate("--perf-base=HEAD~1", f"--perf-base-build={build}")
    subprocess.run(build.split(), cwd=shop.path, check=True)
    built_anew = shop.gate("--perf-base=HEAD~1", f"--perf-base-build={build}")

    stale.expect(12, f"{PRICE} INVALID", f"{PRICE}: the head arm ran with price, *")
    built_anew.expect(10, f"{PRICE} FAIL +30.0 % *")


def test_a_build_that_changes_what_head_runs_with_ends_the_session(
    shop: Repository, python: Path
) -> None:
    shop.write(shop=SLOW_SHOP)
    site_packages = "$(python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))')"

    gated = Repository(shop.path, python=str(python)).gate(
        f"--perf-base-build=mkdir {site_packages}/shop-1.dist-info"
    )

    gated.expect(
        12,
        f"{PRICE} NO-BASELINE",
        "* changed shop in *site-packages, and head runs with that too; "
        f"*pip install --no-deps --editable {shop.path}*PERFSUITE_SITE*",
    )


BY_WHAT_IS_KEPT = """
    import ctypes
    import os
    from pathlib import Path

    KEPT = Path(__file__).parent / "cache/seconds"
    KEPT.parent.mkdir(exist_ok=True)
    if KEPT.exists():
        SECONDS = float(READING)
    else:
        from preprocess import SECONDS
        if %r:
            KEPT.write_text(f"{SECONDS}")

    def price(clock):
        clock.work(SECONDS)
"""


# As training keeps on writing its checkpoint.
BY_PYTHON = "(KEPT.read_text(), KEPT.write_text(KEPT.read_text()))[0]"
# As C++ and Rust do, without an event of Python's; the file stays open.
BY_C = "os.read(ctypes.CDLL(None).open(bytes(KEPT), os.O_RDONLY), 99)"


def keep_seconds(
    shop: Repository,
    *,
    is_written: bool,
    ignored: str = "cache\n",
    reading: str = BY_PYTHON,
) -> None:
    """Have the shop read what an earlier run has kept, and slow down what that run needed."""
    (shop.path / ".gitignore").write_text(ignored)
    by_what_is_kept = BY_WHAT_IS_KEPT.replace("READING", reading) % is_written
    shop.write(shop=by_what_is_kept, preprocess="SECONDS = 0.001\n")
    shop.commit()
    shop.write(preprocess="SECONDS = 0.003\n")
    shop.commit()


@pytest.mark.parametrize(
    ("is_written", "reading"),
    [(True, BY_PYTHON), (False, BY_PYTHON), (False, BY_C)],
)
def test_what_head_alone_has_kept_of_an_earlier_run_proves_nothing(
    shop: Repository, is_written: bool, reading: str
) -> None:
    keep_seconds(shop, is_written=is_written, reading=reading)
    (shop.path / "cache").mkdir()
    (shop.path / "cache/seconds").write_text("0.001")

    gated = shop.gate()
    shared = shop.gate("-o", "perf_share=cache")

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: the head arm loaded cache/seconds, in cache, which git does not track, so the "
        "base's tree began without it; *perf_share*, or remove it where the code makes it anew; "
        f"the launch had read it by the end of {PRICE}",
    )
    shared.expect(0, "1 cell: identical: it loads none of the changed modules: preprocess.py")


def test_a_fast_path_that_head_uses_no_more_and_the_base_lacks_proves_nothing(
    shop: Repository,
) -> None:
    shop.write(
        shop="""
        from pathlib import Path

        PACKED = Path(__file__).parent / "data/packed.bin"

        def price(clock):
            clock.work(0.001 if PACKED.exists() else 0.003)
        """
    )
    (shop.path / ".gitignore").write_text("data/\n")
    shop.commit()
    shop.write(shop="def price(clock):\n    clock.work(0.003)\n")
    shop.commit()
    (shop.path / "data").mkdir()
    (shop.path / "data/packed.bin").write_text("built by hand")

    gated = shop.gate()
    shared = shop.gate("-o", "perf_share=data")

    told = "names data/packed.bin, which git does not track, and head's code does not, so the base "
    gated.expect(12, f"{PRICE} INVALID", f"{PRICE}: the base's shop.py {told}ran without it, *")
    shared.expect(10, f"{PRICE} FAIL +200.0 % *")


def test_what_somebody_forgot_to_ignore_proves_nothing(shop: Repository) -> None:
    keep_seconds(shop, is_written=False, ignored="")
    (shop.path / "cache").mkdir()
    (shop.path / "cache/seconds").write_text("0.001")

    gated = shop.gate("--perf-base=HEAD~1")

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: the head arm loaded cache/seconds, in cache, which git does not track, *, or "
        "add it to git where it belongs to the change; *",
    )


def test_what_the_session_itself_has_kept_is_made_by_each_arm(shop: Repository) -> None:
    keep_seconds(shop, is_written=True)

    gated = shop.gate()

    gated.expect(10, f"{PRICE} FAIL +200.0 % *")


GENERATOR = """
    from pathlib import Path

    KERNEL = Path(__file__).with_name("kernel.py")
    if not KERNEL.exists():
        import generator
        KERNEL.write_text(generator.SOURCE)
    from kernel import price
"""


def test_a_module_that_head_alone_had_generated_before_proves_nothing(shop: Repository) -> None:
    (shop.path / ".gitignore").write_text("kernel.py\n")
    source = "SOURCE = 'def price(clock): clock.work({})'\n"
    shop.write(shop=GENERATOR, generator=source.format(0.001))
    shop.commit()
    shop.write(generator=source.format(0.003))
    shop.write(kernel="def price(clock): clock.work(0.001)\n")

    gated = shop.gate()

    gated.expect(12, f"{PRICE} INVALID", f"{PRICE}: the head arm loaded kernel.py, which *")


GENERATED = """
    from pathlib import Path
    from pricing import _version

    SECONDS = float((Path(__file__).parent / "data/seconds.txt").read_text())

    def price(clock):
        clock.work(SECONDS)
"""


def test_files_that_git_ignores_can_be_shared(shop: Repository) -> None:
    shop.write(shop=GENERATED, pricing___version="VERSION = 1\n")
    (shop.path / "pricing/__init__.py").touch()
    (shop.path / "data").mkdir()
    (shop.path / "data/seconds.txt").write_text("0.001")
    (shop.path / ".gitignore").write_text("data\npricing/_version.py\n")
    shop.commit()
    shop.write(shop=GENERATED.replace("work(SECONDS)", "work(SECONDS * 1.001)"))

    without = shop.gate("-o", "perf_share=pricing/_version.py")
    gated = shop.gate("-o", "perf_share=pricing/_version.py data")

    without.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: the head arm loaded data/seconds.txt, in data, which git does not track, so the "
        "base's tree began without it; *perf_share*",
    )
    gated.expect(0, "shared: pricing/_version.py, data *", f"{PRICE} PASS *")


def test_a_package_of_a_namespace_that_is_called_as_benchmarks_are_is_code(
    shop: Repository,
) -> None:
    shop.write(
        acme__perf__engine=SHOP,
        acme__app="from acme.perf import engine\n",
        acme__perf__test_engine=f"{CLOCK}{ONE_CELL}".replace("import shop", "")
        .replace("from work_clock import CLOCK", "from acme.perf import engine")
        .replace("shop.price", "engine.price"),
    )
    shop.commit()
    shop.write(acme__perf__engine=SLOW_SHOP)

    gated = shop.pytest("acme", "--benchmark-compare")

    gated.expect(10, "acme/perf/test_engine.py::test_price FAIL +200.0 % *")


IN_A_CHILD = """
    import functools, subprocess, sys

    # It works for long enough to be seen.
    CODE = "import shop_prices; sum(range(50_000_000)); print(shop_prices.SECONDS)"

    @functools.cache
    def seconds():
        return float(subprocess.run(COMMAND, stdout=-1, check=True).stdout)

    def price(clock):
        clock.work(seconds())
"""
ISOLATED = '[sys.executable, "-I", "-c", CODE]'
BY_A_SCRIPT = """["sh", "-c", f"PYTHONPATH=/tools exec {sys.executable} -c '{CODE}'"]"""


@pytest.mark.parametrize(
    ("command", "is_recorded"), [(ISOLATED, True), (ISOLATED, False), (BY_A_SCRIPT, True)]
)
def test_a_child_that_cannot_say_whose_code_it_ran_proves_nothing(
    shop: Repository, python: Path, command: str, is_recorded: bool
) -> None:
    (site_packages,) = python.parent.parent.glob("lib/python*/site-packages")
    if is_recorded:
        (site_packages / "shop-1.dist-info").mkdir()
        (site_packages / "shop-1.dist-info/METADATA").write_text("Name: shop\nVersion: 1\n")
    (site_packages / "shop.pth").write_text(f"{shop.path}\n")
    (shop.path / "pyproject.toml").write_text('[project]\nname = "shop"\nversion = "1"\n')
    shop.write(shop=IN_A_CHILD.replace("COMMAND", command), shop_prices="SECONDS = 0.001\n")
    shop.commit()
    shop.write(shop_prices="SECONDS = 0.003\n")

    gated = Repository(shop.path, python=str(python)).gate()

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: the base arm started '{python} *-c *', which cannot say what it loads, and "
        f"{'shop' if is_recorded else 'shop.pth'} is installed where it runs; *",
    )


def test_a_changed_dependency_that_the_base_loads_proves_nothing(shop: Repository) -> None:
    lists = shop.path / "benchmarks" / "requirements.txt", shop.path / "requirements-lint.txt"
    for file in lists:
        file.write_text("pytest\n")
    shop.commit()
    lists[0].write_text("pytest\npytest_benchmark>=5\n")
    lists[1].write_text("pytest\nno-such-linter\n")

    gated = shop.gate()

    gated.expect(
        0,
        "requirements-lint.txt: declares other packages; both arms run with those that are "
        "installed",
        f"{PRICE} PASS *",
    )

    shop.commit()
    lists[0].write_text("pytest\npytest-benchmark>=4\n")

    gated = shop.gate()

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: benchmarks/requirements.txt changes pytest-benchmark, which the base loads as "
        "it is installed for head; *--perf-base-python*",
    )


def test_changed_entry_points_are_those_of_head_in_both_arms(shop: Repository) -> None:
    project = shop.path / "pyproject.toml"
    project.write_text(project.read_text() if project.exists() else "[project]\nname = 'shop'\n")
    told = project.read_text()
    project.write_text(f'{told}\n[project.entry-points.pricing]\nprice = "shop:fast"\n')
    shop.commit()
    project.write_text(f'{told}\n[project.entry-points.pricing]\nprice = "shop:slow"\n')

    gated = shop.gate()

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: pyproject.toml changes entry points, which the base loads as it is installed "
        "for head; *--perf-base-python*",
    )


def test_what_is_new_in_head_is_its_own(shop: Repository) -> None:
    shop.write(shop="from pricing import price\n", pricing=SHOP)
    reads = "    import pathlib; SECONDS = pathlib.Path(__file__).with_name('s.yaml').read_text()\n"
    shop.write(benchmarks__work_clock=f"{CLOCK}{reads}")
    (shop.path / "benchmarks" / "s.yaml").write_text("0.001")
    shop.git("add", "benchmarks/s.yaml")

    gated = shop.gate()

    files = "benchmarks/s.yaml, benchmarks/work_clock.py"
    gated.expect(
        0,
        f"changed benchmark files; head's run on both sides: {files}",
        f"{PRICE} PASS *",
        f"{PRICE}: what this cell runs is head's on both sides: {files}",
    )
