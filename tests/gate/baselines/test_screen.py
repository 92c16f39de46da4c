"""The screen against tables worked out by hand, and its error rate against seeded sessions."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.gate.baselines.screen import Screened, Screener, why_unfit
from perfsuite.gate.judge.trial import CellPolicy
from perfsuite.records.run_file import RunStamp, StoredCell, StoredRun
from perfsuite.records.verdict import VerdictWord

LIMIT = 0.05
POLICY = CellPolicy(tolerance=0.02, limit=LIMIT, floor_s=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A cell that this session measured."""

    name: str
    cell: StoredCell
    digest: str | None = None

    def screened_by(self, screener: Screener) -> Screened:
        return screener.screen(self.name, self.cell, self.digest, POLICY)


def candidate(log_time: float, name: str = "a") -> Candidate:
    return Candidate(name=name, cell=StoredCell(median_s=math.exp(log_time)))


def session(
    log_times: dict[str, float],
    *,
    probe_s: dict[str, float] | None = None,
    fingerprint: str | None = None,
    word: VerdictWord = "PASS",
    accepted: tuple[str, ...] = (),
) -> StoredRun:
    return StoredRun(
        path=Path("0001_run.json"),
        saved_at=datetime(2026, 11, 21, tzinfo=UTC),
        commit=None,
        is_dirty=False,
        stamp=RunStamp(
            fingerprint="0123456789ab",
            probe_s=probe_s,
            num_failed=0,
            is_pull_request=False,
            verdicts=dict.fromkeys(log_times, word),
            accepted=accepted,
        ),
        cells={
            name: StoredCell(median_s=math.exp(log_time), fingerprint=fingerprint)
            for name, log_time in log_times.items()
        },
    )


def sessions(log_times: Sequence[float], probes: Sequence[float] = ()) -> list[StoredRun]:
    """Sessions of the cell "a", with the logs of its times and of one host probe."""
    logs = probes or [None] * len(log_times)
    return [
        session({"a": log_time}, probe_s=None if log is None else {"memory": math.exp(log)})
        for log_time, log in zip(log_times, logs, strict=True)
    ]


def screened(
    cell: Candidate, history: Sequence[StoredRun], probe_s: dict[str, float] | None = None
) -> Screened:
    return screen([cell], history, probe_s)[cell.name]


def screen(
    cells: Sequence[Candidate],
    history: Sequence[StoredRun],
    probe_s: Mapping[str, float] | None = None,
) -> dict[str, Screened]:
    """What the history says of each cell once all are known."""
    screener = Screener(history, probe_s)
    for cell in cells:
        cell.screened_by(screener)
    return {cell.name: cell.screened_by(screener) for cell in cells}


def log_interval(cell: Screened) -> tuple[float, float]:
    assert cell.interval is not None
    return math.log(cell.interval[0]), math.log(cell.interval[1])


# Their variance is 1e-4, and their mean 0.
STEPS = (0.0, 0.01, -0.01, 0.01, -0.01)


def test_one_cell_alone_is_judged_by_its_own_variance() -> None:
    # s = 0.01, n = 5, df = 4, t(0.975, 4) = 2.776445: SE = 0.01 sqrt(6/5) = 0.0109545.
    found = screened(candidate(0.0), sessions(STEPS))

    assert log_interval(found) == pytest.approx((-0.0304144, 0.0304144), abs=1e-6)
    assert (found.word, found.num_sessions) == ("PASS", 5)
    assert found.ratio == pytest.approx(1.0)
    assert found.reason == (
        "0.0 % slower than 5 stored sessions and 1.0 % slower than the newest; at worst 3.1 % "
        "slower, limit 5.0 %"
    )


def test_a_cell_that_is_slower_than_the_newest_session_alone_is_not_fine() -> None:
    # Just improved by 8 %: the mean of five sessions does not show it, the newest does.
    history = sessions([0.08, 0.08, 0.08, 0.08, 0.0])

    found = screened(candidate(0.051), history)

    assert found.ratio == pytest.approx(math.exp(0.051 - 0.064))
    assert found.word is None
    assert "5.2 % slower than the newest" in found.reason
    assert screened(candidate(0.0), history).word == "PASS"


def test_the_newest_session_too_is_compared_at_the_hosts_speed_of_today() -> None:
    # The host was slow in the newest session alone, and is not now.
    probes = [0.0, 0.001, -0.001, 0.0, 0.06]

    found = screened(candidate(0.055), sessions(probes, probes), {"memory": 1.0})

    assert "5.7 % slower than the newest" in found.reason
    assert found.word is None


def test_sessions_before_the_last_change_of_level_do_not_count() -> None:
    noise = (0.0, 0.002, -0.002, 0.001, -0.001)
    slow = [0.1 + step for step in (*noise, *noise)]

    found = screened(candidate(0.0), sessions([*slow, *noise]))

    assert found.num_sessions == 5
    assert found.ratio == pytest.approx(1.0)


def test_sessions_of_other_benchmark_files_do_not_count() -> None:
    history = sessions([0.0] * 5)
    changed = dataclasses.replace(candidate(0.0), digest="0123")

    assert screened(changed, history).reason == (
        "has 0 of the 5 stored sessions that a screen needs"
    )


def test_the_variance_is_pulled_towards_the_other_cells() -> None:
    # s^2 = 1e-4 and 9e-4, so s0^2 = 5e-4, and d0 is the other cell's 4 degrees of freedom:
    # v = (4 x 5e-4 + 4 x 1e-4) / 8 = 3e-4, SE = sqrt(3e-4 x 6/5), t(0.975, 8) = 2.306004.
    # For the noisier one d0 = 4 x 1.25 x 5e-4 / 9e-4 = 2.7778, v = 7.36066e-4, df = 6.7778.
    history = [session({"a": step, "b": 3 * step}) for step in STEPS]

    found = screen([candidate(0.0), candidate(0.0, "b")], history)

    assert log_interval(found["a"]) == pytest.approx((-0.0437534, 0.0437534), abs=1e-6)
    assert log_interval(found["b"]) == pytest.approx((-0.0707464, 0.0707464), abs=1e-6)


def test_cells_that_come_one_by_one_are_moderated_by_those_before_them() -> None:
    history = [session({"a": step, "b": 3 * step, "c": 2 * step}) for step in STEPS]
    cells = [candidate(0.0, name) for name in "abc"]
    screener = Screener(history, None)

    for number, cell in enumerate(cells, 1):
        assert cell.screened_by(screener) == screen(cells[:number], history)[cell.name]


def test_the_prior_counts_for_no_more_than_eight_degrees_of_freedom() -> None:
    # All s^2 = 1e-4, n = 5, d0 = 8: df = 12, t(0.975, 12) = 2.178813, SE = 0.0109545.
    names = [f"cell{number}" for number in range(24)]
    history = [session(dict.fromkeys(names, step)) for step in STEPS]

    found = screen([candidate(0.0, name) for name in names], history)["cell0"]

    assert log_interval(found)[1] == pytest.approx(0.0238677, abs=1e-6)


def test_a_shift_of_the_whole_host_is_taken_out() -> None:
    # y = p + e with e = 0.002 (1, -1, 0, -1, 1): b = 1, s^2 = 1.6e-5 / 3; the sum of squares of p
    # is 0.001, and p is now 0.03 from its mean: leverage 1 + 1/5 + 0.0009/0.001 = 2.1,
    # SE = 0.00334664, t(0.975, 3) = 3.182446.
    probes = [-0.02, -0.01, 0.0, 0.01, 0.02]
    times = [probe + 0.002 * sign for probe, sign in zip(probes, (1, -1, 0, -1, 1), strict=True)]

    found = screened(candidate(0.03), sessions(times, probes), {"memory": math.exp(0.03)})

    assert log_interval(found) == pytest.approx((-0.0106505, 0.0106505), abs=1e-7)
    assert found.word == "PASS"


def test_without_a_probe_the_same_shift_is_for_the_judge() -> None:
    # s^2 = 0.000254, SE = s sqrt(6/5) = 0.0174585, t(0.975, 4) = 2.776445: d + 0.0485 = 0.0785.
    times = [-0.018, -0.012, 0.0, 0.008, 0.022]

    found = screened(candidate(0.03), sessions(times))

    assert found.word is None
    assert found.reason == (
        "3.0 % slower than 5 stored sessions and 0.8 % slower than the newest; at worst 8.2 % "
        "slower, limit 5.0 %"
    )


@pytest.mark.parametrize(
    "history",
    [
        sessions([0.0, 0.01, -0.01, 0.01, -0.01], [0.0, -0.01, 0.01, -0.01, 0.01]),  # downward
        sessions([0.0, 0.01, -0.01, 0.01, -0.01], [0.0, 1e-9, -1e-9, 1e-9, -1e-9]),  # stood still
        [*sessions([0.0, 0.01, -0.01, 0.01], [0.0, 0.01, -0.01, 0.01]), *sessions([-0.01])],
    ],
)
def test_an_unknown_slope_corrects_nothing(history: list[StoredRun]) -> None:
    with_probe = screened(candidate(0.02), history, {"memory": math.exp(0.01)})
    without = screened(candidate(0.02), history)

    assert with_probe == without


def test_a_cell_that_is_surely_faster_says_so() -> None:
    found = screened(candidate(-0.1), sessions([step / 10 for step in STEPS]))

    assert found.word == "IMPROVED"
    assert found.reason == (
        "9.5 % faster than 5 stored sessions and 9.4 % faster than the newest; at worst 9.2 % "
        "faster, limit 5.0 %"
    )


def test_four_sessions_decide_nothing() -> None:
    found = screened(candidate(0.0), sessions([0.0] * 4))

    assert found == Screened(
        word=None,
        reason="has 4 of the 5 stored sessions that a screen needs",
        ratio=None,
        interval=None,
        num_sessions=4,
    )


def test_only_the_last_ten_sessions_count() -> None:
    history = sessions([5.0] * 20 + [0.0, 0.01] * 5)

    found = screened(candidate(0.005), history)

    assert (found.ratio, found.num_sessions) == (pytest.approx(1.0), 10)


def test_the_history_begins_at_the_last_change_that_was_meant() -> None:
    before = sessions([1.0] * 5)
    after = sessions([0.0] * 4)
    improved = [*before, session({"a": 0.0}, word="IMPROVED"), *after]
    accepted = [*before, session({"a": 0.0}, word="FAIL", accepted=("a",)), *after]

    for history in (improved, accepted):
        found = screened(candidate(0.0), history)
        assert (found.ratio, found.num_sessions) == (1.0, 5)


def test_what_was_inconclusive_or_ran_elsewhere_is_no_history() -> None:
    history = [
        *(session({"a": 1.0}, word="INCONCLUSIVE") for _ in range(3)),
        *(session({"a": 1.0}, fingerprint="other") for _ in range(3)),
        *(session({"b": 1.0}) for _ in range(3)),
        *(session({"a": 0.0}) for _ in range(2)),
    ]

    assert screened(candidate(0.0), history).num_sessions == 2


def test_a_session_on_another_kind_of_host_is_refused() -> None:
    history = sessions([0.0] * 5, [math.log(0.05)] * 5)

    found = screened(candidate(0.0), history, {"memory": 0.061})

    assert found.reason == (
        "the probe 'memory' took 61.0 ms, and 50.0 ms in 5 stored sessions: a shift of "
        "22.0 %, where 3.0 % is usual; let the machine come to rest"
    )
    assert (found.word, found.num_sessions) == (None, 0)


@pytest.mark.parametrize(("shift", "is_fit"), [(0.0, True), (0.044, True), (-0.045, False)])
def test_a_probe_may_be_three_robust_sd_off(shift: float, is_fit: bool) -> None:
    # The median absolute deviation of these is 0.01, so 3 robust sd are 0.044478.
    history = sessions([0.0] * 5, [-0.02, -0.01, 0.0, 0.01, 0.02])

    assert (why_unfit(history, {"memory": math.exp(shift)}) is None) == is_fit


def test_a_probe_with_too_few_stored_ones_refuses_no_session() -> None:
    history = sessions([0.0] * 4, [0.0] * 4)

    assert why_unfit(history, {"memory": 9.0}) is None
    assert why_unfit(history, {"another": 9.0}) is None
    assert why_unfit(history, None) is None


@given(
    times=st.lists(st.floats(-0.1, 0.1), min_size=5, max_size=12),
    log_time=st.floats(-0.2, 0.2),
    slower_by=st.floats(0, 0.2),
)
def test_a_slower_cell_never_looks_better(
    times: list[float], log_time: float, slower_by: float
) -> None:
    history = sessions(times)

    found = screened(candidate(log_time), history)
    slower = screened(candidate(log_time + slower_by), history)

    assert found.word is not None or slower.word is None
    assert found.ratio is not None
    assert found.word is None or found.ratio < 1 + LIMIT


@given(
    times=st.lists(st.floats(-700, 700), min_size=5, max_size=5),
    probes=st.lists(st.floats(-700, 700), min_size=5, max_size=5),
)
def test_an_absurd_history_is_no_error_and_proves_nothing(
    times: list[float], probes: list[float]
) -> None:
    found = screened(candidate(700.0), sessions(times, probes), {"memory": 1.0})

    assert found.word is None or max(times) > 0
    assert found.reason


@pytest.mark.parametrize("host_sd", [0.0, 0.01])
def test_at_its_limit_a_cell_passes_in_one_session_of_forty(host_sd: float) -> None:
    generator = random.Random(0)
    names = [f"cell{number}" for number in range(8)]
    num_fine = num_cells = 0
    for _ in range(300):
        hosts = [generator.gauss(0.0, host_sd) for _ in range(11)]
        runs = [
            session(
                {name: host + generator.gauss(0.0, 0.01) for name in names},
                probe_s={"memory": math.exp(host)},
            )
            for host in hosts
        ]
        *history, now = runs
        head = [
            candidate(math.log(now.cells[name].median_s) + math.log1p(LIMIT), name)
            for name in names
        ]
        if why_unfit(history, now.probe_s) is None:
            found = screen(head, history, now.probe_s)
            num_cells += len(names)
            num_fine += sum(cell.word is not None for cell in found.values())

    # 2.5 % and three Monte-Carlo standard deviations.
    allowed = 0.025 + 3 * math.sqrt(0.025 * 0.975 / num_cells)
    assert num_cells > 2000
    assert num_fine / num_cells <= allowed
    assert num_fine > 0
