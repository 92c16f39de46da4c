"""The reference is whole: what the code offers stands in it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re

import msgspec
import pytest
import typer.main
from documentation import DOCS, PAGES, ROOT, prose_of
from json_schemas import schemas

import perfsuite
from perfsuite.cli.app import app
from perfsuite.errors import ExitCode
from perfsuite.gate.baselines import accepted
from perfsuite.plugin import fixtures
from perfsuite.plugin.options import OPTIONS
from perfsuite.records.cell import CellLine, CellRecord, Counts, Memory, StepPercentiles
from perfsuite.records.parallel import PARALLEL_MODES, PIPELINE_SCHEDULES
from perfsuite.records.recipe import PRECISIONS, Recipe
from perfsuite.records.run_file import RunStamp
from perfsuite.records.verdict import SEVERITY, Verdict
from perfsuite.records.workload import workload_names

MOST_LINES = 200
README_LINES, README_WORDS = 160, 1300


def page(name: str) -> str:
    return (DOCS / "reference" / f"{name}.md").read_text()


def first_cells(text: str) -> set[str]:
    """What stands in backticks in the first column of the tables."""
    columns = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    return {code for column in columns for code in re.findall(r"`([^`]+)`", column)}


def test_no_table_needs_a_backslash_which_the_site_would_show() -> None:
    pages = [path for path in DOCS.rglob("*.md") if re.search(r"^\|.*\\\|", path.read_text(), re.M)]

    assert pages == []


def test_every_option_is_listed_with_its_default() -> None:
    rows = {
        found[1]: found[2]
        for found in re.finditer(r"^\| `(--perf-[\w-]+)[^|]*` \| (.*?) \|", page("options"), re.M)
    }

    assert set(rows) == {option.flag for option in OPTIONS}
    words = {
        "": {"none", "the merge base", "0.4 of the limit", "this one", "the stored runs"},
        "86400": {"a day"},
    }
    for option in OPTIONS:
        assert rows[option.flag] in words.get(option.default, {option.default}), option.name


def test_every_exit_code_is_listed() -> None:
    listed = {
        int(code) for code in re.findall(r"\b\d+\b", page("options").partition("## Exit codes")[2])
    }

    assert {code.value for code in ExitCode} <= listed


def test_every_verb_is_listed_and_used() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    names = {
        f"{name} {inner}".strip()
        for name, command in commands.items()
        for inner in getattr(command, "commands", [""])
    }

    assert names <= first_cells(page("verbs"))
    for name in names:
        assert re.search(rf"^perfsuite {name}\b", page("verbs"), re.MULTILINE), name


def test_fixtures_are_listed_with_their_signatures() -> None:
    listed = {code.partition("(")[0]: code for code in first_cells(page("fixtures")) if "(" in code}

    assert set(listed) == {*fixtures._MEASURING, *fixtures._OTHERS}
    inner = {
        node.name: definition
        for node in ast.walk(ast.parse(inspect.getsource(fixtures)))
        if isinstance(node, ast.FunctionDef)
        for definition in node.body
        if isinstance(definition, ast.FunctionDef) and definition.name == "measure"
    }
    assert listed["all_reduce_benchmark"] == "all_reduce_benchmark(parallel, message_bytes)"
    for name in ("step_benchmark", "loop_benchmark", "command_benchmark"):
        arguments = inner[name].args
        named = [one.arg for one in (*arguments.args, *arguments.kwonlyargs)]
        for argument in named:
            assert re.search(rf"[( ]{argument}\b", listed[name]), f"{name}: {argument}"


def test_every_field_of_a_recipe_and_its_values_are_listed() -> None:
    text = page("recipes")

    assert {field.name for field in dataclasses.fields(Recipe)} <= first_cells(text)
    forms = {mode.form.partition("[:")[0] for mode in PARALLEL_MODES.values()}
    forms |= {f"pp:N:{schedule}" for schedule in PIPELINE_SCHEDULES}
    assert forms <= first_cells(text)
    assert set(PRECISIONS) <= first_cells(text)
    assert set(workload_names()) <= first_cells(text)


@pytest.mark.parametrize(
    "kind", [CellRecord, Counts, Memory, StepPercentiles, CellLine, RunStamp, Verdict]
)
def test_every_key_of_a_record_is_listed(kind: type[msgspec.Struct]) -> None:
    listed = set(re.findall(r"`(\w+)`", page("records")))

    assert {field.encode_name for field in msgspec.structs.fields(kind)} - {"perfsuite"} <= listed


def test_the_schemas_of_the_site_are_those_of_the_code_and_all_are_listed() -> None:
    folder = DOCS / "reference" / "schemas"

    # `make docs` writes them.
    assert {path.stem: json.loads(path.read_text()) for path in folder.iterdir()} == schemas()
    linked = set(re.findall(r"\]\(schemas/([\w-]+)\.json\)", page("schemas")))
    assert linked == schemas().keys()


def test_every_verdict_is_listed() -> None:
    for text in (page("records"), (DOCS / "how-to" / "red-verdict.md").read_text()):
        assert all(word in text for word in SEVERITY)


def test_every_field_of_an_exception_is_listed() -> None:
    kinds = (
        accepted.Slowdown,
        accepted.Removal,
        accepted.Rename,
        accepted.Increase,
        accepted.Loosening,
        accepted.Quarantine,
    )
    listed = first_cells(page("accepted"))

    for kind in kinds:
        assert {field.name for field in msgspec.structs.fields(kind)} <= listed
        assert f"`{kind.__struct_config__.tag}`" in page("accepted")


def test_every_public_name_is_in_the_api() -> None:
    assert set(re.findall(r"^::: perfsuite\.(\w+)$", page("api"), re.MULTILINE)) == set(
        perfsuite.__all__
    )


def test_no_page_is_too_long_to_read() -> None:
    for path in PAGES:
        assert len(path.read_text().splitlines()) <= MOST_LINES, path
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= README_LINES
    assert len(readme.split()) <= README_WORDS


def test_links_from_pages_outside_of_the_site_lead_somewhere() -> None:
    outside = [path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"]
    outside += [path for path in PAGES if DOCS not in path.parents]
    for path in outside:
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            if target.startswith(("https://", "#", "mailto:")):
                continue
            assert (path.parent / target.partition("#")[0]).exists(), f"{path}: {target}"


def test_no_page_of_the_site_leads_to_a_home_that_is_not_known() -> None:
    known = re.compile(r"https://(pytest-benchmark\.readthedocs\.io|docs\.pytest\.org)")
    for path in PAGES:
        for address in re.findall(r"https?://[^\s)>\"`]+", prose_of(path)):
            assert known.match(address), f"{path}: {address}"


def test_tests_that_a_page_names_exist() -> None:
    for path in PAGES:
        for name in re.findall(r"`(tests/[\w/]+(?:\.py)?)", path.read_text()):
            assert (ROOT / name).exists(), f"{path}: {name}"
