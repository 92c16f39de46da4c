"""Commands that see file systems of their own: full, small or read-only, and gone afterwards."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest


def run_with_mounts(
    mounts: Mapping[Path, str], command: Sequence[str], cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a mount namespace of its own.

    Args:
        mounts: The options of a tmpfs on each folder, such as "size=64k" or "ro".
        command: What to run.
        cwd: Where.
        environment: Further variables.
    """
    script = [f"mount -t tmpfs -o {options} tmpfs {path}" for path, options in mounts.items()]
    return subprocess.run(
        [*_unshare(), "sh", "-c", " && ".join([*script, 'exec "$@"']), "sh", *command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def _unshare() -> list[str]:
    return ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]


@functools.cache
def _can_mount() -> bool:
    try:
        tried = subprocess.run(
            [*_unshare(), "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
        )
    except FileNotFoundError:
        return False
    return tried.returncode == 0


needs_mounts = pytest.mark.skipif(
    not _can_mount(),
    reason="makes a file system of its own full or read-only, which takes unshare(1) and root, or "
    "user namespaces",
)
