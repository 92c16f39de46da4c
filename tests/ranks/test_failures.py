from __future__ import annotations

from pathlib import Path

import pytest

from perfsuite.ranks import failures as failures_module
from perfsuite.ranks.messages import Failed
from perfsuite.ranks.progress import Board, Position

LOST = "Connection closed by peer [127.0.0.1]:408. This may indicate a remote worker crashing"

WAITED = "Timed out waiting 4000ms for recv operation to complete"


def failed(message: str, at_s: float) -> Failed:
    return Failed(
        error="RuntimeError",
        is_ours=False,
        message=message,
        peer=failures_module.blamed_peer(message),
        at_s=at_s,
        lines=(),
    )


def test_the_first_failure_in_time_is_blamed() -> None:
    failures = {0: failed("late", 2.0), 1: failed("early", 1.0), 2: failed("later", 3.0)}

    assert failures_module.first_failure(failures)[0] == 1


def test_a_rank_that_only_lost_its_peer_is_not_blamed_even_if_it_was_first() -> None:
    failures = {
        0: failed(LOST, 1.0),
        2: failures_module.Died(exit_code=-9, peer=None, at_s=1.5),
    }

    assert failures_module.first_failure(failures)[0] == 2


def test_of_survivors_alone_the_first_is_blamed() -> None:
    assert failures_module.first_failure({0: failed(LOST, 2.0), 1: failed(LOST, 1.0)})[0] == 1


def test_a_rank_that_waited_is_named_before_those_that_its_end_made_fail() -> None:
    failures = {0: failed(WAITED, 2.0), 1: failed(LOST, 1.0)}

    assert failures_module.first_failure(failures)[0] == 0
    assert failures_module.came_too_late(failures) == (1,)


@pytest.mark.parametrize("messages", [[LOST, LOST], [WAITED, WAITED], [WAITED, LOST, LOST]])
def test_none_came_too_late_where_several_may_have_waited(messages: list[str]) -> None:
    failures = {rank: failed(message, 1.0) for rank, message in enumerate(messages)}

    assert failures_module.came_too_late(failures) == ()


@pytest.mark.parametrize(
    "text",
    [
        LOST,
        WAITED,
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3",
    ],
)
def test_what_backends_say_of_a_lost_peer_is_recognised(text: str) -> None:
    assert failures_module.blamed_peer(text) == ("gone" if text == LOST else "late")
    assert failures_module.blamed_peer("mat1 and mat2 shapes cannot be multiplied") is None


def test_the_rank_with_the_fewest_steps_is_furthest_behind(tmp_path: Path) -> None:
    board = Board(tmp_path / "progress", 3)
    pens = [board.writer(rank) for rank in range(3)]
    for pen, num_steps in zip(pens, [5, 3, 3], strict=True):
        for _ in range(num_steps):
            pen.begin_step()
    pens[1].enter_stage("forward")  # as many steps as rank 2, and further in the last one

    positions = {rank: board.read(rank) for rank in range(3)}
    assert failures_module.furthest_behind(positions) == 2
    assert failures_module.furthest_behind({rank: positions[rank] for rank in (0, 1)}) == 1


def test_a_stack_ends_where_the_frames_of_every_rank_begin() -> None:
    lines = [
        "Thread 0x1 (most recent call first):",
        '  File "threading.py", line 1 in wait',
        "Current thread 0x2 (most recent call first):",
        '  File "mine.py", line 7 in inner',
        '  File "mine.py", line 3 in outer',
        '  File "/site/perfsuite/worker/main.py", line 1 in serve',
        '  File "/site/perfsuite/ranks/bootstrap.py", line 1 in enter_rank',
    ]

    assert failures_module.current_stack(lines) == (
        'File "mine.py", line 7 in inner',
        'File "mine.py", line 3 in outer',
    )


IN_A_BACKWARD_PASS_OF_A_GPU = [
    "Thread 0x7f00 [pin memory] (most recent call first):",
    '  File "/lib/threading.py", line 355 in wait',
    '  File "/lib/threading.py", line 1002 in _bootstrap',
    "Thread 0x7f01 (most recent call first):",
    '  File "model.py", line 7 in backward',
    '  File "/site/torch/autograd/function.py", line 315 in apply',
    "Current thread 0x7f02 (most recent call first):",
    '  File "/site/torch/autograd/graph.py", line 869 in _engine_run_backward',
    '  File "/site/torch/_tensor.py", line 638 in backward',
    '  File "train.py", line 40 in step',
    '  File "/site/perfsuite/worker/main.py", line 50 in serve',
]


def test_the_stack_of_a_backward_pass_on_a_gpu_is_that_of_torchs_own_thread() -> None:
    assert failures_module.current_stack(IN_A_BACKWARD_PASS_OF_A_GPU) == (
        'File "model.py", line 7 in backward',
        'File "/site/torch/autograd/function.py", line 315 in apply',
    )


def test_a_backward_pass_without_python_in_it_has_the_main_threads_stack() -> None:
    idle = "Thread 0x7f03 (most recent call first):", "  <no Python frame>", ""
    lines = [*IN_A_BACKWARD_PASS_OF_A_GPU[:3], *idle, *IN_A_BACKWARD_PASS_OF_A_GPU[6:]]

    assert failures_module.current_stack(lines)[-1] == 'File "train.py", line 40 in step'


def test_a_rank_that_is_a_step_ahead_is_not_waited_for_whatever_it_does() -> None:
    # On a GPU the host runs ahead, and waits for the device in the user's own line.
    here, ahead = (
        Position(num_marks=marks, phase="measure", stage=None, step=step)
        for marks, step in ((20, 7), (26, 9))
    )
    waits = 'File "/usr/lib/torch/autograd/graph.py", line 869 in _engine_run_backward'
    stacks = {0: ['File "train.py", line 41 in step'], 1: [waits]}

    assert failures_module.latest({0: ahead, 1: here}, stacks) == 1


@pytest.mark.parametrize(
    ("phases", "patience_s"), [(["warm-up", "build"], 1200.0), (["warm-up", "measure"], 120.0)]
)
def test_what_compiles_may_be_silent_for_longer(phases: list[str], patience_s: float) -> None:
    assert failures_module.patience_s(120.0, compiles=True, phases=phases) == patience_s


def test_the_others_wait_for_the_one_that_does_not_wait() -> None:
    here = Position(num_marks=1, phase="measure", stage=None, step=7)
    waits = 'File "/usr/lib/torch/distributed/distributed_c10d.py", line 3, in all_reduce'
    stacks = {0: [waits], 1: ['File "train.py", line 9, in step']}

    assert failures_module.latest({0: here, 1: here}, stacks) == 1


def test_after_a_crash_the_last_output_is_what_came_before_it_and_its_stack() -> None:
    log = [
        *("epoch 1", "Fatal Python error: Segmentation fault", ""),
        *("Current thread 0x7f (most recent call first):", '  File "a.py", line 3 in f'),
    ]

    assert failures_module.last_output(log) == (
        *("epoch 1", "Fatal Python error: Segmentation fault", 'File "a.py", line 3 in f'),
    )
