"""What a reader should know of the code that a cell ran, beside its verdict."""

from collections.abc import Collection, Iterator
from pathlib import Path

from perfsuite.gate.judge.trial import Trial
from perfsuite.units import listed


def remarks_on(trial: Trial, root: Path, changed: Collection[Path]) -> Iterator[str]:
    """Yield what is head's on both sides, and which processes could not say what they loaded.

    `changed` are benchmark files that head has otherwise, relative to its `root`.
    """
    if "head" not in trial.last:
        return
    loaded = trial.last["head"].loaded
    own = Path(trial.name.partition("::")[0])
    same = [str(path) for path in sorted(changed) if str(root / path) in loaded.files]
    if others := [path for path in same if path != str(own) and Path(path).name != "conftest.py"]:
        yield f"what this cell runs is head's on both sides: {listed(others)}"
    if loaded.silent:
        yield f"no process of these could say what it loaded: {listed(sorted(loaded.silent))}"
