"""The stamp: strict, the same after a round trip, and what CI services call a pull request."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from perfsuite.plugin.session.saving import put_stamp
from perfsuite.records.run_file import RunStamp
from perfsuite.records.shard import ShardStamp
from perfsuite.system.environment import is_pull_request

STAMP = RunStamp(
    fingerprint="0123456789ab",
    probe_s={"memory": 0.05},
    num_failed=0,
    is_pull_request=False,
    verdicts={"benchmarks/test_a.py::test_a": "PASS"},
    accepted=("benchmarks/test_b.py::test_b",),
    durations_s={"benchmarks/test_a.py::test_a": 3.217},
    shard=ShardStamp(number=2, num_shards=4, num_cells=8, partition="0123456789ab"),
)


def changed(**changes: Any) -> dict[str, Any]:
    return {**msgspec.to_builtins(STAMP), **changes}


def test_a_stamp_is_the_same_after_it_went_through_a_file() -> None:
    output: dict[str, Any] = {"benchmarks": [], "version": "5.3.1"}

    put_stamp(output, STAMP)

    assert list(output) == ["version", "perfsuite", "benchmarks"]
    assert msgspec.convert(json.loads(json.dumps(output))["perfsuite"], RunStamp) == STAMP


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "Invalid enum value 2 - at `$.schema`"),
        ({"num_failed": -1}, "Expected `int` >= 0 - at `$.num_failed`"),
        ({"is_pull_request": 0}, "Expected `bool`, got `int` - at `$.is_pull_request`"),
        ({"verdicts": {"a": "MAYBE"}}, "Invalid enum value 'MAYBE' - at `$.verdicts[...]`"),
        ({"probe_s": {"memory": 0.0}}, "Expected `float` > 0.0 - at `$.probe_s[...]`"),
        ({"probe_s": {"memory": math.nan}}, "Expected `float` > 0.0 - at `$.probe_s[...]`"),
        (
            {"probe_s": {"memory": math.inf}},
            "Expected `float` <= 9.223372036854776e+18 - at `$.probe_s[...]`",
        ),
        ({"durations_s": {"a": -1.0}}, "Expected `float` >= 0.0 - at `$.durations_s[...]`"),
        ({"durations_s": {"a": math.nan}}, "Expected `float` >= 0.0 - at `$.durations_s[...]`"),
        ({"durations_s": {"a": "1"}}, "Expected `float`, got `str` - at `$.durations_s[...]`"),
        ({"trusted": True}, "Object contains unknown field `trusted`"),
    ],
)
def test_a_stamp_that_we_did_not_write_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(changed(**changes), RunStamp)

    assert str(refused.value) == message


def test_a_stamp_from_before_durations_were_kept_is_read() -> None:
    plain = changed()
    del plain["durations_s"], plain["shard"]

    stamp = msgspec.convert(plain, RunStamp)

    assert (stamp.durations_s, stamp.shard) == ({}, None)


@pytest.mark.parametrize("word", ["ERROR", "SKIPPED", "VANISHED", "NO-BASELINE"])
def test_a_stamp_holds_the_words_of_cells_without_a_time(word: str) -> None:
    stamp = msgspec.convert(changed(verdicts={"a": word}), RunStamp)

    assert stamp.verdicts == {"a": word}


def test_a_stamp_must_say_everything() -> None:
    plain = changed()
    del plain["num_failed"]

    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(plain, RunStamp)

    assert str(refused.value) == "Object missing required field `num_failed`"


@pytest.mark.parametrize(
    "environ",
    [
        {"GITHUB_EVENT_NAME": "pull_request"},
        {"GITHUB_EVENT_NAME": "pull_request_target"},
        {"GITHUB_EVENT_NAME": "merge_group"},
        {"CI_MERGE_REQUEST_IID": "7"},
        {"CI_PIPELINE_EVENT": "pull_request"},
        {"BUILD_REASON": "PullRequest"},
        {"CHANGE_ID": "7"},
        {"TRAVIS_PULL_REQUEST": "7"},
        {"BUILDKITE_PULL_REQUEST": "7"},
    ],
)
def test_a_ci_service_that_builds_a_pull_request_is_recognised(environ: dict[str, str]) -> None:
    assert is_pull_request(environ)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"GITHUB_EVENT_NAME": "push"},
        {"CI_MERGE_REQUEST_IID": ""},
        {"BUILD_REASON": "IndividualCI"},
        {"TRAVIS_PULL_REQUEST": "false", "BUILDKITE_PULL_REQUEST": "false"},
    ],
)
def test_a_build_of_a_branch_is_no_pull_request(environ: dict[str, str]) -> None:
    assert not is_pull_request(environ)
