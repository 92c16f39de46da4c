"""The starter set: what is written, what is left alone, and that it works."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from perfsuite.cli.app import app
from perfsuite.cli.verbs import init
from perfsuite.cli.verbs.init import write_starters
from perfsuite.errors import SettingError, WriteError

WRITTEN = [
    *("benchmarks/test_training_step.py", ".github/workflows/performance.yml"),
    *("pytest.ini", ".gitignore"),
]


class Installed:
    """What pip noted of the perfsuite that is installed: its version, and where it came from."""

    version = "1.4.0"

    def __init__(self, **origin: object) -> None:
        self._origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return json.dumps(self._origin) if self._origin else None


@pytest.fixture(autouse=True)
def released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "distribution", lambda _: Installed())


def test_an_empty_repository_gets_everything(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["init", str(tmp_path), "--json", str(tmp_path / "init.json")])

    assert result.exit_code == 0
    assert result.output.splitlines() == [
        *(f"wrote {path}" for path in WRITTEN),
        "next: pip install 'perfsuite[torch,workloads]==1.4.0'; pytest benchmarks",
        "then: commit; 'pytest benchmarks --benchmark-compare' judges the next change; before one, "
        "or where every cell is new, it ends in 12 or 13: nothing to compare yet",
    ]
    assert all((tmp_path / path).is_file() for path in WRITTEN)
    assert json.loads((tmp_path / "init.json").read_text()) == {
        "schema": 1,
        "written": WRITTEN,
        "kept": [],
    }


def test_what_is_there_stays_and_a_second_time_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / ".gitignore").write_text("*.pyc\n")
    write_starters(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    written, kept = write_starters(tmp_path)

    assert written == []
    assert kept == [*WRITTEN[:2], "pyproject.toml", ".gitignore"]
    assert (tmp_path / "pyproject.toml").read_text() == (
        '[project]\n\n[tool.pytest.ini_options]\nperf_gate = "on"\n'
    )
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert (tmp_path / ".gitignore").read_text() == "*.pyc\nresults/\n__pycache__/\n"
    assert not (tmp_path / "pytest.ini").exists()


CONFIGURATIONS = {
    "pytest.ini": ("", "[pytest]\nperf_gate = on\n"),
    ".pytest.ini": ("# ours\n[pytest]", "# ours\n[pytest]\nperf_gate = on\n"),
    "pyproject.toml": (
        "[tool.pytest.ini_options] # tests\naddopts = '-q'\n[tool.other]\n",
        "[tool.pytest.ini_options] # tests\nperf_gate = \"on\"\naddopts = '-q'\n[tool.other]\n",
    ),
    "tox.ini": (
        "[tox]\n[pytest]\naddopts = -q\n",
        "[tox]\n[pytest]\nperf_gate = on\naddopts = -q\n",
    ),
    "setup.cfg": ("[tool:pytest]\r\na = 1\r\n", "[tool:pytest]\r\nperf_gate = on\na = 1\r\n"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_whatever_configures_pytest_is_told_that_comparing_is_the_gate(
    tmp_path: Path, name: str
) -> None:
    before, after = CONFIGURATIONS[name]
    (tmp_path / name).write_bytes(before.encode())

    written, kept = write_starters(tmp_path)
    again, kept_then = write_starters(tmp_path)

    assert (name in written, name in kept) == (True, False)
    assert (again, kept_then) == ([], [*WRITTEN[:2], name, ".gitignore"])
    assert (tmp_path / name).read_bytes().decode() == after
    asked = (
        "import pytest, sys; sys.exit(pytest.main(['-q', '-p', 'probe', '--collect-only', '.']))"
    )
    (tmp_path / "probe.py").write_text(
        "def pytest_configure(config):\n    assert config.getini('perf_gate') == 'on'\n"
    )
    ended = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, capture_output=True)
    assert b"AssertionError" not in ended.stdout + ended.stderr
    assert ended.returncode in (0, 5), ended.stdout


def test_a_configuration_that_no_line_can_be_added_to_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool]\npytest = {ini_options = {}}\n")

    with pytest.raises(SettingError) as refused:
        write_starters(tmp_path)

    assert str(refused.value).startswith(
        f"{tmp_path / 'pyproject.toml'} cannot be given another line: "
    )
    assert str(refused.value).endswith('; write perf_gate = "on" where it configures pytest')
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / ".github").write_text("a file")

    with pytest.raises(WriteError):
        write_starters(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == [".github"]


def test_a_gate_that_is_switched_off_stays_so_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "tox.ini").write_text("[pytest]\nperf_gate = off\n")
    (tmp_path / ".gitignore").write_text("*.pyc\n")

    first, again = (CliRunner().invoke(app, ["init", str(tmp_path)]).output for _ in range(2))

    assert "kept  tox.ini, which has perf_gate off\n" in first
    assert "'pytest benchmarks --benchmark-compare --perf-gate=on' judges the next change" in again
    assert "added lines to .gitignore\n" in first
    assert "kept  .gitignore, which was there already\n" in again
    assert not (tmp_path / "pytest.ini").exists()
    assert (tmp_path / "tox.ini").read_text() == "[pytest]\nperf_gate = off\n"


def test_an_empty_file_of_pytests_own_is_what_configures_it(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "pytest.ini").write_text("")

    write_starters(tmp_path)

    assert (tmp_path / "pytest.ini").read_text() == "[pytest]\nperf_gate = on\n"
    assert (tmp_path / "pyproject.toml").read_text() == "[tool.pytest.ini_options]\n"


def test_a_file_that_does_not_configure_pytest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tox.ini").write_text("[tox]\n")

    written, _ = write_starters(tmp_path)

    assert "pytest.ini" in written
    assert (tmp_path / "tox.ini").read_text() == "[tox]\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "pythonpath"), [("shop", "."), ("src/shop", "src .")], ids=["root", "src"]
)
def test_a_package_that_is_not_installed_is_found_by_the_starter_configuration(
    tmp_path: Path, package: str, pythonpath: str
) -> None:
    (tmp_path / package).mkdir(parents=True)
    (tmp_path / package / "__init__.py").touch()
    write_starters(tmp_path)
    (tmp_path / "benchmarks" / "test_shop.py").write_text("import shop\ndef test_shop(): pass\n")

    # Not `python -m pytest`, which has the folder it is called in on its path.
    main = "import sys, pytest; sys.path.remove(''); sys.exit(pytest.main())"
    arguments = ["--collect-only", "-q", "benchmarks/test_shop.py"]
    collected = subprocess.run(
        [sys.executable, "-c", main, *arguments], cwd=tmp_path, capture_output=True, text=True
    )

    assert collected.returncode == 0, collected.stdout
    assert f"\npythonpath = {pythonpath}\n" in (tmp_path / "pytest.ini").read_text()


@pytest.mark.parametrize(
    ("before", "after"),
    [("", "results/\n__pycache__/\n"), ("__pycache__/\n", "__pycache__/\nresults/\n")],
)
def test_only_what_git_does_not_ignore_yet_is_added(
    tmp_path: Path, before: str, after: str
) -> None:
    (tmp_path / ".gitignore").write_text(before)

    write_starters(tmp_path)

    assert (tmp_path / ".gitignore").read_text() == after


@pytest.mark.slow
def test_the_starter_benchmark_is_collected_under_the_starter_configuration(tmp_path: Path) -> None:
    write_starters(tmp_path)

    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert collected.returncode == 0, collected.stdout
    assert "benchmarks/test_training_step.py::test_training_step[0-single-fp32-none]" in (
        collected.stdout
    )
    assert "16 tests collected" in collected.stdout


def test_the_workflow_can_only_read_and_every_action_is_pinned_by_hash(tmp_path: Path) -> None:
    write_starters(tmp_path)

    workflow = (tmp_path / ".github/workflows/performance.yml").read_text()

    used = re.findall(r"uses: (\S+)", workflow)
    names = ("checkout", "setup-python", "cache/restore", "cache/save", "upload-artifact")
    assert [action.partition("@")[0] for action in used] == [f"actions/{name}" for name in names]
    assert all(re.fullmatch(r"[^@]+@[0-9a-f]{40}", action) for action in used)
    assert "permissions:\n  contents: read\n" in workflow
    assert "persist-credentials: false" in workflow
    assert "then set -- --editable .; fi\n" in workflow
    assert "pull_request_target" not in workflow
    # An expression is put into a shell's text before the shell reads it: a branch is named freely.
    assert not re.search(r"run: .*\$\{\{", workflow)


WORKFLOWS = (
    *(".github/workflows/performance.yml", ".github/workflows/gate-gpu.yml"),
    ".github/workflows/performance-comment.yml",
)
EVERYTHING = ("--gpus", "2", "--comment")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
EXTRAS = "perfsuite[torch,workloads]"


def installs(folder: Path) -> list[str]:
    """What each workflow gives to pip; each says it once."""
    found = [
        re.findall(r"^          PERFSUITE: (.*)$", (folder / path).read_text(), re.MULTILINE)
        for path in WORKFLOWS
    ]
    assert all(len(lines) == 1 for lines in found)
    return [line for (line,) in found]


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        ({}, f"{EXTRAS}==1.4.0"),
        (
            {
                "url": "https://example.org/perfsuite.git",
                "vcs_info": {"vcs": "git", "commit_id": COMMIT, "requested_revision": "main"},
            },
            f"{EXTRAS} @ git+https://example.org/perfsuite.git@{COMMIT}",
        ),
        (
            {"url": "https://example.org/perfsuite-1.4.0-py3-none-any.whl", "archive_info": {}},
            f"{EXTRAS} @ https://example.org/perfsuite-1.4.0-py3-none-any.whl",
        ),
    ],
    ids=["a release", "a commit", "an archive"],
)
def test_the_workflows_install_what_is_installed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any], requirement: str
) -> None:
    monkeypatch.setattr(init, "distribution", lambda _: Installed(**origin))

    result = CliRunner().invoke(app, ["init", str(tmp_path), *EVERYTHING])

    assert installs(tmp_path) == [f'"{requirement}"'] * 3
    assert "change" not in result.output.replace("the next change", "")


@pytest.mark.parametrize(
    ("origin", "url"),
    [
        ({"dir_info": {"editable": True}}, "file:///home/me/my%20tools/perfsuite"),
        ({"archive_info": {}}, "file:///tmp/perfsuite-1.4.0-py3-none-any.whl"),
        ({"vcs_info": {"vcs": "git", "commit_id": COMMIT}}, "file:///srv/perfsuite"),
    ],
)
def test_a_path_that_no_runner_has_is_to_be_changed_in_the_workflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any], url: str
) -> None:
    monkeypatch.setattr(init, "distribution", lambda _: Installed(url=url, **origin))
    place = f"git+{url}@{COMMIT}" if "vcs_info" in origin else url
    advice = (
        "no runner has this path: use a release (perfsuite[...]==VERSION), or a commit "
        "(perfsuite[...] @ git+https://HOST/REPOSITORY@COMMIT)"
    )

    first = CliRunner().invoke(app, ["init", str(tmp_path), *EVERYTHING])
    second = CliRunner().invoke(app, ["init", str(tmp_path), *EVERYTHING])

    assert installs(tmp_path) == [f'"{EXTRAS} @ {place}" # CHANGE THIS: {advice}'] * 3
    line = installs(tmp_path)[0]
    assert yaml.safe_load(line) == f"{EXTRAS} @ {place}"
    told = [line for line in first.output.splitlines() if line.startswith("change")]
    assert told == [
        f"change {path}: it installs {EXTRAS} @ {place}; {advice}" for path in WORKFLOWS
    ]
    assert not any(line.startswith("change") for line in second.output.splitlines())


def test_a_workflow_for_gpus_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["init", str(tmp_path), "--gpus", "4"])

    path = ".github/workflows/gate-gpu.yml"
    assert result.output.splitlines()[2] == f"wrote {path}"
    assert 'NUM_GPUS: "4"\n' in (tmp_path / path).read_text()
    assert write_starters(tmp_path, num_gpus=8)[1][:3] == [*WRITTEN[:2], path]
    assert 'NUM_GPUS: "4"\n' in (tmp_path / path).read_text()


def test_a_workflow_that_may_write_comments_is_written_where_it_is_asked_for(
    tmp_path: Path,
) -> None:
    result = CliRunner().invoke(app, ["init", str(tmp_path), "--comment"])

    path = ".github/workflows/performance-comment.yml"
    assert result.output.splitlines()[2] == f"wrote {path}"
    assert "pull-requests: write" in (tmp_path / path).read_text()
    assert write_starters(tmp_path, comments=True)[1][:3] == [*WRITTEN[:2], path]


def test_a_workflow_below_the_repositorys_root_is_said_to_run_nowhere(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    folder = tmp_path / "package"
    folder.mkdir()

    below = CliRunner().invoke(app, ["init", str(folder)])
    at_root = CliRunner().invoke(app, ["init", str(tmp_path)])

    told = "move .github/workflows/performance.yml to {}: GitHub reads workflows there alone"
    assert told.format(tmp_path) in below.output.splitlines()
    assert "move " not in at_root.output


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["init", str(tmp_path / "nowhere")])

    assert isinstance(result.exception, SettingError)
    assert str(result.exception) == (
        f"{tmp_path / 'nowhere'} is not a folder; name the root of a repository"
    )


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").write_text("a file")

    result = CliRunner().invoke(app, ["init", str(tmp_path)])

    assert str(result.exception).startswith(
        f"cannot write {tmp_path / 'benchmarks' / 'test_training_step.py'}: "
    )


def test_nothing_is_written_where_the_json_cannot_be(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["init", str(tmp_path), "--json", str(tmp_path)])

    assert isinstance(result.exception, WriteError)
    assert list(tmp_path.iterdir()) == []
