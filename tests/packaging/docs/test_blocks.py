"""Every block is run or says why it is not, and every command could be typed as it stands."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from documentation import PAGES, ROOT, Block, calls_in, inline_code, read_blocks

from perfsuite.cli.app import app
from perfsuite.errors import SettingError
from perfsuite.gate.baselines.accepted import read_accepted
from perfsuite.plugin.options import OPTIONS
from perfsuite.plugin.session.choices import resolve

BLOCKS = [block for page in PAGES for block in read_blocks(page)]
SHELLS = ("console", "sh")
# What any mistake on the command line is; newer typers have a click of their own.
TyperError: type[Exception] = typer.BadParameter.__mro__[2]
# They are read by what reads them in use; all others are run, or say why not.
DATA = ("ini", "toml", "yaml")
# What GitHub writes in their place before a shell sees them.
EXPRESSION = re.compile(r"\$\{\{.*?\}\}")


def blocks_of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def steps_of(document: Any) -> Iterator[str]:
    """The shell scripts in a workflow, or a part of one, of GitHub or GitLab."""
    if isinstance(document, list):
        for item in document:
            yield from steps_of(item)
    elif isinstance(document, dict):
        if isinstance(run := document.get("run"), str):
            yield run
        for name in ("script", "after_script"):
            yield from document.get(name, ())
        for value in document.values():
            yield from steps_of(value)


def scripts() -> Iterator[tuple[str, str]]:
    """Everything that a shell is given, and where it stands."""
    for block in blocks_of(*SHELLS):
        yield str(block), block.script()
    for block in blocks_of("yaml"):
        for script in steps_of(yaml.safe_load(block.text)):
            yield str(block), EXPRESSION.sub("1", script)


def inline_commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for code in inline_code(page):
            if re.match(r"(\w+=\S+ )*(perfsuite|pytest|python|make) ", code):
                yield str(page.relative_to(ROOT)), code


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_run_or_says_why_it_is_not(block: Block) -> None:
    is_file = block.title is not None
    is_data = block.language in DATA

    assert block.language in ("python", "text", *SHELLS, *DATA), f"{block}: {block.language!r}"
    assert block.is_run or block.why_not_run or is_file or is_data, f"{block}: neither run nor why"
    assert not (block.is_run and block.language == "text")


@pytest.mark.parametrize("block", blocks_of("python"), ids=str)
def test_python_compiles(block: Block) -> None:
    assert ast.parse(block.text).body


def test_shells_can_read_every_script() -> None:
    for place, script in scripts():
        ended = subprocess.run(
            ["bash", "-n"], input=script, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, f"{place}: {ended.stderr}"


@pytest.mark.parametrize("block", blocks_of(*DATA), ids=str)
def test_data_are_read_by_what_reads_them(block: Block, tmp_path: Path) -> None:
    if block.language == "yaml":
        assert yaml.safe_load(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)
        path = tmp_path / "accepted.toml"
        path.write_text(block.text)
        assert read_accepted(path, date.today()).entries
    else:
        parser = configparser.ConfigParser()
        parser.read_string(block.text)
        known = {"perf_share", "testpaths", "pythonpath", *(option.ini for option in OPTIONS)}
        assert parser.options("pytest")
        assert set(parser.options("pytest")) <= known, block


def parse_verb(words: list[str], *, is_whole: bool) -> list[str]:
    """Parse a call of perfsuite; what it hands to pytest comes back."""
    command: Any = typer.main.get_command(app)
    context, name = None, "perfsuite"
    while hasattr(command, "resolve_command"):
        context = command.make_context(name, list(words), parent=context)
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        name, command, words = command.resolve_command(context, rest)
    try:
        context = command.make_context(name, list(words), parent=context)
    except typer.BadParameter as error:
        if is_whole or type(error).__name__ != "MissingParameter":
            raise
        return []
    return list(context.args) if name == "run" else []


def check(place: str, call: list[str], pytester: pytest.Pytester, *, is_whole: bool) -> None:
    words = call[1:]
    try:
        if call[0] == "perfsuite":
            words = parse_verb(words, is_whole=is_whole)
        if words or call[0] == "pytest":
            resolve(pytester.parseconfig("-p", "no:cacheprovider", *words))
    except (TyperError, pytest.UsageError, SettingError) as error:
        raise AssertionError(f"{place}: {' '.join(call)}") from error


@pytest.mark.parametrize(
    ("scripts_of", "least", "is_whole"), [(scripts, 50, True), (inline_commands, 20, False)]
)
def test_every_command_could_be_typed(
    scripts_of: Callable[[], Iterable[tuple[str, str]]],
    least: int,
    is_whole: bool,
    pytester: pytest.Pytester,
) -> None:
    calls = [
        (place, call)
        for place, script in scripts_of()
        for call in calls_in(script, "perfsuite", "pytest")
    ]

    assert len(calls) > least
    for place, call in calls:
        check(place, call, pytester, is_whole=is_whole)


def test_what_made_a_figure_is_in_the_repository() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for place, code in [*inline_commands(), *scripts()]:
        for call in calls_in(code, "make"):
            assert set(call[1:]) <= targets, f"{place}: {' '.join(call)}"
    for place, code in inline_commands():
        for call in calls_in(code, "python", "pytest"):
            paths = [word.partition("::")[0] for word in call[1:] if re.match(r"\w+/\w", word)]
            for path in paths:
                assert (ROOT / path).exists(), f"{place}: {code}"
            if call[0] == "python" and paths:
                options = [word.partition("=")[0] for word in call if word.startswith("--")]
                text = (ROOT / paths[0]).read_text()
                assert all(option in text for option in options), f"{place}: {code}"
