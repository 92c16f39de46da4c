"""Which of head's files are laid over the base's tree, in plain folders without git."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfsuite.errors import SettingError, WriteError
from perfsuite.gate.git import overlay
from perfsuite.gate.git.overlay import (
    Head,
    Overlay,
    copy_file,
    is_mixed,
    lay_configuration,
    lay_over,
    make_folder,
    plan_overlay,
    source_files,
)


def write(folder: Path, *names: str, text: str = "") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.fsencode(text or f"{folder.name}'s {name}"))


def contents(folder: Path) -> dict[str, str]:
    """Every file with whose it is, "head's" or "base's"."""
    return {
        str(path): (folder / path).read_bytes().split()[0].decode() for path in source_files(folder)
    }


@pytest.fixture
def head(tmp_path: Path) -> Head:
    top = tmp_path.resolve() / "head"
    top.mkdir()
    return Head(top=top, root=top, python_files=("test_*.py", "*_test.py"))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "base"
    folder.mkdir()
    return folder


def lay(base: Path, head: Head, *names: str) -> None:
    lay_over(base, head, plan_overlay(head, [head.top / name for name in names]))


# --- rule 1: benchmark folders ---


@pytest.mark.parametrize(
    "folder",
    ["benchmarks", "tests", "perf", "gpu_bench", "my-tests", "app/tests", "src/pkg/tests", "Bench"],
)
def test_a_folder_of_benchmarks_is_laid_over_as_a_whole(
    head: Head, base: Path, folder: str
) -> None:
    write(head.top, f"{folder}/test_a.py", f"{folder}/models.py", f"{folder}/data/x.csv", "code.py")
    write(base, f"{folder}/test_a.py", f"{folder}/models.py", f"{folder}/gone.py", "code.py")

    lay(base, head, folder)

    assert contents(base) == {
        "code.py": "base's",
        f"{folder}/test_a.py": "head's",
        f"{folder}/models.py": "head's",
        f"{folder}/data/x.csv": "head's",
    }


@pytest.mark.parametrize(
    "path", ["tests/perf/test_a.py", "tests/perf", "tests/perf/deep", "tests", "."]
)
def test_the_outermost_benchmark_folder_is_laid_over_whatever_is_named_in_it(
    head: Head, path: str
) -> None:
    write(head.top, "tests/perf/test_a.py", "tests/perf/deep/test_b.py", "tests/models.py")

    overlay = plan_overlay(head, [head.top / path])

    assert overlay.folders == {Path("tests")}


def test_a_file_is_mixed_if_neither_its_name_nor_a_pattern_says_that_it_holds_tests() -> None:
    patterns = ["speed_*.py", "*.py"]

    assert is_mixed(Path("lib/algo.py"), patterns)
    assert not is_mixed(Path("lib/speed_algo.py"), patterns)
    assert not is_mixed(Path("perf/algo.py"), patterns)


@pytest.mark.parametrize("mark", ["pyproject.toml", "setup.py"])
def test_a_folder_with_a_package_of_its_own_is_no_benchmark_folder(head: Head, mark: str) -> None:
    write(head.top, f"bench/{mark}", "bench/test_a.py", "bench/code.py")

    overlay = plan_overlay(head, [head.top / "bench"])

    assert overlay == Overlay(files={Path("bench/test_a.py")}, searched={Path("bench")})


def test_the_projects_own_package_is_no_benchmark_folder(head: Head) -> None:
    write(head.top, "pyproject.toml", text="[project]\nname = 'Bench.Core'\n")
    write(head.top, "bench_core/code.py", "bench_core/checks/test_a.py", "bench_core/tests/b.py")

    assert plan_overlay(head, [head.top / "bench_core"]).folders == set()
    assert plan_overlay(head, [head.top / "bench_core/tests"]).folders == {Path("bench_core/tests")}


@pytest.mark.parametrize("text", ["[project", "project = 1"])
def test_a_pyproject_that_cannot_be_read_names_no_package(head: Head, text: str) -> None:
    write(head.top, "pyproject.toml", text=text)
    write(head.top, "bench/test_a.py")

    assert plan_overlay(head, [head.top / "bench"]).folders == {Path("bench")}


def test_a_package_in_src_is_no_benchmark_folder(head: Head) -> None:
    write(head.top, "src/bench/code.py", "src/bench/test_a.py")

    overlay = plan_overlay(head, [head.top / "src"])

    assert overlay == Overlay(files={Path("src/bench/test_a.py")}, searched={Path("src")})


def test_a_package_named_as_benchmarks_are_keeps_its_code(head: Head) -> None:
    write(head.top, "acme/__init__.py", "acme/perf/__init__.py", "acme/perf/engine.py")
    write(head.top, "acme/perf/test_engine.py", "acme/tests/__init__.py", "acme/tests/test_a.py")

    overlay = plan_overlay(head, [head.top / "acme"])

    assert overlay == Overlay(
        folders={Path("acme/tests")},
        files={Path("acme/perf/test_engine.py")},
        searched={Path("acme")},
    )


def test_a_package_whose_name_has_such_a_word_keeps_its_code(head: Head) -> None:
    write(head.top, "ab_test/__init__.py", "ab_test/stats.py", "ab_test/tests/test_stats.py")
    write(head.top, "tests/__init__.py", "tests/shared.py", "tests/test_a.py")

    assert plan_overlay(head, [head.top / "ab_test/tests", head.top / "tests"]) == Overlay(
        folders={Path("ab_test/tests"), Path("tests")}
    )


def test_a_package_with_benchmarks_below_and_code_beside_them_keeps_its_code(head: Head) -> None:
    write(head.top, "setup.py", "perf_lab/__init__.py", "perf_lab/core/engine.py")
    write(head.top, "perf_lab/benchmarks/test_e.py")
    write(head.top, "gpu_bench/__init__.py", "gpu_bench/test_a.py", "gpu_bench/tests/test_b.py")

    overlay = plan_overlay(head, [head.top / "perf_lab/benchmarks", head.top / "gpu_bench"])

    assert overlay == Overlay(folders={Path("perf_lab/benchmarks"), Path("gpu_bench")})


@pytest.mark.parametrize(
    ("folder", "importer", "text"),
    [
        ("acme/perf", "acme/app.py", "from acme.perf.engine import run"),
        ("acme/perf", "acme/app.py", "from .perf import engine"),
        ("acme/perf", "acme/app.py", "from . import perf"),
        ("torch_bench", "tests/test_a.py", "import torch_bench.engine"),
        ("python/test_utils", "tests/test_a.py", "from test_utils import engine"),
        ("benchmarks", "app.py", "import benchmarks.engine"),
    ],
)
def test_a_folder_that_code_imports_is_code(
    head: Head, folder: str, importer: str, text: str
) -> None:
    write(head.top, f"{folder}/engine.py", f"{folder}/test_engine.py")
    write(head.top, importer, text=text)

    assert plan_overlay(head, [head.top / folder]).folders == set()


@pytest.mark.parametrize(
    ("folder", "importer", "text"),
    [
        ("benchmarks", "tests/test_a.py", "from benchmarks.engine import run"),
        ("benchmarks", "tests/lib/common.py", "import benchmarks.engine"),
        ("gpu_bench", "gpu_bench/test_b.py", "from gpu_bench import engine"),
        ("perf", "app.py", "from torch import perf\nfrom perfect import engine"),
        ("app/tests", "app/code.py", "from . import engine  # not of tests"),
        ("tests", "broken.py", "import tests ("),
        ("tests", "generated.py", "tests = " + "+".join(["1"] * 20_000)),
    ],
)
def test_a_folder_that_tests_alone_import_is_laid_over_as_a_whole(
    head: Head, folder: str, importer: str, text: str
) -> None:
    write(head.top, f"{folder}/engine.py", f"{folder}/test_engine.py")
    write(head.top, importer, text=text)

    assert plan_overlay(head, [head.top / folder]).folders == {Path(folder)}


def test_the_root_is_no_benchmark_folder_whatever_its_name(head: Head) -> None:
    write(head.top, "perf/code.py", "perf/test_a.py")
    inner = Head(top=head.top, root=head.top / "perf", python_files=head.python_files)

    overlay = plan_overlay(inner, [head.top / "perf"])

    assert overlay == Overlay(files={Path("perf/test_a.py")}, searched={Path("perf")})


# --- rules 2 and 3: other folders, and files ---


@pytest.mark.parametrize("path", [".", "src", "src/pkg"])
def test_of_a_folder_with_code_only_tests_and_conftests_are_laid_over(
    head: Head, base: Path, path: str
) -> None:
    write(head.top, "src/pkg/code.py", "src/pkg/test_a.py", "src/pkg/conftest.py")
    write(base, "src/pkg/code.py", "src/pkg/test_a.py", "src/pkg/old_test.py", "src/pkg/old.py")

    lay(base, head, path)

    assert contents(base) == {
        "src/pkg/code.py": "base's",
        "src/pkg/old.py": "base's",
        "src/pkg/test_a.py": "head's",
        "src/pkg/conftest.py": "head's",
    }


def test_code_that_is_named_as_a_test_is_stays_the_bases(head: Head, base: Path) -> None:
    """Other code imports it; tests, and what runs benchmarks, may import one another."""
    write(head.top, "src/ttt/model.py", text="from ttt.test_time import adapt")
    write(head.top, "src/ttt/test_a.py", "run_benchmarks.py", text="import bench_a, ttt.test_help")
    write(head.top, "src/ttt/test_time.py", "src/ttt/test_help.py", "test_a.py")
    write(base, "src/ttt/test_time.py", "src/ttt/test_help.py", "src/ttt/test_old.py")

    lay(base, head, ".")

    assert contents(base) == {
        "src/ttt/test_time.py": "base's",
        "src/ttt/test_help.py": "head's",
        "src/ttt/test_a.py": "import",
        "test_a.py": "head's",
    }


def test_the_root_brings_its_benchmark_folders_as_wholes(head: Head, base: Path) -> None:
    write(head.top, "code.py", "benchmarks/test_a.py", "benchmarks/models.py", "docs/text.md")
    write(base, "code.py", "benchmarks/test_a.py", "benchmarks/models.py", "docs/text.md")

    lay(base, head, ".")

    assert contents(base) == {
        "code.py": "base's",
        "docs/text.md": "base's",
        "benchmarks/test_a.py": "head's",
        "benchmarks/models.py": "head's",
    }


def test_a_file_is_laid_over_alone_whatever_its_name(head: Head, base: Path) -> None:
    write(head.top, "app/speed.py", "app/code.py")
    write(base, "app/speed.py", "app/code.py", "app/test_other.py")

    lay(base, head, "app/speed.py")

    assert contents(base) == {
        "app/speed.py": "head's",
        "app/code.py": "base's",
        "app/test_other.py": "base's",
    }


def test_test_files_are_those_of_pytests_patterns(head: Head) -> None:
    write(head.top, "a/bench_x.py", "a/speed/check.py", "a/test_a.py", "a/check.py")
    custom = Head(top=head.top, root=head.top, python_files=("bench_*.py", "speed/*.py"))

    overlay = plan_overlay(custom, [head.top / "a"])

    assert overlay.files == {Path("a/bench_x.py"), Path("a/speed/check.py")}


def test_where_every_module_is_a_test_file_to_pytest_code_stays_the_bases(
    head: Head, base: Path
) -> None:
    write(head.top, "pkg/engine.py", "pkg/bench_a.py", "pkg/conftest.py", "tests/bench_e.py")
    write(base, "pkg/engine.py", "pkg/bench_a.py", "pkg/old.py", "pkg/bench_old.py")
    custom = Head(top=head.top, root=head.top, python_files=("*.py",))

    lay(base, custom, ".")

    assert contents(base) == {
        "pkg/engine.py": "base's",
        "pkg/old.py": "base's",
        "pkg/bench_a.py": "head's",
        "pkg/conftest.py": "head's",
        "tests/bench_e.py": "head's",
    }


# --- rule 4: conftests above ---


def test_the_conftests_above_are_heads_and_the_bases_own_go(head: Head, base: Path) -> None:
    write(head.top, "conftest.py", "a/benchmarks/test_a.py", "b/conftest.py")
    write(base, "conftest.py", "a/conftest.py", "b/conftest.py")

    lay(base, head, "a/benchmarks")

    assert contents(base) == {
        "conftest.py": "head's",
        "a/benchmarks/test_a.py": "head's",
        "b/conftest.py": "base's",
    }


# --- paths that cannot be laid over ---


def test_a_path_outside_is_refused(head: Head, base: Path) -> None:
    with pytest.raises(SettingError) as refused:
        plan_overlay(head, [base])

    assert str(refused.value) == (
        f"{base} is outside of {head.top}, so the base's tree has no place for it; "
        "name files or folders inside"
    )


def test_a_link_that_leads_outside_is_refused(head: Head, base: Path) -> None:
    (head.top / "benchmarks").symlink_to(base)

    with pytest.raises(SettingError, match=r"benchmarks is outside of"):
        plan_overlay(head, [head.top / "benchmarks"])


def test_a_path_that_does_not_exist_is_refused(head: Head) -> None:
    with pytest.raises(SettingError) as refused:
        plan_overlay(head, [head.top / "bench"])

    assert str(refused.value) == (
        f"{head.top}/bench does not exist; name files or folders with benchmarks"
    )


def test_a_folder_without_files_is_refused(head: Head) -> None:
    (head.top / "benchmarks").mkdir()

    with pytest.raises(SettingError) as refused:
        plan_overlay(head, [head.top / "benchmarks"])

    assert str(refused.value) == (
        f"{head.top}/benchmarks holds no file that git tracks or would add, so there is nothing to "
        "lay over the base; is it ignored?"
    )


# --- links, unusual names, files in the way ---


def test_a_named_link_is_laid_over_with_what_it_leads_to(head: Head, base: Path) -> None:
    write(head.top, "tools/benchmarks/test_a.py")
    (head.top / "speed").symlink_to("tools/benchmarks")

    lay(base, head, "speed")

    assert (base / "speed").is_symlink()
    assert (base / "speed" / "test_a.py").read_text() == "head's tools/benchmarks/test_a.py"


def test_links_in_a_laid_folder_stay_links(head: Head, base: Path) -> None:
    write(head.top, "code.py", "tests/test_a.py")
    write(base, "code.py")
    (head.top / "tests" / "code.py").symlink_to("../code.py")
    (head.top / "tests" / "nowhere").symlink_to("gone")

    lay(base, head, "tests")

    assert (base / "tests" / "code.py").read_text() == "base's code.py"
    assert (base / "tests" / "nowhere").readlink() == Path("gone")


@pytest.mark.parametrize(
    ("linked", "named", "laid"),
    [
        ("tests", "tests", "tests/test_a.py"),
        ("app", "app", "app/test_b.py"),
        ("app", "app/test_b.py", "app/test_b.py"),
        ("lib", "lib/tests", "lib/tests/test_c.py"),
        ("lib", "lib", "lib/tests/test_c.py"),
        ("lib/tests", "lib", "lib/tests/test_c.py"),
    ],
)
def test_nothing_is_written_or_removed_through_a_link_of_the_base(
    head: Head, base: Path, tmp_path: Path, linked: str, named: str, laid: str
) -> None:
    outside = tmp_path / "outside"
    write(outside, "tests/test_a.py", "test_a.py", "conftest.py", "kept.py")
    before = contents(outside)
    write(head.top, "tests/test_a.py", "app/test_b.py", "app/code.py", "lib/tests/test_c.py")
    (base / linked).parent.mkdir(exist_ok=True)
    (base / linked).symlink_to(outside)

    lay(base, head, named)

    assert contents(outside) == before
    assert (base / laid).read_text() == f"head's {laid}"
    assert not (base / linked).is_symlink()


def test_a_file_of_the_base_makes_way_for_a_folder_and_the_reverse(head: Head, base: Path) -> None:
    write(head.top, "tests/a/test_a.py", "tests/b", "app/test_c.py")
    write(base, "tests/a", "tests/b/test_b.py", "app")

    lay(base, head, "tests", "app/test_c.py")

    assert set(contents(base)) == {"tests/a/test_a.py", "tests/b", "app/test_c.py"}


def test_names_with_spaces_and_without_an_encoding_are_laid_over(head: Head, base: Path) -> None:
    write(head.top, "tests/a b.py", "tests/latin-\udce9.py", "tests/-x.py")

    lay(base, head, "tests")

    assert set(contents(base)) == {"tests/a b.py", "tests/latin-\udce9.py", "tests/-x.py"}


def test_a_copied_file_keeps_its_mode_and_time(head: Head, base: Path) -> None:
    write(head.top, "run.sh")
    (head.top / "run.sh").chmod(0o555)
    os.utime(head.top / "run.sh", (1, 1))

    copy_file(head.top, base, Path("run.sh"))
    copy_file(head.top, base, Path("run.sh"))

    assert (base / "run.sh").stat().st_mode & 0o777 == 0o555
    assert (base / "run.sh").stat().st_mtime == 1


def test_making_the_top_itself_changes_nothing(base: Path) -> None:
    make_folder(base, Path())

    assert list(base.iterdir()) == []


# --- what a source tree is ---


def test_environments_caches_and_special_files_are_no_sources(base: Path) -> None:
    write(base, "code.py", ".git/config", "__pycache__/a.pyc", "venv/pyvenv.cfg", "venv/lib/a.py")
    write(base, ".pytest_cache/CACHEDIR.TAG", "env/conda-meta/a", "ext.so", "left/out.py")
    os.mkfifo(base / "pipe")
    (base / "loop").symlink_to(".")
    write(base, "part/.git", text="gitdir: elsewhere")  # of a linked worktree or a submodule

    files = source_files(base, leave_out=base / "left")

    assert sorted(map(str, files)) == ["code.py", "ext.so", "loop"]


def test_environments_and_caches_in_heads_folders_are_not_laid_over(head: Head) -> None:
    write(head.top, "test_a.py", "v/pyvenv.cfg", "v/lib/numpy/tests/test_x.py")

    assert plan_overlay(head, [head.top]).files == {Path("test_a.py")}


# --- pytest's configuration ---


@pytest.mark.parametrize(
    ("name", "laid"),
    [
        ("pytest.ini", "pytest.ini"),
        (".pytest.toml", ".pytest.toml"),
        ("pyproject.toml", ".perfsuite-head.toml"),
        ("setup.cfg", ".perfsuite-head.cfg"),
        ("tox.ini", ".perfsuite-head.ini"),
        ("ci/own.ini", "ci/.perfsuite-head.ini"),
    ],
)
def test_heads_configuration_is_laid_beside_what_describes_the_bases_package(
    head: Head, base: Path, name: str, laid: str
) -> None:
    write(head.top, name)
    write(base, name)

    read = lay_configuration(base, head, head.top / name)

    assert read == base / laid
    assert read.read_text() == f"head's {name}"
    assert (base / name).read_text() == f"{'head' if name == laid else 'base'}'s {name}"


def test_where_head_has_no_configuration_an_empty_one_hides_the_bases(
    head: Head, base: Path
) -> None:
    read = lay_configuration(base, head, None)

    assert read == base / ".perfsuite-head.ini"
    assert read.read_text() == "[pytest]\n"


def test_a_configuration_from_elsewhere_is_read_where_it_is(head: Head, base: Path) -> None:
    elsewhere = base.parent / "elsewhere.ini"

    assert lay_configuration(base, head, elsewhere) == elsewhere


@pytest.mark.parametrize("name", ["packages/a/pytest.ini", "pytest.ini"])
def test_a_configuration_counts_from_where_it_lies_and_not_from_where_a_link_leads(
    head: Head, base: Path, name: str
) -> None:
    write(head.top, "pytest.ini", "packages/a/test_a.py")
    write(base, "pytest.ini", "packages/a/test_a.py")
    for top in (head.top, base):
        (top / "packages/a/pytest.ini").symlink_to("../../pytest.ini")
    inner = Head(top=head.top, root=head.top / "packages/a", python_files=head.python_files)

    read = lay_configuration(base / "packages/a", inner, head.top / name)

    assert read == base / name
    assert read.read_text() == "head's pytest.ini"
    assert not read.is_symlink()
    assert (head.top / "pytest.ini").read_text() == "head's pytest.ini"


def test_a_configuration_that_cannot_be_written_is_told(head: Head, base: Path) -> None:
    write(base, "file")

    with pytest.raises(WriteError) as failure:
        lay_configuration(base / "file" / "tree", head, None)

    assert str(failure.value) == (
        f"cannot make the base's tree in {base}/file/tree: Not a directory ({base}/file/tree)"
    )


def test_the_page_names_the_words_of_a_benchmark_folder() -> None:
    page = Path(__file__).parents[3] / "docs/reference/benchmark-files.md"

    assert all(f"`{word}`" in page.read_text() for word in overlay._BENCHMARK_WORDS)
