from __future__ import annotations

from pathlib import Path

from perfsuite.ranks.progress import Board


def test_each_rank_reads_as_what_it_wrote_last(tmp_path: Path) -> None:
    controller, rank = Board(tmp_path / "progress", 2), Board(tmp_path / "progress", 2)
    pen = rank.writer(1)

    pen.enter_phase("measure")
    pen.begin_step()
    pen.begin_step()
    pen.enter_stage("backward")

    untouched, position = controller.read(0), controller.read(1)
    assert str(untouched) == "phase 'start'"
    assert (untouched.num_marks, untouched.stage) == (0, None)
    assert str(position) == "phase 'measure', stage 'backward' of step 2"
    assert position.num_marks == 4


def test_every_mark_is_progress_even_of_the_same_stage(tmp_path: Path) -> None:
    board = Board(tmp_path / "progress", 1)
    pen = board.writer(0)

    pen.enter_stage("load")
    before = board.read(0).num_marks
    pen.enter_stage("load")

    assert board.read(0).num_marks == before + 1


def test_a_new_phase_is_in_no_stage(tmp_path: Path) -> None:
    board = Board(tmp_path / "progress", 1)
    pen = board.writer(0)
    pen.enter_stage("load")

    pen.enter_phase("count")

    assert str(board.read(0)) == "phase 'count'"
