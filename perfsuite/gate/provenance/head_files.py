"""Head's files in a session: benchmarks that both sides run, and sources that must not change."""

import ast
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from perfsuite.gate.arms.arm import Arm, Launch, Suite
from perfsuite.gate.git import overlay
from perfsuite.gate.git.changes import IMPORTABLE, is_left_out
from perfsuite.gate.git.repository import find_top, listed_files
from perfsuite.units import listed

# Sources that are compiled.
BUILT = frozenset({".pyx", ".pxd", ".pxi", ".rs", ".cu", ".cuh", ".hip", ".s", ".c", ".cc", ".cpp"})
BUILT |= {".cxx", ".c++", ".cppm", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".ipp", ".tcc"}
BUILT |= {".tpp", ".f", ".for", ".f90", ".f95", ".f03", ".f08"}
# Sources too where git tracks them: others may be what a run writes.
_CONFIGURATIONS = ("*.yaml", "*.yml", "*.toml")
_SETTINGS = overlay.PYTEST_FILES | {"pyproject.toml", "setup.cfg", "tox.ini"}
# Of a folder that git ignores: more are not told apart.
_MOST_FILES = 10_000
_MOVE = "move the benchmark into a file of its own, such as bench_NAME.py"


def give_back(
    arms: tuple[Arm, Arm],
    collected: Callable[[], Launch],
    changed: Collection[Path],
    own_files: Mapping[Path, bytes],
    cells: Collection[str],
) -> tuple[dict[str, str], list[Path]]:
    """Put the base's own files where it cannot run head's; return why, by cell, and what stays.

    At first test files alone; where that helps no cell, all Python files that `changed`.
    """
    tree, replaced = arms[0].tree, dict[str, str]()
    if not any(file.suffix == ".py" for file in changed):
        return replaced, [*changed]
    laid = collected()
    why_not = (laid.why_not_collected or "").splitlines()[-1:]
    for name in cells:
        file = Path(name.partition("::")[0])
        if laid.suite is None or file not in own_files:
            continue
        if why := laid.suite.why_broken(name) or _name_lacked(*arms, file):
            _put(tree / file, own_files[file])
            replaced[name] = f"the base runs its own {file}, as it cannot import head's: {why}"
    laid = collected() if replaced else laid
    if laid.suite is None or all(map(laid.suite.why_broken, cells)):
        python = [file for file in changed if file.suffix == ".py"]
        for file in python:
            (tree / file).unlink(missing_ok=True)
        for file, source in own_files.items():
            _put(tree / file, source)
        files = listed(sorted(map(str, python)))
        why = "".join(why_not).lstrip("| ").removeprefix("E ").strip()
        told = f"the base runs its own {files}, as it cannot import head's: {why}"
        return dict.fromkeys(cells, told), [file for file in changed if file not in python]
    own = {name.partition("::")[0] for name in replaced}
    return replaced, [file for file in changed if str(file) not in own]


def _name_lacked(base: Arm, head: Arm, file: Path) -> str | None:
    """Why the base cannot run head's test file: it lacks a module that a function there imports."""
    for parts in overlay.imports(file, overlay.read_source(head.tree / file)):
        names, roots = [*filter(None, parts)], head.import_roots if parts[0] else [head.tree]
        for root, end in itertools.product(roots, range(1, len(names) + 1)):
            place = root.joinpath(*names[:end]).relative_to(head.tree)
            forms = place.with_name(f"{place.name}.py"), place / "__init__.py", place
            found = [one for one in forms if (head.tree / one).is_file()]
            if found and not any((base.tree / one).exists() for one in forms):
                return f"it lacks {found[0]}"
    return None


def why_unlike(cell: str, base: Path, head: Path) -> str | None:
    """Return why times do not compare where each tree has its own test: by the numbers in it."""
    file, *_, test = cell.partition("[")[0].split("::")
    if not (base / file).is_file():
        return None
    theirs, ours = (_numbers(overlay.read_source(tree / file), test) for tree in (base, head))
    if not (differing := (theirs - ours) + (ours - theirs)):
        return None
    return (
        f"the base runs its own {file}, as it cannot import head's, and one alone of the two tests "
        f"has {listed(sorted(differing))}, so that their times may not compare; rename the test if "
        "that is intended"
    )


def _numbers(source: bytes, test: str) -> Counter[str]:
    """The numbers in a test, and in what it names of its own module."""
    defined = defaultdict[str, list[ast.AST]](list)
    with suppress(SyntaxError, ValueError):  # of which pytest says more
        body = ast.parse(source).body
        for node in (*body, *(one for outer in body for one in getattr(outer, "body", ()))):
            for target in getattr(node, "targets", [getattr(node, "target", node)]):
                defined[getattr(target, "id", getattr(target, "name", ""))].append(node)
    found, named = Counter[str](), [test]
    for name in named:  # which grows
        for part in (part for node in defined.pop(name, ()) for part in ast.walk(node)):
            if isinstance(part, ast.Constant) and isinstance(part.value, int | float | complex):
                found[str(part.value)] += 1
            named += filter(None, [getattr(part, "id", None), getattr(part, "arg", None)])
    return found


def _put(file: Path, source: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)  # a link may lead to the user's own file
    file.write_bytes(source)


def why_mixed(cell: str, suite: Suite, tree: Path, changed: Collection[Path]) -> str | None:
    """Return why the sides cannot run one benchmark beside code of their own, in one file."""
    file, why = Path(cell.partition("::")[0]), None
    if file in changed and overlay.is_mixed(file, suite.python_files):
        why = "by its name, and head has changed it: both sides would run head's"
    elif (tree / file).is_file() and not overlay.are_alike(suite.root / file, tree / file):
        why = "which other code imports, and head has changed it: each side would run its own"
    return why and f"its file holds code too, {why}; {_MOVE}"


def kept_files(root: Path) -> frozenset[Path]:
    """Return what the checkout of `root` holds and git does not know; absolute.

    Not new code or settings, which are head's to bring. A folder of very many files stands for all.
    """
    if (top := find_top(root)) is None:
        return frozenset()
    others = listed_files(top, "--others", "--exclude-standard")
    entries = listed_files(top, "--others", "--ignored", "--exclude-standard", "--directory")
    kept = (path for entry in entries for path in _inside(top / entry))
    new = (one for one in others if one.suffix not in IMPORTABLE and one.name not in _SETTINGS)
    return frozenset(kept).union(top / one for one in new)


def _inside(entry: Path) -> Iterator[Path]:
    if not entry.is_dir() or entry.is_symlink():
        yield entry
    elif not is_left_out(entry):
        files = list(itertools.islice(overlay.source_files(entry), _MOST_FILES))
        yield from [entry] if len(files) == _MOST_FILES else (entry / file for file in files)


def code_times(top: Path) -> dict[Path, int]:
    """Return when each source of a checkout was written, in nanoseconds."""
    files = [path for path in overlay.tree_files(top) if path.suffix.lower() in BUILT | {".py"}]
    if find_top(top) is not None:
        files += listed_files(top, "--", *_CONFIGURATIONS)
    return {path: (top / path).stat().st_mtime_ns for path in files if (top / path).is_file()}


def why_edited(top: Path, before: Mapping[Path, int]) -> str | None:
    """Return which sources were written or removed since; undone edits are edits."""
    edited = {str(path) for path, _ in before.items() - code_times(top).items()}
    if not edited:
        return None
    return (
        f"{listed(sorted(edited))} changed while head was judged, by an edit or by a test, so its "
        "launches did not run one tree; gate again, and leave the working tree as it is meanwhile"
    )
