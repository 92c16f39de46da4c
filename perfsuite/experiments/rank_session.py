"""From a cell to its record: the one place that knows ranks, measurements and records."""

import dataclasses
import functools
import importlib.util
import os
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast

import msgspec

from perfsuite.errors import EquivalenceError, NotExercisedError, PerfsuiteError, SettingError
from perfsuite.experiments import results
from perfsuite.experiments import user_code as own_code
from perfsuite.experiments.launcher import LocalLauncher, TorchrunLauncher
from perfsuite.experiments.profile import combine_profiles
from perfsuite.ranks import messages
from perfsuite.ranks.bootstrap import sweep_stale_folders
from perfsuite.ranks.chains import Chain, prove, run_chain, run_chains
from perfsuite.ranks.command.group import CommandLaunch
from perfsuite.ranks.messages import GroupPolicy, GroupRequest, RunProfile, UserCode
from perfsuite.ranks.pickling import pack, unpack
from perfsuite.ranks.torchrun.peers import Peers
from perfsuite.records.capability import Hardware, what_ranks_need, why_not_timed
from perfsuite.records.cell import Outcome
from perfsuite.records.equivalence import EquivalenceReport, Numerics
from perfsuite.records.profile import ProfiledRun
from perfsuite.records.recipe import Recipe, parse_recipe
from perfsuite.records.workload import Workload, find_workload
from perfsuite.system.environment import Environment
from perfsuite.system.gpus import refuse_hidden_gpus, visible_gpus
from perfsuite.system.timing_lock import WAIT_S, TimingLock

DEVICES = ("auto", "cpu", "cuda")
# What torch, numpy and Python's own generator all take.
MAX_SEED = 2**32 - 1
# The limits hold for the rounding of each step, so more steps prove little more.
MAX_VERIFIED_STEPS = 10
_DEVICE_PROBE = "perfsuite.worker.measure.device:probe_device"


class Session:
    """Runs cells one after the other on this machine, which it holds while it times."""

    def __init__(
        self,
        policy: GroupPolicy,
        *,
        say: Callable[[str], None],
        num_rounds: int | None = 10,
        round_s: float | None = None,
        wait_s: float = WAIT_S,
    ) -> None:
        """Prepare a session that shows lines with `say`; nothing starts before the first cell.

        A cell that names no number has `num_rounds`, of `round_s` at least, as in `MeasurePlan`;
        `wait_s` is the patience with another session.
        """
        gpus = [] if policy.device == "cpu" else visible_gpus()
        if policy.device == "auto" and not gpus:
            refuse_hidden_gpus()
        hardware = Hardware(
            device=("cuda" if gpus else "cpu") if policy.device == "auto" else policy.device,
            num_gpus=len(gpus),
            num_cores=len(os.sched_getaffinity(0)),
            compute_capability=gpus[0].compute_capability if gpus else None,
            has_horovod=importlib.util.find_spec("horovod") is not None,
            has_torchao=importlib.util.find_spec("torchao") is not None,
        )
        self._gpus = [gpu.uuid for gpu in gpus]
        self._lock = TimingLock(wait_s=wait_s, say=say)
        self._launcher = LocalLauncher(hardware, self._lock)
        self._policy = policy._replace(device=hardware.device, num_gpus=len(gpus))
        if policy.turns is not None:
            # Ranks wait for a turn in a collective, and the other arm's turn may be a long one.
            self._policy = self._policy._replace(collective_timeout_s=policy.timeout_s)
        self._num_rounds, self._round_s = num_rounds, round_s
        self._sweep_once = functools.cache(sweep_stale_folders)
        self.environments: dict[str, Environment] = {}  # of its ranks, by fingerprint
        self._verify_once = functools.cache(self.verify)

    @property
    def hardware(self) -> Hardware:
        """What there is for the ranks."""
        return self._launcher.hardware

    def join(self, peers: Peers) -> None:
        """From now on run groups with these peers; raises LostRankError where one is missing."""
        self._launcher = TorchrunLauncher(self.hardware, self._lock, peers, self._gpus)

    def hold_machine(self) -> None:
        """Wait for the machine, and hold it until `close`; raises a BusyMachineError."""
        self._launcher.hold_machine()

    def close(self) -> None:
        """Let the machine go."""
        self._lock.release()

    def run_function(self, num_ranks: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return what `function(*args)` returned on each of `num_ranks` ranks, in rank order."""
        self._sweep_once()
        job = messages.CallFunction(call=pack((function, args)))
        request = GroupRequest(job=job, world_size=num_ranks, policy=self._policy)
        replies = cast(list[messages.FunctionReturned], self._launcher.run(request))
        return [unpack(reply.value) for reply in replies]

    def probe_device(self) -> dict[str, float]:
        """Return seconds of fixed work on a rank's GPU, by name; {} on a CPU or under torchrun."""
        if self.hardware.device == "cpu" or isinstance(self._launcher, TorchrunLauncher):
            return {}
        probed = self.run_function(1, call_by_name, _DEVICE_PROBE, self.hardware.device)
        return cast(dict[str, float], probed[0])

    def measure_cell(
        self,
        workload: str | Workload,
        recipe: Recipe,
        *,
        activity: messages.ActivityName = "train",
        num_rounds: int | None = None,
        num_iterations: int | None = None,
        is_timed: bool = True,
        checks_numerics: bool = False,
    ) -> Outcome:
        """Measure one activity of a workload, which may be named "module:attribute".

        None is the session's number of rounds, and as many iterations of a round as the ranks
        choose after warming up. What is not timed is one iteration beside whatever else runs.
        Raises a NotExercisedError where this machine would measure something else.
        """
        results.check_is_recipe(recipe)
        numerics, missing = None, dict[str, str]()
        if checks_numerics and activity == "train":
            report = self.require_equivalence(workload, recipe)
            numerics = report.numerics
            missing = {} if report else {"numerics": report.worst.reason}
        if is_timed and activity != "load":
            self._require_timeable(recipe, numerics)
        if (turns := self._policy.turns) is not None:
            recipe = parse_recipe("the calibration", turns.planted_recipe, of=recipe)
        packed = pack(find_workload(workload))
        plan = self._plan(is_timed, num_rounds, num_iterations)
        job = messages.RunCell(workload=packed, recipe=recipe, activity=activity, plan=plan)
        outcome = self._measure(job, results.name_of(workload), is_timed, numerics)
        return msgspec.structs.replace(outcome, missing=outcome.missing | missing)

    def require_equivalence(self, workload: str | Workload, recipe: Recipe) -> EquivalenceReport:
        """Return `verify`'s report, one for all loaders; raises EquivalenceError on a mismatch."""
        report = self._verify_once(workload, results.without_loader(recipe))
        if report.status == "mismatch":
            raise EquivalenceError(f"not timed, because its numerics check fails: {report}")
        return report

    def verify(
        self, workload: str | Workload, recipe: Recipe, *, num_steps: int = 3
    ) -> EquivalenceReport:
        """Report whether a recipe, with its loader workers, computes the same as one process."""
        results.check_is_recipe(recipe)
        return run_chain(self._verify(workload, recipe, num_steps), self._launcher.run)

    def verify_each(
        self, workload: str, recipes: Sequence[Recipe], *, num_steps: int = 3
    ) -> Iterator[EquivalenceReport | PerfsuiteError]:
        """Yield what `verify` returns or raises of each recipe, some of them checked together."""
        chains = (self._verify(workload, recipe, num_steps) for recipe in recipes)
        # Starting a group keeps half a core busy; on GPUs one runs alone, for their memory.
        device, num_cores = self.hardware.device, self.hardware.num_cores
        at_once = 1 if device != "cpu" or num_cores is None else num_cores // 2 + 2
        return run_chains(chains, at_once=at_once)

    def _verify(
        self, workload: str | Workload, recipe: Recipe, num_steps: int
    ) -> Chain[EquivalenceReport]:
        if not isinstance(num_steps, int) or not 1 <= num_steps <= MAX_VERIFIED_STEPS:
            found = f"num_steps is {num_steps!r}; use a whole number from 1 to {MAX_VERIFIED_STEPS}"
            raise SettingError(found)
        recipe.require_own_loader()
        name, packed = results.name_of(workload), pack(find_workload(workload))
        record = functools.partial(messages.RecordRun, workload=packed, num_steps=num_steps)
        runs = {"tested": dataclasses.replace(recipe, pin_memory=False)}
        if recipe.checkpointing != "none":
            runs["twin"] = dataclasses.replace(runs["tested"], checkpointing="none")
        self._sweep_once()
        try:
            recorded = [self._request(record(recipe=run, name=role)) for role, run in runs.items()]
            check = messages.CheckRun(workload=packed, recipe=recipe, num_steps=num_steps)
            checked = yield from prove(recorded, check)
        except NotExercisedError as error:
            return results.not_exercised(name, recipe, str(error))
        return results.report(name, recipe, checked)

    def measure_all_reduce(
        self, parallel: str, message_bytes: int, *, is_timed: bool = True
    ) -> Outcome:
        """Measure the sum over ranks of `message_bytes` bytes; raises what `measure_cell` does."""
        recipe, plan = Recipe(parallel=parallel), self._plan(is_timed)
        job = messages.RunCell(
            recipe=recipe, activity="all_reduce", plan=plan, message_bytes=message_bytes
        )
        return self._measure(job, "all_reduce", is_timed)

    def measure_user_code(
        self,
        function: Callable[[], Any],
        *,
        kind: Literal["step", "loop"],
        reference: Callable[[], Any] | None = None,
        checks_numerics: bool = True,
        num_rounds: int | None = None,
        num_iterations: int | None = None,
        is_timed: bool = True,
        **code: Any,
    ) -> Outcome:
        """Measure a loop, or the step that a function builds, first held to a reference."""
        argument = "build_step" if kind == "step" else "train"
        user_code = own_code.plan_function(argument, function, kind=kind, **code)
        if (needs := what_ranks_need(user_code.world_size, self.hardware)) is not None:
            raise NotExercisedError(f"ranks={user_code.world_size} needs {needs}")
        numerics, missing = None, dict[str, str]()
        if checks_numerics and kind == "step":
            self._sweep_once()
            numerics, missing = own_code.compare_with_reference(
                user_code, reference, self._policy, self._launcher.run
            )
        job = _job_of(user_code, self._plan(is_timed, num_rounds, num_iterations), is_timed)
        outcome = self._measure(job, user_code.name, is_timed, numerics)
        return msgspec.structs.replace(outcome, missing=outcome.missing | missing)

    def measure_command(self, launch: CommandLaunch, *, is_timed: bool, **code: Any) -> Outcome:
        """Measure a user's command; `code` is what `own_code.plan_command` takes."""
        user_code, run = own_code.plan_command(launch, **code)
        if isinstance(self._launcher, TorchrunLauncher):
            raise NotExercisedError("a command starts its own ranks; measure it without torchrun")
        job = _job_of(user_code, self._plan(is_timed), is_timed)
        return self._measure(job, user_code.name, is_timed, run=run)

    def _plan(
        self, is_timed: bool, num_rounds: int | None = None, num_iterations: int | None = None
    ) -> messages.MeasurePlan:
        if not is_timed:
            num_rounds = num_iterations = 1
        rounds = self._num_rounds if num_rounds is None else num_rounds
        return messages.MeasurePlan(
            num_rounds=rounds, num_iterations=num_iterations, round_s=self._round_s
        )

    def _measure(
        self,
        job: messages.RunCell,
        name: str,
        is_timed: bool,
        numerics: Numerics | None = None,
        run: own_code.Run | None = None,
    ) -> Outcome:
        replies = self._run_timed(self._request(job), is_timed=is_timed, run=run)
        ranks = cast(list[messages.CellMeasured], replies)
        self.environments |= {rank.environment.fingerprint: rank.environment for rank in ranks}
        device = self.hardware.device
        if run is not None:  # a command chooses its device itself
            device = "cuda" if ranks[0].environment.accelerators else "cpu"
        return results.combine(job, name, device, ranks, numerics)

    def profile(self, workload: str | Workload, recipe: Recipe, *, num_epochs: int) -> ProfiledRun:
        """Train for some epochs with an evaluation after each, and return where the time went."""
        self._require_timeable(recipe)
        packed = pack(find_workload(workload))
        job = RunProfile(workload=packed, recipe=recipe, num_epochs=num_epochs)
        ranks = cast(list[messages.ProfileTaken], self._run_timed(self._request(job)))
        return combine_profiles(job, results.name_of(workload), self.hardware.device, ranks)

    def _run_timed(
        self, request: GroupRequest, *, is_timed: bool = True, run: own_code.Run | None = None
    ) -> list[messages.Reply]:
        self._sweep_once()
        if is_timed and self._policy.turns is None:
            self.hold_machine()
        return (run or self._launcher.run)(request)

    def _request(self, job: messages.RunCell | messages.RecordRun | RunProfile) -> GroupRequest:
        recipe = job.recipe
        if isinstance(job, messages.RunCell) and (code := job.user_code) is not None:
            # A loop or a command makes its own group.
            size, needs_group = code.world_size, code.kind == "step"
        else:
            assert recipe is not None
            if (reason := self._launcher.why_not_exercised(recipe)) is not None:
                raise NotExercisedError(reason)
            size, needs_group = recipe.plan.world_size, recipe.plan.needs_group
        return GroupRequest(job=job, world_size=size, policy=self._policy, needs_group=needs_group)

    def _require_timeable(self, recipe: Recipe, numerics: Numerics | None = None) -> None:
        reason = why_not_timed(recipe, self.hardware)
        if reason is not None and self._launcher.why_not_exercised(recipe) is None:
            proven = "" if numerics is None else f"; its numerics are {numerics.status}"
            raise NotExercisedError(reason + proven)


def _job_of(code: UserCode, plan: messages.MeasurePlan, is_timed: bool) -> messages.RunCell:
    if not is_timed and code.num_steps is not None:
        code = dataclasses.replace(code, num_steps=2, num_warmup=2)
    return messages.RunCell(activity=code.kind, plan=plan, user_code=code)


def call_by_name(name: str, *args: Any) -> Any:
    """Return what the function "package.module:name" returns of the arguments."""
    return pkgutil.resolve_name(name)(*args)
