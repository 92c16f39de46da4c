"""Groups of ranks that span several controllers: each starts one rank, the first one decides.

Runs in every controller that torchrun started. The first hears how each rank ended and decides the
outcome of the group; all controllers return or raise the same.
"""

import time
from collections.abc import Mapping
from multiprocessing.connection import wait
from typing import NamedTuple

from perfsuite.errors import LostRankError, NotExercisedError, PerfsuiteError, RankFailureError
from perfsuite.ranks import failures
from perfsuite.ranks.assignments import Assignment, Rendezvous
from perfsuite.ranks.group import CASCADE_S, POLL_S, RankGroup
from perfsuite.ranks.messages import GroupPolicy, GroupRequest, Reply
from perfsuite.ranks.progress import Position
from perfsuite.ranks.torchrun.peers import Peers
from perfsuite.ranks.torchrun.topology import Topology

# A controller answers within `CASCADE_S` and the second that a rank's stack may take to be written.
_ANSWER_S = 10.0


class RankEnd(NamedTuple):
    """How a controller's rank ended, and where it was; one that still ran has its stack `lines`."""

    result: Reply | PerfsuiteError | None
    position: Position
    lines: tuple[str, ...] = ()


class MultiHostGroups:
    """Runs jobs on ranks of several controllers; nothing is started before the first job."""

    def __init__(self, peers: Peers, topology: Topology) -> None:
        self._peers, self._topology = peers, topology
        self._phase, self._num_jobs = -1, 0

    def run(self, request: GroupRequest) -> list[Reply]:
        """Run a job on the first ranks and return their replies in every controller.

        Every controller has to call this, in the same order. Raises a NotExercisedError where
        torchrun started fewer ranks, a LostRankError without a controller, else as `run_group`.
        """
        membership = self._peers.membership
        needed, started = request.world_size, membership.world_size
        if needed > started:
            raise NotExercisedError(f"{needed} ranks are needed, and torchrun started {started}")
        # The count restarts in each phase, in case a rank missed a job.
        if self._phase != self._peers.phase:
            self._phase, self._num_jobs = self._peers.phase, 0
        self._num_jobs += 1
        name = f"job {self._phase}.{self._num_jobs}"
        outcome = _JobOutcome(self._peers, name, request)
        if membership.rank >= request.world_size:
            return outcome.wait_for(None)
        own = self._assignment(name, request.world_size, request.policy)
        with RankGroup(request, own) as group:
            return outcome.wait_for(group)

    def _assignment(self, name: str, world_size: int, policy: GroupPolicy) -> Assignment:
        membership, topology = self._peers.membership, self._topology
        neighbours = topology.beside(membership.rank, world_size, "machine", "cores")
        local_ranks = topology.beside(membership.rank, world_size, "machine", "network")
        on_gpus = policy.device == "cuda" and topology.have_own_gpus(world_size)
        return Assignment(
            rank=membership.rank,
            place=neighbours.index(membership.rank),
            num_neighbours=len(neighbours),
            local_rank=local_ranks.index(membership.rank),
            local_world_size=len(local_ranks),
            gpu=topology.gpu_of(membership.rank),
            backend="nccl" if on_gpus else "gloo",
            rendezvous=Rendezvous(
                host=membership.host,
                port=membership.port,
                prefix=f"{membership.prefix}/{name}",
                is_on_one_machine=topology.is_on_one_machine(world_size),
            ),
        )


class _JobOutcome:
    def __init__(self, peers: Peers, name: str, request: GroupRequest) -> None:
        self._peers = peers
        self._ended, self._stop, self._decided = name, f"{name}: stop", f"{name}: decided"
        self._world_size = request.world_size
        self._collective_timeout_s = request.policy.collective_timeout_s
        self._stopped_s: float | None = None
        self._answer_by_s: float | None = None
        self._has_decided = False

    def wait_for(self, group: RankGroup | None) -> list[Reply]:
        """Return what the first controller decides; `group` is the rank here, if there is one."""
        rank = self._peers.membership.rank
        while True:
            sources = list(self._peers.sources())
            if group is not None:
                sources += group.sources()
            wait(sources, POLL_S)
            self._peers.receive()
            if group is not None and self._report(group, rank):
                group = None  # nothing more is to be heard from it
            if rank == 0:
                self._lead()
            else:
                self._peers.refuse_absent([0], self._peers.received(self._decided))
            for decision in self._peers.received(self._decided).values():
                if isinstance(decision, PerfsuiteError):
                    raise decision
                replies: list[Reply] = decision
                return replies

    def _report(self, group: RankGroup, rank: int) -> bool:
        """Broadcast how the rank here ended, or where it is when it has to stop; else say False."""
        result: Reply | PerfsuiteError | None
        try:
            (result,) = group.poll(0.0) or (None,)
        except PerfsuiteError as error:
            result = error
        if result is None and not self._has_to_stop():
            return False
        position = group.position(rank)
        lines = group.where_it_hangs(rank) if result is None else ()
        self._peers.broadcast(self._ended, RankEnd(result=result, position=position, lines=lines))
        return True

    def _has_to_stop(self) -> bool:
        """Whether another rank failed, and this one had the time to show that it failed before."""
        if not self._peers.received(self._stop):
            return False
        self._stopped_s = self._stopped_s or time.monotonic()
        return time.monotonic() - self._stopped_s > CASCADE_S

    def _lead(self) -> None:
        if self._has_decided:
            return
        ended: dict[int, RankEnd] = self._peers.received(self._ended)
        results = {rank: one.result for rank, one in ended.items()}
        has_failed = any(isinstance(result, PerfsuiteError) for result in results.values())
        is_whole = len(ended) == self._world_size
        if is_whole and not has_failed:
            self._decide([results[rank] for rank in range(self._world_size)])
        elif not has_failed:
            self._peers.refuse_absent(range(self._world_size), ended)
        elif self._answer_by_s is None:
            self._peers.broadcast(self._stop, None)
            self._answer_by_s = time.monotonic() + _ANSWER_S
        elif is_whole or time.monotonic() > self._answer_by_s:
            timeout_s = self._collective_timeout_s
            self._decide(error_of(ended, world_size=self._world_size, timeout_s=timeout_s))

    def _decide(self, decision: object) -> None:
        self._has_decided = True
        self._peers.broadcast(self._decided, decision)


def error_of(ended: Mapping[int, RankEnd], *, world_size: int, timeout_s: float) -> PerfsuiteError:
    """Return the error of the whole group: never that of a rank that only lost its peer.

    `ended` holds at least one failure; the end that was heard first comes first. `timeout_s` is
    that of collectives.
    """
    causes: list[PerfsuiteError] = []
    lost: dict[int, RankFailureError] = {}
    for rank, one in ended.items():
        if isinstance(one.result, RankFailureError) and one.result.peer:
            lost[rank] = one.result
        elif isinstance(one.result, PerfsuiteError):
            causes.append(one.result)
    if causes:
        return min(causes, key=lambda error: not isinstance(error, NotExercisedError))
    waiting_rank = min(lost, key=lambda rank: lost[rank].peer != "late")
    if silent := [rank for rank in range(world_size) if rank not in ended]:
        return LostRankError(
            f"rank {silent[0]} of {world_size} is gone or hangs: rank {waiting_rank} lost "
            f"it, and its pytest process did not answer for {_ANSWER_S:g} s"
        )
    running = [rank for rank, one in ended.items() if one.result is None]
    has_come = failures.came_too_late(lost)
    if not (running or has_come):
        return lost[waiting_rank]
    return failures.late_rank_error(
        running or has_come,
        has_come=not running,
        waiting_rank=waiting_rank,
        positions={rank: one.position for rank, one in ended.items()},
        world_size=world_size,
        timeout_s=timeout_s,
        stack_of=lambda rank: ended[rank].lines,
    )
