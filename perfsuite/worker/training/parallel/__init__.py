"""Every parallel mode, each a `Strategy` of the trainer: what it splits, wraps, waits for."""
