"""The verb `schemas`: a JSON Schema of each record, and of what each verb writes by `--json`.

What a verb writes is a skeleton here: keys of one type stand together, "**" stands for the keys of
a record, a list for items of one kind, {str: kind} for names that are data. Tests hold it to that.
"""

from datetime import datetime
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal

import msgspec
import typer

from perfsuite.cli.doctor.findings import Finding
from perfsuite.gate.baselines.accepted import Entry
from perfsuite.gate.bisect import Mark
from perfsuite.gate.history import DatedChange, DatedDrift, Point
from perfsuite.gate.judge.kept_pairs import KeptFile
from perfsuite.gate.noise import Calibration, CellNoise
from perfsuite.records.cell import CellLine, CellRecord, Counts, Memory, RecipeValue, StageTimes
from perfsuite.records.equivalence import EquivalenceRow, Numerics
from perfsuite.records.profile import Profile
from perfsuite.records.run_file import RunStamp
from perfsuite.records.verdict import CellVerdict, Explanation, Verdict
from perfsuite.report.runs import PlainRecord
from perfsuite.system.files import write_atomically

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _type_of(kind: Any, name: str) -> Any:
    if isinstance(kind, list):
        return GenericAlias(list, (_type_of(kind[0], name),))
    if not isinstance(kind, dict):
        return kind
    if str in kind:
        return GenericAlias(dict, (str, _type_of(kind[str], name)))
    fields = [
        (key, _type_of(one, f"{name}-{key}"))
        for keys, one in kind.items()
        for key in keys.split()
        if key != "**"
    ]
    return msgspec.defstruct(name, fields, bases=(kind.get("**", msgspec.Struct),), kw_only=True)


_TEXT, _NUMBER, _PAIR = str | None, float | None, tuple[float, float]
_BOUNDS, _COUNTED = tuple[float, float] | None, tuple[int, int]
_RECIPE = {str: RecipeValue}
_TIMES = {"num_workers": int, "iteration_s": float, "interval_s": _BOUNDS, "repetitions_s": [float]}
_SWEPT = {"times": [_TIMES], "optimum": int, "within_noise": [int], "hurts_from": int | None}
_CLAIM = {"id status text quoted source reason": str, "figures": {str: Any}, "broken": bool}
_STORED_RUN = {"path": str, "saved_at": datetime | None, "commit fingerprint reason": _TEXT} | {
    "num_cells": int | None,
    "is_this_environment is_usable": bool,
}
_HISTORY: dict[str, Any] = {"id": str, "runs": [Point], "is_long_enough": bool}
_HISTORY |= {"changes": [DatedChange], "drift": DatedDrift | None}
_REPORTED: dict[str, Any] = {"id": str, "step_time_s spread_ratio": _NUMBER, "note": _TEXT}
_REPORTED |= {"verdict": Verdict | None, "record": CellRecord | None}
_STEP = _type_of(
    {"**": Verdict, "commit subject": str, "mark": Mark}
    | {"reason": _TEXT, "explanation": Explanation | None},
    "bisect-step",
)
# By the name of the schema's file. In a gate's cell a bound that is infinite is null.
_KINDS: dict[str, Any] = {
    "cell": CellRecord,
    "plain-cell": PlainRecord,
    "cells-line": CellLine,
    "run": RunStamp,
    "pairs": KeptFile,
    "calibration": Calibration,
    "gate": {"cells": [{"**": CellVerdict, "interval": tuple[float, float | None] | None}]}
    | {"seed pairs exit_code": int, "arms": {str: str}, "refusal": _TEXT, "wall_s": _NUMBER},
    "verify": {"rows": [EquivalenceRow]},
    "profile": Profile,
    "compare": {"workload word sentence": str, "a b": _RECIPE, "pairs seed": int, "raw": [_PAIR]}
    | {"ratio wall_s tolerance limit": float, "interval": _BOUNDS, "samples": {str: int}}
    | {"step_times_s": {str: float}, "stages_s": {str: StageTimes}, "counts": {str: Counts}}
    | {"memory": {str: Memory | None}, "numerics": {str: Numerics}},
    "sweep": {"workload": str, "advice": _TEXT, "recipe": _RECIPE, "seed": int}
    | {**_SWEPT, "loading": _SWEPT},
    "claims": {"claims": [_CLAIM]},
    "report": {"word": _TEXT, "text": str, "gaps unjudged": [str], "cells": [_REPORTED]}
    | {"advice": [{"text evidence": str}], "exit_code": int},
    "explain": {"cells": [{"**": Explanation, "id": str}]},
    "history": {"cells": [_HISTORY], "refused": [{"path reason": str}]},
    "bisect": {"cell": str, "refusal": _TEXT, "first_bad": _STEP | None, "ends steps": [_STEP]}
    | {"possible": [{"commit subject": str}], "tolerance limit": float, "seed exit_code": int},
    "calibrate": {"sessions cells": int, "false_alarms": _COUNTED, "power": {str: _COUNTED}}
    | {"pair_sd session_sd": _NUMBER, "pair_sd_by_cell mean_pairs wall_s": {str: float}}
    | {"noise": {str: {"**": CellNoise, "launch_sd": _NUMBER, "recommended": _BOUNDS}}}
    | {"verdicts": {str: {str: int}}},
    "baseline-list": {"fingerprint": str, "runs": [_STORED_RUN]},
    "baseline-accept": {"file": str, "accepted": Entry},
    "baseline-prune": {"expired": [Entry], "old_runs": [str], "is_removed": bool},
    "doctor": {"findings": [Finding]},
    "init": {"written kept": [str]},
}


def schemas(folder: Annotated[Path, typer.Argument(metavar="DIR")]) -> None:
    """Write the JSON Schema of each record, and of each verb's JSON, into a folder.

    They take newer files too, which may have more keys.
    """
    for name, kind in _KINDS.items():
        document = {"schema": Literal[1], **kind} if isinstance(kind, dict) else kind
        schema = {"$schema": _DIALECT, **msgspec.json.schema(_type_of(document, name))}
        text = msgspec.json.encode(schema).replace(b',"additionalProperties":false', b"")
        # In other languages \A and \Z are letters.
        text = text.replace(rb"\\A", b"^").replace(rb"\\Z", b"$")
        write_atomically(folder / f"{name}.json", msgspec.json.format(text, indent=1) + b"\n")
    typer.echo(f"written to {folder}")
