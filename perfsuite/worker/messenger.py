"""Carries broadcasts between controllers over torchrun's TCP store. Runs in the messenger.

The messenger is a process of its own beside each controller, because the store is torch's; the
controller loads it by name (`ranks.torchrun.peers.enter_messenger`). All letters, one a broadcast,
are one list in the store, and every messenger reads all of them in the same order.
"""

import contextlib
import os
import signal
import threading
import time
from functools import partial
from multiprocessing.connection import Connection

from perfsuite.ranks import bootstrap
from perfsuite.ranks.torchrun.peers import MessengerStart
from perfsuite.worker.store import Store, StoreError, open_store

# How often a messenger shows that it is alive, and checks whether others are.
_BEAT_S = 1.0
# Between two checks for a letter: answers come at once, and a long silence costs a store with a
# thousand readers 20,000 requests a second at most.
_SHORTEST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05
# The store takes no values of 8 MiB or more (torch 2.15, TCPStoreLibUvBackend.cpp).
_PAGE_BYTES = 4 * 2**20


def serve(start: MessengerStart, pipe: Connection) -> None:
    """Carry letters both ways until the controller closes its end."""
    place = start.membership
    controller = _Controller(pipe, start.controller)
    prefix = f"{place.prefix}/letters"
    connect = partial(open_store, place.host, place.port, prefix, start.arrival_s)
    try:
        outgoing, incoming = connect(is_host=place.hosts_store), connect()
    except StoreError as error:
        store = f"the store at {place.host}:{place.port} (MASTER_ADDR, MASTER_PORT)"
        found = f"rank {place.rank} of {place.world_size} cannot reach {store}"
        advice = "give torchrun a --master-addr that every host can reach, and open the port"
        controller.give_up(f"{found}: {_first_line(error)}; {advice}")
        return
    given = (incoming, controller, place.world_size)
    thread = threading.Thread(target=_send_on, args=given, daemon=True)
    thread.start()
    heartbeats = _Heartbeats(start, outgoing)
    try:
        while (reason := heartbeats.check()) is None:
            if pipe.poll(_BEAT_S):
                _post(outgoing, pipe.recv_bytes())
        controller.give_up(reason)
        while True:  # others may hear how this one ends
            _post(outgoing, pipe.recv_bytes())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the reader waits in the store, and an exit handler would wait for it
    except StoreError:
        thread.join()  # it meets the same error, and reports it


class _Controller:
    """The controller, as two threads send to it; they wait where it is busy."""

    def __init__(self, pipe: Connection, pid: int) -> None:
        self._pipe, self._pid = pipe, pid
        self._lock = threading.Lock()

    def send(self, message: bytes | str) -> None:
        with self._lock:
            self._pipe.send(message)

    def give_up(self, reason: str) -> None:
        # A controller that is stopped would never hear it, and not take torchrun's SIGTERM either.
        with contextlib.suppress(ProcessLookupError):  # it is gone, and needs nothing
            os.kill(self._pid, signal.SIGCONT)
        self.send(reason)


def _send_on(store: Store, controller: _Controller, world_size: int) -> None:
    num_read, pause_s = 0, _SHORTEST_PAUSE_S
    try:
        while True:
            # Not a wait: one that runs out just as the letter comes may never return (torch 2.15).
            if store.check([_key(num_read)]):
                controller.send(_take(store, _key(num_read), world_size))
                num_read += 1
                pause_s = _SHORTEST_PAUSE_S
            else:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    except StoreError as error:
        controller.give_up(f"the store of torchrun is gone: {_first_line(error)}")
    except (BrokenPipeError, ConnectionResetError):
        return  # the controller is gone, and so is this process in a moment


def _take(store: Store, key: str, world_size: int) -> bytes:
    num_pages = int(store.get(key))
    content = b"".join(store.get(f"{key}.{page}") for page in range(num_pages))
    if store.add(f"{key} read", 1) == world_size:
        for page in range(num_pages):
            store.delete_key(f"{key}.{page}")
    return content


class _Heartbeats:
    """Shows that the controller here is alive, and notices which other has fallen silent."""

    # Not the reader's work: a controller that is busy takes no letter for minutes, and lives.
    def __init__(self, start: MessengerStart, store: Store) -> None:
        self._start = start
        self._place = place = start.membership
        self._store = store
        # All depend on the first, which decides, and the first on all.
        watched = range(1, place.world_size) if place.is_first else [0]
        self._beats = dict.fromkeys(watched, 0)
        self._heard_s = dict.fromkeys(watched, time.monotonic())
        self._beaten_s = 0.0

    def check(self) -> str | None:
        """Return why the session cannot go on, None if it can; works once a second at most."""
        if time.monotonic() - self._beaten_s < _BEAT_S:
            return None
        self._beaten_s = now_s = time.monotonic()
        if not bootstrap.why_stopped(self._start.controller):
            self._store.add(f"beat {self._place.rank}", 1)
        for rank, num_before in self._beats.items():
            if (num_beats := self._store.add(f"beat {rank}", 0)) != num_before:
                self._beats[rank], self._heard_s[rank] = num_beats, now_s
            patience_s = self._start.silence_s if num_beats else self._start.arrival_s
            if now_s - self._heard_s[rank] > patience_s:
                what = "is gone, stopped or hangs" if num_beats else "did not come"
                silent = f"nothing was heard of its pytest process for {patience_s:g} s"
                return f"rank {rank} of {self._place.world_size} {what}: {silent}"
        return None


def _post(store: Store, content: bytes) -> None:
    pages = [content[at : at + _PAGE_BYTES] for at in range(0, len(content), _PAGE_BYTES)]
    key = _key(store.add("posted", 1) - 1)
    for number, page in enumerate(pages):
        store.set(f"{key}.{number}", page)  # type: ignore[arg-type]  # bytes, as elastic does
    store.set(key, str(len(pages)))


def _key(number: int) -> str:
    return f"letter {number}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
