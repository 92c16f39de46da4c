"""Which versions perfsuite works with. `make` runs none of this; continuous integration does.

nox --list
nox --session "tests-3.12(torch='2.11')" -- tests/worker/training
nox --session "benchmark_plugin(minor='previous')"
nox --session wheel
"""

from __future__ import annotations

import nox

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# 2.13.0 is excluded, as in pyproject.toml.
TORCHES = {"2.11": "torch==2.11.*", "2.12": "torch==2.12.*", "newest": "torch>=2.14"}
# pytest-benchmark's current minor, and the one before, which pytest 9.2 is too new for.
MINORS = {
    "current": ("pytest-benchmark==5.3.*",),
    "previous": ("pytest-benchmark==5.2.*", "pytest<9.2"),
}
# What records, stores and compares through pytest-benchmark.
PLUGIN_TESTS = (
    *(
        "tests/plugin/test_hooks.py",
        "tests/plugin/test_recorder.py",
        "tests/plugin/session/test_saving.py",
    ),
    *("tests/sessions/test_run_gate.py", "tests/sessions/test_gate_silent_passes.py"),
    *("tests/sessions/test_gate_stored_sessions.py", "tests/gate/baselines/test_select.py"),
)

nox.options.sessions = ["wheel"]


@nox.session(python=PYTHONS)
@nox.parametrize("torch", list(TORCHES))
def tests(session: nox.Session, torch: str) -> None:
    """The suite's tests under one Python and one torch."""
    session.install(TORCHES[torch], ".[dev]")
    session.run("python", "-m", "pytest", *(session.posargs or ["tests"]))


@nox.session
@nox.parametrize("minor", list(MINORS))
def benchmark_plugin(session: nox.Session, minor: str) -> None:
    """What records and compares, under one minor version of pytest-benchmark."""
    session.install(*MINORS[minor], ".[dev]")
    session.run("python", "-m", "pytest", *(session.posargs or PLUGIN_TESTS))


@nox.session
def wheel(session: nox.Session) -> None:
    """What is published, in empty environments: the core, each extra, the README's example."""
    session.install("build", "twine", "check-wheel-contents")
    session.run("python", "benchmarks/distributions.py", *(session.posargs or ["--torch"]))
