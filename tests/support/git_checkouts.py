"""Git in the repositories that tests make."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    """What git prints, without this machine's own configuration unless a test has set one."""
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    command = ["git", "-C", str(folder), *identity, *arguments]
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    ended = subprocess.run(
        command, env={**alone, **os.environ}, check=True, capture_output=True, text=True
    )
    return ended.stdout.strip()


def commit(folder: Path, name: str = "code.py", text: str = "") -> str:
    (folder / name).write_text(text or f"{name} {len(list(folder.iterdir()))}\n")
    git(folder, "add", "--", name)
    git(folder, "commit", "--quiet", "--allow-empty", "--message", name)
    return git(folder, "rev-parse", "HEAD")


def head_of(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD")


def clone(repository: Path, *options: str) -> Path:
    folder = repository.with_name("clone")
    git(repository.parent, "clone", "--quiet", *options, f"file://{repository}", str(folder))
    return folder
