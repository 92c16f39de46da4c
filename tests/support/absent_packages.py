"""Interpreters that find none of the packages that the extras install."""

from __future__ import annotations

from pathlib import Path

# By the names under which they are imported, and installed.
ABSENT = (
    *("torch", "torchvision", "sklearn", "scikit-learn", "matplotlib", "torchao", "fsspec"),
    *("s3fs", "gcsfs", "tensorboard", "wandb", "mlflow", "transformers", "peft", "accelerate"),
)
_FINDER = f"""
from importlib.machinery import PathFinder

ABSENT = {ABSENT!r}
find_spec, find_distributions = PathFinder.find_spec, PathFinder.find_distributions


def find_present_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in ABSENT else find_spec(name, path, target)


def find_present_distributions(context):
    return () if context.name in ABSENT else find_distributions(context)


PathFinder.find_spec = find_present_spec
PathFinder.find_distributions = find_present_distributions
"""


def hide_extras(folder: Path) -> dict[str, str]:
    """Variables for an interpreter without these packages; the folder holds what hides them."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_FINDER)
    return {"PYTHONPATH": str(folder)}
