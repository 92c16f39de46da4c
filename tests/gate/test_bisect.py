"""Which commit made a cell slower: real repositories, git's own distances, a judge that reads.

The judge is made up: a commit is as slow as its file `speed` says, against the good one.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from made_up_machine import Machine

from perfsuite.errors import SettingError
from perfsuite.gate import bisect as bisect_module
from perfsuite.gate.arms.arm import Launch, Suite
from perfsuite.gate.arms.command import Command
from perfsuite.gate.bisect import BisectResult, bisect, bounds_of
from perfsuite.gate.judge.trial import Budget
from perfsuite.gate.request import GateRequest
from perfsuite.gate.run_gate import GateResult
from perfsuite.records.verdict import CellVerdict

CELL = "benchmarks/test_steps.py::test_price"
TODAY = "def test_price(benchmark): benchmark(print)  # of today\n"


@dataclass
class Shop:
    """A repository whose commits are as fast as their file `speed` says."""

    path: Path
    commits: list[str] = field(default_factory=list)
    judged: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    requests: list[GateRequest] = field(default_factory=list)
    bounds: tuple[float, float] | None = None
    machine: Machine = field(default_factory=Machine)

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, speed: str) -> None:
        """Commit another speed, or other words that the judge says."""
        (self.path / "speed").write_text(speed)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", f"make it {speed}")
        self.commits.append(self.git("rev-parse", "HEAD"))

    def bisect(self, good: int | str = 0, bad: int | str = -1, cell: str = CELL) -> BisectResult:
        request = GateRequest(
            command=Command(folder=self.path, arguments=(cell,)),
            budget=Budget(max_pairs=8, max_s=60.0, timeout_s=60.0),
            seed=1,
        )
        return bisect(
            request,
            good=self.commits[good] if isinstance(good, int) else good,
            bad=self.commits[bad] if isinstance(bad, int) else bad,
            bounds=self.bounds,
            say=self.said.append,
            machine=self.machine,
        )

    def state(self) -> str:
        """What must not change: index, tree, stash, refs, and git's own bisection."""
        # Where git packs refs it makes a file for them, whatever it holds.
        files = {path.name for path in (self.path / ".git").iterdir()} - {"packed-refs"}
        return "\n".join(
            self.git(*arguments.split())
            for arguments in (
                "status --porcelain --ignored",
                "for-each-ref",
                "stash list",
                "worktree list",
                "diff --cached",
                "config --list --local",
            )
        ) + repr(sorted(files))


Answer = Callable[[str, GateRequest], CellVerdict]


def verdict_of(speed: str) -> CellVerdict:
    words = {"fast": "PASS", "faster": "IMPROVED", "slow": "FAIL", "slower": "FAIL"}
    ratios = {"fast": 1.001, "faster": 0.9, "slow": 1.3, "slower": 1.6}
    word, ratio = words.get(speed, speed), ratios.get(speed)
    return CellVerdict(
        name=CELL,
        word=word,
        by="pairs",
        ratio=ratio,
        interval=None if ratio is None else (ratio - 0.01, ratio + 0.01),
        num_pairs=4,
        reason=None if ratio is not None else "as the test wants it",
    )


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A repository without a commit, and a judge and a collection that are made up."""
    path = tmp_path.resolve() / "shop"
    (path / "benchmarks").mkdir(parents=True)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "gitconfig").write_text("[user]\nname = A\nemail = a@example.org\n")
    (path / "pytest.ini").write_text("[pytest]\n")
    (path / "benchmarks" / "test_steps.py").write_text(TODAY)
    shop = Shop(path)
    shop.git("init", "--quiet", "--initial-branch=main")

    def run_gate(request: GateRequest, *, say: Callable[[str], None]) -> GateResult:
        say("pair 1: decided")
        assert request.base_dir is not None
        assert not request.heeds_exceptions
        shop.requests.append(request)
        speed = (request.command.folder / "speed").read_text()
        shop.judged.append(speed)
        for tree in (request.command.folder, request.base_dir):
            assert (tree / "benchmarks" / "test_steps.py").read_text() == TODAY
        assert (request.base_dir / "speed").read_text() == "fast"
        cells = () if speed == "refused" else (verdict_of(speed),)
        refusal = "head's tests cannot be collected: broken" if speed == "refused" else None
        return GateResult(cells=cells, refusal=refusal, differs={}, judgement=None, seed=1)

    monkeypatch.setattr(bisect_module, "run_gate", run_gate)
    give_cells(monkeypatch, path, [CELL])
    return shop


def give_cells(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    cells: Sequence[str],
    shared: tuple[str, ...] = (),
) -> None:
    suite = Suite(
        cells={cell: {} for cell in cells},
        root=root,
        inifile=root / "pytest.ini",
        pythonpath=(),
        python_files=("test_*.py",),
        shared=shared,
    )
    monkeypatch.setattr(bisect_module, "collect", lambda arm: Launch(arm=arm, suite=suite))


@pytest.mark.parametrize("first_bad", [1, 4, 7])
def test_the_first_slow_of_eight_commits_is_found_in_three_steps(
    shop: Shop, first_bad: int
) -> None:
    for number in range(8):
        shop.commit("fast" if number < first_bad else "slow")

    result = shop.bisect()

    assert shop.machine.was_held
    assert result.first_bad is not None
    assert result.first_bad.commit == shop.commits[first_bad]
    assert result.first_bad.subject == "make it slow"
    assert [end.commit for end in result.ends] == [shop.commits[7], shop.commits[0]]
    assert len(result.steps) <= 3


def test_what_both_arms_may_share_is_there_at_each_commit(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for speed in ("fast", "slow"):
        shop.commit(speed)
    (shop.path / "made.txt").write_text("by a build")
    give_cells(monkeypatch, shop.path, [CELL], shared=("made.txt",))
    judge, found = bisect_module.run_gate, list[str]()

    def read_shared(request: GateRequest, **others: Any) -> GateResult:
        assert request.base_dir is not None
        for tree in (request.command.folder, request.base_dir):
            found.append((tree / "made.txt").read_text())
        return judge(request, **others)

    monkeypatch.setattr(bisect_module, "run_gate", read_shared)

    assert shop.bisect().first_bad is not None
    assert found == ["by a build"] * 4


def test_each_step_is_announced_and_shown(shop: Shop) -> None:
    for speed in ("fast", "fast", "slow", "slow", "slow"):
        shop.commit(speed)
    short = [commit[:7] for commit in shop.commits]

    shop.bisect()

    assert [line for line in shop.said if not line.startswith(" ")] == [
        f"4 commits after {short[0]} up to {short[4]}: both ends are judged first, then 2 of them, "
        "and more where some must be skipped; at most 8 pairs each",
        f"the bad end, {short[4]} 'make it slow': FAIL, +30.0 % (+29.0 % to +31.0 %): bad",
        "a commit that is slower by more than 6.8 % is bad, and one that is known to be slower by "
        "less than 21.7 % is good",
        f"the good end against itself, {short[0]} 'make it fast': PASS, +0.1 % (-0.9 % to +1.1 %): "
        "good",
        f"step 1 of 2, {short[2]} 'make it slow': FAIL, +30.0 % (+29.0 % to +31.0 %): bad",
        f"step 2 of 2, {short[1]} 'make it fast': PASS, +0.1 % (-0.9 % to +1.1 %): good",
    ]
    assert "  pair 1: decided" in shop.said


def test_a_faster_commit_is_good_and_one_that_cannot_be_judged_is_skipped(shop: Shop) -> None:
    for speed in ("fast", "INCONCLUSIVE", "faster", "refused", "slow", "INVALID", "ERROR", "slow"):
        shop.commit(speed)

    result = shop.bisect()

    marks = {step.verdict.word: step.mark for step in result.steps}
    assert marks.items() >= {("IMPROVED", "good"), ("NO-BASELINE", "skip")}
    assert result.first_bad is None
    assert {commit for commit, _ in result.possible} == set(shop.commits[3:5])


def test_a_commit_whose_settings_are_refused_is_skipped(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for speed in ("fast", "fast", "wrong", "slow", "slow"):
        shop.commit(speed)
    judge = bisect_module.run_gate

    def refuse_wrong(request: GateRequest, **others: Any) -> GateResult:
        if (request.command.folder / "speed").read_text() == "wrong":
            raise SettingError("perf_share names 'data', which git tracks")
        return judge(request, **others)

    monkeypatch.setattr(bisect_module, "run_gate", refuse_wrong)

    result = shop.bisect()

    (skipped,) = [step for step in result.steps if step.mark == "skip"]
    assert skipped.verdict.reason == "perf_share names 'data', which git tracks"
    assert {commit for commit, _ in result.possible} == set(shop.commits[2:4])


def test_a_refused_commit_says_why(shop: Shop) -> None:
    for speed in ("fast", "refused", "slow"):
        shop.commit(speed)

    (step,) = shop.bisect().steps

    assert step.verdict.reason == "head's tests cannot be collected: broken"


def test_a_benchmark_that_is_younger_than_the_slowdown_is_laid_over_every_commit(
    shop: Shop,
) -> None:
    (shop.path / "benchmarks" / "test_steps.py").unlink()
    for speed in ("fast", "slow", "slow"):
        shop.commit(speed)
    (shop.path / "benchmarks").mkdir(exist_ok=True)
    (shop.path / "benchmarks" / "test_steps.py").write_text(TODAY)

    result = shop.bisect()

    assert result.first_bad is not None
    assert result.first_bad.commit == shop.commits[1]


def test_what_was_accepted_is_found_all_the_same(shop: Shop) -> None:
    (shop.path / "baselines").mkdir()
    (shop.path / "baselines" / "accepted.toml").write_text("[[accepted]]\n")
    for speed in ("fast", "slow"):
        shop.commit(speed)

    result = shop.bisect()

    assert result.first_bad is not None
    assert (shop.path / "baselines" / "accepted.toml").exists()


def test_both_arms_are_configured_as_the_working_tree(shop: Shop) -> None:
    for speed in ("fast", "slow"):
        shop.commit(speed)

    shop.bisect()

    (request, good_end) = shop.requests
    assert (request.judges_identical, good_end.judges_identical) == (False, True)
    folder = request.command.folder
    assert request.command.arguments == (
        *("-c", str(folder / "pytest.ini"), f"--rootdir={folder}", CELL),
    )
    assert request.cells == frozenset({CELL})
    assert request.floor_s is None


def test_the_bad_end_is_judged_as_a_gate_would_and_the_others_against_it(shop: Shop) -> None:
    for speed in ("fast", "slow", "slow"):
        shop.commit(speed)

    result = shop.bisect()

    bad, *others = [(request.tolerance, request.limit) for request in shop.requests]
    assert bad == (0.02, 0.05)
    assert set(others) == {result.bounds}
    assert result.bounds == (pytest.approx(1.3**0.25 - 1), pytest.approx(1.3**0.75 - 1))


def test_bounds_that_are_given_hold_for_every_step(shop: Shop) -> None:
    for speed in ("fast", "slow", "slow"):
        shop.commit(speed)
    shop.bounds = (0.1, 0.2)

    result = shop.bisect()

    assert {(request.tolerance, request.limit) for request in shop.requests} == {(0.1, 0.2)}
    assert result.bounds == (0.1, 0.2)


@pytest.mark.parametrize("ratio", [None, 0.9, 1.01])
def test_bounds_are_never_closer_than_the_gates(ratio: float | None) -> None:
    verdict = CellVerdict(name=CELL, word="FAIL", by="counts", ratio=ratio)

    assert bounds_of(verdict) == (0.02, 0.05)


def test_the_bounds_of_a_bad_end_that_is_many_times_slower_are_such_as_a_cell_may_have() -> None:
    tolerance, limit = bounds_of(CellVerdict(name=CELL, word="FAIL", by="pairs", ratio=40.0))

    assert tolerance < 1 < limit


def test_a_bad_end_that_is_not_slower_ends_the_search_at_once(shop: Shop) -> None:
    for speed in ("fast", "slow", "fast"):
        shop.commit(speed)

    result = shop.bisect()

    assert result.refusal == (
        f"{shop.commits[2][:7]} is not slower than the good commit (PASS, +0.1 % (-0.9 % to "
        "+1.1 %)), so there is nothing to find; name another --bad or --good, or a smaller "
        "--tolerance"
    )
    assert (len(result.ends), result.steps) == (1, ())


def test_a_bad_end_that_cannot_be_judged_says_why(shop: Shop) -> None:
    for speed in ("fast", "INCONCLUSIVE"):
        shop.commit(speed)

    assert shop.bisect().refusal == (
        f"it is not known whether {shop.commits[1][:7]} is slower than the good commit: "
        "INCONCLUSIVE, as the test wants it"
    )


def test_a_good_commit_that_does_not_run_the_benchmark_is_blamed_itself(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(request: GateRequest, **_: object) -> GateResult:
        reason = "the base launch did not measure it: ImportError: no module"
        cell = CellVerdict(name=CELL, word="NO-BASELINE", by="pairs", reason=reason)
        return GateResult(cells=(cell,), differs={}, seed=0)

    monkeypatch.setattr(bisect_module, "run_gate", judge)
    for speed in ("fast", "slow"):
        shop.commit(speed)

    assert shop.bisect().refusal == (
        "the good commit, which is the base here, does not run the working tree's benchmark: the "
        "base launch did not measure it: ImportError: no module; name a younger --good"
    )


def test_a_machine_that_cannot_tell_a_commit_from_itself_searches_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for speed in ("fast", "slow"):
        shop.commit(speed)
    monkeypatch.setattr(
        bisect_module,
        "run_gate",
        lambda request, *, say: GateResult(
            cells=(verdict_of("slow"),), refusal=None, differs={}, judgement=None, seed=1
        ),
    )

    assert shop.bisect().refusal == (
        f"{shop.commits[0][:7]} cannot be told from itself on this machine: FAIL, "
        "+30.0 % (+29.0 % to +31.0 %); see what 'perfsuite doctor' says, or allow more --max-pairs"
    )


def test_nothing_of_the_users_changes_not_even_a_bisection_of_theirs(shop: Shop) -> None:
    for speed in ("fast", "fast", "slow", "slow"):
        shop.commit(speed)
    (shop.path / "speed").write_text("stashed")
    shop.git("stash")
    (shop.path / "staged").write_text("staged")
    shop.git("add", "staged")
    (shop.path / "speed").write_text("edited")
    shop.git("bisect", "start", "--no-checkout", shop.commits[3], shop.commits[0])
    before = shop.state(), shop.git("bisect", "log")

    result = shop.bisect()

    assert result.first_bad is not None
    assert result.first_bad.commit == shop.commits[2]
    assert (shop.state(), shop.git("bisect", "log")) == before


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), SystemExit(143)])
def test_a_search_that_is_ended_leaves_no_tree_and_no_record(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: BaseException
) -> None:
    for speed in ("fast", "fast", "slow", "slow"):
        shop.commit(speed)
    before = shop.state()
    answer = bisect_module.run_gate

    def run_gate(request: GateRequest, *, say: Callable[[str], None]) -> GateResult:
        if len(shop.judged) == 2:
            raise ending
        return answer(request, say=say)

    monkeypatch.setattr(bisect_module, "run_gate", run_gate)

    with pytest.raises(type(ending)):
        shop.bisect()

    assert shop.state() == before
    assert list((tmp_path / "tmp").iterdir()) == []


# --- what is no search ---


def test_a_revision_that_is_no_commit_is_named(shop: Shop) -> None:
    shop.commit("fast")

    with pytest.raises(SettingError) as refused:
        shop.bisect(good="v9")

    assert not shop.machine.was_held
    assert str(refused.value) == (
        f"--good 'v9' is no commit of the repository {shop.path}; use a branch, a tag or "
        "a commit that 'git log -1 v9' shows"
    )


def test_a_revision_that_begins_as_an_option_is_refused(shop: Shop) -> None:
    shop.commit("fast")

    with pytest.raises(SettingError) as refused:
        shop.bisect(good="-x")

    assert str(refused.value) == (
        "the revision '-x' begins with '-', as options do; name the commit by its digits, or a "
        "branch of that name as 'refs/heads/-x'"
    )


def test_one_commit_is_no_range(shop: Shop) -> None:
    shop.commit("fast")

    with pytest.raises(SettingError) as refused:
        shop.bisect(good="main", bad="HEAD")

    assert str(refused.value) == (
        f"--good main and --bad HEAD are the same commit, {shop.commits[0][:7]}; name an older one "
        "that was not slower yet"
    )


def test_a_good_commit_that_is_younger_than_the_bad_one_is_refused(shop: Shop) -> None:
    shop.commit("fast")
    shop.commit("slow")

    with pytest.raises(SettingError) as refused:
        shop.bisect(good="main", bad="main~1")

    assert str(refused.value) == (
        "--good main is no ancestor of --bad main~1; name a commit from which the bad one was made"
        ", such as the one that 'git merge-base main main~1' shows"
    )


def test_a_folder_outside_git_has_nothing_to_search(shop: Shop, tmp_path: Path) -> None:
    shop.commit("fast")
    shop.path = tmp_path

    with pytest.raises(SettingError) as refused:
        shop.bisect(good="main", bad="main")

    assert str(refused.value) == (
        f"{tmp_path} is not in a git checkout, so it has no commits to search"
    )


@pytest.mark.parametrize(
    ("cells", "said"),
    [([], "0 benchmarks (none)"), (["a", "b", "c", "d"], "4 benchmarks (a, b, c)")],
)
def test_a_test_that_is_not_one_cell_is_refused(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, cells: list[str], said: str
) -> None:
    shop.commit("fast")
    shop.commit("slow")
    give_cells(monkeypatch, shop.path, cells)

    with pytest.raises(SettingError) as refused:
        shop.bisect(cell="benchmarks/test_steps.py")

    assert not shop.machine.was_held
    assert str(refused.value) == (f"'benchmarks/test_steps.py' names {said}; name one in full")


def test_a_test_that_cannot_be_collected_says_why(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.commit("fast")
    shop.commit("slow")
    monkeypatch.setattr(
        bisect_module,
        "collect",
        lambda arm: Launch(arm=arm, failure="pytest ended with exit code 4"),
    )

    with pytest.raises(SettingError) as refused:
        shop.bisect()

    assert str(refused.value) == f"{CELL!r} cannot be collected: pytest ended with exit code 4"
