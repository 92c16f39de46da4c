"""What git does not track: what a base that failed lacks, what head stops using, stale builds."""

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from perfsuite.gate.git import overlay
from perfsuite.gate.git.repository import find_top, tracked_files
from perfsuite.gate.provenance.head_files import BUILT, code_times, kept_files
from perfsuite.system.files import real_path

BUILD = "build it in the base's tree with --base-build CMD (pytest: --perf-base-build)"
SHARE = "name it in pytest's perf_share where both may use head's"
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_NAME = re.compile(r"cannot import name '(\w+)' from (?:partially [a-z ]+ )?'([\w.]+)'")
_WORD = re.compile(r"[\w./-]+")
_MOST_BYTES = 2**20
# A copy of a checkout writes a source a moment after what was compiled from it.
_MARGIN_NS = 2 * 10**9
# What is in them is mostly no part of a library.
_BESIDE = frozenset({"doc", "docs", "example", "examples", "test", "tests"})


def name_lacking(reason: str, head: Path, base: Path, roots: Sequence[Path]) -> str | None:
    """Return what head's root alone has, and the base failed for, by its `reason`; what to do."""
    for path in _candidates(reason, head, base, roots):
        is_lacking = path.exists() and not (base / path.relative_to(head)).exists()
        if is_lacking and find_top(head) is not None and not tracked_files(head, [path]):
            is_text = path.is_dir() or b"\0" not in overlay.read_start(path, 4096)
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


def find_dropped(
    head: Path, base: Path, kept: Iterable[Path], sources: Iterable[Path]
) -> tuple[Path, Path] | None:
    """Return what of `kept` only the base's `sources` name, and which does; from the tops.

    The base may be slow, or compute something else, because its tree lacks it as head's code does.
    """
    changed = [one for one in sources if not overlay.are_alike(head / one, base / one)]
    ours = {name for path in changed for name in _names(path, head)}
    theirs = {name: path for path in changed for name in _names(path, base) if name not in ours}
    for path in sorted(kept) if theirs else ():
        folders = path.parents[:-1]
        ignored = [one for one in (head / it / ".gitignore" for it in folders) if one.is_file()]
        if any("*" in one.read_text(errors="replace").split() for one in ignored):
            continue  # a tool keeps a cache or results there
        names = {path.name, *(one.name for one in folders if not (base / one).exists())}
        if path.suffix in (".py", ".so", ".pyd"):
            names.add(f"import {path.name.partition('.')[0]}")
        elif path.name == ".env":
            names.add("import dotenv")
        if found := theirs.keys() & names:
            return path, theirs[min(found)]
    return None


def _names(path: Path, top: Path) -> Iterator[str]:
    """What a source may name: "import x" for a module, the parts of a path in its strings."""
    file = top / path
    if not file.is_file():
        return
    text = overlay.read_start(file, _MOST_BYTES)
    strings = _WORD.findall(text.decode(errors="replace"))
    if path.suffix == ".py":
        yield from (f"import {one}" for parts in overlay.imports(path, text) for one in parts)
        constants = (one for one in overlay.nodes_of(text) if isinstance(one, ast.Constant))
        strings = [one.value for one in constants if isinstance(one.value, str)]
    for string in strings:
        if "/" in string or "." in string:  # else it may be any word, such as a key
            yield from string.split("/")


def find_stale(head: Path, base: Path, loaded: Iterable[Path]) -> str | None:
    """Return why the compiled code that head's checkout loads may not be its own; None if it is.

    `loaded` are files that git does not track, from the top of the checkout; the base's is `base`.
    Where anything was compiled since the newest source, all is taken to be, as builds do that.
    """
    # What both may use is a link.
    own = (path for path in loaded if real_path(base / path) != real_path(head / path))
    compiled = {path: at for path in own if (at := _compiled_ns(head / path)) is not None}
    if not compiled:
        return None
    newest, built_ns = max(compiled.items(), key=lambda one: one[1])
    changed = {
        path: at_ns
        for path, at_ns in code_times(head).items()
        if path.suffix.lower() in BUILT
        and at_ns > built_ns + _MARGIN_NS
        and _BESIDE.isdisjoint(path.parts)
        and not overlay.are_alike(head / path, base / path)
    }
    if not changed:
        return None
    source, at_ns = max(changed.items(), key=lambda one: one[1])
    beside = (one for path in compiled for one in (head / path).parent.iterdir())
    if any((_compiled_ns(one) or 0) > at_ns for one in {*kept_files(head), *beside}):
        return None
    return (
        f"the head arm ran with {newest}, which git does not track, and nothing was compiled since "
        f"{source} was changed; build it anew, or touch {newest} where it holds the change"
    )


def _compiled_ns(file: Path) -> int | None:
    """When a file was compiled, in nanoseconds; None for one that was not, or is gone."""
    with contextlib.suppress(OSError):
        if file.is_file() and overlay.read_start(file, 4) == b"\x7fELF":
            return file.stat().st_mtime_ns
    return None
