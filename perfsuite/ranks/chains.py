"""Chains of rank groups, several alive together: for untimed work.

A chain is a generator that yields the groups it needs, one after the other, and is sent their
replies. One thread advances all chains, so that Ctrl-C ends them as it ends one.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Generic, TypeVar, cast

from perfsuite.errors import PerfsuiteError
from perfsuite.ranks.bootstrap import make_group_folder, remove_group_folder
from perfsuite.ranks.group import POLL_S, RankGroup, run_group
from perfsuite.ranks.messages import CheckRun, GroupRequest, Reply, RunChecked
from perfsuite.ranks.user_code import CheckSteps
from perfsuite.system.signals import uninterrupted

T = TypeVar("T")

Chain = Generator[GroupRequest, list[Reply], T]


def run_chain(chain: Chain[T], run: Callable[[GroupRequest], list[Reply]] = run_group) -> T:
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
                resume = functools.partial(chain.send, run(request))
            except PerfsuiteError as error:
                resume = functools.partial(chain.throw, error)


def run_chains(chains: Iterable[Chain[T]], *, at_once: int) -> Iterator[T | PerfsuiteError]:
    """Yield what each chain returned, or the error of ours that it raised, in their order.

    Up to `at_once` are advanced together; further ones are drawn as others end.
    """
    waiting = enumerate(chains)
    running: dict[int, _RunningChain[T]] = {}
    done: dict[int, T | PerfsuiteError] = {}
    num_yielded = 0
    try:
        while True:
            for index, chain in itertools.islice(waiting, at_once - len(running)):
                running[index] = _RunningChain(chain)
                running[index].begin()
            if not running:
                return
            wait([source for one in running.values() for source in one.sources()], POLL_S)
            for index, one in list(running.items()):
                one.poll()
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


def prove(recorded: Sequence[GroupRequest], check: CheckRun | CheckSteps) -> Chain[RunChecked]:
    """Return what a check finds in the files that the ranks of some groups have recorded."""
    folder = make_group_folder()
    # The timed run of the same steps will print what they print.
    policy = dataclasses.replace(
        recorded[0].policy, proof=str(folder), shows_output=False, pins_ranks=False
    )
    try:
        for request in recorded:
            yield dataclasses.replace(request, policy=policy)
        (reply,) = yield GroupRequest(job=check, world_size=1, policy=policy, needs_group=False)
        return cast(RunChecked, reply)
    finally:
        remove_group_folder(folder)


class _RunningChain(Generic[T]):
    """A chain and the group that it waits for; `outcomes` has one element once it has ended."""

    def __init__(self, chain: Chain[T]) -> None:
        self.outcomes: list[T | PerfsuiteError] = []
        self._chain = chain
        self._group: RankGroup | None = None

    def begin(self) -> None:
        self._advance(functools.partial(next, self._chain))

    def sources(self) -> Collection[Connection | int]:
        """Return what becomes ready when there is something to poll; nothing once it has ended."""
        return () if self._group is None else self._group.sources()

    def poll(self) -> None:
        try:
            replies = None if self._group is None else self._group.poll(0.0)
        except PerfsuiteError as error:
            self._advance(functools.partial(self._chain.throw, error))
        else:
            if replies is not None:
                self._advance(functools.partial(self._chain.send, replies))

    def close(self) -> None:
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
            self._group = RankGroup(request)

    def _end_group(self) -> None:
        if self._group is not None:
            group, self._group = self._group, None
            group.end()
