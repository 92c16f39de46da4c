from __future__ import annotations

import subprocess
import sys

import pytest

from perfsuite.experiments.results import combine_stages, slowest_rank_times
from perfsuite.ranks.messages import RoundTimes
from perfsuite.records.cell import StageTimes


def times(duration_s: float, **stages_s: float) -> RoundTimes:
    return RoundTimes(duration_s=duration_s, stages_s=stages_s)


def test_a_round_takes_as_long_as_its_slowest_rank():
    rounds_by_rank = [[times(1.0), times(4.0)], [times(2.0), times(3.0)]]

    assert slowest_rank_times(rounds_by_rank, num_iterations=2) == [1.0, 2.0]


def test_ranks_with_different_numbers_of_rounds_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        slowest_rank_times([[times(1.0), times(1.0)], [times(1.0)]], num_iterations=1)


def test_a_stage_is_the_greatest_mean_of_a_rank_and_not_the_mean_of_the_greatest():
    rounds_by_rank = [
        [times(8.0, forward=1.0, load=4.0), times(8.0, forward=5.0, load=0.0)],
        [times(8.0, forward=4.0, load=1.0), times(8.0, forward=3.0, load=1.0)],
    ]

    combined = combine_stages(rounds_by_rank, num_iterations=2)

    # Per rank: forward 6 / 4 and 7 / 4, load 4 / 4 and 2 / 4, other 6 / 4 and 7 / 4.
    assert combined == StageTimes(
        load=1.0, forward=1.75, backward=None, optimizer=None, evaluation=None, other=1.75
    )


def test_a_stage_that_only_one_rank_enters_is_that_ranks():
    rounds_by_rank = [[times(2.0, load=0.5)], [times(2.0, backward=1.5)]]

    combined = combine_stages(rounds_by_rank, num_iterations=1)

    assert (combined.load, combined.backward, combined.other) == (0.5, 1.5, 1.5)


def test_a_stage_of_some_rounds_is_spread_over_all():
    rounds = [times(4.0, evaluation=2.0), times(2.0)]

    combined = combine_stages([rounds], num_iterations=1)

    assert (combined.evaluation, combined.other) == (1.0, 2.0)


def test_on_an_accelerator_the_rest_is_what_the_device_idles_and_loading_is_the_hosts():
    rounds = [[times(10.0, load=6.0, forward=9.5)]]

    combined = combine_stages(rounds, num_iterations=1, overlaps_loading=True)

    assert (combined.load, combined.forward, combined.other) == (6.0, 9.5, 0.5)


def test_loading_that_overlaps_with_the_device_leaves_no_negative_rest():
    combined = combine_stages([[times(1.0, load=0.75, forward=0.5)]], num_iterations=1)

    assert combined.other == 0.0


def test_the_controllers_part_of_measuring_imports_no_torch():
    script = (
        "import sys, perfsuite.experiments.results, perfsuite.system.gpus\n"
        "print(*sorted({'torch', 'numpy'} & set(sys.modules)))"
    )

    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)

    assert completed.stdout.split() == []
