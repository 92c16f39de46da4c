"""Which cells run the same code in both trees, so that no pair can find a difference.

What a cell loads is what a launch of head has logged; where that is unknown, it is not identical.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from perfsuite.gate.arms.arm import Launch, Loaded
from perfsuite.gate.git.changes import Changes
from perfsuite.gate.provenance import installed
from perfsuite.gate.provenance.symmetry import Loading, is_of_session
from perfsuite.records.verdict import CellVerdict
from perfsuite.system.files import real_path
from perfsuite.units import listed


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The trees of a session, head's launch that ran no cell, and how to launch cells of head."""

    top: Path
    changes: Changes
    compared: frozenset[Path]  # files of head that were held against the base's, from the top
    collected: Launch
    # No further cell runs once what still lives has loaded enough, as the second argument says.
    run: Callable[[Sequence[str], Callable[[Loaded], bool]], Launch]

    @property
    def reaches_no_cell(self) -> bool:
        """Whether nothing but documentation and records differs, and tests load none of it."""
        return not (self.changes.modules or self.changes.others or self._loads_documents)

    @cached_property
    def _loads_documents(self) -> bool:
        files = set(map(real_path, self.collected.loaded.recent))
        return any(self.top / path in files for path in self.changes.documents)

    def find_identical(self, cells: Collection[str]) -> list[CellVerdict]:
        """Return the verdict of each cell that no change touches."""
        changes = self.changes
        if changes.others or self._loads_documents:
            return []
        if not changes.modules:
            why = "no file on disk that git knows differs from the base"
            if changes.documents:
                why = f"only documentation differs from the base: {listed(changes.documents)}"
            return [_identical(name, why) for name in cells]
        why = f"it loads none of the changed modules: {listed(changes.modules)}"
        found: list[CellVerdict] = []
        for names in self._group(cells):
            runs = self.run(names, self._may_be_touched).cells
            found += [
                _identical(name, why)
                for name in names
                if name in runs
                and runs[name].outcome == "passed"
                and runs[name].rounds_s
                and not self._may_be_touched(self._used_by(name, runs[name].loaded))
            ]
        return found

    def _used_by(self, name: str, loaded: Loaded) -> Loaded:
        """What a cell has loaded, and unless ranks do its work, what may have made what it uses."""
        assert self.collected.suite is not None
        cell = self.collected.suite.cells[name]
        is_apart = cell.get("fixture") is not None and not cell.get("outlives")
        return loaded if is_apart else replace(loaded, recent=loaded.files)

    def _group(self, cells: Collection[str]) -> list[list[str]]:
        """Return the cells to launch together: by file where collecting them all tells nothing."""
        if not self._may_be_touched(self.collected.loaded):
            return [[*cells]] if cells else []
        by_file: dict[str, list[str]] = {}
        for name in cells:
            by_file.setdefault(name.partition("::")[0], []).append(name)
        assert self.collected.suite is not None
        collected = {name.partition("::")[0] for name in self.collected.suite.cells}
        return [*by_file.values()] if len(collected) > 1 else []

    def _may_be_touched(self, loaded: Loaded) -> bool:
        """Whether a changed module is in what was loaded, where a copy or a build may hide it.

        Or another file that git does not know, or of this session: such a module may have made it.
        """
        modules, names = self.changes.modules, installed.by_names(self.top, self.changes.modules)

        def is_changed(file: Path) -> bool:
            is_source = file.suffix == ".py" and not installed.SITE.search(str(file))
            if is_source and file.is_relative_to(self.top):
                return file.relative_to(self.top) in modules
            return installed.find_source(file, names) is not None

        recent = Loading(self.collected.arm, replace(loaded, files=loaded.recent))
        owned = installed.installed_by_projects(self.top, recent.files).keys() & recent.files
        own = installed.modules_of(self.top)
        data = (Path(file) for file in recent.files - loaded.made if recent.is_data(file))
        return (
            bool(loaded.silent or loaded.shells)
            or any(is_changed(real_path(file)) for file in loaded.recent)
            # A build has made it, of whatever in the tree.
            or any(installed.find_source(Path(file), own) is None for file in owned)
            or not all(map(self._is_compared, recent.own_files))
            or any(is_of_session(one) and not one.is_relative_to(self.top) for one in data)
        )

    def _is_compared(self, path: Path) -> bool:
        """Whether both trees are known to have the same, or to use head's."""
        assert self.collected.suite is not None
        root, shared = self.collected.suite.root, self.collected.suite.shared
        # A link to a folder, which git tracks, stands for what it leads to.
        is_compared = not self.compared.isdisjoint((path, *path.parents))
        return is_compared or any((self.top / path).is_relative_to(root / one) for one in shared)


def _identical(name: str, why: str) -> CellVerdict:
    told = f"identical: {why}"
    return CellVerdict(name=name, word="PASS", by="identical", reason=why, compared_with=told)
