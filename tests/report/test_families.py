"""How cells are grouped for a chart."""

from __future__ import annotations

import pytest

from perfsuite.records.parallel import parse_parallel
from perfsuite.report.families import mode_name


@pytest.mark.parametrize(
    ("parallel", "name"),
    [("ddp:4", "ddp"), ("pp:2", "pp 1f1b"), ("mesh:fsdp=2,tp=2", "mesh fsdp,tp")],
)
def test_a_mode_is_named_with_what_tells_it_from_others(parallel: str, name: str) -> None:
    assert mode_name(parse_parallel(parallel)) == name
