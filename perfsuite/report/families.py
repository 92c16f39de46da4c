"""Cells that differ in one thing only, so that a difference in speed has one cause. Sees rows only.

A family shares workload, device, environment and every field of the recipe but one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from perfsuite.records.parallel import ParallelPlan
from perfsuite.report.rows import Row, recipe_fields

Axis = Literal["num_workers", "checkpointing", "precision", "parallel"]
# What the other words of their axes are measured against.
_PLAIN: Final = ("fp32", "none")


@dataclass(frozen=True, kw_only=True)
class Member:
    """One cell of a family.

    Attributes:
        place: Where it stands on the axis: a number of workers or of devices, or a word.
        row: The cell.
        step_time_s: The row's.
    """

    place: Any
    row: Row
    step_time_s: float


@dataclass(frozen=True, kw_only=True)
class Family:
    """Cells that differ in `axis` alone.

    Attributes:
        axis: The field of the recipe.
        name: What they share, for people.
        variant: What else they share, and other families of that name do not, such as "ddp".
        members: At least two, in order of their place.
    """

    axis: Axis
    name: str
    variant: str
    members: tuple[Member, ...]

    @property
    def full_name(self) -> str:
        """The name with the variant."""
        return ", ".join(filter(None, [self.name, self.variant]))

    def at(self, place: Any) -> Member | None:
        """The member at a place, None where there is none."""
        return next((member for member in self.members if member.place == place), None)


def families(rows: Sequence[Row], axis: Axis) -> tuple[Family, ...]:
    """Return the families of cells that differ in one field.

    For "parallel" the cells of one mode at several sizes, `single` being any mode's size 1.
    """
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        # A cell without samples, such as a bare collective, has more to it than its recipe says.
        if row.record is not None and row.record.samples_per_s is not None:
            alike.setdefault(shared_fields(row, axis), []).append(row)
    found = (
        family
        for group in alike.values()
        for family in (_by_mode(group) if axis == "parallel" else _by_value(group, axis))
    )
    return tuple(family for family in found if len(family.members) > 1)


def shared_fields(row: Row, *axes: str) -> tuple[Any, ...]:
    """Return what cells must share to differ in nothing but some fields of the recipe.

    Args:
        row: A cell of ours.
        axes: Those fields.
    """
    assert row.record is not None
    assert row.recipe is not None
    fields = (getattr(row.recipe, name) for name in recipe_fields() if name not in axes)
    return row.subject, row.record.device, row.record.fingerprint, *fields


def _by_value(group: Sequence[Row], axis: Axis) -> Iterable[Family]:
    members = [_member(getattr(row.recipe, axis), row) for row in group]
    yield _family(axis, members, shared_name(group[0], axis))


def _by_mode(group: Sequence[Row]) -> Iterable[Family]:
    alone = [row for row in group if row.recipe is not None and row.recipe.parallel == "single"]
    by_mode: dict[str, list[Member]] = {}
    for row in group:
        assert row.recipe is not None
        plan = row.recipe.plan
        if plan.mode != "single":
            by_mode.setdefault(mode_name(plan), []).append(_member(plan.size, row))
    for mode, members in by_mode.items():
        if alone and all(member.place > 1 for member in members):
            members = [_member(1, alone[0]), *members]
        yield _family("parallel", members, shared_name(group[0], "parallel"), mode)


def mode_name(plan: ParallelPlan) -> str:
    """Return the mode, with its schedule where it has one.

    >>> from perfsuite.records.parallel import parse_parallel
    >>> mode_name(parse_parallel("ddp:4")), mode_name(parse_parallel("pp:2"))
    ('ddp', 'pp 1f1b')
    """
    return plan.mode if plan.schedule is None else f"{plan.mode} {plan.schedule}"


def _member(place: Any, row: Row) -> Member:
    assert row.step_time_s is not None
    return Member(place=place, row=row, step_time_s=row.step_time_s)


def _family(axis: Axis, members: Sequence[Member], name: str, variant: str = "") -> Family:
    # The first of those at one place: two cells there differ in what no recipe holds.
    unique: dict[Any, Member] = {}
    for member in members:
        unique.setdefault(member.place, member)
    is_number = axis in ("num_workers", "parallel")
    ordered = sorted(unique, key=None if is_number else lambda word: (word not in _PLAIN, word))
    members = tuple(unique[place] for place in ordered)
    return Family(axis=axis, name=name, variant=variant, members=members)


def shared_name(row: Row, axis: Axis) -> str:
    """Return the workload, and the fields that people tell cells apart by, but for the axis."""
    recipe = row.recipe
    assert recipe is not None
    fields: dict[Axis, str] = {
        "parallel": recipe.parallel,
        "precision": recipe.precision,
        "checkpointing": "" if recipe.checkpointing == "none" else recipe.checkpointing,
        "num_workers": f"num_workers={recipe.num_workers}" if recipe.num_workers else "",
    }
    del fields[axis]
    return ", ".join(filter(None, [row.subject, *fields.values()]))
