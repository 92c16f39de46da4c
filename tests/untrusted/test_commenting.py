"""The workflow that comments: what was uploaded is data, and the event names the pull request."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from made_up_gh import BOT, REPOSITORY, GitHub
from made_up_runs import HOSTILE, benchmark, record, stamp, verdict, write_run
from workflow_steps import ROOT, Job, read_yaml, write_program, write_python

WORKFLOW = read_yaml(ROOT / "perfsuite" / "cli" / "starter" / "performance-comment.yml")
HEAD = "5db0efb7ac6bdcd7cfd9f58b9eebfe8798f3638b"
PULL = f"repos/{REPOSITORY}/issues/7/comments"
EVENT = {
    "event": "pull_request",
    "head_branch": "change",
    "head_repository.owner.login": "fork",
    "head_sha": HEAD,
    "html_url": f"https://github.com/{REPOSITORY}/actions/runs/71",
    "id": "71",
    "name": "performance",
}


class Commenting:
    """The workflow over a GitHub that is made up."""

    def __init__(self, tmp_path: Path) -> None:
        self._folder = tmp_path
        self._programs = tmp_path / "programs"
        self.installed = tmp_path / "installed"
        write_python(self._programs, self.installed)
        # What a report makes of a run is tested elsewhere.
        write_program(self._programs, "perfsuite", 'cp "$2" "$4"')
        self.hub = GitHub(tmp_path / "github")
        self._environ = self.hub.put(self._programs) | {"GITHUB_REPOSITORY": REPOSITORY}
        self.hub.write(pulls=[pull(7)])

    def render_for_real(self) -> None:
        """Have perfsuite itself report on what was uploaded."""
        (self._programs / "perfsuite").unlink()

    def upload(self, name: str, *cells: dict[str, Any], **changes: Any) -> Path:
        """Have the change upload a run."""
        (self.hub.artifacts / name).mkdir(exist_ok=True)
        return write_run(self.hub.artifacts / name / "run.json", *cells, **changes)

    def run(self, **event: str) -> list[Job]:
        """Run the jobs that are not skipped, each on a machine of its own."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        values = {f"github.event.workflow_run.{key}": one for key, one in (EVENT | event).items()}
        jobs: list[Job] = []
        for name, described in WORKFLOW["jobs"].items():
            job = Job(
                workspace=folder / name,
                temp=folder / f"{name}-temp",
                artifacts=folder / "artifacts",
                programs=[self._programs],
                environ=dict(self._environ),
                values={"github.token": "a token", **values},
            )
            if "needs" in described:
                key = f"needs.{described['needs']}.outputs.number"
                job.values[key] = jobs[0].expand(WORKFLOW["jobs"]["render"]["outputs"]["number"])
            if not job.evaluate(described["if"]):
                break
            job.workspace.mkdir()
            job.run(described["steps"])
            jobs.append(job)
            if job.failed:
                break
        return jobs


def pull(number: int, label: str = "fork:change", sha: str = HEAD) -> dict[str, Any]:
    return {"number": number, "head": {"label": label, "sha": sha}}


@pytest.fixture
def commenting(tmp_path: Path) -> Commenting:
    return Commenting(tmp_path)


@pytest.mark.slow
def test_a_comment_is_written_once_and_changed_from_then_on(commenting: Commenting) -> None:
    hub = commenting.hub
    (commenting.upload("performance").parent / "number").write_text("8")
    commenting.upload("performance-2")
    commenting.upload("other")
    # A stranger's comment that begins like the one to come stays a stranger's.
    hub.comment("eve", "<!-- perfsuite: performance / performance -->\nPASS")

    commenting.run()
    commenting.run(name="performance on GPUs")
    jobs = commenting.run()

    assert [job.failed for job in jobs] == [0, 0], jobs[-1].output
    assert commenting.installed.read_text().splitlines() == ["install perfsuite"] * 3
    assert hub.changes == [
        *(f"POST {PULL}",) * 4,
        f"PATCH repos/{REPOSITORY}/issues/comments/101",
        f"PATCH repos/{REPOSITORY}/issues/comments/102",
    ]
    assert [one["body"].splitlines()[0] for one in hub.read("comments")] == [
        "<!-- perfsuite: performance / performance -->",
        "<!-- perfsuite: performance / performance-2 -->",
        "<!-- perfsuite: performance / performance -->",
        "<!-- perfsuite: performance on GPUs / performance-2 -->",
        "<!-- perfsuite: performance on GPUs / performance -->",
    ]
    assert [one["user"]["login"] for one in hub.read("comments")] == ["eve", *[BOT] * 4]


@pytest.mark.slow
def test_hostile_names_are_neither_markup_nor_commands(commenting: Commenting) -> None:
    names = [f"b.py::t[{text}]" for text in (*HOSTILE, "\n::error::owned", "##[add-mask]x")]
    info = record(given=verdict("FAIL"))
    cells = [benchmark(name, info=info) for name in names]
    words = dict.fromkeys(names, "FAIL")
    commenting.upload("performance", *cells, perfsuite=stamp(verdicts=words))
    branch = "$(touch owned)`touch owned`;'\"&"
    commenting.hub.write(pulls=[pull(7, label=f"fork:{branch}")])
    commenting.render_for_real()

    jobs = commenting.run(name="a`b\n-->\n::error::c", head_branch=branch)

    (one,) = commenting.hub.read("comments")
    marker, heading, blank, verdicts = one["body"].splitlines()[:4]
    assert marker == "<!-- perfsuite: a_b_--__::error::c / performance -->"
    assert heading.startswith("`a_b_--__::error::c / performance`: [the run](https://github.com/")
    assert (blank, verdicts) == ("", f"**FAIL**: {len(names)} cells&#58; {len(names)} FAIL")
    for job in jobs:
        assert "::" not in job.output
        assert "##[" not in job.output
        assert not list(job.workspace.rglob("owned"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pulls", "event"),
    [
        ([], {}),
        ([pull(7, sha="0" * 40)], {}),  # a newer commit has come
        ([pull(7, label="other:change")], {}),
        ([pull(7), pull(9)], {}),  # to two branches
        ([pull(7)], {"event": "push"}),
    ],
)
def test_what_is_of_no_open_pull_request_is_not_told(
    commenting: Commenting, pulls: list[dict[str, Any]], event: dict[str, str]
) -> None:
    commenting.upload("performance")
    commenting.hub.write(pulls=pulls)

    jobs = commenting.run(**event)

    assert [job.failed for job in jobs] == ([] if event else [0, 0])
    assert commenting.hub.changes == []


@pytest.mark.slow
def test_nothing_is_told_where_nothing_was_uploaded(commenting: Commenting) -> None:
    (render,) = commenting.run()

    assert render.failed == 0
    assert render.output.endswith("nothing was downloaded\n")


@pytest.mark.slow
def test_what_is_no_run_is_not_told_and_says_nothing_itself(commenting: Commenting) -> None:
    commenting.upload("performance").write_text("::error::owned")
    commenting.render_for_real()

    (render,) = commenting.run()

    assert render.failed == 1
    assert render.output == "::error::what was uploaded is not a run\n"


@pytest.mark.slow
def test_no_change_gets_more_than_ten_comments(commenting: Commenting) -> None:
    for number in range(12):
        commenting.upload(f"performance-{number}")

    commenting.run()

    assert commenting.hub.changes == [f"POST {PULL}"] * 10
