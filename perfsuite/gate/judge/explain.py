"""Why a cell moved: which stage, which counts and which functions changed between two runs.

Must not decide whether anything moved.
"""

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
    """The numbers that both have."""
    return {
        name: (float(base[name]), float(head[name]))
        for name in base
        if _is_number(base[name]) and _is_number(head.get(name))
    }


def _is_number(value: object) -> bool:
    # A launch tells what its test put there, which may be more than a float holds, or NaN.
    return isinstance(value, int | float) and 0 <= value <= MOST


def _operators(base: Sequence[Operator], head: Sequence[Operator]) -> tuple[dict[str, Any], ...]:
    """The operators that differ, what moved most first; None for one that a run did not keep."""
    before = {operator.name: operator for operator in base}
    after = {operator.name: operator for operator in head}
    rows: list[dict[str, Any]] = [
        {"name": name}
        | {
            field: (getattr(before.get(name), field, None), getattr(after.get(name), field, None))
            for field in ("calls", "self_s")
        }
        for name in before | after
        if before.get(name) != after.get(name)
    ]
    rows.sort(key=lambda row: -abs((row["self_s"][1] or 0.0) - (row["self_s"][0] or 0.0)))
    return tuple(rows[:_NUM_NAMED])


def _functions(
    base: Sequence[tuple[str, float, float]], head: Sequence[tuple[str, float, float]]
) -> tuple[dict[str, Any], ...]:
    """The functions whose own time changed most."""
    before = {name: (calls, self_s) for name, calls, self_s in base}
    after = {name: (calls, self_s) for name, calls, self_s in head}
    nothing = (0.0, 0.0)
    moves = {
        name: after.get(name, nothing)[1] - before.get(name, nothing)[1]
        for name in before.keys() | after.keys()
    }
    names = sorted(moves, key=lambda name: -abs(moves[name]))
    if not names or abs(moves[names[0]]) < _SHARE_THAT_EXPLAINS * abs(sum(moves.values())):
        return ()
    return tuple(
        {
            "name": name,
            "calls": (before.get(name, nothing)[0], after.get(name, nothing)[0]),
            "self_s": (before.get(name, nothing)[1], after.get(name, nothing)[1]),
        }
        for name in names[:_NUM_NAMED]
    )
