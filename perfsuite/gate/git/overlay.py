"""Head's benchmark files, laid over the base's tree: which they are, and how they get there.

docs/reference/benchmark-files.md has the rules. What is laid over the base is compared with itself,
so that code under test must never be. A link stays one; none of the base's is written through.
"""

import ast
import fnmatch
import functools
import os
import re
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from perfsuite.errors import SettingError, WriteError
from perfsuite.gate.git import repository
from perfsuite.gate.git.changes import is_left_out

_BENCHMARK_WORDS = {"bench", "benches", "benchmark", "benchmarks", "perf", "test", "tests"}
_USUAL = _BENCHMARK_WORDS - {"perf"}
_CONFTEST = "conftest.py"

# The names of files that hold nothing but pytest's configuration.
PYTEST_FILES = frozenset({"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"})
_CONFIGURATION_COPY = ".perfsuite-head"


class Head(NamedTuple):
    """Head's tree: its top, without symbolic links, pytest's root in it, and `python_files`."""

    top: Path
    root: Path
    python_files: tuple[str, ...]

    def top_of(self, tree: Path) -> Path:
        """Return the counterpart of the top, where `tree` is the root's."""
        inner = self.root.relative_to(self.top)
        return tree.parents[len(inner.parts) - 1] if inner.parts else tree


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """What of head is laid over the base's tree: files and whole folders, relative to the top."""

    folders: set[Path] = field(default_factory=set)
    files: set[Path] = field(default_factory=set)
    # Where a test file that only the base has is removed.
    searched: set[Path] = field(default_factory=set)

    @property
    def conftests(self) -> set[Path]:
        """The places of a conftest.py above them."""
        above = {parent for path in self.folders | self.files for parent in path.parents}
        return {parent / _CONFTEST for parent in above}


def plan_overlay(head: Head, paths: Sequence[Path]) -> Overlay:
    """Return what of head is laid over, by the rules above, for the paths of the user."""
    overlay = Overlay()
    for path in paths:
        lexical = path.parent.resolve() / path.name
        if lexical.is_symlink() and lexical.is_relative_to(head.top):
            overlay.files.add(lexical.relative_to(head.top))
        place = path.resolve()
        if not place.exists():
            raise SettingError(f"{path} does not exist; name files or folders with benchmarks")
        if not place.is_relative_to(head.top):
            why_not = f"{path} is outside of {head.top}, so the base's tree has no place for it"
            raise SettingError(f"{why_not}; name files or folders inside")
        if place.is_dir():
            _add_folder(overlay, head, place.relative_to(head.top), path)
        else:
            overlay.files.add(place.relative_to(head.top))
            _add_test_file(overlay, head, place.relative_to(head.top))
    return overlay


def lay_over(tree: Path, head: Head, overlay: Overlay) -> None:
    """Put head's benchmark files into `tree`, the counterpart of its top, in place of others."""
    for folder in overlay.searched:
        for file in source_files(tree / folder):
            if not (head.top / folder / file).exists() and is_test_file(head, folder / file):
                _remove(tree, folder / file)
    for folder in overlay.folders:
        _remove(tree, folder)
        for file in _files_of(head, folder):
            copy_file(head.top, tree, file)
    for conftest in overlay.conftests:
        _remove(tree, conftest)
        if (head.top / conftest).is_file():
            copy_file(head.top, tree, conftest)
    for file in overlay.files:
        copy_file(head.top, tree, file)


def benchmark_files(head: Head, overlay: Overlay) -> set[Path]:
    """Return every file of head that is laid over, relative to the top."""
    files = overlay.files.union(*(_files_of(head, folder) for folder in overlay.folders))
    return {path for path in files | overlay.conftests if (head.top / path).is_file()}


def lay_configuration(tree: Path, head: Head, inifile: Path | None) -> Path:
    """Put head's pytest configuration into the base's tree; return the file for `pytest -c`.

    Its paths, such as `pythonpath`, count from its folder, also where it is a link, so it must lie
    in the base: in place of the base's where it is pytest's alone, else beside the file that
    describes the base's package. One from outside of head's checkout is returned as it is.
    """
    place = Path(f"{_CONFIGURATION_COPY}.ini")
    if inifile is not None:
        real = inifile.parent.resolve() / inifile.name
        if not real.is_relative_to(head.top):
            return inifile
        tree, place = head.top_of(tree), real.relative_to(head.top)
        if place.name not in PYTEST_FILES:
            place = place.with_name(f"{_CONFIGURATION_COPY}{place.suffix}")
    with as_write_error(tree):
        make_folder(tree, place.parent)
        _remove(tree, place)
        (tree / place).write_bytes(b"[pytest]\n" if inifile is None else inifile.read_bytes())
    return tree / place


def is_mixed(file: Path, python_files: Sequence[str]) -> bool:
    """Whether a file of tests is named as code is, by its path and pytest's `python_files`."""
    words = {word for part in file.parts for word in re.split(r"[^a-z0-9]", part.lower())}
    telling = [pattern for pattern in python_files if pattern != "*.py"]
    return _BENCHMARK_WORDS.isdisjoint(words) and not _is_named(file, telling)


def source_files(folder: Path, *, leave_out: Path | None = None) -> Iterator[Path]:
    """Yield every file and link of a source tree but `leave_out`, environments and caches."""
    for at, folders, files in os.walk(folder):
        here = Path(at)
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = [it for it in folders if here / it != leave_out and not is_left_out(here / it)]
        for name in (*files, *links):
            # Neither a socket nor a named pipe: copying would wait for its other end.
            # In a linked worktree .git is a file.
            if name != ".git" and repository.is_file_or_link(here / name):
                yield (here / name).relative_to(folder)


def tree_files(folder: Path) -> list[Path]:
    """Return the files of a source tree that git tracks or would add; outside of git, all."""
    if repository.find_top(folder) is None:
        return list(source_files(folder))

    @functools.cache
    def is_inside(path: Path) -> bool:
        return path.parts != () and (is_left_out(folder / path) or is_inside(path.parent))

    # Where nothing is ignored, git lists virtual environments and caches as well.
    return [path for path in repository.working_files(folder) if not is_inside(path.parent)]


def read_start(file: Path, num_bytes: int) -> bytes:
    """Return the first bytes of a file, which may be large."""
    with file.open("rb") as opened:
        return opened.read(num_bytes)


def read_source(file: Path) -> bytes:
    """Return a file's content with git's line ends: checkouts may have others."""
    return file.read_bytes().replace(b"\r\n", b"\n")


def are_alike(file: Path, other: Path) -> bool:
    """Whether two files have the same source; one may be gone, or in an archive."""
    return file.is_file() and other.is_file() and read_source(file) == read_source(other)


def copy_file(source: Path, target: Path, path: Path) -> None:
    """Make `path` in `target` what it is in `source`; a link is copied, never followed."""
    make_folder(target, path.parent)
    _remove(target, path)
    shutil.copy2(source / path, target / path, follow_symlinks=False)


def make_folder(tree: Path, path: Path) -> None:
    """Make `path` a folder of the tree; a file or link in its way goes: it may lead outside."""
    for folder in reversed([path, *path.parents[:-1]]):
        here = tree / folder
        if here.is_symlink() or not here.is_dir():
            here.unlink(missing_ok=True)
            here.mkdir()


@contextmanager
def as_write_error(tree: Path) -> Iterator[None]:
    """Raise an OSError in the context as a WriteError about the base's tree."""
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror or error} ({error.filename2 or error.filename})"
        raise WriteError(f"cannot make the base's tree in {tree}: {reason}") from error


def _add_folder(overlay: Overlay, head: Head, place: Path, named: Path) -> None:
    if not (files := _files_of(head, place)):
        empty = f"{named} holds no file that git tracks or would add"
        raise SettingError(f"{empty}, so there is nothing to lay over the base; is it ignored?")
    if whole := _benchmark_folder(head, place):
        overlay.folders.add(whole)
        return
    overlay.searched.add(place)
    for file in files:
        if is_test_file(head, file):
            _add_test_file(overlay, head, file)


def _add_test_file(overlay: Overlay, head: Head, file: Path) -> None:
    importers = _importers(head.top, file.with_suffix(""))
    if whole := _benchmark_folder(head, file.parent):
        overlay.folders.add(whole)
    elif all(is_test_file(head, one) or not is_mixed(one, head.python_files) for one in importers):
        overlay.files.add(file)


def _benchmark_folder(head: Head, folder: Path) -> Path | None:
    """The outermost benchmark folder that `folder` is or is in: rule 1."""
    for candidate in reversed([folder, *folder.parents]):
        words = re.split(r"[^a-z0-9]", candidate.name.lower())
        if _BENCHMARK_WORDS.intersection(words) and not _holds_code(head, candidate):
            return candidate
    return None


def _holds_code(head: Head, folder: Path) -> bool:
    here, is_usual = head.top / folder, folder.name.lower() in _USUAL
    # By itself only a folder with an unusual name is a package.
    packages = [here.parent] if is_usual else [here.parent, here]
    is_package = any((one / "__init__.py").is_file() for one in packages)
    inner = [one.relative_to(folder) for one in _modules(head.top) if one.is_relative_to(folder)]
    holds_tests = not is_usual and any(map(_is_in_tests, inner))
    parts = [one for one in inner if not (one.name == "__init__.py" or _is_in_tests(one))]
    code = [one for one in parts if not is_test_file(head, folder / one)]
    if (
        head.root.is_relative_to(here)
        or any((here / name).is_file() for name in ("pyproject.toml", "setup.py"))
        or here.parent.name == "src"
        or here.name == re.sub(r"[-.]+", "_", name_of_project(head.root / "pyproject.toml")).lower()
        or any(holds_tests or (is_package and path.parent == Path()) for path in code)
    ):
        return True
    return any(
        not (is_usual and (is_test_file(head, importer) or _is_in_tests(importer)))
        for importer in _importers(head.top, folder)
    )


def _is_in_tests(path: Path) -> bool:
    return not _USUAL.isdisjoint(folder.name.lower() for folder in path.parents)


@functools.cache
def _modules(top: Path) -> list[Path]:
    return sorted(path for path in tree_files(top) if path.suffix == ".py")


def name_of_project(pyproject: Path) -> str:
    """Return the name that a pyproject.toml gives, also Poetry's; "" where it gives none."""
    try:
        document = tomllib.loads(pyproject.read_text("utf-8"))
        project = document.get("project") or document["tool"]["poetry"]
        return str(project["name"])
    except (OSError, ValueError, KeyError, TypeError):  # pytest and pip say what is wrong with it
        return ""


def is_test_file(head: Head, path: Path) -> bool:
    """Whether pytest takes a file for one with tests, and not by "*.py", or for what they share."""
    is_test = _is_named(path, head.python_files) and not is_mixed(path, head.python_files)
    return path.name == _CONFTEST or is_test


def _is_named(path: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(f"/{path.as_posix()}", f"*/{one}") for one in patterns)


def _files_of(head: Head, folder: Path) -> list[Path]:
    return [folder / path for path in tree_files(head.top / folder)]


def _remove(tree: Path, path: Path) -> None:
    """Remove what the tree has at `path`, and nothing that a link there leads to."""
    here = tree / path
    if here.parent.resolve() != here.parent or not here.parent.is_dir():
        return
    if here.is_dir() and not here.is_symlink():
        shutil.rmtree(here)
    else:
        here.unlink(missing_ok=True)


def _importers(top: Path, folder: Path) -> Iterator[Path]:
    for file in _modules(top):
        if file.is_relative_to(folder):
            continue
        text = _text(top / file)
        named = imports(file, text) if folder.name.encode() in text else ()
        if any(_leads_to(folder.parts, parts) for parts in named):
            yield file


@functools.cache
def _text(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def imports(file: Path, text: bytes) -> Iterator[tuple[str, ...]]:
    """Yield the parts of what a file imports; a relative import begins with "" and is whole."""
    for node in nodes_of(text):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            begin = file.parts[: -node.level] if node.level else ()
            parts = (*begin, *(node.module or "").split("."))
            whole = ("",) if node.level else ()
            yield from ((*whole, *filter(None, (*parts, alias.name))) for alias in node.names)


def nodes_of(source: bytes) -> Iterator[ast.AST]:
    """Yield all parts of Python code; none where it is no such code."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):  # Python will say so
        yield from ast.walk(ast.parse(source))


def _leads_to(folder: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Whether imported parts begin with the folder's path, or with any end of it.

    Only the suite knows what is on its path.
    """
    if parts[0] == "":
        return parts[1 : 1 + len(folder)] == folder
    return any(parts[:count] == folder[-count:] for count in range(1, len(folder) + 1))
