"""Errors that name the rank that made a group fail. Runs in the controller.

The first failure in time is named, and never a rank that only lost its peer: survivors of a crash
report a closed connection that names a port, not a rank.
"""

import itertools
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from perfsuite.errors import PeerState, RankFailureError
from perfsuite.ranks.messages import Failed
from perfsuite.ranks.progress import FIRST_STEP, Position

NUM_LOG_LINES = 12
_STACK_WAIT_S = 1.0
# Ranks compile in these, for minutes; in all others a step has been taken already.
_COMPILING_PHASES = {"start", "build", FIRST_STEP, "warm-up", "record", "check"}
_COMPILING = 10
_STACK_HEADER = "(most recent call first):"
_CRASH_HEADER = "Fatal Python error:"
# The frames from here outwards are the same in every rank.
_OUTER_FRAME = "perfsuite/worker/main.py"
_BACKWARD_PASS = "/torch/autograd/graph.py"
# Where a rank is that waits for others: in a collective, in a backward pass that reduces, or in the
# measurement, where only waiting takes long.
_WAITING_PLACES = ("/torch/distributed/", _BACKWARD_PASS, "/perfsuite/worker/")
# What gloo and NCCL say about a peer that is late, then about one that is gone; either error is a
# consequence. From torch 2.15 on the backend for NCCL is another, with words of its own.
_LATE_PEER_SIGNS = (
    *("for recv operation to complete", "for send operation to complete", "Socket Timeout"),
    *("Application timeout caused pair closure", "wait timeout after", "NCCL operation timed out"),
    "Watchdog caught collective operation timeout",
)
_GONE_PEER_SIGNS = (
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL Async Error"),
    *("Process group watchdog thread terminated", "NCCL communicator was aborted"),
    *("remote process exited or there was a network error", "Aborting process on rank"),
)
# A rank that failed by itself caused what happened, then one that others waited for, then the rest.
_ORDER = (None, "late", "gone")
_DIFFERENT = "; the ranks ran different collectives, as where one has fewer backward passes"
# What a rank says whose own kernel failed; its watchdog ends it like one that waited.
_OWN_ERROR = "CUDA error:"
# NCCL's watchdog ends a rank by SIGABRT: then its words lie before the stacks of all its threads.
NUM_WATCHDOG_BYTES = 2**16


class Died(NamedTuple):
    """A rank's process ended without a reply."""

    exit_code: int | None  # below 0 the signal that killed it; None where unknown
    peer: PeerState | None  # what its last output only says of another, as NCCL's watchdog does
    at_s: float  # when the controller noticed, on the machine's monotonic clock


def patience_s(timeout_s: float, *, compiles: bool, phases: Iterable[str]) -> float:
    """Return for how long ranks in these phases may make no mark: torch.compile makes none."""
    return timeout_s * (_COMPILING if compiles and _COMPILING_PHASES.issuperset(phases) else 1)


def first_failure(failures: Mapping[int, Failed | Died]) -> tuple[int, Failed | Died]:
    """Return the rank that caused the failure of the group, and how it failed."""
    return min(failures.items(), key=lambda item: (_ORDER.index(item[1].peer), item[1].at_s))


def came_too_late(failures: Mapping[int, Failed | Died | RankFailureError]) -> tuple[int, ...]:
    """Return the rank that the others waited for in vain, where all have failed: one or none."""
    # It lost its peer when it came: another had waited, and ended. Of two such one may have waited.
    lost = [rank for rank, one in failures.items() if one.peer == "gone"]
    has_waited = any(one.peer == "late" for one in failures.values())
    return tuple(lost) if has_waited and len(lost) == 1 else ()


def blamed_peer(text: str) -> PeerState | None:
    """Return what an error or a log only says of another rank; ranks ask this too.

    >>> blamed_peer("Socket Timeout"), blamed_peer("Broken pipe"), blamed_peer("KeyError: 'a'")
    ('late', 'gone', None)
    """
    if _OWN_ERROR in text:
        return None
    if any(sign in text for sign in _LATE_PEER_SIGNS):
        return "late"
    return "gone" if any(sign in text for sign in _GONE_PEER_SIGNS) else None


def furthest_behind(positions: Mapping[int, Position]) -> int:
    """Return the rank with the fewest steps, and among equals the one with the fewest marks."""
    return min(positions, key=lambda rank: (positions[rank].step, positions[rank].num_marks))


def latest(positions: Mapping[int, Position], stacks: Mapping[int, Sequence[str]]) -> int:
    """Return the rank that the others wait for: of the fewest steps, and one that does not wait."""
    step = positions[furthest_behind(positions)].step
    behind = {rank: position for rank, position in positions.items() if position.step == step}
    at_work = {
        rank: position
        for rank, position in behind.items()
        if not any(place in line for line in stacks[rank][:1] for place in _WAITING_PLACES)
    }
    return furthest_behind(at_work or behind)


def rank_error(
    rank: int,
    failure: Failed | Died,
    *,
    position: Position,
    world_size: int,
    log: Sequence[str],
    all_waited: bool = False,
) -> RankFailureError:
    """Return the error of a rank that died or raised."""
    exit_code: int | None = None
    signal_name: str | None = None
    traceback: Sequence[str] = ()
    if isinstance(failure, Failed):
        what = f"raised {': '.join(filter(None, (failure.error, failure.message)))}"
        traceback = failure.lines
    elif failure.exit_code is not None and failure.exit_code < 0:
        signal_name = signal.Signals(-failure.exit_code).name
        what = f"was killed by {signal_name}"
        if signal_name == "SIGKILL":
            what += " (by a user, or by the kernel because memory ran out)"
    else:
        exit_code = failure.exit_code
        what = "ended" if exit_code is None else f"ended with exit code {exit_code}"
    tail = last_output(log)
    blocks = _block("traceback", traceback) + _block("its last output", tail)
    why = _DIFFERENT if all_waited or any("collective mismatch" in line for line in tail) else ""
    text, peer = f"rank {rank} of {world_size} {what}, in {position}{why}{blocks}", failure.peer
    return RankFailureError(
        text, rank=rank, exit_code=exit_code, signal_name=signal_name, log_lines=tail, peer=peer
    )


def late_rank_error(
    late: Iterable[int],
    *,
    has_come: bool = False,
    waiting_rank: int,
    positions: Mapping[int, Position],
    world_size: int,
    timeout_s: float,
    stack_of: Callable[[int], tuple[str, ...]],
) -> RankFailureError:
    """Return the error of the late rank that another waited for in vain in a collective."""
    rank = furthest_behind({one: positions[one] for one in late})
    where = "came later, in" if has_come else "is in"
    what = (
        f"did not come to a collective within {timeout_s:g} s (--perf-collective-timeout): it "
        f"{where} {positions[rank]}, and rank {waiting_rank} waited in {positions[waiting_rank]}"
    )
    # Where each takes part in the collectives of a step, none is two steps ahead.
    if abs(positions[rank].step - positions[waiting_rank].step) > 1:
        what += _DIFFERENT
    return hanging_error(rank, what, world_size=world_size, lines=stack_of(rank))


def hanging_error(
    rank: int, what: str, *, world_size: int, lines: tuple[str, ...]
) -> RankFailureError:
    """Return the error of a rank that others wait for; `lines` are its stack."""
    text = f"rank {rank} of {world_size} {what}{_block('where it is', lines)}"
    return RankFailureError(text, rank=rank, log_lines=lines)


def wait_for_stack(log: Path, size_before: int) -> None:
    """Return when a rank that got SIGUSR1 has written its stack, or after a second."""
    deadline_s = time.monotonic() + _STACK_WAIT_S
    size = size_before
    while time.monotonic() < deadline_s:
        time.sleep(0.05)
        if (grown := log.stat().st_size) > size_before and grown == size:
            return
        size = grown


def current_stack(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the stack of a rank's work from faulthandler's dump, innermost call first."""
    stacks: list[list[str]] = [[]]
    for line in map(str.strip, lines):
        if line.endswith(_STACK_HEADER):
            stacks.append([])
        elif line.startswith(("File", "<")):
            stacks[-1].append(line)
    *others, stack = stacks  # faulthandler writes the main thread last
    if _BACKWARD_PASS in "".join(stack[:1]):
        # On a GPU it runs in a thread of torch's own, in which Python has begun nothing.
        begun = ("in _bootstrap", "<no Python frame>")
        stack = next((one for one in others[1:] if one and not one[-1].endswith(begun)), stack)
    inner = itertools.takewhile(lambda line: _OUTER_FRAME not in line, stack)
    return tuple(itertools.islice(inner, NUM_LOG_LINES))


def last_output(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the last lines of a rank's log; after a crash, what came before it and its stack."""
    if not (crashes := [at for at, line in enumerate(lines) if line.startswith(_CRASH_HEADER)]):
        return tuple(lines[-NUM_LOG_LINES:])
    before = lines[max(0, crashes[-1] - NUM_LOG_LINES) : crashes[-1] + 1]
    return (*before, *current_stack(lines[crashes[-1] + 1 :]))


def _block(title: str, lines: Sequence[str]) -> str:
    return "".join(["\n  ", title, ":", *(f"\n    {line}" for line in lines)]) if lines else ""
