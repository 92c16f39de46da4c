"""One timing session per machine and user: two at once would measure each other.

The lock is the kernel's (flock), so it never outlives its process.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from perfsuite.errors import BusyMachineError, SettingError, WriteError
from perfsuite.system.files import explained, write_atomically

# Names a folder of the host that its containers share; the tests have one for each worker.
LOCK_DIR = "PERFSUITE_LOCK_DIR"
# A day, for another timing session to end.
WAIT_S = 86_400.0


def lock_folder(environ: Mapping[str, str]) -> Path:
    """Return where the lock is; raises a SettingError where the variable names no folder."""
    # Sessions with different TMPDIRs share the same processors.
    folder = Path(environ.get(LOCK_DIR) or "/tmp")
    if not folder.is_dir():
        raise SettingError(f"{LOCK_DIR} names {folder}, which is no folder; make it, or unset it")
    return folder


class TimingLock:
    """Holds the machine from the first timed cell to the end of the session."""

    def __init__(self, *, wait_s: float, say: Callable[[str], None]) -> None:
        """Take nothing yet; `say` shows a line before a wait, which a `wait_s` of 0 refuses."""
        self.folder = folder = lock_folder(os.environ)
        self._wait_s, self._say = wait_s, say
        self._lock = FileLock(folder / f"perfsuite-{os.getuid()}.lock")
        self._next = FileLock(folder / f"perfsuite-{os.getuid()}.next")  # of the one that waits
        self._holder = folder / f"perfsuite-{os.getuid()}.holder"

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Return when this session holds the machine; at once if it does already.

        Raises a BusyMachineError when the waiting time is over, a WriteError without a lock file.
        """
        if self._lock.is_locked:
            return
        with explained(f"lock {self._lock.lock_file}", f"; set {LOCK_DIR} to a writable folder"):
            try:
                with self._next.acquire(timeout=0):  # who came later does not overtake
                    self._lock.acquire(timeout=0)
            except Timeout:
                self._wait()
        try:
            write_atomically(self._holder, str(os.getpid()).encode())
        except WriteError:
            self._lock.release()
            raise

    __enter__ = acquire

    def release(self) -> None:
        """Let the next session go; safe where nothing is held."""
        self._lock.release()

    def _wait(self) -> None:
        holder = self._holder.read_text(errors="replace") if self._holder.exists() else ""
        # Every process of the machine may write there.
        holder = holder if holder.isdigit() else "unknown"
        busy = f"another timing session (process {holder}) holds this machine"
        if self._wait_s == 0:
            raise BusyMachineError(f"{busy}, and --perf-wait=0 does not wait; run again later")
        most = f"{self._wait_s:g} s at most"
        self._say(f"perfsuite: {busy}; waiting for it, {most} (pytest: --perf-wait=0 would not)")
        end_s = time.monotonic() + self._wait_s
        try:
            with self._next.acquire(timeout=self._wait_s):
                self._lock.acquire(timeout=max(0.0, end_s - time.monotonic()))
        except Timeout as error:
            still = f"{busy}, still after {self._wait_s:g} s (--perf-wait)"
            raise BusyMachineError(f"{still}; run again when it has ended") from error
