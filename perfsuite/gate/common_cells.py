"""Which cells of two suites are compared, how each is judged, and which exceptions are made."""

import datetime
import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from perfsuite import units
from perfsuite.errors import ExitCode, SettingError
from perfsuite.gate.arms.arm import Suite
from perfsuite.gate.arms.launched.collected import CLOCK, MARKED, MATRICES
from perfsuite.gate.baselines.accepted import EVERY_CELL, Accepted, Entry, Loosening, read_brought
from perfsuite.gate.judge.counts import parse_slacks
from perfsuite.gate.judge.trial import CellPolicy, Trial
from perfsuite.gate.noise import CALIBRATION_FILE, parse_priors
from perfsuite.gate.request import BaseSide, GateRequest
from perfsuite.records.verdict import CellVerdict, VerdictWord
from perfsuite.stats.evidence import Prior
from perfsuite.system.untrusted import printable

_Bound = TypeVar("_Bound", float, float | None)

_FLOOR_S = 50e-6
HOW_TO_ACCEPT = "if that is meant, say so with 'perfsuite baseline accept'"
# Reviewed exceptions, from pytest's root.
ACCEPTED_FILE = Path("baselines") / "accepted.toml"
_SPENT = "what was accepted of it is spent: the base has the entry too"
# What an exception calls each bound of a policy, and how people read it.
_BOUNDS = (
    ("limit", "limit", units.format_ratio),
    ("tolerance", "tolerance", units.format_ratio),
    ("floor", "floor_s", units.format_seconds),
)
_UNMEASURED = ("VANISHED", "NO-BASELINE", "INVALID")
# Why a test is timed by pytest-benchmark and not compared.
HIDDEN = (
    "it takes its benchmark fixture from request.getfixturevalue, which cannot be seen before it "
    "runs, so it is not compared; name the fixture among its arguments"
)


@dataclass
class Leniency:
    """What keeps verdicts from the exit code: quarantines, and the policy "advisory"."""

    accepted: Accepted = field(default_factory=Accepted)
    is_advisory: bool = False

    @classmethod
    def of(cls, request: GateRequest, accepted: Accepted | None = None) -> Self:
        """Return what holds before the base's own configuration is known."""
        return cls(accepted or Accepted(), request.is_advisory and "policy" in request.fixed)

    def mark(self, verdict: CellVerdict) -> CellVerdict:
        """Return a verdict with what keeps it from the exit code: nothing keeps a failed test."""
        if verdict.policy is not None or verdict.word == "ERROR":
            return verdict
        quarantine = self.accepted.quarantine(verdict.name)
        if quarantine is not None and (verdict.raw or verdict.word not in _UNMEASURED):
            accepted = (*verdict.accepted, quarantine)
            return msgspec.structs.replace(verdict, policy="quarantined", accepted=accepted)
        return msgspec.structs.replace(verdict, policy="advisory") if self.is_advisory else verdict

    def ends(self, code: int) -> int:
        """Return what a session ends in that would end in a code."""
        is_verdict = ExitCode.REGRESSION <= code <= ExitCode.NOTHING_COMPARED
        return ExitCode.OK if self.is_advisory and is_verdict else code


class ChosenCells(NamedTuple):
    """How each cell of both sides is judged, by head's name, and the verdicts of the others."""

    policies: dict[str, CellPolicy]
    others: list[CellVerdict]
    used: dict[str, list[Entry]]  # exceptions that let a cell be compared so, or be gone
    loosened: str | None  # what head loosens and no exception accepts, with the cells
    is_advisory: bool


def choose_cells(request: GateRequest, head: Suite, base: Suite, accepted: Accepted) -> ChosenCells:
    """Return which of head's cells are compared with those of the base's own benchmark files."""
    theirs = {name for name in base.cells if _is_named(name, head.named)}
    # A file that the base itself cannot collect may hold all of them.
    theirs |= {name for name in head.cells if base.why_broken(name) is not None}
    common, others = _find_common(head.cells, theirs, accepted)
    base_request = _request_of_base(request, base)
    is_looser = request.is_advisory and not base_request.is_advisory
    advice = [one for one in accepted.of(EVERY_CELL, Loosening) if one.policy and is_looser]
    policies: dict[str, CellPolicy] = {}
    used: dict[str, list[Entry]] = {}
    loosened: defaultdict[str, list[str]] = defaultdict(list)
    for name in common:
        old_name = accepted.name_in_base(name)
        both = head.cells[name], base.cells.get(old_name, head.cells[name])
        ours, held = (side.get("timer", CLOCK) for side in both)
        if ours != held:
            clocks = f"it is timed by {ours}, and in the base by {held}"
            reason = f"{clocks}: no change may choose the clock that judges it"
            others += not_compared("INVALID", [name], reason)
            continue
        slowdown, rename = accepted.slowdown(name), accepted.rename_of(old_name)
        policy = replace(
            policy_of(request, name, head.cells[name]),
            accepted_slowdown=1.0 if slowdown is None else slowdown.ratio,
            accepted_increase=functools.partial(accepted.most_ratio, name),
        )
        fixture = head.cells[name].get("fixture")
        base_policy = _base_policy(base_request, base, old_name, fixture)
        policies[name], by, refused = _stricter(name, policy, base_policy, accepted)
        used[name] = [*([] if rename is None else [rename]), *by, *advice]
        for text in refused:
            loosened[text].append(name)
    if is_looser and not advice:
        text = "head's perf_policy of advisory is looser than enforce, where --perf-policy=advisory"
        loosened[f"{text} would hold for both sides"].append("every cell")
    for name in theirs:
        if name not in head.cells and (removal := accepted.removal(name)) is not None:
            used[name] = [removal]
    held = "; ".join(f"{text} ({units.listed(names)})" for text, names in loosened.items())
    return ChosenCells(
        policies=policies,
        others=[*others, *not_compared("INVALID", head.hidden, HIDDEN)],
        used=used,
        loosened=None if not loosened else f"{held}; the stricter holds; {HOW_TO_ACCEPT}",
        is_advisory=bool(advice) if is_looser else request.is_advisory,
    )


def apply_exceptions(trial: Trial, accepted: Accepted) -> list[Entry]:
    """Return the exceptions that let a judged cell through, and say where one is missing."""
    used: list[Entry] = []
    slowdown, removal = accepted.slowdown(trial.name), accepted.removal(trial.name)
    if trial.word == "VANISHED" and removal is not None:
        trial.word = "SKIPPED"  # it may be gone
        used.append(removal)
    elif trial.word == "VANISHED":
        trial.add_reason(HOW_TO_ACCEPT)
    if trial.word == "FAIL" and accepted.is_spent(trial.name, is_gone=False):
        trial.add_reason(_SPENT)
    is_slower = trial.decision is not None and trial.decision.ratio > 1 + trial.policy.tolerance
    if trial.word == "PASS" and slowdown is not None and is_slower:
        used.append(slowdown)
    increases = (accepted.increase(trial.name, count) for count in trial.accepted_counts)
    return [*used, *dict.fromkeys(filter(None, increases))]


def read_leniency(side: BaseSide, differs: dict[str, str]) -> Leniency:
    """Return the exceptions that count, and the policy; tell in `differs` of what is not read."""
    accepted = Accepted()
    if side.request.heeds_exceptions:
        path = side.suite.root / ACCEPTED_FILE
        beside = side.request.command.folder / ACCEPTED_FILE
        if beside.is_file() and beside.resolve() != path.resolve():
            differs["not read"] = f"{beside}; exceptions are read from {path}, in pytest's root"
        accepted = read_brought(path, side.read(ACCEPTED_FILE), datetime.date.today())
    return Leniency.of(side.request, accepted)


def read_noise(side: BaseSide, differs: dict[str, str]) -> Mapping[str, Prior]:
    """Return what the calibration at the base says; tell in `differs` where it is broken."""
    fingerprint = side.request.fingerprint
    if fingerprint is not None and (data := side.read(CALIBRATION_FILE)):
        try:
            return parse_priors(data, fingerprint)
        except ValueError as error:
            differs["calibration"] = printable(f"the base's cannot be read: {error}")
    return side.request.priors


def not_compared(word: VerdictWord, names: Iterable[str], reason: str) -> list[CellVerdict]:
    """Return the same verdict for cells that are not compared."""
    return [CellVerdict(name=name, word=word, by="collection", reason=reason) for name in names]


def _stricter(
    cell: str, head: CellPolicy, base: CellPolicy, accepted: Accepted
) -> tuple[CellPolicy, list[Loosening], list[str]]:
    """The stricter policy, the exceptions that let head's be looser, and what none accepts."""
    policy = replace(head, slacks=(*head.slacks, *base.slacks))
    loosened: dict[Loosening, None] = {}
    refused: list[str] = []
    for name, attribute, write in _BOUNDS:
        ours, held = getattr(head, attribute), getattr(base, attribute)
        if ours <= held:
            continue
        entry = max(accepted.of(cell, Loosening), key=lambda one: one.most(name), default=None)
        if entry is not None and entry.most(name) > held:
            held = min(ours, entry.most(name))
            loosened[entry] = None
        if held < ours:
            refused.append(f"head's {name} of {write(ours)} is looser than {write(held)}")
        policy = replace(policy, **{attribute: held})
    if base.refuses_numerics_change and not head.refuses_numerics_change:
        looser = "head's perf_numerics_change of tell is looser than fail"
        refused.append(f"{looser}, where --perf-numerics-change=tell would hold for both sides")
        policy = replace(policy, refuses_numerics_change=True)
    # Each bound may come from another side.
    policy = replace(policy, tolerance=min(policy.tolerance, policy.limit))
    return policy, [*loosened], refused


def _base_policy(request: GateRequest, base: Suite, name: str, fixture: str | None) -> CellPolicy:
    """How the base itself would judge a cell, without markers where they are wrong or unknown."""
    unmarked = {"fixture": fixture}
    try:
        return policy_of(request, name, base.cells.get(name, unmarked), is_base=True)
    except SettingError:
        return policy_of(request, name, unmarked)


def _request_of_base(request: GateRequest, own: Suite) -> GateRequest:
    def of_base(name: str, ours: _Bound, default: _Bound) -> _Bound:
        if name in request.fixed:
            return ours
        try:
            return units.parse_ratio(own.settings[f"perf_{name}"])
        except (KeyError, ValueError):  # a wrong value is for the change to mend
            return default

    refuses = request.refuses_numerics_change
    if "numerics-change" not in request.fixed:
        refuses = own.settings.get("perf_numerics_change") == "fail"
    limit = of_base("limit", request.limit, GateRequest.limit)
    tolerance = of_base("tolerance", request.tolerance, GateRequest.tolerance)
    return replace(
        request,
        refuses_numerics_change=refuses,
        is_advisory="policy" in request.fixed or own.settings.get("perf_policy") == "advisory",
        tolerance=None if tolerance is None else min(limit, tolerance),
        limit=limit,
    )


def policy_of(
    request: GateRequest, name: str, markers: Mapping[str, Any], *, is_base: bool = False
) -> CellPolicy:
    """How a cell is judged: as typed, else as marked, else as asked; or raise a SettingError."""
    if (floor_s := request.floor_s) is None:
        floor_s = 0.0 if markers.get("fixture") is None else _FLOOR_S

    def parsed(marker: str, parse: Callable[[Any], float], default: _Bound) -> _Bound:
        is_marked = marker in markers and marker not in request.typed
        return parse(markers[marker]) if is_marked else default

    try:
        limit = parsed("limit", units.parse_ratio, request.limit)
        if (tolerance := parsed("tolerance", units.parse_ratio, request.tolerance)) is None:
            tolerance = units.default_tolerance(limit)
        if is_base and request.typed == {"limit"}:
            tolerance = min(tolerance, limit)
        policy = CellPolicy(
            tolerance=tolerance,
            limit=limit,
            floor_s=parsed("floor", units.parse_seconds, floor_s),
            slacks=(parse_slacks(dict(markers.get("counts", {}))),),
            refuses_numerics_change=request.refuses_numerics_change,
        )
    except (TypeError, ValueError) as error:
        marked = {key: value for key, value in markers.items() if key in MARKED}
        usual = "limit='5%', floor='50us', counts={'flops': 'exact'}"
        why = error if isinstance(error, ValueError) else f"use values such as {usual}"
        raise SettingError(f"{name}: the perf marker has {marked!r}: {why}") from error
    if (matrix := markers.get("matrix", MATRICES[0])) not in MATRICES:
        found = f"{name}: matrix is {matrix!r} (perf marker); use one of {', '.join(MATRICES)}"
        raise SettingError(found)
    accepted, most = map(units.format_ratio, (policy.tolerance, policy.limit))
    if policy.tolerance >= 1:
        raise SettingError(f"{name}: the tolerance is {accepted}; use less than 100 %")
    if not policy.tolerance <= policy.limit:
        said = dict.fromkeys(markers, "perf marker")
        said |= dict.fromkeys(request.typed, "command line")
        low, high = (said.get(one, "ini file or default") for one in ("limit", "tolerance"))
        wrong = f"the limit is {most} ({low}), below the tolerance of {accepted} ({high})"
        raise SettingError(f"{name}: {wrong}; give a larger limit, or a smaller tolerance")
    return policy


def _find_common(
    ours: Collection[str], theirs: Collection[str], accepted: Accepted
) -> tuple[list[str], list[CellVerdict]]:
    """Return the cells to judge, by head's names, and the verdicts of the others."""
    # Both arms run head's benchmark files, so both have a renamed cell by its new name.
    old_names = {name: accepted.name_in_base(name) for name in ours}
    common = [name for name in ours if old_names[name] in theirs]
    verdicts = not_compared("NEW", sorted({*ours} - {*common}), "the base has no such cell")
    for name in sorted({*theirs} - {*ours} - {*old_names.values()}):
        if accepted.removal(name) is None:
            verdicts += not_compared("VANISHED", [name], _why_vanished(name, accepted))
        else:
            verdicts += not_compared("SKIPPED", [name], "head has no such cell, as was accepted")
    return common, verdicts


def _why_vanished(name: str, accepted: Accepted) -> str:
    reason = "head has no such cell"
    if (rename := accepted.rename_of(name)) is not None:
        return f"{reason}, and none called {rename.to!r}, which its accepted new name is"
    for entry in accepted.expired:
        if entry.cell == name:
            return f"{reason}, and what was accepted of it expired on {entry.expires}"
    if accepted.is_spent(name, is_gone=True):
        return f"{reason}, and {_SPENT}"
    return f"{reason}; {HOW_TO_ACCEPT}"


def _is_named(name: str, paths: Sequence[str]) -> bool:
    """Return whether pytest's paths, from its root, name a test: no path names them all."""
    is_in_file = any(map(Path(name.partition("::")[0]).is_relative_to, paths))
    begins = tuple(f"{path}{end}" for path in paths for end in ("::", "["))
    return not paths or is_in_file or name in paths or name.startswith(begins)
