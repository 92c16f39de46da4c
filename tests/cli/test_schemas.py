"""The JSON Schemas: what they take and refuse, and what records and verbs write held to them.

What other tests have a verb or a session write is held to them too, by `call_verb` and by
`assert_results_valid`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from command_line import call_verb
from json_schemas import assert_valid, schemas, strict
from jsonschema import Draft202012Validator
from made_up_cells import make_record
from made_up_runs import benchmark, record, verdict, write_run

from perfsuite.cli.doctor.findings import Finding
from perfsuite.experiments.results import not_exercised
from perfsuite.gate.noise import Calibration, CellNoise
from perfsuite.records.cell import CellLine, CellRecord, StepPercentiles, TensorDigest
from perfsuite.records.recipe import Recipe
from perfsuite.records.run_file import RunStamp
from perfsuite.records.shard import ShardStamp

# Of each schema: "?" stands behind a key that may be left out.
KEYS = (Path(__file__).parent / "keys_of_schema_1.txt").read_text().splitlines()
RECORDS = {"cell", "plain-cell", "cells-line", "run", "pairs", "calibration"}
VERBS = {
    *("gate", "verify", "profile", "compare", "sweep", "claims", "explain", "history", "bisect"),
    *(
        "report",
        "calibrate",
        "baseline-list",
        "baseline-accept",
        "baseline-prune",
        "doctor",
        "init",
    ),
}


def as_json(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


def errors_of(name: str, document: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(schemas()[name]).iter_errors(document)]


def keys_of(schema: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    """Each key that a schema names, by its path."""
    if "$ref" in schema:
        yield from keys_of(root["$defs"][schema["$ref"].rpartition("/")[2]], root, path)
    for key, one in schema.get("properties", {}).items():
        inner = f"{path}.{key}"
        yield inner + "?" * (key not in schema.get("required", ()))
        yield from keys_of(one, root, inner)
    for one in (*schema.get("anyOf", ()), *schema.get("prefixItems", ())):
        yield from keys_of(one, root, path)
    for name, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(name), dict):
            yield from keys_of(schema[name], root, path + mark)


def test_there_is_a_schema_of_each_record_and_of_each_verb_that_writes_json() -> None:
    assert schemas().keys() == RECORDS | VERBS


@pytest.mark.parametrize("name", sorted(RECORDS | VERBS))
def test_a_schema_is_one_in_every_language(name: str) -> None:
    schema = schemas()[name]

    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$schema"]
    text = json.dumps(schema)
    assert r"\\A" not in text
    assert r"\\Z" not in text
    assert '"additionalProperties": false' not in text


def test_while_the_schema_is_1_keys_are_only_added_and_may_be_left_out() -> None:
    now = {key for name in schemas() for key in keys_of(schemas()[name], schemas()[name], name)}

    known = {key.rstrip("?") for key in KEYS}
    assert known - {key.rstrip("?") for key in now} == set(), "these keys are gone"
    needed = {key for key in now - set(KEYS) if not key.endswith("?")}
    assert needed == set(), "older files lack these keys: give them a default of null"


def test_a_newer_file_is_taken_and_an_older_one_too() -> None:
    newer = as_json(make_record()) | {"from_the_future": {"a": 1}}
    older = {
        key: value for key, value in as_json(make_record()).items() if f"cell.{key}?" not in KEYS
    }

    assert errors_of("cell", newer) == []
    assert errors_of("cell", older) == []
    assert len(older) < len(newer) - 1
    with pytest.raises(AssertionError, match="from_the_future"):
        assert_valid("cell", newer)


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"world_size": -1},
        {"device": "cpu; rm"},
        {"memory": {"metric": "rss", "peak_bytes": 1, "per_rank": [1]}},
        {"verdict": {"word": "SLOW", "by": "pairs"}},
        {"samples_per_s": "fast"},
        {"counts": None},
    ],
)
def test_a_wrong_value_is_refused(changes: dict[str, Any]) -> None:
    assert errors_of("cell", as_json(make_record()) | changes)


def full_record() -> CellRecord:
    return make_record(
        Recipe(parallel="ddp:2", clip_grad_norm=0.5),
        verdict=verdict(numerics_change="same bits", tolerance=0.02, limit=0.05),
        slow_ranks={"load": 1},
        rank_stages_s={"load": (0.1, 0.2)},
        step_s=StepPercentiles(p50=0.1, p95=0.2, p99=0.3),
        weights=((TensorDigest(num_elements=3, total=0.5, squares=0.25),),),
        mfu=0.5,
    )


@pytest.mark.parametrize(
    "found",
    [
        make_record(),
        msgspec.structs.replace(make_record(), recipe=None, memory=None),
        full_record(),
        record(peak_bytes=1, counts={"flops": 1}),
    ],
)
def test_a_record_is_as_its_schema_says(found: CellRecord) -> None:
    line = CellLine(
        fullname="t", outcome="passed", reason=None, step_times_s=(0.1,), perfsuite=found
    )

    assert_valid("cell", as_json(found))
    assert_valid("cells-line", as_json(line))
    assert_valid("plain-cell", as_json({"verdict": found.verdict}))


def test_the_stamp_of_a_run_and_a_calibration_are_as_their_schemas_say() -> None:
    stamp = RunStamp(
        fingerprint=None,
        probe_s={"cpu": 0.1},
        num_failed=0,
        is_pull_request=False,
        verdicts={"a": "NO-BASELINE"},
        accepted=("a",),
        exceptions={"a": ("why",)},
        shard=ShardStamp(number=1, num_shards=2, num_cells=3, partition="c" * 12),
    )

    assert_valid("run", as_json(stamp))
    noise = CellNoise(sd=0.01, num_pairs=3, bias=-0.01)
    assert_valid("calibration", as_json(Calibration(fingerprint="a", cells={"a": noise})))


def test_what_the_doctor_init_verify_and_explain_write_is_as_their_schemas_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    verify = importlib.import_module("perfsuite.cli.verbs.verify")
    session = SimpleNamespace(verify=lambda *_, **__: not_exercised("w", Recipe(), "no GPU"))
    monkeypatch.setattr(verify, "open_session", lambda *_: session)
    findings = [Finding("cores", "ok", "2"), Finding("load", "warn", "2.0", "end them")]
    monkeypatch.setattr("perfsuite.cli.doctor.verb.examine", lambda: findings)
    runs = [
        str(write_run(Path(f"{flops}.json"), benchmark("t", info=record(counts={"flops": flops}))))
        for flops in (10, 20)
    ]

    # Each is held to its schema as it ends.
    assert call_verb("doctor", "--json", "doctor.out") == 0
    assert call_verb("init", "repository", "--json", "init.out") == 2
    assert call_verb("init", ".", "--json", "init.out") == 0
    assert call_verb("verify", "toy-mlp", "--json", "verify.out") == 22
    assert call_verb("explain", *runs, "--json", "explain.out") == 0

    assert json.loads(Path("explain.out").read_text())["cells"][0]["counts"] == {"flops": [10, 20]}
    assert {path.suffix for path in Path().glob("*.out")} == {".out"}


def test_the_verb_writes_a_file_for_each_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call_verb("schemas", str(tmp_path / "schemas")) == 0

    written = {path.stem: path.read_text() for path in (tmp_path / "schemas").glob("*.json")}
    assert {name: json.loads(text) for name, text in written.items()} == schemas()
    assert all(text.endswith("}\n") for text in written.values())
    assert capsys.readouterr().out == f"written to {tmp_path / 'schemas'}\n"


def test_a_folder_that_cannot_be_written_ends_in_12(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()

    assert call_verb("schemas", str(tmp_path / "file")) == 12
    assert capsys.readouterr().err.startswith(
        f"perfsuite: cannot write {tmp_path}/file/cell.json: "
    )


def test_the_strict_schema_of_the_tests_refuses_what_is_not_named() -> None:
    schema = {"properties": {"a": {"type": "object", "properties": {"b": {}}}}}

    validator = Draft202012Validator(strict(schema))

    assert not validator.is_valid({"a": {"b": 1, "c": 1}})
    assert validator.is_valid({"a": {"b": 1}})
