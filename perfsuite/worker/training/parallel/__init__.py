"""Every parallel mode, each a `Strategy` of the trainer: what it splits, wraps, waits for.

Must not know of measuring, nor of the order in which a trainer is put together.
"""

from __future__ import annotations

from perfsuite.worker.training.parallel.strategies import choose_strategy

__all__ = ["choose_strategy"]
