"""What the all_reduce cells say of links, and what their model estimates for more devices."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_runs import cell
from scaled_runs import LINK, all_reduces, reduced, trained

from perfsuite.report.rows import HistoryPoint, Row
from perfsuite.report.scaling.cost_model import Links
from perfsuite.report.scaling.series import NUM_DEVICES, Estimate, describe_scaling


def links_of(*rows: Row) -> Links:
    (links,) = describe_scaling(rows).links.values()
    return links


# --- links ---


def test_the_model_comes_from_the_bare_reductions() -> None:
    links = links_of(*all_reduces(2, 4), trained("ddp:2"))

    assert links.model is not None
    assert links.model.latency_s == pytest.approx(LINK.latency_s)
    assert links.model.per_byte_s == pytest.approx(LINK.per_byte_s)
    assert (links.device, links.fingerprint, links.world_sizes) == ("cpu", "0123456789ab", (2, 4))
    assert [held_out.value for held_out in links.held_out] == [2, 4, 2**12, 2**20, 2**26]


def test_reductions_of_ranks_that_share_cores_are_kept_apart() -> None:
    slow = [reduced(4, one, 10.0, num_cores=2) for one in (2**12, 2**26)]

    links = links_of(*all_reduces(2, num_cores=2), *slow)

    assert links.model is not None
    assert links.model.latency_s == pytest.approx(LINK.latency_s)
    assert [one.world_size for one in links.all_reduces_sharing_cores] == [4, 4]
    assert links.world_sizes == (2,)


def test_where_all_of_them_share_cores_there_is_no_model() -> None:
    links = links_of(*all_reduces(2, 4, num_cores=1))

    assert links.model is None
    assert links.reason == (
        "every all_reduce has more ranks than the machine's 1 cores, so it measures ranks that "
        "take turns on a core and not a link"
    )
    assert links.held_out == ()


def test_every_run_of_one_commit_is_a_measurement() -> None:
    row = reduced(2, 2**20, 0.1)
    history = tuple(
        HistoryPoint(when="day", commit="abc", step_time_s=seconds, is_accepted=False)
        for seconds in (0.2, 0.1)
    )

    links = links_of(dataclasses.replace(row, history=history))

    assert [one.time_s for one in links.all_reduces] == [0.2, 0.1]


def test_each_environment_has_links_of_its_own() -> None:
    found = describe_scaling([reduced(2, 2**20), reduced(2, 2**20, fingerprint="another")]).links

    assert list(found) == [("cpu", "0123456789ab"), ("cpu", "another")]


@pytest.mark.parametrize(
    "row",
    [
        Row(name="plain", step_time_s=1.0),
        trained("ddp:2", workload="all_reduce"),
        cell("uncounted", workload="all_reduce", samples_per_s=None, parallel="ddp:2"),
        cell(
            "two in one",
            workload="all_reduce",
            samples_per_s=None,
            parallel="ddp:2",
            counts={"collectives": 2, "collective_bytes": 8},
        ),
    ],
    ids=lambda row: row.name,
)
def test_what_is_no_bare_reduction_says_nothing_of_links(row: Row) -> None:
    assert describe_scaling([row]).links == {}


# --- estimates ---


def test_a_weak_estimate_is_a_step_of_one_process_and_what_backward_cannot_hide() -> None:
    scaling = describe_scaling(
        [*all_reduces(2, 4), trained("single"), trained("ddp:2", num_bytes=80_000_000)]
    )

    (series,) = scaling.series
    eight, *_ = series.estimates

    # 14 steps of 1 ms and of 10 MB at 1 ns a byte are 154 ms; 60 ms of backward hide some of it.
    assert eight.num_devices == 8
    assert eight.all_reduce_s == pytest.approx(0.154)
    assert eight.step_time_s == pytest.approx((0.1 + 0.094, 0.1 + 0.154))
    assert eight.efficiency == pytest.approx((0.1 / 0.254, 0.1 / 0.194))


def test_a_strong_estimate_shares_the_step_and_ends_where_the_samples_do() -> None:
    scaling = describe_scaling(
        [
            *all_reduces(2, 4),
            trained("single", batch_per_device=64),
            trained("ddp:2", batch_per_device=32, num_bytes=8_000_000),
        ]
    )

    (series,) = scaling.series
    found = series.estimates

    assert [one.num_devices for one in found] == [8, 64]
    # 14 steps of 1 ms and of 1 MB: 28 ms; an eighth of 60 ms of backward hides 7.5 ms of it.
    assert found[0].step_time_s == pytest.approx((0.0125 + 0.0205, 0.0125 + 0.028))
    assert found[0].efficiency[0] == pytest.approx(0.0125 / 0.0405)


def test_what_was_measured_is_not_estimated_but_expected() -> None:
    scaling = describe_scaling([*all_reduces(2, 4), trained("single"), trained("ddp:8")])

    (series,) = scaling.series

    assert [one.num_devices for one in series.estimates] == [64, 1024]
    expected = series.cells[1].expected
    assert isinstance(expected, Estimate)
    assert expected.num_devices == 8


def test_efficiency_only_falls_with_devices() -> None:
    scaling = describe_scaling([*all_reduces(2, 4), trained("single"), trained("ddp:2")])

    found = scaling.series[0].estimates

    assert tuple(one.num_devices for one in found) == NUM_DEVICES
    for side in (0, 1):
        efficiencies = [one.efficiency[side] for one in found]
        assert efficiencies == sorted(efficiencies, reverse=True)
        assert all(0 < efficiency <= 1 for efficiency in efficiencies)


@pytest.mark.parametrize(
    "rows",
    [
        [trained("single"), trained("ddp:2")],
        [reduced(2, 2**20), trained("single"), trained("ddp:2")],
        [*all_reduces(2), trained("single", fingerprint="x"), trained("ddp:2", fingerprint="x")],
        [*all_reduces(2), trained("ddp:2"), trained("ddp:4")],
        [*all_reduces(2), trained("single"), trained("fsdp:2")],
        [*all_reduces(2), trained("single", backward_s=-1.0), trained("ddp:2")],
    ],
    ids=[
        "no reductions",
        "no model",
        "another environment",
        "no base of one process",
        "another mode",
        "no backward",
    ],
)
def test_where_something_is_not_known_nothing_is_estimated(rows: list[Row]) -> None:
    scaling = describe_scaling(rows)

    assert [series.estimates for series in scaling.series] == [()]
