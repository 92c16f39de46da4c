"""What continuous integration may do: a pull request reads, main alone writes, nothing floats.

`make lint` asks zizmor and GitHub's schema as well; here is what SECURITY.md promises.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
STARTER = ROOT / "perfsuite" / "cli" / "starter" / "performance.yml"
WORKFLOWS = {path.stem: path for path in (ROOT / ".github" / "workflows").glob("*.yml")}
EVERY = {**WORKFLOWS, "starter": STARTER}
# Beside reading the contents: who may do what, and why is written there.
PERMISSIONS = {
    ("main", "store"): {"contents": "write"},
    ("release", "publish"): {"id-token": "write"},
}


def read(name: str) -> dict[str, Any]:
    """The workflow; YAML 1.1 takes its key "on" for a truth value."""
    document: dict[Any, Any] = yaml.safe_load(EVERY[name].read_text())
    return {"on" if key is True else key: value for key, value in document.items()}


def steps_of(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_there_is_a_workflow_for_each_purpose() -> None:
    assert set(WORKFLOWS) == {"pull-request", "main", "release"}


@pytest.mark.parametrize("name", EVERY)
def test_every_action_is_pinned_by_its_full_hash_and_says_its_version(name: str) -> None:
    used = re.findall(r"uses: (.*)", EVERY[name].read_text())

    assert used
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one) for one in used)


def test_one_action_has_one_hash_everywhere() -> None:
    pins: dict[str, set[str]] = {}
    for path in EVERY.values():
        for action, pin in re.findall(r"uses: ([^@]+)@(.*)", path.read_text()):
            pins.setdefault(action, set()).add(pin)

    assert all(len(found) == 1 for found in pins.values())


@pytest.mark.parametrize("name", EVERY)
def test_no_checkout_leaves_its_token_and_no_secret_is_named(name: str) -> None:
    workflow = read(name)

    for step in steps_of(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
    assert "secrets." not in EVERY[name].read_text()


@pytest.mark.parametrize("name", EVERY)
def test_no_expression_is_put_into_a_shells_text(name: str) -> None:
    for step in steps_of(read(name)):
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize("name", EVERY)
def test_every_job_ends_and_every_workflow_has_its_turn(name: str) -> None:
    workflow = read(name)

    assert "concurrency" in workflow
    assert all(job["timeout-minutes"] <= 90 for job in workflow["jobs"].values())


@pytest.mark.parametrize("name", EVERY)
def test_a_job_may_read_and_two_may_do_one_thing_more(name: str) -> None:
    workflow = read(name)

    default = workflow["permissions"]
    assert default in ({}, {"contents": "read"})
    for job, described in workflow["jobs"].items():
        allowed = PERMISSIONS.get((name, job), {"contents": "read"})
        assert described.get("permissions", default) == allowed


@pytest.mark.parametrize("name", ["pull-request", "starter"])
def test_a_pull_request_runs_as_one_and_stores_nothing(name: str) -> None:
    workflow = read(name)

    assert workflow["on"] == {"pull_request": None}
    text = EVERY[name].read_text()
    assert "--benchmark-save" not in text
    assert "--benchmark-autosave" not in text
    assert "git push" not in text


def test_main_alone_writes_and_what_writes_runs_nothing_of_the_repository() -> None:
    workflow = read("main")

    assert workflow["on"]["push"]["branches"] == ["main"]
    assert "pull_request" not in workflow["on"]
    runs = [step["run"] for step in workflow["jobs"]["store"]["steps"] if "run" in step]
    assert len(runs) == 1
    assert not re.search(r"\b(python|pip|make|pytest|perfsuite|nox)\b", runs[0])
    assert "git add -- baselines\n" in runs[0]


def test_what_publishes_runs_nothing_but_actions() -> None:
    workflow = read("release")

    assert workflow["on"] == {"release": {"types": ["published"]}}
    publish = workflow["jobs"]["publish"]
    assert publish["environment"] == "pypi"
    assert all("run" not in step for step in publish["steps"])
