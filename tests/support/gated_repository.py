"""A small git repository of somebody else with plain pytest-benchmark tests, and its gate.

Its tests measure with a clock that only the code under test moves, so no verdict depends on the
machine or on what else it does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from perfsuite.system.timing_lock import LOCK_DIR

CLOCK = """
    class WorkClock:
        __name__ = "work_clock"
        now_s = 0.0

        def __call__(self):
            self.now_s += 1e-9  # pytest-benchmark asks how precise a clock is
            return self.now_s

        def work(self, seconds):
            self.now_s += seconds

    CLOCK = WorkClock()
"""
ONE_CELL = """
    import pytest
    import shop
    from work_clock import CLOCK

    @pytest.mark.benchmark(timer=CLOCK)
    def test_price(benchmark):
        benchmark.pedantic(shop.price, args=(CLOCK,), rounds=5)
"""
TWO_CELLS = f"""{ONE_CELL}
    @pytest.mark.benchmark(timer=CLOCK)
    def test_stock(benchmark):
        benchmark.pedantic(shop.stock, args=(CLOCK,), rounds=5)
"""
SHOP = """
    def price(clock):
        clock.work(0.001)

    def stock(clock):
        clock.work(0.001)
"""
SLOW_SHOP = """
    def price(clock):
        clock.work(0.003)

    def stock(clock):
        clock.work(0.001)
"""
# Every launch takes another time, in an order that each session repeats.
NOISY_SHOP = """
    import os
    import tempfile
    from pathlib import Path

    folder = Path(os.environ["LAUNCHES"])
    tempfile.mkdtemp(dir=folder)
    SECONDS = 0.001 * (1 + 0.5 * (len(list(folder.iterdir())) % 3))

    def price(clock):
        clock.work(SECONDS)

    def stock(clock):
        clock.work(0.001)
"""
# Of a session whose environment the inner one must not take for its own.
_OURS = (
    "PYTEST_",
    "PERFSUITE_",
    "GIT_",
    "PYTHONPATH",
    "PYTHONHASHSEED",
    "GITHUB_BASE_REF",
    "GITHUB_EVENT_PATH",
    "CI_",
)
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(_OURS)},
    # Fewer plugins, which every launch would import.
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    # `-p perfsuite` alone would have every launch rewrite the asserts of the whole package.
    "PYTEST_ADDOPTS": "-p benchmark -p perfsuite --assert=plain",
    "PYTHONDONTWRITEBYTECODE": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "author",
    "GIT_AUTHOR_EMAIL": "author@example.org",
    "GIT_COMMITTER_NAME": "committer",
    "GIT_COMMITTER_EMAIL": "committer@example.org",
}
# For a whole session, on a busy machine.
_PATIENCE_S = 600.0


class Repository:
    """A checkout, and what is called in it.

    Attributes:
        folder: Where pytest is called.
        python_options: Of the interpreter.
    """

    def __init__(self, path: Path, *, python: str = sys.executable) -> None:
        self.path = path
        self.folder = path
        self.python_options: tuple[str, ...] = ()
        self._python = python

    def write(self, **files: str) -> None:
        """Write modules, by their path with "__" for "/"; the benchmarks are in `benchmarks`."""
        for name, text in files.items():
            path = self.path / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def git(self, *arguments: str) -> str:
        """Return what git answers."""
        return subprocess.run(
            ["git", "-C", str(self.path), *arguments],
            env=ENVIRONMENT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    def commit(self, message: str = "a change") -> str:
        """Commit everything, and return the commit's name as people see it."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")[:7]

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start pytest."""
        return subprocess.Popen(
            [
                *(self._python, *self.python_options, "-m", "pytest"),
                *("-p", "no:cacheprovider", *arguments),
            ],
            cwd=self.folder,
            env={
                **ENVIRONMENT,
                "PYTHONUNBUFFERED": "1",
                LOCK_DIR: os.environ[LOCK_DIR],
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A shell's background job ignores Ctrl-C, and its children would too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def gate(self, *arguments: str, **environment: str) -> Gated:
        """Gate the benchmarks; arguments stand before --benchmark-compare."""
        paths = () if any(a.startswith("benchmarks") for a in arguments) else ("benchmarks",)
        return self.pytest(*paths, *arguments, "--benchmark-compare", **environment)

    def pytest(self, *arguments: str, **environment: str) -> Gated:
        """Run pytest."""
        process = self.start(*arguments, **environment)
        output, _ = process.communicate(timeout=_PATIENCE_S)
        return Gated(process.returncode, output)

    def accept(
        self, cell: str, *, expires: str = "9999-12-31", adds: bool = False, **fields: str | float
    ) -> None:
        """Write a reviewed exception: the only one, or beside those that are there."""
        lines = {"cell": cell, **fields, "reason": "reviewed"}
        path = self.path / "baselines" / "accepted.toml"
        path.parent.mkdir(exist_ok=True)
        path.open("a" if adds else "w").write(
            "[[accepted]]\n"
            + "".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items())
            + f"expires = {expires}\n"
        )

    def forget_git(self) -> None:
        """Be a folder outside of git."""
        shutil.rmtree(self.path / ".git")


def make_shop(path: Path, *, max_pairs: int = 3) -> Repository:
    """Return a repository whose first commit has one cell, and whose second changes nothing.

    Three pairs decide where times are exact; cells that read a real clock need more.
    """
    repository = Repository(path)
    repository.write(shop=SHOP, benchmarks__work_clock=CLOCK, benchmarks__test_steps=ONE_CELL)
    (path / "pytest.ini").write_text(
        f"[pytest]\npythonpath = .\nperf_gate = on\nperf_max_pairs = {max_pairs}\n"
    )
    repository.git("init", "--quiet", "--initial-branch=main")
    repository.commit()
    repository.commit()
    return repository


def check_out_change(shop: Repository, /, **files: str) -> Path:
    """Return a clone at a change of the main branch, as continuous integration has one."""
    shop.git("switch", "--quiet", "--create", "change")
    shop.write(**files)
    (shop.path / "README.md").write_text("A shop.\n")
    shop.commit()
    shop.git("switch", "--quiet", "main")
    folder = shop.path.with_name("clone")
    shop.git("clone", "--quiet", f"file://{shop.path}", str(folder))
    Repository(folder).git("checkout", "--quiet", "--detach", "origin/change")
    return folder


class Gated:
    """What a gated session ended in, and what it said."""

    def __init__(self, code: int, output: str) -> None:
        self.code = code
        self.output = output

    def expect(self, code: int, *lines: str) -> None:
        """Fail unless it ended so, and said these lines in this order, and without a traceback.

        Args:
            code: The exit code.
            lines: Patterns; each run of spaces is one space.
        """
        said = [re.sub(" +", " ", line).strip() for line in self.output.splitlines()]
        assert self.code == code, self.output
        pytest.LineMatcher(said).fnmatch_lines([line.replace("[", "[[]") for line in lines])
        assert "INTERNALERROR" not in self.output
        assert "Traceback" not in self.output
