"""What perfsuite writes, held to the JSON Schemas that it gives away, with not one more key."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from perfsuite.cli import schemas as schemas_module


@functools.cache
def schemas() -> dict[str, Any]:
    """Each schema by its name."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        schemas_module.schemas(Path(folder))
        return {path.stem: json.loads(path.read_text()) for path in Path(folder).iterdir()}


def strict(schema: Any) -> Any:
    """The schema without the freedom of newer files: no key but those that it names."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    named = {key: strict(one) for key, one in schema.items()}
    return {"additionalProperties": False, **named} if "properties" in schema else named


@functools.cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(strict(schemas()[name]))


def assert_valid(name: str, document: Any) -> None:
    """Fail where a document has another key or another value than its schema says."""
    found = _validator(name).iter_errors(document)
    errors = [f"{error.json_path}: {error.message}" for error in found]
    assert errors == [], f"{name}: {errors}"


def assert_results_valid(folder: Path) -> None:
    """Fail where a file that a session left among its results is not what its schema says."""
    run = json.loads((folder / "run.json").read_text())
    assert_valid("run", run["perfsuite"])
    for benchmark in run["benchmarks"]:
        record = benchmark["extra_info"]["perfsuite"]
        assert_valid("cell" if "workload" in record else "plain-cell", record)
    cells, pairs = folder / "cells.jsonl", folder / "pairs.json"
    for line in cells.read_text().splitlines() if cells.exists() else ():
        assert_valid("cells-line", json.loads(line))
    if pairs.exists():
        assert_valid("pairs", json.loads(pairs.read_text()))
