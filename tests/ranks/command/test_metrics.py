"""The times that a command logs: those of this launch alone, however it opens its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfsuite.errors import WorkloadError
from perfsuite.ranks.command.metrics import Metrics

LOGS = Metrics("jsonl:log.jsonl:dt")


def lines(*times_s: float) -> str:
    return "".join(json.dumps({"dt": time_s}) + "\n" for time_s in times_s)


@pytest.mark.parametrize("now", [(0.3, 0.4), (0.3, 0.41), (0.3, 0.4, 0.5), (0.3,), (0.1, 0.2)])
def test_a_log_that_is_written_anew_is_read_from_its_beginning(
    tmp_path: Path, now: tuple[float, ...]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(lines(0.1, 0.2))
    before = LOGS.files(tmp_path)

    log.unlink()  # so that its time is another one, on any clock
    log.write_text(lines(*now))

    assert [*LOGS.values(tmp_path, "", before)] == [*now]


def test_of_a_log_that_grows_only_the_new_lines_count(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(lines(0.1, 0.2))
    before = LOGS.files(tmp_path)
    assert [*LOGS.values(tmp_path, "", before)] == []

    with log.open("a") as file:
        file.write(lines(0.3))

    assert [*LOGS.values(tmp_path, "", before)] == [0.3]


@pytest.mark.parametrize("num_kept", [5, 4, 3, 1, 0])
def test_of_a_log_that_loses_its_front_only_the_new_lines_count(
    tmp_path: Path, num_kept: int
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(lines(0.7, 0.1, 0.2, 0.15, 0.3))
    before = LOGS.files(tmp_path)

    kept = (0.7, 0.1, 0.2, 0.15, 0.3)[5 - num_kept :]
    log.write_text(lines(*kept, 0.4, 0.1, 0.5))

    assert [*LOGS.values(tmp_path, "", before)] == [0.4, 0.1, 0.5]


def test_a_log_that_is_written_anew_may_begin_as_the_earlier_one_ended(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(lines(*[0.1] * 5, 0.5, *[0.1] * 10))
    before = LOGS.files(tmp_path)
    now = [*[0.1] * 10, 0.5, *[0.1] * 5]

    log.write_text(lines(*now))

    assert [*LOGS.values(tmp_path, "", before, 10)] == now  # the first ten are not timed anyway
    with pytest.raises(WorkloadError, match="they repeat, so that which are new cannot be told"):
        [*LOGS.values(tmp_path, "", before, 9)]


def test_of_a_log_that_is_cut_within_a_line_only_the_new_lines_count(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(lines(0.1, 0.2, 0.3))
    before = LOGS.files(tmp_path)

    log.write_text((lines(0.1, 0.2, 0.3) + lines(0.4, 0.5))[15:])

    assert [*LOGS.values(tmp_path, "", before)] == [0.4, 0.5]
