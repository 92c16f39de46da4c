"""Chains of rank groups, several alive together: for untimed work.

A chain is a generator that yields the groups it needs, one after the other, and is sent their
replies. One thread advances all chains, so that Ctrl-C ends them as it ends one.
"""

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from multiprocessing.connection import wait
from typing import TypeVar, cast

from perfsuite.errors import PerfsuiteError
from perfsuite.ranks.bootstrap import make_group_folder, remove_group_folder
from perfsuite.ranks.forkserver import start_server
from perfsuite.ranks.group import POLL_S, RankGroup, run_group
from perfsuite.ranks.messages import CheckRun, CheckSteps, GroupRequest, Reply, RunChecked
from perfsuite.system.signals import uninterrupted

T = TypeVar("T")

Chain = Generator[GroupRequest, list[Reply], T]


def run_chain(chain: Chain[T], run: Callable[[GroupRequest], list[Reply]] = run_group) -> T:
    """Return what one chain returns, or raise what it raises; its groups are run by `run`."""
    with contextlib.closing(chain):
        try:
            request = next(chain)
            while True:
                try:
                    replies = run(request)
                except PerfsuiteError as error:
                    request = chain.throw(error)
                else:
                    request = chain.send(replies)
        except StopIteration as end:
            return cast(T, end.value)


def run_chains(chains: Iterable[Chain[T]], *, at_once: int) -> Iterator[T | PerfsuiteError]:
    """Yield what each chain returned, or the error of ours that it raised, in their order."""
    waiting = enumerate(chains)  # drawn as others end
    running: dict[int, Generator[RankGroup, None, T]] = {}
    done: dict[int, T | PerfsuiteError] = {}
    num_yielded = 0
    try:
        while True:
            for index, chain in itertools.islice(waiting, at_once - len(running)):
                running[index] = _groups_of(chain)
            if not running:
                return
            groups: dict[int, RankGroup] = {}
            for index, one in running.items():
                try:
                    groups[index] = next(one)
                except StopIteration as end:
                    done[index] = end.value
                except PerfsuiteError as error:
                    done[index] = error
            if len(groups) == len(running):
                wait([source for group in groups.values() for source in group.sources()], POLL_S)
            running = {index: running[index] for index in groups}
            while num_yielded in done:
                yield done.pop(num_yielded)
                num_yielded += 1
    finally:
        with uninterrupted():  # or a second Ctrl-C would leave the others alive
            for one in running.values():
                one.close()


def _groups_of(chain: Chain[T]) -> Generator[RankGroup, None, T]:
    """Yield the group that a chain waits for until it has replied; see `run_chain` for the rest."""
    with contextlib.closing(chain):
        try:
            request = next(chain)
            while True:
                try:
                    with RankGroup(request) as group:
                        while (replies := group.poll(0.0)) is None:
                            yield group
                except PerfsuiteError as error:
                    request = chain.throw(error)
                else:
                    request = chain.send(replies)
        except StopIteration as end:
            return cast(T, end.value)


def prove(recorded: Sequence[GroupRequest], check: CheckRun | CheckSteps) -> Chain[RunChecked]:
    """Return what a check finds in the files that the ranks of some groups have recorded."""
    start_server()
    folder = make_group_folder()
    # The timed run of the same steps will print what they print.
    policy = recorded[0].policy._replace(proof=str(folder), shows_output=False)
    try:
        for request in recorded:
            yield request._replace(policy=policy)
        (reply,) = yield GroupRequest(job=check, world_size=1, policy=policy, needs_group=False)
        return cast(RunChecked, reply)
    finally:
        remove_group_folder(folder)
