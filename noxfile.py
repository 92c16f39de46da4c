"""Which versions perfsuite works with. `make` runs none of this; continuous integration does.

nox --list
nox --session "tests-3.12(torch='2.11')" -- tests/worker/training
nox --session "benchmark_plugin(minor='previous')"
nox --session wheel
"""

from __future__ import annotations

import re
from pathlib import Path

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

README = Path(__file__).with_name("README.md")
# What the README's example takes for granted.
MY_PACKAGE = """\
import torch


class MyModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, inputs):
        for layer in self.layers:
            inputs = torch.tanh(layer(inputs))
        return inputs


class MyData(torch.utils.data.Dataset):
    def __init__(self, split):
        self.inputs = torch.randn(256, 8)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], index % 8
"""
TOY = """\
from perfsuite import Recipe


def test_toy(train_benchmark):
    assert train_benchmark("toy-mlp", Recipe(), rounds=3).losses_are_finite
"""

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
    """The built wheel alone, in an environment without the checkout: help, example, report."""
    folder = Path(session.create_tmp()).resolve()
    session.install("build")
    session.run("python", "-m", "build", "--wheel", "--outdir", str(folder / "dist"))
    session.run("python", "-m", "venv", "--clear", str(folder / "empty"))
    python = str(folder / "empty" / "bin" / "python")
    built = sorted((folder / "dist").glob("*.whl"))[-1]
    session.run(python, "-m", "pip", "install", "--quiet", str(built), external=True)
    user = folder / "user"
    (user / "benchmarks").mkdir(parents=True, exist_ok=True)
    (user / "pytest.ini").write_text("[pytest]\n")  # so that this is the root, not the checkout
    (user / "my_package.py").write_text(MY_PACKAGE)
    (user / "benchmarks" / "test_my_model.py").write_text(readme_example())
    (user / "benchmarks" / "test_toy.py").write_text(TOY)
    with session.chdir(user):
        perfsuite = str(Path(python).with_name("perfsuite"))
        session.run(perfsuite, "--help", external=True)
        session.run(python, "-m", "pytest", "benchmarks", external=True)
        session.run(perfsuite, "report", "results/run.json", external=True)


def readme_example() -> str:
    """Return the README's own model in ten lines."""
    found = re.search(
        r"```python\n(# benchmarks/test_my_model\.py\n.*?)```", README.read_text(), re.S
    )
    assert found is not None, f"{README} has no example that begins as benchmarks/test_my_model.py"
    return found[1]
