"""What a rank does with a job."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from perfsuite.ranks import messages
from perfsuite.ranks.progress import Board
from perfsuite.worker import main


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

    job = messages.RecordSteps.__new__(messages.RecordSteps)
    monkeypatch.setitem(main._JOBS, messages.RecordSteps, check)
    start: Any = None
    torch.use_deterministic_algorithms(True)
    try:
        left = main._run(job, start, torch.device("cpu"), Board(tmp_path / "board", 1).writer(0))
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)

    assert (left, strict) == (None, [True, True])
