"""The files that pages give to other systems than GitHub's, run in a clone as these run them."""

from __future__ import annotations

import os
import re
import string
import subprocess
from pathlib import Path

import pytest
import yaml
from documentation import DOCS, read_blocks
from gated_repository import ENVIRONMENT, Repository, check_out_change, make_shop
from workflow_steps import path_of, write_program, write_python

from perfsuite.system.timing_lock import LOCK_DIR

BLOCKS = read_blocks(DOCS / "how-to" / "gitlab-and-slurm.md")


class Machine:
    """A clone at a change of documentation, and programs that are made up."""

    def __init__(self, tmp_path: Path) -> None:
        self.checkout = check_out_change(make_shop(tmp_path / "shop"))
        self.programs = tmp_path / "programs"
        self.installed = tmp_path / "installed"
        write_python(self.programs, self.installed)

    def call(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a script as GitLab does."""
        return subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            cwd=self.checkout,
            env={
                **ENVIRONMENT,
                LOCK_DIR: os.environ[LOCK_DIR],
                "PATH": path_of(self.programs),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def file_of(title: str) -> str:
    (text,) = (block.text for block in BLOCKS if block.title == title)
    return text


@pytest.mark.parametrize(("project", "source"), [("7", "origin"), ("8", "https://host/theirs.git")])
def test_the_job_of_gitlab_fetches_the_target_from_the_project_that_the_change_goes_to(
    machine: Machine, project: str, source: str
) -> None:
    """In its own project it fetches from origin, whose address alone has the token of the job."""
    (job,) = yaml.safe_load(file_of(".gitlab-ci.yml")).values()
    for name in ("git", "pytest"):
        write_program(machine.programs, name, f'echo {name} "$@"')
    target = {
        "CI_MERGE_REQUEST_PROJECT_ID": "7",
        "CI_MERGE_REQUEST_PROJECT_URL": "https://host/theirs",
    }

    ended = machine.call("\n".join(job["script"]), TARGET="main", CI_PROJECT_ID=project, **target)

    refs = "+refs/heads/main:refs/remotes/origin/main"
    assert ended.stdout.splitlines()[0] == f"git fetch {source} {refs}"


def test_the_job_of_gitlab_judges_a_merge_request_and_leaves_its_artifacts(
    machine: Machine,
) -> None:
    (job,) = yaml.safe_load(file_of(".gitlab-ci.yml")).values()
    variables = {
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
        "CI_MERGE_REQUEST_PROJECT_ID": "7",
        "CI_PROJECT_ID": "7",
    }
    for name, value in job["variables"].items():
        variables[name] = string.Template(str(value)).substitute(variables)
    # GitLab fetches the change alone.
    Repository(machine.checkout).git("update-ref", "-d", "refs/remotes/origin/main")

    ended = machine.call("\n".join(job["script"]), **variables)
    after = machine.call("\n".join(job["after_script"]), **variables)

    assert (ended.returncode, after.returncode) == (0, 0), ended.stdout + after.stdout
    assert machine.installed.read_text() == "install perfsuite[torch]\ninstall -e .\n"
    artifacts = [*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]]
    assert all((machine.checkout / path).exists() for path in artifacts)
    assert (machine.checkout / "summary.md").read_text().startswith("**PASS**: ")
    assert 'name="test_price"' in (machine.checkout / "junit.xml").read_text()


def test_a_job_of_slurm_judges_a_change_in_its_own_exit_code(
    machine: Machine, tmp_path: Path
) -> None:
    (command,) = (block.script() for block in BLOCKS if "sbatch --wait" in block.script())
    write_program(
        machine.programs,
        "sbatch",
        'test "$1" = --wait || exit 64\n'
        'SLURM_JOB_ID=1 SLURM_NNODES=1 SLURM_NTASKS=1 SLURM_PROCID=0 exec bash "$SPOOL/$2"',
    )
    script = file_of("gate.sbatch")
    # Slurm runs a copy.
    node = {"SPOOL": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}

    (tmp_path / "gate.sbatch").write_text(script)
    refused = machine.call(command, **node)
    (tmp_path / "gate.sbatch").write_text(script.replace("require-gpus=8", "require-gpus=0"))
    judged = machine.call(command, **node)

    assert refused.returncode == 12, refused.stdout
    assert "perfsuite: --perf-require-gpus is 8, and the number of visible GPUs is 0;" in (
        refused.stdout
    )
    assert judged.returncode == 0, judged.stdout
    assert re.search("benchmarks/test_steps.py::test_price +PASS", judged.stdout)
    # Slurm reads options up to the first command, and no others are in it.
    options, _, rest = script.partition("set -euo pipefail\n")
    assert set(re.findall(r"^#SBATCH --([a-z-]+)", options, re.MULTILINE)) == {
        *("job-name", "nodes", "exclusive", "gpus-per-node", "time"),
    }
    assert "#SBATCH" not in rest
