"""Dependencies that a change declares otherwise: both arms run with those that are installed."""

import ast
import configparser
import functools
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

from perfsuite.gate.git.overlay import tree_files
from perfsuite.gate.provenance.installed import SITE, normalized
from perfsuite.units import listed

# A requirement begins with the name of its distribution (PEP 508).
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
# In a command that installs.
_PIN = re.compile(r"[A-Za-z][\w.-]*(?:\[[\w,.-]*\])?[=~<>]=[\w.*+!]+")
# Of conda: a channel, and the packages that are torch's.
_CONDA = re.compile(r"^- (?:[\w./-]+::)?(pytorch(?:-(?:cuda|gpu|cpu|mutex))?(?![\w.-]))?")
# Stands for all dependencies of a file.
ANY = "*"
# What the project tells other packages of itself; only users run its scripts.
_ENTRY_POINTS = "entry points"
_SCRIPTS = frozenset({"console_scripts", "gui_scripts"})


def changed_dependencies(base: Path, head: Path) -> dict[str, frozenset[str]]:
    """Return the files that declare the base's dependencies otherwise, with the names, or ANY.

    What only moved to another file, word for word, is declared as it was.
    """
    before, after = _declared(base), _declared(head)
    files = {file: (before.get(file, {}), after.get(file, {})) for file in {**before, **after}}
    gone = {one for old, new in files.values() for one in old.items() if one[0] not in new}
    come = {one for old, new in files.values() for one in new.items() if one[0] not in old}
    changed = {}
    for file, (old, new) in sorted(files.items()):
        moved = {name for name, _ in gone & come & (old.items() ^ new.items())}
        moved -= old.keys() & new.keys()
        names = {name for name in (*old, _ENTRY_POINTS) if old.get(name) != new.get(name)}
        if names.union(new.keys() - old.keys()) - moved:
            changed[file] = frozenset(names - moved)
    return changed


def describe_dependencies(base: Path, head: Path) -> dict[str, str]:
    """Return what people read of `changed_dependencies`, by file."""
    return {
        file: f"declares {listed(sorted(names - {ANY})) or 'other packages'}; both arms run with "
        "those that are installed"
        for file, names in changed_dependencies(base, head).items()
    }


def find_changed_dependency(base: Path, head: Path, files: frozenset[str]) -> str | None:
    """Return why the base ran with dependencies of head, where `files` are what it loaded."""
    for file, names in changed_dependencies(base, head).items():
        places = (SITE.split(loaded, 1)[1] for loaded in files if SITE.search(loaded))
        tops = {place.partition("/")[0].partition(".")[0] for place in places}
        used = {normalized(name) for top in tops for name in _owners().get(top, ())}
        if (reached := sorted(names & {*used, _ENTRY_POINTS})) or ANY in names:
            which = ", ".join(reached) or "what it declares"
            return (
                f"{file} changes {which}, which the base loads as it is installed for head; give "
                "the base an interpreter with its own dependencies: --base-python PY (pytest: "
                "--perf-base-python)"
            )
    return None


_owners = functools.cache(packages_distributions)


@functools.cache
def _declared(tree: Path) -> dict[str, dict[str, str]]:
    """What each file of a tree says of each distribution."""
    return {
        str(path): _read(tree / path, read)
        for path in tree_files(tree)
        if {"doc", "docs"}.isdisjoint(path.parts) and (tree / path).is_file()
        for name, read in _READERS.items()
        if re.fullmatch(name, f"/{path.as_posix()}")
    }


def _read(path: Path, read: Callable[[str], dict[str, str]]) -> dict[str, str]:
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return read(text)
    # TOMLDecodeError is a ValueError; the last three come of values of other types.
    except (
        *(ValueError, SyntaxError, RecursionError, configparser.Error),
        *(AttributeError, KeyError, TypeError),
    ):
        return {ANY: text}


def _read_list(text: str) -> dict[str, str]:
    """Of pip, and of conda, whose other lines name nothing that is installed."""
    lines = (line.partition(" #")[0].strip() for line in text.replace("\\\n", " ").splitlines())
    return _named(
        _CONDA.sub(lambda match: "torch" if match[1] else "", line)
        for line in lines
        if line and not line.startswith("#")
    )


def _named(requirements: Iterable[str]) -> dict[str, str]:
    """By the distribution's name, and what names none under ANY."""
    matches = ((_NAME.match(requirement), requirement) for requirement in requirements)
    return _grouped((match[0] if match else ANY, requirement) for match, requirement in matches)


def _grouped(declared: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, text in declared:
        found[normalized(name)].append(text)
    return {name: "\n".join(sorted(texts)) for name, texts in found.items()}


def _read_lock(text: str) -> dict[str, str]:
    """uv, poetry, pdm and PEP 751 all list tables of packages, each with its name."""
    document, keys = tomllib.loads(text), ("version", "source", "vcs", "url")
    packages = [*document.get("package", []), *document.get("packages", [])]
    versions = (json.dumps({key: package.get(key) for key in keys}) for package in packages)
    return _grouped(zip((package["name"] for package in packages), versions, strict=True))


def _read_project(text: str) -> dict[str, str]:
    document = tomllib.loads(text)
    project, tool = document.get("project", {}), document.get("tool", {})
    lists = [project.get("dependencies", [])]
    lists += project.get("optional-dependencies", {}).values()
    lists += document.get("dependency-groups", {}).values()
    found = _named(line for lines in lists for line in lines if isinstance(line, str))
    poetry = tool.get("poetry", {})
    groups = [poetry, *poetry.get("group", {}).values()]
    tables = [group.get("dependencies", {}) for group in groups]
    for table in (*tables, tool.get("uv", {}).get("sources", {})):
        for name, value in table.items():
            key = normalized(name)
            found[key] = found.get(key, "") + json.dumps(value, sort_keys=True, default=str)
    return found | _told({**project.get("entry-points", {}), **poetry.get("plugins", {})})


def _told(entry_points: Mapping[str, object]) -> dict[str, str]:
    groups = {group: names for group, names in entry_points.items() if group not in _SCRIPTS}
    return {_ENTRY_POINTS: json.dumps(groups, sort_keys=True, default=str)} if groups else {}


def _read_setup_cfg(text: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text)
    values = [parser.get("options", "install_requires", fallback="")]
    if "options.extras_require" in parser:
        values += parser["options.extras_require"].values()
    found = _named(line.strip() for line in "\n".join(values).splitlines() if line.strip())
    if "options.entry_points" in parser:
        found |= _told(parser["options.entry_points"])
    return found


def _read_setup(text: str) -> dict[str, str]:
    """What is given as install_requires: the names in quotes, or any where it is computed."""
    found: dict[str, str] = {}
    for call in ast.walk(ast.parse(text)):
        if isinstance(call, ast.keyword) and call.arg in ("install_requires", "extras_require"):
            texts = [one.value for one in ast.walk(call.value) if isinstance(one, ast.Constant)]
            known = _named(text for text in texts if isinstance(text, str))
            found |= known or {ANY: ast.dump(call.value)}
        elif isinstance(call, ast.keyword) and call.arg == "entry_points":
            found |= _told(_read_groups(call.value))
    return found


def _read_groups(value: ast.expr) -> dict[str, str]:
    if not isinstance(value, ast.Dict):
        return {"": ast.dump(value)}
    items = zip(value.keys, value.values, strict=True)
    return {str(getattr(key, "value", "")): ast.dump(names) for key, names in items}


# By their paths.
_READERS: Mapping[str, Callable[[str], dict[str, str]]] = {
    r".*/pyproject\.toml": _read_project,
    r".*/setup\.cfg": _read_setup_cfg,
    r".*/setup\.py": _read_setup,
    r".*/((uv|poetry|pdm)\.lock|pylock(\..*)?\.toml)": _read_lock,
    r".*/(requirements/.*|[^/]*requirements[^/]*)\.(txt|in|lock)": _read_list,
    r".*/[^/]*constraints[^/]*\.txt": _read_list,
    r".*/[^/]*(Docker|Container)file[^/]*": lambda text: _named(_PIN.findall(text)),
    # Others of such names have no line for dependencies.
    r".*/(environment|conda)[\w.-]*\.ya?ml": lambda text: (
        _read_list(text) if re.search(r"^dependencies:", text, re.MULTILINE) else {}
    ),
    # May change everything.
    r".*/(Pipfile(\.lock)?|pixi\.(lock|toml)|conda-lock\.yml)": lambda text: {ANY: text},
}
