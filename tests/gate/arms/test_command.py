"""The user's call of pytest, as the arms repeat it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfsuite.gate.arms.command import (
    Command,
    interpreter_options,
    less_ours,
    options_of_cells,
)


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """A checkout and its counterpart; a virtual environment is in the checkout alone."""
    head, base = tmp_path.resolve() / "head", tmp_path.resolve() / "base"
    for tree in (head, base):
        (tree / "bench").mkdir(parents=True)
    (head / "venv").mkdir()
    return head, base


def test_absolute_paths_lead_to_the_other_tree(trees: tuple[Path, Path]) -> None:
    head, base = trees
    command = Command(
        folder=head / "bench",
        arguments=(
            *(f"{head}/bench/test_a.py::test_b[{head}]", "-k", "a", f"--data={head}/data"),
            *(f"--both={head}:/usr", f"{head}-other/a.py", f"/mnt{head}", "../bench"),
        ),
        environment={},
    )

    moved = command.moved(head, base)

    assert moved.folder == base / "bench"
    assert moved.arguments == (
        *(f"{base}/bench/test_a.py::test_b[{head}]", "-k", "a", f"--data={base}/data"),
        *(f"--both={base}:/usr", f"{head}-other/a.py", f"/mnt{head}", "../bench"),
    )


def test_variables_lead_to_what_the_other_tree_has(trees: tuple[Path, Path]) -> None:
    head, base = trees
    environment = {
        "PYTHONPATH": os.pathsep.join([f"{head}/bench", "/usr/lib"]),
        "VIRTUAL_ENV": f"{head}/venv",
        "HOME": str(head),
        "PWD": str(head),
        "LEVEL": "3",
    }

    moved = Command(folder=head, environment=environment).moved(head, base)

    assert moved.environment == environment | {
        "PYTHONPATH": os.pathsep.join([f"{base}/bench", "/usr/lib"]),
        "PWD": str(base),
    }


def test_a_variable_that_is_longer_than_any_name_of_a_file_is_handed_on(
    trees: tuple[Path, Path],
) -> None:
    head, base = trees
    environment = {"CI_COMMIT_MESSAGE": "a" * 300, "MESSAGE": f"{head}/{'a' * 300}"}

    moved = Command(folder=head, environment=environment).moved(head, base)

    assert moved.environment == environment | {"PWD": str(base)}


def test_a_path_through_a_link_leads_to_the_other_tree(
    trees: tuple[Path, Path], tmp_path: Path
) -> None:
    head, base = trees
    link = tmp_path / "link"
    link.symlink_to(head)
    command = Command(
        folder=link / "bench",
        arguments=(f"{link}/bench",),
        environment={"PWD": f"{link}/bench"},
    )

    moved = command.moved(head, base)

    assert (moved.folder, moved.arguments) == (base / "bench", (f"{base}/bench",))


def test_further_options_stand_before_what_is_no_option() -> None:
    command = Command(folder=Path("/"), arguments=("-c", "a.ini", "--", "-odd.py"))

    assert command.followed_by("-c", "b.ini").arguments == (
        *("-c", "a.ini", "-c", "b.ini", "--", "-odd.py"),
    )


@pytest.mark.parametrize("arguments", [("-c", "a.ini"), ("--config-file=a.ini",)])
def test_a_configuration_that_a_tree_lacks_is_left_out(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    command = Command(folder=tmp_path, arguments=(*arguments, "bench"))

    without = command.without_missing_configuration().arguments
    (tmp_path / "a.ini").touch()
    kept = command.without_missing_configuration().arguments

    assert without == ("bench",)
    assert " ".join(kept).replace(" a.ini", "=a.ini") == " ".join((*arguments, "bench")).replace(
        " a.ini", "=a.ini"
    )


def test_a_call_forgets_what_is_for_its_own_session(tmp_path: Path) -> None:
    environment = {"PYTEST_ADDOPTS": "-q --perf-base=v1", "A": "1"}

    command = Command.of_this_process(tmp_path, ["bench", "--perf-shard", "1/2"], environment)

    assert command.arguments == ("bench",)
    assert command.environment == {"PYTEST_ADDOPTS": "-q", "A": "1"}


def test_what_pytest_only_shows_makes_no_other_cell_and_an_option_of_the_suite_does() -> None:
    shown = ["--color=yes", "--cov", "--tb=short", "--junitxml=x", "--durations=0", "--maxfail=2"]
    own = ["--colorspace=rgb", "--covariates=3"]

    found = options_of_cells([*shown, *own], {})

    assert [option for option, _ in found] == own


def test_an_option_may_stand_in_a_variable_and_have_its_value_in_the_next_word() -> None:
    typed = ["a.py", "--perf-seed=7", "-o", "n=2", "-v"]

    found = options_of_cells(typed, {"PYTEST_ADDOPTS": "--big"})

    assert found == [("--big", "a.py"), ("-o", "n=2")]


def test_a_launch_is_not_given_what_is_for_the_calling_session() -> None:
    typed = ["a.py", "--perf-base", "v1", "--perf-device=cpu", "-k", "b", "--", "--perf-x"]

    assert less_ours(typed) == ("a.py", "--perf-device=cpu", "-k", "b", "--", "--perf-x")


def test_a_launch_has_the_interpreters_options_of_the_call() -> None:
    call = ["python", "-X", "dev", "-bWerror", "-IOm", "pytest", "-x"]

    assert interpreter_options(call) == ("-X", "dev", "-b", "-W", "error", "-s", "-P", "-O")
    assert interpreter_options(["python", "bin/pytest", "-x"]) == ()
