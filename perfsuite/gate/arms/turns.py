"""Whose turn it is: two arms on the same cores, one of which runs while the other is blocked.

A pure state machine over the names of arms. Must not know what a turn is used for, nor how arms are
spoken to.
"""

from __future__ import annotations

from collections.abc import Sequence


class Scheduler:
    """Grants turns within a cell, in the order A B B A A B B A, and keeps the arms in one cell.

    An arm that wants a turn waits until the other wants one too, or has left the cell: what an arm
    does before its first turn would otherwise disturb what the other times. An arm that has left a
    cell waits for the other at its border. A cell of which memory has no room for two is entered
    by one arm after the other.
    """

    def __init__(self, arms: Sequence[str], *, first: str) -> None:
        """Begin with no arm wanting anything.

        Args:
            arms: Their names.
            first: Which of them runs first.
        """
        self._others = {arm: [other for other in arms if other != arm] for arm in arms}
        self._first = first
        self._order = [first, *self._others[first]]
        self._left_in_round = list(self._order)
        self._wanting: set[str] = set()
        self._outside: set[str] = set()
        self._agreeing: set[str] = set()
        self._gone: set[str] = set()
        self._running: str | None = None
        # Those at the door of a cell that one arm enters at a time, and who is in; None else.
        self._at_door: set[str] = set()
        self._alone: set[str] | None = None

    def enter(self, arm: str, *, alone: bool) -> list[str]:
        """An arm stands before a cell; return the arms that may enter it now.

        Args:
            arm: Its name.
            alone: Whether it enters when no other is inside; both arms say the same.
        """
        if not alone:
            return [arm]
        if self._alone is None:
            self._alone = set()
        self._at_door.add(arm)
        return self.open_door()

    def open_door(self) -> list[str]:
        """Return the arm that may enter the cell now, the first of the pair before the other."""
        if self._alone is None or self._alone - self._outside - self._gone:
            return []
        for arm in (self._first, *self._others[self._first]):
            if arm in self._at_door:
                self._at_door.discard(arm)
                self._alone.add(arm)
                return [arm]
            if arm not in self._outside | self._gone:
                return []
        return []

    def want(self, arm: str) -> list[str]:
        """An arm wants a turn; return the arms whose turn begins now."""
        self._wanting.add(arm)
        return self._grant()

    def end(self, arm: str) -> list[str]:
        """An arm's turn is over; return the arms whose turn begins now."""
        if self._running == arm:
            self._running = None
            if arm in self._left_in_round:
                self._left_in_round.remove(arm)
            if not self._left_in_round:
                self._order.reverse()
                self._left_in_round = list(self._order)
        return self._grant()

    def leave(self, arm: str) -> list[str]:
        """An arm has left the cell, in its turn or not; return the arms whose turn begins now."""
        self._outside.add(arm)
        return self._withdraw(arm)

    def go(self, arm: str) -> list[str]:
        """An arm will want nothing any more; return the arms whose turn begins now."""
        self._gone.add(arm)
        return self._withdraw(arm)

    def agree(self, arm: str) -> list[str]:
        """An arm waits to agree with the other; return the arms whose turn begins now."""
        self._agreeing.add(arm)
        return self._withdraw(arm)

    def conclude(self) -> list[str]:
        """Return the arms that agree now: all that wait for it, once nobody else is in the cell."""
        if len(self._agreeing | self._absent()) < len(self._others):
            return []
        concluded = sorted(self._agreeing)
        self._agreeing.clear()
        self._left_in_round = list(self._order)
        return concluded

    def cross_border(self) -> list[str]:
        """Return the arms that may enter the next cell now: all that have left, once all have."""
        if not self._outside or len(self._outside | self._gone) < len(self._others):
            return []
        released = sorted(self._outside)
        self._outside.clear()
        self._alone = None
        self._left_in_round = list(self._order)
        return released

    def _absent(self) -> set[str]:
        """The arms that nobody in the cell has to wait for."""
        kept_out = set() if self._alone is None else self._others.keys() - self._alone
        return self._outside | self._gone | kept_out

    def _withdraw(self, arm: str) -> list[str]:
        self._wanting.discard(arm)
        if self._running == arm:
            self._running = None
        return self._grant()

    def _grant(self) -> list[str]:
        if self._running is not None:
            return []
        absent = self._absent() | self._agreeing
        if any(arm not in self._wanting and arm not in absent for arm in self._others):
            return []
        for arm in (*self._left_in_round, *self._order):
            if arm in self._wanting:
                self._wanting.discard(arm)
                self._running = arm
                return [arm]
        return []
