"""The pytest sessions that torchrun started, one on each rank, as one session that rank 0 reports.

All run the same tests in the same order, and a test's phase (setup, call, teardown) ends alike.
"""

import hashlib
import itertools
import os
import signal
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from _pytest.junitxml import xml_key

from perfsuite.errors import ExitCode, LostRankError, WriteError
from perfsuite.plugin import recorder
from perfsuite.plugin.fixtures import RUNNER
from perfsuite.plugin.output import HeldOutput, say
from perfsuite.plugin.session.phases import PhaseEnd, Raised, end_of
from perfsuite.ranks.torchrun.membership import Membership
from perfsuite.ranks.torchrun.peers import Peers
from perfsuite.records.cell import CellLine, decode_lines, encode_line
from perfsuite.records.verdict import most_severe
from perfsuite.system.background import read_start_s
from perfsuite.system.files import write_atomically


class TorchrunSession:
    """The plugin of a session of several ranks."""

    def __init__(
        self, config: pytest.Config, membership: Membership, file: Path, output: HeldOutput | None
    ) -> None:
        """Silence this rank unless it is the first; raises a UsageError for process pools."""
        self.finished: dict[str, CellLine] = {}  # before torchrun started the ranks again
        self.has_lost = False  # another rank's pytest, while a test ran
        self._config, self._membership = config, membership
        self._cells_file, self._output = file, output
        if config.getoption("numprocesses", None) or config.getoption("dist", "no") != "no":
            more = "torchrun has started one pytest for each rank, and xdist's -n would start more"
            raise pytest.UsageError(f"{more} of each; use -n0, or leave it out")
        if not membership.is_first:
            if output is not None:
                output.show(nowhere=True)
            recorder.write_nothing(config)
            if (junit := config.stash.get(xml_key, None)) is not None:
                junit.logfile = os.devnull
        self._peers = None if config.option.collectonly else Peers(membership)

    def pytest_report_collectionfinish(self) -> None:
        """Say at once how many ranks there are, and where this one waits for the others."""
        its = self._membership
        text = f"torchrun: {its.world_size} ranks, meeting at {its.host}:{its.port}"
        say(self._config, text + (f", restart {its.num_restarts}" if its.num_restarts else ""))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Before the first test, agree on all of them, and on those that need no second run."""
        self._session = session
        if self._peers is not None:
            try:
                self._agree_on_tests(self._peers, [item.nodeid for item in session.items])
                self._config.stash[RUNNER]().session.join(self._peers)
                self._resume(self._peers)
            except LostRankError as error:
                pytest.exit(f"perfsuite: {error}", returncode=pytest.ExitCode.TESTS_FAILED)
        return (yield)

    def _agree_on_tests(self, peers: Peers, names: Sequence[str]) -> None:
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
        if len(set(peers.gather("digest of the tests", digest))) == 1:
            return
        text = first_difference(peers.gather("tests", tuple(names)))
        if self._membership.is_first:
            raise pytest.UsageError(text)
        pytest.exit(text, returncode=pytest.ExitCode.USAGE_ERROR)

    def _resume(self, peers: Peers) -> None:
        if self._membership.num_restarts == 0:
            return
        finished: dict[str, CellLine] = {}
        trouble = None
        if self._membership.is_first:
            try:
                finished = keep_finished(self._cells_file, since_s=read_start_s(os.getppid()))
            except WriteError as error:
                trouble = error
        self.finished, trouble = peers.gather("finished cells", (finished, trouble))[0]
        if trouble is not None:
            pytest.exit(f"perfsuite: {trouble}", returncode=ExitCode.REFUSED)

    def agree_on(self, item: pytest.Item, report: pytest.TestReport, error: Raised) -> None:
        """Have a phase of a test end here as on the rank where it failed, or was skipped."""
        if self._peers is None or self.has_lost:
            return
        mine = end_of(item, report, error)
        try:
            ends = self._peers.end_phase(mine)
        except LostRankError as lost:
            self.has_lost = True
            self._session.shouldfail = f"perfsuite: {lost}"
            report.outcome, report.longrepr = "failed", f"LostRankError: {lost}"
            return
        rank = blamed_rank(ends)
        if rank is None or (mine.outcome == "failed" and not mine.is_consequence):
            return
        end = ends[rank]
        reason = end.text.removeprefix("Skipped: ")
        text = f"rank {rank} of {self._membership.world_size} {end.outcome}: {reason}"
        path, line_number, _ = report.location
        is_skip = end.outcome == "skipped"
        report.outcome = end.outcome
        report.longrepr = (path, (line_number or 0) + 1, text) if is_skip else text

    def pytest_internalerror(self, excrepr: object) -> None:
        """Show an internal error, which only this rank may have."""
        if self._output is not None:
            self._output.stderr.write(f"perfsuite: rank {self._membership.rank}: {excrepr}\n")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """End with the same exit code on all ranks, when the first has shown and written all."""
        result = yield
        if self._peers is not None:
            # torchrun sends SIGTERM to the others when the first process ends with a failure.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            codes = [int(session.exitstatus)]
            try:
                codes += self._peers.leave(codes[0])
            except LostRankError:
                codes.append(pytest.ExitCode.TESTS_FAILED)
            session.exitstatus = most_severe(codes)
            self._peers.close()
        return result


def keep_finished(path: Path, *, since_s: float) -> dict[str, CellLine]:
    """Return the cells that an earlier start finished, and leave nothing else in the file.

    Skipped cells cost nothing and are not kept, nor is a line that was cut off. A file that is
    older than the launch, which began at `since_s` by the system's clock, is another launch's.
    """
    if not path.exists() or path.stat().st_mtime < since_s:
        return {}
    lines = decode_lines(path.read_bytes())
    finished = {line.fullname: line for line in lines if line.outcome != "skipped"}
    write_atomically(path, b"".join(encode_line(line) + b"\n" for line in finished.values()))
    return finished


def first_difference(names_by_rank: Sequence[Sequence[str]]) -> str:
    """Return which test is the first that a rank has and rank 0 has not, or the other way round."""
    numbered = enumerate(itertools.zip_longest(*names_by_rank), start=1)
    number, names = next((number, names) for number, names in numbered if len(set(names)) > 1)
    rank = next(rank for rank, name in enumerate(names) if name != names[0])
    here, there = ("missing" if name is None else repr(name) for name in (names[0], names[rank]))
    differs = f"number {number} is {here} on rank 0 and {there} on rank {rank}"
    advice = "give all ranks the same files, options and pytest plugins"
    return f"the ranks collected different tests: {differs}; {advice}"


def blamed_rank(ends: Sequence[PhaseEnd]) -> int | None:
    """Return the rank whose end of the phase stands for all; None where all passed, or skipped."""
    failed = [rank for rank, end in enumerate(ends) if end.outcome == "failed"]
    first = [rank for rank in failed if not ends[rank].is_consequence]
    # Others pass, or wait in vain for the rank that skips.
    skipped = [rank for rank, end in enumerate(ends) if end.outcome == "skipped"]
    return None if len(skipped) == len(ends) else next(iter([*first, *skipped, *failed]), None)
