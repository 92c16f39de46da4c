"""Which versions perfsuite works with. `make` runs none of this; continuous integration does.

nox --list
nox --session "tests-3.12(torch='2.11')" -- tests/worker/training
nox --session wheel
"""

from __future__ import annotations

import nox

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# 2.13.0 is excluded, as in pyproject.toml.
TORCHES = {"2.11": "torch==2.11.*", "2.12": "torch==2.12.*", "newest": "torch>=2.14"}

nox.options.sessions = ["wheel"]


@nox.session(python=PYTHONS)
@nox.parametrize("torch", list(TORCHES))
def tests(session: nox.Session, torch: str) -> None:
    """The suite's tests under one Python and one torch."""
    session.install(TORCHES[torch], ".[dev]")
    session.run("python", "-m", "pytest", *(session.posargs or ["tests"]))


@nox.session
def wheel(session: nox.Session) -> None:
    """What is published, in empty environments: the core, each extra, the README's example."""
    session.install("build", "twine", "check-wheel-contents")
    session.run("python", "benchmarks/distributions.py", *(session.posargs or ["--torch"]))
