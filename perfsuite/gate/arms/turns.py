"""Whose turn it is: two arms share cores, and one runs while the other is blocked."""

from collections.abc import Sequence


class Scheduler:
    """Grants turns within a cell, in the order A B B A A B B A, and keeps the arms in one cell.

    An arm that requests a turn waits until the other requests one too, or has left the cell: what
    it does before its first turn would disturb what the other times. Where memory has no room for
    two, one enters after the other. By default a method returns the arms whose turn begins now.
    """

    def __init__(self, arms: Sequence[str], *, first: str) -> None:
        self._arms = sorted(arms, key=lambda arm: arm != first)
        self._order = list(self._arms)
        self._order_in_cell = list(self._order)
        self._left_in_round = list(self._order)
        self._requesting: set[str] = set()
        self._outside: set[str] = set()
        self._agreeing: set[str] = set()
        self._finished: set[str] = set()
        self._running: str | None = None
        # Where one arm at a time enters a cell: the arms that wait before it, and those that were
        # admitted, which is None in any other cell.
        self._before_cell: set[str] = set()
        self._admitted: set[str] | None = None

    def enter(self, arm: str, *, alone: bool) -> list[str]:
        """An arm has come to a cell; return who may enter now, `alone` while no other is inside."""
        if not alone:
            return [arm]
        self._admitted = self._admitted or set()
        self._before_cell.add(arm)
        return self.admit()

    def admit(self) -> list[str]:
        """Return the arm that may enter the cell now, the first of the pair before the other."""
        if self._admitted is None or self._admitted - self._outside - self._finished:
            return []
        arm = next((one for one in self._arms if one not in self._outside | self._finished), None)
        if arm not in self._before_cell:
            return []
        self._before_cell.remove(arm)
        self._admitted.add(arm)
        return [arm]

    def request(self, arm: str) -> list[str]:
        """An arm requests a turn."""
        self._requesting.add(arm)
        return self._grant()

    def end(self, arm: str) -> list[str]:
        """An arm's turn is over."""
        if self._running == arm:
            self._running = None
            if arm in self._left_in_round:
                self._left_in_round.remove(arm)
            if not self._left_in_round:
                self._order.reverse()
                self._left_in_round = list(self._order)
        return self._grant()

    def leave(self, arm: str) -> list[str]:
        """An arm has left the cell, in its turn or not."""
        self._outside.add(arm)
        return self._withdraw(arm)

    def finish(self, arm: str) -> list[str]:
        """An arm has finished, and will request nothing more."""
        self._finished.add(arm)
        return self._withdraw(arm)

    def agree(self, arm: str) -> list[str]:
        """An arm waits to agree with the other."""
        self._agreeing.add(arm)
        return self._withdraw(arm)

    def conclude(self) -> list[str]:
        """Return the arms that agree now: all that wait for it, once no other is in the cell.

        The turns after it are those of rounds. In one before it an arm has prepared itself.
        """
        if len(self._agreeing | self._absent()) < len(self._arms):
            return []
        concluded, self._agreeing = sorted(self._agreeing), set()
        self._order = list(self._order_in_cell)
        self._left_in_round = list(self._order)
        return concluded

    def pass_barrier(self) -> list[str]:
        """Return the arms that may go to the next cell now: all that have left, once all have."""
        if not self._outside or len(self._outside | self._finished) < len(self._arms):
            return []
        released, self._outside = sorted(self._outside), set()
        self._admitted = None
        self._order_in_cell = list(self._order)
        self._left_in_round = list(self._order)
        return released

    def _absent(self) -> set[str]:
        """The arms that an arm in the cell need not wait for."""
        kept_out = set() if self._admitted is None else {*self._arms} - self._admitted
        return self._outside | self._finished | kept_out

    def _withdraw(self, arm: str) -> list[str]:
        self._requesting.discard(arm)
        if self._running == arm:
            self._running = None
        return self._grant()

    def _grant(self) -> list[str]:
        if self._running is not None:
            return []
        absent = self._absent() | self._agreeing
        if any(arm not in self._requesting and arm not in absent for arm in self._arms):
            return []
        for arm in (*self._left_in_round, *self._order):
            if arm in self._requesting:
                self._requesting.discard(arm)
                self._running = arm
                return [arm]
        return []
