"""The first commit that made a cell slower: each step of git's bisection judged in pairs.

Each commit is judged against the good one, both with the benchmark files and the pytest
configuration of the working tree: a benchmark may be younger than what it measures.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from perfsuite.errors import SettingError
from perfsuite.gate.arms.arm import Say, Suite
from perfsuite.gate.arms.command import Command
from perfsuite.gate.git import repository
from perfsuite.gate.git.command import output
from perfsuite.gate.git.find_base import commit_named
from perfsuite.gate.git.overlay import Head, lay_configuration
from perfsuite.gate.git.worktree import base_tree, lay_benchmarks, share_files
from perfsuite.gate.request import BOUNDS, GateRequest, collect, head_arm
from perfsuite.gate.run_gate import HELD, GateResult, Machine, run_gate
from perfsuite.records.verdict import CellVerdict, VerdictWord
from perfsuite.units import counted, format_change, format_ratio, short_commit

Mark = Literal["good", "bad", "skip"]
Bounds = tuple[float, float]  # tolerance and limit

_MARKS: Mapping[VerdictWord, Mark] = {"FAIL": "bad", "PASS": "good", "IMPROVED": "good"}
# The gate's own tolerance and limit.
_LEAST_BOUNDS = (0.02, 0.05)
_MOST_TOLERANCE = 0.9  # that of a rule is below 1
# Of the bad end's slowdown, as logarithms. A commit between the ends is as fast as the one or as
# slow as the other: few pairs show which, where many would be spent on what else it cost.
_SHARES = (0.25, 0.75)
_MOST_LISTED = 3


class BisectStep(NamedTuple):
    """One commit that was judged against the good one; `mark` is what git made of the verdict."""

    commit: str
    subject: str
    mark: Mark
    verdict: CellVerdict

    def __str__(self) -> str:
        commit = f"{short_commit(self.commit)} {self.subject!r}"
        return f"{commit}: {_figures(self.verdict)}: {self.mark}"


class BisectResult(NamedTuple):
    """The result of a search."""

    cell: str
    bounds: Bounds
    ends: tuple[BisectStep, ...]  # the bad one and the good one, judged first, as far as that went
    steps: tuple[BisectStep, ...] = ()  # between them
    refusal: str | None = None  # why there was nothing to search
    first_bad: BisectStep | None = None
    possible: tuple[tuple[str, str], ...] = ()  # if unknown, all that it may be, with subjects


def bisect(
    request: GateRequest,
    *,
    good: str,
    bad: str,
    bounds: Bounds | None,
    say: Say,
    machine: Machine = HELD,
) -> BisectResult:
    """Return the first commit that made the cell slower than it was at the good one.

    The request is that of a step, and its call of pytest names the cell. `bounds` are tolerance and
    limit of every step; None uses those of the gate for the bad end, and for the others a quarter
    and three quarters of its slowdown. The machine is entered, and waited for, last. Raises a
    SettingError where a revision is no commit, they are in the wrong order or the cell is not one.
    """
    ends = _find_ends(request.command.folder, good, bad)
    suite, cell = _collect(request)
    with machine, _tree_of(suite, cell, ends[0]) as (tree, _):
        request = replace(request, cells=frozenset({cell}), base_dir=tree, heeds_exceptions=False)
        return _Search(request=request, bounds=bounds, suite=suite, cell=cell, say=say).run(*ends)


class _Search(NamedTuple):
    request: GateRequest
    bounds: Bounds | None
    suite: Suite
    cell: str
    say: Say

    def run(self, good_commit: str, bad_commit: str) -> BisectResult:
        root = self.suite.root
        num_commits = repository.count_commits(root, good_commit, bad_commit)
        most = (num_commits - 1).bit_length()
        self.say(
            f"{counted(num_commits, 'commit')} after {short_commit(good_commit)} up to "
            f"{short_commit(bad_commit)}: both ends are judged first, then {most} of them, and "
            f"more where some must be skipped; at most {self.request.budget.max_pairs} pairs each"
        )
        bounds = self.bounds or _LEAST_BOUNDS
        bad = self._judge(bad_commit, bounds)
        self.say(f"the bad end, {bad}")
        found = BisectResult(cell=self.cell, bounds=bounds, ends=(bad,))
        if bad.mark != "bad":
            return found._replace(refusal=_why_not_bad(bad))
        if self.bounds is None:
            bounds = bounds_of(bad.verdict)
            self.say(
                f"a commit that is slower by more than {format_ratio(bounds[0])} is bad, and one "
                f"that is known to be slower by less than {format_ratio(bounds[1])} is good"
            )
        good = self._judge(good_commit, bounds, is_good=True)
        self.say(f"the good end against itself, {good}")
        found = found._replace(bounds=bounds, ends=(bad, good))
        if good.mark != "good":
            reason = f"cannot be told from itself on this machine: {_figures(good.verdict)}"
            advice = "see what 'perfsuite doctor' says, or allow more --max-pairs"
            return found._replace(refusal=f"{short_commit(good_commit)} {reason}; {advice}")
        steps, possible = self._narrow(good_commit, bad_commit, bounds, most)
        found = found._replace(steps=tuple(steps))
        if len(possible) == 1:
            judged = {step.commit: step for step in (bad, *steps)}
            return found._replace(first_bad=judged[possible[0]])
        named = [(commit, repository.subject_of(root, commit)) for commit in possible]
        return found._replace(possible=tuple(named))

    def _narrow(
        self, good: str, bad: str, bounds: Bounds, most: int
    ) -> tuple[list[BisectStep], list[str]]:
        steps: list[BisectStep] = []
        root = self.suite.root
        goods, skipped = [good], list[str]()
        while True:
            # Those first that part the others most evenly.
            listed = output(root, "rev-list", "--bisect-all", bad, *(f"^{one}" for one in goods))
            possible = [line.split()[0] for line in listed.decode().splitlines()]
            candidates = [one for one in possible if one != bad and one not in skipped]
            if not candidates:
                return steps, possible
            # What lies beside a commit that cannot be judged is likely to be as broken.
            num_skipped = len({*skipped} & {*possible})
            away = len(candidates) * num_skipped // (2 * num_skipped + 2)
            step = self._judge(candidates[away], bounds)
            if step.mark == "bad":
                bad = step.commit
            else:
                (goods if step.mark == "good" else skipped).append(step.commit)
            steps.append(step)
            most = max(most + (step.mark == "skip"), len(steps))
            self.say(f"step {len(steps)} of {most}, {step}")

    def _judge(self, commit: str, bounds: Bounds, *, is_good: bool = False) -> BisectStep:
        """Judge a commit; also the good one itself, which shows what the machine can tell apart."""
        cell = self.cell
        with _tree_of(self.suite, cell, commit) as (tree, inifile):
            arguments = ("-c", str(inifile), f"--rootdir={tree}", cell)
            step = replace(
                self.request,
                command=Command(folder=tree, arguments=arguments),
                tolerance=bounds[0],
                limit=bounds[1],
                typed=frozenset(BOUNDS),
                judges_identical=is_good,
            )
            try:
                result = run_gate(step, say=lambda line: self.say(f"  {line}"))
            except SettingError as error:  # of this commit's settings
                result = GateResult(refusal=str(error), differs={}, seed=step.seed)
        reason = result.refusal or "the commit has no such cell"
        missing = CellVerdict(name=cell, word="NO-BASELINE", by="collection", reason=reason)
        verdict = next((found for found in result.cells if found.name == cell), missing)
        subject = repository.subject_of(self.suite.root, commit)
        mark = _MARKS.get(verdict.word, "skip")
        return BisectStep(commit=commit, subject=subject, mark=mark, verdict=verdict)


def bounds_of(bad: CellVerdict) -> Bounds:
    """Return tolerance and limit that distinguish commits from the bad one."""
    tolerance, limit = ((bad.ratio or 1.0) ** share - 1 for share in _SHARES)
    return max(_LEAST_BOUNDS[0], min(tolerance, _MOST_TOLERANCE)), max(_LEAST_BOUNDS[1], limit)


def _why_not_bad(bad: BisectStep) -> str:
    name, figures = short_commit(bad.commit), _figures(bad.verdict)
    if bad.mark == "good":
        advice = "name another --bad or --good, or a smaller --tolerance"
        is_fine = f"{name} is not slower than the good commit ({figures})"
        return f"{is_fine}, so there is nothing to find; {advice}"
    if (bad.verdict.reason or "").startswith("the base"):
        why = "the good commit, which is the base here, does not run the working tree's benchmark"
        return f"{why}: {bad.verdict.reason}; name a younger --good"
    return f"it is not known whether {name} is slower than the good commit: {figures}"


def _figures(verdict: CellVerdict) -> str:
    parts: list[str] = [verdict.word]
    if verdict.ratio is not None and verdict.interval is not None:
        low, high = map(format_change, verdict.interval)
        parts.append(f"{format_change(verdict.ratio)} ({low} to {high})")
    return ", ".join([*parts, *filter(None, [verdict.reason])])


def _find_ends(folder: Path, good: str, bad: str) -> tuple[str, str]:
    if repository.find_top(folder) is None:
        raise SettingError(f"{folder} is not in a git checkout, so it has no commits to search")
    ends = commit_named(folder, "--good", good), commit_named(folder, "--bad", bad)
    if ends[0] == ends[1]:
        same = f"--good {good} and --bad {bad} are the same commit, {short_commit(ends[0])}"
        raise SettingError(f"{same}; name an older one that was not slower yet")
    if not repository.is_in_history(folder, *ends):
        raise SettingError(
            f"--good {good} is no ancestor of --bad {bad}; name a commit from which the bad one "
            f"was made, such as the one that 'git merge-base {good} {bad}' shows"
        )
    return ends


def _collect(request: GateRequest) -> tuple[Suite, str]:
    (named,) = request.command.arguments
    launch = collect(head_arm(request, None))
    if launch.suite is None or launch.why_not_collected is not None:
        raise SettingError(f"{named!r} cannot be collected: {launch.why_not_collected}")
    cells = list(launch.suite.cells)
    if len(cells) != 1:
        names = ", ".join(cells[:_MOST_LISTED]) or "none"
        raise SettingError(f"{named!r} names {len(cells)} benchmarks ({names}); name one in full")
    return launch.suite, cells[0]


@contextmanager
def _tree_of(suite: Suite, cell: str, commit: str) -> Iterator[tuple[Path, Path]]:
    """A commit's tree with the benchmarks of today, and today's configuration in it."""
    root = suite.root.resolve()
    head = Head(top=repository.find_top(root) or root, root=root, python_files=suite.python_files)
    base = repository.Base(revision=commit, described=short_commit(commit))
    with base_tree(suite.root, base) as tree:
        lay_benchmarks(tree, head, [suite.root / cell.partition("::")[0]])
        share_files(suite.root, tree, suite.shared)
        yield tree, lay_configuration(tree, head, suite.inifile)
