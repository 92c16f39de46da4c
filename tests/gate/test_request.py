"""What the arms of a gate are given."""

from pathlib import Path

from perfsuite.gate.arms.arm import Suite
from perfsuite.gate.request import import_roots


def test_import_roots_are_pythonpath_then_src_then_the_root(tmp_path: Path) -> None:
    for name in ("lib", "src"):
        (tmp_path / name).mkdir()

    assert import_roots(tmp_path, suite_with(tmp_path, "lib", "gone", ".")) == (
        tmp_path / "lib",
        tmp_path,
        tmp_path / "src",
    )
    assert import_roots(tmp_path, suite_with(tmp_path, "src")) == (tmp_path / "src", tmp_path)
    assert import_roots(tmp_path, None) == (tmp_path / "src", tmp_path)
    assert import_roots(tmp_path / "lib", None) == (tmp_path / "lib",)


def test_import_roots_of_the_base_are_the_counterparts_of_heads(tmp_path: Path) -> None:
    (tmp_path / "base" / "lib").mkdir(parents=True)
    suite = suite_with(tmp_path / "head", "lib")

    assert import_roots(tmp_path / "base", suite) == (tmp_path / "base" / "lib", tmp_path / "base")


def suite_with(root: Path, *pythonpath: str) -> Suite:
    return Suite(
        cells={},
        root=root,
        inifile=None,
        pythonpath=tuple(root / path for path in pythonpath),
        python_files=(),
    )
