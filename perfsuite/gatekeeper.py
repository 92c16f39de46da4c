"""The gate of one pytest session: `pytest PATHS --benchmark-compare`.

Refuses what would pass in silence, has the cells judged before the first test runs, and gives each
test its verdict. Must not know how a verdict is reached, nor how tests are reported.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfsuite.gating import GateRequest, GateResult, run_gate
from perfsuite.options import GateChoices
from perfsuite.verdicts import CellVerdict

# A path that pytest-benchmark takes for the run to compare with is one of these.
_SWALLOWED_SUFFIXES = (".py",)


def refuse_silent_passes(config: pytest.Config) -> None:
    """Refuse options with which nothing would be measured, or that are not what they seem.

    Raises:
        pytest.UsageError: Names the option and what to write instead.
    """
    compare = config.getoption("benchmark_compare", None)
    if isinstance(compare, str) and _is_test_path(compare):
        raise pytest.UsageError(
            f"--benchmark-compare takes {compare!r} for the run to compare with; "
            f"write: pytest {compare} --benchmark-compare"
        )
    if config.getoption("numprocesses", None):
        raise pytest.UsageError(
            "--benchmark-compare measures nothing beside xdist's -n; use -n0, or leave it out"
        )
    for option in ("benchmark_disable", "benchmark_skip"):
        if config.getoption(option, False) and not config.getoption("benchmark_enable", False):
            raise pytest.UsageError(
                f"--benchmark-compare measures nothing beside --{option.replace('_', '-')}; "
                "leave it out"
            )


def _is_test_path(text: str) -> bool:
    file = text.partition("::")[0]
    return "::" in text or Path(file).is_dir() or file.endswith(_SWALLOWED_SUFFIXES)


class Gatekeeper:
    """What a session knows of its verdicts.

    Attributes:
        result: What the gate came to; None before it was asked.
    """

    def __init__(self, config: pytest.Config, choices: GateChoices) -> None:
        """Take over the comparison from pytest-benchmark.

        Its own would compare with whatever file is newest; it stays where
        --benchmark-compare-fail asks for it.

        Args:
            config: The session's.
            choices: How cells are judged.
        """
        self.result: GateResult | None = None
        self.selector = config.getoption("benchmark_compare")
        self._config = config
        self._choices = choices
        self._verdicts: dict[str, CellVerdict] = {}
        if not config.getoption("benchmark_compare_fail", None):
            config.option.benchmark_compare = None

    def judge(self, items: Sequence[pytest.Item], say: Callable[[str], None]) -> None:
        """Have the cells among the tests judged against the base."""
        cells = [item for item in items if is_benchmark(item)]
        if not cells:
            return
        choices, option = self._choices, self._config.option
        selected = []
        for flag, value in (("-k", option.keyword), ("-m", option.markexpr)):
            if value:
                selected += [flag, value]
        request = GateRequest(
            folder=self._config.invocation_params.dir,
            paths=tuple(self._config.args),
            pytest_arguments=(*selected, *choices.pytest_arguments),
            base=choices.base,
            base_dir=choices.base_dir,
            tolerance=choices.tolerance,
            limit=choices.limit,
            budget=choices.budget,
            seed=random.SystemRandom().randrange(2**32),
            outputs=choices.outputs,
        )
        self.result = run_gate(request, say=say)
        self._verdicts = {cell.name: cell for cell in self.result.cells}

    def verdict_of(self, item: pytest.Item) -> CellVerdict | None:
        """Return the verdict of a test that is a cell, None for any other."""
        if self.result is None or not is_benchmark(item):
            return None
        if self.result.refusal is not None:
            return CellVerdict(
                name=item.nodeid, word="NO-BASELINE", by="collection", reason=self.result.refusal
            )
        return self._verdicts.get(item.nodeid)


def is_benchmark(item: pytest.Item) -> bool:
    """Whether a test uses pytest-benchmark's fixture, directly or through one of ours."""
    return "benchmark" in getattr(item, "fixturenames", ())


def store_verdict(item: Any, verdict: CellVerdict) -> None:
    """Put a verdict into the JSON of a test's benchmark."""
    benchmark = getattr(item, "funcargs", {}).get("benchmark")
    if benchmark is not None:
        record = benchmark.extra_info.setdefault("perfsuite", {})
        record["verdict"] = msgspec.to_builtins(verdict.as_record())
