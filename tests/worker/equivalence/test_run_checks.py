"""The checks of one run, one after the other."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perfsuite import Recipe
from perfsuite.records.equivalence import EquivalenceRow
from perfsuite.worker.equivalence import run_checks
from perfsuite.worker.equivalence.comparison import Discrepancy
from perfsuite.worker.equivalence.proof import Case, Proof

RECIPE = Recipe(parallel="ddp:2")
DATA = EquivalenceRow.of(RECIPE, "data", "equivalent", "each sample once")


class Reference:
    """What a proof holds in a closure, as large as a model."""


def found(what: str, error: float = 0.0) -> Discrepancy:
    return Discrepancy(what=what, name="w", step=1, error=error, limit=1e-6, formula="2 u")


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[str], list[int]]]:
    """Runs made-up checks; returns the rows, and how many references lived as each check began."""
    alive: weakref.WeakSet[Reference] = weakref.WeakSet()

    def run(*differences: Discrepancy, **results: Any) -> tuple[list[str], list[int]]:
        living: list[int] = []

        def check_of(name: str) -> Callable[[Case], Any]:
            def check(case: Case) -> Any:
                living.append(len(alive))
                result = results.get(name, f"{name} does not apply")
                if not isinstance(result, Discrepancy):
                    return result
                alive.add(reference := Reference())
                return Proof(check=name, evidence=[result], find_cause=lambda _: str(reference))

            return check

        monkeypatch.setattr(run_checks, "check_reduction", check_of("T0"))
        monkeypatch.setattr(run_checks, "check_semantics", check_of("T1"))
        monkeypatch.setattr(run_checks, "check_checkpointing", check_of("checkpointing"))
        monkeypatch.setattr(run_checks, "check_optimizer_steps", lambda case, proof: None)
        monkeypatch.setattr(run_checks, "check_data", lambda case: DATA)
        trace = SimpleNamespace(steps=[object()], differences=differences)
        case = SimpleNamespace(recipe=RECIPE, num_steps=1, trace=trace)
        rows, _ = run_checks.check_run(cast(Case, case))
        return [f"{row.check} {row.status}" for row in rows], living

    return run


def test_a_proof_is_concluded_before_the_next_check_needs_its_room(check: Any) -> None:
    rows, living = check(T0=found("gradient"), T1=found("gradient"), checkpointing=found("loss"))

    assert rows == [
        "T0 equivalent",
        "T1 equivalent",
        "checkpointing equivalent",
        "data equivalent",
    ]
    assert living == [0, 0, 0]


def test_ranks_that_differ_are_the_first_proofs_and_their_buffers_the_semantics(check: Any) -> None:
    weights, buffer = found("parameter", error=1.0), found("buffer", error=1.0)
    fine = found("gradient")

    assert check(weights, T0=fine, T1=fine)[0][:2] == ["T0 mismatch", "T1 equivalent"]
    assert check(buffer, T0=fine, T1=fine)[0][:2] == ["T0 equivalent", "T1 mismatch"]
    assert check(weights, T1=fine)[0][:1] == ["T1 mismatch"]
    # T1 cannot be exercised, and yet the buffers are wrong.
    missing = EquivalenceRow.of(RECIPE, "T1", "not exercised", "a draw")
    rows, _ = check(buffer, T0=fine, T1=missing)
    assert rows[:3] == ["T0 equivalent", "T1 mismatch", "T1 not exercised"]
