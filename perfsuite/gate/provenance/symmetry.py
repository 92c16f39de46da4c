"""Whether two launches ran two trees: what one loads from its own, the other does or has not."""

import functools
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from perfsuite.gate.arms.arm import Arm, CellRun, Launch, Loaded
from perfsuite.gate.arms.launched import load_log
from perfsuite.gate.git.changes import SITE_FOLDER, is_left_out
from perfsuite.gate.git.overlay import are_alike, read_start
from perfsuite.gate.git.repository import is_ignored, tracked_files
from perfsuite.gate.git.worktree import missing_files
from perfsuite.gate.provenance import installed
from perfsuite.gate.provenance.dependencies import find_changed_dependency
from perfsuite.gate.provenance.installed import SITE, find_source
from perfsuite.gate.provenance.scripts import places_named
from perfsuite.gate.provenance.untracked import BUILD, SHARE, find_dropped, find_stale
from perfsuite.system.background import read_start_s

_PYTHON = "give the base an interpreter of its own with --base-python (pytest: --perf-base-python)"
_REMOVE = "remove it where the code makes it anew"
_ARCHIVES = (".zip", ".egg", ".whl", ".pyz")
_CODE = (".py", ".so", *_ARCHIVES)
_SETTINGS = (".env", ".sh", ".mk", ".cfg", ".conf", ".ini", ".toml", ".yaml", ".yml")
# Temporary folders of sessions, which a continuous integration may have in the checkout.
_OF_LAUNCHES = re.compile(r"perfsuite-\d+-")
# What installers, pytest, coverage and Hypothesis keep in a checkout, and read.
_OF_TOOLS = re.compile(r".*\.egg-info|\.(coverage(\..*)?|hypothesis|pytest_cache|benchmarks)")


class Loading:
    """What one arm loaded and started; links that lie outside of its checkout are followed."""

    def __init__(self, arm: Arm, loaded: Loaded) -> None:
        self.name, self.alone = arm.name, arm.alone
        self.top = (arm.top or arm.tree).resolve()
        self.roots = tuple(root.resolve() for root in arm.import_roots)  # first on its path
        self.site = arm.tree.resolve() / SITE_FOLDER  # where the base's build installs
        self.environment = _environment_of(arm.python)
        self.prefix = Path(_real_path(arm.python)).parent.parent  # of its interpreter
        self.programs, self.old, self.made = loaded.programs, loaded.old, loaded.made
        self.shells = loaded.shells
        self.files = frozenset(
            file if file.startswith(f"{self.top}/") else _real_path(file)
            for file in loaded.files | loaded.programs
        )

    @functools.cached_property
    def own_files(self) -> tuple[Path, ...]:
        """What came from its checkout, relative to that."""
        paths = (Path(file) for file in sorted(self.files) if file.startswith(f"{self.top}/"))
        return tuple(path.relative_to(self.top) for path in paths if self.is_own(path))

    @functools.cached_property
    def packages(self) -> dict[str, str]:
        """What it loaded from site-packages, by the name there: of two, that of its checkout."""
        own = f"{self.top}/"
        ordered = sorted(self.files, key=lambda file: (file.startswith(own), file))
        return {SITE.split(file)[-1]: file for file in ordered if SITE.search(file)}

    @functools.cached_property
    def named(self) -> set[Path]:
        """What of a checkout its shells, scripts and Makefiles name; from its top."""
        return {one for one in places_named(self.top, self.shells) if ".." not in one.parts}

    def is_data(self, file: str) -> bool:
        """Whether a file is neither a module, nor compiled, nor a program that was started."""
        return not file.endswith(_CODE) and ".so." not in file and file not in self.programs

    def is_installed(self, file: Path) -> bool:
        """Whether a file of its checkout is of an interpreter or a package in that."""
        is_inside = file.is_relative_to(self.prefix) and not self.top.is_relative_to(self.prefix)
        return is_inside or SITE.search(str(file)) is not None

    def is_own(self, file: Path) -> bool:
        """Whether a file of its checkout is of no interpreter, package, tool or launch in it."""
        if self.is_installed(file):
            return False
        place = file.relative_to(self.top)
        folders = (self.top / folder for folder in place.parents[:-1])
        return not any(map(_OF_TOOLS.fullmatch, place.parts)) and not any(
            _OF_LAUNCHES.match(one.name) or _is_left_out(one) for one in folders
        )


def find_asymmetry(base: Launch, head: Launch) -> str | None:
    """Return why the launches did not compare two trees, with what to do; None if they did.

    What is new in head is its own: git tracks it, or would add it as code, and the base has none.
    """
    if base.arm.tree.resolve() == head.arm.tree.resolve():
        return _find_heads_python(base, head)  # the arms differ by that or their environment alone
    ours, theirs = (Loading(one.arm, one.loaded) for one in (base, head))
    found = (
        _find_foreign(ours, theirs)
        or _find_foreign(theirs, ours)
        or _find_other_environment(ours, theirs)
        or _find_installed_instead(ours, theirs)
        or _find_kept(theirs, head.cells)
        or _find_named(ours, theirs)
        or _find_dropped(ours, theirs)
        or _find_missing(ours, theirs)
        or _find_shared(ours, theirs)
        or _find_built(ours, theirs)
        or _find_stale(ours, theirs)
        or _find_silent(base, theirs)
        or _find_heads_python(base, head)
    )
    if found is None and base.arm.python == head.arm.python:
        found = find_changed_dependency(ours.top, theirs.top, base.loaded.files)
    return found


_is_left_out = functools.cache(is_left_out)
_missing_files = functools.cache(missing_files)
_real_path = functools.cache(os.path.realpath)
_tracked = functools.cache(lambda top: tracked_files(top, [Path()], "--recurse-submodules"))
_began_s = functools.cache(lambda: read_start_s(os.getpid()))


def is_of_session(file: Path) -> bool:
    """Return whether a file was written since this session began."""
    return file.is_file() and file.stat().st_mtime > _began_s()


def _find_heads_python(base: Launch, head: Launch) -> str | None:
    """Why the base ran with the interpreter of head although it has another."""
    own, other = base.arm.python, _environment_of(head.arm.python)
    if _environment_of(own) == other or load_log.interpreter_of(own):  # a script may run any
        return None
    for program in sorted(base.loaded.programs):
        python, *_ = load_log.interpreter_of(program) or [program]
        if _environment_of(python) == other:
            return (
                f"the base arm ran {program} with head's interpreter, and not with {own}, which "
                "--base-python names; install it there, and call it by its name alone"
            )
    return None


def _environment_of(python: str) -> tuple[str, str]:
    """What all names of an interpreter share, and its virtual environments do not."""
    return _real_path(str(Path(python).parent)), _real_path(python)


def _find_silent(base: Launch, head: Loading) -> str | None:
    """Why the base may have run head's code where it could not say what it loads."""
    commands = sorted(base.loaded.silent)
    for command in commands:
        _, is_elsewhere, at = command.rpartition(", in ")
        if is_elsewhere and f"{at}/".startswith(f"{head.top}/"):
            return (
                f"the base arm started '{command}', which is head's checkout, and it cannot say "
                "what it loads; let it not change to an absolute folder, and keep what is on "
                "PYTHONPATH, as in PYTHONPATH=lib:$PYTHONPATH"
            )
    project = commands and installed.is_any_installed(head.top, base.arm.python, base.loaded.files)
    if not project:
        return None
    return (
        f"the base arm started '{commands[0]}', which cannot say what it loads, and {project} is "
        "installed where it runs; start it with the environment of the test and without -I, -E "
        f"and -S, uninstall {project}, or {_PYTHON}"
    )


def _find_foreign(arm: Loading, other: Loading) -> str | None:
    """Why an arm loaded a file of the other's checkout, unless its own is the same."""
    for file in sorted(arm.files):
        if file.startswith(f"{arm.top}/") or not file.startswith(f"{other.top}/"):
            continue
        path = Path(file)
        place = path.relative_to(other.top)
        # What it is meant to share is a link at the same place.
        if not other.is_own(path) or _real_path(arm.top / place) == file:
            continue
        is_data = arm.is_data(file)
        # Unless one arm has made it, it belongs to neither.
        if is_data and not is_of_session(path) and place not in _tracked(other.top):
            continue
        if not are_alike(path, arm.top / place):
            advice = "have the code find it beside itself" + (f", or {SHARE}" if is_data else "")
            if path.suffix == ".py":
                advice = (
                    "is it installed in editable mode, or behind a link with an absolute path? Name"
                    f" its folder in pytest's pythonpath or in PYTHONPATH, or {advice}"
                )
            elif not is_data:
                advice += f" and {BUILD}, or name its folder in pytest's pythonpath"
            return f"the {arm.name} arm loaded {path}, which is {other.name}'s; {advice}"
    return None


def _find_other_environment(base: Loading, head: Loading) -> str | None:
    """Why head loaded packages of its checkout, and the base those of the same names elsewhere."""
    if base.environment != head.environment:
        return None
    of_base, of_head = f"{base.top}/", f"{head.top}/"
    for file in sorted(head.files - base.files):
        other = base.packages.get(SITE.split(file)[-1], of_base)
        place = file.removeprefix(of_head)
        if place == file or other.startswith(of_base) or _OF_LAUNCHES.search(place):
            continue
        is_same = _real_path(file) in base.files
        if not (is_same or (base.top / place).exists() or Path(place) in _tracked(head.top)):
            return (
                f"the head arm loaded {file}, and the base arm {other}, so that they ran with "
                "different packages; name a virtual environment of the checkout by an absolute "
                f"path, or {_PYTHON}"
            )
    return None


def _find_installed_instead(base: Loading, head: Loading) -> str | None:
    """Why the base loaded an installed copy of what head loads from its own tree."""
    copies, owners = base.packages, dict[str, str]()
    if base.environment == head.environment:
        owners = installed.installed_by_projects(head.top, copies.values())
    for root in head.roots:
        for path in head.own_files:
            own = head.top / path
            name = str(own.relative_to(root)) if own.is_relative_to(root) else None
            if name not in copies:
                continue
            has_own = (base.top / path).exists() or _is_lacked(base.top, path)
            if has_own or copies[name] in owners:
                why = "although its commit has" if has_own else "as its commit lacks"
                return (
                    f"the base arm loaded {copies[name]}, {why} {path}, which the head arm loaded; "
                    f"uninstall that copy, or {_PYTHON}"
                )
    return None


def _find_kept(head: Loading, cells: Mapping[str, CellRun]) -> str | None:
    """Why head read what an earlier run left in its checkout alone: a cache, a checkpoint."""
    for path in head.own_files:
        file = str(head.top / path)
        if file in head.old and not head.alone.isdisjoint((path, *path.parents)):
            first = next((name for name, run in cells.items() if file in run.loaded.old), None)
            when = f"; the launch had read it by the end of {first}" if first else ""
            return _lacked_by_base(head, path) + when
    return None


def _find_named(base: Loading, head: Loading) -> str | None:
    """Why a shell or make may have read settings that head's checkout alone has."""
    for path in sorted((base.named | head.named) & head.alone):
        is_lacking = (head.top / path).is_file() and not (base.top / path).exists()
        if is_lacking and (path.name.startswith(".env") or path.suffix in _SETTINGS):
            named = f"what an arm starts names {path}, which git does not track"
            return f"{named}, so the base's tree began without it; {SHARE}, {BUILD}, or {_REMOVE}"
    return None


def _find_dropped(base: Loading, head: Loading) -> str | None:
    """Why the base may be slow for want of what head has, and head's code uses no more."""
    kept = (path for path in head.alone if head.is_own(head.top / path))
    lacked = (path for path in kept if not (base.top / path).exists())
    both = {*base.own_files, *head.own_files}
    sources = (one for one in both if one.suffix in (".py", *_SETTINGS))  # data may be very large
    if (found := find_dropped(head.top, base.top, lacked, sources)) is None:
        return None
    path, source = found
    named = f"the base's {source} names {path}, which git does not track, and head's code does not"
    return f"{named}, so the base ran without it, as head does; {SHARE}, {BUILD}, or {_REMOVE}"


def _lacked_by_base(head: Loading, path: Path) -> str:
    is_built = not head.is_data(str(head.top / path)) and _is_compiled(head.top / path)
    advice = [BUILD, *([] if is_built else [SHARE]), _REMOVE]
    if not is_ignored(head.top, path):
        advice.append("add it to git where it belongs to the change")
    folder = next((one for one in path.parents[-2::-1] if not tracked_files(head.top, [one])), None)
    inside = "" if folder is None else f"in {folder}, "
    loaded = f"the head arm loaded {path}, {inside}which git does not track"
    return f"{loaded}, so the base's tree began without it; {', or '.join(advice)}"


def _find_missing(base: Loading, head: Loading) -> str | None:
    """Why the base's tree lacks what head loads from its own, if the change did not add it."""
    for path in (*head.own_files, *base.own_files):
        if (lacked := _is_lacked(base.top, path)) is not None:
            return (
                f"{path} was loaded, but the base's tree lacks {lacked}, which differs between the "
                "base's commit and head; name a checkout of the base that has it with --base-dir "
                "(pytest: --perf-base-dir)"
            )
    code = (path for path in head.own_files if not head.is_data(str(head.top / path)))
    missing = [path for path in code if not _has(base, head, path)]
    tracked = tracked_files(head.top, missing) if missing else ()
    for path in missing:
        if path not in tracked and (_is_compiled(head.top / path) or is_ignored(head.top, path)):
            return _lacked_by_base(head, path)
    return None


def _has(base: Loading, head: Loading, path: Path) -> bool:
    """Whether the base has its own of a file of head, in place or installed by its build."""
    file = head.top / path
    names = [file.relative_to(root) for root in head.roots if file.is_relative_to(root)]
    return any(one.exists() for one in (base.top / path, *(base.site / name for name in names)))


def _is_lacked(top: Path, path: Path) -> Path | None:
    """The submodule or git-lfs file that a path is in, and that the base's tree lacks."""
    return next((one for one in _missing_files(top) if path.is_relative_to(one)), None)


def _find_shared(base: Loading, head: Loading) -> str | None:
    """Why both arms loaded one file that is code of the tree, or was built from it."""
    both = base.files & head.files
    owners = installed.installed_by_projects(head.top, both)
    for name in sorted(name for name in both if not base.is_data(name)):
        file = Path(name)
        source = _find_source(base, head, file)
        if name not in owners and (source is None or _is_of_another(file, head.top, source)):
            continue
        if file.suffix != ".py" and not _is_compiled(file):  # a script says where it leads
            continue
        advice = "name its folder in pytest's pythonpath, uninstall that copy"
        why = f"although the tree has {source}; {advice}"
        if source is None:
            why = f"which {owners[name]} has installed; {BUILD}"
        return f"both arms loaded {file}, {why}, or {_PYTHON}"
    return None


def _find_built(base: Loading, head: Loading) -> str | None:
    """Why one arm may have made what both loaded, in a folder that both arms have."""
    for name in sorted(base.files & head.files):
        file, is_data = Path(name), base.is_data(name)
        is_outside = not any(file.is_relative_to(folder) for folder in (base.top, head.top))
        # A tool keeps its state in a file that each launch writes.
        is_state = is_data and name in base.made & head.made
        # What a program shares by a name in memory may have ended with it.
        is_gone = name.startswith(load_log.SHARED_FOLDERS) and not file.exists()
        if is_outside and not is_state and (is_gone or is_of_session(file)):
            advice = (
                "gate again if that was an edit or an installation; else have the code build it in "
                "the tree, in a folder named after its source, or in TMPDIR, which each arm has "
                "for itself"
            )
            if is_data:
                advice = (
                    "one may have made it for both: delete it, and have the code make it in the "
                    "tree or in TMPDIR; gate again if that was a download"
                )
            return f"both arms loaded {file}, which was written during this session; {advice}"
    return None


def _find_stale(base: Loading, head: Loading) -> str | None:
    """Why what head runs with may be compiled of older sources than its own."""
    inside = (Path(file) for file in head.files if file.startswith(f"{head.top}/"))
    loaded = {one.relative_to(head.top) for one in inside if not head.is_installed(one)}
    untracked = (loaded | head.named).difference(_tracked(head.top))
    return find_stale(head.top, base.top, sorted(untracked))


def _find_source(base: Loading, head: Loading, file: Path) -> Path | None:
    """The module of both trees with the names of a file that is no code of either tree."""
    is_inside = file.is_relative_to(head.top) or file.is_relative_to(base.top)
    if is_inside and not SITE.search(str(file)):
        return None
    ours, theirs = installed.modules_of(head.top), installed.modules_of(base.top)
    if file.suffix in _ARCHIVES and zipfile.is_zipfile(file):
        inside = (Path(name).with_suffix("").parts for name in zipfile.ZipFile(file).namelist())
        return next((ours[names] for names in inside if names in ours and names in theirs), None)
    return find_source(file, ours) if find_source(file, theirs) is not None else None


def _is_of_another(file: Path, tree: Path, source: Path) -> bool:
    """Whether a project that is none of the tree's has installed what is named as `source` is.

    Where no project of the tree has a name, equal contents decide. A file without a record, as in a
    folder on PYTHONPATH, is the tree's.
    """
    if not installed.is_recorded(str(file)) or installed.computes_name(tree, source):
        return False
    return bool(installed.project_names(tree)) or not are_alike(file, tree / source)


def _is_compiled(file: Path) -> bool:
    return file.suffix != ".py" and file.is_file() and read_start(file, 2) != b"#!"
