"""Cells that differ in one field of the recipe alone, so that their speed differs by one cause."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from perfsuite.records.cell import CellRecord
from perfsuite.records.parallel import ParallelPlan
from perfsuite.report.rows import RECIPE_FIELDS, Row

RecipeField = Literal["num_workers", "checkpointing", "precision", "parallel"]
# The values that the others of their field are measured against.
_REFERENCES = ("fp32", "none")


class Member(NamedTuple):
    """One cell of a family, with its value of the field: for "parallel" a number of devices."""

    value: Any
    row: Row
    record: CellRecord
    step_time_s: float


class Family(NamedTuple):
    """At least two cells that differ in one value alone, in its order; the others name them."""

    name: str
    members: tuple[Member, ...]


def families(rows: Sequence[Row], field: RecipeField) -> tuple[Family, ...]:
    """Return the families of cells that differ in one field; "single" is any mode's size 1."""
    groups: dict[tuple[Any, ...], list[Member]] = {}
    for row in rows:
        record, recipe, time_s = row.record, row.recipe, row.step_time_s
        # A cell without samples, such as a bare collective, has more to it than its recipe says.
        if record is None or record.samples_per_s is None or recipe is None or time_s is None:
            continue
        value = recipe.plan if field == "parallel" else getattr(recipe, field)
        member = Member(value=value, row=row, record=record, step_time_s=time_s)
        groups.setdefault(shared_fields(row, field), []).append(member)
    found: list[Family] = []
    for group in groups.values():
        name = shared_name(group[0].row, field)
        found += _by_mode(group, name) if field == "parallel" else [_family(group, name)]
    return tuple(family for family in found if len(family.members) > 1)


def shared_fields(row: Row, *fields: str) -> tuple[Any, ...]:
    """Return what cells of ours must share to differ in nothing but some fields of the recipe."""
    assert row.record is not None
    values = (getattr(row.recipe, name) for name in RECIPE_FIELDS if name not in fields)
    return row.subject, row.record.device, row.record.fingerprint, *values


def mode_name(plan: ParallelPlan) -> str:
    """Return the mode, with its schedule or the names of its axes where it has them."""
    details = plan.schedule or ",".join(axis.name for axis in plan.axes)
    return f"{plan.mode} {details}" if details else plan.mode


def shared_name(row: Row, field: RecipeField) -> str:
    """Return the workload, and the fields that people tell cells apart by, without `field`."""
    recipe = row.recipe
    assert recipe is not None
    names: dict[RecipeField, str] = {
        "parallel": recipe.parallel,
        "precision": recipe.precision,
        "checkpointing": "" if recipe.checkpointing == "none" else recipe.checkpointing,
        "num_workers": f"num_workers={recipe.num_workers}" if recipe.num_workers else "",
    }
    del names[field]
    return ", ".join(filter(None, [row.subject, *names.values()]))


def _by_mode(group: Sequence[Member], name: str) -> Iterator[Family]:
    by_mode: dict[str, list[Member]] = {}
    for one in group:
        by_mode.setdefault(mode_name(one.value), []).append(one._replace(value=one.value.size))
    alone = by_mode.pop("single", [])
    for mode, members in by_mode.items():
        is_scaled = all(member.value > 1 for member in members)
        yield _family([*(alone[:1] if is_scaled else ()), *members], f"{name}, {mode}")


def _family(members: Sequence[Member], name: str) -> Family:
    # The first with each value: two cells with one value differ in something outside the recipe.
    unique = {member.value: member for member in reversed(members)}
    ordered = sorted(unique, key=lambda value: (value not in _REFERENCES, value))
    return Family(name=name, members=tuple(unique[value] for value in ordered))
