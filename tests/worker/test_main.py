"""What a rank does with a job."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from perfsuite.ranks import messages
from perfsuite.ranks.progress import Board
from perfsuite.records.recipe import Recipe
from perfsuite.worker import main


def test_attention_with_dropout_draws_its_mask_in_sight_in_a_proof() -> None:
    def attention(*_: Any, **__: Any) -> tuple[bool, ...]:
        cuda = torch.backends.cuda
        return cuda.math_sdp_enabled(), cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled()

    attend = main._showing_its_mask(attention)

    assert attend(1, 2, 3) == (True, True, True)
    assert attend(1, 2, 3, None, 0.0) == (True, True, True)
    assert attend(1, 2, 3, None, 0.1) == (True, False, False)
    assert attend(1, 2, 3, dropout_p=0.1) == (True, False, False)


def test_a_rank_with_a_stage_of_its_own_does_not_begin_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[None] = []

    def check(*_: Any) -> Any:
        tries.append(None)
        raise RuntimeError("max_pool3d does not have a deterministic implementation")

    job = messages.RecordRun(
        workload=b"", recipe=Recipe(parallel="pp:2"), name="tested", num_steps=1
    )
    monkeypatch.setitem(main._JOBS, messages.RecordRun, check)
    start: Any = None

    with pytest.raises(RuntimeError, match="max_pool3d does not have"):
        main._run(job, start, torch.device("cpu"), Board(tmp_path / "board", 1).writer(0))

    assert len(tries) == 1


class Model:
    """Refers to itself, as a wrapper's hooks do."""

    def __init__(self) -> None:
        self.itself = self


def test_a_proof_that_begins_again_holds_nothing_of_its_first_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[weakref.ref[Model]] = []
    strict: list[bool] = []

    def check(*_: Any) -> Any:
        strict.append(torch.are_deterministic_algorithms_enabled())
        if not tries:
            model = Model()
            tries.append(weakref.ref(model))
            raise RuntimeError("max_pool3d does not have a deterministic implementation")
        return tries[0]()

    code: Any = None
    job = messages.RecordSteps(user_code=code, num_steps=1)
    monkeypatch.setitem(main._JOBS, messages.RecordSteps, check)
    start: Any = None
    torch.use_deterministic_algorithms(True)
    try:
        left = main._run(job, start, torch.device("cpu"), Board(tmp_path / "board", 1).writer(0))
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)

    assert (left, strict) == (None, [True, True])
