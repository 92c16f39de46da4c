"""Whether each arm imported its own code: proof that two trees were compared, and not one twice.

Must not know how an arm is launched.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from perfsuite.gate.arms import Launch
from perfsuite.gate.overlay import source_files

# Where installers put packages, in a tree or not: they are nobody's code under test.
_INSTALLED = {"site-packages", "dist-packages"}
# Names that a tree has beside its code, and that other packages have too.
_NEVER_UNDER_TEST = {"setup", "conftest", "noxfile", "tests", "test", "benchmarks"}


def find_wrong_import(base: Launch, head: Launch) -> str | None:
    """Return why the two launches did not compare two trees, None if they did.

    An arm must import no file of the other's tree; and what one arm has in its tree, both arms must
    import from theirs.

    Args:
        base: A launch of the base.
        head: The launch of head beside it.
    """
    trees = {"base": base.arm.tree.resolve(), "head": head.arm.tree.resolve()}
    if trees["base"] == trees["head"]:
        return None  # the arms differ by interpreter or environment alone
    for launch, other in ((base, head), (head, base)):
        theirs = trees[other.arm.name]
        for name, file in launch.modules.items():
            # An interpreter may live in the tree, its own library with it.
            if name.partition(".")[0] in sys.stdlib_module_names:
                continue
            if _is_in(file, theirs, but_not=trees[launch.arm.name]):
                return (
                    f"the {launch.arm.name} arm imported {name} from {file}, which is "
                    f"{other.arm.name}'s; is it installed in editable mode from another folder?"
                )
    ours = {name for name in _packages(trees["head"]) if name not in sys.stdlib_module_names}
    for name in sorted(ours & base.modules.keys() & head.modules.keys()):
        if base.modules[name] == head.modules[name]:
            return (
                f"both arms imported {name} from {head.modules[name]}, although it is part of the "
                "tree; install it in editable mode, name its folder in pytest's pythonpath, or "
                "give the arms interpreters of their own (--base-python)"
            )
    return None


def _is_in(file: str, tree: Path, *, but_not: Path) -> bool:
    path = Path(file)
    return (
        path.is_relative_to(tree)
        and not path.is_relative_to(but_not)
        and not _INSTALLED.intersection(path.parts)
    )


@functools.cache
def _packages(tree: Path) -> frozenset[str]:
    """The top-level packages of a tree, and the modules at its root or in a folder named src."""
    found = set()
    for path in source_files(tree):
        if path.name == "__init__.py":
            package = tree / path.parent
            if package != tree and not (package.parent / "__init__.py").exists():
                found.add(package.name)
        elif path.suffix == ".py" and path.parent.name in ("", "src"):
            found.add(path.stem)
    return frozenset(found - _NEVER_UNDER_TEST)
