"""What a change may touch without reaching a cell, by the names of its files."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from perfsuite.gate.git.changes import is_documentation, is_record


@pytest.mark.parametrize(
    ("name", "is_read_by_people"),
    [
        *dict.fromkeys(("README.md", "docs/a.png", "LICENSE-MIT"), True).items(),
        *dict.fromkeys(("docs/train.py", "data/license_plates.txt"), False).items(),
    ],
)
def test_documentation_is_what_people_alone_read(name: str, is_read_by_people: bool) -> None:
    assert is_documentation(PurePath(name)) == is_read_by_people


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        ("baselines/Linux-CPython-3.12-64bit/0001_main.json", True),
        *dict.fromkeys(("baselines/accepted.toml", "baselines/calibration.json"), True).items(),
        *dict.fromkeys(("a.json", "baselines/a.json", "baselines/0001_main.json"), False).items(),
        ("baselines/configs/1024_hidden.json", False),
    ],
)
def test_a_record_is_what_perfsuite_keeps(name: str, is_kept: bool) -> None:
    assert is_record(PurePath(name)) == is_kept
