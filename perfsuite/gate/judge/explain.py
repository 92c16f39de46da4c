"""Why a cell moved: which stage, which counts and which functions changed between two runs."""

import contextlib
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from perfsuite.gate.arms.arm import CellRun
from perfsuite.gate.judge.trial import Trial
from perfsuite.records.cell import Operator
from perfsuite.records.run_file import StoredCell
from perfsuite.records.verdict import Explanation
from perfsuite.system.untrusted import MOST

_NUM_NAMED = 10
# A stage or a function is named if it alone explains at least this share of the cell's change.
_SHARE_THAT_EXPLAINS = 0.3
# "data.py:crop" or "<built-in …>"; an operator of torch is "aten::mm" or "Region: 0".
_FUNCTION = re.compile(r"<|[^:]+:[^: ]")
_Both = dict[str, tuple[float, float]]  # numbers of base and head, by name
_Rows = list[dict[str, Any]]  # of a profile


def explain(trial: Trial, base: CellRun, head: CellRun) -> Explanation:
    """Return what moved over the pairs of a cell, by counts alone if these gave the verdict."""
    moves_s = [head_s - base_s for base_s, head_s in trial.raw] if trial.by == "pairs" else []
    # A failure that an earlier session found has no other launches in this one.
    pairs = [*zip(trial.runs.get("base", [base]), trial.runs.get("head", [head]), strict=False)]
    return _explain(
        statistics.median(moves_s or [0.0]),
        _stages_over(pairs),
        _pairs(_part(base, "counts"), _part(head, "counts")),
        *_profiles(base, head),
    )


def explain_stored(base: StoredCell, head: StoredCell) -> Explanation:
    """Return what differs between two stored runs of a cell."""
    return _explain(
        head.median_s - base.median_s,
        _pairs(_fields(base.stages_s), _fields(head.stages_s)),
        _pairs(_fields(base.counts), _fields(head.counts)),
        _operators(base.operators or (), head.operators or ()),
    )


def _explain(change_s: float, stages: _Both, counts: _Both, *profiles: _Rows) -> Explanation:
    moves = {name: head_s - base_s for name, (base_s, head_s) in stages.items()}
    moved = max(moves, key=lambda name: moves[name] * change_s, default=None)
    least_s = _SHARE_THAT_EXPLAINS * abs(change_s)
    explains = moved is not None and moves[moved] * change_s > 0 and abs(moves[moved]) >= least_s
    return Explanation(
        moved_stage=moved if explains else None,
        stages=stages,
        counts={name: (int(a), int(b)) for name, (a, b) in counts.items() if a != b},
        operators=next(filter(None, (_that_explain(rows, change_s) for rows in profiles)), ()),
    )


def _that_explain(rows: _Rows, change_s: float) -> tuple[dict[str, Any], ...]:
    # A profile slows all of it down: what moved must explain the change of the profile too.
    total_s = max(abs(change_s), abs(sum(map(_move_s, rows))))
    rows = [row for row in rows if _move_s(row) * change_s > 0][:_NUM_NAMED]
    return tuple(rows) if rows and abs(_move_s(rows[0])) >= _SHARE_THAT_EXPLAINS * total_s else ()


def _stages_over(runs: Sequence[tuple[CellRun, CellRun]]) -> _Both:
    """The base's median of each stage, and that with the median of the moves, as in `raw`."""
    found = [_pairs(_part(base, "stages_s"), _part(head, "stages_s")) for base, head in runs]
    stages: _Both = {}
    for name in found[-1]:
        pairs = [one[name] for one in found if name in one]
        base_s = statistics.median(before for before, _ in pairs)
        stages[name] = base_s, max(0.0, base_s + statistics.median(b - a for a, b in pairs))
    return stages


def _fields(record: msgspec.Struct | None) -> Mapping[str, Any]:
    return {} if record is None else msgspec.structs.asdict(record)


def _part(run: CellRun, name: str) -> Mapping[str, Any]:
    part = (run.record or {}).get(name)
    return part if isinstance(part, dict) else {}


def _pairs(base: Mapping[str, Any], head: Mapping[str, Any]) -> _Both:
    # A test may put there what it likes, more than a float holds, or NaN.
    both: dict[str, tuple[Any, Any]] = {name: (base[name], head.get(name)) for name in base}
    return {
        name: (float(values[0]), float(values[1]))
        for name, values in both.items()
        if all(isinstance(value, int | float) and 0 <= value <= MOST for value in values)
    }


def _profiles(base: CellRun, head: CellRun) -> list[_Rows]:
    """The operators and functions of ranks; those of their controllers where there are none."""
    with contextlib.suppress(msgspec.ValidationError):  # the base's perfsuite has another form
        kept = [(run.record or {}).get("operators") or () for run in (base, head)]
        before, after = (msgspec.convert(one, tuple[Operator, ...]) for one in kept)
        if before and after:
            rows = _operators(before, after)
            functions = [row for row in rows if _FUNCTION.match(row["name"])]
            return [[row for row in rows if not _FUNCTION.match(row["name"])], functions]
    return [_rows(base.profile, head.profile, missing=0.0)]


def _operators(base: Sequence[Operator], head: Sequence[Operator]) -> _Rows:
    return _rows(*(map(msgspec.structs.astuple, run) for run in (base, head)), missing=None)


def _rows(
    base: Iterable[tuple[Any, ...]], head: Iterable[tuple[Any, ...]], *, missing: float | None
) -> _Rows:
    """Calls and own seconds, [base, head], by name; what moved most first."""
    before, after = ({name: values for name, *values in one} for one in (base, head))
    rows: _Rows = []
    for name in dict.fromkeys([*before, *after]):
        found = (one.get(name, (missing, missing)) for one in (before, after))
        calls, self_s = zip(*found, strict=True)
        rows.append({"name": name, "calls": calls, "self_s": self_s})
    return sorted(rows, key=lambda row: -abs(_move_s(row)))


def _move_s(row: Mapping[str, Any]) -> float:
    base_s, head_s = row["self_s"]
    return (head_s or 0.0) - (base_s or 0.0)
