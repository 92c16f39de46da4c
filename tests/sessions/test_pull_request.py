"""A pull request: what its workflow tells of a change, each step run in a clone as GitHub does."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from gated_repository import ENVIRONMENT, SLOW_SHOP, check_out_change, make_shop
from made_up_gh import REPOSITORY, GitHub
from workflow_steps import ACTION, ROOT, Job, read_yaml, steps_of, write_program, write_python

from perfsuite.system.timing_lock import LOCK_DIR

STARTERS = ROOT / "perfsuite" / "cli" / "starter"
URL = f"https://github.com/{REPOSITORY}"
PULL = f"repos/{REPOSITORY}/issues/7/comments"


class Runner:
    """Where jobs run on a pull request of a shop.

    Attributes:
        hub: The repository's own GitHub.
        checkout: A clone at the change.
    """

    def __init__(self, tmp_path: Path, **files: str) -> None:
        self.checkout = check_out_change(make_shop(tmp_path / "shop"), **files)
        self.hub = GitHub(tmp_path / "github")
        self.installed = tmp_path / "installed"
        self._programs = tmp_path / "programs"
        self._temp = tmp_path / "temp"
        write_python(self._programs, self.installed)
        for name in ("ps", "nvidia-smi"):  # an earlier job left nothing
            write_program(self._programs, name, "")
        self._environ = {
            **ENVIRONMENT,
            **self.hub.put(self._programs),
            LOCK_DIR: os.environ[LOCK_DIR],
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_REPOSITORY": REPOSITORY,
        }

    def on_change(self, **values: str) -> Job:
        """A job of the event pull_request."""
        return Job(
            workspace=self.checkout,
            temp=self._temp / "gate",
            artifacts=self.hub.artifacts,
            programs=[self._programs],
            environ={
                **self._environ,
                "GITHUB_BASE_REF": "main",
                "GITHUB_EVENT_NAME": "pull_request",
                "GITHUB_WORKSPACE": str(self.checkout),
            },
            values={
                "github.base_ref": "main",
                "github.event.pull_request.head.repo.full_name": REPOSITORY,
                "github.event.pull_request.number": "7",
                "github.job": "gate",
                "github.repository": REPOSITORY,
                "github.run_attempt": "1",
                "github.run_id": "71",
                "github.server_url": "https://github.com",
                "github.token": "a token",
                "github.workflow": "performance",
                "strategy.job-index": "0",
                **values,
            },
        )

    def after(self, name: str, **values: str) -> Job:
        """A job of the workflow that comments, which checks nothing out."""
        workspace = self._temp / f"{name}-workspace"
        workspace.mkdir(parents=True)
        event = {
            "event": "pull_request",
            "head_branch": "change",
            "head_repository.owner.login": "fork",
            "head_sha": "5db0efb7",
            "html_url": f"{URL}/actions/runs/71",
            "id": "71",
            "name": "performance",
        }
        return Job(
            workspace=workspace,
            temp=self._temp / name,
            artifacts=self._temp / "uploaded",
            programs=[self._programs],
            environ=dict(self._environ),
            values={
                "github.token": "a token",
                **{f"github.event.workflow_run.{key}": value for key, value in event.items()},
                **values,
            },
        )


def action_inputs(**given: str) -> dict[str, str]:
    defaults = {name: one.get("default", "") for name, one in read_yaml(ACTION)["inputs"].items()}
    return {f"inputs.{name}": value for name, value in (defaults | given).items()}


def test_a_slower_change_is_told_beside_its_line_and_in_one_comment(tmp_path: Path) -> None:
    runner = Runner(tmp_path, shop=SLOW_SHOP)
    hub, steps = runner.hub, steps_of(read_yaml(ACTION))
    job = runner.on_change(**action_inputs(comment="true", arguments="--perf-limit=10%\n-q"))

    job.run(steps)

    assert (job.failed, job.values["steps.gate.outputs.code"]) == (10, "10"), job.output
    assert runner.installed.read_text() == f"install {ROOT}[torch,workloads]\n"
    cell = "benchmarks/test_steps.py::test_price"
    (error,) = (line for line in job.output.splitlines() if line.startswith("::"))
    assert error.startswith(f"::error file=benchmarks/test_steps.py,line=7::{cell}: FAIL: +200.0")
    assert error.endswith("; tolerance 4.0 %25; limit 10.0 %25")
    assert job.summary.startswith("**FAIL**: 1 cell&#58; 1 FAIL\n")
    assert (hub.artifacts / "performance-gate-0" / "run.json").is_file()
    (comment,) = hub.read("comments")
    assert comment["body"] == (
        "<!-- perfsuite: performance / performance-gate-0 -->\n"
        f"`performance / performance-gate-0`: [the run]({URL}/actions/runs/71)\n\n{job.summary}"
    )

    # The next commit changes that comment; another job of the matrix has its own.
    written = job.temp / "perfsuite-comments" / "performance-gate-0.md"
    written.write_text("PASS\n")
    job.run([steps[-1]])
    written.rename(written.with_name("performance-gate-1.md"))
    job.run([steps[-1]])
    assert hub.changes == [
        f"POST {PULL}",
        f"PATCH repos/{REPOSITORY}/issues/comments/100",
        f"POST {PULL}",
    ]
    assert [one["body"].splitlines()[-1] for one in hub.read("comments")] == ["PASS", "PASS"]

    # A comment that cannot be written changes nothing.
    job.failed, job.values["github.token"] = 0, ""
    job.run([steps[-1]])
    assert (job.failed, len(hub.changes)) == (0, 3)

    # A fork's token cannot write: the other workflow does, and finds the same comment.
    job.values["github.token"] = "a token"
    job.values["github.event.pull_request.head.repo.full_name"] = "fork/shop"
    job.run([steps[-1]])
    assert len(hub.changes) == 3
    hub.write(pulls=[{"number": 7, "head": {"label": "fork:change", "sha": "5db0efb7"}}])
    workflow = read_yaml(STARTERS / "performance-comment.yml")
    for name in ("render", "comment"):
        job = runner.after(name)
        job.run(workflow["jobs"][name]["steps"])
        assert job.failed == 0, job.output
    assert hub.changes[3:] == [f"PATCH repos/{REPOSITORY}/issues/comments/100"]
    assert hub.read("comments")[0]["body"].splitlines()[:4] == comment["body"].splitlines()[:4]

    # A job that is run again has a new checkout, and is no new draw, although another run has saved
    # since. Advice has the same verdicts, and passes; without verdicts, too.
    shutil.rmtree(runner.checkout / "results")
    hub.artifacts.with_name("caches").joinpath("perfsuite-pairs-gate-0-72-1").write_text("{}")
    advice = runner.on_change(
        **action_inputs(arguments="--perf-limit=10%", policy="advisory", name="performance-advice"),
        **{"github.run_attempt": "2"},
    )
    advice.run(steps)
    assert "1 cell goes on from what " in advice.output, advice.output
    assert (advice.failed, advice.values["steps.gate.outputs.code"]) == (0, "0"), advice.output
    assert "advisory: would have ended in 10\n" in advice.output
    assert advice.summary.startswith("**FAIL**: 1 cell&#58; 1 FAIL advisory\n")
    run_file = runner.checkout / "results" / "run.json"
    run = json.loads(run_file.read_text())
    (benchmark,) = run["benchmarks"]
    run_file.write_text(
        json.dumps(run | {"benchmarks": [benchmark | {"extra_info": {}}]} | {"perfsuite": None})
    )
    (summary,) = (step for step in steps if step.get("name") == "Summary")
    advice.run([summary])
    assert advice.failed == 0
    advice.values |= action_inputs()
    advice.run([summary])
    assert advice.failed == 12


@pytest.mark.parametrize(
    ("name", "artifact"), [("performance", "performance"), ("gate-gpu", "performance-gpu")]
)
def test_a_starter_workflow_passes_a_change_of_documentation(
    tmp_path: Path, name: str, artifact: str
) -> None:
    runner = Runner(tmp_path)
    workflow: dict[str, Any] = read_yaml(STARTERS / f"{name}.yml")
    job = runner.on_change()
    job.environ["NUM_GPUS"] = "0"

    job.run(steps_of(workflow))

    assert job.failed == 0, job.output
    assert runner.installed.read_text() == "install perfsuite[torch,workloads]\n"
    assert job.summary.startswith("**PASS**: 1 cell&#58; 1 PASS\n")
    assert (runner.hub.artifacts / artifact / "run.json").is_file()
    assert "::error" not in job.output
