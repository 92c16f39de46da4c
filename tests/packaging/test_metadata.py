"""What is published beside the code: licence, citation, addresses, and how to contribute."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
# Of https://www.apache.org/licenses/LICENSE-2.0.txt.
APACHE_2_0 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
AUTHORS = "The perfsuite developers"
# Where the name under which a package is imported is another one than its own.
IMPORTED_AS = {
    "nvidia-ml-py": "pynvml",
    "pytest-benchmark": "pytest_benchmark",
    "scikit-learn": "sklearn",
}


def test_the_licence_is_the_apache_licence_to_the_letter_with_a_notice_of_our_own() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_0
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE", "NOTICE"])
    assert (ROOT / "NOTICE").read_text().startswith(f"perfsuite\nCopyright 2026 {AUTHORS}\n")
    # An SPDX expression takes the place of the classifier.
    assert not any(one.startswith("License ::") for one in PROJECT["classifiers"])


def test_authors_and_version_are_the_same_wherever_they_stand() -> None:
    assert PROJECT["authors"] == [{"name": AUTHORS}]
    assert CITATION["authors"] == [{"name": AUTHORS}]
    assert CITATION["version"] == PROJECT["version"]
    assert CITATION["license"] == PROJECT["license"]


def test_no_address_is_given_as_long_as_there_is_no_home() -> None:
    """With a home, `[project.urls]` becomes the one place, and this test what holds it there."""
    assert "urls" not in PROJECT
    assert not CITATION.keys() & {"url", "repository", "repository-code", "doi"}
    ours = re.compile(
        r"(github|gitlab|codeberg|pypi|readthedocs)\S*/perfsuite|perfsuite\.(readthedocs|dev|io|org)"
    )
    texts = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / ".github").rglob("*.yml"),
        *(ROOT / "perfsuite").rglob("*.py"),
        *(ROOT / "perfsuite").rglob("*.yml"),
    ]
    assert [path for path in texts if ours.search(path.read_text())] == []


def test_contributors_are_told_of_targets_sessions_and_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()

    assert len(text.splitlines()) < 80
    targets = re.findall(r"^make (\S+)", text, re.MULTILINE)
    (phony,) = re.findall(r"^.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*targets, "bytecode"} == set(phony.split())
    paths = re.findall(r"`([\w./]+/[\w./]*|\w+\.(?:py|md|cff|toml))`", text)
    assert [
        path for path in paths if not any((ROOT / top / path).exists() for top in ("", "perfsuite"))
    ] == []


@pytest.mark.parametrize("name", ["bug", "verdict", "idea"])
def test_an_issue_form_asks_for_what_an_answer_needs(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())

    asked = {one["id"] for one in form["body"] if one["type"] != "markdown"}
    assert name == "idea" or "doctor" in asked
    assert any(one.get("validations", {}).get("required") for one in form["body"])


def third_party_imports(path: Path) -> set[str]:
    """The packages that a module imports, in functions too; `_pytest` is pytest."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    found = {"pytest" if one == "_pytest" else one for one in found - sys.stdlib_module_names}
    return {one for one in found if not one.startswith("perfsuite")}


def test_whatever_is_imported_is_a_dependency_or_an_extras() -> None:
    def imported(requirements: list[str]) -> set[str]:
        names = {re.split(r"[\[<>=!]", one)[0] for one in requirements}
        return {IMPORTED_AS.get(name, name) for name in names}

    core = imported(PROJECT["dependencies"])
    extras = imported([one for some in PROJECT["optional-dependencies"].values() for one in some])
    modules = {path: third_party_imports(path) for path in (ROOT / "perfsuite").rglob("*.py")}

    used = set().union(*modules.values())
    assert used - core - extras == set()
    assert core - used == set()
