"""Malformed options, markers, recipes, workloads, verbs, files: one clear line, the right code.

No traceback of ours in any of them. What stored runs are refused for is in test_mutated_files.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bad_inputs import (
    CELLS,
    COMMANDS,
    FILES,
    MARKERS,
    OPTIONS,
    RECIPES,
    REFERENCES,
    USAGE,
    USER_CODE,
    VERBS,
    VERBS_OF_EXCEPTIONS,
    WORKLOADS,
)
from command_line import call_verb

from perfsuite import Recipe, Workload
from perfsuite.errors import PerfsuiteError, RecipeError, SettingError, WorkloadError
from perfsuite.experiments.user_code import plan_function
from perfsuite.plugin.session import markers
from perfsuite.plugin.session.choices import resolve
from perfsuite.plugin.session.markers import check_markers
from perfsuite.records.workload import find_workload

GIVEN = [(name, text) for name, (texts, _) in OPTIONS.items() for text in texts]


def test_two_hundred_bad_inputs_are_tried() -> None:
    tables = (
        *(MARKERS, RECIPES, WORKLOADS, REFERENCES, USER_CODE),
        *(VERBS, VERBS_OF_EXCEPTIONS, USAGE, CELLS),
    )

    assert len(GIVEN) + sum(map(len, (*tables, COMMANDS))) > 380


def message_of(error: pytest.ExceptionInfo[PerfsuiteError]) -> str:
    """The message, which says in one line what is wrong and what to do."""
    message = str(error.value)
    assert "\n" not in message
    assert any(word in message for word in ("use ", "set ", "leave ", "name "))
    return message


# --- options, ini values and markers ---


class GivenConfig:
    """A pytest configuration of which one option, or its ini twin, is given."""

    rootpath = Path("/project")
    inipath = rootpath / "pytest.ini"
    option = SimpleNamespace(override_ini=None)

    def __init__(self, option: str, text: str, source: str) -> None:
        self.invocation_params = SimpleNamespace(args=(f"--perf-{option}={text}",))
        self._option = (f"--perf-{option}", text) if source == "command line" else ("", "")
        self._ini = (f"perf_{option.replace('-', '_')}", text) if source == "ini file" else ("", "")

    def getoption(self, flag: str) -> str | None:
        return self._option[1] if flag == self._option[0] else None

    def getini(self, name: str) -> str | None:
        return self._ini[1] if name == self._ini[0] else None


@pytest.mark.parametrize(("name", "text"), GIVEN)
def test_a_bad_option_is_named_with_its_value_and_what_is_allowed(name: str, text: str) -> None:
    config: Any = GivenConfig(name, text, "command line")

    with pytest.raises(SettingError) as refused:
        resolve(config)

    allowed = OPTIONS[name][1]
    assert message_of(refused) == f"--perf-{name} is {text!r} (command line); use {allowed}"


@pytest.mark.parametrize(("name", "text"), GIVEN)
def test_a_bad_ini_value_is_named_with_its_file(name: str, text: str) -> None:
    config: Any = GivenConfig(name, text, "ini file")

    with pytest.raises(SettingError) as refused:
        resolve(config)

    twin = f"perf_{name.replace('-', '_')}"
    source = "ini file /project/pytest.ini"
    assert message_of(refused) == f"{twin} is {text!r} ({source}); use {OPTIONS[name][1]}"


@pytest.mark.parametrize(
    "given", ["--perf-rounds=0", "--perf-matrix=\x1b[2J", "--perf-tolerance=9%"]
)
def test_a_bad_option_ends_pytest_in_4_with_one_line(pytester: pytest.Pytester, given: str) -> None:
    result = pytester.runpytest_inprocess(given)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (told,) = (line for line in result.errlines if line)
    assert told.startswith("ERROR: --perf-")
    assert told.isprintable()


@pytest.mark.parametrize(("args", "kwargs", "allowed"), MARKERS)
def test_a_bad_marker_names_its_test_and_what_is_allowed(
    args: tuple[Any, ...], kwargs: dict[str, Any], allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers, "is_cell", lambda item: True)  # of others less is read
    marker = SimpleNamespace(args=args, kwargs=kwargs)
    item: Any = SimpleNamespace(
        nodeid="test_a.py::test_a", iter_markers=lambda name: [marker], fixturenames=["benchmark"]
    )

    with pytest.raises(SettingError) as refused:
        check_markers(item)

    message = message_of(refused)
    assert message.startswith("test_a.py::test_a: ")
    assert message.endswith(allowed)


# --- recipes and workloads ---


@pytest.mark.parametrize("fields", RECIPES, ids=lambda fields: None)
def test_a_bad_recipe_names_its_value_and_what_is_allowed(fields: dict[str, Any]) -> None:
    with pytest.raises(RecipeError) as refused:
        Recipe(**fields)

    message = message_of(refused)
    assert any(repr(value) in message for value in fields.values())
    assert message.isprintable()


@pytest.mark.parametrize("changed", WORKLOADS, ids=lambda changed: None)
def test_a_bad_workload_names_its_field(changed: dict[str, Any]) -> None:
    def nothing(*_: object) -> None:
        """What no test calls."""

    fields: dict[str, Any] = {
        "name": "mine",
        **dict.fromkeys(("build_model", "build_dataset", "loss", "build_optimizer"), nothing),
    }

    with pytest.raises(WorkloadError) as refused:
        Workload(**fields | changed)

    ((name, value),) = changed.items()
    message = message_of(refused)
    assert name in message
    assert repr(value) in message


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_bad_reference_is_refused_before_anything_is_imported(reference: Any) -> None:
    loaded = set(sys.modules)

    with pytest.raises(WorkloadError) as refused:
        find_workload(reference)

    assert repr(reference) in message_of(refused)
    assert set(sys.modules) == loaded


@pytest.mark.parametrize(("argument", "function", "fields"), USER_CODE)
def test_bad_user_code_is_refused_by_the_name_of_its_argument(
    argument: str, function: Any, fields: dict[str, Any]
) -> None:
    with pytest.raises(SettingError) as refused:
        plan_function(argument, function, **{"kind": "step", **fields})

    name = [argument, *(name for name in fields if name != "kind")][-1]
    names = {"world_size": "ranks", "num_warmup": "warmup", "num_steps": "steps"}
    is_of_function = argument if function is not dict else names.get(name, name)
    assert message_of(refused).startswith(is_of_function)


def test_a_bad_cell_fails_alone_in_one_line(pytester: pytest.Pytester) -> None:
    commands = [
        (f"command_benchmark({call})", f"SettingError: {message}") for call, message in COMMANDS
    ]
    tests = [
        f"def test_{number}(train_benchmark, command_benchmark):\n    {body}\n"
        for number, (body, _) in enumerate((*CELLS, *commands))
    ]
    pytester.makepyfile("from perfsuite import Recipe\n" + "\n".join(tests))

    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "--perf-numerics=off", "--perf-device=cpu", "-rN"
    )

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=len(tests))
    assert "Traceback" not in str(result.stdout)
    for _, message in (*CELLS, *commands):
        assert any(line.startswith(message) for line in result.outlines), message


# --- verbs and files ---


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files that are none."""
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("arguments", "message"), [*VERBS, *VERBS_OF_EXCEPTIONS])
def test_a_mistake_in_a_verb_is_one_line_and_2(
    arguments: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = call_verb(*arguments)

    told = capsys.readouterr().err
    assert code == 2
    assert told.startswith("perfsuite: ")
    assert message in told
    assert told.removesuffix("\n").isprintable()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("arguments", "named"), USAGE)
def test_what_the_command_line_cannot_be_ends_in_2_with_its_name(
    arguments: tuple[str, ...],
    named: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = call_verb(*arguments)

    told = capsys.readouterr().err
    assert code == 2
    assert named in told
    assert "Traceback" not in told
