"""An installed plugin changes nothing unasked. Through inner sessions with and without it."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest

# A suite that has never heard of perfsuite, with another plugin's marker of the same name.
FOREIGN = """
    import pytest

    @pytest.mark.perf(repeat=17)
    def test_sum(benchmark):
        assert benchmark.pedantic(sum, args=([1, 2],), rounds=3) == 3

    @pytest.mark.perf(latency_ms=5.0, matrix="full", limit="slow")
    @pytest.mark.perf("fast")
    def test_other():
        pass
"""
# A session of ours that starts no ranks.
USES_A_FIXTURE = """
    def test_cell(loader_benchmark):
        pass
"""
ADVICE = (
    "perfsuite: --benchmark-compare is pytest-benchmark's own here, one run beside another; "
    "perf_gate = on in the ini file, or --perf-gate=on, makes it a gate"
)
QUIET_TABLE = ("--benchmark-columns=rounds", "--benchmark-sort=name")
INI = "[pytest]\nmarkers = perf: of another plugin\n"
# Compared in processes of their own: a whole session of each kind, and those where it matters what
# is imported, what is warned of outside of tests, or what workers of xdist do.
FRESH = {
    *((), ("-W", "error"), ("-n2", "-p", "xdist")),
    *(("--benchmark-compare",), ("--benchmark-compare", "-n2", "-p", "xdist")),
    ("--benchmark-compare=0009",),
    ("--benchmark-compare", "--benchmark-storage=file://./elsewhere"),
}


@pytest.fixture(autouse=True)
def _few_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plugin that is installed beside, which may print and import anything."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(
    pytester: pytest.Pytester, *arguments: str, with_perfsuite: bool = True, fresh: bool = False
) -> pytest.RunResult:
    """A session, in this process unless a fresh one is asked for, which takes half a second."""
    plugins = ["-p", "benchmark", *(["-p", "perfsuite"] if with_perfsuite else [])]
    start = pytester.runpytest_subprocess if fresh else pytester.runpytest_inprocess
    return start(*plugins, "-p", "no:cacheprovider", *arguments)


def said(lines: list[str]) -> list[str]:
    """What a session says, less the durations, the unit of a table, folders and plugins."""
    kept = [line for line in lines if line and not line.startswith(("plugins: ", "rootdir: "))]
    varying = r"time in \w+|[-=]{3,}|\d[\d.]*|\bwith(out)?\b|\s+"
    return sorted(re.sub(varying, " ", line).strip() for line in kept)


def files_in(folder: Path) -> list[str]:
    found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(re.sub("[0-9a-f]{40}.*", "", name) for name in found if "__pycache__" not in name)


def run_both(
    pytester: pytest.Pytester, arguments: tuple[str, ...], *, stored: bool = False
) -> list[pytest.RunResult]:
    """The same session with the plugin and without it, where both leave the same files."""
    results, files, fresh = [], [], arguments in FRESH
    for with_perfsuite in (True, False):
        folder = pytester.mkdir("with" if with_perfsuite else "without")
        (folder / "test_inner.py").write_text(textwrap.dedent(FOREIGN))
        (folder / "pytest.ini").write_text(INI)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            if stored:
                assert run(pytester, "--benchmark-save=old", with_perfsuite=False).ret == 0
            options = {"with_perfsuite": with_perfsuite, "fresh": fresh}
            results.append(run(pytester, *arguments, *QUIET_TABLE, **options))
        files.append([name for name in files_in(folder) if not name.startswith("runpytest")])
        for path in folder.glob("**/*.json"):
            assert "perfsuite" not in json.loads(path.read_text())
    assert files[0] == files[1]
    return results


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("-W", "error"),
        ("--benchmark-save=new",),
        ("--benchmark-save=new", "--benchmark-storage=file://./elsewhere"),
        ("--benchmark-json=own.json",),
        ("-n2", "-p", "xdist"),
    ],
    ids=" ".join,
)
def test_a_session_that_is_not_ours_is_as_without_the_plugin(
    pytester: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    ours, plain = run_both(pytester, arguments)

    assert ours.ret == plain.ret == 0
    assert said(ours.outlines) == said(plain.outlines)
    assert said(ours.errlines) == said(plain.errlines)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--benchmark-compare",),
        ("--benchmark-compare=0001", "-q"),
        ("--benchmark-compare=0009",),
        ("--benchmark-compare", "--benchmark-storage=file://./elsewhere"),
        ("--benchmark-compare", "--benchmark-disable"),
        ("--benchmark-compare", "--collect-only"),
        ("--benchmark-compare", "-n2", "-p", "xdist"),
        ("test_inner.py", "--benchmark-compare", "--benchmark-compare-fail=min:1000000%"),
    ],
    ids=" ".join,
)
def test_comparing_in_a_suite_that_is_not_ours_is_pytest_benchmarks_own_and_one_line_of_advice(
    pytester: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    ours, plain = run_both(pytester, arguments, stored=True)

    assert ours.ret == plain.ret
    assert [line for line in ours.outlines if "perfsuite: " in line] == [ADVICE]
    assert said([line for line in ours.outlines if line != ADVICE]) == said(plain.outlines)
    assert said(ours.errlines) == said(plain.errlines)


def test_what_a_conftest_chooses_for_pytest_benchmark_is_what_it_does(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_inner=FOREIGN)
    pytester.makeini(INI)
    pytester.makeconftest("""
        def pytest_configure(config):
            config.option.benchmark_autosave = True
            config.option.benchmark_compare = True
            config.option.benchmark_storage = "file://./chosen"
    """)

    first, second = run(pytester, fresh=True), run(pytester, fresh=True)

    assert [first.ret, second.ret] == [0, 0]
    assert len(files_in(pytester.path / "chosen")) == 2
    assert not (pytester.path / ".benchmarks").exists()
    assert "Comparing against benchmarks from: " in second.stderr.str()


def test_the_help_of_pytest_lists_our_options(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--help")

    assert result.ret == 0
    result.stdout.re_match_lines([r"\s+--perf-limit=RATIO", r".*(default: )?5%\)"])


@pytest.mark.parametrize(
    ("ini", "arguments"),
    [
        ("perf_gate = on", ()),
        ("perf_seed = 3", ()),
        ("addopts = --perf-rounds=3", ()),
        ("", ("--perf-gate=on",)),
        ("", ("--perf-base-dir=.",)),
    ],
)
def test_a_session_is_ours_where_one_of_our_settings_is_given(
    pytester: pytest.Pytester, ini: str, arguments: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_inner=FOREIGN)
    pytester.makeini(f"[pytest]\n{ini}\n")

    result = run(pytester, "--benchmark-compare", "--benchmark-disable", *arguments)

    assert result.ret == 4
    assert "ERROR: --benchmark-compare measures nothing beside --benchmark-disable; leave it " in (
        result.stderr.str()
    )
    result.stdout.no_fnmatch_line("*passed*")


def test_a_gate_that_is_switched_off_makes_no_session_ours_and_needs_no_advice(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_inner=FOREIGN)
    pytester.makeini(f"{INI}perf_gate = off\n")

    saved = run(pytester, "--benchmark-save=base")
    compared = run(pytester, "--benchmark-compare")

    assert [saved.ret, compared.ret] == [0, 0]
    assert len(files_in(pytester.path / ".benchmarks")) == 1
    assert not (pytester.path / "baselines").exists()
    assert "0001_base.json" in compared.stderr.str()
    assert "perfsuite: " not in saved.stdout.str() + compared.stdout.str()


@pytest.mark.parametrize("selection", [(), ("-k", "test_sum"), ("--deselect=test_ours.py",)])
def test_a_session_is_ours_where_a_collected_test_uses_a_fixture_of_ours(
    pytester: pytest.Pytester, selection: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_inner=FOREIGN, test_ours=USES_A_FIXTURE)

    refused = run(pytester, "--benchmark-compare", "--benchmark-skip", *selection)
    result = run(pytester, "--benchmark-save=base", *selection)

    assert refused.ret == 4
    refused.stdout.no_fnmatch_line("*passed*")
    assert result.ret == 0
    assert files_in(pytester.path / "baselines")
    assert not (pytester.path / ".benchmarks").exists()


@pytest.mark.parametrize("arguments", [(), ("--collect-only",)])
def test_a_session_of_ours_that_compares_nothing_may_have_workers(
    pytester: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_inner=FOREIGN)

    result = run(pytester, "-p", "xdist", "-n2", "--perf-seed=1", *arguments, fresh=True)

    assert result.ret == 0


def test_workers_of_xdist_find_a_fixture_of_ours_and_the_session_is_refused(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_inner=FOREIGN, test_ours=USES_A_FIXTURE)

    result = run(pytester, "--benchmark-compare", "-p", "xdist", "-n2", fresh=True)

    assert result.ret == 4
    result.stderr.fnmatch_lines(
        ["ERROR: --benchmark-compare measures nothing beside xdist's -n; use -n0, or leave it out"]
    )
    result.stdout.no_fnmatch_line("*passed*")
    assert ADVICE not in result.outlines


def test_workers_of_xdist_refuse_a_wrong_marker_in_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_ours="""
        import pytest

        @pytest.mark.perf(tolerance="9%", limit="2%")
        def test_cell(loader_benchmark):
            pass
        """
    )

    result = run(pytester, "-p", "xdist", "-n2", fresh=True)

    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: *the limit is 2.0 % (perf marker), below the tolerance *"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


OVERRIDE = """
    import pytest

    @pytest.fixture
    def loader_benchmark({argument}):
        return {argument} or print
"""


@pytest.mark.parametrize(("argument", "is_ours"), [("", False), ("loader_benchmark", True)])
def test_a_fixture_that_a_conftest_overrides_is_not_ours_unless_it_is_built_on_ours(
    pytester: pytest.Pytester, argument: str, is_ours: bool
) -> None:
    text = OVERRIDE.format(argument=argument).replace("return  or", "return")
    pytester.makeconftest(text)
    pytester.makepyfile(test_ours=USES_A_FIXTURE, test_inner=FOREIGN)

    result = run(pytester, "--benchmark-save=base")

    assert result.ret == 0
    assert (pytester.path / "baselines").exists() == is_ours
    assert (pytester.path / ".benchmarks").exists() != is_ours


@pytest.mark.parametrize("name", ["train_benchmark", "all_reduce_benchmark"])
def test_a_measuring_fixture_that_a_test_asks_for_while_it_runs_is_one_message(
    pytester: pytest.Pytester, name: str
) -> None:
    file = pytester.makepyfile(f"def test_late(request): request.getfixturevalue({name!r})")

    result = run(pytester)

    assert result.ret == 1
    result.assert_outcomes(failed=1)  # and no warning
    assert "perfsuite/plugin" not in result.stdout.str()
    assert (
        f"SettingError: {file.name}::test_late takes {name!r} from request.getfixturevalue, "
        "which cannot be seen before it runs; name the fixture among its arguments"
    ) in result.outlines


def test_in_a_session_of_ours_a_foreign_marker_is_told_and_not_refused(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_inner=FOREIGN)

    result = run(pytester, "--perf-seed=1")

    result.assert_outcomes(passed=2)
    assert [line for line in result.outlines if "perf markers" in line] == [
        "perfsuite: the perf markers of 2 tests have arguments that are not perfsuite's and were "
        "not read; the first: test_inner.py::test_sum has perf(repeat=17)"
    ]


@pytest.mark.parametrize("argument", ["tolerance='x'", "limit='x'", "floor='x'", "matrix='x'"])
def test_what_a_plain_benchmark_can_use_of_a_marker_is_checked(
    pytester: pytest.Pytester, argument: str
) -> None:
    pytester.makepyfile(test_inner=FOREIGN.replace("repeat=17", f"repeat=17, {argument}"))

    result = run(pytester, "--perf-seed=1")

    assert result.ret == 4
    name = argument.partition("=")[0]
    result.stderr.fnmatch_lines(
        [f"ERROR: test_inner.py::test_sum: {name} is 'x' (perf marker); use *"]
    )


def test_the_marker_of_a_test_that_measures_nothing_is_not_checked(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.perf(limit="of another plugin", matrix="wide")
        def test_else():
            pass
    """)

    run(pytester, "--perf-seed=1").assert_outcomes(passed=1)


HEAVY = (
    *("msgspec", "rich", "jinja2", "filelock", "psutil", "scipy", "cloudpickle", "typer", "fsspec"),
    *("torch", "numpy", "pynvml", "multiprocessing.connection"),
    *("perfsuite.cli", "perfsuite.experiments", "perfsuite.gate", "perfsuite.ranks"),
    *("perfsuite.records", "perfsuite.report", "perfsuite.stats", "perfsuite.system"),
)


@pytest.mark.parametrize("arguments", [(), ("--benchmark-compare",), ("--fixtures",)])
def test_a_session_that_is_not_ours_imports_next_to_nothing(
    pytester: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_inner=FOREIGN)
    pytester.makeconftest(f"""
        import sys

        def pytest_unconfigure():
            assert "perfsuite.plugin.hooks" in sys.modules
            assert not set({HEAVY!r}) & set(sys.modules)
    """)

    result = run(pytester, *arguments, fresh=True)

    assert result.ret == 0, result.stderr.str()
