"""The verb `verify`: whether a workload computes the same under one recipe, or under every one.

Must not know how a check is made. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from perfsuite import verification
from perfsuite.cells import Recipe
from perfsuite.errors import PerfsuiteError, RankFailureError
from perfsuite.records import EquivalenceReport, NumericsStatus, combine_statuses
from perfsuite.session import Session

EXIT_CODES: dict[NumericsStatus, int] = {
    "equivalent": 0,
    "mismatch": 20,
    "no power": 21,
    "not exercised": 22,
}


def verify_one(
    session: Session, workload: str, recipe: Recipe, num_steps: int
) -> EquivalenceReport:
    """Return the report of one recipe.

    Raises:
        PerfsuiteError: The recipe or the workload is at fault.
    """
    try:
        return session.verify(workload, recipe, num_steps=num_steps)
    except RankFailureError as error:
        return verification.not_exercised(workload, recipe, str(error))


def verify_every(
    session: Session,
    workload: str,
    recipes: Sequence[Recipe],
    num_steps: int,
    show: Callable[[int, EquivalenceReport], None],
) -> list[EquivalenceReport]:
    """Return the reports of many recipes; one that cannot train the workload is not exercised.

    Args:
        session: Runs them.
        workload: A name or "module:attribute".
        recipes: In order.
        num_steps: Optimizer steps that are compared.
        show: Called with how many are done, and each report as it comes.
    """
    reports: list[EquivalenceReport] = []
    outcomes = session.verify_each(workload, recipes, num_steps=num_steps)
    for recipe, outcome in zip(recipes, outcomes, strict=True):
        if isinstance(outcome, PerfsuiteError):
            outcome = verification.not_exercised(workload, recipe, str(outcome))
        reports.append(outcome)
        show(len(reports), outcome)
    return reports


def exit_code(reports: Sequence[EquivalenceReport], *, of_table: bool) -> int:
    """Return what the verb ends in: the worst report's code.

    Args:
        reports: What was found.
        of_table: Of a table, what this machine cannot exercise does not count unless it is all.
    """
    statuses = [report.status for report in reports]
    if of_table:
        statuses = [one for one in statuses if one != "not exercised"] or ["not exercised"]
    return EXIT_CODES[combine_statuses(statuses)]


def to_document(reports: Sequence[EquivalenceReport]) -> bytes:
    """Return the reports as the verb's JSON."""
    rows = [row for report in reports for row in report.rows]
    document = {"schema": 1, "rows": rows}
    return msgspec.json.format(msgspec.json.encode(document), indent=2)
