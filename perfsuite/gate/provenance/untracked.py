"""The file that the base lacks, where it fails because git does not track that file."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfsuite.gate.git import repository
from perfsuite.gate.git.repository import find_top

_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_NAME = re.compile(
    r"cannot import name '(\w+)' from (?:partially initialized module )?'([\w.]+)'"
)
BUILD = "build it in the base's tree with --base-build CMD (pytest: --perf-base-build)"
SHARE = "name it in pytest's perf_share where both may use head's"


def name_untracked(reason: str, head: Path, base: Path, roots: Sequence[Path]) -> str | None:
    """Return what head has, git does not track, and the base failed for, by its `reason`.

    `head` and `base` are pytest's roots, `roots` head's import roots.
    """
    for path in _candidates(reason, head, base, roots):
        top = find_top(head)
        is_lacking = path.exists() and not (base / path.relative_to(head)).exists()
        if is_lacking and top is not None and not repository.tracked_files(head, [path]):
            is_text = path.is_dir()
            if not is_text:
                with path.open("rb") as opened:
                    is_text = b"\0" not in opened.read(4096)
            advice = f"{SHARE}, or {BUILD}" if is_text else BUILD
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
