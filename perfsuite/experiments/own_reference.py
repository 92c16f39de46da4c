"""A user's own step against the user's own reference: recorded on ranks, checked in one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import ModuleType
from typing import cast

from perfsuite.errors import EquivalenceError
from perfsuite.experiments.user_code import Run, plan_function
from perfsuite.ranks.bootstrap import make_group_folder, remove_group_folder
from perfsuite.ranks.chains import Chain, run_chain
from perfsuite.ranks.messages import GroupPolicy, GroupRequest, RunChecked
from perfsuite.ranks.user_code import CheckSteps, RecordSteps, UserCode
from perfsuite.records.equivalence import EquivalenceReport, Numerics
from perfsuite.records.recipe import EPSILONS
from perfsuite.units import counted

# As `verify` takes where it is not told otherwise.
_NUM_STEPS = 3


def compare_with_reference(
    code: UserCode,
    reference: object,
    by_value: Sequence[ModuleType],
    policy: GroupPolicy,
    run: Run,
) -> tuple[Numerics, dict[str, str]]:
    """Return what the first steps of both show, and by name why something was not compared.

    Raises an EquivalenceError where the step computes something else than the reference.
    """
    if reference is None:
        is_low = EPSILONS[code.precision] > EPSILONS["fp32"]
        nothing = Numerics(
            status="not exercised",
            check="T2" if is_low else "T1",
            error=None,
            limit=None,
            power=None,
        )
        return nothing, {"numerics": "no reference= is given"}
    given = plan_function("reference", reference, by_value, kind="step", precision=code.precision)
    checked = run_chain(_compare(code, given, policy), run)
    recipe = {
        "parallel": counted(code.world_size, "rank"),
        "precision": code.precision,
        "checkpointing": "none",
    }
    report = EquivalenceReport(
        workload=code.name, recipe=recipe, rows=checked.rows, inapplicable={}
    )
    if report.status == "mismatch":
        raise EquivalenceError(f"not timed, because it computes something else: {report}")
    missing = {f"numerics of {what}": why for what, why in checked.inapplicable.items()}
    if not report:
        missing["numerics"] = report.worst.reason
    return report.numerics, missing


def _compare(code: UserCode, reference: UserCode, policy: GroupPolicy) -> Chain[RunChecked]:
    folder = make_group_folder()
    # The timed run of the same steps will print what they print.
    policy = dataclasses.replace(policy, shows_output=False, pins_ranks=False)
    try:
        record = RecordSteps(
            user_code=code, seed=policy.seed, folder=str(folder), num_steps=_NUM_STEPS
        )
        yield GroupRequest(job=record, world_size=code.world_size, policy=policy)
        check = CheckSteps(reference=reference, tested=code, seed=policy.seed, folder=str(folder))
        (reply,) = yield GroupRequest(job=check, world_size=1, policy=policy, needs_group=False)
        return cast(RunChecked, reply)
    finally:
        remove_group_folder(folder)
