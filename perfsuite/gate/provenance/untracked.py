"""What a base that failed is told: what head's checkout has, and git does not track."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfsuite.gate.git.overlay import read_start
from perfsuite.gate.git.repository import find_top, tracked_files

BUILD = "build it in the base's tree with --base-build CMD (pytest: --perf-base-build)"
SHARE = "name it in pytest's perf_share where both may use head's"
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_NAME = re.compile(r"cannot import name '(\w+)' from (?:partially [a-z ]+ )?'([\w.]+)'")


def name_lacking(reason: str, head: Path, base: Path, roots: Sequence[Path]) -> str | None:
    """Return what head's root alone has, and the base failed for, by its `reason`; what to do."""
    for path in _candidates(reason, head, base, roots):
        is_lacking = path.exists() and not (base / path.relative_to(head)).exists()
        if is_lacking and find_top(head) is not None and not tracked_files(head, [path]):
            is_text = path.is_dir() or b"\0" not in read_start(path, 4096)
            advice = f"git add it if it is new code, {SHARE}, or {BUILD}" if is_text else BUILD
            return f"head has {path.relative_to(head)}, which git does not track: {advice}"
    return None


def _candidates(reason: str, head: Path, base: Path, roots: Sequence[Path]) -> Iterator[Path]:
    modules = [match[1] for match in _NO_MODULE.finditer(reason)]
    modules += [f"{match[2]}.{match[1]}" for match in _NO_NAME.finditer(reason)]
    for module in modules:
        place = module.replace(".", "/")
        for root in roots:
            yield from (root / f"{place}.py", root / place / "__init__.py")
            yield from sorted((root / place).parent.glob(f"{Path(place).name}.*so"))
    for match in re.finditer(rf"{re.escape(str(base))}/([^'\":\n]+)", reason):
        path = head / match[1]
        # The outermost folder that the base lacks, as of all data.
        inside = [one for one in reversed(path.parents) if one.is_relative_to(head)]
        yield next((one for one in inside if not (base / one.relative_to(head)).exists()), path)
