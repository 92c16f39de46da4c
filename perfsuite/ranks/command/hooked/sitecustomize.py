"""Finds the ranks of a measured command: those of its processes whose optimizer steps.

Its folder comes first on PYTHONPATH, so every Python process of the command imports it as it
begins. Nothing more is done until one imports torch's optimizers, or perfsuite's marks.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from importlib.machinery import ModuleSpec
    from typing import Any

FOLDER = str(Path(__file__).parent)
_PACKAGE = Path(__file__).parents[3]
# The controller's socket. Beside it a file shows that this hook was there as torch was loaded.
CHANNEL = "PERFSUITE_COMMAND"
LOADED = "hook-is-loaded"


class Finder:
    """Sees what a process imports; the controller's own perfsuite is the one that it gets."""

    def __init__(self, then: dict[str, Callable[[Any], None]]) -> None:
        """Take what is done with a module, by its name, once it is loaded."""
        self._then = then

    def find_spec(self, name: str, path: Any, target: object = None) -> ModuleSpec | None:
        """Return the spec of such a module; None leaves any other to those who come after."""
        if name == _PACKAGE.name:
            init, folders = _PACKAGE / "__init__.py", [str(_PACKAGE)]
            return spec_from_file_location(name, init, submodule_search_locations=folders)
        then = self._then.get(name)
        spec = None if then is None else PathFinder.find_spec(name, path, None)
        if then is None or spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_then(module: Any) -> None:
            run(module)
            then(module)

        spec.loader.exec_module = run_and_then  # type: ignore[method-assign]
        return spec


class Rank:
    """This process, which is a rank from the first step of an optimizer on.

    Until then it hears what the user's code tells, as a listener of `perfsuite.records.stages`.
    """

    _loss: Any = None
    _joined: Any = None
    _process = 0

    def watch(self, optimizers: Any) -> None:
        """Hear of the steps of all optimizers."""
        Path(os.environ[CHANNEL]).with_name(LOADED).touch()
        optimizers.register_optimizer_step_post_hook(self._after_optimizer)

    def listen(self, stages: Any) -> None:
        """Hear of the marks in the user's code."""
        stages.listen(self)

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Time nothing yet."""
        return nullcontext()

    def log_loss(self, loss: Any) -> None:
        """Keep the first step's loss."""
        self._loss = loss.detach().clone() if hasattr(loss, "detach") else loss

    def step_done(self) -> None:
        """End the first step; the marks of all others reach the measurement itself."""
        self._join().step_done()

    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        self._join(optimizer).after_optimizer(optimizer)

    def _join(self, optimizer: Any = None) -> Any:
        if self._process != os.getpid():  # a child that steps by itself is another rank
            self._process = os.getpid()
            try:
                command = import_module("perfsuite.worker.command")
            except ImportError as error:
                raise ImportError(
                    f"perfsuite cannot measure this command, because {error.name} is missing for "
                    f"{sys.executable}, which runs it; install perfsuite there"
                ) from error
            self._joined = command.join(os.environ[CHANNEL], self._loss, optimizer)
        return self._joined


def _run_the_next() -> None:
    """Run the `sitecustomize` that this one hides."""
    spec = PathFinder.find_spec(__name__, sys.path[sys.path.index(FOLDER) + 1 :])
    if spec is not None and spec.loader is not None:
        module = sys.modules[__name__] = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if CHANNEL in os.environ:
        _rank = Rank()
        _then = {"torch.optim.optimizer": _rank.watch, "perfsuite.records.stages": _rank.listen}
        sys.meta_path.insert(0, Finder(_then))
    _run_the_next()
