"""What continuous integration may do: a pull request reads, main alone writes, nothing floats.

`make lint` asks zizmor and GitHub's schema as well; here is what SECURITY.md promises.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from git_checkouts import commit, git
from made_up_runs import benchmark, stamp, write_run
from workflow_steps import ACTION, ROOT, Job, path_of, read_yaml, steps_of, write_program

STARTERS = {path.stem: path for path in (ROOT / "perfsuite/cli/starter").glob("*.yml")}
WORKFLOWS = {path.stem: path for path in (ROOT / ".github" / "workflows").glob("*.yml")}
JOBS = WORKFLOWS | STARTERS
EVERY = JOBS | {"action": ACTION}
# Those that judge a change: what `perfsuite init` gives away, and the action.
GATES = ("performance", "gate-gpu", "action")
# Beside reading the contents: who may do what, and why is written there.
PERMISSIONS = {
    ("main", "store"): {"contents": "write"},
    ("release", "publish"): {"id-token": "write"},
    ("performance-comment", "render"): {"actions": "read"},
    ("performance-comment", "comment"): {"pull-requests": "write"},
}


def read(name: str) -> dict[str, Any]:
    return read_yaml(EVERY[name])


def test_there_is_a_workflow_for_each_purpose() -> None:
    assert set(WORKFLOWS) == {"pull-request", "main", "release"}
    assert set(STARTERS) == {"performance", "gate-gpu", "performance-comment"}


@pytest.mark.parametrize("name", EVERY)
def test_every_action_is_pinned_by_its_full_hash_and_says_its_version(name: str) -> None:
    used = re.findall(r"uses: (.*)", EVERY[name].read_text())

    assert used
    assert all(
        re.fullmatch(r"[\w.-]+(/[\w.-]+)+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one) for one in used
    )


@pytest.mark.parametrize("name", [*GATES, "pull-request"])
def test_a_job_that_runs_again_compares_with_the_merge_base_that_it_had(name: str) -> None:
    """The target branch may have moved on; without a base the gate takes the merge base with it."""
    text = EVERY[name].read_text()

    assert "--benchmark-compare" in text
    assert "origin/" not in text


@pytest.mark.parametrize("name", GATES)
def test_a_session_writes_its_results_where_the_steps_after_it_look(name: str) -> None:
    assert '--perf-report="$PWD/results"' in EVERY[name].read_text()


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


@pytest.mark.parametrize("name", JOBS)
def test_every_job_ends_and_every_workflow_has_its_turn(name: str) -> None:
    workflow = read(name)

    assert "concurrency" in workflow
    assert all(job["timeout-minutes"] <= 90 for job in workflow["jobs"].values())


@pytest.mark.parametrize("name", JOBS)
def test_a_job_may_read_and_four_may_do_one_thing_else(name: str) -> None:
    workflow = read(name)

    default = workflow["permissions"]
    assert default in ({}, {"contents": "read"})
    for job, described in workflow["jobs"].items():
        allowed = PERMISSIONS.get((name, job), {"contents": "read"})
        assert described.get("permissions", default) == allowed


@pytest.mark.parametrize("name", ["pull-request", *GATES])
def test_a_pull_request_runs_as_one_and_stores_nothing(name: str) -> None:
    assert name == "action" or read(name)["on"] == {"pull_request": None}
    text = EVERY[name].read_text()
    assert "--benchmark-save" not in text
    assert "--benchmark-autosave" not in text
    assert "git push" not in text
    assert "--benchmark-compare --perf-gate=on" in text
    assert "--require-verdicts" in text


def test_main_alone_writes_and_what_writes_runs_nothing_of_the_repository() -> None:
    workflow = read("main")

    assert workflow["on"]["push"]["branches"] == ["main"]
    assert "pull_request" not in workflow["on"]
    runs = [step["run"] for step in workflow["jobs"]["store"]["steps"] if "run" in step]
    assert len(runs) == 1
    assert not re.search(r"\b(python|pip|make|pytest|perfsuite|nox)\b", runs[0])
    assert "git add -- baselines\n" in runs[0]
    assert re.findall(r"git push .*?;", runs[0]) == ["git push origin HEAD:refs/heads/baselines;"]


@pytest.mark.slow
def test_each_push_to_main_adds_its_run_to_the_branch_of_baselines(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--bare", "--initial-branch=main", "origin.git")
    programs = tmp_path / "programs"
    write_program(programs, "gh", 'test "$*" = "auth setup-git"')
    for number in (1, 2):
        folder = tmp_path / str(number)
        git(tmp_path, "clone", "--quiet", str(tmp_path / "origin.git"), str(folder))
        if number == 1:
            git(folder, "switch", "--quiet", "--create", "main")
        sha = commit(folder, f"code{number}.py")
        git(folder, "push", "--quiet", "origin", "main")
        run = tmp_path / f"artifacts-{number}" / "measured" / "Linux" / f"000{number}_{sha}.json"
        run.parent.mkdir(parents=True)
        run.write_text("{}")
        job = Job(
            workspace=folder,
            temp=tmp_path / f"temp-{number}",
            artifacts=tmp_path / f"artifacts-{number}",
            programs=[programs],
            environ={"GITHUB_SHA": sha, "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"},
            values={"github.token": "a token"},
        )

        job.run(read("main")["jobs"]["store"]["steps"])

        assert job.failed == 0, job.output
    stored = git(tmp_path / "origin.git", "ls-tree", "-r", "--name-only", "baselines")
    assert re.fullmatch(
        r"baselines/Linux/0001_[0-9a-f]{40}\.json\nbaselines/Linux/0002_[0-9a-f]{40}\.json", stored
    )
    assert git(tmp_path / "origin.git", "log", "--format=%an", "baselines").splitlines() == [
        "github-actions[bot]",
        "github-actions[bot]",
    ]


def test_what_comments_runs_nothing_of_a_change_and_installs_nothing_where_it_may_write() -> None:
    workflow = read("performance-comment")

    gates = [read(name)["name"] for name in GATES if name in STARTERS]
    assert workflow["on"] == {"workflow_run": {"workflows": gates, "types": ["completed"]}}
    uses = [step.get("uses", "") for step in steps_of(workflow)]
    assert not any(action.startswith("actions/checkout@") for action in uses)
    comment = workflow["jobs"]["comment"]
    assert [step.get("uses", "").partition("@")[0] for step in comment["steps"]] == [
        "actions/download-artifact",
        "",
    ]
    script = comment["steps"][1]["run"]
    assert not re.search(r"^ *(python|pip|make|pytest|perfsuite|nox|git) ", script, re.MULTILINE)


def test_the_action_writes_the_comment_that_the_workflow_writes() -> None:
    def loop(name: str) -> str:
        return script_of(name, "Comment").partition("for body in ")[2].partition("\ndone")[0]

    assert loop("action") == loop("performance-comment")
    assert "gh api" in loop("action")


def test_what_publishes_runs_nothing_but_actions() -> None:
    workflow = read("release")

    assert workflow["on"] == {"release": {"types": ["published"]}}
    publish = workflow["jobs"]["publish"]
    assert publish["environment"] == "pypi"
    assert all("run" not in step for step in publish["steps"])


def script_of(name: str, step: str) -> str:
    (found,) = (one["run"] for one in steps_of(read(name)) if one.get("name") == step)
    return str(found)


def run_step(script: str, folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run a step as GitHub does, with programs that are made up."""
    for program, text in programs.items():
        write_program(folder, program.replace("_", "-"), text)
    environment = os.environ | {
        "PATH": path_of(folder),
        "NUM_GPUS": "2",
        "GITHUB_OUTPUT": os.devnull,
    }
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", GATES)
def test_a_first_change_passes_and_nothing_else_that_compares_nothing(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "results").mkdir()
    gate = script_of(name, "Gate")

    def gated(code: int, *words: str) -> int:
        verdicts = {f"cell {number}": word for number, word in enumerate(words)}
        cells = (benchmark(cell) for cell in verdicts)
        run = tmp_path / "results" / "run.json"
        write_run(run, *cells, perfsuite=stamp(verdicts=verdicts))
        return run_step(gate, tmp_path, pytest=f"exit {code}").returncode

    assert gated(13, "NEW", "NEW") == 0
    assert gated(13, "NEW") == 0
    assert gated(13, "NEW", "SKIPPED") == 13
    assert gated(10, "NEW", "FAIL") == 10
    assert gated(1, "NEW") == 1
    assert gated(0, "NEW", "PASS") == 0
    (tmp_path / "results" / "run.json").unlink()
    assert run_step(gate, tmp_path, pytest="exit 13").returncode == 13


PROCESSES = """\
10 1 /runner/bin/Runner.Listener run
20 10 /runner/bin/Runner.Worker spawnclient
{shell} 20 bash -e step.sh
"""


@pytest.mark.parametrize(
    ("left", "on_gpus", "code"),
    [
        ("", "", 0),
        ("1 0 /sbin/docker-init", "", 0),
        ("99 1 python spin.py", "", 1),
        ("98 1 sh\n99 98 python spin.py", "", 1),
        ("", "77, python", 1),
    ],
)
def test_a_runner_that_an_earlier_job_left_something_on_is_refused(
    tmp_path: Path, left: str, on_gpus: str, code: int
) -> None:
    table = PROCESSES.format(shell="$STEP") + left
    script = "export STEP=$$\n" + script_of("gate-gpu", "Refuse what an earlier job left")

    ended = run_step(
        script, tmp_path, ps=f"cat <<END\n{table}\nEND", nvidia_smi=f"echo '{on_gpus}'"
    )

    assert ended.returncode == code, ended.stdout
    assert ("::error::" in ended.stdout) == bool(code)
    assert ("python" in ended.stdout) == bool(code)


def test_a_runner_of_ones_own_is_asked_for_belongs_to_one_job_and_has_all_gpus() -> None:
    workflow = read("gate-gpu")
    (job,) = workflow["jobs"].values()

    assert job["environment"] == "gpu"
    assert "ephemeral" in job["runs-on"]
    names = [step.get("name", step.get("uses")) for step in job["steps"]]
    assert names[0] == "Refuse what an earlier job left"
    assert '--perf-require-gpus="$NUM_GPUS"' in script_of("gate-gpu", "Gate")
