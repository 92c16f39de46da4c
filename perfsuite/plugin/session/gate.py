"""The gate of one pytest session, `pytest PATHS --benchmark-compare`: a verdict for each cell."""

import dataclasses
import functools
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfsuite.errors import PerfsuiteError
from perfsuite.gate.baselines.stored_verdict import History, read_history
from perfsuite.gate.common_cells import HIDDEN, Leniency
from perfsuite.gate.git.changes import digest_tree
from perfsuite.gate.git.repository import Base
from perfsuite.gate.judge.kept_pairs import kept_names
from perfsuite.gate.judge.trial import draw_seed
from perfsuite.gate.request import base_of
from perfsuite.gate.run_gate import GateResult, run_gate
from perfsuite.plugin.fixtures import OUTCOME
from perfsuite.plugin.output import say
from perfsuite.plugin.recorder import benchmarks_of, is_benchmark
from perfsuite.plugin.session.choices import Choices
from perfsuite.plugin.session.phases import Raised
from perfsuite.plugin.session.saving import STORAGE, RunSaver
from perfsuite.plugin.session.sharding import Sharding, durations_place
from perfsuite.records.cell import CellRecord
from perfsuite.records.run_file import StoredCell
from perfsuite.records.verdict import CellVerdict
from perfsuite.system.untrusted import printable

# Each with what takes it back: so pytest-benchmark has it.
_MEASURE_NOTHING = {
    "--benchmark-disable": "--benchmark-enable",
    "--benchmark-skip": "--benchmark-only",
    "--setup-plan": "",  # which sets the other
    "--setup-only": "",
}
# Puts a verdict into the reports of a cell.
Finish = Callable[[pytest.Item, Sequence[pytest.TestReport], CellVerdict], None]
# What pytest-benchmark keeps of a test beside its times.
_ExtraInfo = dict[str, Any] | None


def refuse_silent_passes(config: pytest.Config, *, is_under_torchrun: bool) -> None:
    """Raise a UsageError for options that measure nothing, or that are not what they seem."""
    compare = config.getoption("benchmark_compare", None)
    if isinstance(compare, str):
        file, colons, _ = compare.partition("::")
        if colons or file.endswith(".py") or Path(file).is_dir():
            found = f"--benchmark-compare takes {compare!r} for the run to compare with"
            raise pytest.UsageError(f"{found}; write: pytest {compare} --benchmark-compare")
    if is_under_torchrun:
        raise pytest.UsageError(
            "--benchmark-compare is the gate, which starts the ranks of both sides on one machine, "
            "and torchrun has started this session; gate without torchrun, or add --perf-gate=off"
        )
    if config.getoption("pyargs", False):
        found = "--benchmark-compare finds the base's tests by their paths"
        raise pytest.UsageError(f"{found}; name paths, not --pyargs")
    measures = "--benchmark-compare measures nothing beside"
    is_worker = hasattr(config, "workerinput")
    if is_worker or config.getoption("dist", "no") != "no" or config.getoption("numprocesses", 0):
        raise pytest.UsageError(f"{measures} xdist's -n; use -n0, or leave it out")
    for flag, opposite in _MEASURE_NOTHING.items():
        if config.getoption(flag, False) and not config.getoption(opposite, False):
            raise pytest.UsageError(f"{measures} {flag}; leave it out")
    is_typed = {"--co", "--collect-only"} & {*config.invocation_params.args}
    if config.option.collectonly and not is_typed:
        raise pytest.UsageError(f"{measures} --collect-only, which is not typed; leave it out")


class SessionGate:
    """The verdicts of one session's cells; what stored runs leave open, pairs judge at its end."""

    def __init__(
        self, config: pytest.Config, choices: Choices, saver: RunSaver, *, finish: Finish
    ) -> None:
        self._config, self._durations = config, choices.durations
        self._saver = saver
        self._say = functools.partial(say, config)
        self._finish = finish
        # With what the session has found, and what is left of its budget.
        self._request = choices.gate
        self._first: GateResult | None = None
        self._selected: list[str] = []
        self._judged: dict[str, CellVerdict] = {}
        self._history: History | None = None
        # The cells that stored runs leave open, and that wait for their pairs.
        self.open_cells: dict[str, _ExtraInfo] = {}
        self._held: list[tuple[pytest.Item, Sequence[pytest.TestReport]]] = []

    @property
    def result(self) -> GateResult | None:
        """What the gate came to so far; None before the first cell was judged."""
        if self._first is None:
            return None
        cells = sorted(self._saver.verdicts.values(), key=lambda cell: cell.name)
        return dataclasses.replace(self._first, cells=tuple(cells))

    def judge(self, items: Sequence[pytest.Item], sharding: Sharding) -> None:
        """Judge the cells that stored runs say too little about; the others wait for their test."""
        if sharding.why_empty is not None and (sharding.num_cells or sharding.shard.number > 1):
            return  # of no cells at all, the first asks the base
        cells = self._selected = [item.nodeid for item in items if is_benchmark(item)]
        config, here = self._config, self._saver.environment
        pythonpath = [Path(path) for path in config.getini("pythonpath")]
        found = base_of(self._request, [config.rootpath, *pythonpath])
        request = self._request = dataclasses.replace(
            self._request,
            num_cells=sharding.num_cells,
            found=found,
            stored=durations_place(config, self._durations),
            fingerprint=here.fingerprint,
        )
        history = self._history = read_history(
            config.rootpath,
            config.stash[STORAGE],
            config.getoption("benchmark_compare"),
            here,
            base=found if isinstance(found, Base) else None,
            probe=lambda: self._saver.probe_s,
        )
        for line in history.refused:
            self._say(f"not compared with {line}")
        # No stored run overrules what pairs have found of these very trees.
        kept = kept_names(request.pairs_file, digest_tree(config.rootpath, outputs=request.outputs))
        # A stored run has no launch of the base to compare the mathematics with.
        screens = not request.refuses_numerics_change
        left = (name for name in cells if screens and printable(name) not in kept)
        waiting = frozenset(filter(history.can_screen, left))
        self._first = self._run(set(cells) - waiting, waiting=waiting)
        self._judged = {cell.name: cell for cell in self._first.cells if sharding.owns(cell.name)}
        for cell in self._judged.values():
            self._record(cell)

    def verdict_of(self, item: Any) -> CellVerdict | None:
        """Return the verdict of a test that passed, None where it is no cell or is left open."""
        if self._first is None or self._history is None:
            return None
        verdict: CellVerdict | None = None
        if is_benchmark(item):
            if (verdict := self._decide(item, self._first, self._history)) is None:
                self.open_cells[item.nodeid] = _extra_info(item)
        elif any(one.fullname == item.nodeid for one in benchmarks_of(self._config)):
            verdict = CellVerdict(name=item.nodeid, word="INVALID", by="collection", reason=HIDDEN)
        return verdict and self._record(verdict, _extra_info(item))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        """Run a cell that stored runs may leave open; any other is pytest's to run."""
        name, history = item.nodeid, self._history
        if history is None or not is_benchmark(item) or name in self._judged:
            return None
        if not history.can_screen(name):
            return None
        runner: Any = item.config.pluginmanager.get_plugin("runner")
        item.ihook.pytest_runtest_logstart(nodeid=name, location=item.location)
        reports = runner.runtestprotocol(item, nextitem=nextitem, log=False)
        if name in self.open_cells:
            self._held.append((item, reports))
        else:
            _show(item, reports)
        item.ihook.pytest_runtest_logfinish(nodeid=name, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Have all cells that are open judged at once, after the last test."""
        try:
            result = yield
            verdicts = self._judge_open() if self.open_cells else {}
            for item, reports in self._held:
                self._finish(item, reports, verdicts[item.nodeid])
            return result
        finally:
            for item, reports in self._held:
                _show(item, reports)

    def _judge_open(self) -> dict[str, CellVerdict]:
        assert self._first is not None
        try:
            # Whether a change touches them is known by now.
            result = self._run(self.open_cells, judges_identical=True)
            found = {cell.name: cell for cell in result.cells}
            refusal = result.refusal or self._first.refusal
        except PerfsuiteError as error:
            found, refusal = {}, f"the pairs could not be run: {error}"
        for name, extra_info in self.open_cells.items():
            verdict = self._add_stored(found.get(name) or _unknown(name, refusal))
            found[name] = self._record(verdict, extra_info)
        self.open_cells.clear()
        return found

    def _add_stored(self, verdict: CellVerdict) -> CellVerdict:
        """Say what stored runs showed that pairs did not: the change is not what made it slower."""
        slower = None if self._history is None else self._history.far_slower.get(verdict.name)
        if slower is None or (verdict.word, verdict.by) != ("PASS", "pairs"):
            return verdict
        told = f"{slower}, and pairs find no slowdown: the machine or a dependency changed"
        reason = told if verdict.reason is None else f"{verdict.reason}; {told}"
        return msgspec.structs.replace(verdict, reason=reason)

    def end(self) -> None:
        """Give a word to each selected cell that has none: its silence would pass."""
        for name in self._selected if self._first is not None else ():
            if name not in self._saver.verdicts:
                reason = "it was selected, and the session ended before it had a verdict"
                self._record(CellVerdict(name=name, word="INVALID", by="collection", reason=reason))

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """End in 0 where the gate only advises, and say so last."""
        session: Any = config.pluginmanager.get_plugin("session")
        leniency = self._first.leniency if self._first else Leniency.of(self._request)
        if (ended := leniency.ends(session.exitstatus)) != session.exitstatus:
            self._say(f"advisory: would have ended in {int(session.exitstatus)}")
            session.exitstatus = ended

    def record_unmeasured(self, item: Any, report: pytest.TestReport, error: Raised) -> None:
        """Give a cell that failed or was skipped here its verdict, by the report of that phase."""
        if self._first is None or not is_benchmark(item):
            return
        name, extra_info = item.nodeid, _extra_info(item)
        if report.failed:
            self.open_cells.pop(name, None)
            phase = "" if report.when == "call" else f" in its {report.when}"
            # A strict xfail that passed, or another plugin, can fail a test that raised nothing.
            text = report.longreprtext if error is None else f"{type(error).__name__}: {error}"
            reason = f"head's test failed{phase}: {text.partition(chr(10))[0]}"
            self._record(CellVerdict(name=name, word="ERROR", by="test", reason=reason), extra_info)
        elif name not in self._judged:  # only the pairs know whether the base has it
            self.open_cells[name] = extra_info
        elif self._judged[name].by == "identical":  # so the base skips it too
            reason = f"skipped: {report.longreprtext.partition(chr(10))[0]}"
            verdict = CellVerdict(name=name, word="SKIPPED", by="test", reason=reason)
            self._record(verdict, extra_info)

    def _record(self, verdict: CellVerdict, extra_info: _ExtraInfo = None) -> CellVerdict:
        """Show a verdict as it counts in the table, stamp it, keep it beside its cell's times."""
        assert self._first is not None
        verdict = self._first.leniency.mark(verdict)
        self._saver.verdicts[verdict.name] = verdict
        if extra_info is not None:
            record = extra_info.get("perfsuite")
            if not isinstance(record, dict):  # a test may keep something else there
                record = extra_info["perfsuite"] = {}
            record["verdict"] = msgspec.to_builtins(verdict.as_record())
        return verdict

    def _decide(self, item: Any, first: GateResult, history: History) -> CellVerdict | None:
        """Counts first, then what pairs or the stored times say; None where pairs must."""
        name: str = item.nodeid
        outcome = item.stash.get(OUTCOME, None)
        record: CellRecord | None = None if outcome is None else outcome.record
        judged, policy = self._judged.get(name), first.policies.get(name)
        stats = getattr(item.funcargs.get("benchmark"), "stats", None)
        if judged is not None and judged.word == "SKIPPED" and stats is not None:
            reason = f"this session measured it and its launches did not: {judged.reason}"
            return CellVerdict(name=name, word="INVALID", by="collection", reason=reason)
        if policy is None or (judged is not None and judged.by == "identical"):
            return judged or _unknown(name, first.refusal)
        if judged is None and policy.refuses_numerics_change:  # as only the base may do
            return None
        kept = ("fingerprint", "samples_per_s", "counts", "memory")
        known = {} if record is None else {field: getattr(record, field) for field in kept}
        known["environment"] = self._saver.environments.get(known.get("fingerprint") or "")
        cell = None if stats is None else StoredCell(median_s=stats.stats.median, **known)
        if record is not None and cell is not None:
            grown = history.find_increases(name, cell, policy, self._say)
            if grown is not None and judged is None:
                self._say(f"{name} goes to the judge: {grown} since the base's stored run")
                return None
        if judged is not None or not history.can_screen(name):
            return judged or _unknown(name, first.refusal)
        if cell is None:  # only the pairs know whether the base measures it
            return None
        digested = {} if record is None else {"workload": record.workload, "recipe": record.recipe}
        digest = self._saver.digests.of(name, digested) or "unknown"
        return history.screen(name, cell, digest, policy, self._say)

    def _run(self, cells: Iterable[str], **changes: Any) -> GateResult:
        changes |= {"cells": frozenset(cells), "seed": draw_seed()}
        request = dataclasses.replace(self._request, **changes)
        result = run_gate(request, say=self._say)
        if result.judgement is not None:
            left_s = max(0.0, request.budget.max_s - result.judgement.wall_s)
            budget = request.budget._replace(max_s=left_s)
            self._request = dataclasses.replace(self._request, budget=budget)
        return result


def _unknown(name: str, refusal: str | None) -> CellVerdict:
    if refusal is not None:
        return CellVerdict(name=name, word="NO-BASELINE", by="collection", reason=refusal)
    reason = "a launch of head with the same command line has no such cell"
    return CellVerdict(name=name, word="INVALID", by="collection", reason=reason)


def _extra_info(item: Any) -> _ExtraInfo:
    return getattr(getattr(item, "funcargs", {}).get("benchmark"), "extra_info", None)


def _show(item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
