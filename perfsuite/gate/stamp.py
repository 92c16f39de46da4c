"""What perfsuite adds to a run that pytest-benchmark saves: whether it may serve as a baseline.

Must not know how runs are compared. Under which key it lies in the file, and what a strange file
may hold there, is fixed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from perfsuite.records import Amount, Label
from perfsuite.shards import ShardStamp
from perfsuite.verdicts import VerdictWord

STAMP_KEY: Final = "perfsuite"


class RunStamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The top-level key "perfsuite" of a saved run.

    Attributes:
        fingerprint: Of the environment that the session ran in; None where it is not known.
        probe_s: Seconds of each host probe at the time, by name; None where none was run.
        num_failed: Tests of the session that failed, benchmarks or not.
        is_pull_request: Whether it ran for a change that nobody has merged yet.
        verdicts: What the gate decided, by the full name of the cell; of the cells without a time
            too. In a stamp from before these were kept it has the others alone.
        accepted: Full names of the cells that only a reviewed exception let through. Their history
            begins anew here, so a cell whose exception was not needed must not be among them.
        durations_s: Of the whole test of each benchmark, set-up included: by them the next session
            is cut into shards. Empty in a stamp from before they were kept.
        shard: Which part of a session it is; None of a whole one.
    """

    schema: Literal[1] = 1
    fingerprint: Label | None
    probe_s: dict[str, float] | None
    num_failed: Annotated[int, msgspec.Meta(ge=0)]
    is_pull_request: bool
    verdicts: dict[str, VerdictWord]
    accepted: tuple[str, ...]
    durations_s: dict[str, Amount] = {}
    shard: ShardStamp | None = None

    def __post_init__(self) -> None:
        for name, seconds in (self.probe_s or {}).items():
            if not (math.isfinite(seconds) and seconds > 0):
                raise ValueError(f"the host probe {name!r} took {seconds!r} s")


def put_stamp(output_json: dict[str, Any], stamp: RunStamp) -> None:
    """Put the stamp where `read_run` looks for it; for `pytest_benchmark_update_json`.

    The benchmarks come last, so that `read_head` need not read them.
    """
    output_json[STAMP_KEY] = msgspec.to_builtins(stamp)
    output_json["benchmarks"] = output_json.pop("benchmarks")


# The variable that each CI service sets for a pull request, and the values that say it is one;
# None where being set at all says so. From the services' own lists of predefined variables.
_SIGNS_OF_A_PULL_REQUEST: Final[tuple[tuple[str, tuple[str, ...] | None], ...]] = (
    ("GITHUB_EVENT_NAME", ("pull_request", "pull_request_target", "merge_group")),
    ("CI_MERGE_REQUEST_IID", None),  # GitLab
    ("CI_PIPELINE_EVENT", ("pull_request",)),  # Woodpecker
    ("BUILD_REASON", ("PullRequest",)),  # Azure Pipelines
    ("CHANGE_ID", None),  # Jenkins
    ("CIRCLE_PULL_REQUEST", None),
    ("BITBUCKET_PR_ID", None),
    ("DRONE_PULL_REQUEST", None),
    ("CIRRUS_PR", None),
    ("APPVEYOR_PULL_REQUEST_NUMBER", None),
    ("BUILDKITE_PULL_REQUEST", None),  # the number, or "false"
    ("TRAVIS_PULL_REQUEST", None),  # the number, or "false"
)


def is_pull_request(environ: Mapping[str, str]) -> bool:
    """Whether a CI service says that it builds a pull request or a merge queue's candidate.

    >>> is_pull_request({"GITHUB_EVENT_NAME": "pull_request"})
    True
    >>> is_pull_request({"GITHUB_EVENT_NAME": "push"}), is_pull_request({"CHANGE_ID": ""})
    (False, False)
    """
    for name, values in _SIGNS_OF_A_PULL_REQUEST:
        value = environ.get(name, "")
        if value in ("", "false"):
            continue
        if values is None or value in values:
            return True
    return False
