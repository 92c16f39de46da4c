"""The verb `init`: a starter set for a repository; it overwrites nothing."""

import json
import re
import tomllib
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from perfsuite.cli.options import explained
from perfsuite.cli.output import JsonFile, write_json
from perfsuite.errors import SettingError
from perfsuite.gate.git.repository import find_top
from perfsuite.system.files import append_line, check_writable, write_atomically
from perfsuite.system.untrusted import printable

_FILES = files("perfsuite.cli.starter")
# The starter files, where they go from the repository's root.
_STARTERS = ("benchmarks/test_training_step.py", ".github/workflows/performance.yml")
_ON_GPUS = ".github/workflows/gate-gpu.yml"
_COMMENTS = ".github/workflows/performance-comment.yml"
# pytest takes the first file that has one of these ("Configuration file formats").
_PYTEST_SECTIONS = {
    **dict.fromkeys(("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini"), ("pytest",)),
    "pyproject.toml": ("tool.pytest", "tool.pytest.ini_options"),
    "tox.ini": ("pytest",),
    "setup.cfg": ("tool:pytest",),
}
_REQUIREMENT = "perfsuite[torch,workloads]"
_PATH_ADVICE = (
    "no runner has this path: use a release (perfsuite[...]==VERSION), or a commit "
    "(perfsuite[...] @ git+https://HOST/REPOSITORY@COMMIT)"
)
_GATE = re.compile(r"^[ \t]*perf_gate[ \t]*=[ \t\"']*(\w*)", re.MULTILINE)
_GIT_IGNORE = Path(".gitignore")
_IGNORED = ("results/", "__pycache__/")


@explained(
    num_gpus="Write a workflow for runners of your own with so many.",
    comments="Write a workflow that comments on pull requests.",
)
def init(
    folder: Annotated[Path, typer.Argument(help="The repository's root.")] = Path(),
    num_gpus: Annotated[int | None, typer.Option("--gpus", min=1)] = None,
    comments: Annotated[bool, typer.Option("--comment")] = False,
    json_file: JsonFile = None,
) -> None:
    """Write a starter benchmark, a configuration and a workflow into a repository.

    It keeps files that exist, names them, and turns the gate on where pytest is configured.
    """
    if not folder.is_dir():
        raise SettingError(f"{folder} is not a folder; name the root of a repository")
    there = [path for path in (*_PYTEST_SECTIONS, str(_GIT_IGNORE)) if (folder / path).exists()]
    written, kept = write_starters(folder, num_gpus=num_gpus, comments=comments)
    for path in written:
        typer.echo(f"added lines to {path}" if path in there else f"wrote {path}")
    option = ""
    for path in kept:
        is_off = "off" in _GATE.findall(_text(folder / path))
        typer.echo(f"kept  {path}, which {'has perf_gate off' if is_off else 'was there already'}")
        option = " --perf-gate=on" if is_off else option
    (requirement, advice), top = _requirement(), find_top(folder)
    for path in (one for one in written if one.endswith(".yml")):
        if advice:
            typer.echo(f"change {path}: it installs {requirement}; {advice}")
        if top is not None and top != folder.resolve():
            typer.echo(printable(f"move {path} to {top}: GitHub reads workflows there alone"))
    typer.echo(f"next: pip install '{requirement}'; pytest benchmarks")
    typer.echo(
        f"then: commit; 'pytest benchmarks --benchmark-compare{option}' judges the next change; "
        "before one, or where every cell is new, it ends in 12 or 13: nothing to compare yet"
    )
    write_json(json_file, written=written, kept=kept)


def write_starters(
    folder: Path, *, num_gpus: int | None = None, comments: bool = False
) -> tuple[list[str], list[str]]:
    """Return which files were written and which were there; each option adds its workflow."""
    if (configured := _pytest_configuration(folder)) is not None:
        configuration = _with_gate(folder / configured)
    else:
        pythonpath = "src ." if (folder / "src").is_dir() else "."
        configured, configuration = "pytest.ini", (_FILES / "starter.ini").read_text()
        configuration = configuration.format(pythonpath=pythonpath)
    written, kept = [], []
    starters = [*_STARTERS, *([] if num_gpus is None else [_ON_GPUS]), *([_COMMENTS] * comments)]
    new = [one for one in starters if not (folder / one).exists()]
    for path in (*new, str(_GIT_IGNORE), *([] if configuration is None else [configured])):
        check_writable(folder / path)  # all or none
    for path in starters:
        if (folder / path).exists():
            kept.append(path)
            continue
        text = (_FILES / Path(path).name).read_text()
        text = text.replace('NUM_GPUS: "8"', f'NUM_GPUS: "{num_gpus}"')
        requirement, advice = _requirement()
        line = json.dumps(requirement) + (f" # CHANGE THIS: {advice}" if advice else "")
        write_atomically(folder / path, text.replace(f'"{_REQUIREMENT}"', line).encode())
        written.append(path)
    if configuration is None:
        kept.append(configured)
    else:
        write_atomically(folder / configured, configuration.encode(errors="surrogateescape"))
        written.append(configured)
    git_ignore = folder / _GIT_IGNORE
    ignored = git_ignore.read_text(errors="replace").splitlines() if git_ignore.is_file() else []
    if missing := [line for line in _IGNORED if line not in ignored]:
        append_line(git_ignore, "\n".join(missing).encode())
    (written if missing else kept).append(str(_GIT_IGNORE))
    return written, kept


def _requirement() -> tuple[str, str]:
    """What installs the perfsuite that is installed here (PEP 610), and advice if it is a path."""
    installed = distribution("perfsuite")
    if (origin := json.loads(installed.read_text("direct_url.json") or "null")) is None:
        return f"{_REQUIREMENT}=={installed.version}", ""
    url = origin["url"]
    if commit := origin.get("vcs_info"):
        url = f"{commit['vcs']}+{url}@{commit['commit_id']}"
    return f"{_REQUIREMENT} @ {url}", _PATH_ADVICE if "file://" in url else ""


def _pytest_configuration(folder: Path) -> str | None:
    there = [name for name in _PYTEST_SECTIONS if (folder / name).is_file()]
    # A file of pytest's own configures it without a section too.
    own = (one for one in there if "pytest." in one or _pytest_section(one, _text(folder / one)))
    others = (name for name in there if name not in ("tox.ini", "setup.cfg"))
    return next(own, None) or next(others, None)


def _pytest_section(name: str, text: str) -> re.Match[str] | None:
    names = "|".join(map(re.escape, _PYTEST_SECTIONS[name]))
    return re.search(rf"^[ \t]*\[(?:{names})\].*(?:\n|\Z)", text, re.MULTILINE)


def _with_gate(path: Path) -> str | None:
    """What configures pytest, with the gate on; None where it says so. Raises a SettingError."""
    text = _text(path)
    if _GATE.search(text):
        return None
    is_toml = path.suffix == ".toml"
    line = 'perf_gate = "on"\n' if is_toml else "perf_gate = on\n"
    if (section := _pytest_section(path.name, text)) is None:
        before, after = f"{text.rstrip()}\n\n[{_PYTEST_SECTIONS[path.name][-1]}]\n".lstrip(), ""
    else:
        before, after = text[: section.end()], text[section.end() :]
        before += "" if before.endswith("\n") else "\n"
    try:
        tomllib.loads(before + line + after if is_toml else "")
    except tomllib.TOMLDecodeError as error:
        advice = 'write perf_gate = "on" where it configures pytest'
        raise SettingError(f"{path} cannot be given another line: {error}; {advice}") from error
    return before + line + after


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="surrogateescape")
