"""Every parallel mode, each a `Strategy` of the trainer: what it splits, wraps, waits for."""

from __future__ import annotations

from perfsuite.worker.training.parallel.strategies import choose_strategy

__all__ = ["choose_strategy"]
