"""Horovod's way: gradient hooks start averaging while backward runs, the optimizer waits for it.

Sergeev and Del Balso 2018. Once with torch.distributed ("horovod-like"), once the real package.
Must not know the step.
"""

from __future__ import annotations
