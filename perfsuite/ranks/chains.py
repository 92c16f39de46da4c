"""Chains of rank groups, several alive together: for work that nobody times.

A chain is a generator that yields the groups it needs, one after the other, and is sent their
replies. One thread advances all of them, so that Ctrl-C ends them as it ends one. Must not know
what a chain is for, and imports no torch.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Generic, Protocol, TypeVar

from perfsuite.errors import PerfsuiteError
from perfsuite.ranks.group import LOOK_S, GroupPolicy, RankGroup, run_group
from perfsuite.ranks.messages import Job, Reply
from perfsuite.system.signals import uninterrupted

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class GroupRequest:
    """A group that a chain needs next; see `group.run_group` for the fields."""

    job: Job
    world_size: int
    policy: GroupPolicy
    needs_group: bool = True


Chain = Generator[GroupRequest, list[Reply], T]


class RunGroup(Protocol):
    """How one group is run to its end: `group.run_group`, or one like it."""

    def __call__(
        self, job: Job, *, world_size: int, policy: GroupPolicy, needs_group: bool = True
    ) -> list[Reply]:
        """Return the ranks' replies, in rank order."""


def run_chain(chain: Chain[T], run: RunGroup = run_group) -> T:
    """Return what one chain returns, or raise what it raises; its groups are run by `run`."""
    resume: Callable[[], GroupRequest] = functools.partial(next, chain)
    with contextlib.closing(chain):
        while True:
            try:
                request = resume()
            except StopIteration as end:
                returned: T = end.value
                return returned
            try:
                replies = run(
                    request.job,
                    world_size=request.world_size,
                    policy=request.policy,
                    needs_group=request.needs_group,
                )
            except PerfsuiteError as error:
                resume = functools.partial(chain.throw, error)
            else:
                resume = functools.partial(chain.send, replies)


def run_chains(chains: Iterable[Chain[T]], *, at_once: int) -> Iterator[T | PerfsuiteError]:
    """Yield what each chain returned, or the error of ours that it raised, in their order.

    Args:
        chains: Drawn from as others end.
        at_once: How many are advanced together.
    """
    waiting = enumerate(chains)
    running: dict[int, _Running[T]] = {}
    done: dict[int, T | PerfsuiteError] = {}
    num_yielded = 0
    try:
        while True:
            for index, chain in itertools.islice(waiting, at_once - len(running)):
                running[index] = _Running(chain)
                running[index].begin()
            if not running:
                return
            wait([source for one in running.values() for source in one.sources()], LOOK_S)
            for index, one in list(running.items()):
                one.look()
                if one.outcomes:
                    done[index] = one.outcomes[0]
                    del running[index]
            while num_yielded in done:
                yield done.pop(num_yielded)
                num_yielded += 1
    finally:
        with uninterrupted():  # or a second Ctrl-C would leave the others alive
            for one in running.values():
                one.close()


class _Running(Generic[T]):
    """A chain and the group that it waits for."""

    def __init__(self, chain: Chain[T]) -> None:
        self.outcomes: list[T | PerfsuiteError] = []
        self._chain = chain
        self._group: RankGroup | None = None

    def begin(self) -> None:
        """Start the first group."""
        self._advance(functools.partial(next, self._chain))

    def sources(self) -> list[Connection | int]:
        """What becomes ready when there is something to look at; nothing once it has ended."""
        return [] if self._group is None else self._group.sources()

    def look(self) -> None:
        """Give the chain its replies when all are there."""
        if self._group is None:
            return
        try:
            replies = self._group.look(0.0)
        except PerfsuiteError as error:
            self._advance(functools.partial(self._chain.throw, error))
            return
        if replies is not None:
            self._advance(functools.partial(self._chain.send, replies))

    def close(self) -> None:
        """End the group and the chain wherever they are."""
        self._end_group()
        self._chain.close()

    def _advance(self, resume: Callable[[], GroupRequest]) -> None:
        self._end_group()
        try:
            request = resume()
        except StopIteration as end:
            self.outcomes.append(end.value)
        except PerfsuiteError as error:
            self.outcomes.append(error)
        else:
            self._group = RankGroup(
                request.job,
                world_size=request.world_size,
                policy=request.policy,
                needs_group=request.needs_group,
            )

    def _end_group(self) -> None:
        if self._group is not None:
            group, self._group = self._group, None
            group.end()
