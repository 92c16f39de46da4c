"""Real repositories in temporary folders, as git itself makes them."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    """Return what git answers."""
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, name: str = "code.py", text: str = "") -> str:
    """Commit a file with a new text, and return the commit."""
    (folder / name).write_text(text or f"{name} {len(list(folder.iterdir()))}\n")
    git(folder, "add", "--", name)
    git(folder, "commit", "--quiet", "--allow-empty", "--message", name)
    return head_of(folder)


def head_of(folder: Path) -> str:
    """Return the commit of HEAD."""
    return git(folder, "rev-parse", "HEAD")


def clone(repository: Path, *options: str) -> Path:
    """Return a clone beside a repository."""
    folder = repository.with_name("clone")
    git(repository.parent, "clone", "--quiet", *options, f"file://{repository}", str(folder))
    return folder
