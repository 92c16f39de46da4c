"""Why a cell moved: which stage, which counts and which functions changed between two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perfsuite.gate.arms.arm import CellRun
from perfsuite.records.cell import Operator
from perfsuite.records.run_file import StoredCell
from perfsuite.records.verdict import Explanation
from perfsuite.system.untrusted import MOST

_NUM_NAMED = 10
# A function is named if it alone explains at least this share of what the cell moved by.
_SHARE_THAT_EXPLAINS = 0.3


def explain(base: CellRun, head: CellRun) -> Explanation:
    """Return what differs between the launches of a cell."""
    return _explain(
        _pairs(_part(base, "stages_s"), _part(head, "stages_s")),
        _pairs(_part(base, "counts"), _part(head, "counts")),
        _functions(base.profile, head.profile),
    )


def explain_stored(base: StoredCell, head: StoredCell) -> Explanation:
    """Return what differs between two stored runs of a cell."""
    return _explain(
        _pairs(_fields(base.stages_s), _fields(head.stages_s)),
        _pairs(_fields(base.counts), _fields(head.counts)),
        _operators(base.operators or (), head.operators or ()),
    )


def _explain(
    stages: dict[str, tuple[float, float]],
    counts: dict[str, tuple[float, float]],
    operators: tuple[dict[str, Any], ...],
) -> Explanation:
    moves = {name: abs(head_s - base_s) for name, (base_s, head_s) in stages.items()}
    moved = max(moves, key=lambda name: moves[name], default=None)
    return Explanation(
        moved_stage=moved if moved is not None and moves[moved] > 0 else None,
        stages=stages,
        counts={name: (int(a), int(b)) for name, (a, b) in counts.items() if a != b},
        operators=operators,
    )


def _fields(record: msgspec.Struct | None) -> Mapping[str, Any]:
    return {} if record is None else msgspec.structs.asdict(record)


def _part(run: CellRun, name: str) -> Mapping[str, Any]:
    part = (run.record or {}).get(name)
    return part if isinstance(part, dict) else {}


def _pairs(base: Mapping[str, Any], head: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    return {
        name: (float(base[name]), float(head[name]))
        for name in base
        if _is_number(base[name]) and _is_number(head.get(name))
    }


def _is_number(value: object) -> bool:
    # A test may put there what it likes, more than a float holds, or NaN.
    return isinstance(value, int | float) and 0 <= value <= MOST


def _operators(base: Sequence[Operator], head: Sequence[Operator]) -> tuple[dict[str, Any], ...]:
    """The operators that differ; None for one that a run did not keep."""
    before = {one.name: (one.calls, one.self_s) for one in base}
    after = {one.name: (one.calls, one.self_s) for one in head}
    rows = _rows(before, after, missing=(None, None))
    differing = [row for row in rows if before.get(row["name"]) != after.get(row["name"])]
    return tuple(differing[:_NUM_NAMED])


def _functions(
    base: Sequence[tuple[str, float, float]], head: Sequence[tuple[str, float, float]]
) -> tuple[dict[str, Any], ...]:
    """The functions whose own time changed most; none where no single one explains the move."""
    before = {name: (calls, self_s) for name, calls, self_s in base}
    after = {name: (calls, self_s) for name, calls, self_s in head}
    rows = _rows(before, after, missing=(0.0, 0.0))
    moves = [_move_s(row) for row in rows]
    if not rows or abs(moves[0]) < _SHARE_THAT_EXPLAINS * abs(sum(moves)):
        return ()
    return tuple(rows[:_NUM_NAMED])


def _rows(
    before: Mapping[str, tuple[float, float]],
    after: Mapping[str, tuple[float, float]],
    *,
    missing: tuple[float | None, float | None],
) -> list[dict[str, Any]]:
    """Calls and own seconds, [base, head], by name; what moved most first."""
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys([*before, *after]):
        calls, self_s = zip(before.get(name, missing), after.get(name, missing), strict=True)
        rows.append({"name": name, "calls": calls, "self_s": self_s})
    return sorted(rows, key=lambda row: -abs(_move_s(row)))


def _move_s(row: Mapping[str, Any]) -> float:
    base_s, head_s = row["self_s"]
    return (head_s or 0.0) - (base_s or 0.0)
